"""Nodes: isolate, give up, readmit, and give a name to the instance that takes it."""

from collections.abc import Callable

from planaria.core.errors import TransientError
from planaria.core.scheduling import Join
from planaria.schedulers.eks import holding, names, node_patches, nodes, pods, stopping
from planaria.schedulers.eks.client import Refused
from planaria.schedulers.eks.cluster_view import ClusterView, Place
from planaria.schedulers.eks.finding import find
from planaria.schedulers.eks.kinds import JobRef, job_id
from planaria.schedulers.eks.node_patches import Fault
from planaria.schedulers.eks.nodes import Document

Faults = Callable[[str], Fault]
"""What to write about a node that is isolated with this reason."""


def isolate(view: ClusterView, name: str, reason: str, fault: Fault) -> str:
    """-> the answer's word for this node. EKS takes away the Node of an instance that EC2 has ended: nothing
    can come there any more."""
    place = view.place(name)
    if place is None:
        return "ISOLATED" if view.gone(name) else f"UNKNOWN: no node {name}"
    return _isolate(view, place, reason, fault)


def give_up(view: ClusterView, name: str, reason: str, fault: Fault) -> str:
    """Isolate, and take the node's pods out of the API: they are gone, or end no other way. -> the word.

    A job of which the control plane knows (we hold nodes for it, or stop it) is suspended first: its
    controller then lets its pods go without counting them as failed, and a Job with backoffLimit 0 would
    have ended for good. Of any other job only the pods here end, and its controller does what it does.
    """
    place = view.place(name)
    if place is None:
        return isolate(view, name, reason, fault)
    word = _isolate(view, place, reason, fault)
    if word != "ISOLATED":
        return word
    known = _suspend_known(view, place)
    there = _ending(view, place, known)
    waiting = any(view.job_of(pod) in known and not pods.ending(pod) for pod in there)
    # While a controller has not let its pods go, the taint would end them as failed.
    word = _isolate(view, place, reason, fault, lost=True, shut_down=not waiting)
    for pod in there:
        if view.job_of(pod) not in known:
            _end(view, pod)
        elif pods.ending(pod):
            view.client.delete(pod, grace=0)
    return word


def _isolate(
    view: ClusterView, place: Place, reason: str, fault: Fault, lost: bool = False, shut_down: bool = False
) -> str:
    word = ""

    def different(node: Document) -> Document | None:
        nonlocal word
        who = nodes.foreign(node)
        word = f"FOREIGN: {who}" if who else "ISOLATED"
        if who:
            return None
        name = None if place.name in (nodes.instance_of(node), place.key) else place.name
        return _merged(
            node,
            [
                lambda n: node_patches.isolated(n, reason, fault, view.now, lost, shut_down),
                # From here on the Node itself says whose place it has, and nobody need read all of them.
                lambda n: node_patches.named(n, name, view.now) if name is not None else None,
            ],
        )

    try:
        after = view.client.change(place.path, different)
    except TransientError as error:
        return f"UNKNOWN: {error}"
    view.forget(place.name)
    return word if after is not None else f"UNKNOWN: no node {place.name}"


def _suspend_known(view: ClusterView, place: Place) -> set[JobRef]:
    """Jobs with pods there that are suspended now, or were."""
    found = set()
    for ref in {view.job_of(pod) for pod in view.pods_on([place.key], anew=True)[place.key]} - {None}:
        work = find(view, job_id(ref, view.namespaces)) if ref is not None else None
        if work is None or work.left_to or work.completed or work.failed:
            continue
        if work.suspended or work.held[0] or work.stopping is not None:
            stopping.suspend(view, work, "KILL", 0.0)
            found.add(work.ref)
    return found


def _ending(view: ClusterView, place: Place, known: set[JobRef]) -> list[Document]:
    """The pods there, once the controllers of those jobs have let theirs go or have had a moment for it."""
    for pause in (0.0, 0.2, 0.4, 0.8):
        view.client.pause(pause)
        there = view.pods_on([place.key], anew=True)[place.key]
        if all(pods.ending(pod) or view.job_of(pod) not in known for pod in there):
            break
    return there


def _end(view: ClusterView, pod: Document) -> None:
    """The eviction marks it as disrupted, which a job's podFailurePolicy may pass over; where a budget
    protects it that is beside the point."""
    try:
        gone = not view.client.evict(pod, grace=0)
    except Refused:
        gone = False
    if not gone:
        view.client.delete(pod, grace=0)


def readmit(view: ClusterView, name: str, reason: str) -> str:
    place = view.place(name)
    if place is None:
        return "READMITTED" if view.gone(name) else f"UNKNOWN: no node {name}"
    word = ""

    def different(node: Document) -> Document | None:
        nonlocal word
        ours, who = nodes.isolation_of(node), nodes.foreign(node)
        if ours is not None and ours.reason != reason:
            word = f"FOREIGN: {who or ours.reason}"
            return None
        # What is ours goes, whoever else keeps the node out.
        word = f"FOREIGN: {who}" if who else "READMITTED"
        return node_patches.readmitted(node, who.startswith("taint "))

    try:
        after = view.client.change(place.path, different)
    except TransientError as error:
        return f"UNKNOWN: {error}"
    view.forget(name)
    return word if after is not None else f"UNKNOWN: no node {name}"


def join(view: ClusterView, request: Join, fault: Fault) -> str:
    """The Node of the instance takes the name: label, isolation and the hold that the name is in, in one
    write; then the Node that had the name loses it."""
    node = view.of_instance(request.node_id)
    if node is None:
        return f"BUSY: {request.node_id} has not registered as a node yet"
    path = f"/api/v1/nodes/{node['metadata']['name']}"
    bears = nodes.labels(node).get(names.NAME)
    if bears and bears != request.name:
        return f"BUSY: {request.node_id} is {bears} already"
    before = view.place(request.name)
    if before is not None and before.path == path and bears:
        return _joined_again(view, path, request, fault)
    if before is not None and before.path != path:
        running = view.jobs_on([before.key])[before.key]
        if running:
            behind = nodes.instance_of(before.node) or before.key
            return f"BUSY: ranks of {', '.join(running)} still run on {behind}"
    hold = holding.for_name(view, request.name)
    out = nodes.annotations(before.node).get(names.KEEP_OUT) if before is not None else None

    def different(found: Document) -> Document | None:
        return _merged(
            found,
            [
                lambda n: node_patches.named(n, request.name, view.now),
                lambda n: node_patches.held(n, hold) if hold is not None else None,
                # A person's word about the place outlives the instance; ours is not written beside it.
                lambda n: (
                    {"metadata": {"annotations": {names.KEEP_OUT: out}}}
                    if out is not None
                    else node_patches.isolated(n, request.reason, fault, view.now)
                ),
            ],
        )

    view.client.change(path, different)
    view.forget(request.name)
    if before is not None and before.path != path:
        view.client.change(before.path, lambda found: node_patches.named(found, None, view.now))
    return "JOINED"


def _joined_again(view: ClusterView, path: str, request: Join, fault: Fault) -> str:
    """The same instance again: an isolation of ours gets the new reason, an end of it is left alone."""

    def different(found: Document) -> Document | None:
        if nodes.isolation_of(found) is None or nodes.foreign(found):
            return None
        return node_patches.isolated(found, request.reason, fault, view.now)

    view.client.change(path, different)
    for other in view.client.list_all("/api/v1/nodes", labelSelector=f"{names.NAME}={request.name}"):
        # Of a Join that was broken off between its two writes.
        other_path = f"/api/v1/nodes/{other['metadata']['name']}"
        if other_path != path:
            view.client.change(other_path, lambda found: node_patches.named(found, None, view.now))
    return "JOINED"


def _merged(node: Document, steps: list[Callable[[Document], Document | None]]) -> Document | None:
    """One merge patch of several: each step sees the node as the ones before have left it."""
    whole: Document = {}
    seen = node
    for step in steps:
        patch = step(seen)
        if patch is None:
            continue
        for part in ("labels", "annotations"):
            new = (patch.get("metadata") or {}).get(part)
            if new:
                whole.setdefault("metadata", {}).setdefault(part, {}).update(new)
        if "spec" in patch:
            whole.setdefault("spec", {}).update(patch["spec"])
        seen = _applied(seen, patch)
    return whole or None


def _applied(node: Document, patch: Document) -> Document:
    metadata = dict(node["metadata"])
    for part in ("labels", "annotations"):
        new = (patch.get("metadata") or {}).get(part) or {}
        metadata[part] = {**(metadata.get(part) or {}), **new}
        metadata[part] = {key: value for key, value in metadata[part].items() if value is not None}
    return {**node, "metadata": metadata, "spec": {**(node.get("spec") or {}), **(patch.get("spec") or {})}}
