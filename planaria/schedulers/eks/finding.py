"""From a job id to the object that is acted on."""

from planaria.schedulers.eks import kinds
from planaria.schedulers.eks.cluster_view import ClusterView
from planaria.schedulers.eks.workloads import Workload


def find(view: ClusterView, job_id: str) -> Workload | None:
    """The job, None when there is no such object. Where it belongs to another one of a known kind (a Job of a
    JobSet), that one is meant: only it may suspend and resume."""
    ref = kinds.parse(job_id, view.namespaces)
    document = view.client.get(ref.path) if ref is not None else None
    if ref is None or document is None:
        return None
    above = view.job_of(document)
    if above is not None:
        document = view.client.get(above.path)
        if document is None:
            return None
        ref = above
    return Workload(kinds.job_id(ref, view.namespaces), ref, document)
