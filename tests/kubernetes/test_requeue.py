"""The next attempt, where it may run, holds, and what Kubernetes does otherwise than the twin."""

from typing import Any

import pytest

from planaria.core.scheduling import Hold, Isolate, JobQuery, JobsOn, Join, NodeQuery, Place, Requeue, Stop
from tests.kubernetes.api_server import Call
from tests.kubernetes.cluster import NAMESPACE, OTHER, Cluster, instance_of, key_of

A, B, C = (key_of(number) for number in (1, 2, 3))
MARK = "planaria:s-1"


def stopped(k8s: Cluster, name: str = "gpt", pods: int = 2, **more: Any) -> None:
    k8s.add_job(name, pods, **more)
    while k8s.ask(Stop((name,), "TERM", 1.0))[name] != "STOPPED":
        k8s.advance(0.5)


def requeue(k8s: Cluster, *nodes: str, attempt: int = 2, job: str = "gpt", step: int = 40) -> str:
    return str(k8s.ask(Requeue(job, nodes, attempt, step))[job])


def held(k8s: Cluster) -> dict[str, str]:
    """{Node: the job that it is held for} by the taints."""
    return {
        node["metadata"]["name"]: taint["value"]
        for node in k8s.store.select("nodes")
        for taint in node["spec"].get("taints") or []
        if taint["key"] == "planaria/held"
    }


def test_kubernetes_places_the_pods_and_the_answer_says_where(k8s: Cluster) -> None:
    """The counterpart of the contract's exact placement: bad nodes are avoided, ranks keep their index."""
    stopped(k8s)
    k8s.ask(Isolate(("demo-1",), MARK))
    assert requeue(k8s, "demo-3", "demo-2") == "RUNNING"
    assert k8s.ask(JobsOn(("demo-1", "demo-2", "demo-3"))) == {
        "demo-1": [],
        "demo-2": ["gpt"],
        "demo-3": ["gpt"],
    }
    told = k8s.ask(JobQuery(("gpt",)))["gpt"]
    assert told["nodes"] == ["demo-2", "demo-3"], "in the order of the ranks, as the pods' indices say"
    assert (told["state"], told["attempt"], told["restarts"]) == ("RUNNING", 2, 1)
    annotations = k8s.job("gpt")["metadata"]["annotations"]
    assert (annotations["planaria/attempt"], annotations["planaria/resume-step"]) == ("2", "40")
    assert "planaria/stop" not in annotations


def test_the_same_attempt_again_changes_nothing_and_a_lower_one_is_refused(k8s: Cluster) -> None:
    stopped(k8s)
    assert requeue(k8s, "demo-1", "demo-2") == "RUNNING"
    writes = len(k8s.writes())
    assert requeue(k8s, "demo-1", "demo-2") == "RUNNING"
    assert requeue(k8s, "demo-1", "demo-3") == "RUNNING"
    assert requeue(k8s, "demo-1", attempt=1) == "REFUSED: attempt 2 of gpt was started already"
    assert len(k8s.writes()) == writes


def test_an_attempt_that_someone_suspended_since_is_not_started_by_asking_again(k8s: Cluster) -> None:
    stopped(k8s)
    requeue(k8s, "demo-1", "demo-2")
    k8s.store.change("jobs", NAMESPACE, "gpt", "kubectl", suspend=True)
    k8s.advance(1.0)
    assert requeue(k8s, "demo-1", "demo-2") == "PENDING: gpt is suspended"
    assert requeue(k8s, "demo-1", "demo-2", attempt=3) == THEIRS


THEIRS = "REFUSED: gpt is suspended, and not by Planaria: who did so starts it again"


def test_a_job_that_its_user_suspended_is_not_started(k8s: Cluster) -> None:
    k8s.add_job("gpt", 2)
    k8s.store.change("jobs", NAMESPACE, "gpt", "kubectl-patch", suspend=True)
    k8s.advance(1.0)
    assert k8s.ask(Stop(("gpt",), "TERM", 1.0)) == {"gpt": "STOPPED"}, "nothing of it runs"
    assert k8s.writes() == [], "and nothing is noted on it"
    assert requeue(k8s, "demo-1", "demo-2") == THEIRS
    assert k8s.job("gpt")["spec"]["suspend"] is True
    assert k8s.ask(JobQuery(("gpt",)))["gpt"]["reason"] == "Suspended by someone else"


def test_a_suspension_that_was_lifted_and_set_anew_is_theirs(k8s: Cluster) -> None:
    stopped(k8s)
    k8s.store.change("jobs", NAMESPACE, "gpt", "kubectl-patch", suspend=False)
    k8s.advance(1.0)
    k8s.store.change("jobs", NAMESPACE, "gpt", "kubectl-patch", suspend=True)
    k8s.advance(1.0)
    assert requeue(k8s, "demo-1", "demo-2") == THEIRS


def test_a_suspension_that_comes_in_between_is_theirs(k8s: Cluster) -> None:
    k8s.add_job("gpt", 2)
    k8s.store.change("jobs", NAMESPACE, "gpt", "kubectl-patch", parallelism=0)
    k8s.store.set_status("pods", NAMESPACE, k8s.live("gpt")[0]["metadata"]["name"], phase="Succeeded")
    k8s.store.set_status("pods", NAMESPACE, k8s.live("gpt")[0]["metadata"]["name"], phase="Unknown")
    for pod in k8s.store.select("pods"):
        k8s.store.objects.pop(("pods", NAMESPACE, pod["metadata"]["name"]))

    def suspend(call: Call) -> None:
        if call.verb == "patch" and not k8s.job("gpt")["spec"].get("suspend"):
            k8s.store.change("jobs", NAMESPACE, "gpt", "kubectl-patch", suspend=True)

    k8s.api.before = suspend
    assert requeue(k8s, "demo-1", "demo-2") == "REFUSED: gpt was suspended by someone else meanwhile"
    assert k8s.job("gpt")["spec"]["suspend"] is True


def test_a_failed_job_is_not_started_again(k8s: Cluster) -> None:
    k8s.add_job("gpt", 2, backoffLimit=0)
    k8s.store.set_status("pods", NAMESPACE, k8s.live("gpt")[0]["metadata"]["name"], phase="Failed")
    k8s.advance(1.0)
    word = requeue(k8s, "demo-1", "demo-2")
    assert word == (
        "REFUSED: gpt has failed for good (BackoffLimitExceeded) and Kubernetes starts no failed Job again; "
        "submit it anew"
    )
    assert k8s.ask(JobQuery(("gpt",)))["gpt"]["requeue"] is False


def test_a_jobset_restarts_itself(k8s: Cluster) -> None:
    """The owner's own restart: nothing of ours is needed when one of its pods fails."""
    k8s.add_jobset("llama", 2, failurePolicy={"maxRestarts": 3})
    k8s.store.set_status("pods", NAMESPACE, k8s.live("llama")[0]["metadata"]["name"], phase="Failed")
    k8s.advance(1.0)
    job = f"jobset.{NAMESPACE}.llama"
    told = k8s.ask(JobQuery((job,)))[job]
    assert (told["state"], told["restarts"], told["attempt"]) == ("RUNNING", 1, 1)


def test_a_jobset_of_which_a_part_is_over_runs_with_the_rest(k8s: Cluster) -> None:
    k8s.add_jobset("llama", 2)
    status = {"replicatedJobsStatus": [{"name": "prepare", "succeeded": 1}, {"name": "w", "succeeded": 0}]}
    jobset = k8s.job("llama", "jobsets")
    prepare = {"name": "prepare", "replicas": 1, "template": jobset["spec"]["replicatedJobs"][0]["template"]}
    jobset["spec"]["replicatedJobs"].append(prepare)
    k8s.controllers.asleep.add("jobsets")
    k8s.store.update("jobsets", NAMESPACE, jobset, "test")
    k8s.store.set_status("jobsets", NAMESPACE, "llama", **status)
    job = f"jobset.{NAMESPACE}.llama"
    assert requeue(k8s, "demo-1", "demo-2", job=job, attempt=1) == "RUNNING"


def test_old_pods_end_before_the_next_attempt(k8s: Cluster) -> None:
    k8s.add_job("gpt", 2)
    first = {pod["metadata"]["uid"] for pod in k8s.live("gpt")}
    for pod in k8s.live("gpt"):
        k8s.controllers.stubborn.add(pod["metadata"]["name"])
    assert requeue(k8s, "demo-1", "demo-2") == "PENDING: 2 pods of the attempt before are ending"
    k8s.advance(40.0)
    assert requeue(k8s, "demo-1", "demo-2") == "RUNNING"
    assert not first & {pod["metadata"]["uid"] for pod in k8s.live("gpt")}


def test_pods_that_wait_are_pending(k8s: Cluster) -> None:
    stopped(k8s)
    k8s.controllers.pulling = True
    assert requeue(k8s, "demo-1", "demo-2") == "PENDING: 2 of 2 pods wait for a node or an image"
    k8s.controllers.pulling = False
    assert requeue(k8s, "demo-1", "demo-2") == "RUNNING"
    stopped(k8s, "other", 1)
    k8s.controllers.asleep.add("jobs")
    assert requeue(k8s, "demo-3", job="other") == "PENDING: its pods are not created yet"


def test_a_node_whose_kubelet_is_silent_is_waited_for(k8s: Cluster) -> None:
    stopped(k8s)
    k8s.set_ready(B, "Unknown")
    assert requeue(k8s, "demo-1", "demo-2") == "PENDING: the kubelet of demo-2 is silent"
    assert k8s.job("gpt")["spec"]["suspend"] is True
    assert k8s.ask(Place("gpt", 3)) == {"gpt": ["demo-1", "demo-3"]}
    k8s.set_ready(B, "True")
    assert requeue(k8s, "demo-1", "demo-2") == "RUNNING"


# --- holds ---------------------------------------------------------------------------------------


def hold(k8s: Cluster, *nodes: str, seconds: float = 600.0, job: str = "gpt") -> str:
    return str(k8s.ask(Hold(job, nodes, seconds))[job])


def test_a_queued_job_takes_none_of_the_survivors(k8s: Cluster) -> None:
    k8s.add_job("gpt", 2)
    assert hold(k8s, "demo-1", "demo-2") == "HELD"
    assert held(k8s) == {A: "gpt", B: "gpt"}
    for number in range(4):
        k8s.add_job(f"queued-{number}", 1)
    while k8s.ask(Stop(("gpt",), "TERM", 1.0))["gpt"] != "STOPPED":
        k8s.advance(0.5)
    k8s.advance(10.0)
    assert k8s.ask(JobsOn(("demo-1", "demo-2", "demo-3"))) == {
        "demo-1": [],
        "demo-2": [],
        "demo-3": ["queued-0"],
    }


def test_the_held_nodes_go_to_their_job_whatever_waits(k8s: Cluster) -> None:
    """Its pods come to tolerate the hold, which is lifted only once they have the nodes."""
    stopped(k8s)
    hold(k8s, "demo-1", "demo-2")
    for number in range(4):
        k8s.add_job(f"a-queued-{number}", 1)
    k8s.controllers.asleep.add("jobs")
    assert requeue(k8s, "demo-1", "demo-2") == "PENDING: its pods are not created yet"
    k8s.controllers.asleep.clear()
    k8s.controllers.pulling = True
    assert requeue(k8s, "demo-1", "demo-2").startswith("PENDING: 2 of 2 pods")
    k8s.advance(30.0)
    assert requeue(k8s, "demo-1", "demo-2").startswith("PENDING: 2 of 2 pods")
    assert held(k8s) == {A: "gpt", B: "gpt"}
    k8s.controllers.pulling = False
    assert requeue(k8s, "demo-1", "demo-2") == "RUNNING"
    assert held(k8s) == {}
    assert sorted(k8s.where("gpt")) == [A, B]
    assert "planaria/held" not in k8s.job("gpt")["metadata"]["annotations"]


def test_the_users_own_tolerations_stay(k8s: Cluster) -> None:
    own = {"key": "nvidia.com/gpu", "operator": "Exists"}
    stopped(k8s, pods=1, pod={"tolerations": [own]})
    hold(k8s, "demo-1", "demo-2", "demo-3")
    requeue(k8s, "demo-1")
    assert requeue(k8s, "demo-1") == "RUNNING"
    (pod,) = k8s.live("gpt")
    assert pod["spec"]["tolerations"] == [
        own,
        {"key": "planaria/held", "operator": "Equal", "value": "gpt", "effect": "NoSchedule"},
    ]
    assert k8s.job("gpt")["spec"]["template"]["spec"]["tolerations"] == [own]


def test_a_hold_past_its_time_counts_no_more_and_is_taken_away(k8s: Cluster) -> None:
    stopped(k8s)
    hold(k8s, "demo-1", seconds=60.0)
    k8s.advance(61.0)
    assert held(k8s) == {A: "gpt"}, "Kubernetes takes nothing away"
    adapter = k8s.adapter()
    assert adapter.poll(adapter.submit(Place("later", 3))).value == {"later": ["demo-1", "demo-2", "demo-3"]}
    assert held(k8s) == {}


def test_any_request_clears_expired_holds_but_not_all_the_time(k8s: Cluster) -> None:
    stopped(k8s)
    hold(k8s, "demo-1", seconds=1.0)
    adapter = k8s.adapter()
    adapter.submit(NodeQuery(()))
    assert held(k8s) == {A: "gpt"}
    k8s.advance(2.0)
    adapter.submit(NodeQuery(()))
    assert held(k8s) == {A: "gpt"}
    k8s.advance(30.0)
    adapter.submit(NodeQuery(()))
    assert held(k8s) == {}


def test_two_jobs_do_not_hold_the_same_node(k8s: Cluster) -> None:
    stopped(k8s)
    stopped(k8s, "other", 1)
    hold(k8s, "demo-1", "demo-2")
    assert hold(k8s, "demo-2", "demo-3", job="other") == "UNKNOWN: demo-2 is held for gpt"
    assert held(k8s) == {A: "gpt", B: "gpt", C: "other"}
    assert requeue(k8s, "demo-2", job="other") == "REFUSED: demo-2 is held for gpt"


def test_a_newer_hold_frees_what_it_does_not_name(k8s: Cluster) -> None:
    stopped(k8s)
    hold(k8s, "demo-1", "demo-2")
    hold(k8s, "demo-2", "demo-3")
    assert held(k8s) == {B: "gpt", C: "gpt"}
    hold(k8s)
    assert held(k8s) == {}


def test_a_held_node_of_someone_else_is_not_written_to(k8s: Cluster) -> None:
    stopped(k8s)
    k8s.store.change("nodes", "", A, "kubectl-cordon", unschedulable=True)
    assert hold(k8s, "demo-1", "demo-2") == "HELD"
    assert held(k8s) == {B: "gpt"}


def test_the_replacement_is_held_the_moment_it_joins(k8s: Cluster) -> None:
    stopped(k8s)
    k8s.ask(Isolate(("demo-2",), MARK))
    hold(k8s, "demo-1", "demo-2")
    k8s.store.delete("nodes", "", B)  # the instance is gone, its Node with it
    k8s.add_node("ip-10-0-9-9", instance_of(9))
    k8s.ask(Join("demo-2", instance_of(9), "", MARK))
    assert held(k8s) == {A: "gpt", "ip-10-0-9-9": "gpt"}
    assert k8s.ask(JobsOn(("demo-2",))) == {"demo-2": []}


def test_a_long_job_name_still_fits_into_a_taint(k8s: Cluster) -> None:
    name = "train-" + "x" * 57
    k8s.add_job(name, 1, namespace=OTHER)
    job = f"job.{OTHER}.{name}"
    assert hold(k8s, "demo-2", job=job) == "HELD"
    assert len(held(k8s)[B]) <= 63
    assert k8s.ask(Place(job, 3))[job] == ["demo-1", "demo-2", "demo-3"]
    assert k8s.ask(Place("later", 3)) == {"later": ["demo-3"]}


def test_a_late_look_at_an_old_requeue_does_not_start_a_stopped_job(k8s: Cluster) -> None:
    k8s.add_job("gpt", 1)
    k8s.controllers.stubborn.add(k8s.live("gpt")[0]["metadata"]["name"])
    adapter = k8s.adapter()
    ticket = adapter.submit(Requeue("gpt", ("demo-1",), 2, -1))
    k8s.clock.advance(1.0)
    k8s.ask(Stop(("gpt",), "TERM", 1.0))
    k8s.advance(40.0)
    assert adapter.poll(ticket).value == {"gpt": "REFUSED: another request came between"}
    assert k8s.live("gpt") == []


# --- who asks for what -------------------------------------------------------------------------------


def test_job_ids(k8s: Cluster) -> None:
    k8s.add_job("gpt", 1)
    k8s.add_job("job.training.x", 1)  # a name that reads like a full id
    k8s.add_job("gpt", 1, namespace=OTHER)
    found = k8s.ask(JobsOn(("demo-1", "demo-2", "demo-3")))
    assert sorted(job for jobs in found.values() for job in jobs) == [
        "gpt",
        f"job.{OTHER}.gpt",
        "job.training.job.training.x",
    ]
    for jobs in found.values():
        for job in jobs:
            assert k8s.ask(JobQuery((job,)))[job]["state"] == "RUNNING"


@pytest.mark.parametrize("job", ["nothing", "job.elsewhere.gpt", "jobset.training.gpt", "a/b", "..", "?x=1"])
def test_what_is_no_job(k8s: Cluster, job: str) -> None:
    k8s.add_job("gpt", 1)
    assert k8s.ask(JobQuery((job,))) == {job: None}
    assert requeue(k8s, "demo-1", job=job) == f"REFUSED: no job {job}"
    assert hold(k8s, "demo-1", job=job) == f"UNKNOWN: no job {job}"
