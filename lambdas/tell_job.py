"""State "Tell the job": this node is no longer pending; the last one told resumes the job."""

from lambdas import resuming
from lambdas.boundary import Event, Fields, task
from lambdas.ending import jobs_of
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    incident = event["incident"]
    row = gw.ledger.enter(incident["node_id"], int(incident["session"]))
    replacement = event.get("replacement") or ""
    repaired = incident.get("reset") or incident.get("reboot")
    # Neither replaced nor repaired: nobody has its place, and a resume would start on a node that is gone.
    unresolved = "" if replacement or repaired else resuming.OUT_OF_WORK
    resumed = [
        job
        for job in jobs_of(incident, row)
        if resuming.node_settled(gw, {**incident, "job_id": job}, replacement, unresolved)
    ]
    return {"resumed": resumed}
