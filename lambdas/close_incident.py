"""State "Close" and state "Escalate": end the session with its outcome."""

from lambdas import resuming, scaling
from lambdas.boundary import Event, Fields, task
from lambdas.ending import escalate, jobs_of, reason_of
from planaria.core import wanted
from planaria.core.errors import Fenced
from planaria.core.incident import Phase
from planaria.core.table import Row
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
        if outcome is Phase.RETIRED:
            _retire(gw, incident, row)
        closed = gw.ledger.close(node, session, outcome, gw.clock.now(), reason)
    if not closed:
        raise Fenced(f"session {session} of {node} is over")
    return {"outcome": outcome.value}


def _retire(gw: Gateways, incident: Event, row: Row) -> None:
    """A person or its Auto Scaling group took the node out of work: its jobs wait for another one; one that a
    person removed is wanted no more."""
    why = resuming.OUT_OF_WORK if incident["verb"] else scaling.NONE_WANTED
    for job in jobs_of(incident, row):
        resuming.node_settled(gw, {**incident, "job_id": job}, "", why)
    if incident["verb"] == "remove" and row.get("group"):
        declared = gw.cluster.group(row["group"]).size
        wanted.lower(gw.table, row["group"], declared, incident["incident_id"], gw.clock.now())
