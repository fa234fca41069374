"""Starting a job's next attempt, and where it could start.

Kubernetes places the pods: the pod template of a Job that has started is immutable, so the asked nodes cannot
be written into it. What keeps pods off bad nodes are isolation and holds; what keeps ranks is the job's own
index (Indexed Job, JobSet, replica index), which does not follow a node. The asked nodes are therefore
checked, and those that are held for the job get its pods and nobody else's.
"""

from planaria.core.scheduling import NodeState, Requeue
from planaria.schedulers.eks import holding, nodes, pods, stopping, workloads
from planaria.schedulers.eks.client import path_of
from planaria.schedulers.eks.cluster_view import ClusterView, Place
from planaria.schedulers.eks.finding import find
from planaria.schedulers.eks.nodes import Document
from planaria.schedulers.eks.workloads import Workload


def requeue(view: ClusterView, request: Requeue) -> str:
    """-> the answer's word. Asked again it goes on from what the job's object says."""
    work = find(view, request.job)
    if work is None or work.deleted:
        return f"REFUSED: no job {request.job}"
    job_id = work.job_id
    if request.attempt < max(1, work.attempt):
        return f"REFUSED: attempt {work.attempt} of {job_id} was started already"
    if work.completed:
        return f"REFUSED: {job_id} is completed"
    if work.failed:
        return (
            f"REFUSED: {job_id} has failed for good ({work.failed}) and Kubernetes starts no failed "
            f"{work.kind.kind} again; submit it anew"
        )
    there = [pod for pod in view.pods_of(work.ref) if pods.live(pod)]
    if work.left_to:
        return _left(view, work, there)
    if request.attempt > work.attempt:
        if work.suspended_by_other:
            return f"REFUSED: {job_id} is suspended, and not by Planaria: who did so starts it again"
        why = _unfit(view, job_id, request.nodes)
        if why:
            return why
        if there:
            # They are of the attempt before; nothing of it may run beside the new one.
            if not work.suspended:
                stopping.suspend(view, work, signal_of(request.attempt), 0.0)
            return f"PENDING: {len(there)} pods of the attempt before are ending"
        work = _start(view, work, request)
        if work.suspended_by_other:
            return f"REFUSED: {job_id} was suspended by someone else meanwhile"
        if work.attempt != request.attempt:
            return f"REFUSED: attempt {work.attempt} of {job_id} was started already"
    elif work.suspended:
        return f"PENDING: {job_id} is suspended"  # someone has stopped this attempt since
    return _running(view, work, there)


def signal_of(attempt: int) -> str:
    """What our note of a stop says where the stop is for this attempt's sake."""
    return f"{workloads.FOR_ATTEMPT}{attempt}"


def overtaken(view: ClusterView, request: Requeue, asked_at: float) -> bool:
    """The job was stopped by someone else since this was asked (epoch seconds): a late look at the answer
    must not start it again."""
    work = find(view, request.job)
    stop = work.stopping if work is not None and not work.left_to else None
    return stop is not None and stop.at > asked_at and stop.signal != signal_of(request.attempt)


def place(view: ClusterView, job: str, count: int) -> list[str]:
    """Names of nodes that could take the job now, those of its last pods first and in rank order."""
    work = find(view, job)
    job = work.job_id if work is not None else job
    found = {each.name: each for each in view.all_places()}
    before = last_nodes(view, work) if work is not None else []
    view.pods_on([each.key for each in found.values()])
    order = [name for name in before if name in found] + sorted(set(found) - set(before), key=_natural)
    return [
        name
        for name in order
        if not view.why_not(job, name, found[name]) and view.state(found[name]) is not NodeState.UNKNOWN
    ][: max(0, count)]


def last_nodes(view: ClusterView, work: Workload) -> list[str]:
    """Names of the nodes of the job's pods in rank order: of those that live, else of those that ran last,
    else of the hold, which was made of them as the job was stopped. Empty while one of its pods waits for a
    node: where the others are is not where the job runs."""
    every = view.pods_of(work.ref)
    ordered = [pod for pod in every if pods.live(pod)] or every
    if any(not pods.node_of(pod) for pod in ordered):
        return []
    keys = list(dict.fromkeys(pods.node_of(pod) for pod in ordered))
    if not keys:
        return list(work.held[0])
    named = view.names_of(keys)
    return [named[key] for key in keys]


def _unfit(view: ClusterView, job: str, asked: tuple[str, ...]) -> str:
    if not asked or len(set(asked)) != len(asked):
        return "REFUSED: the list of nodes is empty or names one twice"
    places = view.places(asked)
    view.pods_on([found.key for found in places.values() if found is not None])
    for name, found in places.items():
        why = view.why_not(job, name, found)
        if why:
            return f"REFUSED: {why}"
    silent = [name for name, found in places.items() if _silent(view, found)]
    return f"PENDING: the kubelet of {silent[0]} is silent" if silent else ""


def _silent(view: ClusterView, found: Place | None) -> bool:
    return found is not None and view.state(found) is NodeState.UNKNOWN


def _start(view: ClusterView, work: Workload, request: Requeue) -> Workload:
    def different(document: Document) -> Document | None:
        now = Workload(work.job_id, work.ref, document)
        if now.attempt >= request.attempt or now.completed or now.failed or now.suspended_by_other:
            return None
        return workloads.started(now, request.attempt, request.resume_step)

    after = view.client.change(work.ref.path, different, work.document)
    return Workload(work.job_id, work.ref, after or work.document)


def _running(view: ClusterView, work: Workload, there: list[Document]) -> str:
    """The present attempt: RUNNING once all its pods do. Until then its nodes stay held, and its pods may run
    on them: a hold that is lifted first would let other pods in."""
    waiting = [pod for pod in there if pods.phase_of(pod) != "Running"]
    wanted = work.pods
    complete = bool(there) and not waiting and (wanted is None or len(there) >= wanted)
    if work.held[0]:
        for pod in (pod for pod in waiting if view.in_time()):
            view.client.change(path_of(pod), lambda found: pods.tolerating(found, work.job_id), pod)
        if complete:
            _let_go(view, work)
    if complete:
        return "RUNNING"
    if not there:
        return "PENDING: its pods are not created yet"
    if waiting:
        return f"PENDING: {len(waiting)} of {len(there)} pods wait for a node or an image"
    return f"PENDING: {len(there)} of {wanted} pods are there"


def _let_go(view: ClusterView, work: Workload) -> None:
    """The taints first: what the job's object says is how the rest is found."""
    holding.lift(view, work.job_id)
    holding.note(view, work, (), 0.0)


def _left(view: ClusterView, work: Workload, there: list[Document]) -> str:
    """Kueue's, say: it starts the job when it admits it. The nodes kept for it are free for that."""
    if work.held[0]:
        _let_go(view, work)
    running = [pod for pod in there if pods.phase_of(pod) == "Running" and not _on_isolated(view, pod)]
    if there and len(running) == len(there) and len(running) >= (work.pods or 1):
        return "RUNNING"
    return f"PENDING: {work.left_to} starts {work.job_id} when it admits it"


def _on_isolated(view: ClusterView, pod: Document) -> bool:
    node = view.client.get(f"/api/v1/nodes/{pods.node_of(pod)}")
    return node is None or nodes.isolation_of(node) is not None


def _natural(name: str) -> tuple[str, int, str]:
    """demo-2 before demo-10."""
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :] or 0), name
