"""State "Wait for the node": keep the task token on the node's row; triage answers it when the node is ready.

Without a token (the slow fallback after the time-out) it only looks and answers WAIT, DONE or REFUSED.
"""

from typing import Any

from lambdas.boundary import Event, Fields, task
from planaria.core.errors import PermanentError, Waiting
from planaria.core.incident import Step
from planaria.core.plans import GONE_STATES
from planaria.core.table import Conflict, Row, below, exists, missing
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    incident, node, since = event["incident"], event["node_id"], float(event["since"])
    gw.ledger.enter(incident["node_id"], int(incident["session"]))
    token = event.get("token")
    if token:
        return _register(gw, node, since, token, incident["incident_id"])
    row = gw.ledger.node(node) or {}
    if row.get("lost"):
        raise PermanentError(f"{node} was lost before it was ready: {row['lost']}")
    if float(row.get("ready_at", -1.0)) > since:
        gw.ledger.step(incident["incident_id"], Step.READY, float(row["ready_at"]))
        return {"node_id": node}
    found = gw.fleet.describe([node])
    if not found or found[0].state in GONE_STATES:
        raise PermanentError(f"{node} ended before it was ready")
    raise Waiting(f"{node} is {found[0].state} and has not reported yet")


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
        gw.ledger.step(incident, Step.READY, float(row["ready_at"]))
        gw.workflows.answer(token, {"result": "DONE", "reason": "", "node_id": node})
    return {"node_id": node}
