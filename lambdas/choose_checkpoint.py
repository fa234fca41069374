"""State "Choose the checkpoint": the newest complete step that a node with the file system can see."""

from lambdas.boundary import Event, Fields, ask_command, task
from planaria.core import checkpoints
from planaria.core.errors import PermanentError, Waiting
from planaria.core.plans import is_gone
from planaria.core.table import Row
from planaria.wiring import Gateways

DOCUMENT = "planaria-list-checkpoints"


@task
def handler(event: Event, gw: Gateways) -> Fields:
    job_id, number = event["resume"]["job_id"], int(event["resume"]["number"])
    job = gw.jobs.enter(job_id, number)
    if "resume_step_chosen" in job:
        return {"step": job["resume_step_chosen"], "why": job.get("resume_step_reason", "")}
    node = _witness(gw, job)
    entry = ask_command(gw, event, DOCUMENT, [node], {"job_id": job_id}).get(node) or {}
    if entry.get("status") != "SUCCESS":
        raise Waiting(f"{node} cannot list the checkpoints of job {job_id}: {entry.get('output')}")
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


def _witness(gw: Gateways, job: Row) -> str:
    """A node of the job that is not gone: all of them see the same file system."""
    nodes = [str(job["nodes"][rank]) for rank in sorted(job["nodes"], key=int)]
    for node in nodes:
        if not is_gone(gw.ledger.node(node) or {}):
            return node
    raise Waiting(f"no node of job {job['job_id']} is there to list its checkpoints")
