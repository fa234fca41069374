"""Every label, taint and annotation that is read or written, in one place, with its source.

Keys below `planaria/` are ours. Keys below `sagemaker.amazonaws.com/` are HyperPod's words, so that pods and
scripts made for HyperPod (a nodeSelector on `node-health-status: Schedulable`, say) work here too:
https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-eks-resiliency-node-labels.html
"""

import hashlib
import re
from dataclasses import dataclass

# --- ours ----------------------------------------------------------------------------------------

NAME = "planaria/name"
"""Label of a node: the name that Planaria has for its place, which a replacement takes over."""

JOINED = "planaria/joined"
"""Annotation of a node: when it took that name (epoch seconds)."""

ISOLATED = "planaria/isolated"
"""Taint (NoSchedule) and annotation of a node that we isolated. The annotation is JSON: reason, at (epoch
seconds), lost, and out_of_service where that taint is ours too."""

JOINING = "planaria/joining"
"""Taint with which the kubelet of a new node registers it (`--register-with-taints`), so that no pod takes a
spare or a replacement before it has its name and has passed its check. Readmit takes it away."""

KEEP_OUT = "planaria/keep-out"
"""Annotation of a node, written by people alone: why nobody may use or touch it. Kubernetes keeps no reason
for a cordon, and a second cordon of a node that we cordoned leaves no trace."""

HELD = "planaria/held"
"""Taint (NoSchedule) of a node that is kept free for a job, its value the job's; label of a job that has
nodes held; annotation of both. On a node JSON: job, until (epoch seconds); on a job JSON: names, until."""

ATTEMPT = "planaria/attempt"
"""Annotation of a job: the attempt that we started last."""

RESUME_STEP = "planaria/resume-step"
"""Annotation of a job: the step from which that attempt goes on, -1 where there is no checkpoint."""

STOP = "planaria/stop"
"""Annotation of a job that we stop. JSON: at and suspended_at (epoch seconds), signal, grace."""

MANAGER = "planaria"
"""Our fieldManager: `kubectl get --show-managed-fields` tells by it what we wrote."""

# --- HyperPod's ----------------------------------------------------------------------------------

HEALTH = "sagemaker.amazonaws.com/node-health-status"
FAULT_TYPES = "sagemaker.amazonaws.com/fault-types"
FAULT_REASONS = "sagemaker.amazonaws.com/fault-reasons"
FAULT_DETAILS = "sagemaker.amazonaws.com/fault-details"
"""HEALTH, FAULT_TYPES and FAULT_REASONS are labels, FAULT_DETAILS is an annotation."""

SCHEDULABLE = "Schedulable"

HYPERPOD_NODES = ("sagemaker.amazonaws.com/cluster-name", "sagemaker.amazonaws.com/instance-group-name")
"""Labels of the nodes that HyperPod itself runs. There the health label is an order to HyperPod (it replaces
the node), so we write nothing."""

HYPERPOD_PREFIX = "hyperpod-i-"
"""So begin the names of HyperPod's nodes."""

# --- Kubernetes' and other projects' ---------------------------------------------------------------

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
"""Taint that a person or a tool puts on a node that is shut down: pods there are deleted by force and their
volumes detached. https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/"""

KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
"""Label of a workload whose suspension Kueue decides. https://kueue.sigs.k8s.io/docs/tasks/run/jobs/"""

INDEX = "batch.kubernetes.io/job-completion-index"
"""Label and annotation of a pod of an Indexed Job; PyTorch's operators use their own below."""

REPLICA_INDEX = "training.kubeflow.org/replica-index"
REPLICA_TYPE = "training.kubeflow.org/replica-type"
JOBSET_JOB_INDEX = "jobset.sigs.k8s.io/job-global-index"

MIRROR = "kubernetes.io/config.mirror"
"""Annotation of a static pod, which the kubelet runs by itself."""


@dataclass(frozen=True, slots=True)
class Isolator:
    """A taint with which someone else takes a node out of work. prefix: how its key begins; who: in words."""

    prefix: str
    who: str
    source: str


ISOLATORS = (
    Isolator(
        "sagemaker.amazonaws.com/node-health-status",
        "SageMaker HyperPod",
        "https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-eks-resiliency-node-labels.html",
    ),
    Isolator("karpenter.sh/disrupted", "Karpenter", "https://karpenter.sh/docs/concepts/disruption/"),
    Isolator("karpenter.sh/disruption", "Karpenter", "https://karpenter.sh/docs/upgrading/v1-migration/"),
    Isolator(
        "ToBeDeletedByClusterAutoscaler",
        "Cluster Autoscaler",
        "https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md",
    ),
    Isolator(
        "aws-node-termination-handler/",
        "AWS Node Termination Handler",
        "https://github.com/aws/aws-node-termination-handler",
    ),
    Isolator("AggregatedNodeHealth", "NVIDIA NVSentinel", "https://github.com/NVIDIA/NVSentinel"),
    Isolator(
        "node.cloudprovider.kubernetes.io/shutdown",
        "the cloud provider",
        "https://kubernetes.io/docs/reference/labels-annotations-taints/",
    ),
    Isolator("planaria/keep-out", "a person", "docs/eks.md"),
)
"""Any other taint says what a node is for (nvidia.com/gpu, dedicated=...) or is Kubernetes' own word about
its condition (node.kubernetes.io/...): neither is a hold. The cordon of any other writer is one."""

LABEL_LENGTH = 63
_ILLEGAL = re.compile(r"[^A-Za-z0-9_.-]")


def label_value(text: str) -> str:
    """The text as a label's or taint's value; where it does not fit, its head and a digest of the whole."""
    value = _ILLEGAL.sub("_", text).strip("_.-")
    if value == text and len(value) <= LABEL_LENGTH:
        return value
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{value[: LABEL_LENGTH - 9].rstrip('_.-')}-{digest}".lstrip("-")
