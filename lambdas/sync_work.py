"""What a sync is at: the `work` of its claim's row, from the first byte of one step to its proof in S3.

    {"id", "attempt", "step", "parent_step", "name", "saved_at", "digest", "via": "copy" (by nodes) |
    "export" (by an FSx task) | "auto" (FSx exports by itself), "stage": "hash" | "copy" | "export" | "auto"
    | "verify" | "record", "url": its place in S3, "began_at", "transfer", "plan", "runs"
    (lambdas/sync_copying.py), "file_system", "path", "token", "task_id" (lambdas/sync_exporting.py),
    "cursor", "bytes", "done_bytes", "files", "done_files", "chunks", "done_chunks"}

When it is over the row's `past` keeps {"id", "end", "why"}, for a Task that is asked again.
"""

import math
from dataclasses import dataclass
from typing import Any

from lambdas.boundary import Event, Fields, logger
from planaria.core import export_queue, sync_claims
from planaria.core.checkpoint_ledger import CheckpointLedger
from planaria.core.errors import Fenced, PermanentError, PlanariaError
from planaria.core.sync_claims import Sync
from planaria.core.table import Conflict, Path, Row, equals, missing
from planaria.core.transfer_ledger import TransferLedger
from planaria.wiring import Gateways

AGAIN_SECONDS = 60.0
"""Between the first failure of a step and its next try, or a tenth of the schedule where that is less;
doubled with every further one."""
LONGEST_SECONDS = 86_400.0
NEXT: Fields = {"next": "plan"}
PUT_BACK = "put back"


@dataclass(frozen=True, slots=True)
class At:
    """One sync's present work. row: the claim's; step: the ledger's row of the step."""

    sync: Sync
    row: Row
    step: Row

    @property
    def work(self) -> Row:
        return dict(self.row["work"])

    @property
    def job(self) -> str:
        return self.sync.job


def enter(gw: Gateways, event: Event) -> At | None:
    """None: this work is over, by an earlier try of the same call. Raises Fenced when the sync is, or when
    it is at other work by now."""
    sync = Sync.of(event["sync"])
    row = sync_claims.enter(gw.table, sync)
    work, identity = row.get("work") or {}, event["work"]
    if work.get("id") != identity:
        if (row.get("past") or {}).get("id") == identity:
            return None
        raise Fenced(f"sync {sync.number} of job {sync.job} is at other work than {identity}")
    step = CheckpointLedger(gw.table).step(sync.job, int(work["attempt"]), int(work["step"]))
    if step is None:
        raise Fenced(f"step {work['step']} of job {sync.job} is not in the ledger any more")
    return At(sync, row, step)


def begin(gw: Gateways, sync: Sync, work: Row) -> Row:
    """The claim's row with this work. Raises Conflict when it has another one."""
    return sync_claims.write(gw.table, sync, {"work": work}, when=missing("work"))


def note(gw: Gateways, at: At, sets: dict[str, Any], removes: tuple[str, ...] = ()) -> At:
    """Write into the work. Raises Fenced when the sync is at another one by now."""
    changes: dict[Any, Any] = {("work", name): value for name, value in sets.items()}
    gone: list[Path] = [("work", name) for name in removes]
    mine = equals(("work", "id"), at.row["work"]["id"])
    try:
        row = sync_claims.write(gw.table, at.sync, changes, gone, mine)
    except Conflict:
        raise Fenced(f"sync {at.sync.number} of job {at.job} is at other work by now") from None
    return At(at.sync, row, at.step)


def over(gw: Gateways, at: At, end: str, why: str = "", **sets: Any) -> Fields:
    """The work is done, or given up for now. sets: of the claim's row.

    A step that a person asked for has had its turn then: should it fail, it waits like any other."""
    identity = at.row["work"]["id"]
    had = () if end == PUT_BACK or at.row.get("wish") != at.row["work"]["step"] else ("wish",)
    past = {"id": identity, "end": end, "why": why, "step": at.row["work"]["step"]}
    try:
        sync_claims.write(
            gw.table, at.sync, {"past": past, **sets}, ("work", *had), equals(("work", "id"), identity)
        )
    except Conflict as conflict:
        if ((conflict.row or {}).get("past") or {}).get("id") != identity:
            raise Fenced(f"sync {at.sync.number} of job {at.job} is at other work by now") from None
    return NEXT


def put_aside(gw: Gateways, at: At, why: str) -> Fields:
    """The step cannot be made durable now: the next one's turn. It is tried again after a while."""
    release(gw, at.row, why)
    try:
        policy = gw.cluster.checkpoints
        pause = min(AGAIN_SECONDS, policy.sync_seconds / 10) if policy else AGAIN_SECONDS
        CheckpointLedger(gw.table).put_aside(at.step, why, gw.clock.now(), pause)
    except Conflict:
        pass  # it was saved anew meanwhile, or is durable
    return over(gw, at, "aside", why)


def let_go(gw: Gateways, row: Row, why: str) -> None:
    """End what the work has under way outside, as far as that can be done now."""
    try:
        release(gw, row, why)
    except PlanariaError:
        return  # leases run out by themselves


def release(gw: Gateways, row: Row, why: str) -> None:
    """Nodes stop at their next chunk, an FSx task of ours is cancelled, and the next job has its turn."""
    work = row.get("work") or {}
    if work.get("transfer"):
        TransferLedger(gw.table).cancel(work["transfer"], why, gw.clock.now())
    if work.get("file_system"):
        if work.get("task_id") and not work.get("task_over"):
            try:
                gw.data_repository.cancel(work["task_id"])
            except PermanentError as error:  # a person's task for the same step: it is theirs to end
                logger.warning(
                    "a task was not cancelled", extra={"task": work["task_id"], "reason": str(error)}
                )
        export_queue.release(gw.table, work["file_system"], Sync.of(row))


def wait(reason: str, seconds: float) -> Fields:
    """The workflow comes back after so many seconds, unscaled; a Wait state takes whole ones only."""
    return {"result": "WAIT", "reason": reason, "seconds": math.ceil(seconds)}
