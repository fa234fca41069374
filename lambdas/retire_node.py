"""State "Retire": terminate an instance that this incident has isolated and emptied, or its own
replacement that is no longer wanted."""

from lambdas.boundary import Event, Fields, task
from lambdas.ending import give_back
from planaria.core.errors import PermanentError
from planaria.core.incident import Step
from planaria.core.plans import isolated_by
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    incident = event["incident"]
    node, session = incident["node_id"], int(incident["session"])
    row = gw.ledger.enter(node, session)
    target = event.get("node_id") or node
    now = gw.clock.now()
    if target != node:
        if target != row.get("replacement_id") or (gw.ledger.node(target) or {}).get("admitted_at"):
            raise PermanentError(f"{target} is not this incident's unused replacement; it is not terminated")
        give_back(gw, row)
        return {}
    if not isolated_by(row, incident["mark"]):
        raise PermanentError(f"{node} is not isolated by this incident; it is not terminated")
    gw.ledger.act(node, session, row, "terminate", now)
    gw.fleet.terminate(node)
    gw.ledger.step(incident["incident_id"], Step.RETIRED, now)
    return {}
