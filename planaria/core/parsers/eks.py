"""Conditions of Kubernetes nodes: EKS's node monitoring agent, the kubelet, other detectors that write them.

EKS puts no node condition on EventBridge, so whoever can read the Kubernetes API (sweep, or the agent of the
node itself) sends it on Planaria's bus as detail-type `EKS Node Monitoring Condition`:

    {"version": 1, "instance_id": "i-..." and/or "provider_id": "aws:///us-west-2a/i-...", "node_name": str,
     "condition": {"type": "AcceleratedHardwareReady", "status": "True" | "False" | "Unknown",
                   "reason": "NvidiaXID79Error", "message": str, "lastTransitionTime": ISO 8601,
                   "lastHeartbeatTime": ISO 8601}}

`condition` is a NodeCondition of the Kubernetes API as it stands. The code is `<type>/<reason>`.
"""

import re
from typing import Any

from planaria.core.parsers import agent
from planaria.core.parsers.envelope import Envelope, instance_id, text, when
from planaria.core.signal import Kind, Signal

DETAIL_TYPE = "EKS Node Monitoring Condition"
_PROVIDER = re.compile(r"aws://[^/]*/[^/]+/(i-[0-9A-Za-z]{4,40})")
_STATUSES = frozenset({"True", "False", "Unknown"})
_NO_REASON = "Unspecified"


def condition(envelope: Envelope) -> list[Signal]:
    """One condition of one node. A type that ends in `Ready` is well when True; all others (MemoryPressure,
    NetworkUnavailable, KernelDeadlock) name what is wrong and are well when False."""
    detail = envelope.detail
    if detail is None:
        return envelope.invalid(Kind.NODE_CONDITION, "a node condition must have a detail object")
    node_id = _node(detail)
    if node_id is None:
        return envelope.invalid(
            Kind.NODE_CONDITION, "a node condition must name one instance in instance_id or provider_id"
        )
    if why := agent.foreign(envelope, node_id):
        return envelope.invalid(Kind.NODE_CONDITION, why)
    said = detail.get("condition")
    said = said if isinstance(said, dict) else {}
    kind, status = text(said.get("type")), text(said.get("status"))
    if not kind or status not in _STATUSES:
        return envelope.invalid(
            Kind.NODE_CONDITION,
            "a node condition must name condition.type and condition.status (True, False or Unknown)",
        )
    since, seen = when(said.get("lastTransitionTime")), when(said.get("lastHeartbeatTime"))
    moments = [moment for moment in (since, seen) if moment is not None]
    evidence: dict[str, Any] = {
        "type": kind,
        "status": status,
        "reason": text(said.get("reason")),
        "message": text(said.get("message")),
        "since": since,
        "node_name": text(detail.get("node_name")),
    }
    return [
        envelope.signal(
            Kind.NODE_CONDITION,
            node_id,
            f"{kind[:100]}/{evidence['reason'][:99] or _NO_REASON}",
            # A condition stays on the node object after a reboot until its writer is back; its heartbeat
            # tells when it was last true.
            time=max(moments, default=None),
            healthy=status == ("True" if kind.endswith("Ready") else "False"),
            evidence=evidence,
        )
    ]


def _node(detail: dict[str, Any]) -> str | None:
    """The instance that detail names; None where it names none or two."""
    found = set()
    if detail.get("instance_id") is not None:
        found.add(instance_id(detail["instance_id"]))
    if detail.get("provider_id") is not None:
        match = _PROVIDER.fullmatch(text(detail["provider_id"]))
        found.add(match[1] if match else None)
    return found.pop() if len(found) == 1 else None
