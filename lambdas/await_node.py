"""State "Wait for the node": keep the task token on the node's row; triage answers it when the node is ready.

Without a token (the slow fallback after the time-out) it only looks and answers WAIT, DONE or REFUSED.
"""

from typing import Any

from lambdas.boundary import Event, Fields, task
from planaria.core import refills
from planaria.core.errors import PermanentError, Waiting
from planaria.core.incident import Step
from planaria.core.plans import GONE_STATES
from planaria.core.refills import Refill
from planaria.core.table import Conflict, Row, below, exists, missing
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    node, since = event["node_id"], float(event["since"])
    incident = _enter(event, gw)
    token = event.get("token")
    if token:
        return _register(gw, node, since, token, incident)
    row = gw.ledger.node(node) or {}
    if row.get("lost"):
        raise PermanentError(f"{node} was lost before it was ready: {row['lost']}")
    if float(row.get("ready_at", -1.0)) > since:
        _note(gw, incident, row)
        return {"node_id": node}
    found = gw.fleet.describe([node])
    if not found or found[0].state in GONE_STATES:
        raise PermanentError(f"{node} ended before it was ready")
    raise Waiting(f"{node} is {found[0].state} and has not reported yet")


def _enter(event: Event, gw: Gateways) -> str:
    """The incident that waits, "" where a refill of the warm pool does."""
    if "refill" in event:
        refills.enter(gw.table, Refill.of(event["refill"]))
        return ""
    incident = event["incident"]
    gw.ledger.enter(incident["node_id"], int(incident["session"]))
    return str(incident["incident_id"])


def _note(gw: Gateways, incident: str, row: Row) -> None:
    if incident:
        gw.ledger.step(incident, Step.READY, float(row["ready_at"]))


def _register(gw: Gateways, node: str, since: float, token: str, incident: str) -> Fields:
    not_yet = (missing("ready_at") | below("ready_at", since + 1e-6)) & missing("lost")
    waiting: dict[str, Any] = {"token": token, "since": since, "incident_id": incident}
    try:
        gw.ledger.table.write(
            f"NODE#{node}", "NODE", sets={"waiting": waiting}, when=exists("node_id") & not_yet
        )
    except Conflict as conflict:
        row: Row = conflict.row or {}
        if row.get("lost"):
            lost = {"result": "LOST", "reason": row["lost"], "node_id": node}
            gw.workflows.answer(token, lost)
            return {"node_id": node}
        if "ready_at" not in row:
            raise PermanentError(f"{node} is not in the ledger") from None
        # The node was faster than this call.
        _note(gw, incident, row)
        gw.workflows.answer(token, {"result": "DONE", "reason": "", "node_id": node})
    return {"node_id": node}
