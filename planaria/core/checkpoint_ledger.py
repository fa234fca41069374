"""What the ledger knows of a job's checkpoint steps, one row each.

`CHECKPOINTS#<job>`, `STEP#<attempt>#<step>`: step, attempt, parent_step, name (of its directory), state
("complete": whole on the file system and not safe yet; "durable"; "spoiled": its copy in S3 turned out bad;
"gone"), removing (the place in S3 from which it is being removed), digest (of its manifest, "" without
one), size (bytes), files, saved_at, durable_at (epoch seconds), place (`s3://...`), here (False once the
file system has it no more), failures and retry_at (copies in a row that failed, and from when on the next
one may be tried), why (the last failure), pinned {"reason", "by", "at"}, tags, timeline {word: epoch
seconds}.

Keys sort by lineage: a step of a later attempt is newer, whatever its number.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from planaria.core.manifest import Manifest
from planaria.core.ports import Table
from planaria.core.saved_step import StepCopy, StepState
from planaria.core.table import Changes, Condition, Conflict, Path, Row, equals, exists, missing

SPOILED, GONE = "spoiled", "gone"
TRIES = 4
MOST_BACK_OFF = 6
"""How often the time between two tries is doubled at most."""


def partition(job: str) -> str:
    return f"CHECKPOINTS#{job}"


def step_key(job: str, attempt: int, step: int) -> tuple[str, str]:
    return partition(job), f"STEP#{attempt:06d}#{step:018d}"


def order(row: Mapping[str, Any]) -> tuple[int, int]:
    """By lineage."""
    return int(row["attempt"]), int(row["step"])


class CheckpointLedger:
    """Raises TransientError as the table does."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def steps(self, job: str) -> list[Row]:
        """Every step that was ever seen, the oldest first."""
        return [row for row in self.table.query(partition(job)) if str(row["sk"]).startswith("STEP#")]

    def step(self, job: str, attempt: int, step: int) -> Row | None:
        return self.table.get(*step_key(job, attempt, step))

    def seen(
        self, job: str, attempt: int, parent_step: int, copy: StepCopy, now: float, known: Row | None
    ) -> Row:
        """A step that a node lists as whole. One that was saved anew under its number is not safe any more:
        what is in S3 is another copy. known: its row, as it was read. Raises Conflict when that has
        changed."""
        facts: dict[Any, Any] = {
            "job_id": job,
            "attempt": attempt,
            "step": copy.step,
            "parent_step": parent_step,
            "name": copy.name,
            "digest": copy.digest,
            "size": copy.size,
            "saved_at": copy.saved_at or copy.touched_at or now,
            "here": True,
        }
        if known is None:
            facts |= {"state": StepState.COMPLETE.value, "timeline": {"seen": now}}
            return self._write(job, attempt, copy.step, facts, when=missing("step"))
        if same_copy(known, copy):
            changed = {name: value for name, value in facts.items() if known.get(name) != value}
            if known["state"] == GONE:
                changed |= {"state": StepState.COMPLETE.value}
            if not changed or set(changed) == {"saved_at"}:
                return known
            return self._write(job, attempt, copy.step, changed, when=_as(known))
        facts |= {"state": StepState.COMPLETE.value, "timeline": {"seen": now}}
        removes = ("failures", "retry_at", "why", "durable_at", "place")
        return self._write(job, attempt, copy.step, facts, removes, _as(known))

    def not_here(self, row: Row, now: float) -> None:
        """The file system has it no more; without a durable copy it is gone."""
        lost = row["state"] not in (StepState.DURABLE, GONE)
        if not lost and not row.get("here"):
            return
        sets: dict[Any, Any] = {"here": False}
        if lost:
            sets |= {
                "state": GONE,
                "gone_at": now,
                "why": "it is on the file system no more and was not durable",
            }
        self._write(row["job_id"], row["attempt"], row["step"], sets, when=_as(row))

    def note(self, row: Row, sets: Changes, removes: Sequence[Path] = ()) -> Row:
        """Raises Conflict when the step was saved anew or changed its state since the row was read."""
        return self._write(row["job_id"], row["attempt"], row["step"], sets, removes, _as(row))

    def passed(self, job: str, attempt: int, step: int, word: str, now: float) -> None:
        """One step of its way to S3, for people; the first time counts."""
        try:
            when = exists("timeline") & missing(("timeline", word))
            self._write(job, attempt, step, {("timeline", word): now}, when=when)
        except Conflict:
            return

    def put_aside(self, row: Row, why: str, now: float, pause: float) -> Row:
        """It could not be made durable now. pause: seconds until the second try, doubled with every further
        one."""
        failures = int(row.get("failures", 0)) + 1
        again = now + pause * 2 ** min(failures - 1, MOST_BACK_OFF)
        return self.note(row, {"failures": failures, "retry_at": again, "why": why})

    def durable(self, job: str, manifest: Manifest, name: str, place: str, digest: str, now: float) -> Row:
        """Its manifest is in S3, and every object that it names has been proven."""
        lineage, step = manifest.lineage, manifest.step
        facts: dict[Any, Any] = {
            "job_id": job,
            "attempt": lineage.attempt,
            "step": step,
            "parent_step": lineage.parent_step,
            "name": name,
            "digest": digest,
            "size": manifest.size,
            "files": len(manifest.shards),
            "saved_at": manifest.saved_at,
            "state": StepState.DURABLE.value,
            "durable_at": now,
            "place": place,
        }
        removes = ("failures", "retry_at", "why", "removing")
        for _ in range(TRIES):
            known = self.step(job, lineage.attempt, step)
            if known is not None and known["state"] == StepState.DURABLE and known["digest"] == digest:
                return known
            more = {} if known is not None else {"timeline": {}, "here": False}
            try:
                return self._write(job, lineage.attempt, step, {**facts, **more}, removes, _as(known))
            except Conflict:
                continue
        raise Conflict(known)

    def removed(self, row: Row, tiers: Sequence[str], why: str, now: float, by_us: bool = True) -> Row:
        """Its copies in these tiers (words of saved_step.Tier) are about to go. by_us: what is in S3 is
        ours to remove; else FSx writes another step over it. Raises Conflict as `note`, and where somebody
        has pinned it."""
        sets: dict[Any, Any] = {"removed_at": now, "why": why}
        removes: list[Path] = []
        here = bool(row.get("here")) and "fsx" not in tiers
        sets["here"] = here
        if "s3" in tiers:
            sets |= {
                "state": StepState.COMPLETE.value if here else GONE,
                "removing": row.get("place", "") if by_us else "",
            }
            removes = ["durable_at", "place"]
        elif row["state"] != StepState.DURABLE and not here:
            sets["state"] = GONE
        when = _as(row) & missing("pinned")
        return self._write(row["job_id"], row["attempt"], row["step"], sets, removes, when)

    def spoiled(self, job: str, attempt: int, step: int, reason: str, now: float) -> None:
        """Its copy in S3 turned out bad: it counts as durable no more, and is copied anew if it still is on
        the file system."""
        row = self.step(job, attempt, step)
        if row is None or row["state"] != StepState.DURABLE:
            return
        state = StepState.COMPLETE.value if row.get("here") else SPOILED
        self.note(row, {"state": state, "why": reason, "spoiled_at": now}, ("durable_at",))

    def pin(self, job: str, attempt: int, step: int, reason: str, by: str, now: float) -> Row:
        """Nobody removes it until it is unpinned. Raises Conflict where no such step is known."""
        return self._write(
            job, attempt, step, {"pinned": {"reason": reason, "by": by, "at": now}}, when=exists("step")
        )

    def unpin(self, job: str, attempt: int, step: int) -> Row:
        """Raises Conflict where no such step is known."""
        return self._write(job, attempt, step, {}, ("pinned",), exists("step"))

    def _write(
        self,
        job: str,
        attempt: int,
        step: int,
        sets: Changes,
        removes: Sequence[Path] = (),
        when: Condition | None = None,
    ) -> Row:
        return self.table.write(*step_key(job, attempt, step), sets=sets, removes=removes, when=when)


def same_copy(row: Row, copy: StepCopy) -> bool:
    """The listed copy is the one that the row tells of. One that has its manifest only now is still the
    same."""
    if copy.digest and row.get("digest"):
        return bool(copy.digest == row["digest"])
    told = copy.saved_at or copy.touched_at
    known = row.get("saved_at")
    return told is None or known is None or abs(float(known) - told) < 1.0 or bool(copy.digest)


def _as(row: Row | None) -> Condition:
    """The step is as it was read."""
    if row is None:
        return missing("step")
    return equals("state", row["state"]) & equals("digest", row.get("digest", ""))
