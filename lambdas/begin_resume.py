"""State "Begin": take over the resume claim, or claim for a person, within the job's restart budget."""

from collections.abc import Mapping

from lambdas import resuming
from lambdas.boundary import Event, Fields, task
from planaria.core import console
from planaria.core.errors import Fenced, InvalidInput, PermanentError
from planaria.core.incident import ACTIVE, Phase
from planaria.core.table import Conflict, Row
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    document, execution = event["document"], event["execution"]
    if isinstance(document, Mapping) and "number" in document:
        job = gw.jobs.enter(document["job_id"], int(document["number"]))
    else:
        job = _claim(gw, document, execution)
    number = int(job["resume_number"])
    if job.get("pending"):
        gw.jobs.close_resume(job["job_id"], number, Phase.CANCELLED, "nodes are being healed", gw.clock.now())
        resuming.close_own_incident(gw, job, Phase.CANCELLED, "joined: a node of the job is being healed")
        raise Fenced(f"job {job['job_id']} waits for {len(job['pending'])} nodes; the last one resumes it")
    sets = {"resume_phase": Phase.RUNNING.value, "resume_arn": execution}
    job = gw.jobs.write_resume(job["job_id"], number, dict(sets))
    return {"resume": {"job_id": job["job_id"], "number": number}, "reason": _over_budget(gw, job)}


def _claim(gw: Gateways, document: object, execution: str) -> Row:
    order = console.job_order(document)
    job = gw.jobs.job(order.job_id)
    if job is None:
        raise InvalidInput(f"job_id {order.job_id!r:.60} is not known; `planaria jobs` lists the jobs")
    if job.get("resume_claim") == execution:
        return job
    if job.get("resume_phase") in ACTIVE:
        raise PermanentError(f"resume {job['resume_number']} of job {order.job_id} is under way")
    try:
        job = gw.jobs.claim_resume(job, execution, order.reason or "asked by a person", gw.clock.now(), False)
    except Conflict as conflict:
        row = conflict.row or {}
        waits = [*row.get("pending", {}), *row.get("unresolved", {})]
        raise PermanentError(
            f"job {order.job_id} cannot be resumed now: "
            + (f"it waits for {', '.join(sorted(waits))}" if waits else "its row changed; try again")
        ) from None
    resuming.open_own_incident(gw, job, gw.clock.now(), order.reason or "asked by a person")
    return gw.jobs.job(order.job_id) or job


def _over_budget(gw: Gateways, job: Row) -> str:
    """Why this resume is one too many, or "". A job that fails again and again is not the nodes' fault."""
    policy, now = gw.cluster.policy, gw.clock.now()
    recent = [at for at in job.get("resumes", {}).values() if float(at) > now - policy.resume_window_seconds]
    if len(recent) <= policy.max_resumes:
        return ""
    return (
        f"job {job['job_id']} was resumed {len(recent) - 1} times within "
        f"{policy.resume_window_seconds:.0f} s "
        f"(policy.max_resumes is {policy.max_resumes}); a person must look at it"
    )
