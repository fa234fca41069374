"""State "Plan": list the job's steps on a node, and take the oldest one that is not safe in S3 yet."""

from typing import Any

from lambdas import sync_nodes, sync_work, syncing
from lambdas.boundary import Event, Fields, ask_command, task
from planaria.core import lineage, listed_steps, sync_claims, sync_plan
from planaria.core.checkpoint_ledger import CheckpointLedger, order, step_key
from planaria.core.errors import Fenced, Waiting
from planaria.core.saved_step import StepCopy
from planaria.core.sync_claims import Sync
from planaria.core.table import Conflict, Row
from planaria.wiring import Gateways

DOCUMENT = "planaria-list-checkpoints"
LOOKS = 40
"""So often a node is waited for that can list the steps; then the next sync tries it again."""

LISTED = 200
"""Steps that a node lists at most, the newest; what is older is not missing."""


@task
def handler(event: Event, gw: Gateways) -> Fields:
    sync = Sync.of(event["sync"])
    row = sync_claims.enter(gw.table, sync)
    if row.get("work"):
        return _on(row["work"])  # of a sync that died, or of an earlier try of this call
    job = gw.jobs.job(sync.job)
    why = syncing.why_not(gw, job)
    if why or job is None:
        return {"next": "none", "why": why}
    looks = int((event.get("carry") or {}).get("looks", 0)) + 1
    try:
        copies = _listed(gw, event, sync, job)
    except Waiting as wait:
        if looks >= LOOKS:
            return {"next": "none", "why": str(wait)}
        raise Waiting(str(wait), {**wait.carry, "looks": str(looks)}) from None
    now = gw.clock.now()
    rows = _noted(gw, job, copies, now)
    newest = max(rows, key=order, default=None)
    if newest is not None:
        sync_claims.note_newest(
            gw.table, sync.job, "newest", newest["attempt"], newest["step"], newest["saved_at"]
        )
    wish = row.get("wish")
    chosen = sync_plan.choose(
        sync_plan.on_line(rows, job.get("attempts") or {}),
        now,
        None if wish is None else int(wish),
        row.get("deadline"),
    )
    if chosen is None:
        return {"next": "none", "why": "every whole step is durable, or was tried a moment ago"}
    place = gw.cluster.checkpoints.place(syncing.folder_of(job)) if gw.cluster.checkpoints else None
    url = gw.checkpoints(sync.job, place.url if place else "").place(chosen["name"])
    try:
        row = sync_work.begin(gw, sync, sync_plan.work(chosen, sync.number, place, url, now))
    except Conflict as conflict:
        row = conflict.row or {}
    if not row.get("work"):
        raise Fenced(f"sync {sync.number} of job {sync.job} changed while it was planned")
    CheckpointLedger(gw.table).passed(sync.job, chosen["attempt"], chosen["step"], "begun", now)
    return _on(row["work"])


def _on(work: Row) -> Fields:
    return {
        "next": "step",
        "work": work["id"],
        "step": work["step"],
        "attempt": work["attempt"],
        "via": work["via"],
    }


def _listed(gw: Gateways, event: Event, sync: Sync, job: Row) -> list[StepCopy]:
    """Raises Waiting. Whoever asks for a sync from the moment on in which the list is asked for is heard
    again."""
    carry = event.get("carry") or {}
    nodes = sync_nodes.witnesses(gw, job)
    node = str(carry["witness"]) if carry.get("witness") in nodes else nodes[0]
    if DOCUMENT not in carry:
        sync_claims.write(gw.table, sync, removes=("again",))
    parameters = {"Job": sync.job, "Directory": syncing.folder_of(job)}
    try:
        entry = ask_command(gw, event, DOCUMENT, [node], parameters).get(node) or {}
    except Waiting as wait:
        raise Waiting(str(wait), {**wait.carry, "witness": node} if wait.carry else {}) from None
    if entry.get("status") != "SUCCESS":
        following = nodes[(nodes.index(node) + 1) % len(nodes)]
        reason = f"{node} cannot list the checkpoints of job {sync.job}: {str(entry.get('output'))[:300]}"
        raise Waiting(reason, {"witness": following})
    return listed_steps.copies(entry.get("output"), sync.job)


def _noted(gw: Gateways, job: Row, copies: list[StepCopy], now: float) -> list[Row]:
    """The ledger's rows of the steps that are whole on the file system."""
    ledger, job_id = CheckpointLedger(gw.table), str(job["job_id"])
    attempts = job.get("attempts") or {str(job["attempt"]): {}}
    known = {row["sk"]: row for row in ledger.steps(job_id)}
    rows: dict[Any, Row] = {}
    for copy in sync_plan.listed(copies):
        saved_at = copy.saved_at or copy.touched_at or now
        of = copy.lineage or lineage.of_saved_at(job_id, attempts, copy.step, saved_at)
        try:
            was = known.get(step_key(job_id, of.attempt, copy.step)[1])
            row = ledger.seen(job_id, of.attempt, of.parent_step, copy, now, was)
        except Conflict as conflict:
            row = conflict.row or {}
        if row:
            rows[row["sk"]] = row
    lowest = min((copy.step for copy in copies), default=0) if len(copies) >= LISTED else -1
    for row in known.values():
        if row["sk"] not in rows and row.get("here") and int(row["step"]) >= lowest:
            try:
                ledger.not_here(row, now)
            except Conflict:
                continue
    return list(rows.values())
