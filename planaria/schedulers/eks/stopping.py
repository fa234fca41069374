"""Ending all pods of a job: its PodDisruptionBudgets are asked, for a while; then it is suspended.

A job is suspended rather than its pods evicted, because its controller makes a new pod for each evicted one
and counts it as a failure (backoffLimit), and because a suspended job keeps its object, which a requeue
starts again. The Job controller ends the pods of a suspended job without counting them.
"""

import math
from collections.abc import Sequence

from planaria.core.scheduling import Stop
from planaria.schedulers.eks import nodes, pods, workloads
from planaria.schedulers.eks.client import Refused
from planaria.schedulers.eks.cluster_view import ClusterView
from planaria.schedulers.eks.finding import find
from planaria.schedulers.eks.nodes import Document
from planaria.schedulers.eks.workloads import Workload

BUDGET_SECONDS = 60.0
"""How long a budget that allows nothing is waited for: a tenth of the drain's default deadline, which is
what isolate_node leaves the jobs of a node to end."""

CONTROLLER_SECONDS = 10.0
"""How long the job's controller has to end the pods of a suspended job before we end them ourselves. Sooner,
the Job controller would count them as failed."""


def stop(view: ClusterView, job_id: str, request: Stop) -> str:
    """-> the answer's word. Asked again it goes on from what the job's object says."""
    work = find(view, job_id)
    if work is None or work.deleted:
        return f"UNKNOWN: no job {job_id}"
    there = [pod for pod in view.pods_of(work.ref) if pods.live(pod)]
    if work.completed:
        return "COMPLETED"
    if work.left_to:
        return _leave(view, work, there, request)
    if work.failed:
        return "COMPLETING" if there else "STOPPED"
    work = _note(view, work, request, suspend=False)
    if not work.suspended:
        stopping = work.stopping
        since = stopping.at if stopping is not None else view.now
        if view.now < since + BUDGET_SECONDS and protected(view, there):
            return "COMPLETING"
    work = _note(view, work, request, suspend=True)
    return _end(view, work, there, request)


def review(view: ClusterView, job_id: str, request: Stop) -> str:
    """As `stop`, for a ticket of a stop that may be over: a job that was started since is left alone."""
    work = find(view, job_id)
    if work is not None and not work.deleted and not work.completed and not work.left_to:
        stopping = work.stopping
        if stopping is None and not work.failed:
            return "STOPPED"
    return stop(view, job_id, request)


def protected(view: ClusterView, there: Sequence[Document]) -> str:
    """The budget that forbids to end these pods now, in words; "" when none does.

    The eviction subresource judges one pod at a time, and a trial run (dryRun) counts nothing, so of a budget
    with one pod to spare each of four pods would pass: they are added up here, and the API server's own word
    is asked for one pod of each budget.
    """
    standing = [pod for pod in there if not pods.ending(pod) and pods.phase_of(pod) != "Pending"]
    if not standing:
        return ""
    namespace = standing[0]["metadata"]["namespace"]
    listed = view.client.list_all(f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets")
    chosen = {budget["metadata"]["name"]: pods.selected(budget, standing) for budget in listed}
    for budget in listed:
        name = budget["metadata"]["name"]
        allowed = int((budget.get("status") or {}).get("disruptionsAllowed") or 0)
        if len(chosen[name]) > allowed:
            return f"{name} allows {allowed} of {len(chosen[name])} pods to end"
    for name, of_budget in chosen.items():
        if of_budget:
            try:
                view.client.evict(of_budget[0], dry_run=True)
            except Refused as refused:
                return str(refused) or f"{name} forbids it"
    return ""


def suspend(view: ClusterView, work: Workload, signal: str, grace: float) -> Workload:
    """At once, whatever its budgets say: for a job whose nodes are gone or which is started anew."""
    return _note(view, work, Stop((work.job_id,), signal, grace), suspend=True)


def _note(view: ClusterView, work: Workload, request: Stop, suspend: bool) -> Workload:
    def different(document: Document) -> Document | None:
        now = Workload(work.job_id, work.ref, document)
        if now.completed or now.failed:
            return None
        return workloads.stopped(now, request.signal, request.grace_seconds, view.now, suspend)

    after = view.client.change(work.ref.path, different, work.document)
    return work if after is None else Workload(work.job_id, work.ref, after)


def _end(view: ClusterView, work: Workload, there: Sequence[Document], request: Stop) -> str:
    if not there:
        return "STOPPED"
    grace = _grace(request)
    stopping = work.stopping
    since = stopping.suspended_at if stopping is not None else None
    late = since is not None and view.now >= since + CONTROLLER_SECONDS
    gone = _given_up(view, [pod for pod in there if pods.ending(pod)])
    for pod in there:
        if not view.in_time():
            break  # the next ask goes on; they end by their own grace meanwhile
        left = pod["metadata"].get("deletionGracePeriodSeconds")
        if pods.ending(pod):
            if pods.node_of(pod) in gone:
                view.client.delete(pod, 0)  # its kubelet will not say that it has ended
            elif left is not None and int(left) > grace:
                view.client.delete(pod, grace)  # its own grace is longer than the one that was asked for
        elif late:
            _end_one(view, pod, grace, past=view.now >= (since or 0.0) + BUDGET_SECONDS)
    return "COMPLETING"


def _given_up(view: ClusterView, there: Sequence[Document]) -> set[str]:
    """Nodes of these pods that we gave up, or that are no more."""
    found = set()
    for key in {pods.node_of(pod) for pod in there} - {""}:
        node = view.client.get(f"/api/v1/nodes/{key}")
        ours = nodes.isolation_of(node) if node is not None else None
        if node is None or (ours is not None and ours.lost):
            found.add(key)
    return found


def _end_one(view: ClusterView, pod: Document, grace: int, past: bool) -> None:
    try:
        view.client.evict(pod, grace)
    except Refused:
        if past:
            view.client.delete(pod, grace)


def _leave(view: ClusterView, work: Workload, there: Sequence[Document], request: Stop) -> str:
    """Someone else decides when this job runs: of it, only pods on nodes that we isolated are evicted, and
    after a while deleted. That other one starts them again where there is room."""
    on = _isolated(view, there)
    ours = [pod for pod in there if pods.node_of(pod) in on]
    if not ours:
        return f"LEFT: {work.left_to} decides when {work.job_id} runs; nothing of it runs on isolated nodes"
    for pod in ours:
        if view.in_time() and not pods.ending(pod):
            since = on[pods.node_of(pod)]
            _end_one(view, pod, _grace(request), past=view.now >= since + BUDGET_SECONDS)
    return "COMPLETING"


def _isolated(view: ClusterView, there: Sequence[Document]) -> dict[str, float]:
    """{Node of these pods that we isolated: since when}"""
    found = {}
    for key in sorted({pods.node_of(pod) for pod in there} - {""}):
        node = view.client.get(f"/api/v1/nodes/{key}")
        ours = nodes.isolation_of(node) if node is not None else None
        if ours is not None:
            found[key] = ours.at
    return found


def _grace(request: Stop) -> int:
    """Whole seconds; 0 would take the pod out of the API while it still runs."""
    return 1 if "KILL" in request.signal else max(1, math.ceil(request.grace_seconds))
