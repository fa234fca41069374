"""State "Record": the manifest goes to S3, last of all; from then on the step is durable."""

import contextlib

from lambdas import sync_work, verify_sync
from lambdas.boundary import Event, Fields, task
from lambdas.sync_work import At
from planaria.core import sync_claims
from planaria.core.checkpoint_ledger import CheckpointLedger
from planaria.core.errors import Fenced, InvalidInput, PermanentError
from planaria.core.incident import Step
from planaria.core.manifest import Manifest, digest
from planaria.core.table import Conflict, Row, below, equals, missing
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    at = sync_work.enter(gw, event)
    if at is None:
        return sync_work.NEXT
    if at.work["stage"] != "record":
        return sync_work.NEXT
    place = str(at.work["url"])
    try:
        manifest = verify_sync.read(gw, at)
        gw.checkpoints(at.job, place.rpartition("/")[0]).commit(manifest, str(at.work["name"]))
    except (InvalidInput, PermanentError) as error:
        return sync_work.put_aside(gw, at, f"its manifest could not be committed: {error}")
    now = gw.clock.now()
    body = digest(manifest.to_json())
    CheckpointLedger(gw.table).durable(at.job, manifest, str(at.work["name"]), place, body, now)
    _timeline(gw, at, now)
    _tell_job(gw, at, manifest, now)
    return {**sync_work.over(gw, at, "durable", deaths=0), "step": manifest.step}


def _timeline(gw: Gateways, at: At, now: float) -> None:
    ledger, attempt, step = CheckpointLedger(gw.table), int(at.work["attempt"]), int(at.work["step"])
    moments = {"copied": at.work.get("copied_at"), "proven": at.work.get("proven_at"), "durable": now}
    for word, moment in moments.items():
        if moment is not None:
            ledger.passed(at.job, attempt, step, word, float(moment))


def _tell_job(gw: Gateways, at: At, manifest: Manifest, now: float) -> None:
    """The job's row, and the timelines of the incidents that it waits for."""
    attempt, step = manifest.lineage.attempt, manifest.step
    sync_claims.note_newest(gw.table, at.job, "durable", attempt, step, manifest.saved_at)
    gw.jobs.saved(at.job, step)
    durable = {
        "attempt": attempt,
        "step": step,
        "saved_at": manifest.saved_at,
        "at": now,
        "place": at.work["url"],
    }
    name = "durable_step"
    older = missing(name) | below((name, "attempt"), attempt)
    older = older | (equals((name, "attempt"), attempt) & below((name, "step"), step))
    job: Row | None = None
    with contextlib.suppress(Conflict):
        job = gw.jobs.write(at.job, {name: durable}, when=older)
    if job is None or at.row.get("deadline") is None:
        return
    for incident in sorted((job.get("pending") or {}).values()):
        with contextlib.suppress(Fenced):
            gw.ledger.step(incident, Step.CHECKPOINT_DURABLE, now, checkpoint_step=step)
