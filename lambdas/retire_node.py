"""State "Retire": terminate an instance that this incident has isolated and emptied, or its own
replacement that is no longer wanted."""

from lambdas import quarantining, scaling
from lambdas.boundary import Event, Fields, task
from lambdas.ending import give_back
from planaria.core.errors import PermanentError
from planaria.core.incident import Step
from planaria.core.plans import emptied, isolated_by
from planaria.core.table import Conflict, equals, missing
from planaria.wiring import Gateways

REASON_LENGTH = 500


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
        if event.get("reason"):
            _lost(gw, target, str(event["reason"]))
        give_back(gw, row, lost=bool(event.get("reason")))
        if not event.get("reason"):
            _given_back(gw, node, session, target)
        return {}
    if not isolated_by(row, incident["mark"]):
        raise PermanentError(f"{node} is not isolated by this incident; it is not terminated")
    if not emptied(row):
        raise PermanentError(f"{node} is not known to be empty; it is not terminated")
    gw.ledger.act(node, session, row, "terminate", now)
    quarantining.retired(gw, row)
    scaling.terminate(gw, incident, row)
    gw.ledger.step(incident["incident_id"], Step.RETIRED, now)
    return {}


def _lost(gw: Gateways, replacement: str, reason: str) -> None:
    """The next look at the launch takes another one."""
    try:
        gw.ledger.note_node(replacement, {"lost": reason[:REASON_LENGTH]}, when=missing("lost"))
    except Conflict:
        return  # it is known as lost already


def _given_back(gw: Gateways, node: str, session: int, replacement: str) -> None:
    """Sweep need not look after this launch when the session has ended."""
    this = equals(("launch", "instance_id"), replacement)
    try:
        gw.ledger.write(node, session, sets={("launch", "given_back"): True}, when=this)
    except Conflict:
        return  # the row names another one by now
