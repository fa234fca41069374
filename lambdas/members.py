"""The nodes of a job, looked at before each step of its resume: it must not start on one that fails."""

from lambdas import resuming, staying
from planaria.core import decision
from planaria.core.errors import PermanentError, Waiting
from planaria.core.fault import Severity
from planaria.core.incident import ACTIVE, incident_id
from planaria.core.node import NodeView
from planaria.core.plans import is_gone
from planaria.core.policy import Mode
from planaria.core.table import Row
from planaria.wiring import Gateways

UNJUDGED_LOOKS = 18
"""At five seconds each: longer than SQS hides the message of a triage that died (60 s)."""

GONE_LOOKS = 36
"""Three minutes: what EC2 has ended is found by sweep within one, and judged soon after."""

LATELY_SECONDS = 180.0


def not_being_healed(gw: Gateways, job: Row) -> Row:
    """The job's row, if none of its nodes is being healed; else the resume stands down (Fenced).

    A node whose claim triage did not live to tell the job of is waited for all the same.
    """
    name, number = str(job["job_id"]), int(job["resume_number"])
    for row in _rows(gw, job):
        if row.get("phase") in ACTIVE and not staying.stays(gw, row):
            gw.jobs.wait_for(name, row["node_id"], incident_id(row["node_id"], row["session"]))
    job = gw.jobs.enter(name, number)
    if job.get("pending"):
        raise resuming.stand_down(gw, job)
    return job


def fit(gw: Gateways, job: Row, looks: int) -> None:
    """Waiting while a node of the job has a fault that nobody has judged yet, or is gone and nobody replaces
    it yet. looks: how often that was answered before; in the end the one goes on, and the other cannot.

    Raises PermanentError for a node that is gone for good; the job waits until its place is healed.
    """
    following = {"looks": str(looks + 1)}
    for row in _rows(gw, job):
        if row.get("phase") in ACTIVE:
            continue
        name = row.get("name") or row["node_id"]
        if is_gone(row) and not row.get("replaced_by"):
            if looks < GONE_LOOKS:
                raise Waiting(f"{name} is gone; its replacement is waited for", following)
            raise _gone_for_good(gw, job, row)
        if looks < UNJUDGED_LOOKS and (what := _unjudged(gw, row)):
            raise Waiting(f"{name} has a fault that is not judged yet: {what}", following)


def _gone_for_good(gw: Gateways, job: Row, row: Row) -> PermanentError:
    node, job_id = row["node_id"], str(job["job_id"])
    reason = (
        f"{row.get('name') or node} ({node}) is gone and nobody replaces it; "
        f"`planaria replace {node}` does, and job {job_id} then goes on"
    )
    gw.jobs.write_resume(job_id, int(job["resume_number"]), {("unresolved", node): reason})
    return PermanentError(f"job {job_id} cannot be resumed: {reason}")


def _unjudged(gw: Gateways, row: Row) -> str:
    """A fatal fault that triage has noted on the node and then died over: its event comes back."""
    policy = gw.cluster.policy
    if policy.mode is Mode.OBSERVE or row.get("held_since") or row.get("opted_out"):
        return ""
    view = NodeView.from_row(row)
    fault = decision.stands(view, policy, "")
    if fault is None or fault.severity is not Severity.FATAL:
        return ""
    last = max((float(entry.get("last", 0.0)) for entry in view.recent.values()), default=0.0)
    return f"{fault.kind} {fault.code}" if gw.clock.now() - last < LATELY_SECONDS else ""


def _rows(gw: Gateways, job: Row) -> list[Row]:
    return gw.ledger.nodes_by_id(sorted(set(job.get("nodes", {}).values())))
