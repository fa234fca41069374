"""Removing a step from S3: the ledger lets go of it first, so that nothing ever counts as durable and is not.

Between the two writes the row keeps `removing`, the place, so that what a crash left is removed later.
"""

import contextlib

from planaria.core.checkpoint_ledger import CheckpointLedger
from planaria.core.saved_step import StepCopy, StepState, Tier
from planaria.core.table import Conflict, Row
from planaria.wiring import Gateways


def remove(gw: Gateways, row: Row, why: str) -> None:
    """row: of a durable step. Raises Conflict when it has changed, and what the store raises: then it is
    tried again by `finish`."""
    finish(gw, CheckpointLedger(gw.table).removed(row, ("s3",), why, gw.clock.now()))


def finish(gw: Gateways, row: Row) -> None:
    """Do what was begun. May be repeated."""
    place = str(row["removing"])
    copy = StepCopy(int(row["step"]), Tier.S3, StepState.COMPLETE, place, digest=str(row.get("digest") or ""))
    gw.checkpoints(str(row["job_id"]), place.rpartition("/")[0]).remove(copy)
    with contextlib.suppress(Conflict):
        CheckpointLedger(gw.table).note(row, {}, ("removing",))


def under_way(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.get("removing")]
