"""The EKS adapter's world for the contract suite: a Kubernetes API over HTTP (tests/kubernetes) in real time.

Its jobs are Indexed Jobs with backoffLimit 0, one pod to a node: a failed pod ends the job, as it does on
Slurm.
"""

import contextlib
import itertools
import time
from collections.abc import Iterator

from planaria.memory.cluster_state import JobState
from planaria.schedulers.eks.client import KubernetesClient
from planaria.schedulers.eks.names import KEEP_OUT
from planaria.schedulers.eks.scheduler import EksScheduler
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.cluster import NAMESPACE, Cluster, FixedAccess, instance_of, key_of
from tests.kubernetes.controllers import Controllers
from tests.kubernetes.store import Document, Store

NAMES = ("demo-1", "demo-2", "demo-3")

_PLACED = (
    "kube-scheduler places the pods: a started Job's template is immutable (tests/kubernetes/test_requeue.py)"
)
DIFFERS = {
    "test_requeue_starts_the_ranks_in_the_asked_order": _PLACED,
    "test_only_free_nodes_are_placed_and_old_ones_in_rank_order": _PLACED,
    "test_after_a_requeue_the_nodes_are_the_present_ones": _PLACED,
    "test_what_the_scheduler_itself_keeps_out_is_told_of_and_taken_over": (
        "what ails a node is in its conditions, which its agents report (tests/core/test_parsers.py)"
    ),
    "test_ranks_that_survive_a_failed_one_are_ended_after_a_grace": (
        "Kubernetes starts no failed Job again (tests/kubernetes/test_requeue.py)"
    ),
}
"""What Kubernetes does otherwise than the twin, by test."""

_numbers = itertools.count(7001)


class EksWorld:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.node_ids = {name: instance_of(i) for i, name in enumerate(NAMES, 1)}
        self.scheduler = EksScheduler(
            KubernetesClient(FixedAccess(cluster.api.url)), (NAMESPACE,), cluster.clock.now
        )

    def job_id(self, number: int) -> str:
        return str(next(_numbers))

    def add_job(self, job_id: str, nodes: int, stubborn: bool = False) -> None:
        self.cluster.add_job(job_id, nodes, backoffLimit=0)
        if stubborn:
            live = [pod["metadata"]["name"] for pod in self.cluster.live(job_id)]
            self.cluster.controllers.stubborn.update(live)

    def end_rank(self, job_id: str, rank: int, code: int) -> None:
        for pod in self._live(job_id):
            if _rank(pod) == rank:
                name = pod["metadata"]["name"]
                ended = {"terminated": {"exitCode": code}}
                self.cluster.store.set_status(
                    "pods",
                    NAMESPACE,
                    name,
                    phase="Failed" if code else "Succeeded",
                    containerStatuses=[{"name": "train", "state": ended}],
                )
                self.cluster.controllers.stubborn.discard(name)

    def cancel(self, job_id: str) -> None:
        """A person deletes it, and its pods with it."""
        self.cluster.store.delete("jobs", NAMESPACE, job_id, {"propagationPolicy": "Background"})
        self.cluster.controllers.tick()

    def isolate_by_itself(self, name: str) -> None:
        """What ails a node of Kubernetes is in its conditions, which its agents report."""

    def isolate_by_someone_else(self, name: str, reason: str) -> None:
        key = self._key(name)
        self.cluster.store.change("nodes", "", key, "kubectl-cordon", unschedulable=True)
        self.cluster.store.mark("annotations", "nodes", "", key, {KEEP_OUT: reason})

    def bring_up(self, node_id: str, name: str) -> None:
        self.cluster.add_node(f"ip-of-{node_id}", node_id)

    def launch(self, node_id: str, name: str) -> None:
        """Kubernetes knows no node that has never registered; one that is not ready is as near as it gets."""
        self.cluster.add_node(f"ip-of-{node_id}", node_id, ready="False")

    def lose(self, name: str) -> None:
        """Its Node object stays until somebody deletes it, and tells nothing by itself."""

    def let_pass(self, seconds: float) -> None:
        time.sleep(seconds + 0.1)

    def live_ranks(self, job_id: str) -> list[int]:
        self.cluster.controllers.tick()
        return sorted(_rank(pod) for pod in self._live(job_id))

    def job_state(self, job_id: str) -> str:
        self.cluster.controllers.tick()
        job = self.cluster.job(job_id)
        true = {c["type"] for c in (job.get("status") or {}).get("conditions") or [] if c["status"] == "True"}
        if "Complete" in true:
            return JobState.COMPLETED
        if "Failed" in true:
            return JobState.FAILED
        return JobState.STOPPED if job["spec"].get("suspend") else JobState.RUNNING

    def _live(self, job_id: str) -> list[Document]:
        return self.cluster.live(job_id)

    def _key(self, name: str) -> str:
        (node,) = self.cluster.store.select("nodes", labels=f"planaria/name={name}")
        return str(node["metadata"]["name"])


def _rank(pod: Document) -> int:
    return int(pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"])


class RealClock:
    def now(self) -> float:
        return time.time()

    def advance(self, seconds: float) -> None:
        time.sleep(seconds)


@contextlib.contextmanager
def eks_world() -> Iterator[EksWorld]:
    clock = RealClock()
    store = Store(clock.now)
    controllers = Controllers(store)
    api = ApiServer(store, before=lambda _: controllers.tick())
    with api.serving():
        cluster = Cluster(clock, store, controllers, api)  # type: ignore[arg-type]
        for number, name in enumerate(NAMES, 1):
            cluster.add_node(key_of(number), instance_of(number), name)
        yield EksWorld(cluster)
