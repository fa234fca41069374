"""The claim of a refill: which execution fills a slot of a pool, fenced by the slot's generation.

On the slot's row: `generation` (raised by every claim; a Task of an older one is fenced), `phase` (CLAIMED,
RUNNING, FILLED, NOT_FILLED), `execution`, `execution_arn`, `launch` (as on a node's row: intent, token,
lease) and `instance_id`. A successor takes over the launch that its predecessor left open, so that nothing
that was launched is forgotten. `failures` in a row and `retry_at` space the tries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from planaria.core.errors import Fenced
from planaria.core.incident import ACTIVE, Phase
from planaria.core.pool import slot_key
from planaria.core.ports import Table
from planaria.core.table import Changes, Condition, Conflict, Path, Row, equals, missing, one_of

TRIES = 8
"""A slot may change between reading and claiming it."""

MOST_BACK_OFF = 6
"""How often the time between two tries is doubled at most."""


class Filled(StrEnum):
    """How a refill ended."""

    FILLED = "FILLED"
    NOT_FILLED = "NOT_FILLED"


@dataclass(frozen=True, slots=True)
class Refill:
    """One generation of one slot."""

    group: str
    slot: int
    generation: int

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Refill":
        """From a slot's row, or from the `refill` that the states of an execution hand on."""
        return cls(str(row["group"]), int(row["slot"]), int(row["generation"]))

    @property
    def name(self) -> str:
        """Its id; with `refill-` before it the name of its execution."""
        return f"{self.group}-{self.slot}-{self.generation}"

    def document(self) -> dict[str, Any]:
        return {
            "refill_id": self.name, "group": self.group, "slot": self.slot, "generation": self.generation,
        }  # fmt: skip


def claim(
    table: Table,
    group: str,
    number: int,
    seen: Row | None,
    *,
    claim_id: str,
    reason: str,
    now: float,
    person: bool = False,
    deaths: int = 0,
) -> Row:
    """Begin the next generation of a slot. Raises Conflict when the slot changed since `seen` was read.

    The same claim_id asked again is the same claim. deaths: executions in a row that died on this slot.
    """
    seen = seen or {}
    refill = Refill(group, number, int(seen.get("generation", 0)) + 1)
    removes: list[Path] = ["execution_arn", "closed_at", "outcome_reason"]
    launch = seen.get("launch") or {}
    if seen.get("phase") not in ACTIVE:
        removes.append("instance_id")
        if launch.get("instance_id") or not launch.get("token"):
            removes.append("launch")
    sets: dict[Any, Any] = {
        "group": group,
        "slot": number,
        "generation": refill.generation,
        "phase": Phase.CLAIMED.value,
        "claim_id": claim_id,
        "reason": reason,
        "person": person,
        "deaths": deaths,
        "opened_at": now,
        "execution": f"refill-{refill.name}",
    }
    try:
        return table.write(*slot_key(group, number), sets=sets, removes=removes, when=as_seen(seen))
    except Conflict as conflict:
        if conflict.row is None or conflict.row.get("claim_id") != claim_id:
            raise
        return conflict.row


def as_seen(seen: Row) -> Condition:
    """The slot is as it was read."""
    if "generation" not in seen:
        return missing("generation")
    return equals("generation", seen["generation"]) & equals("phase", seen["phase"])


def enter(table: Table, refill: Refill) -> Row:
    """The slot's row, if this refill is still at it; every Task begins here."""
    row = table.get(*slot_key(refill.group, refill.slot))
    if row is None or row.get("generation") != refill.generation or row.get("phase") not in ACTIVE:
        raise Fenced(f"refill {refill.name} is over")
    return row


def closed(table: Table, refill: Refill, outcome: Filled) -> bool:
    """This very generation has ended so: an earlier try of the same close did it."""
    row = table.get(*slot_key(refill.group, refill.slot)) or {}
    return row.get("generation") == refill.generation and row.get("phase") == outcome


def write(
    table: Table,
    refill: Refill,
    sets: Changes | None = None,
    removes: Sequence[Path] = (),
    when: Condition | None = None,
) -> Row:
    """A write fenced by the generation. Raises Fenced when it is over, Conflict when only `when` failed."""
    fence = equals("generation", refill.generation) & one_of("phase", ACTIVE)
    try:
        key = slot_key(refill.group, refill.slot)
        return table.write(*key, sets=sets, removes=removes, when=fence if when is None else fence & when)
    except Conflict as conflict:
        row = conflict.row or {}
        if row.get("generation") == refill.generation and row.get("phase") in ACTIVE:
            raise
        raise Fenced(f"refill {refill.name} is over") from None


def close(
    table: Table,
    refill: Refill,
    outcome: Filled,
    now: float,
    reason: str = "",
    failures: int = 0,
    pause: float = 0.0,
) -> None:
    """End this generation. Raises Fenced when it has ended otherwise.

    failures: in a row, of a slot that was not filled; pause: seconds until it is tried again after the first
    of them, doubled with every further one.
    """
    sets: dict[Any, Any] = {
        "phase": outcome.value, "outcome_reason": reason, "closed_at": now,
    }  # fmt: skip
    removes: tuple[Path, ...] = ("failures", "retry_at")
    if outcome is Filled.NOT_FILLED:
        again = now + pause * 2 ** min(max(failures - 1, 0), MOST_BACK_OFF)
        sets |= {"failures": failures, "retry_at": again}
        removes = ()
    try:
        write(table, refill, sets, removes)
    except Fenced:
        if not closed(table, refill, outcome):
            raise
