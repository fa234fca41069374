"""Ending a resume: its own last state does it, and sweep for one whose executions die."""

from typing import Any

from lambdas import resuming, survivors
from planaria.core.errors import Fenced
from planaria.core.incident import ACTIVE, Phase, Step
from planaria.core.runbooks import path_of
from planaria.core.table import Row, equals
from planaria.wiring import Gateways


def close(gw: Gateways, job_id: str, number: int, outcome: Phase, reason: str) -> None:
    """Raises Fenced when the resume had ended. Safe to repeat: an escalation is mailed once, also when the
    first try died in between."""
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
        survivors.let_go(gw, job)
        sets: dict[Any, Any] = {"mailed": number}
        if not (job.get("no_room") or {}).get("told"):
            _mail(gw, job, reason)
        if "no_room" in job:
            sets["no_room", "told"] = True
        gw.jobs.write(job_id, sets, when=equals("resume_number", number))
    elif not closed:
        raise Fenced(f"resume {number} of job {job_id} is over")


def _mail(gw: Gateways, job: Row, reason: str) -> None:
    job_id, number = job["job_id"], job["resume_number"]
    then = "It is tried again every ten minutes" if "no_room" in job else f"Then: planaria resume {job_id}"
    gw.notices.publish(
        f"Planaria {gw.cluster.name}: job {job_id} needs you",
        f"Resume {number} of job {job_id} ended ESCALATED.\nWhy: {reason}\n"
        "The job does not run, and its nodes are not kept free for it any more.\n"
        f"What to do: {path_of(reason)}\nLook: planaria jobs\n{then}\n",
    )
