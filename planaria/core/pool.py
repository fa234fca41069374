"""The warm pool of a node group: its rows, and which spare may do what.

`SPARE#<group>`, `POOL`: {"group", "target"} as sweep last saw it in the cluster file; listed as "SPARE".
`SPARE#<group>`, `SLOT#<number>`: one place of the pool: `instance_id`, the spare in it, and the claim of the
refill that fills it (core/refills.py). A place is nobody's in particular: a node that is kept, or comes back
unused, takes one that is vacant or a new one. The spare's node row is the truth about it:

    spare = {"state": SpareState, "slot": int, "checked_at": when a check last passed (epoch seconds),
             "by": the incident that took it, "taken_at", "ticket" and "asked_at" of a check that is out,
             "failed": checks that failed in a row, "why": what the last of them said}

It has no `name`: it gets one, and work, by the scheduler's Join alone. With `admitted_at` it is a
spare no longer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from planaria.core.incident import ACTIVE, split_incident_id
from planaria.core.ledger import Ledger
from planaria.core.plans import is_gone
from planaria.core.policy import Policy
from planaria.core.table import Row

POOL = "POOL"
LISTING = "SPARE"
STALE_CHECKS = 3
"""A spare that was not checked for as many periods is not given away before it is."""

STALE_FLOOR_SECONDS = 900.0
"""Sweep checks once a minute and a few at a time, however short the period is."""


class SpareState(StrEnum):
    """FILLING boots; FREE stands by; TAKEN has a failed node to stand in for; LEFT is out of the pool and to
    be terminated."""

    FILLING = "FILLING"
    FREE = "FREE"
    TAKEN = "TAKEN"
    LEFT = "LEFT"


def pool_key(group: str) -> tuple[str, str]:
    return f"SPARE#{group}", POOL


def slot_key(group: str, number: int) -> tuple[str, str]:
    return f"SPARE#{group}", f"SLOT#{number:05d}"


def state_of(row: Row) -> SpareState | None:
    """None for a node that is no spare, or no longer one: it has got a place and work."""
    spare = row.get("spare")
    if not isinstance(spare, Mapping) or row.get("admitted_at"):
        return None
    return SpareState(spare["state"]) if spare.get("state") in set(SpareState) else None


def taken_for(row: Row) -> str:
    """The node whose place a TAKEN spare is to take, else ""."""
    if state_of(row) is not SpareState.TAKEN:
        return ""
    return split_incident_id(str(row["spare"]["by"]))[0]


def lost_to(row: Row, node: str) -> bool:
    """This replacement of `node` has been given back to the pool, or belongs to another incident by now."""
    state = state_of(row)
    return state is not None and (state is not SpareState.TAKEN or taken_for(row) != node)


def refusal(row: Row) -> str:
    """Why a person's order on this node is refused, "" where it is no spare."""
    if state_of(row) is None:
        return ""
    return (
        f"{row['node_id']} is a spare of node group {row.get('group')} without a place or work, so there is "
        "nothing to heal; to be rid of it terminate the instance in EC2: another one is launched for it"
    )


def unfit(row: Row) -> str:
    """Why a node can be no spare (any more), "" when it can. One that boots still may become one."""
    if is_gone(row) or (row.get("state") or "running") not in ("pending", "running"):
        return f"the instance is {row.get('state') or 'gone'}"
    if "terminate" in (row.get("acts") or {}):
        return "it is being terminated"
    if row.get("lost"):
        return str(row["lost"])
    if row.get("quarantined"):
        return "its hardware is quarantined"
    check = row.get("check")
    if isinstance(check, Mapping) and not check.get("passed"):
        return f"it did not pass its check: {check.get('reason') or 'no reason given'}"
    return ""


def not_now(row: Row, policy: Policy, now: float) -> str:
    """Why this FREE spare may not be given away at this moment, "" when it may."""
    spare = row["spare"]
    if why := unfit(row):
        return why
    if "ready_at" not in row:
        return "it has not reported yet"
    if row.get("opted_out") or row.get("held_since") or row.get("phase") in ACTIVE:
        return "it is left alone for now"
    if spare.get("failed"):
        return "its last check failed"
    age = now - float(spare.get("checked_at") or 0.0)
    if age > max(STALE_CHECKS * policy.spare_check_seconds, STALE_FLOOR_SECONDS):
        return f"its last check was {age:.0f} s ago"
    return ""


def unlike(failed: Row, row: Row) -> tuple[bool, bool]:
    """Is this spare in another zone, is it of another type than the failed node? EFA crosses no zone, so that
    goes before every nearness within one."""
    elsewhere = bool(failed.get("zone")) and row.get("zone") != failed["zone"]
    other = bool(failed.get("instance_type")) and row.get("instance_type") != failed["instance_type"]
    return elsewhere, other


def best_first(failed: Row, row: Row) -> tuple[Any, ...]:
    """Sort key of spares for a failed node: same zone and type, then the one that was checked last."""
    return *unlike(failed, row), -float(row["spare"].get("checked_at") or 0.0), row["node_id"]


@dataclass(frozen=True, slots=True)
class View:
    """A pool as it was read: its slots by number, and the node rows of the spares in them by instance id."""

    group: str
    head: Row
    slots: Mapping[int, Row]
    nodes: Mapping[str, Row]

    def of(self, *states: SpareState) -> list[Row]:
        return [row for row in self.nodes.values() if state_of(row) in states and not is_gone(row)]

    @property
    def filling(self) -> list[Row]:
        """Slots that a refill is at."""
        return [slot for slot in self.slots.values() if slot.get("phase") in ACTIVE]

    def waiting(self, now: float) -> list[Row]:
        """Vacant slots whose last refill failed and that are not tried again yet."""
        return [s for s in self.slots.values() if self._vacant(s) and float(s.get("retry_at") or 0.0) > now]

    def vacant(self, now: float | None = None) -> int:
        """The number of a slot that a node may be put in. With `now` none that is to wait."""
        for number, slot in sorted(self.slots.items()):
            rests = now is not None and float(slot.get("retry_at") or 0.0) > now
            if self._vacant(slot) and not rests:
                return number
        return max(self.slots, default=0) + 1

    def missing(self, target: int, now: float) -> int:
        """How many refills are to begin now."""
        there = len(self.of(SpareState.FREE)) + len(self.filling) + len(self.waiting(now))
        return max(0, target - there)

    def _vacant(self, slot: Row) -> bool:
        if slot.get("phase") in ACTIVE:
            return False
        # A spare that an incident has taken keeps its slot until it is admitted: it may come back, and
        # whoever took it must find it again.
        row = self.nodes.get(str(slot.get("instance_id")))
        return row is None or is_gone(row) or state_of(row) not in (SpareState.FREE, SpareState.TAKEN)


def read(ledger: Ledger, group: str) -> View:
    """Slots first, nodes after: what a refill has ended by then is FREE by then."""
    rows = ledger.table.query(pool_key(group)[0])
    head = next((row for row in rows if row["sk"] == POOL), {})
    slots = {int(row["slot"]): row for row in rows if "slot" in row}
    instances = {str(slot["instance_id"]) for slot in slots.values() if slot.get("instance_id")}
    nodes = {row["node_id"]: row for row in ledger.nodes_by_id(sorted(instances))}
    return View(group, head, slots, nodes)
