"""Whole incidents on Kubernetes: the real Lambdas and state machines, the EKS adapter, and a Kubernetes API
over HTTP with its controllers (tests/kubernetes). Only EC2 and the agents are played in memory.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from planaria.core.cluster import Cluster as ClusterDocument
from planaria.core.table import Row
from planaria.schedulers.eks.client import KubernetesClient
from planaria.schedulers.eks.ledger_words import LedgerWords
from planaria.schedulers.eks.scheduler import EksScheduler
from tests.kubernetes.cluster import NAMESPACE, Cluster, FixedAccess, cluster
from tests.lambdas.conftest import Build
from tests.lambdas.test_node_stories import SICK, fall_off
from tests.lambdas.world import World, _Port
from tests.lambdas.world import cluster as document

JOB = "llama"


def eks(**policy: Any) -> ClusterDocument:
    return dataclasses.replace(document(**policy), scheduler="eks")


class Kubernetes:
    """A world whose scheduler is Kubernetes. Nodes register as instances boot, with the taint of new nodes,
    and go with their instances."""

    def __init__(self, world: World, k8s: Cluster) -> None:
        self.world, self.k8s = world, k8s
        self.node_goes_seconds = 40.0  # after the end of an instance EKS takes its Node away
        words = LedgerWords(world.gw.ledger)
        adapter = EksScheduler(
            KubernetesClient(FixedAccess(k8s.api.url), sleep=lambda _: None),
            (NAMESPACE,),
            world.clock.now,
            words.instances,
            words.fault,
            words.gone,
        )
        scheduler: Any = _Port(world, "scheduler", adapter)
        world.gw.scheduler = scheduler
        for node in world.nodes:
            k8s.add_node(self.key(node), node)
        self._watch()

    def key(self, node: str) -> str:
        return f"{node}.us-east-1.compute.internal"

    def _watch(self) -> None:
        """What happens to instances happens to Nodes."""
        state, scheduler = self.world.scheduler.state, self.world.scheduler
        node_up, kill_node = state.node_up, scheduler.kill_node

        def up(node: str) -> None:
            node_up(node)
            if self._has(node):
                self.k8s.controllers.dead.discard(self.key(node))
                self.k8s.set_ready(self.key(node), "True")
            else:
                self.k8s.add_node(self.key(node), node, joining=True)

        def kill(node: str) -> None:
            kill_node(node)
            if self._has(node):
                self.k8s.lose(self.key(node))
            self.world.at(self.node_goes_seconds, lambda: self._goes(node))

        vars(state)["node_up"], vars(scheduler)["kill_node"] = up, kill

    def _has(self, node: str) -> bool:
        return any(n["metadata"]["name"] == self.key(node) for n in self.k8s.store.select("nodes"))

    def _goes(self, node: str) -> None:
        if self.world.fleet.instances[node].state == "terminated" and self._has(node):
            self.k8s.store.delete("nodes", "", self.key(node))
            self.k8s.controllers.tick()

    @property
    def row(self) -> Row:
        return self.world.gw.jobs.job(JOB) or {}

    def assert_goes_on(self, replaced: int = 1, attempt: int = 2) -> None:
        world, k8s = self.world, self.k8s
        k8s.advance(0.0)
        assert not world.driver.running and not world.dead_letters
        assert world.notices.sent == []
        assert len(world.launched) == replaced and len(world.alive) == 4
        job = k8s.job(JOB)
        assert job["metadata"]["annotations"]["planaria/attempt"] == str(attempt)
        assert set(job["metadata"]["annotations"]) == {"planaria/attempt", "planaria/resume-step"}
        assert job["status"]["failed"] == 0
        assert sorted(k8s.where(JOB)) == sorted(map(self.key, world.alive))
        for node in world.alive:
            assert k8s.taints(self.key(node)) == []
            assert not k8s.node(self.key(node))["spec"].get("unschedulable")
        known = self.row
        assert (known["state"], known["attempt"], known["pending"], known["unresolved"]) == (
            "RUNNING", attempt, {}, {},
        )  # fmt: skip
        assert sorted(known["names"]) == sorted(world.names)
        assert sorted(known["nodes"].values()) == sorted(world.alive)
        assert known["resume_phase"] == "HEALED"
        assert [r["incident_id"] for r in world.gw.ledger.incidents() if "outcome" not in r] == []


@pytest.fixture
def on(build: Build) -> Iterator[Kubernetes]:
    """Four nodes with an Indexed Job of four pods that knows nothing of Planaria, and a queue behind it."""
    world = build(eks(), job=False)
    with cluster(nodes=0, clock=world.clock) as k8s:
        made = Kubernetes(world, k8s)
        k8s.add_job(JOB, 4, backoffLimit=0)
        for number in range(3):
            k8s.add_job(f"a-queued-{number}", 1)
        yield made


def test_a_gpu_falls_off_and_the_job_goes_on_with_a_new_node(on: Kubernetes) -> None:
    fall_off(on.world)
    on.world.run()
    on.assert_goes_on()
    assert all(on.k8s.where(f"a-queued-{number}") == [""] for number in range(3)), "no survivor was taken"


def test_the_incident_stands_on_the_node_while_it_is_healed(on: Kubernetes) -> None:
    fall_off(on.world)
    on.world.run(until=lambda: bool(on.k8s.node(on.key(SICK))["spec"].get("unschedulable")))
    labels = on.k8s.node(on.key(SICK))["metadata"]["labels"]
    assert labels["sagemaker.amazonaws.com/node-health-status"] == "UnschedulablePendingReplacement"
    assert labels["sagemaker.amazonaws.com/fault-types"] == "NvidiaErrorTerminate"
    on.world.run()
    on.assert_goes_on()


@pytest.mark.parametrize("seconds", [40.0, 10.0])
def test_an_instance_that_is_gone_takes_its_node_with_it(on: Kubernetes, seconds: float) -> None:
    on.node_goes_seconds = seconds
    on.world.lose(SICK)
    on.world.run()
    on.assert_goes_on()


def test_two_nodes_at_once_are_one_resume(on: Kubernetes) -> None:
    fall_off(on.world)
    fall_off(on.world, on.world.nodes[2])
    on.world.run()
    on.assert_goes_on(replaced=2)


def test_a_node_that_somebody_cordoned_is_left_to_him(on: Kubernetes) -> None:
    on.k8s.store.change("nodes", "", on.key(SICK), "kubectl-cordon", unschedulable=True)
    fall_off(on.world)
    on.world.run()
    assert on.world.launched == [] or len(on.world.alive) == 4
    assert len(on.k8s.live(JOB)) == 4, "its job runs on"
    assert "planaria/isolated" not in str(on.k8s.node(on.key(SICK)))
    assert on.world.ends == ["ESCALATED"]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_lambdas_die_around_their_words_with_kubernetes(on: Kubernetes, before: bool) -> None:
    for function in ("isolate_node", "admit_node", "requeue_job"):
        on.world.kill(function, "scheduler.submit", before=before)
        on.world.kill(function, "scheduler.submit", before=before, nth=3)
    fall_off(on.world)
    on.world.run()
    on.assert_goes_on()


def test_a_job_whose_node_vanished_before_we_could_ask_goes_on_by_itself(on: Kubernetes) -> None:
    """Its controller has made the lost pod anew by then; the node is replaced, and that is where it goes."""
    for number in range(3):
        on.k8s.store.delete("jobs", NAMESPACE, f"a-queued-{number}")
    for pod in on.k8s.store.select("pods", fields="status.phase=Pending"):
        on.k8s.store.objects.pop(("pods", NAMESPACE, pod["metadata"]["name"]))
    on.k8s.store.change("jobs", NAMESPACE, JOB, "kubectl", backoffLimit=4)
    on.node_goes_seconds = 0.0
    on.world.lose(SICK)
    on.world.run()
    on.k8s.advance(0.0)
    assert on.world.notices.sent == [] and len(on.world.launched) == 1
    job = on.k8s.job(JOB)
    assert (job["status"]["failed"], job["spec"].get("suspend")) == (1, None), "one pod, and we did nothing"
    assert sorted(on.k8s.where(JOB)) == sorted(map(on.key, on.world.alive))
