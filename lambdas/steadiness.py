"""What proves the resume of a job whose steps nobody reports: it has run for a little while, on its nodes.

A job that the scheduler starts over and over, or that fails as soon as it starts, is not resumed.
"""

from lambdas import own_checkpoints, registering
from lambdas.boundary import Event, ask_scheduler
from planaria.core import job_facts
from planaria.core.errors import PermanentError, Waiting
from planaria.core.scheduling import JobQuery, JobState
from planaria.core.table import Conflict, Row
from planaria.wiring import Gateways

STEADY_SECONDS = 10.0


def await_steady(gw: Gateways, event: Event, job: Row) -> Row:
    """The job's row with the nodes on which it runs now, once it has for long enough. Raises Waiting before
    that, PermanentError when this attempt has failed."""
    job_id, number = str(job["job_id"]), int(job["resume_number"])
    answer = ask_scheduler(gw, event, "jobs", JobQuery((job_id,)))
    told = job_facts.read(answer.get(job_id))
    if told.state is JobState.RUNNING and told.attempt >= number:
        ran = gw.clock.now() - told.start
        if ran < STEADY_SECONDS:
            raise Waiting(f"attempt {number} of job {job_id} runs for {max(0.0, ran):.0f} s")
        return registering.placed(gw, job, told)
    if told.attempt < number or told.state in (JobState.PENDING, JobState.UNKNOWN, JobState.RUNNING):
        raise Waiting(f"the scheduler does not tell yet that attempt {number} of job {job_id} runs")
    if told.state is JobState.COMPLETED:
        return job  # a short one
    own_checkpoints.end_if_over(gw, event, job)
    if told.failed:
        try:
            job = gw.jobs.failed(job, number, told.how(), told.end or gw.clock.now())
        except Conflict:
            raise Waiting(f"the row of job {job_id} has changed") from None
    raise PermanentError(
        f"attempt {number} of job {job_id} was started and is {told.state} after "
        f"{max(0.0, told.end - told.start):.0f} s ({told.how() if told.failed else told.reason})"
    )
