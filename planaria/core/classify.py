"""Signal -> Fault: what an observation means, in the catalogue's words.

Fault.kind is the Signal's kind, except where one kind holds several meanings: an agent's report has the
probe's word (`xid`, `sxid`, `gpu_ecc`, `node_ready`, `job`, ...; `agent_<word>` where the catalogue has no
such word), an AWS Health issue is `health_issue`. Fault.code may carry a qualifier after a slash (see
catalog).
"""

from typing import Any

from planaria.core import kernel_log
from planaria.core.catalog import WELL, look_up, probes
from planaria.core.fault import ONE_OBSERVER, Fault
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
    Kind.STATUS_CHECK: "ec2_status",
    Kind.NODE_HEALTH: "hyperpod",
    Kind.NODE_CONDITION: "eks",
    Kind.LIFECYCLE: "autoscaling",
    Kind.AGENT: "agent",
    Kind.UNKNOWN: "unknown",
}

SLURM = "Slurm/"
"""How the codes of conditions begin that are Slurm's own reasons to keep a node out of work."""

_NEEDS_LINE = frozenset({"13", "45", "144", "145", "146", "147", "148", "149", "150", "154"})

# These say of a node what their own word is, whatever the catalogue calls them.
_STATUS = frozenset({"spot_interruption", "rebalance", "node_ready", "job"})


def classify(signal: Signal, node: NodeView | None, policy: Policy) -> Fault:
    """Total: every signal has a fault, if only one of severity INFO."""
    evidence = signal.evidence
    family = node.family if node is not None else ""
    detector = _DETECTORS[signal.kind]
    seen: kernel_log.Observation | None = None
    job_id: str | None = None
    attempt: int | None = None
    if signal.kind is Kind.AGENT:
        kind, code, seen = _agent(signal.code, evidence)
        detector = f"agent_{kind}" if not kind.startswith("agent_") else "agent"
        if kind == "job":
            job_id, attempt = evidence.get("job_id"), evidence.get("attempt")
    else:
        kind, code = _service(signal, evidence)
        if kind == "health_issue":
            detector = "health"
        elif (kind, code) == ("node_health", "silent"):
            detector = "sweep"
        elif kind == "node_condition":
            detector = condition_detector(code)
    entry = look_up(kind, code, family, policy.catalog)
    named = evidence.get("pci")
    pci = seen.pci if seen is not None else kernel_log.pci(str(named)) if named else ""
    return Fault(
        kind,
        code,
        entry.severity,
        detector,
        1.0 if entry.proof == "sure" else ONE_OBSERVER,
        _deadline(signal.kind, evidence),
        job_id,
        attempt,
        pci,
        _place(seen),
        seen.details.get("cause", "") if seen is not None else "",
        evidence.get("reservation", "") if signal.kind is Kind.CAPACITY_END else "",
    )


def condition_detector(code: str) -> str:
    """Who wrote a node's condition: Slurm, which sweep asks for its own words, or what runs on Kubernetes."""
    return "slurm" if code.startswith(SLURM) else _DETECTORS[Kind.NODE_CONDITION]


def _deadline(kind: Kind, evidence: dict[str, Any]) -> float | None:
    """Of an issue AWS Health tells when it began, which is no time at which anything will end."""
    if "deadline" in evidence:
        deadline: float | None = evidence["deadline"]
        return deadline
    return evidence.get("starts_at") if kind is Kind.SCHEDULED_EVENT else None


def observed(observation: kernel_log.Observation, family: str = "", policy: Policy | None = None) -> Fault:
    """What one kernel-log observation means, on an instance of this family."""
    overrides = policy.catalog if policy is not None else ()
    entry = look_up(observation.kind, observation.meaning, family, overrides)
    return Fault(
        observation.kind,
        observation.meaning,
        entry.severity,
        f"agent_{observation.kind}",
        1.0 if entry.proof == "sure" else ONE_OBSERVER,
        pci=observation.pci,
        place=_place(observation),
        cause=observation.details.get("cause", ""),
    )


def _place(seen: kernel_log.Observation | None) -> str:
    """The texture processing cluster of an engine exception: where repeats point at the GPU."""
    if seen is None or "tpc" not in seen.details:
        return ""
    return f"gpc{seen.details['gpc']}/tpc{seen.details['tpc']}"


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
    elif kind is Kind.NODE_CONDITION and evidence.get("status") == "Unknown":
        code += "" if code.startswith("Ready/") else "/unknown"
    elif kind is Kind.NODE_HEALTH and evidence.get("status") == "Unhealthy":
        code += f"/{evidence.get('repair') or 'unhealthy'}"
    return kind.value, code


def _agent(code: str, evidence: dict[str, Any]) -> tuple[str, str, kernel_log.Observation | None]:
    kind = evidence.get("kind")
    match kind:
        case "xid" if code not in _NEEDS_LINE:
            return "xid", code, None
        case "xid" | "sxid":
            seen = _line(evidence)
            if seen is None or (seen.kind, seen.code) != (kind, code):
                return kind, code, None
            return kind, seen.meaning, seen
        case "fallen_off_bus":
            return kind, kind, None
        case "spot_notice":
            return "spot_interruption", code, None
        case "rebalance":
            return "rebalance", code, None
        case "node_ready":
            return "node_ready", "ready" if evidence.get("passed") else "failed", None
        case "job_exit":
            return "job", "exit" if evidence.get("exit_code") else "exit/ok", None
        case "job_step":
            return "job", "step", None
    word = str(kind)
    return (word if word in probes() and word not in _STATUS else f"agent_{word}"), code, None


def _line(evidence: dict[str, Any]) -> kernel_log.Observation | None:
    line = evidence.get("message")
    return kernel_log.read(line, driver=evidence.get("driver") or "") if line else None
