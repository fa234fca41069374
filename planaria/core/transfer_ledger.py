"""Who carries which chunk of a transfer: claims with owner, lease and fence.

    TRANSFER#<id>, PLAN          mode, chunks, opened_at, cancelled?, and what the opener says of it
    TRANSFER#<id>, CHUNK#0007    state OPEN | CLAIMED | DONE, owner, lease (epoch seconds), fence, bytes,
                                 failed, result (key of the object that tells more)
    TRANSFER#<id>, FINISH        the same; claimable once every chunk is done: it joins what was split

The fence rises with every claim. A carrier that lost its lease may still be at work: what it writes to S3 is
what the next one writes, and its row it can no longer change.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planaria.core.errors import Fenced, InvalidInput
from planaria.core.ports import Table
from planaria.core.table import Changes, Conflict, Row, below, equals, missing
from planaria.core.transfers import MOST_CHUNKS, Cause, Failure

LEASE_SECONDS = 60.0
FAILURES_KEPT = 20
"""Failures of one chunk in its row; its result has all of them."""
_LONGEST_REASON = 300
PLAN, FINISH = "PLAN", "FINISH"


@dataclass(frozen=True, slots=True)
class Claim:
    """chunk: its number, None for the last stage. fence: what every later write of this claim names."""

    transfer: str
    chunk: int | None
    owner: str
    fence: int

    @property
    def row(self) -> str:
        return FINISH if self.chunk is None else chunk_row(self.chunk)


@dataclass(frozen=True, slots=True)
class Progress:
    """chunks, done: without the last stage. bytes: of chunks that are done. owners: with a live lease.
    failed: at most FAILURES_KEPT of each chunk; failures: how many there are. finished: the last stage too is
    done. cancelled: why, "" where it is not."""

    chunks: int
    done: int
    bytes: int
    owners: tuple[str, ...]
    failed: tuple[Failure, ...]
    failures: int
    finished: bool
    cancelled: str = ""


def chunk_row(number: int) -> str:
    return f"CHUNK#{number:04d}"


class TransferLedger:
    def __init__(self, table: Table) -> None:
        self.table = table

    def open(self, transfer: str, mode: str, chunks: int, facts: Changes, now: float) -> Row:
        """Write the rows of a transfer. Opening it again changes nothing; its plan row is written last, so
        that whoever finds it finds all chunks. Raises InvalidInput where it is open with other chunks."""
        if not 1 <= chunks <= MOST_CHUNKS:
            raise InvalidInput(f"a transfer has 1 to {MOST_CHUNKS} chunks, got {chunks}")
        row = self.table.get(_pk(transfer), PLAN)
        if row is None:
            for sk in (*map(chunk_row, range(chunks)), FINISH):
                self._write_once(transfer, sk, {"state": "OPEN", "fence": 0})
            sets = {**facts, "transfer": transfer, "mode": mode, "chunks": chunks, "opened_at": now}
            row = self._write_once(transfer, PLAN, sets)
        if int(row["chunks"]) != chunks or row["mode"] != mode:
            raise InvalidInput(
                f"transfer {transfer} is open already, with {row['chunks']} chunks in mode {row['mode']}"
            )
        return row

    def plan(self, transfer: str) -> Row:
        """Raises InvalidInput where nobody has opened it."""
        row = self.table.get(_pk(transfer), PLAN)
        if row is None:
            raise InvalidInput(f"there is no transfer {transfer} in the ledger; plan it first")
        return row

    def cancel(self, transfer: str, reason: str, now: float) -> None:
        """Carriers stop at their next claim or renewal. Cancelling again changes nothing."""
        try:
            sets = {"cancelled": reason[:_LONGEST_REASON], "cancelled_at": now}
            self.table.write(_pk(transfer), PLAN, sets, when=missing("cancelled"), quiet=True)
        except Conflict:
            return

    def claim(self, transfer: str, owner: str, now: float) -> Claim | None:
        """A chunk that nobody carries; None where there is none now, or the transfer is cancelled. Owners
        look at the rows in different orders, so that they meet rarely. A claim of the owner's own from
        before is taken again at once: an owner is one process at a time."""
        rows = {row["sk"]: row for row in self.table.query(_pk(transfer))}
        if PLAN not in rows or rows[PLAN].get("cancelled"):
            return None
        chunks = int(rows[PLAN]["chunks"])
        first = zlib.crc32(owner.encode()) % chunks
        order = [(first + each) % chunks for each in range(chunks)]
        for number in order:
            row = rows.get(chunk_row(number))
            if row is None or not _free(row, owner, now):
                continue
            if claim := self._take(transfer, number, row, owner, now):
                return claim
        rest = [rows.get(chunk_row(number)) for number in range(chunks)]
        last = rows.get(FINISH)
        if (
            last is not None
            and all(row and row["state"] == "DONE" for row in rest)
            and _free(last, owner, now)
        ):
            return self._take(transfer, None, last, owner, now)
        return None

    def renew(self, claim: Claim, now: float) -> None:
        """Keep the claim for another lease. Raises Fenced: another has it, or the transfer is cancelled."""
        row = self.table.get(_pk(claim.transfer), PLAN)
        if row is None or row.get("cancelled"):
            raise Fenced(f"transfer {claim.transfer} is cancelled: {(row or {}).get('cancelled', '')}")
        self._mine(claim, {"lease": now + LEASE_SECONDS})

    def done(self, claim: Claim, size: int, failed: Sequence[Failure], result: str, now: float) -> None:
        """The chunk was carried, but for what failed. Raises Fenced where another has it."""
        kept = [
            {"name": each.name, "reason": each.reason[:_LONGEST_REASON], "cause": each.cause.value}
            for each in failed[:FAILURES_KEPT]
        ]
        sets = {"state": "DONE", "bytes": size, "failed": kept, "failures": len(failed), "result": result}
        self._mine(claim, {**sets, "done_at": now})

    def release(self, claim: Claim) -> None:
        """Give the claim back: another may take it at once. Quiet where it is not ours any more."""
        try:
            self._mine(claim, {"state": "OPEN"})
        except Fenced:
            return

    def chunks(self, transfer: str) -> list[Row]:
        """The rows of the chunks, in their order."""
        return [row for row in self.table.query(_pk(transfer)) if str(row["sk"]).startswith("CHUNK#")]

    def progress(self, transfer: str, now: float) -> Progress:
        """Raises InvalidInput where nobody has opened it."""
        plan = self.plan(transfer)
        rows = self.table.query(_pk(transfer))
        stages = [row for row in rows if row["sk"] != PLAN]
        chunks = [row for row in stages if row["sk"] != FINISH]
        failed = [_failure(each) for row in stages for each in row.get("failed", ())]
        live = {str(row["owner"]) for row in stages if row["state"] == "CLAIMED" and row["lease"] > now}
        return Progress(
            chunks=int(plan["chunks"]),
            done=sum(row["state"] == "DONE" for row in chunks),
            bytes=sum(int(row.get("bytes", 0)) for row in chunks),
            owners=tuple(sorted(live)),
            failed=tuple(failed),
            failures=sum(int(row.get("failures", 0)) for row in stages),
            finished=any(row["sk"] == FINISH and row["state"] == "DONE" for row in stages),
            cancelled=str(plan.get("cancelled", "")),
        )

    def _take(self, transfer: str, chunk: int | None, row: Row, owner: str, now: float) -> Claim | None:
        sets = {"state": "CLAIMED", "owner": owner, "lease": now + LEASE_SECONDS}
        seen = equals("fence", row["fence"]) & equals("state", row["state"])
        if row["state"] == "CLAIMED" and row["owner"] != owner:
            seen = seen & below("lease", now)
        try:
            taken = self.table.write(_pk(transfer), str(row["sk"]), sets, adds={"fence": 1}, when=seen)
        except Conflict:
            return None
        return Claim(transfer, chunk, owner, int(taken["fence"]))

    def _mine(self, claim: Claim, sets: Changes) -> None:
        mine = equals("fence", claim.fence) & equals("state", "CLAIMED")
        try:
            self.table.write(_pk(claim.transfer), claim.row, sets, when=mine, quiet=True)
        except Conflict as conflict:
            now = conflict.row or {}
            if now.get("state") == sets.get("state") == "DONE" and now.get("fence") == claim.fence:
                return  # the SDK had sent it twice
            raise Fenced(f"{claim.row} of transfer {claim.transfer} is another's now") from None

    def _write_once(self, transfer: str, sk: str, sets: Changes) -> Row:
        try:
            return self.table.write(_pk(transfer), sk, sets, when=missing("pk"))
        except Conflict as conflict:
            assert conflict.row is not None
            return conflict.row


def _free(row: Row, owner: str, now: float) -> bool:
    match row["state"]:
        case "OPEN":
            return True
        case "CLAIMED":
            return bool(row["lease"] < now or row["owner"] == owner)
    return False


def _failure(given: Any) -> Failure:
    return Failure(str(given["name"]), str(given["reason"]), Cause(given["cause"]))


def _pk(transfer: str) -> str:
    return f"TRANSFER#{transfer}"
