"""State "Close" and state "Escalate": end the session with its outcome."""

from lambdas import resuming
from lambdas.boundary import Event, Fields, task
from lambdas.ending import escalate, reason_of
from planaria.core.errors import Fenced
from planaria.core.incident import Phase
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    incident, outcome, reason = event["incident"], Phase(event["outcome"]), reason_of(event)
    node, session = incident["node_id"], int(incident["session"])
    row = gw.ledger.node(node) or {}
    if row.get("session") != session:
        raise Fenced(f"session {session} of {node} is over")
    if outcome is Phase.ESCALATED:
        closed = escalate(gw, incident, row, reason)
    else:
        if outcome is Phase.RETIRED and incident["job_id"]:
            resuming.node_settled(gw, incident, "", "its node was taken out of work by a person")
        closed = gw.ledger.close(node, session, outcome, gw.clock.now(), reason)
    if not closed:
        raise Fenced(f"session {session} of {node} is over")
    return {"outcome": outcome.value}
