"""State "Admit": the node has passed its check, takes its name in the scheduler and may work again."""

from lambdas.boundary import Event, Fields, ask_scheduler, task
from planaria.core import pool
from planaria.core.errors import PermanentError, Waiting
from planaria.core.incident import Step
from planaria.core.scheduling import Join, Readmit
from planaria.core.table import Conflict, missing
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    incident, node = event["incident"], event["node_id"]
    gw.ledger.enter(incident["node_id"], int(incident["session"]))
    new = gw.ledger.node(node) or {}
    if node != incident["node_id"] and new.get("lost"):
        return {"result": "LOST", "reason": f"{node} was lost before it was admitted: {new['lost']}"}
    if node != incident["node_id"] and new.get("admitted_at"):
        # By an execution that died since: the name may be a successor's by now, and must not be taken back.
        gw.ledger.step(incident["incident_id"], Step.JOINED, float(new["admitted_at"]), node_id=node)
        return {"node_id": node}
    if pool.lost_to(new, incident["node_id"]):
        raise PermanentError(f"{node} is a spare that was given back; it is not admitted")
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
    # The scheduler may have taken its time: what ended meanwhile gives nothing back to work.
    gw.ledger.enter(incident["node_id"], int(incident["session"]))
    return _record(gw, incident, node)


def _record(gw: Gateways, incident: Event, node: str) -> Fields:
    old, session, now = incident["node_id"], int(incident["session"]), gw.clock.now()
    facts = {"health": "Schedulable", "job_id": incident["job_id"], "admitted_at": now}
    if node == old:
        gw.ledger.write(old, session, sets=dict(facts), removes=("isolation",))
    else:
        try:
            gw.ledger.note_node(node, dict(facts), when=missing("lost"))
        except Conflict as conflict:
            lost = (conflict.row or {}).get("lost")
            return {"result": "LOST", "reason": f"{node} was lost as it was admitted: {lost}"}
    gw.ledger.step(incident["incident_id"], Step.JOINED, now, node_id=node)
    return {"node_id": node}
