"""State "Begin": take over the resume claim, or claim for a person, unless the job fails by itself."""

from collections.abc import Mapping

from lambdas import members, resuming
from lambdas.boundary import Event, Fields, task
from planaria.core import attempts, console, job_facts
from planaria.core.errors import Fenced, InvalidInput, PermanentError
from planaria.core.incident import ACTIVE, Phase
from planaria.core.plans import is_gone
from planaria.core.table import Conflict, Row, equals, missing
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    document, execution = event["document"], event["execution"]
    if isinstance(document, Mapping) and "number" in document:
        job = gw.jobs.enter(*console.resume_document(document))
    else:
        job = _claim(gw, document, execution)
    resuming.open_own_incident(gw, job)
    job = members.not_being_healed(gw, job)
    number = int(job["resume_number"])
    sets = {"resume_phase": Phase.RUNNING.value, "resume_arn": execution}
    mine = missing("resume_arn") | equals("resume_arn", execution)
    try:
        job = gw.jobs.write_resume(job["job_id"], number, dict(sets), when=mine)
    except Conflict:
        raise Fenced(f"another execution runs resume {number} of job {job['job_id']}") from None
    if job["resume_name"] in job.get("credits", {}):
        gw.ledger.note_incident(job["resume_name"], {"execution_arn": execution})
    reason = attempts.by_itself(job, gw.cluster.policy, gw.clock.now())
    if reason:
        gw.jobs.write_resume(job["job_id"], number, {"given_up": reason})
    return {"resume": {"job_id": job["job_id"], "number": number}, "reason": reason}


def _claim(gw: Gateways, document: object, execution: str) -> Row:
    """A person's order: whatever the job did before does not count against it any more."""
    order = console.job_order(document)
    job = gw.jobs.job(order.job_id)
    if job is None:
        raise InvalidInput(f"job_id {order.job_id!r:.60} is not known; `planaria jobs` lists the jobs")
    if job.get("resume_claim") == execution:
        return job
    _check_allowed(gw, job)
    now, reason = gw.clock.now(), order.reason or "asked by a person"
    try:
        return gw.jobs.claim_resume(job, execution, reason, now, supersede=False, failed_at=now, ordered=True)
    except Conflict:
        raise PermanentError(
            f"job {order.job_id} cannot be resumed now: its row has changed meanwhile; try again"
        ) from None


def _check_allowed(gw: Gateways, job: Row) -> None:
    """A node that was given up on and is still there may have been mended by hand: the scheduler decides."""
    job_id = str(job["job_id"])
    if job_facts.over(job):
        raise PermanentError(
            f"job {job_id} has come to its own end ({job['state']}); there is nothing to resume"
        )
    if job.get("resume_phase") in ACTIVE:
        raise PermanentError(f"resume {job['resume_number']} of job {job_id} is under way")
    if job.get("pending"):
        waits = ", ".join(f"{node} (incident {name})" for node, name in sorted(job["pending"].items()))
        raise PermanentError(
            f"job {job_id} cannot be resumed now: it waits for {waits} and goes on by itself"
        )
    unresolved = job.get("unresolved") or {}
    rows = {row["node_id"]: row for row in gw.ledger.nodes_by_id(sorted(unresolved))}
    for node, why in sorted(unresolved.items()):
        if is_gone(rows.get(node, {})):
            raise PermanentError(
                f"job {job_id} cannot be resumed: it waits for {node}, which is gone ({why}); "
                f"`planaria replace {node}` gives it another one, and the job then goes on"
            )
    if unresolved:
        job["unresolved"] = {}
        gw.jobs.write(job_id, {"unresolved": {}}, when=equals("unresolved", unresolved))
