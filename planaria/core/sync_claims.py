"""The claim of a job's sync: one at a time, fenced by its number.

`CHECKPOINTS#<job>`, `SYNC`: number (raised by every claim; a Task of an older one is fenced), phase
(CLAIMED, RUNNING, DONE, FAILED), claim_id, reason, execution, execution_arn, opened_at, began_at,
closed_at, outcome_reason, deaths (of executions in a row), again (somebody asked while it ran: it looks
once more before it ends), wish (the step that a person asked for, else absent), since (of the first claim),
deadline (epoch seconds, while a node is about to be taken: newest step first), retry_at (from when on a
step that failed may be tried again), newest and durable ({"attempt", "step", "saved_at"} of the newest
whole and the newest durable step), and

    work {"attempt", "step", "name", "via": "copy" | "export" | "auto", "stage", "tries", ...}

what it is at (lambdas/sync_work.py). A successor takes the work over, so that nothing that was begun is
done twice.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from planaria.core.checkpoint_ledger import partition
from planaria.core.errors import Fenced
from planaria.core.incident import ACTIVE, Phase
from planaria.core.ports import Table
from planaria.core.table import Changes, Condition, Conflict, Path, Row, above, below, equals, missing, one_of

LISTING = "SYNC"
_ROW = "SYNC"


class Synced(StrEnum):
    """How a sync ended."""

    DONE = "DONE"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Sync:
    """One generation of one job's sync."""

    job: str
    number: int

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Sync":
        """From the claim's row, or from the `sync` that the states of an execution hand on."""
        return cls(str(row["job_id"]), int(row["number"]))

    @property
    def name(self) -> str:
        """Of its execution: at most 80 characters of [A-Za-z0-9-]."""
        return f"sync-{short(self.job)}-{self.number}"

    def document(self) -> dict[str, Any]:
        return {"job_id": self.job, "number": self.number}


def short(job: str) -> str:
    """A job's id in names that have few characters; two jobs never have the same."""
    legal = re.sub(r"[^A-Za-z0-9-]", "-", job)
    if legal != job or len(legal) > 48:
        legal = f"{legal[:35]}-{hashlib.sha256(job.encode()).hexdigest()[:12]}"
    return legal


def read(table: Table, job: str) -> Row | None:
    return table.get(partition(job), _ROW)


def listed(table: Table) -> list[Row]:
    """The claims of every job that ever had one."""
    return table.listing(LISTING)


def claim(
    table: Table,
    job: str,
    seen: Row | None,
    *,
    claim_id: str,
    reason: str,
    now: float,
    deaths: int = 0,
    wish: int | None = None,
    deadline: float | None = None,
) -> Row:
    """Begin the next sync. Raises Conflict when the claim changed since `seen` was read; the same claim_id
    asked again is the same claim."""
    seen = seen or {}
    sync = Sync(job, int(seen.get("number", 0)) + 1)
    active = seen.get("phase") in ACTIVE
    sets: dict[Any, Any] = {
        "job_id": job,
        "number": sync.number,
        "listing": LISTING,
        "phase": Phase.CLAIMED.value,
        "claim_id": claim_id,
        "reason": reason,
        "opened_at": now,
        "deaths": deaths,
        "execution": sync.name,
        "since": seen.get("since", now),
    }
    removes: list[Path] = ["execution_arn", "began_at", "closed_at", "outcome_reason"]
    if not active:
        removes += ["again", "retry_at"]
        removes += [] if wish is not None else ["wish"]
        removes += [] if deadline is not None else ["deadline"]
    sets |= {} if wish is None else {"wish": wish}
    sets |= {} if deadline is None else {"deadline": deadline}
    try:
        return table.write(partition(job), _ROW, sets=sets, removes=removes, when=_as_seen(seen))
    except Conflict as conflict:
        if conflict.row is None or conflict.row.get("claim_id") != claim_id:
            raise
        return conflict.row


def ask_again(
    table: Table, sync: Sync, now: float, wish: int | None = None, deadline: float | None = None
) -> bool:
    """The sync that is under way looks once more before it ends. False: it has ended meanwhile."""
    sets: dict[Any, Any] = {"again": now}
    sets |= {} if wish is None else {"wish": wish}
    try:
        write(table, sync, sets)
        if deadline is not None:
            write(table, sync, {"deadline": deadline}, when=missing("deadline") | above("deadline", deadline))
    except Conflict:
        return True  # it knows of an earlier deadline
    except Fenced:
        return False
    return True


def enter(table: Table, sync: Sync) -> Row:
    """The claim's row, if this sync is still its active one; every Task begins here."""
    row = read(table, sync.job)
    if row is None or row.get("number") != sync.number or row.get("phase") not in ACTIVE:
        raise Fenced(f"sync {sync.number} of job {sync.job} is over")
    return row


def write(
    table: Table,
    sync: Sync,
    sets: Changes | None = None,
    removes: Sequence[Path] = (),
    when: Condition | None = None,
) -> Row:
    """A write fenced by the number. Raises Fenced when it is over, Conflict when only `when` failed."""
    fence = equals("number", sync.number) & one_of("phase", ACTIVE)
    condition = fence if when is None else fence & when
    try:
        return table.write(partition(sync.job), _ROW, sets=sets, removes=removes, when=condition)
    except Conflict as conflict:
        row = conflict.row or {}
        if row.get("number") == sync.number and row.get("phase") in ACTIVE:
            raise
        raise Fenced(f"sync {sync.number} of job {sync.job} is over") from None


def close(
    table: Table, sync: Sync, outcome: Synced, now: float, reason: str = "", retry_at: float | None = None
) -> bool:
    """End it. False: somebody has asked meanwhile, so it looks once more first (a failed one does not).
    Raises Fenced when it has ended otherwise."""
    sets: dict[Any, Any] = {"phase": outcome.value, "closed_at": now, "outcome_reason": reason}
    sets |= {} if retry_at is None else {"retry_at": retry_at}
    removes: list[Path] = ["work", "again", "wish", "deadline"]
    removes += ["retry_at"] if retry_at is None else []
    try:
        write(table, sync, sets, removes, missing("again") if outcome is Synced.DONE else None)
    except Conflict:
        return False
    except Fenced:
        if not closed(table, sync, outcome):
            raise
    return True


def closed(table: Table, sync: Sync, outcome: Synced) -> bool:
    """This very sync has ended so: an earlier try of the same close did it."""
    row = read(table, sync.job) or {}
    return row.get("number") == sync.number and row.get("phase") == outcome


def note_newest(table: Table, job: str, name: str, attempt: int, step: int, saved_at: float) -> None:
    """`name`: newest or durable. A step that is older by lineage changes nothing."""
    told = {"attempt": attempt, "step": step, "saved_at": saved_at}
    older = (
        missing(name)
        | (below((name, "attempt"), attempt))
        | (equals((name, "attempt"), attempt) & below((name, "step"), step + 1))
    )
    try:
        sets: dict[Any, Any] = {"job_id": job, "listing": LISTING, name: told}
        table.write(partition(job), _ROW, sets=sets, when=older)
    except Conflict:
        return


def _as_seen(seen: Row) -> Condition:
    if "number" not in seen:
        return missing("number")
    return equals("number", seen["number"]) & equals("phase", seen["phase"])
