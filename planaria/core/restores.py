"""The claim of a restore: one job has one restore at a time, fenced by its number.

The row `RESTORE#<job>`, `RESTORE`:

    number        raised by every claim; a Task of an older one is fenced
    phase         CLAIMED, RUNNING, then RESTORED or FAILED
    wanted        the step that was ordered; absent: the newest good one
    directory     the folder that is filled, "" for the job's own
    round         how many copies were tried, this one included
    work          the copy that is being brought: {"step", "attempt", "name", "place", "digest", "size",
                  "saved_at", "via": "fetch" | "import", "transfer", and what lambdas/carrying.py notes}
    passed_over   what was not taken and why, one sentence each
    bad           key of a copy -> {"why", "at"}: copies whose bytes turned out bad, also for later restores
    waiting       resume -> task token of whoever waits for this restore's end
    execution, execution_arn, attempt, deaths   the execution that does it; another one follows where it died
    step, place, why, outcome_reason, closed_at   how it ended
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from planaria.core.errors import Fenced
from planaria.core.incident import ACTIVE, Phase
from planaria.core.ports import Table
from planaria.core.saved_step import StepCopy
from planaria.core.table import Changes, Condition, Conflict, Path, Row, equals, missing, one_of

LISTING = "RESTORE"
SENTENCES_KEPT = 16
BAD_KEPT = 64
MOST_ROUNDS = 16
"""Copies that one restore tries, each after the one before turned out bad."""


class Restored(StrEnum):
    """How a restore ended."""

    RESTORED = "RESTORED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Order:
    """step: None for the newest good one. directory: "" for the job's own folder. person: nobody but a person
    asked for it."""

    job_id: str
    step: int | None = None
    directory: str = ""
    reason: str = ""
    person: bool = False

    def document(self) -> dict[str, Any]:
        return {
            "wanted": self.step,
            "directory": self.directory,
            "reason": self.reason,
            "person": self.person,
        }


def key(job: str) -> tuple[str, str]:
    return f"RESTORE#{job}", "RESTORE"


def read(table: Table, job: str) -> Row:
    """The row; {} where nothing of this job was ever restored."""
    return table.get(*key(job)) or {}


def active(row: Mapping[str, Any]) -> bool:
    return row.get("phase") in ACTIVE


def execution_name(job: str, number: int, attempt: int) -> str:
    """At most 80 characters of [A-Za-z0-9-_]; see incident.resume_name."""
    legal = re.sub(r"[^A-Za-z0-9_-]", "-", job)
    if legal != job or len(legal) > 48:
        legal = f"{legal[:35]}-{hashlib.sha256(job.encode()).hexdigest()[:12]}"
    return f"restore-{legal}-{number}-{attempt}"


def transfer_id(job: str, number: int, turn: int) -> str:
    """Of the bytes of one round: another round is another transfer."""
    return f"{hashlib.sha256(job.encode()).hexdigest()[:12]}-restore-{number}-{turn}"


def claim(table: Table, seen: Row, order: Order, claim_id: str, now: float) -> Row:
    """Begin the next restore of the job; `seen` is the row that the decision rests on, {} without one.

    The same claim_id asked again is the same claim. Raises Conflict when the row has changed since it was
    read, or another restore is under way.
    """
    if seen.get("claim_id") == claim_id:
        return seen
    number = int(seen.get("number", 0)) + 1
    sets: dict[Any, Any] = {
        "listing": LISTING,
        "job_id": order.job_id,
        "number": number,
        "phase": Phase.CLAIMED.value,
        "claim_id": claim_id,
        **order.document(),
        "opened_at": now,
        "round": 0,
        "passed_over": [],
        "waiting": {},
        "attempt": 1,
        "deaths": 0,
        "execution": execution_name(order.job_id, number, 1),
        # A person has looked: what was bad then may have been mended.
        "bad": {} if order.person else dict(seen.get("bad") or {}),
    }
    removes = (
        "execution_arn", "work", "step", "place", "why", "outcome_reason", "closed_at", "mailed", "tries",
        "folder",
    )  # fmt: skip
    try:
        return table.write(*key(order.job_id), sets=sets, removes=removes, when=_idle(seen))
    except Conflict as conflict:
        if conflict.row is None or conflict.row.get("claim_id") != claim_id:
            raise
        return conflict.row


def _idle(seen: Row) -> Condition:
    if "number" not in seen:
        return missing("number")
    ended = one_of("phase", (Restored.RESTORED.value, Restored.FAILED.value))
    return equals("number", seen["number"]) & ended


def enter(table: Table, job: str, number: int) -> Row:
    """The row, if this restore still goes on; every Task begins here."""
    row = read(table, job)
    if row.get("number") != number or not active(row):
        raise over(job, number)
    return row


def over(job: str, number: int) -> Fenced:
    return Fenced(f"restore {number} of job {job} is over")


def write(
    table: Table,
    job: str,
    number: int,
    sets: Changes | None = None,
    removes: Sequence[Path] = (),
    when: Condition | None = None,
) -> Row:
    """A write fenced by the number. Raises Fenced when it is over, Conflict when only `when` failed."""
    fence = equals("number", number) & one_of("phase", ACTIVE)
    try:
        return table.write(
            *key(job), sets=sets, removes=removes, when=fence if when is None else fence & when
        )
    except Conflict as conflict:
        row = conflict.row or {}
        if row.get("number") == number and active(row):
            raise
        raise over(job, number) from None


def close(table: Table, job: str, number: int, outcome: Restored, reason: str, now: float) -> Row:
    """End this restore -> its row. Raises Fenced when it has ended otherwise; safe to repeat."""
    sets = {"phase": outcome.value, "outcome_reason": reason, "closed_at": now}
    try:
        return write(table, job, number, sets, ("listing",))
    except Fenced:
        row = read(table, job)
        if row.get("number") != number or row.get("phase") != outcome:
            raise
        return row


def again(table: Table, row: Row, deaths: int) -> Row:
    """Another execution for the same restore, after its last one died. Raises Conflict, Fenced."""
    job, number, attempt = str(row["job_id"]), int(row["number"]), int(row["attempt"]) + 1
    sets: dict[Any, Any] = {
        "attempt": attempt,
        "deaths": deaths,
        "phase": Phase.CLAIMED.value,
        "execution": execution_name(job, number, attempt),
    }
    return write(table, job, number, sets, ("execution_arn",), equals("attempt", row["attempt"]))


# --- copies that turned out bad ---------------------------------------------------------------------


def copy_key(copy: StepCopy) -> str:
    """What a copy is known by, as an attribute's name: its tier, lineage, number and bytes."""
    attempt = copy.lineage.attempt if copy.lineage else 0
    return f"{copy.tier}/{attempt}/{copy.step}/{copy.digest[:16]}"


def found_bad(row: Row, known: str, why: str, sentence: str, now: float) -> dict[Any, Any]:
    """What to set where a copy's bytes are not what its manifest says. known: its copy_key."""
    bad = dict(row.get("bad") or {})
    bad[known] = {"why": why, "at": now}
    newest = sorted(bad, key=lambda each: float(bad[each]["at"]))[-BAD_KEPT:]
    told = [*row.get("passed_over", []), sentence][-SENTENCES_KEPT:]
    return {"bad": {each: bad[each] for each in newest}, "passed_over": told}
