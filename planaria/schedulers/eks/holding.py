"""Keeping nodes free for a job: what the job's object says is the hold, the taints on nodes follow it.

Kubernetes lifts no taint by itself. A hold ends by the requeue, by a newer hold, or by its time; from then on
it counts no more, and the next look at held nodes takes the taint away.
"""

from collections.abc import Collection

from planaria.core.scheduling import Hold
from planaria.schedulers.eks import kinds, names, node_patches, nodes, workloads
from planaria.schedulers.eks.cluster_view import ClusterView
from planaria.schedulers.eks.nodes import Document
from planaria.schedulers.eks.workloads import Workload


def hold(view: ClusterView, work: Workload, request: Hold) -> str:
    """-> the answer's word. The job's object is written first: a Join must find the hold."""
    wanted, until = tuple(dict.fromkeys(request.nodes)), view.now + request.seconds
    note(view, work, wanted, until)
    kept = set()
    refused = []
    for name, place in view.places(wanted).items():
        if place is None or nodes.foreign(place.node):
            continue  # there is no such node yet, or it is someone else's business
        why = _taint(view, place.path, nodes.Hold(work.job_id, until))
        kept.add(place.key)
        if why:
            refused.append(f"{name} {why}")
    lift(view, work.job_id, kept)
    view.forget(*wanted)
    return f"UNKNOWN: {refused[0]}" if refused else "HELD"


def note(view: ClusterView, work: Workload, wanted: tuple[str, ...], until: float) -> None:
    def different(document: Document) -> Document | None:
        return workloads.held(Workload(work.job_id, work.ref, document), wanted, until)

    view.client.change(work.ref.path, different)


def lift(view: ClusterView, job: str, but: Collection[str] = ()) -> None:
    """Nothing is kept free for this job any more, but these Nodes. Expired holds of others go as well."""
    for node in view.held():
        if node["metadata"]["name"] in but:
            continue
        _lift(view, node, job)


def lift_expired(view: ClusterView) -> None:
    for node in view.held():
        _lift(view, node, "")


def _lift(view: ClusterView, node: Document, job: str) -> None:
    def different(found: Document) -> Document | None:
        told = nodes.json_of(nodes.annotations(found).get(names.HELD))
        if told.get("job") != job and nodes.hold_of(found, view.now) is not None:
            return None
        return node_patches.held(found, None)

    path = f"/api/v1/nodes/{node['metadata']['name']}"
    view.client.change(path, different, node)


def _taint(view: ClusterView, path: str, wanted: nodes.Hold) -> str:
    """Why the node is not held for this job; "" when it is."""
    why = ""

    def different(found: Document) -> Document | None:
        nonlocal why
        other = nodes.hold_of(found, view.now)
        why = f"is held for {other.job}" if other is not None and other.job != wanted.job else ""
        return None if why else node_patches.held(found, wanted)

    view.client.change(path, different)
    return why


def for_name(view: ClusterView, name: str) -> nodes.Hold | None:
    """The hold that this name is in, by what the jobs' objects say."""
    for namespace in view.namespaces:
        for kind in kinds.KINDS:
            for document in view.client.list_all(kind.path(namespace), labelSelector=names.HELD):
                ref = kinds.JobRef(kind, namespace, document["metadata"]["name"])
                work = Workload(kinds.job_id(ref, view.namespaces), ref, document)
                held, until = work.held
                if name in held and until > view.now:
                    return nodes.Hold(work.job_id, until)
    return None
