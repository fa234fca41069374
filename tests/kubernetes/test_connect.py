"""The adapter as wiring makes it: the ledger's words, and the labels of EKS."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from planaria.core.cluster import Cluster as ClusterDocument
from planaria.core.incident import incident_id, isolation_reason
from planaria.core.ledger import Ledger
from planaria.core.scheduling import Isolate, JobsOn, Lost, NodeQuery, Readmit
from planaria.core.topology import Located
from planaria.memory.table import MemoryTable
from planaria.schedulers.eks.client import KubernetesClient
from planaria.schedulers.eks.connect import connect
from planaria.schedulers.eks.ledger_words import LedgerWords
from planaria.schedulers.eks.places import EksTopology
from planaria.schedulers.eks.scheduler import EksScheduler
from planaria.wiring import Gateways
from tests.kubernetes.cluster import NAMESPACE, Cluster, FixedAccess, cluster, instance_of, key_of

NODE = instance_of(1)


def ledger(**facts: Any) -> Ledger:
    made = Ledger(MemoryTable())
    made.note_node(NODE, {"name": "demo-1", **facts})
    return made


def test_a_name_is_the_old_instances_until_the_replacement_is_admitted() -> None:
    made = ledger()
    names = LedgerWords(made).instances
    made.note_node(instance_of(9), {"name": "demo-1", "replaces": NODE})
    assert names() == {"demo-1": NODE}
    made.note_node(instance_of(9), {"admitted_at": 7.0})
    made.note_node(NODE, {"replaced_by": instance_of(9)})
    assert names() == {"demo-1": instance_of(9)}
    made.note_node(instance_of(8), {"spare": True})
    assert names() == {"demo-1": instance_of(9)}, "a spare has no name"


def incident(made: Ledger, **facts: Any) -> str:
    """-> our reason for the isolation of this incident."""
    made.open_incident_row({"node_id": NODE, "session": 1, "reason": "seen twice", **facts})
    return isolation_reason(incident_id(NODE, 1))


@pytest.mark.parametrize(
    ("action", "fault", "words"),
    [
        (
            "REPLACE",
            {"kind": "xid", "code": "79"},
            ("UnschedulablePendingReplacement", "NvidiaErrorTerminate", "XidHardwareFailure"),
        ),
        (
            "REBOOT",
            {"kind": "xid", "code": "119"},
            ("UnschedulablePendingReboot", "NvidiaErrorReboot", "XidHardwareFailure"),
        ),
        (
            "RESET",
            {"kind": "sxid", "code": "1"},
            ("Unschedulable", "NvidiaErrorReboot", "XidHardwareFailure"),
        ),
        (
            "REPLACE",
            {"kind": "status_check", "code": "system"},
            ("UnschedulablePendingReplacement", "Planaria_status_check", "system"),
        ),
        ("REPLACE", {}, ("UnschedulablePendingReplacement", "Planaria_order", "Isolated")),
    ],
)
def test_the_incident_in_hyperpods_words(action: str, fault: dict[str, str], words: tuple[str, ...]) -> None:
    made = ledger()
    reason = incident(made, action=action, fault=fault)
    found = LedgerWords(made).fault(reason)
    assert (found.health, found.type, found.reason) == words
    assert "seen twice" in found.message and reason in found.message


def test_an_isolation_without_an_incident_still_says_what_it_can() -> None:
    for reason in ("planaria:i-0-1", "drill"):
        found = LedgerWords(ledger()).fault(reason)
        assert (found.health, found.message) == ("Unschedulable", reason)


def test_all_together_on_a_cluster_whose_nodes_bear_no_names_yet() -> None:
    with cluster(named=False) as k8s:
        made = ledger()
        reason = incident(made, action="REPLACE", fault={"kind": "xid", "code": "79"})
        api = KubernetesClient(FixedAccess(k8s.api.url))
        words = LedgerWords(made)
        adapter = EksScheduler(api, [NAMESPACE], k8s.clock.now, words.instances, words.fault, words.gone)
        assert k8s.ask(Isolate(("demo-1",), reason), adapter) == {"demo-1": "ISOLATED"}
        labels = k8s.node(key_of(1))["metadata"]["labels"]
        health = "sagemaker.amazonaws.com/node-health-status"
        assert labels[health] == "UnschedulablePendingReplacement"
        assert labels["planaria/name"] == "demo-1", "from now on the Node says so itself"
        assert k8s.ask(NodeQuery(("demo-1",)), adapter)["demo-1"]["node_id"] == NODE
        k8s.store.delete("nodes", "", key_of(1))
        lost = Lost(("demo-1",), reason)
        assert k8s.ask(lost, adapter) == {"demo-1": "UNKNOWN: no node demo-1"}
        made.note_node(NODE, {"state": "terminated"})
        assert k8s.ask(lost, adapter) == {"demo-1": "ISOLATED"}, "EKS takes the Node away with the instance"
        assert k8s.ask(Isolate(("demo-1", NODE), reason), adapter) == {"demo-1": "ISOLATED", NODE: "ISOLATED"}
        assert k8s.ask(Readmit(("demo-1",), reason), adapter) == {"demo-1": "READMITTED"}


def test_wiring_makes_it_without_a_call() -> None:
    """No client is made before the first request."""
    document = {
        "name": "demo",
        "region": "us-east-1",
        "scheduler": "eks",
        "policy": {},
        "node_groups": [],
        "eks": {"cluster": "training", "namespaces": ["team-a"]},
    }
    asked: list[str] = []
    gateways = Gateways(
        {"PLANARIA_TABLE": "planaria-demo"}, ClusterDocument.from_document(document), asked.append
    )
    gateways.table = MemoryTable()
    assert isinstance(gateways.scheduler, EksScheduler)
    assert isinstance(gateways.topology, EksTopology)
    assert "eks" not in asked and "sts" not in asked


def test_connect_is_what_wiring_calls(k8s: Cluster) -> None:
    made = connect("training", (NAMESPACE,), lambda service: None, ledger(), k8s.clock.now)
    assert isinstance(made, EksScheduler)


# --- network layers -------------------------------------------------------------------------------

LABEL = "topology.k8s.aws/network-node-layer-"


class Ec2:
    """Answers with one place for everything, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def instances(self, types: Mapping[str, str]) -> dict[str, Located]:
        self.asked += types
        return dict.fromkeys(types, Located(("nn-ec2",)))

    def reservations(self, ids: Sequence[str]) -> dict[str, Located]:
        return dict.fromkeys(ids, Located(("nn-cr",)))


def test_labels_say_where_a_node_is_and_ec2_about_the_others(k8s: Cluster) -> None:
    marks: dict[str, str | None] = {f"{LABEL}{layer}": f"nn-{layer}" for layer in (1, 2, 3)}
    k8s.store.mark("labels", "nodes", "", key_of(1), marks)
    k8s.store.mark("labels", "nodes", "", key_of(2), {f"{LABEL}2": "nn-2"})  # without the top: unknown
    ec2 = Ec2()
    topology = EksTopology(KubernetesClient(FixedAccess(k8s.api.url)), ec2)
    asked = {instance_of(n): "p5.48xlarge" for n in (1, 2, 9)}
    assert topology.instances(asked) == {
        instance_of(1): Located(("nn-1", "nn-2", "nn-3")),
        instance_of(2): Located(("nn-ec2",)),
        instance_of(9): Located(("nn-ec2",)),
    }
    assert sorted(ec2.asked) == [instance_of(2), instance_of(9)]
    assert topology.reservations(["cr-1"]) == {"cr-1": Located(("nn-cr",))}
    calls = len(k8s.api.calls)
    assert topology.instances({}) == {}
    assert len(k8s.api.calls) == calls
    assert k8s.ask(JobsOn(())) == {}
