"""From a judgement to a claim that the breaker has admitted: the rules that triage and its replay share."""

import dataclasses
from typing import Any

from planaria.core import history
from planaria.core.breaker import Breaker
from planaria.core.claim import Claim
from planaria.core.errors import Fenced
from planaria.core.gates import ends_anyway
from planaria.core.incident import incident_id
from planaria.core.judge import Judgement, Outcome
from planaria.core.ledger import Ledger
from planaria.core.plans import is_gone, needs_word
from planaria.core.policy import Mode
from planaria.core.signal import Kind, Signal
from planaria.core.table import Row


def said(signal: Signal, judgement: Judgement, row: Row) -> dict[Any, Any]:
    """EC2's own word about the instance, for its row. A state never goes back from gone; what is held comes
    again, so it may not make itself stale."""
    if signal.kind is not Kind.STATE_CHANGE or row.get("gone"):
        return {}
    if judgement.outcome is Outcome.STALE and not judgement.tells_gone:
        return {}
    return {"state": signal.code, "gone": judgement.tells_gone and judgement.outcome is not Outcome.HELD}


def claim_of(signal: Signal, judgement: Judgement, row: Row, now: float) -> Claim:
    """The claim that a judgement leads to; it must be one of an act on a node."""
    assert signal.node_id is not None and judgement.action is not None and judgement.fault is not None
    fault = {k: v for k, v in dataclasses.asdict(judgement.fault).items() if v is not None}
    if fault["kind"] == Kind.SCHEDULED_EVENT and fault.get("deadline", now) < now:
        del fault["deadline"]  # a date that went by leaves no time to count from
    return Claim(
        node_id=signal.node_id,
        claim_id=signal.dedupe_key,
        action=judgement.action.value,
        reason=judgement.reason,
        rule=judgement.rule,
        mode=judgement.mode.value,
        detected_at=signal.time if signal.time is not None else now,
        fault=fault,
        facts=said(signal, judgement, row),
        when=history.unchanged_since(row, judgement.fault),
    )


def admit(ledger: Ledger, breaker: Breaker, row: Row, now: float) -> str:
    """Why the breaker holds this session, "" when it may go on. Safe to repeat.

    It never holds one whose node is gone or taken by AWS in any case, which takes nothing from the fleet, nor
    one that superseded an admitted one, whose node is taken out.
    """
    old, fault = row.get("supersedes") or {}, row.get("fault") or {}
    if row.get("admitted_by_breaker") or ends_anyway(str(fault.get("kind", "")), is_gone(row)):
        return ""
    name = incident_id(row["node_id"], row["session"])
    before = incident_id(row["node_id"], old["session"]) if old else ""
    detector = str(fault.get("detector", "unknown"))
    refusal = breaker.admit(name, detector, now, before)
    if refusal and not old.get("admitted"):
        return refusal
    try:
        ledger.write(row["node_id"], row["session"], sets={"admitted_by_breaker": True})
    except Fenced:
        # A successor that was not admitted yet is about to take this slot over; any other has its own.
        current = ledger.node(row["node_id"]) or {}
        heir = (current.get("supersedes") or {}).get("session") == row["session"]
        if not heir or current.get("admitted_by_breaker"):
            breaker.release(name, detector)
        raise
    if before:
        # A predecessor may have been admitted after its successor, and then left its slot to it.
        breaker.release(before, str(old.get("detector", "unknown")))
    return ""


def still_held(breaker: Breaker, judgement: Judgement, row: Row, now: float) -> str:
    """Why a node that is held stays so: its signals must not claim and be refused again and again, so the
    breaker is only looked at. "" for all others: the first refusal is the breaker's own, which it notes."""
    fault = judgement.fault
    if not row.get("held_since") or judgement.raises or fault is None:
        return ""
    return "" if ends_anyway(fault.kind, judgement.tells_gone) else breaker.full(now, fault.detector)


def to_be_approved(judgement: Judgement, row: Row) -> Judgement:
    """HELD where the incident is claimed and waits for a person. row: the node's, after the claim."""
    if judgement.mode is not Mode.APPROVE or judgement.outcome is not Outcome.OPENED:
        return judgement
    if not needs_word(row):
        return judgement
    name = incident_id(row["node_id"], row["session"])
    reason = f"{judgement.reason}; it waits for `planaria approve {name}`"
    return dataclasses.replace(judgement, outcome=Outcome.HELD, reason=reason)
