"""State "Retain": after a step has become durable, what the policy keeps no longer goes, in S3 and on the
file system.

Only what the ledger knows as durable may go, and each removal rests on a plan of that very moment. S3 keeps
a step as long as the file system has it, so that nothing on the file system is ever the only copy by our
doing.
"""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from lambdas import sync_nodes, sync_removals, sync_sweeping, syncing
from lambdas.boundary import Event, Fields, ask_command, logger, task
from planaria.core import lineage, listed_steps, restores, retention, sync_claims
from planaria.core.checkpoint_ledger import CheckpointLedger
from planaria.core.errors import PermanentError, PlanariaError, TransientError, Waiting
from planaria.core.incident import ACTIVE
from planaria.core.manifest import Lineage
from planaria.core.retention import Facts, Plan
from planaria.core.saved_step import StepCopy, StepState, Tier
from planaria.core.sync_claims import Sync
from planaria.core.table import Conflict, Row
from planaria.wiring import Gateways

LIST, REMOVE = "planaria-list-checkpoints", "planaria-prune-checkpoints"
AT_ONCE = 10
"""Steps that one call removes from a tier; the state is entered again where there are more."""


@task
def handler(event: Event, gw: Gateways) -> Fields:
    sync = Sync.of(event["sync"])
    row = sync_claims.enter(gw.table, sync)
    job, policy = gw.jobs.job(sync.job), gw.cluster.checkpoints
    if job is None or policy is None:
        return {"removed": []}
    removed = []
    if policy.retention.get(Tier.FSX) is not None:
        removed += _from_file_system_if_it_can(gw, event, job, row)
    more = False
    if policy.retention.get(Tier.S3) is not None:
        gone, more = _from_s3(gw, job, row)
        removed += gone
    if removed:
        logger.info("removed by retention", extra={"job_id": sync.job, "steps": removed})
    if more:
        return {"result": "WAIT", "reason": "there is more to remove", "seconds": 1, "removed": removed}
    sync_sweeping.sweep(gw, event, job, row)
    return {"removed": removed}


def copies(rows: Iterable[Row]) -> list[StepCopy]:
    """What the ledger knows as durable in S3."""
    return [
        StepCopy(
            step=int(row["step"]),
            tier=Tier.S3,
            state=StepState.DURABLE,
            place=str(row["place"]),
            size=int(row.get("size", 0)),
            lineage=Lineage(row["job_id"], int(row["attempt"]), int(row.get("parent_step", -1))),
            saved_at=float(row["saved_at"]),
            digest=str(row["digest"]),
        )
        for row in rows
        if row["state"] == StepState.DURABLE and row.get("place")
    ]


def facts(gw: Gateways, job: Row, claim: Mapping[str, Any], rows: Iterable[Row], tier: Tier) -> Facts:
    """What protects steps of this job now."""
    points = [job.get("resume_step")]
    points += [job.get("resume_step_chosen")] if job.get("resume_phase") in ACTIVE else []
    busy: dict[int, str] = {}
    for row in rows:
        if tier is Tier.S3 and row.get("here"):
            busy[int(row["step"])] = "the file system still has it"
    if claim.get("work"):
        busy[int(claim["work"]["step"])] = f"sync {claim['number']} copies it"
    restore = restores.read(gw.table, str(job["job_id"])) or {}
    if restore.get("phase") in ACTIVE and restore.get("work"):
        busy[int(restore["work"]["step"])] = f"restore {restore['number']} brings it back"
    return Facts(
        resume_points=[int(step) for step in points if step is not None and int(step) >= 0],
        pinned={int(row["step"]): str(row["pinned"].get("reason", "")) for row in rows if row.get("pinned")},
        tags={int(row["step"]): row["tags"] for row in rows if row.get("tags")},
        busy=busy,
        starts=lineage.starts_of(job.get("attempts") or {}),
        aside=job.get("aside") or {},
    )


def _plan(
    gw: Gateways, job: Row, claim: Mapping[str, Any], tier: Tier, more: Iterable[StepCopy] = ()
) -> Plan:
    """On what is there at this moment. more: of other tiers."""
    rows = CheckpointLedger(gw.table).steps(str(job["job_id"]))
    fresh = gw.jobs.job(str(job["job_id"])) or job
    rules = gw.cluster.checkpoints.retention.get(tier) if gw.cluster.checkpoints else None
    told = facts(gw, fresh, claim, rows, tier)
    return retention.plan([*copies(rows), *more], tier, rules, gw.clock.now(), told)


def _from_s3(gw: Gateways, job: Row, claim: Row) -> tuple[list[str], bool]:
    ledger, job_id = CheckpointLedger(gw.table), str(job["job_id"])
    sync = Sync.of(claim)

    def remove(copy: StepCopy) -> None:
        sync_claims.enter(gw.table, sync)
        attempt = copy.lineage.attempt if copy.lineage else 0
        row = ledger.step(job_id, attempt, copy.step)
        if row is None or row.get("place") != copy.place:
            return
        with contextlib.suppress(Conflict):
            sync_removals.remove(gw, row, "retention")

    _finish_all(gw, ledger, job_id, claim)
    pruned = retention.carry_out(lambda: _plan(gw, job, claim, Tier.S3), remove, AT_ONCE)
    for copy, why in pruned.failed:
        logger.warning("a step could not be removed", extra={"place": copy.place, "reason": why})
    return [copy.place for copy in pruned.removed], pruned.more and bool(pruned.removed)


def _finish_all(gw: Gateways, ledger: CheckpointLedger, job_id: str, claim: Row) -> None:
    """What a removal that died has left, unless its place is another step's by now."""
    rows = ledger.steps(job_id)
    taken = {row.get("place") for row in rows} | {(claim.get("work") or {}).get("url")}
    for row in sync_removals.under_way(rows):
        if row["removing"] in taken:
            continue
        try:
            sync_removals.finish(gw, row)
        except PlanariaError as error:
            told = {"place": row["removing"], "reason": str(error)}
            logger.warning("a step is still not removed", extra=told)


def _from_file_system_if_it_can(gw: Gateways, event: Event, job: Row, claim: Row) -> list[str]:
    """What cannot go now is left to the next sync: S3 and the sweep have their turn all the same. Raises
    Waiting while a node is at it."""
    try:
        return _from_file_system(gw, event, job, claim)
    except Waiting as wait:
        if wait.carry:
            raise
        why = str(wait)
    except (PermanentError, TransientError) as error:
        why = str(error)
    logger.warning("nothing was removed from the file system", extra={"job_id": job["job_id"], "reason": why})
    return []


def _from_file_system(gw: Gateways, event: Event, job: Row, claim: Row) -> list[str]:
    """Lists anew, for whatever was saved meanwhile. Raises Waiting."""
    listed = listed_steps.copies(_ask(gw, event, job, LIST), str(job["job_id"]))
    going = _plan(gw, job, claim, Tier.FSX, listed).going[:AT_ONCE]
    if not going:
        return []
    steps = ",".join(f"{copy.lineage.attempt if copy.lineage else 0}:{copy.step}" for copy in going)
    sync_claims.enter(gw.table, Sync.of(claim))
    _ask(gw, event, job, REMOVE, Steps=steps)
    return [copy.place for copy in going]


def _ask(gw: Gateways, event: Event, job: Row, document: str, **more: str) -> Any:
    carry = event.get("carry") or {}
    nodes = sync_nodes.witnesses(gw, job)
    node = str(carry["witness"]) if carry.get("witness") in nodes else nodes[0]
    parameters = {"Job": str(job["job_id"]), "Directory": syncing.folder_of(job), **more}
    try:
        entry = ask_command(gw, event, document, [node], parameters).get(node) or {}
    except Waiting as wait:
        raise Waiting(str(wait), {**wait.carry, "witness": node} if wait.carry else {}) from None
    if entry.get("status") != "SUCCESS":
        raise PermanentError(f"{document} failed on {node}: {str(entry.get('output'))[:300]}")
    return entry.get("output")
