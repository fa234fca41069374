"""State "Bring" of restore_checkpoint: nodes move the step's bytes from S3 to the file system."""

from lambdas import carrying, restoring, tiers
from lambdas.boundary import Event, Fields, task
from planaria.core import restores
from planaria.core.errors import Fenced
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    job_id, number = restoring.of(event)
    row = restores.enter(gw.table, job_id, number)
    if not row.get("work"):
        if "place" in row:
            return {"state": restoring.THERE}
        raise Fenced(f"this copy of restore {number} of job {job_id} is passed over already")
    job = gw.jobs.job(job_id) or {"job_id": job_id}
    row = carrying.bring(gw, row, tiers.carriers(gw, job))
    return {"state": "MOVED", "step": row["work"]["step"]}
