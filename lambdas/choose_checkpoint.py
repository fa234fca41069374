"""State "Choose the checkpoint": the newest complete step that a node with the file system can see."""

from lambdas.boundary import Event, Fields, ask_command, task
from planaria.core import checkpoints
from planaria.core.errors import PermanentError, Waiting
from planaria.wiring import Gateways

DOCUMENT = "planaria-list-checkpoints"


@task
def handler(event: Event, gw: Gateways) -> Fields:
    job_id, number = event["resume"]["job_id"], int(event["resume"]["number"])
    job = gw.jobs.enter(job_id, number)
    if "resume_step_chosen" in job:
        return {"step": job["resume_step_chosen"], "why": job.get("resume_step_reason", "")}
    node = job["nodes"]["0"]
    entry = ask_command(gw, event, DOCUMENT, [node], {"job_id": job_id}).get(node)
    if entry is None:
        raise Waiting(f"{node} did not answer which checkpoints there are")
    if entry.get("status") != "SUCCESS":
        raise PermanentError(f"the checkpoints of job {job_id} cannot be listed: {entry.get('output')}")
    step, why = checkpoints.choose(entry["output"]["steps"])
    if step == checkpoints.NO_CHECKPOINT and int(job.get("resume_step", -1)) >= 0:
        raise PermanentError(
            f"job {job_id} resumed from step {job['resume_step']} before, and now no checkpoint is there; "
            "it is not started from step 0"
        )
    gw.jobs.write_resume(job_id, number, {"resume_step_chosen": step, "resume_step_reason": why})
    for name in sorted(job.get("credits", {})):
        gw.ledger.note_incident(name, {"resume_step": step, "resume_step_reason": why})
    return {"step": step, "why": why}
