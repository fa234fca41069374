"""The only clock: once a minute, and at once when an execution of ours fails, make good what got lost.

Instances into node rows; claims without a live execution restarted or escalated; jobs whose last node is
settled resumed; held signals, planned ends and conditions that last judged anew; what EC2 says of the nodes
reported like any other signal.
"""

from collections.abc import Mapping
from typing import Any

from lambdas import (
    approvals,
    closing_resume,
    expired_holds,
    holding,
    inventory,
    job_watch,
    kept_out,
    lasting,
    left_nodes,
    locating,
    node_events,
    opening,
    planned_due,
    replacements,
    restoring,
    resuming,
    slurm_topology,
    spare_pool,
    staying,
    sync_schedule,
    undoing,
    waiting_jobs,
)
from lambdas.boundary import logger
from lambdas.inventory import each
from planaria import wiring
from planaria.core.incident import ACTIVE, Phase, split_incident_id
from planaria.core.plans import is_gone
from planaria.core.ports import Execution
from planaria.core.table import Row
from planaria.wiring import Gateways

STATUS_CHANGE = "Step Functions Execution Status Change"
CLAIM_GRACE_SECONDS = 20.0  # triage itself needs less than this from claim to StartExecution


def handler(event: Mapping[str, Any], context: object) -> dict[str, int]:
    gw = wiring.gateways()
    nodes, jobs = gw.ledger.nodes(), gw.jobs.jobs()
    half = [row for row in nodes if row.get("closing") and row.get("phase") not in ACTIVE]
    each(half, "close of", lambda row: gw.ledger.finish_close(row, gw.clock.now()))
    each(nodes, "cancelling of", lambda row: node_events.finish_cancel(gw, row))
    cancelled = [row for row in nodes if undoing.outstanding(row)]
    watched = 0 if event.get("detail-type") == STATUS_CHANGE else job_watch.look(gw, jobs, nodes)
    jobs = gw.jobs.jobs() if watched else jobs
    counts = {
        "watched": watched,
        "claims": _claims(gw, nodes),
        "undone": each(cancelled, "undoing of", lambda row: undoing.undo(gw, row)),
        "jobs": _jobs(gw, jobs),
        "restores": restoring.keep(gw),
        "syncs": sync_schedule.revive(gw),
    }
    if event.get("detail-type") != STATUS_CHANGE:
        counts["findings"] = inventory.compare(gw, nodes)
        counts["kept_out"] = kept_out.look(gw, nodes)
        counts["lasting"] = each(nodes, "lasting condition of", lambda row: lasting.raise_again(gw, row))
        counts["lost"] = each(nodes, "lost replacement", lambda row: replacements.give_back_lost(gw, row))
        counts["readmitted"] = each(nodes, "isolation of", lambda row: left_nodes.look(gw, row))
        counts["unapproved"] = each(nodes, "approval of", lambda row: approvals.expire(gw, row))
        counts["breaker"] = each([{"pk": "FLEET"}], "tidying of", lambda _: gw.breaker.tidy(gw.clock.now()))
        counts["held"] = holding.release(gw, nodes)
        counts["planned"] = planned_due.release(gw, nodes, jobs)
        counts["spares"] = spare_pool.keep(gw, nodes)
        counts["holds"] = expired_holds.end(gw)
        counts["located"] = locating.keep(gw, nodes)
        counts["topology"] = slurm_topology.keep(gw, nodes)
        counts["synced"] = sync_schedule.keep(gw, jobs)
    logger.info("swept", extra=counts)
    return counts


def _claims(gw: Gateways, nodes: list[Row]) -> int:
    """Active sessions whose execution is not alive."""

    def check(row: Row) -> bool:
        if row.get("phase") not in ACTIVE:
            return False
        arn = row.get("execution_arn")
        if arn:
            if gw.workflows.state(arn) is Execution.RUNNING:
                return False
            fresh = gw.ledger.enter(row["node_id"], row["session"])
            if fresh.get("execution_arn") != arn:
                return False
            opening.restart(gw, fresh)
            return True
        since = max(float(row.get("opened_at_attempt", 0.0)), float(row["opened_at"]))
        if gw.clock.now() - since < CLAIM_GRACE_SECONDS:
            return False
        fresh = gw.ledger.enter(row["node_id"], row["session"])
        if fresh.get("execution_arn"):
            return False
        if opening.go_on(gw, fresh):
            return True  # held; the event comes back to triage by itself
        if opening.start(gw, gw.ledger.enter(row["node_id"], row["session"])) is not Execution.RUNNING:
            opening.restart(gw, fresh)
        return True

    return each(nodes, "claim", check)


def _jobs(gw: Gateways, jobs: list[Row]) -> int:
    def check(row: Row) -> bool:
        row = _settle_ended(gw, row)
        if row.get("resume_phase") in ACTIVE:
            return _revive_resume(gw, row)
        if row.get("pending") or row.get("unresolved"):
            return waiting_jobs.tell_overdue(gw, row)
        if waiting_jobs.tries_again(gw, row):
            return True
        if not row.get("owed"):
            return False
        # The last node was settled and the claim that should follow got lost.
        claim = f"sweep/{row['job_id']}/{row['owed']}"
        return resuming.open_resume(gw, row, claim, "found by sweep", supersede=False) is not None

    return each(jobs, "job", check)


def _settle_ended(gw: Gateways, job: Row) -> Row:
    """Every incident takes its node off `pending`, also one that died before it could."""
    for node, name in dict(job.get("pending", {})).items():
        head, _ = gw.ledger.incident(name)
        row = gw.ledger.node(node) or {}
        if head is None or "outcome" not in head:
            continue
        later = row.get("session") != split_incident_id(name)[1]
        if row.get("phase") in ACTIVE and later and not staying.stays(gw, row):
            gw.jobs.wait_for(job["job_id"], node, f"{node}-{row['session']}")
            continue
        if head["outcome"] == Phase.SUPERSEDED and later and "session" in row:
            # What became of the node is its last session's to tell.
            head, _ = gw.ledger.incident(f"{node}-{row['session']}")
            if head is None or "outcome" not in head:
                continue
        if head["outcome"] == Phase.CANCELLED and undoing.outstanding(row):
            continue  # it is settled once its isolation is taken back
        healed = head["outcome"] == "HEALED"
        # An isolation that no session asked for is an old one's, which a person has lifted since.
        taken = bool(row.get("isolation") and row.get("isolation_asked")) or is_gone(row)
        unresolved = "" if healed or not taken else str(head.get("outcome_reason") or "its incident ended")
        replacement = resuming.newest(gw, str(head.get("replacement_id") or "")) if healed else None
        job = gw.jobs.settle(job["job_id"], node, name, replacement, unresolved) or job
    return job


def _revive_resume(gw: Gateways, job: Row) -> bool:
    """The row is read anew once the execution's state is known: it may have closed the resume meanwhile."""
    arn, number = job.get("resume_arn"), int(job["resume_number"])
    if not arn:
        if gw.clock.now() - float(job["resume_opened_at"]) < CLAIM_GRACE_SECONDS:
            return False
        if resuming.start_resume(gw, job) is Execution.RUNNING:
            return True
    elif gw.workflows.state(arn) is Execution.RUNNING:
        return False
    job = gw.jobs.enter(job["job_id"], number)
    deaths = int(job.get("resume_deaths") or 0) + 1
    if deaths >= gw.cluster.policy.max_attempts:
        reason = f"its execution died {deaths} times, last {job['resume_name']}"
        closing_resume.close(gw, job["job_id"], number, Phase.ESCALATED, reason)
        return True
    claim, reason = f"sweep/{job['job_id']}/{number}", f"the execution of resume {number} died"
    return resuming.open_resume(gw, job, claim, reason, supersede=True, deaths=deaths) is not None
