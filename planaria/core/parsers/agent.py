"""Events of the node agents, source `planaria.node/<role id>:<instance id>`.

EventBridge lets a node put events under its own source alone, so the instance id in the source is proven;
a report about another node is INVALID.
"""

import re
from typing import Any

from planaria.core.parsers.envelope import Envelope, instance_id, number, text
from planaria.core.signal import Kind, Signal

PREFIX = "planaria.node/"

# What a node signal may tell beside its fault: the driver's version (Xid 144 to 150 are read by it) and which
# GPU, link or engine it is about, where the probe knows more than the PCI address.
_WORDS = ("driver", "gpu_uuid", "gpu_serial")
_NUMBERS = ("gpu", "link", "gpc", "tpc", "sm")
_SOURCE = re.compile(r"planaria\.node/[^:/]+:(i-[0-9A-Za-z]{4,40})")


def node_signal(envelope: Envelope) -> list[Signal]:
    """A fault or a warning that the agent saw; code is the probe's (an Xid number, a spot action)."""
    node_id, detail = _own(envelope)
    if detail is None:
        return envelope.invalid(Kind.AGENT, node_id)
    kind = text(detail.get("kind"))
    if not kind:
        return envelope.invalid(Kind.AGENT, "a node signal must name detail.kind, such as xid")
    evidence: dict[str, Any] = {
        "kind": kind,
        "pci": text(detail.get("pci")),
        "message": text(detail.get("message")),
        "count": number(detail.get("count")),
        "boot_id": text(detail.get("boot_id")),
    }
    if (deadline := number(detail.get("deadline"))) is not None:
        evidence["deadline"] = deadline
    evidence |= {name: word for name in _WORDS if (word := text(detail.get(name)))}
    evidence |= {name: int(at) for name in _NUMBERS if (at := number(detail.get(name))) is not None}
    code = detail.get("code")
    code = str(code) if isinstance(code, int) and abs(code) < 10**9 else text(code)
    return [_signal(envelope, node_id, detail, code or kind, evidence)]


def node_ready(envelope: Envelope) -> list[Signal]:
    """The node has booted; its light check passed or not."""
    node_id, detail = _own(envelope)
    if detail is None:
        return envelope.invalid(Kind.AGENT, node_id)
    check = detail.get("check")
    check = check if isinstance(check, dict) else {}
    passed = check.get("passed") is True
    evidence: dict[str, Any] = {
        "kind": "node_ready",
        "passed": passed,
        "reason": text(check.get("reason")),
        "name": text(detail.get("name")),
        "address": text(detail.get("address")),
        "boot_id": text(detail.get("boot_id")),
    }
    return [_signal(envelope, node_id, detail, "node_ready", evidence, healthy=passed)]


def job_signal(envelope: Envelope) -> list[Signal]:
    """A rank ended, or the first step of an attempt is done."""
    node_id, detail = _own(envelope)
    if detail is None:
        return envelope.invalid(Kind.AGENT, node_id)
    job_id, attempt, event = text(detail.get("job_id")), number(detail.get("attempt")), detail.get("event")
    if not job_id or attempt is None or event not in ("exit", "step"):
        return envelope.invalid(
            Kind.AGENT, "a job signal must name detail.job_id, detail.attempt and detail.event (exit or step)"
        )
    rank, exit_code = number(detail.get("rank")), number(detail.get("exit_code"))
    if event == "exit" and exit_code is None:
        return envelope.invalid(Kind.AGENT, "a job signal about an exit must name detail.exit_code")
    evidence: dict[str, Any] = {"kind": f"job_{event}", "job_id": job_id, "attempt": int(attempt)}
    if rank is not None:
        evidence["rank"] = int(rank)
    if event == "exit":
        evidence |= {"exit_code": int(exit_code or 0), "reason": text(detail.get("reason"))}
        if (ended_at := number(detail.get("ended_at"))) is not None:
            evidence["ended_at"] = ended_at
    else:
        evidence |= {"step": number(detail.get("step")), "loss": number(detail.get("loss"))}
    return [_signal(envelope, node_id, detail, f"job_{event}", evidence)]


def checkpoint_saved(envelope: Envelope) -> list[Signal]:
    """A checkpoint is complete; the checkpoint index reads the detail, the judge has nothing to do."""
    node_id, detail = _own(envelope)
    if detail is None:
        return envelope.invalid(Kind.AGENT, node_id)
    evidence = {
        "kind": "checkpoint_saved",
        "job_id": text(detail.get("job_id")),
        "step": number(detail.get("step")),
    }
    if (attempt := number(detail.get("attempt"))) is not None:
        evidence["attempt"] = int(attempt)
    return [_signal(envelope, node_id, detail, "checkpoint_saved", evidence)]


def _own(envelope: Envelope) -> tuple[str, dict[str, Any] | None]:
    """(instance id, detail), or (why not, None). Sweep may repeat a report about any node."""
    detail = envelope.detail
    if detail is None:
        return "an agent's event must have a detail object", None
    node_id = instance_id(detail.get("instance_id"))
    if node_id is None:
        return "an agent's event must name its instance in detail.instance_id", None
    if why := foreign(envelope, node_id):
        return why, None
    return node_id, detail


def foreign(envelope: Envelope, node_id: str) -> str:
    """Why this agent may not report about this node; "" when it may, or when it is no agent's event."""
    if not envelope.source.startswith(PREFIX):
        return ""
    match = _SOURCE.fullmatch(envelope.source)
    if match is not None and match[1] == node_id:
        return ""
    return f"{envelope.source[:120]} reports about {node_id}: an agent may report about its own node only"


def _signal(
    envelope: Envelope,
    node_id: str,
    detail: dict[str, Any],
    code: str,
    evidence: dict[str, Any],
    healthy: bool = False,
) -> Signal:
    return envelope.signal(
        Kind.AGENT,
        node_id,
        code,
        time=number(detail.get("time")),
        healthy=healthy,
        injected=detail.get("injected") is True,
        evidence=evidence,
    )
