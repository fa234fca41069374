"""The only clock: once a minute, and at once when an execution of ours fails, make good what got lost.

Instances into node rows; claims without a live execution restarted or escalated; jobs whose last node is
settled resumed; held signals judged anew; nodes that EC2 no longer has reported like any other signal.
"""

import json
from collections.abc import Mapping
from typing import Any

from lambdas import opening, resuming, undoing
from lambdas.boundary import logger
from planaria import wiring
from planaria.core.errors import PlanariaError
from planaria.core.incident import ACTIVE, split_incident_id
from planaria.core.plans import GONE_STATES, facts
from planaria.core.ports import Execution, Instance
from planaria.core.table import Conflict, Row
from planaria.wiring import Gateways

STATUS_CHANGE = "Step Functions Execution Status Change"
CLAIM_GRACE_SECONDS = 20.0  # triage itself needs less than this from claim to StartExecution
SOURCE = "planaria.sweep"
NEW_SECONDS = 300.0
MISSING_SWEEPS = 3
FORGET_SECONDS = 86_400.0


def handler(event: Mapping[str, Any], context: object) -> dict[str, int]:
    gw = wiring.gateways()
    nodes, jobs = gw.ledger.nodes(), gw.jobs.jobs()
    half = [row for row in nodes if row.get("closing") and row.get("phase") not in ACTIVE]
    _each(half, "close of", lambda row: gw.ledger.finish_close(row, gw.clock.now()))
    cancelled = [row for row in nodes if undoing.outstanding(row)]
    counts = {
        "claims": _claims(gw, nodes),
        "undone": _each(cancelled, "undoing of", lambda row: undoing.undo(gw, row)),
        "jobs": _jobs(gw, jobs),
    }
    if event.get("detail-type") != STATUS_CHANGE:
        counts["findings"] = _inventory(gw, nodes)
        counts["held"] = _held(gw, nodes)
    logger.info("swept", extra=counts)
    return counts


def _each(rows: list[Row], what: str, act: Any) -> int:
    """One bad row must not keep the others from being looked at; the next sweep tries it again."""
    done = 0
    for row in rows:
        try:
            done += bool(act(row))
        except (PlanariaError, Conflict) as error:
            logger.warning(f"sweep: {what} {row['pk']} left for the next time", extra={"reason": str(error)})
    return done


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

    return _each(nodes, "claim", check)


def _jobs(gw: Gateways, jobs: list[Row]) -> int:
    def check(row: Row) -> bool:
        row = _settle_ended(gw, row)
        if row.get("resume_phase") in ACTIVE:
            return _revive_resume(gw, row)
        if row.get("pending") or row.get("unresolved") or not row.get("owed"):
            return False
        # The last node was settled and the claim that should follow got lost.
        claim = f"sweep/{row['job_id']}/{row['owed']}"
        return resuming.open_resume(gw, row, claim, "found by sweep", supersede=False) is not None

    return _each(jobs, "job", check)


def _settle_ended(gw: Gateways, job: Row) -> Row:
    """Every incident takes its node off `pending`, also one that died before it could."""
    for node, name in dict(job.get("pending", {})).items():
        head, _ = gw.ledger.incident(name)
        row = gw.ledger.node(node) or {}
        if head is None or "outcome" not in head:
            continue
        if head["outcome"] == "CANCELLED" and undoing.outstanding(row):
            continue  # it is settled once its isolation is taken back
        if row.get("phase") in ACTIVE and row.get("session") != split_incident_id(name)[1]:
            gw.jobs.wait_for(job["job_id"], node, f"{node}-{row['session']}")
            continue
        healed = head["outcome"] == "HEALED"
        taken = bool(row.get("isolation") or row.get("gone"))
        unresolved = "" if healed or not taken else str(head.get("outcome_reason") or "its incident ended")
        replacement = head.get("replacement_id") if healed else None
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
    claim = f"sweep/{job['job_id']}/{number}"
    return (
        resuming.open_resume(gw, job, claim, f"the execution of resume {number} died", supersede=True)
        is not None
    )


def _inventory(gw: Gateways, nodes: list[Row]) -> int:
    """Node rows from EC2, and a finding for every node that EC2 has ended or forgotten unseen by us."""
    instances = {instance.node_id: instance for instance in gw.fleet.cluster()}
    known = {row["node_id"]: row for row in nodes}
    for node, instance in instances.items():
        row = known.get(node)
        if instance.state in GONE_STATES:
            continue
        if row is None or row.get("state") != instance.state or row.get("times_missing"):
            gw.ledger.note_node(node, {**facts(instance), "times_missing": 0})
    ended = [row for node, row in known.items() if node in instances and _ended(row, instances[node])]
    missing = [row for node, row in known.items() if node not in instances and _missing(gw, row)]
    lost = [{"instance-id": row["node_id"], "state": "terminated"} for row in ended + missing]
    if lost:
        gw.bus.put(SOURCE, "EC2 Instance State-change Notification", lost)
    _each(nodes, "row of", lambda row: _forget(gw, row))
    return len(lost)


def _ended(row: Row, instance: Instance) -> bool:
    return not row.get("gone") and instance.state in GONE_STATES


def _missing(gw: Gateways, row: Row) -> bool:
    """EC2 does not list it at all: for a new instance that means "not yet", for any other it must be so
    in several sweeps, since an answer that lacks a node is no proof that the node is gone."""
    if row.get("gone") or gw.clock.now() - float(row.get("launched_at") or 0) < NEW_SECONDS:
        return False
    times = int(row.get("times_missing", 0)) + 1
    gw.table.write(row["pk"], row["sk"], sets={"times_missing": times})
    return times >= MISSING_SWEEPS


def _forget(gw: Gateways, row: Row) -> bool:
    """Nodes that ended long ago leave the list that every sweep reads; their rows stay."""
    ended = float(row.get("ended_at") or row.get("launched_at") or 0)
    if not row.get("gone") or row.get("phase") in ACTIVE or gw.clock.now() - ended < FORGET_SECONDS:
        return False
    gw.table.write(row["pk"], row["sk"], removes=("listing",))
    return True


def _held(gw: Gateways, nodes: list[Row]) -> int:
    """Held signals go through triage again, which judges them on the present state."""

    def again(row: Row) -> bool:
        held = row.get("held")
        if not held or row.get("phase") in ACTIVE:
            return False
        event = json.loads(held["event"] if "event" in held else gw.objects.get(held["event_key"]))
        gw.bus.put(SOURCE, event.get("detail-type") or event["detail_type"], [event["detail"]])
        gw.table.write(row["pk"], row["sk"], removes=("held",))
        return True

    return _each(nodes, "held signal of", again)
