"""The resume point of a job that finds its checkpoints by itself, as one does that knows nothing of Planaria.

It is told the newest step that anybody reported, if any did. Whether its folder of checkpoints is there is
looked at where the job runs (planaria/slurm/in_job.py): a job with a registered one never begins anew unseen.
"""

from lambdas import resuming, survivors
from lambdas.boundary import Event, ask_scheduler
from planaria.core import checkpoints, job_facts
from planaria.core.errors import Fenced
from planaria.core.incident import Phase
from planaria.core.scheduling import JobQuery, JobState
from planaria.core.table import Row
from planaria.wiring import Gateways

OVER = (JobState.CANCELLED, JobState.TIMEOUT, JobState.COMPLETED)


def look(gw: Gateways, event: Event, job: Row) -> tuple[int, str]:
    """(step, why); -1: the job finds it. Raises Fenced as `end_if_over`."""
    end_if_over(gw, event, job)
    saved, folder = job.get("saved_step"), (job.get("lineage") or {}).get("folder")
    if saved is not None and int(saved) >= 0:
        return int(saved), "the newest step that was reported as saved"
    where = f"its checkpoints in {folder}" if folder else "what checkpoints it has"
    return checkpoints.NO_CHECKPOINT, f"the job finds {where} by itself"


def end_if_over(gw: Gateways, event: Event, job: Row) -> None:
    """Raises Fenced, with the resume closed and the nodes free for others, where the job has come to an end
    meanwhile that is not ours to undo: its user has cancelled it, it is complete, or its id is another's."""
    job_id, number = str(job["job_id"]), int(job["resume_number"])
    told = job_facts.read(ask_scheduler(gw, event, "jobs", JobQuery((job_id,))).get(job_id))
    others = bool(told.user and job.get("user") and told.user != job["user"])
    if told.state not in OVER and not others:
        return
    why = f"job {job_id} is {told.state}: nobody starts it again but its user"
    if others:
        why = f"job {job_id} is {told.user}'s by now: the scheduler has begun its ids anew"
    resuming.close_own_incident(gw, job, Phase.CANCELLED, why)
    gw.jobs.close_resume(job_id, number, Phase.CANCELLED, why, gw.clock.now())
    if not others:
        survivors.let_go(gw, job)
        gw.jobs.ended(gw.jobs.job(job_id) or job, told.state.value, told.end or gw.clock.now())
    raise Fenced(why)
