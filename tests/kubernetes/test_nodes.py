"""Isolate, lost, readmit and join: what is written to Nodes, and whose word is left alone."""

import json
import threading
from typing import Any

import pytest

from planaria.core.scheduling import Hold, Isolate, Join, Lost, NodeQuery, Readmit, Stop
from planaria.schedulers.eks.node_patches import Fault
from tests.kubernetes.api_server import Call
from tests.kubernetes.cluster import NAMESPACE, Cluster, cluster, instance_of, key_of

A, B, C = (key_of(number) for number in (1, 2, 3))
MARK = "planaria:i-00000000000000001-1700000000000"
TAINT = "planaria/isolated=i-00000000000000001-1700000000000:NoSchedule"
GPU = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def isolate(k8s: Cluster, name: str = "demo-1", reason: str = MARK, lost: bool = False) -> str:
    request = (Lost if lost else Isolate)((name,), reason)
    return str(k8s.ask(request)[name])


def readmit(k8s: Cluster, name: str = "demo-1", reason: str = MARK) -> str:
    return str(k8s.ask(Readmit((name,), reason))[name])


def describe(k8s: Cluster, name: str = "demo-1") -> dict[str, Any]:
    return dict(k8s.ask(NodeQuery((name,)))[name])


def test_one_write_cordons_taints_and_labels(k8s: Cluster) -> None:
    k8s.store.change("nodes", "", A, "eks", taints=[GPU])
    fault = Fault("UnschedulablePendingReplacement", "NvidiaErrorTerminate", "XidHardwareFailure", "xid 79")
    adapter = k8s.adapter(faults=lambda reason: fault)
    assert k8s.ask(Isolate(("demo-1",), MARK), adapter) == {"demo-1": "ISOLATED"}
    node = k8s.node(A)
    assert node["spec"]["unschedulable"] is True
    assert k8s.taints(A) == ["nvidia.com/gpu=present:NoSchedule", TAINT]
    health = "sagemaker.amazonaws.com"
    assert {k: v for k, v in node["metadata"]["labels"].items() if k.startswith(health)} == {
        f"{health}/node-health-status": "UnschedulablePendingReplacement",
        f"{health}/fault-types": "NvidiaErrorTerminate",
        f"{health}/fault-reasons": "XidHardwareFailure",
    }
    (entry,) = json.loads(node["metadata"]["annotations"][f"{health}/fault-details"])
    assert (entry["type"], entry["message"], entry["time"]) == (
        "NvidiaErrorTerminate",
        "xid 79",
        int(k8s.clock.now()),
    )
    assert k8s.writes() == [("patch", "nodes")]
    k8s.ask(Isolate(("demo-1",), MARK), adapter)
    assert k8s.writes() == [("patch", "nodes")], "asked twice is written once"


def test_readmit_takes_back_what_is_ours_alone(k8s: Cluster) -> None:
    k8s.store.change("nodes", "", A, "eks", taints=[GPU])
    k8s.store.mark("labels", "nodes", "", A, {"team": "a"})
    before = k8s.node(A)
    isolate(k8s)
    assert readmit(k8s) == "READMITTED"
    node = k8s.node(A)
    assert node["spec"] == before["spec"]
    labels = dict(node["metadata"]["labels"])
    assert labels.pop("sagemaker.amazonaws.com/node-health-status") == "Schedulable"
    assert labels == before["metadata"]["labels"]
    assert not node["metadata"].get("annotations")
    writes = len(k8s.writes())
    assert readmit(k8s) == "READMITTED"
    assert len(k8s.writes()) == writes


def test_of_many_faults_twenty_are_kept(k8s: Cluster) -> None:
    for number in range(25):
        isolate(k8s, reason=f"planaria:i-00000000000000001-{number:02d}")
        k8s.clock.advance(1.0)
    told = json.loads(k8s.node(A)["metadata"]["annotations"]["sagemaker.amazonaws.com/fault-details"])
    assert [entry["message"][-2:] for entry in told] == [f"{n:02d}" for n in range(5, 25)]


@pytest.mark.parametrize(
    ("taint", "who"),
    [
        (
            {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"},
            "taint karpenter.sh/disrupted of Karpenter",
        ),
        (
            {"key": "ToBeDeletedByClusterAutoscaler", "value": "1700", "effect": "NoSchedule"},
            "taint ToBeDeletedByClusterAutoscaler=1700 of Cluster Autoscaler",
        ),
        (
            {"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"},
            "taint aws-node-termination-handler/spot-itn of AWS Node Termination Handler",
        ),
        (
            {
                "key": "sagemaker.amazonaws.com/node-health-status",
                "value": "Unschedulable",
                "effect": "NoSchedule",
            },
            "taint sagemaker.amazonaws.com/node-health-status=Unschedulable of SageMaker HyperPod",
        ),
    ],
)
def test_a_node_that_another_tool_took_out_is_not_written_to(k8s: Cluster, taint: Any, who: str) -> None:
    k8s.store.change("nodes", "", A, "tool", taints=[taint])
    for request in (Isolate, Lost):
        assert k8s.ask(request(("demo-1",), MARK)) == {"demo-1": f"FOREIGN: {who}"}
    assert readmit(k8s) == f"FOREIGN: {who}"
    assert k8s.writes() == []
    assert (describe(k8s)["state"], describe(k8s)["reason"]) == ("DRAINED", who)


def test_a_cordon_tells_who_set_it(k8s: Cluster) -> None:
    k8s.store.change("nodes", "", A, "kubectl-cordon", unschedulable=True)
    word = isolate(k8s)
    assert word.startswith("FOREIGN: cordoned by kubectl-cordon at 20")
    assert k8s.writes() == []


def test_a_node_of_hyperpod_is_hyperpods(k8s: Cluster) -> None:
    k8s.store.mark("labels", "nodes", "", A, {"sagemaker.amazonaws.com/cluster-name": "c"})
    assert isolate(k8s) == "FOREIGN: SageMaker HyperPod manages this node"
    k8s.add_node("hyperpod-i-00000000000000009", "i-00000000000000009", "demo-9")
    assert isolate(k8s, "demo-9") == "FOREIGN: SageMaker HyperPod manages this node"
    assert k8s.writes() == [], "the health label is an order to HyperPod"


@pytest.mark.parametrize(
    "taint",
    [
        GPU,
        {"key": "dedicated", "value": "training", "effect": "NoExecute"},
        {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"},
    ],
)
def test_what_a_node_is_for_and_what_kubernetes_says_of_it_is_no_hold(k8s: Cluster, taint: Any) -> None:
    k8s.store.change("nodes", "", A, "eks", taints=[taint])
    assert describe(k8s)["state"] == "IDLE"
    assert isolate(k8s) == "ISOLATED"
    assert readmit(k8s) == "READMITTED"
    assert k8s.node(A)["spec"]["taints"] == [taint]


def test_a_persons_word_on_a_node_that_we_cordoned_survives_our_readmit(k8s: Cluster) -> None:
    isolate(k8s)
    k8s.store.mark("annotations", "nodes", "", A, {"planaria/keep-out": "new disks"})
    assert isolate(k8s) == "FOREIGN: new disks"
    assert readmit(k8s) == "FOREIGN: new disks"
    assert "unschedulable" not in k8s.node(A)["spec"], "ours is taken back"
    assert describe(k8s)["reason"] == "new disks"
    k8s.store.mark("annotations", "nodes", "", A, {"planaria/keep-out": None})
    assert describe(k8s)["state"] == "IDLE"


def test_a_person_readmits_by_hand_and_his_next_cordon_is_his(k8s: Cluster) -> None:
    isolate(k8s, lost=True)
    k8s.store.change("nodes", "", A, "kubectl-uncordon", unschedulable=None)
    assert describe(k8s)["state"] == "DOWN", "the taint is still there"
    k8s.store.change("nodes", "", A, "kubectl-taint", taints=None)
    assert describe(k8s)["state"] == "IDLE", "what is left of our annotation says nothing any more"
    k8s.store.change("nodes", "", A, "kubectl-cordon", unschedulable=True)
    assert describe(k8s)["reason"].startswith("cordoned by kubectl-cordon")
    for reason in (MARK, "planaria:other"):
        assert isolate(k8s, reason=reason).startswith("FOREIGN: cordoned by kubectl-cordon")
        assert readmit(k8s, reason=reason).startswith("FOREIGN: cordoned by kubectl-cordon")
    assert k8s.node(A)["spec"]["unschedulable"] is True


def test_the_cordon_stays_where_another_program_keeps_the_node_out(k8s: Cluster) -> None:
    """Who cordons a node that is cordoned already leaves no trace of it: NVSentinel counts on this one."""
    isolate(k8s)
    theirs = {"key": "AggregatedNodeHealth", "value": "False", "effect": "NoSchedule"}
    k8s.store.change("nodes", "", A, "nvsentinel", taints=[*k8s.node(A)["spec"]["taints"], theirs])
    assert readmit(k8s).startswith("FOREIGN: taint AggregatedNodeHealth")
    node = k8s.node(A)["spec"]
    assert (node["unschedulable"], node["taints"]) == (True, [theirs])


def test_a_cordon_that_was_lifted_and_set_anew_beside_our_taint_stays(k8s: Cluster) -> None:
    isolate(k8s)
    k8s.store.change("nodes", "", A, "kubectl-uncordon", unschedulable=None)
    k8s.store.change("nodes", "", A, "kubectl-cordon", unschedulable=True)
    assert isolate(k8s).startswith("FOREIGN: cordoned by kubectl-cordon")
    assert readmit(k8s).startswith("FOREIGN: cordoned by kubectl-cordon")
    assert (k8s.taints(A), k8s.node(A)["spec"]["unschedulable"]) == ([], True), "only the taint was ours"


def test_where_nobody_says_who_cordoned_our_taint_does(k8s: Cluster) -> None:
    isolate(k8s)
    for key in k8s.store.objects:
        k8s.store.objects[key]["metadata"]["managedFields"] = []
    assert readmit(k8s) == "READMITTED"
    k8s.store.change("nodes", "", A, "x", unschedulable=True)
    k8s.store.objects["nodes", "", A]["metadata"]["managedFields"] = []
    assert isolate(k8s) == "FOREIGN: cordoned by someone else"


@pytest.mark.parametrize(("ready", "state"), [("True", "IDLE"), ("False", "DOWN"), ("Unknown", "UNKNOWN")])
def test_the_ready_condition(k8s: Cluster, ready: str, state: str) -> None:
    k8s.set_ready(A, ready)
    assert describe(k8s)["state"] == state


def test_a_node_without_conditions_is_unknown(k8s: Cluster) -> None:
    k8s.store.set_status("nodes", "", A, conditions=[])
    assert describe(k8s)["state"] == "UNKNOWN"


# --- lost ----------------------------------------------------------------------------------------


def test_a_node_that_is_gone_loses_its_pods_for_good(k8s: Cluster) -> None:
    k8s.add_job("gpt", 1, backoffLimit=0)
    k8s.lose(A)
    assert isolate(k8s, lost=True) == "ISOLATED"
    assert "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute" in k8s.taints(A)
    k8s.advance(1.0)
    assert A not in k8s.where("gpt")
    assert describe(k8s)["state"] == "DOWN"
    assert isolate(k8s) == "ISOLATED"
    assert describe(k8s)["state"] == "DOWN", "what is lost stays lost until it is readmitted"
    k8s.set_ready(A, "True")
    assert readmit(k8s) == "READMITTED"
    assert k8s.taints(A) == []


def test_its_pods_are_disrupted_not_failed_where_the_job_says_so(k8s: Cluster) -> None:
    ignore = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
    k8s.add_job("gpt", 2, backoffLimit=0, podFailurePolicy=ignore)
    k8s.lose(A)
    isolate(k8s, lost=True)
    k8s.advance(1.0)
    assert sorted(k8s.where("gpt")) == [B, C]
    assert k8s.job("gpt")["status"]["failed"] == 0


def test_a_job_that_we_hold_nodes_for_is_suspended_before_its_pods_go(k8s: Cluster) -> None:
    """With backoffLimit 0 a single failed pod would end it for good."""
    k8s.add_job("gpt", 2, backoffLimit=0)
    k8s.lose(A)
    isolate(k8s)
    k8s.ask(Hold("gpt", ("demo-1", "demo-2"), 600.0))
    assert isolate(k8s, lost=True) == "ISOLATED"
    assert k8s.job("gpt")["spec"]["suspend"] is True
    assert k8s.ask(Stop(("gpt",), "TERM", 2.0)) == {"gpt": "STOPPED"}
    assert k8s.job("gpt")["status"]["failed"] == 0


def test_a_controller_that_is_slow_to_let_go_is_not_overtaken(k8s: Cluster) -> None:
    k8s.add_job("gpt", 1, backoffLimit=0)
    k8s.lose(A)
    k8s.ask(Hold("gpt", ("demo-1",), 600.0))
    k8s.controllers.asleep.add("jobs")
    assert isolate(k8s, lost=True) == "ISOLATED"
    assert "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute" not in k8s.taints(A)
    assert k8s.where("gpt") == [A]
    k8s.controllers.asleep.clear()
    k8s.advance(1.0)
    assert k8s.ask(Stop(("gpt",), "TERM", 2.0)) == {"gpt": "STOPPED"}
    assert k8s.job("gpt")["status"]["failed"] == 0


def test_a_node_that_is_given_up_while_it_lives_gets_no_shutdown_taint(k8s: Cluster) -> None:
    """Past the deadline of a drain: the taint would be a lie, and volumes would be taken from a live node."""
    k8s.add_job("gpt", 1)
    stuck = k8s.live("gpt")[0]["metadata"]
    k8s.controllers.stuck.add(stuck["name"])
    k8s.add_budget("never", "gpt", maxUnavailable=0)
    assert isolate(k8s, lost=True) == "ISOLATED"
    assert k8s.taints(A) == [TAINT]
    k8s.advance(1.0)
    assert stuck["uid"] not in [pod["metadata"]["uid"] for pod in k8s.live("gpt")]


def test_a_shutdown_taint_of_someone_else_stays(k8s: Cluster) -> None:
    out = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    k8s.store.change("nodes", "", A, "remediator", taints=[out])
    k8s.set_ready(A, "Unknown")
    isolate(k8s, lost=True)
    k8s.set_ready(A, "True")
    readmit(k8s)
    assert k8s.node(A)["spec"]["taints"] == [out]


def test_daemonsets_and_static_pods_are_left_alone(k8s: Cluster) -> None:
    owners: dict[str, Any] = {
        "agent": {"ownerReferences": [{"kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}]},
        "static": {"annotations": {"kubernetes.io/config.mirror": "x"}},
    }
    for name, metadata in owners.items():
        pod = {"metadata": {"name": name, "namespace": NAMESPACE, **metadata}, "spec": {"nodeName": A}}
        k8s.store.create("pods", {**pod, "status": {"phase": "Running"}})
    assert isolate(k8s, lost=True) == "ISOLATED"
    assert [pod["metadata"]["name"] for pod in k8s.store.select("pods")] == ["agent", "static"]


# --- names and joins -------------------------------------------------------------------------------


def test_before_the_first_join_the_ledger_says_who_has_a_name() -> None:
    with cluster(named=False) as k8s:
        assert describe(k8s, "demo-2")["node_id"] == instance_of(2)
        assert describe(k8s, instance_of(3))["state"] == "IDLE", "an instance id is a name as well"
        assert describe(k8s, A)["node_id"] == instance_of(1), "and so is the Node's own"
        assert isolate(k8s, "demo-2") == "ISOLATED"
        assert k8s.node(B)["spec"]["unschedulable"] is True
        k8s.ledger.clear()
        assert describe(k8s, "demo-3")["state"] == "UNKNOWN"
        assert describe(k8s, "demo-2")["state"] == "DRAINED", "a Node that we wrote to says its name itself"


def test_a_name_moves_to_the_replacement(k8s: Cluster) -> None:
    k8s.add_node("ip-10-0-9-9", instance_of(9))
    isolate(k8s)
    assert k8s.ask(Join("demo-1", instance_of(9), "10.0.9.9", MARK)) == {"demo-1": "JOINED"}
    assert describe(k8s)["node_id"] == instance_of(9)
    assert "planaria/name" not in k8s.node(A)["metadata"]["labels"]
    assert k8s.node(A)["spec"]["unschedulable"] is True, "the old node stays out of work"
    assert readmit(k8s) == "READMITTED"
    assert k8s.taints("ip-10-0-9-9") == []
    k8s.ledger["demo-1"] = instance_of(1)  # an old row of the ledger
    assert describe(k8s)["node_id"] == instance_of(9)
    assert describe(k8s, instance_of(1))["node_id"] == instance_of(1)


def test_a_new_node_is_out_of_work_until_it_is_readmitted(k8s: Cluster) -> None:
    """A spare, or a replacement that has registered and not joined yet: nothing may run there."""
    k8s.add_node("ip-10-0-9-9", instance_of(9), joining=True)
    k8s.add_job("queued", 4)
    assert "ip-10-0-9-9" not in k8s.where("queued")
    told = describe(k8s, instance_of(9))
    assert (told["state"], told["reason"]) == ("DRAINED", "new: it has not joined yet")
    assert k8s.ask(Join("demo-4", instance_of(9), "10.0.9.9", MARK)) == {"demo-4": "JOINED"}
    k8s.advance(1.0)
    assert "ip-10-0-9-9" not in k8s.where("queued")
    assert readmit(k8s, "demo-4") == "READMITTED"
    k8s.advance(1.0)
    assert "ip-10-0-9-9" in k8s.where("queued")
    k8s.add_node("ip-10-0-8-8", instance_of(8), joining=True)
    assert readmit(k8s, instance_of(8)) == "READMITTED", "a first node of the cluster, ordered by a person"
    assert k8s.taints("ip-10-0-8-8") == []


def test_an_instance_that_is_no_node_yet_cannot_join(k8s: Cluster) -> None:
    word = k8s.ask(Join("demo-1", instance_of(9), "", MARK))["demo-1"]
    assert word == f"BUSY: {instance_of(9)} has not registered as a node yet"
    assert k8s.writes() == []


def test_a_join_that_was_broken_off_between_its_writes_is_finished(k8s: Cluster) -> None:
    k8s.add_node("ip-10-0-9-9", instance_of(9))
    join = Join("demo-1", instance_of(9), "", MARK)

    def die(call: Call) -> None:
        raise ConnectionError

    k8s.api.after_write = die
    with pytest.raises(Exception, match="does not answer"):
        k8s.adapter().submit(join)
    k8s.api.after_write = lambda call: None
    bearers = [n["metadata"]["name"] for n in k8s.store.select("nodes", labels="planaria/name=demo-1")]
    assert len(bearers) == 2
    assert describe(k8s)["node_id"] == instance_of(9), "the newer one has it"
    assert k8s.ask(join) == {"demo-1": "JOINED"}
    bearers = [n["metadata"]["name"] for n in k8s.store.select("nodes", labels="planaria/name=demo-1")]
    assert bearers == ["ip-10-0-9-9"]


def test_names_that_are_no_labels_are_looked_up_all_the_same(k8s: Cluster) -> None:
    for name in ("a b", "x" * 70, "", "demo-1,demo-2", "demo-1) or (x"):
        assert describe(k8s, name)["state"] == "UNKNOWN"


# --- writers at the same time ------------------------------------------------------------------------


def test_every_patch_names_the_version_it_was_made_for(k8s: Cluster) -> None:
    """What somebody else writes between our read and our write is never overwritten."""
    theirs = {"key": "theirs", "value": "", "effect": "NoSchedule"}
    patched: list[Call] = []

    def meddle(call: Call) -> None:
        if call.verb == "patch" and not patched:
            patched.append(call)
            k8s.store.change("nodes", "", A, "other", taints=[theirs])

    k8s.api.before = meddle
    assert isolate(k8s) == "ISOLATED"
    assert k8s.taints(A) == ["theirs=:NoSchedule", TAINT]


def test_a_cordon_that_comes_in_between_wins(k8s: Cluster) -> None:
    def cordon(call: Call) -> None:
        if call.verb == "patch":
            k8s.store.change("nodes", "", A, "kubectl-cordon", unschedulable=True)

    k8s.api.before = cordon
    assert isolate(k8s).startswith("FOREIGN: cordoned by kubectl-cordon")
    assert k8s.taints(A) == []


def test_a_storm_of_other_writes_ends_as_unknown(k8s: Cluster) -> None:
    number = 0

    def storm(call: Call) -> None:
        nonlocal number
        if call.verb == "patch":
            number += 1
            k8s.store.mark("annotations", "nodes", "", A, {"beat": str(number)})

    k8s.api.before = storm
    answer = k8s.ask(Isolate(("demo-1", "demo-2"), MARK))
    assert answer["demo-1"].startswith("UNKNOWN: /api/v1/nodes/")
    assert answer["demo-2"] == "ISOLATED", "the others do not wait for it"
    assert k8s.node(A)["spec"].get("unschedulable") is None
    assert number <= 8, "it gives up in good time"
    k8s.api.before = lambda call: None
    assert isolate(k8s) == "ISOLATED"


def test_two_adapters_and_two_others_write_at_the_same_time(k8s: Cluster) -> None:
    """Each keeps its own taint whatever the order; nobody's write is lost."""
    words: list[str] = []

    def ours(reason: str) -> None:
        words.extend(isolate(k8s, reason=reason) for _ in range(20))

    def theirs(key: str) -> None:
        for number in range(20):
            with k8s.store.lock:
                listed = [t for t in k8s.node(A)["spec"].get("taints") or [] if t["key"] != key]
                listed.append({"key": key, "value": str(number), "effect": "NoSchedule"})
                k8s.store.change("nodes", "", A, key, taints=listed)

    threads = [
        threading.Thread(target=ours, args=("planaria:s-1",)),
        threading.Thread(target=ours, args=("planaria:s-2",)),
        threading.Thread(target=theirs, args=("x",)),
        threading.Thread(target=theirs, args=("y",)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {word.partition(":")[0] for word in words} <= {"ISOLATED", "UNKNOWN"}
    assert words.count("ISOLATED") > 0
    assert isolate(k8s, reason="planaria:s-3") == "ISOLATED"
    assert sorted(k8s.taints(A)) == [
        "planaria/isolated=s-3:NoSchedule",
        "x=19:NoSchedule",
        "y=19:NoSchedule",
    ]
