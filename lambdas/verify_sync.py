"""State "Verify": is every object of the manifest in S3 with the right size and checksum? One HeadObject
each.

Lambda's time is too short for a hundred thousand of them, so it goes on from a cursor that the claim's row
keeps.
"""

import time

from lambdas import sync_work
from lambdas.boundary import Event, Fields, task
from lambdas.sync_work import At
from planaria.core.errors import InvalidInput
from planaria.core.manifest import Manifest, digest
from planaria.core.saved_step import StepCopy, StepState, Tier
from planaria.core.sync_plan import COPY
from planaria.wiring import Gateways

SLICE = 500
BUSY_SECONDS = 20.0
PATIENCE_SECONDS = 6 * 3600.0
"""So long may FSx's automatic export take for one step."""


@task
def handler(event: Event, gw: Gateways) -> Fields:
    at = sync_work.enter(gw, event)
    if at is None:
        return sync_work.NEXT
    if at.work["stage"] != "verify":
        return {"next": at.work["stage"]} if at.work["stage"] == "record" else sync_work.NEXT
    work, place = at.work, str(at.work["url"])
    store = gw.checkpoints(at.job, place.rpartition("/")[0])
    try:
        manifest = read(gw, at)
    except InvalidInput as error:
        return _not_there(gw, at, str(error))
    if why := _another(at, manifest):
        return _not_there(gw, at, why)
    shards, cursor = sorted(manifest.shards, key=lambda shard: shard.name), int(work.get("cursor", 0))
    began = time.monotonic()
    while cursor < len(shards):
        if flaws := store.prove(place, shards[cursor : cursor + SLICE]):
            more = f" and {len(flaws) - 1} more" if len(flaws) > 1 else ""
            return _not_there(
                gw, at, f"{flaws[0].name}{more} is not in S3 as the manifest has it: {flaws[0].reason}"
            )
        cursor = min(len(shards), cursor + SLICE)
        if cursor < len(shards) and time.monotonic() - began > BUSY_SECONDS:
            sync_work.note(gw, at, {"cursor": cursor, "files": len(shards)})
            return sync_work.wait(f"{cursor} of {len(shards)} objects are proven", 1.0)
    now = gw.clock.now()
    sync_work.note(gw, at, {"stage": "record", "cursor": cursor, "files": len(shards), "proven_at": now})
    return {"next": "record"}


def read(gw: Gateways, at: At) -> Manifest:
    """The manifest that nodes put into the bucket, or the one that FSx has exported. Raises InvalidInput."""
    if at.work["via"] == COPY:
        return Manifest.from_json(gw.objects.get(f"transfers/{at.work['transfer']}/manifest.json"))
    place = str(at.work["url"])
    copy = StepCopy(int(at.work["step"]), Tier.S3, StepState.COMPLETE, place)
    return gw.checkpoints(at.job, place.rpartition("/")[0]).manifest(copy)


def _another(at: At, manifest: Manifest) -> str:
    """It tells of another copy than the one that was to be copied: the step was saved anew meanwhile."""
    work = at.work
    if manifest.step != int(work["step"]) or manifest.lineage.job != at.job:
        return (
            f"the manifest of {work['name']} is of step {manifest.step} of job {manifest.lineage.job!r:.60}"
        )
    if work["digest"] and digest(manifest.to_json()) != work["digest"]:
        return f"{work['name']} was saved anew while it was copied"
    return ""


def _not_there(gw: Gateways, at: At, why: str) -> Fields:
    """FSx exports by itself when it has the time; whatever else is not there has failed."""
    if at.work.get("patient") and gw.clock.now() - float(at.work["copied_at"]) < PATIENCE_SECONDS:
        return sync_work.wait(why, 60.0)
    return sync_work.put_aside(gw, at, why)
