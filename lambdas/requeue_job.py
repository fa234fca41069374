"""State "Requeue": start the job's next attempt on its healed nodes, in rank order."""

import re

from lambdas import members, own_checkpoints, registering, resuming, steadiness
from lambdas.boundary import Event, Fields, ask_scheduler, task
from planaria.core import attempts, job_facts
from planaria.core.errors import PermanentError, Waiting
from planaria.core.incident import Step
from planaria.core.scheduling import Place, Requeue
from planaria.core.table import Conflict, Row, equals, missing
from planaria.wiring import Gateways

NO_ROOM = re.compile(r" runs | is held for ")
"""A refusal for the sake of another job."""

ELSEWHERE = re.compile(r" runs | is isolated: ")
"""A node is not to be had for long: another job has it, or somebody else has taken it out of work."""


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
        job = gw.jobs.write_resume(job_id, number, {**begun, **told}, ("first_step", "ended_at", *forgotten))
    request = Requeue(job_id, tuple(job["names"]), number, step, str(job.get("kept", "")))
    word = str(ask_scheduler(gw, event, "requeue", request).get(job_id, "UNKNOWN"))
    if word != "RUNNING":
        raise _not_started(gw, event, job, number, word)
    if not job_facts.reports_steps(job):
        job = steadiness.await_steady(gw, event, job)
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


def _elsewhere(gw: Gateways, event: Event, job: Row) -> None:
    """Another job has its nodes, which was there first or came while nobody knew of the fault; or one of them
    was drained by somebody else. Raises Waiting once there are others that it may have: it goes on there as a
    job does that waits in a queue."""
    job_id, count = str(job["job_id"]), len(job["names"])
    names = ask_scheduler(gw, event, "place", Place(job_id, count)).get(job_id, [])
    if len(names) != count or names == job["names"]:
        return
    job = gw.jobs.placed(job, names, registering.instances(gw, names), {})
    members.not_being_healed(gw, job)
    raise Waiting(f"job {job_id} goes on on {', '.join(names[:4])}: it cannot have those that it had")


def _not_started(gw: Gateways, event: Event, job: Row, number: int, word: str) -> PermanentError | Waiting:
    job_id, why = job["job_id"], word.removeprefix("REFUSED: ")
    if word != why:
        job = members.not_being_healed(gw, job)
        if job.get("origin"):
            own_checkpoints.end_if_over(gw, event, job)
    lost = bool(job.get("origin")) and ELSEWHERE.search(why) is not None
    if lost:
        _elsewhere(gw, event, job)
    if lost or NO_ROOM.search(why):
        # Its nodes work and others have them. That ends by itself, so sweep tries again.
        gw.jobs.write_resume(job_id, number, {"no_room": {**job.get("no_room", {}), "why": why}})
    if word == why or why.endswith("is down") or " is held for " in why:
        return Waiting(f"the scheduler does not start attempt {number} of job {job_id} yet: {why}")
    return PermanentError(f"the scheduler refused attempt {number} of job {job_id}: {why}")
