"""Events of source aws.sagemaker: HyperPod node health and cluster events.

HyperPod names no code: the fault type stands inside free text, and what it wants done stands in
RepairAction, Recommendation or the fault type's own name.
"""

import re
from typing import Any

from planaria.core.parsers.envelope import Envelope, instance_id, text
from planaria.core.signal import Kind, Signal

_FAULT_TYPE = re.compile(r"fault type[s]?:? \W?(\w+)", re.IGNORECASE)
_FAULT_WORD = re.compile(r"\b((?:Nvidia|Neuron|Efa|EFA|Xid)\w+)")


def node_health(envelope: Envelope) -> list[Signal]:
    detail = envelope.detail
    node_id = instance_id(detail.get("InstanceId")) if detail is not None else None
    if detail is None or node_id is None:
        return envelope.invalid(
            Kind.NODE_HEALTH, "a HyperPod node health event must name its instance in detail.InstanceId"
        )
    summary = detail.get("HealthSummary")
    if not isinstance(summary, dict):
        return envelope.invalid(Kind.NODE_HEALTH, "a HyperPod node event must have detail.HealthSummary")
    status, reason = text(summary.get("HealthStatus")), text(summary.get("HealthStatusReason"))
    match = _FAULT_TYPE.search(reason) or _FAULT_WORD.search(reason)
    code = match[1] if match else status
    evidence = {
        "cluster": text(detail.get("ClusterName")),
        "status": status,
        "reason": reason,
        "repair": repair(summary, code),
    }
    return [envelope.signal(Kind.NODE_HEALTH, node_id, code, healthy=status == "Healthy", evidence=evidence)]


def repair(summary: dict[str, Any], code: str) -> str:
    """`replace`, `reboot` or ""; what HyperPod asks for goes before what the fault type's name suggests."""
    for words in (text(summary.get("RepairAction")), text(summary.get("Recommendation")), code):
        low = words.lower()
        if "replace" in low or "terminate" in low:
            return "replace"
        if "reboot" in low:
            return "reboot"
    return ""


def cluster_event(envelope: Envelope) -> list[Signal]:
    """Progress and failures of HyperPod's own operations. `EventDetails` is nested twice, and the older
    form lacks EventLevel."""
    details = envelope.detail.get("EventDetails") if envelope.detail is not None else None
    if not isinstance(details, dict):
        return envelope.invalid(Kind.NODE_HEALTH, "a HyperPod cluster event must have detail.EventDetails")
    inner = details.get("EventDetails")
    metadata = inner.get("EventMetadata") if isinstance(inner, dict) else None
    evidence = {
        "cluster": text(details.get("ClusterName")),
        "group": text(details.get("InstanceGroupName")),
        "level": text(details.get("EventLevel")),
        "resource": text(details.get("ResourceType")),
        "description": text(details.get("Description")),
        **_told(metadata if isinstance(metadata, dict) else {}),
    }
    node_id = instance_id(details.get("InstanceId"))
    return [envelope.signal(Kind.NODE_HEALTH, node_id, "cluster-event", evidence=evidence)]


def _told(metadata: dict[str, Any]) -> dict[str, str]:
    """Why it failed, and where its lifecycle script or Slurm stand: EventMetadata holds one object whose name
    says what the event is about (Instance, InstanceGroup, InstanceGroupScaling, Cluster, SlurmHealth)."""
    about = next((value for value in metadata.values() if isinstance(value, dict)), {})
    said = {
        "failure": text(about.get("FailureMessage")),
        "lifecycle_script": text(about.get("LcsExecutionState")),
        "component": text(about.get("Component")),
        "component_status": text(about.get("Status")),
        "component_reason": text(about.get("Reason")),
    }
    return {name: value for name, value in said.items() if value or name == "failure"}


def cluster_state(envelope: Envelope) -> list[Signal]:
    """The state of a whole HyperPod cluster names no node."""
    detail = envelope.detail or {}
    names = {"cluster": "ClusterName", "status": "ClusterStatus", "failure": "FailureMessage"}
    evidence = {name: text(detail.get(key)) for name, key in names.items()}
    return [envelope.signal(Kind.UNKNOWN, None, "cluster-state", evidence=evidence)]
