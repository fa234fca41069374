"""State "Close" and state "Escalate" of a resume."""

from lambdas import resuming
from lambdas.boundary import Event, Fields, task
from lambdas.ending import reason_of
from planaria.core.errors import Fenced
from planaria.core.incident import ACTIVE, Phase, Step
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    job_id, number = event["resume"]["job_id"], int(event["resume"]["number"])
    outcome, reason = Phase(event["outcome"]), reason_of(event)
    job = gw.jobs.job(job_id) or {}
    if job.get("resume_number") != number or job.get("resume_phase") not in (*ACTIVE, outcome.value):
        raise Fenced(f"resume {number} of job {job_id} is over")
    first = job.get("first_step") or {}
    if first.get("attempt") == number:
        resuming.credit(gw, job, Step.FIRST_STEP, float(first["at"]), train_step=first["step"])
    resuming.close_own_incident(gw, job, outcome, reason)
    closed = gw.jobs.close_resume(job_id, number, outcome, reason, gw.clock.now())
    job = gw.jobs.job(job_id) or {}
    if job.get("resume_number") != number or job.get("resume_phase") != outcome:
        raise Fenced(f"resume {number} of job {job_id} is over")
    if outcome is Phase.ESCALATED and job.get("mailed") != number:
        _mail(gw, job_id, number, reason)
        gw.jobs.write(job_id, {"mailed": number})
    elif not closed:
        raise Fenced(f"resume {number} of job {job_id} is over")
    return {"outcome": outcome.value}


def _mail(gw: Gateways, job_id: str, number: int, reason: str) -> None:
    gw.notices.publish(
        f"Planaria {gw.cluster.name}: job {job_id} needs you",
        f"Resume {number} of job {job_id} ended ESCALATED.\nWhy: {reason}\n"
        f"Look: planaria jobs\nThen start resume_job in the console with "
        f'{{"job_id": "{job_id}", "reason": "..."}}\nRunbook: docs/runbooks/escalated.md\n',
    )
