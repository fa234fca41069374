"""A replacement that is lost before it was admitted belongs to the incident that launched it, and to none
once that is over."""

import dataclasses

from lambdas import scaling
from planaria.core.incident import ACTIVE
from planaria.core.judge import Judgement, Outcome
from planaria.core.plans import is_gone
from planaria.core.table import Condition, Conflict, Row, equals, missing
from planaria.wiring import Gateways

AWAITED = "the incident that launched this node launches another"
UNUSED = "it was launched for an incident that is over and never took a place, so sweep gives it back"


def judged(gw: Gateways, row: Row, judgement: Judgement) -> Judgement | None:
    """What becomes of a fault of an unadmitted replacement, None where the fault is the node's own.

    row: the node's. Safe to repeat. Raises Conflict when the node was admitted or became a spare meanwhile.
    """
    if not row.get("replaces") or row.get("admitted_at"):
        return None
    parent = gw.ledger.node(str(row["replaces"])) or {}
    if _awaits(parent, row):
        if not _lost(gw, row, judgement.reason):
            return None
        outcome, what = Outcome.JOINED, AWAITED
    elif _unused(parent, row):
        gw.ledger.note_node(
            row["node_id"], {"lost": row.get("lost") or judgement.reason}, when=_unplaced(row)
        )
        outcome, what = Outcome.OBSERVED, UNUSED
    else:
        return None
    return dataclasses.replace(judgement, outcome=outcome, reason=f"{judgement.reason}; {what}")


def give_back_lost(gw: Gateways, row: Row) -> bool:
    """End a lost replacement for which no incident is left that would; for sweep, which repeats it until the
    instance is gone. True when there was one."""
    placed = row.get("admitted_at") or row.get("spare") or is_gone(row)
    if not row.get("lost") or not row.get("replaces") or placed:
        return False
    parent = gw.ledger.node(str(row["replaces"])) or {}
    if _awaits(parent, row) or not _unused(parent, row):
        return False
    gw.ledger.note_node(row["node_id"], {"acts": {"terminate": gw.clock.now()}}, when=_unplaced(row))
    scaling.give_back(gw, parent, row["node_id"], lost=False)
    return True


def _awaits(parent: Row, row: Row) -> bool:
    """The incident of `parent` is to admit this node, has lost it, or has not recorded what it launched."""
    if parent.get("phase") not in ACTIVE:
        return False
    launch = parent.get("launch") or {}
    unrecorded = bool(launch.get("token")) and not launch.get("instance_id")
    return bool(row.get("lost")) or unrecorded or parent.get("replacement_id") == row["node_id"]


def _lost(gw: Gateways, row: Row, reason: str) -> bool:
    """Tell the waiting incident; False when the node was admitted meanwhile, so that its fault is its own."""
    if not row.get("lost"):
        try:
            row = gw.ledger.note_node(row["node_id"], {"lost": reason}, when=missing("admitted_at"))
        except Conflict:
            return False
    if row.get("waiting"):
        # Also when it was lost before: the first teller may have died before this answer.
        answer = {"result": "LOST", "reason": row["lost"], "node_id": row["node_id"]}
        gw.workflows.answer(row["waiting"]["token"], answer)
    return True


def _unused(parent: Row, row: Row) -> bool:
    """It bears the name of the node that it was launched for, by which an incident of its own would isolate
    that node's instance. One that has the place already, or a name of its own, is a node as any other."""
    name = row.get("name")
    return bool(name) and parent.get("name") == name and parent.get("replaced_by") != row["node_id"]


def _unplaced(row: Row) -> Condition:
    return missing("admitted_at") & missing("spare") & equals("replaces", row["replaces"])
