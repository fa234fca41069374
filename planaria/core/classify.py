"""Signal -> Fault: what an observation means, in the catalogue's words.

Fault.kind is the Signal's kind, except where one kind holds several meanings: an agent's report has the
probe's word (`xid`, `sxid`, `fallen_off_bus`, `spot_interruption`, `node_ready`, `job`, `agent_<other>`),
an AWS Health issue is `health_issue`. Fault.code may carry a qualifier after a slash (see catalog).
"""

from typing import Any

from planaria.core import kernel_log
from planaria.core.catalog import WELL, look_up
from planaria.core.fault import Fault
from planaria.core.node import NodeView
from planaria.core.policy import Policy
from planaria.core.signal import Kind, Signal

# Who saw it, in words that can be the name of a map in the breaker's row.
_DETECTORS = {
    Kind.SPOT_INTERRUPTION: "ec2",
    Kind.REBALANCE: "ec2",
    Kind.STATE_CHANGE: "ec2",
    Kind.CAPACITY_END: "ec2",
    Kind.SCHEDULED_EVENT: "health",
    Kind.STATUS_CHECK: "cloudwatch",
    Kind.NODE_HEALTH: "hyperpod",
    Kind.LIFECYCLE: "autoscaling",
    Kind.AGENT: "agent",
    Kind.UNKNOWN: "unknown",
}

AGENT_CONFIDENCE = 0.8
"""One observer's word; AWS about its own machines, and the sweep's look at EC2, are authoritative."""

_NEEDS_LINE = frozenset({"144", "145", "146", "147", "148", "149", "150", "154"})


def classify(signal: Signal, node: NodeView | None, policy: Policy) -> Fault:  # noqa: ARG001 - for overrides
    """Total: every signal has a fault, if only one of severity INFO."""
    evidence = signal.evidence
    detector = _DETECTORS[signal.kind]
    job_id: str | None = None
    attempt: int | None = None
    if signal.kind is Kind.AGENT:
        kind, code = _agent(signal.code, evidence)
        detector = f"agent_{kind}" if not kind.startswith("agent_") else "agent"
        if kind == "job":
            job_id, attempt = evidence.get("job_id"), evidence.get("attempt")
    else:
        kind, code = _service(signal, evidence)
        if kind == "health_issue":
            detector = "health"
    if signal.source == "planaria.sweep":
        detector = "sweep"
    deadline = evidence.get("deadline", evidence.get("starts_at"))
    return Fault(
        kind,
        code,
        look_up(kind, code, node.family if node is not None else "").severity,
        detector,
        AGENT_CONFIDENCE if signal.kind is Kind.AGENT else 1.0,
        deadline,
        job_id,
        attempt,
    )


def observed(observation: kernel_log.Observation, family: str = "") -> Fault:
    """What one kernel-log observation means, on an instance of this family."""
    severity = look_up(observation.kind, observation.meaning, family).severity
    return Fault(
        observation.kind, observation.meaning, severity, f"agent_{observation.kind}", AGENT_CONFIDENCE
    )


def _service(signal: Signal, evidence: dict[str, Any]) -> tuple[str, str]:
    kind, code = signal.kind, signal.code
    if kind is Kind.NODE_HEALTH and signal.detail_type == "AWS Health Event":
        return "health_issue", code + WELL if signal.healthy else code
    if signal.healthy:
        return kind.value, code + WELL
    if kind is Kind.STATE_CHANGE:
        reason = evidence.get("state_reason")
        asked = isinstance(reason, str) and reason.startswith("Client.")
        if asked and evidence.get("below_size") is not True and code not in ("pending", "running"):
            code += "/requested"
    elif kind is Kind.STATUS_CHECK:
        if evidence.get("state") != "ALARM":
            code += "/unknown"
        elif evidence.get("instances") != 1:
            code += "/ambiguous"
    elif kind is Kind.NODE_HEALTH and evidence.get("status") == "Unhealthy":
        code += f"/{evidence.get('repair') or 'unhealthy'}"
    return kind.value, code


def _agent(code: str, evidence: dict[str, Any]) -> tuple[str, str]:
    kind = evidence.get("kind")
    match kind:
        case "xid" if code not in _NEEDS_LINE:
            return "xid", code
        case "xid" | "sxid":
            line = evidence.get("message")
            seen = kernel_log.read(line) if line else None
            return kind, seen.meaning if seen is not None and (seen.kind, seen.code) == (kind, code) else code
        case "fallen_off_bus":
            return kind, kind
        case "spot_notice":
            return "spot_interruption", code
        case "rebalance":
            return "rebalance", code
        case "node_ready":
            return "node_ready", "ready" if evidence.get("passed") else "failed"
        case "job_exit":
            return "job", "exit" if evidence.get("exit_code") else "exit/ok"
        case "job_step":
            return "job", "step"
    return f"agent_{kind}", code
