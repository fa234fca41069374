"""Incidents that wait for a person: sweep ends the wait when its time is over or when AWS has decided."""

from planaria.core import approval
from planaria.core.approval import Answer
from planaria.core.errors import Fenced
from planaria.core.gates import ends_anyway
from planaria.core.incident import incident_id
from planaria.core.plans import is_gone
from planaria.core.table import Conflict, Row
from planaria.wiring import Gateways

PLANARIA = "Planaria"
NOTHING_TO_DECIDE = "AWS takes the node in any case"


def expire(gw: Gateways, row: Row) -> bool:
    """Answer the workflow of an incident that nobody approved in time, or that has nothing to be approved any
    more; tell an answer again whose teller died. True when there was one."""
    asked = approval.of(row)
    if asked is None:
        return False
    now = gw.clock.now()
    if "answer" not in asked:
        if is_gone(row):
            return waive(gw, row, "")
        if now < float(asked["deadline"]):
            detector = str((row.get("fault") or {}).get("detector", "unknown"))
            gw.breaker.touch(incident_id(row["node_id"], row["session"]), detector, now)
            return False
        return _answer(gw, row, Answer.EXPIRED, "")
    if not asked.get("told"):
        tell(gw, row)
        return True
    return False


def waive(gw: Gateways, row: Row, kind: str) -> bool:
    """A fault of this kind has joined the node's incident. If AWS takes the node by it, nobody is asked any
    longer: to wait would only lose the checkpoint. True when an incident goes on by that."""
    if not approval.waits(row) or not ends_anyway(kind, is_gone(row)):
        return False
    return _answer(gw, row, Answer.APPROVED, NOTHING_TO_DECIDE)


def tell(gw: Gateways, row: Row) -> None:
    approval.tell(gw.ledger, gw.breaker, gw.workflows, row, gw.clock.now())


def _answer(gw: Gateways, row: Row, word: Answer, reason: str) -> bool:
    try:
        row = approval.answer(gw.ledger, row, word, PLANARIA, reason, gw.clock.now())
    except (Conflict, Fenced):
        return False  # a person was faster, or the session has ended
    tell(gw, row)
    return True
