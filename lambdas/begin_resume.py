"""State "Begin": take over the resume claim, or claim for a person, within the job's restart budget."""

from collections.abc import Mapping

from lambdas import resuming
from lambdas.boundary import Event, Fields, task
from planaria.core import console
from planaria.core.errors import Fenced, InvalidInput, PermanentError
from planaria.core.incident import ACTIVE, Phase, incident_id
from planaria.core.table import Conflict, Path, Row, equals, missing
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    document, execution = event["document"], event["execution"]
    if isinstance(document, Mapping) and "number" in document:
        job = gw.jobs.enter(*console.resume_document(document))
    else:
        job = _claim(gw, document, execution)
    resuming.open_own_incident(gw, job)
    _wait_for_claimed(gw, job)
    job = gw.jobs.enter(job["job_id"], int(job["resume_number"]))
    number = int(job["resume_number"])
    if job.get("pending"):
        raise resuming.stand_down(gw, job)
    sets = {"resume_phase": Phase.RUNNING.value, "resume_arn": execution}
    mine = missing("resume_arn") | equals("resume_arn", execution)
    try:
        job = gw.jobs.write_resume(job["job_id"], number, dict(sets), when=mine)
    except Conflict:
        raise Fenced(f"another execution runs resume {number} of job {job['job_id']}") from None
    if job["resume_name"] in job.get("credits", {}):
        gw.ledger.note_incident(job["resume_name"], {"execution_arn": execution})
    return {"resume": {"job_id": job["job_id"], "number": number}, "reason": _over_budget(gw, job)}


def _wait_for_claimed(gw: Gateways, job: Row) -> None:
    """A node whose claim triage did not live to tell the job of is waited for all the same."""
    for row in gw.ledger.nodes_by_id(sorted(job.get("nodes", {}).values())):
        if row.get("phase") in ACTIVE and row.get("job_id") == job["job_id"]:
            gw.jobs.wait_for(job["job_id"], row["node_id"], incident_id(row["node_id"], row["session"]))


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
        job = gw.jobs.claim_resume(
            job, execution, order.reason or "asked by a person", gw.clock.now(), False, gw.clock.now()
        )
    except Conflict as conflict:
        row = conflict.row or {}
        waits = [*row.get("pending", {}), *row.get("unresolved", {})]
        raise PermanentError(
            f"job {order.job_id} cannot be resumed now: "
            + (f"it waits for {', '.join(sorted(waits))}" if waits else "its row changed; try again")
        ) from None
    return job


def _over_budget(gw: Gateways, job: Row) -> str:
    """Why this resume is one too many, or "". A job that fails again and again is not the nodes' fault."""
    policy, now = gw.cluster.policy, gw.clock.now()
    horizon = now - policy.resume_window_seconds
    resumes = job.get("resumes", {})
    recent = [at for at in resumes.values() if float(at) > horizon]
    old: tuple[Path, ...] = tuple(("resumes", name) for name, at in resumes.items() if float(at) <= horizon)
    if old:
        gw.jobs.write(job["job_id"], {"resumes_pruned_at": now}, old)
    if len(recent) <= policy.max_resumes:
        return ""
    return (
        f"job {job['job_id']} was resumed {len(recent) - 1} times within "
        f"{policy.resume_window_seconds:.0f} s "
        f"(policy.max_resumes is {policy.max_resumes}); a person must look at it"
    )
