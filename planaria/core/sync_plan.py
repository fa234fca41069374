"""Which step a sync takes next, and how it goes to S3."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from planaria.core import lineage
from planaria.core.checkpoint_ledger import order
from planaria.core.checkpoint_policy import Place
from planaria.core.saved_step import StepCopy, StepState
from planaria.core.table import Row

COPY, EXPORT, AUTO, HASH = "copy", "export", "auto", "hash"


def unsafe(rows: Iterable[Row]) -> list[Row]:
    """Steps that are whole on the file system and not durable, the oldest first."""
    found = [row for row in rows if row.get("here") and row["state"] == StepState.COMPLETE]
    return sorted(found, key=order)


def choose(
    rows: Iterable[Row], now: float, wish: int | None = None, deadline: float | None = None
) -> Row | None:
    """The oldest unsafe step that may be tried now. A step that a person asked for comes first, whether it
    failed a moment ago or not; before a node is taken (deadline, epoch seconds) the newest one comes
    first."""
    waiting = unsafe(rows)
    wished = [row for row in waiting if wish is not None and int(row["step"]) == wish]
    if wished:
        return wished[-1]
    ready = [row for row in waiting if float(row.get("retry_at") or 0.0) <= now]
    if not ready:
        return None
    return ready[-1] if deadline is not None and now < deadline else ready[0]


def on_line(rows: Iterable[Row], attempts: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Without the steps from which the job has gone back. attempts: of the job's row."""
    return [row for row in rows if not lineage.left_behind(attempts, int(row["attempt"]), int(row["step"]))]


def next_try(rows: Iterable[Row]) -> float | None:
    """When the first of the steps that failed may be tried again (epoch seconds); None when there is none."""
    return min((float(row["retry_at"]) for row in unsafe(rows) if "retry_at" in row), default=None)


def way(place: Place | None) -> str:
    """How the steps of a directory go to S3."""
    if place is None or place.association is None:
        return COPY
    return AUTO if place.association.auto_export else EXPORT


def work(row: Row, number: int, place: Place | None, url: str, now: float) -> dict[str, Any]:
    """The work for one step (lambdas/sync_work.py). number: of the sync; url: where the step goes in S3.

    A step without a manifest gets one before FSx exports it, so that both tiers hold the same; nodes find
    out its checksums while they copy it."""
    via = way(place)
    sealed = bool(row.get("digest"))
    identity = f"{number}-{row['attempt']}-{row['step']}-{int(row.get('failures', 0))}-{int(now * 1000)}"
    found = {
        "id": identity,
        "attempt": row["attempt"],
        "step": row["step"],
        "parent_step": row["parent_step"],
        "name": row["name"],
        "saved_at": row["saved_at"],
        "digest": row.get("digest", ""),
        "via": via,
        "url": url,
        "stage": via if sealed or via == COPY else HASH,
        "began_at": now,
        "bytes": row.get("size", 0),
        "done_bytes": 0,
    }
    if via == EXPORT and place is not None:
        found |= {"file_system": place.file_system.id, "path": f"{place.path}/{row['name']}".lstrip("/")}
    return found


def transfer_id(job: str, work: Row) -> str:
    """Of the nodes' share in it: the same for every try of the same call, another one for the next try."""
    return f"{hashlib.sha256(job.encode()).hexdigest()[:12]}-{work['id']}-{work['stage']}"


def listed(copies: Iterable[StepCopy]) -> list[StepCopy]:
    """Those of a node's list that are whole, with a manifest or ready to get one."""
    return [copy for copy in copies if copy.step >= 0 and (copy.usable or copy.sealable)]
