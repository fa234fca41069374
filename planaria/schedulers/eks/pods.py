"""Pods: which of them count, what budgets say about them, in which order their ranks are. Pure."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from planaria.schedulers.eks import names
from planaria.schedulers.eks.kinds import controller_of

Document = dict[str, Any]

OVER = ("Succeeded", "Failed")
FAR = math.inf


def live(pod: Document) -> bool:
    """It has processes, or may have them any moment; one that is Terminating still counts."""
    return (pod.get("status") or {}).get("phase") not in OVER


def ending(pod: Document) -> bool:
    return pod["metadata"].get("deletionTimestamp") is not None


def phase_of(pod: Document) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def node_of(pod: Document) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def of_the_node(pod: Document) -> bool:
    """A DaemonSet's or a static pod: it belongs to the node and is left alone."""
    owner = controller_of(pod) or {}
    return owner.get("kind") == "DaemonSet" or names.MIRROR in (pod["metadata"].get("annotations") or {})


def tolerating(pod: Document, job: str) -> Document | None:
    """The patch by which the pod may run on nodes that are held for this job; None when it may already.

    Of a pod that waits, tolerations may be added; its template is not touched.
    https://kubernetes.io/docs/concepts/workloads/pods/#pod-update-and-replacement
    """
    mine = {"key": names.HELD, "operator": "Equal", "value": names.label_value(job), "effect": "NoSchedule"}
    listed = (pod.get("spec") or {}).get("tolerations") or []
    if node_of(pod) or ending(pod) or mine in listed:
        return None
    return {"spec": {"tolerations": [*listed, mine]}}


def rank(pod: Document) -> tuple[float, float, float, str]:
    """Sorts the pods of one job by rank: JobSet's index of the Job and then the completion index, or the
    master and then the workers of PyTorch's operator; by name where nothing is said."""
    said = {**(pod["metadata"].get("labels") or {}), **(pod["metadata"].get("annotations") or {})}
    worker = said.get(names.REPLICA_TYPE, "").lower() not in ("", "master")
    index = said.get(names.INDEX, said.get(names.REPLICA_INDEX))
    return (
        float(worker),
        _whole(said.get(names.JOBSET_JOB_INDEX), 0.0),
        _whole(index, FAR),
        str(pod["metadata"]["name"]),
    )


def selected(budget: Document, pods: Iterable[Document]) -> list[Document]:
    """Those of the pods that this PodDisruptionBudget is about."""
    selector = (budget.get("spec") or {}).get("selector")
    return [pod for pod in pods if selects(selector, pod["metadata"].get("labels") or {})]


def selects(selector: Mapping[str, Any] | None, marks: Mapping[str, str]) -> bool:
    """A LabelSelector; an empty one selects all, none selects nothing."""
    if selector is None:
        return False
    if any(marks.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_expression(each, marks) for each in selector.get("matchExpressions") or [])


def _expression(each: Mapping[str, Any], marks: Mapping[str, str]) -> bool:
    key, values = str(each.get("key")), each.get("values") or []
    match each.get("operator"):
        case "In":
            return marks.get(key) in values
        case "NotIn":
            return marks.get(key) not in values
        case "Exists":
            return key in marks
        case "DoesNotExist":
            return key not in marks
    return True  # of an operator that nobody knows the careful reading: the budget applies


def exit_code(pods: Iterable[Document]) -> int:
    """The first bad exit code of a container among these pods, negative for a signal, 0 without one."""
    for pod in sorted(pods, key=rank):
        for container in (pod.get("status") or {}).get("containerStatuses") or []:
            ended = (container.get("state") or {}).get("terminated") or {}
            code = int(ended.get("exitCode") or 0)
            if code:
                return 128 - code if 128 < code <= 192 else code
    return 0


def _whole(text: str | None, default: float) -> float:
    return float(text) if text is not None and text.isdigit() else default
