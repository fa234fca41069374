"""State "Save a checkpoint": ask the node's job for an emergency checkpoint, at once.

The two minutes of a spot notice run already; the answer is read later, beside the launch of the
replacement. Any other incident whose node still works passes here too.
"""

from lambdas import saving, syncing
from lambdas.boundary import Event, Fields, logger, task
from planaria.core.errors import PlanariaError
from planaria.core.table import Conflict, Row
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    incident = event["incident"]
    row = gw.ledger.enter(incident["node_id"], int(incident["session"]))
    row = saving.ask(gw, incident, row, gw.clock.now() + gw.cluster.policy.drain_deadline_seconds)
    _sync(gw, incident, row)
    return {"ticket": row["checkpoint"]["ticket"], "deadline": row["checkpoint"]["deadline"]}


def _sync(gw: Gateways, incident: Event, row: Row) -> None:
    """Where AWS takes the node the newest step goes to S3 before any older one; the emergency checkpoint is
    told of by the node's agent when it is there. The saving of it does not wait for this."""
    gone_at = (row.get("fault") or {}).get("deadline")
    if not gone_at or not incident.get("job_id"):
        return
    try:
        job = gw.jobs.job(str(incident["job_id"]))
        syncing.want(
            gw, job, "a node is about to be taken", f"spot/{incident['incident_id']}", deadline=float(gone_at)
        )
    except (PlanariaError, Conflict) as error:
        logger.warning("no sync was begun for a node that is about to be taken", extra={"reason": str(error)})
