"""State "Requeue": start the job's next attempt on its healed nodes, in rank order."""

import re

from lambdas import members, resuming
from lambdas.boundary import Event, Fields, ask_scheduler, task
from planaria.core import attempts
from planaria.core.errors import PermanentError, Waiting
from planaria.core.incident import Step
from planaria.core.scheduling import Requeue
from planaria.core.table import Conflict, Row, equals, missing
from planaria.wiring import Gateways

NO_ROOM = re.compile(r" runs | is held for ")
"""A refusal for the sake of another job."""


@task
def handler(event: Event, gw: Gateways) -> Fields:
    job_id, number = event["resume"]["job_id"], int(event["resume"]["number"])
    job = gw.jobs.enter(job_id, number)
    step = int(job["resume_step_chosen"])
    if job["attempt"] != number:
        job = members.not_being_healed(gw, job)
        # Written first: an exit of this attempt that arrives before our answer must find it.
        begun = {"attempt": number, "resume_step": step, "state": "RUNNING"}
        told, forgotten = attempts.started(job, number, step, gw.clock.now())
        job = gw.jobs.write_resume(job_id, number, {**begun, **told}, ("first_step", *forgotten))
    request = Requeue(job_id, tuple(job["names"]), number, step)
    word = str(ask_scheduler(gw, event, "requeue", request).get(job_id, "UNKNOWN"))
    if word != "RUNNING":
        raise _not_started(gw, job, number, word)
    _waits_no_more(gw, job, number)
    resuming.credit(gw, job, Step.JOB_RESUMED, gw.clock.now(), resume_step=step, job_attempt=number)
    return {"step": step}


def _waits_no_more(gw: Gateways, job: Row, number: int) -> None:
    """The scheduler has ended the hold by starting the job. A hold that came since is another incident's."""
    known = {name: job[name] for name in ("hold", "no_room") if name in job}
    if not known:
        return
    same = equals("hold", known["hold"]) if "hold" in known else missing("hold")
    try:
        gw.jobs.write_resume(str(job["job_id"]), number, {}, tuple(known), same)
    except Conflict:
        return


def _not_started(gw: Gateways, job: Row, number: int, word: str) -> PermanentError | Waiting:
    job_id, why = job["job_id"], word.removeprefix("REFUSED: ")
    if word != why:
        job = members.not_being_healed(gw, job)
    if NO_ROOM.search(why):
        # Its nodes work and others have them. That ends by itself, so sweep tries again.
        gw.jobs.write_resume(job_id, number, {"no_room": {**job.get("no_room", {}), "why": why}})
    if word == why or why.endswith("is down") or " is held for " in why:
        return Waiting(f"the scheduler does not start attempt {number} of job {job_id} yet: {why}")
    return PermanentError(f"the scheduler refused attempt {number} of job {job_id}: {why}")
