"""Ends that AWS announces for a time to come: when a node is drained for them.

A scheduled change (retirement, stop, termination) waits for a quiet moment: until the node has no job, or
until policy.lead_seconds before its date. The end of a Capacity Block ends what is paid for, so its nodes are
left as late as the drain allows. Until its time has come such an end is HELD, and kept on the node's row:

    planned {key of the signal: {"kind", "code", "action", "detector", "reason": in words,
             "deadline": when AWS ends the node, "latest": when the drain begins at the latest,
             "said_at": when its source said so, "at": when it was noted, "event_id": EC2's, else "",
             "event" or "event_key": its text or where that lies, "sent_at": when sweep told of it again,
             "why": what held it then}}

All times are epoch seconds. Facts: EC2 user guide, Scheduled events for your instances, and Capacity Blocks
(EC2 terminates from 30 minutes before the end).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from planaria.core.fault import Action, Fault
from planaria.core.incident import ACTIVE
from planaria.core.node import NodeView
from planaria.core.plans import is_gone
from planaria.core.policy import Policy
from planaria.core.signal import Kind, Signal
from planaria.core.table import Row

PLAN, QUIET, BUSY = "plan", "quiet", "busy"
"""In the evidence: the key of the plan that sweep tells of again; the node has no job; it has one."""

MARGIN_SECONDS = 300.0
"""From the moment at which a drain is due to its first act: sweep's minute, queue, start of the workflow."""

SAME_END_SECONDS = 86_400.0
"""Two sources that name dates so close to each other tell of one end of a node."""

PAST_SECONDS = 86_400.0
"""So long after its date an end that did not come is forgotten."""

ENTRIES = 8

Planned = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Plan:
    """deadline: when AWS ends the node. latest: when the drain begins at the latest. holds: until then, or
    until it has no job, the node is left alone; else it has none and is drained early."""

    deadline: float
    latest: float
    reason: str
    holds: bool


def plan_of(signal: Signal, fault: Fault, node: NodeView, policy: Policy, now: float) -> Plan | None:
    """What is planned for a fault that asks for a DRAIN; None when it is due, or names no time to wait to."""
    if fault.deadline is None or fault.kind not in (Kind.SCHEDULED_EVENT, Kind.CAPACITY_END):
        return None
    deadline, known = fault.deadline, node.planned.get(key(signal))
    older = signal.time is not None and known is not None and known["said_at"] > signal.time
    if known is not None and (older or (signal.evidence.get("repeats") and PLAN not in signal.evidence)):
        deadline = known["deadline"]  # its source may have named another date since
    latest = latest_of(fault.kind, deadline, policy)
    if now >= latest:
        return None
    name, planned = node.name or node.node_id, f"planned for {utc(deadline)}"
    if fault.kind == Kind.CAPACITY_END:
        reason = f"{planned}, when its Capacity Block is taken: {name} is drained at {utc(latest)}"
        return Plan(deadline, latest, reason, True)
    by = f"at the latest at {utc(latest)}"
    if signal.evidence.get(QUIET) is True or (node.job_id is None and signal.evidence.get(BUSY) is not True):
        reason = f"{planned}: {name} has no job, so it is drained now and not only {by}"
        return Plan(deadline, latest, reason, False)
    return Plan(deadline, latest, f"{planned}: {name} is drained when it has no job, {by}", True)


def latest_of(kind: str, deadline: float, policy: Policy) -> float:
    """When the drain of a node that ends at `deadline` begins at the latest (epoch seconds)."""
    needed = policy.drain_deadline_seconds + MARGIN_SECONDS
    return deadline - (needed if kind == Kind.CAPACITY_END else max(policy.lead_seconds, needed))


def isolate_by(row: Row, policy: Policy) -> float:
    """Until when a drain that is under way may wait for its replacement before it takes the node out (epoch
    seconds); 0.0 when it must not wait."""
    fault = row.get("fault") or {}
    if row.get("action") != Action.DRAIN:
        return 0.0
    if fault.get("kind") == Kind.REBALANCE:
        return float(row.get("opened_at") or 0.0) + policy.cooldown_seconds
    if fault.get("kind") != Kind.SCHEDULED_EVENT or fault.get("deadline") is None:
        return 0.0
    return float(fault["deadline"]) - policy.drain_deadline_seconds - MARGIN_SECONDS


def stays(row: Row, policy: Policy, now: float, unaware: bool = False) -> bool:
    """The drain waits for its replacement: nothing was done to the node yet, it has a job that would stand
    still, and nobody has ordered it. An idle node is taken out before it gets a job. unaware: jobs may run
    there that the ledger does not know, so every node counts as one that has a job."""
    begun = row.get("isolation_asked") or row.get("isolation") or row.get("verb")
    works = (unaware or bool(row.get("job_id"))) and not is_gone(row)
    return works and not begun and now < isolate_by(row, policy)


# --- what the row keeps ----------------------------------------------------------------------------


def key(signal: Signal) -> str:
    """Under which an end is kept: its kind and the name that its source has for it."""
    names = (signal.evidence.get(name) for name in ("event_id", "event_arn", "reservation"))
    return f"{signal.kind}|{next(filter(None, names), signal.code)}"[:200]


def entry(signal: Signal, fault: Fault, plan: Plan, now: float) -> dict[str, Any]:
    """The plan as the row keeps it, but for the event's text."""
    return {
        "kind": fault.kind,
        "code": fault.code,
        "action": Action.DRAIN.value,
        "detector": fault.detector,
        "reason": plan.reason,
        "deadline": plan.deadline,
        "latest": plan.latest,
        "said_at": signal.time if signal.time is not None else now,
        "at": now,
        "event_id": str(signal.evidence.get("event_id") or ""),
    }


def kept(planned: Planned, own: str, new: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries of the row to be written for a plan: its own, and those of other sources that tell of the
    same end, whose date moves with it. {} where it is nothing new, or older than what is known."""
    old = planned.get(own)
    if old is None:
        return {own: dict(new)} if _room(planned, new) else {}
    if old["said_at"] > new["said_at"] or old["deadline"] == new["deadline"]:
        return {}
    found = {own: dict(new)}
    for name, other in same_end(planned, old).items():
        if name != own and other["said_at"] <= new["said_at"]:
            moved = {name: new[name] for name in ("deadline", "latest", "said_at", "reason")}
            found[name] = {**other, **moved}
    return found


def taken_back(signal: Signal, planned: Planned) -> list[str]:
    """The keys of the plans that a healthy report ends. EC2's own list, which sweep reads, has the last word
    on what EC2 schedules; a closed event of AWS Health ends its own plan alone."""
    if not planned or not signal.healthy or signal.kind is not Kind.SCHEDULED_EVENT:
        return []
    own = planned.get(key(signal))
    if own is None:
        return []
    others = same_end(planned, own) if own.get("event_id") else {}
    found = {key(signal): own} | {name: plan for name, plan in others.items() if not plan.get("event_id")}
    return [name for name, plan in found.items() if signal.time is None or plan["said_at"] <= signal.time]


def off(signal: Signal, node: NodeView) -> str:
    """What a healthy report means for the plans of the node, in words; "" when nothing."""
    names = taken_back(signal, node.planned)
    dates = ", ".join(sorted({utc(node.planned[name]["deadline"]) for name in names}))
    return f"; what was planned for {dates} is off" if names else ""


def dropped(signal: Signal, node: NodeView) -> bool:
    """Sweep told again of a plan that was taken back, or answered, before this signal came."""
    plan = signal.evidence.get(PLAN)
    return plan is not None and plan not in node.planned


def same_end(planned: Planned, plan: Mapping[str, Any]) -> Planned:
    """All that tell of the end that `plan` tells of, itself too."""
    deadline = plan["deadline"]
    return {
        name: other
        for name, other in planned.items()
        if other["kind"] == plan["kind"] and abs(other["deadline"] - deadline) <= SAME_END_SECONDS
    }


def _room(planned: Planned, new: Mapping[str, Any]) -> bool:
    """An end that comes before all that are kept is kept in any case: nobody announces so many."""
    soonest = min((entry["latest"] for entry in planned.values()), default=0.0)
    return len(planned) < ENTRIES or new["latest"] < soonest


# --- what sweep asks about a plan -------------------------------------------------------------------


def is_over(row: Row, plan: Mapping[str, Any], now: float) -> bool:
    """A session that takes the node away was opened since and has ended, or the date is long past. One that
    was cancelled because its source took it back leaves no end."""
    ended, opened = float(row.get("ended_at") or 0.0), float(row.get("opened_at") or 0.0)
    answered = ended > plan["at"] and ended >= opened and row.get("phase") not in ACTIVE
    if answered and row.get("action") in (Action.DRAIN, Action.REPLACE):
        return True
    return now > float(plan["deadline"]) + PAST_SECONDS


def may_rest(job: Row | None) -> bool:
    """The node's job is not just about to go on, so that the scheduler's word that nothing runs there counts.
    job: its row; None where the node has none, or one that is not in the ledger.

    One that stands still until another node is healed leaves as good a moment as one that has ended.
    """
    if job is None:
        return True
    waits = bool(job.get("pending") or job.get("unresolved"))
    return job.get("resume_phase") not in ACTIVE and (waits or job.get("state") != "STOPPED")


def utc(at: float) -> str:
    """The moment to the minute, as people read it."""
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return f"{at:.0f} s after 1970"
