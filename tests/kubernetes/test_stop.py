"""Ending a job: budgets, deadlines, pods that do not end, Kueue, and who owns what."""

from typing import Any

import pytest

from planaria.core.scheduling import Isolate, JobsOn, Lost, Requeue, Stop
from planaria.schedulers.eks import cluster_view
from planaria.schedulers.eks.stopping import BUDGET_SECONDS, CONTROLLER_SECONDS
from tests.kubernetes.api_server import Call
from tests.kubernetes.cluster import NAMESPACE, OTHER, Cluster, key_of, template
from tests.kubernetes.store import ApiError

A, B, C = (key_of(number) for number in (1, 2, 3))
MARK = "planaria:s-1"


def stop(k8s: Cluster, job: str = "gpt", grace: float = 2.0, signal: str = "TERM") -> str:
    return str(k8s.ask(Stop((job,), signal, grace))[job])


def until(k8s: Cluster, wanted: str, seconds: float = 5.0, **more: Any) -> None:
    end = k8s.clock.now() + seconds
    while (word := stop(k8s, **more)) != wanted:
        assert k8s.clock.now() < end, f"still {word} after {seconds} s"
        k8s.advance(0.5)


def test_a_job_is_suspended_and_counts_no_failure(k8s: Cluster) -> None:
    k8s.add_job("gpt", 3, backoffLimit=0)
    until(k8s, "STOPPED")
    job = k8s.job("gpt")
    assert job["spec"]["suspend"] is True
    assert job["status"]["failed"] == 0
    assert k8s.live("gpt") == []


def test_the_pod_template_is_never_written(k8s: Cluster) -> None:
    k8s.add_job("gpt", 2)
    before = k8s.job("gpt")["spec"]["template"]
    until(k8s, "STOPPED")
    k8s.ask(Requeue("gpt", ("demo-1", "demo-2"), 2, 5))
    assert k8s.job("gpt")["spec"]["template"] == before


def test_the_asked_grace_shortens_that_of_the_pods(k8s: Cluster) -> None:
    k8s.add_job("gpt", 1, pod={"terminationGracePeriodSeconds": 600})
    k8s.controllers.stubborn.add(k8s.live("gpt")[0]["metadata"]["name"])
    assert stop(k8s) == "COMPLETING"
    assert stop(k8s) == "COMPLETING"
    (pod,) = k8s.live("gpt")
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 2
    k8s.advance(1.0)
    assert stop(k8s) == "COMPLETING"
    k8s.advance(1.5)
    assert stop(k8s) == "STOPPED"


def test_killing_leaves_a_second(k8s: Cluster) -> None:
    k8s.add_job("gpt", 1)
    k8s.controllers.stubborn.add(k8s.live("gpt")[0]["metadata"]["name"])
    stop(k8s, signal="KILL", grace=0.0)
    stop(k8s, signal="KILL", grace=0.0)
    assert k8s.live("gpt")[0]["metadata"]["deletionGracePeriodSeconds"] == 1, "0 would not ask its kubelet"


# --- budgets -------------------------------------------------------------------------------------


def test_a_budget_that_allows_nothing_holds_the_job_until_the_deadline(k8s: Cluster) -> None:
    k8s.add_job("gpt", 2)
    k8s.add_budget("do-not-disturb", "gpt", maxUnavailable=0)
    for _ in range(6):
        assert stop(k8s) == "COMPLETING"
        k8s.advance((BUDGET_SECONDS - 1) / 6)
    assert len(k8s.live("gpt")) == 2
    assert not k8s.job("gpt")["spec"].get("suspend")
    assert not [w for w in k8s.writes() if w[1].startswith("pods")], "not one pod was touched"
    k8s.advance(1.0)
    until(k8s, "STOPPED")


def test_the_deadline_counts_from_the_first_ask_whoever_asks_next(k8s: Cluster) -> None:
    k8s.add_job("gpt", 1)
    k8s.add_budget("do-not-disturb", "gpt", maxUnavailable=0)
    assert stop(k8s) == "COMPLETING"
    k8s.advance(BUDGET_SECONDS)
    until(k8s, "STOPPED", signal="KILL")


def test_a_budget_for_some_of_the_pods_does_not_let_all_end(k8s: Cluster) -> None:
    k8s.add_job("gpt", 3)
    k8s.add_budget("one-at-a-time", "gpt", maxUnavailable=1)
    assert stop(k8s) == "COMPLETING"
    k8s.advance(1.0)
    assert len(k8s.live("gpt")) == 3


def test_a_budget_that_allows_it_costs_no_time(k8s: Cluster) -> None:
    k8s.add_job("gpt", 3)
    k8s.add_budget("all", "gpt", maxUnavailable="100%")
    assert stop(k8s) in ("COMPLETING", "STOPPED")
    k8s.advance(0.1)
    assert stop(k8s) == "STOPPED"


def test_a_job_without_budgets_costs_one_look(k8s: Cluster) -> None:
    k8s.add_job("gpt", 3)
    stop(k8s)
    asked = [call for call in k8s.api.calls if call.subresource == "eviction"]
    assert asked == []
    k8s.add_job("other", 3)
    k8s.add_budget("all", "other", maxUnavailable="100%")
    stop(k8s, job="other")
    asked = [call for call in k8s.api.calls if call.subresource == "eviction"]
    assert [call.dry for call in asked] == [True], "one trial for each budget"


def test_the_api_servers_own_no_counts_whatever_the_sums_say(k8s: Cluster) -> None:
    """The budget's status may be older than what the server knows."""
    k8s.add_job("gpt", 1)
    k8s.add_budget("stale", "gpt", maxUnavailable=1)

    def refuse(call: Call) -> None:
        k8s.controllers.tick()
        if call.subresource == "eviction":
            cause = {"reason": "DisruptionBudget", "message": "is still being processed by the server"}
            raise ApiError(429, "TooManyRequests", "Cannot evict pod", [cause])

    k8s.api.before = refuse
    assert stop(k8s) == "COMPLETING"
    assert not k8s.job("gpt")["spec"].get("suspend")


def test_a_request_that_takes_long_leaves_the_rest_to_the_next(
    k8s: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_view, "REQUEST_SECONDS", -1.0)
    k8s.add_job("gpt", 3, pod={"terminationGracePeriodSeconds": 600})
    k8s.controllers.stubborn.update(pod["metadata"]["name"] for pod in k8s.live("gpt"))
    for _ in range(3):
        assert stop(k8s) == "COMPLETING"
    assert ("delete", "pods") not in k8s.writes()
    monkeypatch.undo()
    stop(k8s)
    assert k8s.writes().count(("delete", "pods")) == 3


def test_budgets_of_other_pods_do_not_count(k8s: Cluster) -> None:
    k8s.add_job("gpt", 2)
    k8s.add_budget("theirs", "other", maxUnavailable=0)
    k8s.store.create(
        "poddisruptionbudgets",
        {
            "metadata": {"name": "by-expression", "namespace": NAMESPACE},
            "spec": {
                "maxUnavailable": 0,
                "selector": {
                    "matchExpressions": [
                        {"key": "app", "operator": "NotIn", "values": ["gpt"]},
                        {"key": "app", "operator": "Exists"},
                    ]
                },
            },
        },
    )
    until(k8s, "STOPPED", 2.0)


def test_a_pod_with_two_budgets_waits_like_one_that_is_protected(k8s: Cluster) -> None:
    k8s.add_job("gpt", 1)
    k8s.add_budget("first", "gpt", maxUnavailable=1)
    k8s.add_budget("second", "gpt", maxUnavailable=1)
    assert stop(k8s) == "COMPLETING"
    k8s.advance(BUDGET_SECONDS)
    until(k8s, "STOPPED")


# --- pods that do not end ----------------------------------------------------------------------------


def test_a_pod_that_never_ends_is_completing_until_its_node_is_given_up(k8s: Cluster) -> None:
    k8s.add_job("gpt", 2)
    stuck = next(p for p in k8s.live("gpt") if p["spec"]["nodeName"] == A)
    k8s.controllers.stuck.add(stuck["metadata"]["name"])
    for _ in range(10):
        assert stop(k8s) == "COMPLETING"
        k8s.advance(60.0)
    assert k8s.ask(JobsOn(("demo-1", "demo-2"))) == {"demo-1": ["gpt"], "demo-2": []}
    assert k8s.ask(Lost(("demo-1",), MARK)) == {"demo-1": "ISOLATED"}
    assert stop(k8s) == "STOPPED"


def test_pods_whose_controller_does_nothing_are_evicted(k8s: Cluster) -> None:
    k8s.add_job("gpt", 2)
    k8s.controllers.asleep.add("jobs")
    assert stop(k8s) == "COMPLETING"
    k8s.advance(CONTROLLER_SECONDS - 1)
    assert stop(k8s) == "COMPLETING"
    evictions = ("create", "pods/eviction")
    assert evictions not in k8s.writes(), "sooner the Job controller would count them as failed"
    k8s.advance(1.0)
    stop(k8s)
    assert k8s.writes().count(evictions) == 2
    assert all(pod["metadata"].get("deletionTimestamp") for pod in k8s.store.select("pods"))


def test_an_eviction_that_is_refused_becomes_a_deletion_in_the_end(k8s: Cluster) -> None:
    k8s.add_job("gpt", 1)
    stop_at_deadline = BUDGET_SECONDS
    k8s.add_budget("never", "gpt", maxUnavailable=0)
    k8s.controllers.asleep.add("jobs")
    stop(k8s)
    k8s.advance(stop_at_deadline)
    stop(k8s)
    k8s.advance(CONTROLLER_SECONDS)
    stop(k8s)
    assert ("delete", "pods") not in k8s.writes()
    k8s.advance(BUDGET_SECONDS)
    stop(k8s)
    assert ("delete", "pods") in k8s.writes()


# --- jobs and their owners ---------------------------------------------------------------------------


def test_a_jobset_is_stopped_as_one(k8s: Cluster) -> None:
    k8s.add_jobset("llama", 2)
    job = f"jobset.{NAMESPACE}.llama"
    assert k8s.ask(JobsOn(("demo-1", "demo-3"))) == {"demo-1": [job], "demo-3": []}
    until(k8s, "STOPPED", job=job)
    assert k8s.job("llama", "jobsets")["spec"]["suspend"] is True
    assert k8s.job("llama-w-0")["spec"]["suspend"] is True, "its controller passes it on"
    assert k8s.job("llama", "jobsets").get("status", {}).get("restarts", 0) == 0


def test_a_job_of_a_jobset_means_the_jobset(k8s: Cluster) -> None:
    k8s.add_jobset("llama", 1)
    until(k8s, "STOPPED", job="llama-w-0")
    assert k8s.job("llama", "jobsets")["spec"]["suspend"] is True


@pytest.mark.parametrize(
    ("plural", "kind", "spec"),
    [
        ("pytorchjobs", "pytorchjob", {"pytorchReplicaSpecs": {"Master": {}, "Worker": {"replicas": 2}}}),
        ("hyperpodpytorchjobs", "hyperpodpytorchjob", {"replicaSpecs": [{"name": "pods", "replicas": 3}]}),
    ],
)
def test_operators_kinds_by_the_table(k8s: Cluster, plural: str, kind: str, spec: Any) -> None:
    replicas = spec.get("pytorchReplicaSpecs", {}).values() or spec["replicaSpecs"]
    for replica in replicas:
        replica["template"] = template("op")
    k8s.store.create(plural, {"metadata": {"name": "op", "namespace": NAMESPACE}, "spec": spec})
    k8s.controllers.tick()
    job = f"{kind}.{NAMESPACE}.op"
    assert k8s.ask(JobsOn(("demo-1",))) == {"demo-1": [job]}
    until(k8s, "STOPPED", job=job)
    assert k8s.job("op", plural)["spec"]["runPolicy"]["suspend"] is True
    assert k8s.ask(Requeue(job, ("demo-1", "demo-2", "demo-3"), 2, 7))[job] == "RUNNING"
    assert k8s.job("op", plural)["spec"]["runPolicy"]["suspend"] is False
    assert len(k8s.live("op")) == 3


def test_a_trainjob_is_acted_on_at_the_top(k8s: Cluster) -> None:
    """Its controller makes a JobSet of the same name; here the chain is built by hand."""
    made = k8s.store.create(
        "trainjobs", {"metadata": {"name": "llama", "namespace": NAMESPACE}, "spec": {"suspend": False}}
    )
    k8s.add_jobset("llama", 1)
    jobset = k8s.job("llama", "jobsets")
    owner = {"uid": made["metadata"]["uid"], "name": "llama", "kind": "TrainJob", "controller": True}
    jobset["metadata"]["ownerReferences"] = [{**owner, "apiVersion": "trainer.kubeflow.org/v1alpha1"}]
    k8s.store.update("jobsets", NAMESPACE, jobset, "trainer")
    job = f"trainjob.{NAMESPACE}.llama"
    assert k8s.ask(JobsOn(("demo-1",))) == {"demo-1": [job]}
    assert stop(k8s, job=job) == "COMPLETING"
    assert k8s.job("llama", "trainjobs")["spec"]["suspend"] is True
    assert not k8s.job("llama", "jobsets")["spec"].get("suspend"), "that is its controller's business"


def test_pods_of_other_owners_and_namespaces_are_no_jobs(k8s: Cluster) -> None:
    k8s.add_job("elsewhere", 1, namespace="kube-system")
    k8s.add_job("ours", 1, namespace=OTHER)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}
    pod = {"metadata": {"name": "web", "namespace": NAMESPACE, "ownerReferences": [owner]}, "spec": {}}
    k8s.store.create("pods", {**pod, "status": {"phase": "Pending"}})
    k8s.controllers.tick()
    found = k8s.ask(JobsOn(("demo-1", "demo-2", "demo-3")))
    assert found == {"demo-1": [], "demo-2": [f"job.{OTHER}.ours"], "demo-3": []}
    assert stop(k8s, job="job.kube-system.elsewhere").startswith("UNKNOWN: no job")


def test_kinds_that_the_cluster_does_not_have_are_no_error(k8s: Cluster) -> None:
    k8s.store.installed = {"nodes", "pods", "jobs", "poddisruptionbudgets"}
    k8s.add_job("gpt", 1)
    until(k8s, "STOPPED")
    assert stop(k8s, job=f"jobset.{NAMESPACE}.gpt").startswith("UNKNOWN: no job")


# --- Kueue ---------------------------------------------------------------------------------------

QUEUE = {"kueue.x-k8s.io/queue-name": "team-a"}


def test_what_kueue_admits_is_left_to_kueue(k8s: Cluster) -> None:
    k8s.add_job("gpt", 2, labels=QUEUE, backoffLimit=9)
    k8s.ask(Isolate(("demo-1",), MARK))
    k8s.clock.advance(1.0)
    until(k8s, "LEFT: Kueue (queue team-a) decides when gpt runs; nothing of it runs on isolated nodes")
    job = k8s.job("gpt")
    assert not job["spec"].get("suspend")
    assert not job["metadata"].get("annotations"), "not written to at all"
    assert sorted(k8s.where("gpt")) == [B, C], "its pod was evicted and runs elsewhere"
    word = k8s.ask(Requeue("gpt", ("demo-2", "demo-3"), 2, 5))["gpt"]
    assert word == "RUNNING"


def test_a_job_that_kueue_has_suspended_is_pending(k8s: Cluster) -> None:
    k8s.add_job("gpt", 2, labels=QUEUE, suspend=True)
    word = k8s.ask(Requeue("gpt", ("demo-1", "demo-2"), 2, 5))["gpt"]
    assert word == "PENDING: Kueue (queue team-a) starts gpt when it admits it"
    assert k8s.job("gpt")["spec"]["suspend"] is True


def test_kueues_pods_are_evicted_within_their_budgets_for_a_while(k8s: Cluster) -> None:
    k8s.add_job("gpt", 2, labels=QUEUE, backoffLimit=9)
    k8s.add_budget("never", "gpt", maxUnavailable=0)
    k8s.ask(Isolate(("demo-1",), MARK))
    assert stop(k8s) == "COMPLETING"
    assert A in k8s.where("gpt")
    k8s.advance(BUDGET_SECONDS)
    stop(k8s)
    k8s.advance(1.0)
    assert stop(k8s).startswith("LEFT: ")


def test_a_job_that_another_controller_manages_is_left_to_it(k8s: Cluster) -> None:
    k8s.add_jobset("far", 1, managedBy="kueue.x-k8s.io/multikueue")
    job = f"jobset.{NAMESPACE}.far"
    assert stop(k8s, job=job).startswith("LEFT: kueue.x-k8s.io/multikueue decides")


# --- tickets -------------------------------------------------------------------------------------


def test_a_late_look_at_an_old_stop_does_not_stop_the_next_attempt(k8s: Cluster) -> None:
    k8s.add_job("gpt", 1)
    k8s.controllers.stubborn.add(k8s.live("gpt")[0]["metadata"]["name"])
    adapter = k8s.adapter()
    ticket = adapter.submit(Stop(("gpt",), "TERM", 2.0))
    assert adapter.poll(ticket).value == {"gpt": "COMPLETING"}
    k8s.advance(5.0)
    assert adapter.poll(ticket).value == {"gpt": "STOPPED"}
    assert k8s.ask(Requeue("gpt", ("demo-1",), 2, 5)) == {"gpt": "RUNNING"}
    other = k8s.adapter()
    assert other.poll(ticket).value == {"gpt": "STOPPED"}, "another Lambda reads the same ticket"
    assert len(k8s.live("gpt")) == 1
    assert not k8s.job("gpt")["spec"]["suspend"]
