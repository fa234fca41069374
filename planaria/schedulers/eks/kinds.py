"""The kinds of workload that run training jobs, as one table, and what job ids look like.

A job's id is the plain name of a batch/v1 Job in the first namespace of the cluster file; of anything else it
is `<kind>.<namespace>.<name>`, such as `jobset.team-a.llama`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]

NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""Kubernetes' names of objects. https://kubernetes.io/docs/concepts/overview/working-with-objects/names/"""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind. path: of its API below /apis/<group and version>; suspend: the field that stops and starts
    it, as names; conditions: those of status.conditions that mean the end, word by outcome; name_label: the
    label of its pods that holds its name; verified: what this rests on ("tests" or "documentation").

    pods: how many pods it wants at the same time, None where that is not known.
    """

    word: str
    kind: str
    api: str
    plural: str
    suspend: tuple[str, ...]
    completed: str
    failed: str
    name_label: str
    source: str
    verified: str
    pods: Callable[[Document], int | None]

    def path(self, namespace: str, name: str = "") -> str:
        return f"/apis/{self.api}/namespaces/{namespace}/{self.plural}" + (f"/{name}" if name else "")


def _pods_of_job(job: Document) -> int | None:
    spec = job.get("spec") or {}
    wanted = int(spec.get("parallelism", 1))
    if spec.get("completions") is not None:
        left = int(spec["completions"]) - int((job.get("status") or {}).get("succeeded") or 0)
        wanted = min(wanted, max(0, left))
    return wanted


def _pods_of_jobset(jobset: Document) -> int | None:
    over = {
        str(each.get("name")): int(each.get("succeeded") or 0)
        for each in (jobset.get("status") or {}).get("replicatedJobsStatus") or []
    }
    wanted = 0
    for each in (jobset.get("spec") or {}).get("replicatedJobs") or []:
        left = int(each.get("replicas", 1)) - over.get(str(each.get("name")), 0)
        wanted += max(0, left) * (_pods_of_job(each.get("template") or {}) or 0)
    return wanted


def _pods_of_pytorchjob(job: Document) -> int | None:
    replicas = (job.get("spec") or {}).get("pytorchReplicaSpecs") or {}
    return sum(int(each.get("replicas", 1)) for each in replicas.values())


def _pods_of_hyperpod_job(job: Document) -> int | None:
    replicas = (job.get("spec") or {}).get("replicaSpecs") or []
    return sum(int(each.get("replicas", 1)) for each in replicas)


def _not_known(_: Document) -> int | None:
    return None


JOB = Kind(
    "job",
    "Job",
    "batch/v1",
    "jobs",
    ("spec", "suspend"),
    "Complete",
    "Failed",
    "batch.kubernetes.io/job-name",
    "https://kubernetes.io/docs/concepts/workloads/controllers/job/#suspending-a-job",
    "tests",
    _pods_of_job,
)
JOBSET = Kind(
    "jobset",
    "JobSet",
    "jobset.x-k8s.io/v1alpha2",
    "jobsets",
    ("spec", "suspend"),
    "Completed",
    "Failed",
    "jobset.sigs.k8s.io/jobset-name",
    "https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/",
    "tests",
    _pods_of_jobset,
)
PYTORCHJOB = Kind(
    "pytorchjob",
    "PyTorchJob",
    "kubeflow.org/v1",
    "pytorchjobs",
    ("spec", "runPolicy", "suspend"),
    "Succeeded",
    "Failed",
    "training.kubeflow.org/job-name",
    "https://www.kubeflow.org/docs/components/trainer/legacy-v1/reference/distributed-training/",
    "documentation",
    _pods_of_pytorchjob,
)
TRAINJOB = Kind(
    "trainjob",
    "TrainJob",
    "trainer.kubeflow.org/v1alpha1",
    "trainjobs",
    ("spec", "suspend"),
    "Complete",
    "Failed",
    "jobset.sigs.k8s.io/jobset-name",
    "https://github.com/kubeflow/trainer/blob/master/pkg/apis/trainer/v1alpha1/trainjob_types.go",
    "documentation",
    _not_known,
)
HYPERPOD_JOB = Kind(
    "hyperpodpytorchjob",
    "HyperPodPyTorchJob",
    "sagemaker.amazonaws.com/v1",
    "hyperpodpytorchjobs",
    ("spec", "runPolicy", "suspend"),
    "Completed",
    "Failed",
    "HyperPodPyTorchJob",
    "https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-eks-operator-usage.html",
    "documentation",
    _pods_of_hyperpod_job,
)

KINDS: tuple[Kind, ...] = (JOB, JOBSET, PYTORCHJOB, TRAINJOB, HYPERPOD_JOB)
_BY_WORD = {kind.word: kind for kind in KINDS}
_BY_OWNER = {(kind.kind, kind.api.partition("/")[0]): kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class JobRef:
    """Which object a job id means."""

    kind: Kind
    namespace: str
    name: str

    @property
    def path(self) -> str:
        return self.kind.path(self.namespace, self.name)


def owner_kind(reference: Mapping[str, Any]) -> Kind | None:
    """The kind of an ownerReference, of whichever version of its API; None for another."""
    group = str(reference.get("apiVersion", "")).partition("/")[0]
    return _BY_OWNER.get((str(reference.get("kind")), group))


def controller_of(document: Document) -> Mapping[str, Any] | None:
    """The ownerReference of whoever makes and ends this object."""
    references = (document.get("metadata") or {}).get("ownerReferences") or []
    return next((each for each in references if each.get("controller")), None)


def parse(job_id: str, namespaces: Sequence[str]) -> JobRef | None:
    """The object of a job id; None when it names a namespace that the cluster file does not, or nothing that
    Kubernetes could have: an id becomes part of a path and of selectors."""
    if not NAME.fullmatch(job_id):
        return None
    word, _, rest = job_id.partition(".")
    namespace, _, name = rest.partition(".")
    if word in _BY_WORD and name:
        return JobRef(_BY_WORD[word], namespace, name) if namespace in namespaces else None
    return JobRef(JOB, namespaces[0], job_id)


def job_id(ref: JobRef, namespaces: Sequence[str]) -> str:
    plain = ref.kind is JOB and ref.namespace == namespaces[0]
    # A plain name that reads like a full id keeps the full form.
    if plain and parse(ref.name, namespaces) == ref:
        return ref.name
    return f"{ref.kind.word}.{ref.namespace}.{ref.name}"
