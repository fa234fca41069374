"""State "Tell the job": this node is no longer pending; the last one told resumes the job."""

from lambdas import resuming
from lambdas.boundary import Event, Fields, task
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    incident = event["incident"]
    gw.ledger.enter(incident["node_id"], int(incident["session"]))
    if not incident["job_id"]:
        return {"resumed": False}
    return {"resumed": resuming.node_settled(gw, incident, event.get("replacement") or "", "")}
