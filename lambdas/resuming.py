"""Opening a job's resume: one claim on the job's row, then one execution named after it.

Used by every Lambda that can find the last pending node settled or the job failed.
"""

from collections.abc import Mapping
from typing import Any

from planaria.core.errors import Fenced
from planaria.core.incident import ACTIVE, Phase, Step
from planaria.core.ports import Execution
from planaria.core.table import Conflict, Row, missing
from planaria.wiring import Gateways

OUT_OF_WORK = "its node was taken out of work and nobody has its place"

REPLACED_AGAIN = 8
"""More replacements of one place within one incident than policy allows."""


def node_settled(gw: Gateways, incident: Mapping[str, Any], replacement: str, unresolved: str) -> bool:
    """Take the incident's node off the job's pending list; resume the job if that was the last one.

    True when this call found the job ready and its resume is started. Safe to repeat.
    """
    job, node, name = incident["job_id"], incident["node_id"], incident["incident_id"]
    row = gw.jobs.settle(job, node, name, newest(gw, replacement), unresolved)
    if row is None or row.get("pending") or row.get("unresolved"):
        return False
    if not row.get("owed"):
        # Nothing to resume: the job never stopped, or the resume that was owed has been opened already.
        return row.get("resume_claim") == name and open_resume(gw, row, name, "", True) is not None
    return open_resume(gw, row, name, f"incident {name} ended", supersede=True) is not None


def newest(gw: Gateways, replacement: str) -> str | None:
    """Who has this place by now: a replacement may have failed and been replaced before its job was told of
    it. None without one."""
    for _ in range(REPLACED_AGAIN):
        following = (gw.ledger.node(replacement) or {}).get("replaced_by") if replacement else None
        if not following:
            break
        replacement = str(following)
    return replacement or None


def open_resume(
    gw: Gateways,
    job: Row,
    claim_id: str,
    reason: str,
    supersede: bool,
    failed_at: float | None = None,
    deaths: int = 0,
) -> Row | None:
    """Claim and start; None when the job is not ready or another resume is under way.

    failed_at: when a process of the job failed (epoch seconds). Such a resume has an incident of its own,
    and waits a little for news of a node fault before it requeues. deaths: as in claim_resume.
    """
    if job.get("resume_claim") != claim_id:
        try:
            now = gw.clock.now()
            job = gw.jobs.claim_resume(job, claim_id, reason, now, supersede, failed_at, deaths=deaths)
        except Conflict:
            return None
    if job.get("resume_phase") in ACTIVE:
        start_resume(gw, job)
    return job


def stand_down(gw: Gateways, job: Row) -> Fenced:
    """Close a resume that came before news of a node; the heal of the last pending node resumes the job."""
    number = int(job["resume_number"])
    # Its incident first: once the resume is closed nobody comes by here again.
    close_own_incident(gw, job, Phase.CANCELLED, "joined: a node of the job is being healed")
    gw.jobs.close_resume(job["job_id"], number, Phase.CANCELLED, "nodes are being healed", gw.clock.now())
    return Fenced(f"job {job['job_id']} waits for {len(job['pending'])} nodes; the last one resumes it")


def start_resume(gw: Gateways, job: Row) -> Execution:
    """What follows the claim, by whoever finds it undone: the predecessor's end, then StartExecution from the
    row alone; started twice it is one execution."""
    if old := job.get("resume_superseded") or {}:
        why = f"superseded by {job['resume_name']}"
        close_own_incident(gw, {**job, "resume_name": old["name"]}, Phase.SUPERSEDED, why)
        if old["arn"]:
            gw.workflows.stop(old["arn"], why)
    open_own_incident(gw, job)
    settle = job.get("resume_failed_at") is not None
    document = {"job_id": job["job_id"], "number": job["resume_number"], "settle": settle}
    _, state = gw.workflows.start("resume_job", job["resume_name"], document)
    return state


def open_own_incident(gw: Gateways, job: Row) -> None:
    """A resume that no node incident stands behind has a row and a timeline of its own. May be repeated."""
    at = job.get("resume_failed_at")
    if at is None:
        return
    name = str(job["resume_name"])
    sets: dict[Any, Any] = {
        "listing": "INCIDENT",
        "incident_id": name,
        "node_id": None,
        "session": job["resume_number"],
        "action": "MONITOR",
        "mode": "act",
        "reason": job["resume_reason"],
        "rule": "job-exit" if str(job["resume_claim"]).startswith("exit/") else "console",
        "job_id": job["job_id"],
        "opened_at": gw.clock.now(),
        "detected_at": at,
    }
    try:
        gw.table.write(f"INCIDENT#{name}", "INCIDENT", sets=sets, when=missing("incident_id"))
    except Conflict:
        pass  # opened by an earlier delivery
    gw.ledger.step(name, Step.DETECTED, float(at))
    gw.ledger.step(name, Step.TRIAGED, gw.clock.now())
    gw.jobs.write(str(job["job_id"]), {("credits", name): True})


def credit(gw: Gateways, job: Row, step: Step, at: float, **data: Any) -> None:
    """Note a step of the resume in the timeline of every incident that led to it."""
    for name in sorted(job.get("credits", {})):
        gw.ledger.step(name, step, at, **data)


def close_own_incident(gw: Gateways, job: Row, outcome: Phase, reason: str) -> None:
    """Close the incident row of a resume that has one of its own."""
    name = str(job.get("resume_name", ""))
    if name not in job.get("credits", {}):
        return
    now = gw.clock.now()
    sets: dict[Any, Any] = {"outcome": outcome.value, "closed_at": now, "outcome_reason": reason}
    try:
        gw.table.write(f"INCIDENT#{name}", "INCIDENT", sets=sets, when=missing("outcome"))
    except Conflict:
        return
    gw.ledger.step(name, Step.CLOSED, now)
