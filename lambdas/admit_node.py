"""State "Admit": the node passed its check, takes its name in the scheduler and may work again."""

from lambdas.boundary import Event, Fields, ask_scheduler, task
from planaria.core.errors import PermanentError, Waiting
from planaria.core.incident import Step
from planaria.core.scheduling import Join, Readmit
from planaria.core.table import Row
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    incident, node = event["incident"], event["node_id"]
    gw.ledger.enter(incident["node_id"], int(incident["session"]))
    new = gw.ledger.node(node) or {}
    check = new.get("check") or {}
    if not check.get("passed"):
        raise PermanentError(f"{node} did not pass its check: {check.get('reason') or 'no result reported'}")
    name, mark = incident["name"], incident["mark"]
    if node != incident["node_id"]:
        # Written before the name changes hands: from here on the name is not the old instance's, and nobody
        # may isolate by it on the old one's account.
        gw.ledger.write(incident["node_id"], int(incident["session"]), sets={"replaced_by": node})
        join = Join(name, node, str(new.get("address", "")), mark)
        word = str(ask_scheduler(gw, event, "join", join).get(name, "UNKNOWN"))
        if word != "JOINED":
            raise Waiting(f"{node} cannot take the name {name} yet: {word}")
    word = str(ask_scheduler(gw, event, "readmit", Readmit((name,), mark)).get(name, "UNKNOWN"))
    if word.startswith("FOREIGN"):
        raise PermanentError(
            f"{name} was isolated by someone else meanwhile ({word.partition(': ')[2]}); left alone"
        )
    if word != "READMITTED":
        raise Waiting(f"{name} is not readmitted yet: {word}")
    _record(gw, incident, node)
    return {"node_id": node}


def _record(gw: Gateways, incident: Event, node: str) -> Row:
    old, session, now = incident["node_id"], int(incident["session"]), gw.clock.now()
    facts = {"health": "Schedulable", "job_id": incident["job_id"], "admitted_at": now}
    if node == old:
        row = gw.ledger.write(old, session, sets=dict(facts), removes=("isolation",))
    else:
        row = gw.ledger.note_node(node, dict(facts))
    gw.ledger.step(incident["incident_id"], Step.JOINED, now, node_id=node)
    return row
