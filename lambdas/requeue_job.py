"""State "Requeue": start the job's next attempt on its healed nodes, in rank order."""

from lambdas import resuming
from lambdas.boundary import Event, Fields, ask_scheduler, task
from planaria.core.errors import PermanentError, Waiting
from planaria.core.incident import Step
from planaria.core.scheduling import Requeue
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    job_id, number = event["resume"]["job_id"], int(event["resume"]["number"])
    job = gw.jobs.enter(job_id, number)
    step = int(job["resume_step_chosen"])
    if job["attempt"] != number:
        # Written first: an exit of this attempt that arrives before our answer must find it.
        job = gw.jobs.write_resume(
            job_id, number, {"attempt": number, "resume_step": step, "state": "RUNNING"}, ("first_step",)
        )
    request = Requeue(job_id, tuple(job["names"]), number, step)
    word = str(ask_scheduler(gw, event, "requeue", request).get(job_id, "UNKNOWN"))
    if word.startswith("REFUSED"):
        job = gw.jobs.enter(job_id, number)
        if job.get("pending"):
            raise resuming.stand_down(gw, job)
        if word.endswith("is down"):
            raise Waiting(f"attempt {number} of job {job_id} waits: {word.partition(': ')[2]}")
        raise PermanentError(
            f"the scheduler refused attempt {number} of job {job_id}: {word.partition(': ')[2]}"
        )
    if word != "RUNNING":
        raise Waiting(f"attempt {number} of job {job_id} is {word}")
    resuming.credit(gw, job, Step.JOB_RESUMED, gw.clock.now(), resume_step=step, job_attempt=number)
    return {"step": step}
