"""What the cluster knows of jobs: the answer to JobQuery."""

from typing import Any

from planaria.core.scheduling import JobQuery, JobState
from planaria.schedulers.eks import kinds, pods
from planaria.schedulers.eks.cluster_view import ClusterView
from planaria.schedulers.eks.finding import find
from planaria.schedulers.eks.requeueing import last_nodes
from planaria.schedulers.eks.workloads import Workload, seconds

Document = dict[str, Any]


def jobs(view: ClusterView, request: JobQuery) -> dict[str, dict[str, Any] | None]:
    asked = list(request.jobs)
    keys = [place.key for place in view.places(request.nodes).values() if place is not None]
    asked += [job for there in view.jobs_on(keys).values() for job in there]
    asked += _failed_on(view, set(keys))
    found: dict[str, dict[str, Any] | None] = {}
    for job in dict.fromkeys(asked):
        work = find(view, job)
        found[job] = None if work is None else describe(view, work)
    return found


def describe(view: ClusterView, work: Workload) -> dict[str, Any]:
    every = view.pods_of(work.ref)
    live = [pod for pod in every if pods.live(pod)]
    metadata, status = work.document["metadata"], work.document.get("status") or {}
    on = last_nodes(view, work)
    state = _state(work, live)
    return {
        "state": state,
        "nodes": on,
        "ranks_per_node": _ranks_per_node(work, len(on)),
        "attempt": work.attempt,
        "restarts": max(int(status.get("restarts") or 0), work.attempt - 1),
        "exit_code": pods.exit_code(every) if state in (JobState.FAILED, JobState.COMPLETED) else 0,
        "user": str((metadata.get("labels") or {}).get("app.kubernetes.io/created-by", "")),
        "name": str(metadata["name"]),
        "requeue": not work.failed and not work.completed and not work.left_to,
        "batch": True,  # its object holds all that is needed to start it
        "reason": _reason(work, live),
        "submit": seconds(metadata.get("creationTimestamp")),
        "start": seconds(status.get("startTime")),
        "end": seconds(status.get("completionTime")) or _ended(work),
    }


def _state(work: Workload, live: list[Document]) -> JobState:
    if work.completed:
        return JobState.COMPLETED
    if work.failed:
        return JobState.TIMEOUT if work.failed == "DeadlineExceeded" else JobState.FAILED
    if work.suspended or work.deleted:
        return JobState.COMPLETING if live else JobState.PENDING
    running = [pod for pod in live if pods.phase_of(pod) == "Running"]
    return JobState.RUNNING if running and len(running) == len(live) else JobState.PENDING


def _reason(work: Workload, live: list[Document]) -> str:
    if work.failed:
        return work.failed
    if work.left_to:
        return f"left to {work.left_to}"
    if work.suspended:
        return "Suspended by someone else" if work.suspended_by_other else "Suspended"
    waiting = sum(1 for pod in live if pods.phase_of(pod) != "Running")
    return f"{waiting} pods wait" if waiting else ""


def _ranks_per_node(work: Workload, count: int) -> int:
    """Pods on a node, as far as they are spread evenly; what runs in one pod (torchrun) is not known."""
    wanted = work.pods
    return wanted // count if wanted and count and wanted % count == 0 else 0


def _ended(work: Workload) -> float:
    for each in (work.document.get("status") or {}).get("conditions") or []:
        if each.get("type") in (work.kind.failed, work.kind.completed) and each.get("status") == "True":
            return seconds(each.get("lastTransitionTime"))
    return 0.0


REMEMBERED = 20


def _failed_on(view: ClusterView, keys: set[str]) -> list[str]:
    """Jobs that ended badly and have a pod left on one of these nodes, the newest of each node."""
    if not keys:
        return []
    newest: dict[str, dict[str, float]] = {key: {} for key in keys}
    for namespace in view.namespaces:
        for pod in view.client.list_all(
            f"/api/v1/namespaces/{namespace}/pods", fieldSelector="status.phase=Failed"
        ):
            if pods.node_of(pod) not in keys or pods.of_the_node(pod):
                continue
            ref = view.job_of(pod)
            work = find(view, kinds.job_id(ref, view.namespaces)) if ref is not None else None
            if work is not None and work.failed:
                newest[pods.node_of(pod)][work.job_id] = _ended(work)
    return [
        job
        for ended in newest.values()
        for job, _ in sorted(ended.items(), key=lambda entry: -entry[1])[:REMEMBERED]
    ]
