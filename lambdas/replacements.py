"""A replacement that is lost before it was admitted belongs to the incident that launched it."""

from planaria.core.incident import ACTIVE
from planaria.core.table import Row
from planaria.wiring import Gateways


def lost_before_ready(gw: Gateways, row: Row, reason: str) -> bool:
    """Tell the waiting incident; False when this node is none's unadmitted replacement.

    Safe to repeat: the mark stays, and a token is answered once.
    """
    if not row.get("lost"):
        parent = gw.ledger.node(str(row["replaces"])) if row.get("replaces") else None
        if parent is None or row.get("admitted_at") or parent.get("phase") not in ACTIVE:
            return False
        if parent.get("replacement_id") != row["node_id"]:
            return False
        row = gw.ledger.note_node(row["node_id"], {"lost": reason})
    if row.get("waiting"):
        # Also when it was lost before: the first teller may have died before this answer.
        answer = {"result": "LOST", "reason": row["lost"], "node_id": row["node_id"]}
        gw.workflows.answer(row["waiting"]["token"], answer)
    return True
