"""State "Start": make room for the step in S3, then send nodes to copy it or have FSx export it."""

from collections.abc import Sequence
from dataclasses import replace

from lambdas import retain_sync, sync_copying, sync_exporting, sync_removals, sync_work
from lambdas.boundary import Event, Fields, task
from lambdas.sync_work import At
from planaria.core import lineage
from planaria.core.checkpoint_ledger import CheckpointLedger, order
from planaria.core.errors import InvalidInput, PermanentError
from planaria.core.manifest import Manifest, digest
from planaria.core.saved_step import StepCopy, StepState, Tier
from planaria.core.sync_plan import AUTO, COPY, EXPORT, HASH
from planaria.core.table import Row
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    at = sync_work.enter(gw, event)
    if at is None:
        return sync_work.NEXT
    if "room" not in at.work:
        why = _stale(gw, at)
        if why:
            return sync_work.put_aside(gw, at, why)
        at = sync_work.note(gw, at, {"room": True})
    if gw.clock.now() - float(at.work["began_at"]) > sync_work.LONGEST_SECONDS:
        return sync_work.put_aside(gw, at, "it took longer than a day to get it to S3")
    try:
        return _go_on(gw, event, at)
    except PermanentError as error:
        return sync_work.put_aside(gw, at, str(error))


def _go_on(gw: Gateways, event: Event, at: At) -> Fields:
    match at.work["stage"]:
        case stage if stage in (COPY, HASH):
            return sync_copying.start(gw, event, at)
        case stage if stage == EXPORT:
            return sync_exporting.start(gw, at)
        case stage if stage == AUTO:
            sync_work.note(gw, at, {"stage": "verify", "patient": True, "copied_at": gw.clock.now()})
            return {"next": "verify"}
        case stage:
            return {"next": stage}


def _stale(gw: Gateways, at: At) -> str:
    """Make way where S3 has another copy under this name: one that was saved before the job went back,
    whose manifest would tell of objects that are about to be overwritten. Why it must stay, else "".

    Nodes write no manifest over another one, so it is removed first. FSx does, and knows which files it has
    exported: what we removed of those it would not export again."""
    work, place = at.work, str(at.work["url"])
    ledger, copied = CheckpointLedger(gw.table), at.work["via"] == COPY
    rows = ledger.steps(at.job)
    for row in sync_removals.under_way(rows):
        if copied and row["removing"] == place:
            sync_removals.finish(gw, row)
    store = gw.checkpoints(at.job, place.rpartition("/")[0])
    copy = StepCopy(int(work["step"]), Tier.S3, StepState.COMPLETE, place)
    try:
        there = store.manifest(copy)
    except InvalidInput:
        return ""
    known = digest(there.to_json())
    if work["digest"] and known == work["digest"]:
        return ""
    if why := _needed(gw, at, rows, there):
        return f"{place} holds another copy of step {there.step} (attempt {there.lineage.attempt}), {why}"
    same = [row for row in rows if row["state"] == StepState.DURABLE and row.get("place") == place]
    for row in same:
        gone = ledger.removed(row, ("s3",), "another step was saved under its name", gw.clock.now(), copied)
        if copied:
            sync_removals.finish(gw, gone)
    if copied and not same:
        store.remove(replace(copy, digest=known))
    return ""


def _needed(gw: Gateways, at: At, rows: Sequence[Row], there: Manifest) -> str:
    """Why the copy in S3 must stay, whatever the ledger's row says of the step by now: it was saved anew, and
    what is in S3 may be all that is safe. "" where it may go."""
    job, place, step = gw.jobs.job(at.job) or {"job_id": at.job}, str(at.work["url"]), there.step
    told = retain_sync.facts(gw, job, {}, rows, Tier.FSX)
    if step in told.pinned:
        return f"which is pinned ({told.pinned[step]})"
    if step in told.resume_points:
        return "from which the job resumes"
    if step in told.busy:
        return f"which is in use ({told.busy[step]})"
    others = [row for row in rows if row["state"] == StepState.DURABLE and row.get("place") != place]
    attempt, attempts = there.lineage.attempt, job.get("attempts") or {}
    if not lineage.left_behind(attempts, attempt, step):
        others = [row for row in others if order(row) > (attempt, step)]
    return "" if others else "and no newer step is durable yet"
