"""Checkpoint steps as scripts and as people see them. docs/cli.md has the keys."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from planaria.cli import screen
from planaria.cli.bars import size
from planaria.core.manifest import Lineage
from planaria.core.saved_step import StepCopy, StepState, Tier

Document = dict[str, Any]

COLOURS = {
    StepState.DURABLE: "green",
    StepState.COMPLETE: "cyan",
    StepState.PARTIAL: "yellow",
    StepState.FOREIGN: "magenta",
    StepState.CORRUPT: "bold red",
}
_BEST = (StepState.DURABLE, StepState.COMPLETE, StepState.CORRUPT, StepState.PARTIAL, StepState.FOREIGN)
_NEAREST = tuple(Tier)
ARROW = "→"


@dataclass(slots=True)
class Listed:
    """All copies of one step. chosen: a resume would take one of them."""

    copies: list[StepCopy]
    chosen: bool = False
    pinned: str = ""
    order: tuple[int, int, float] = field(default=(0, 0, 0.0))

    @property
    def best(self) -> StepCopy:
        return min(self.copies, key=lambda copy: (_BEST.index(copy.state), _NEAREST.index(copy.tier)))

    @property
    def lineage(self) -> Lineage | None:
        return next((copy.lineage for copy in self.copies if copy.lineage is not None), None)

    @property
    def reason(self) -> str:
        """Of a good step: also what is wrong with its other copies."""
        best = self.best
        said = [best.reason] if best.reason else []
        if best.usable:
            said += [f"{copy.tier.value}: {_bad(copy)}" for copy in self.copies if not copy.usable]
        return "; ".join(said)


def _bad(copy: StepCopy) -> str:
    return f"{copy.state.value}, {copy.reason}" if copy.reason else copy.state.value


def listed(copies: Iterable[StepCopy], chosen: StepCopy | None) -> list[Listed]:
    """One entry for each step, newest first: by attempt and step, those that belong to no lineage at the end.

    Copies of one number are one step unless their lineages differ; what has no number stands by itself.
    """
    steps: dict[tuple[object, ...], Listed] = {}
    rows = sorted(copies, key=lambda copy: (copy.lineage is None, _NEAREST.index(copy.tier), copy.place))
    for copy in rows:
        into = None
        if copy.step >= 0:
            same = [one for key, one in steps.items() if key[0] == copy.step]
            into = next((one for one in same if copy.lineage in (None, one.lineage)), None)
        if into is None:
            key = (copy.step, copy.lineage, copy.place if copy.step < 0 else "")
            into = steps.setdefault(key, Listed([]))
        into.copies.append(copy)
    for one in steps.values():
        one.chosen = chosen is not None and chosen in one.copies
        one.pinned = next((copy.pinned for copy in one.copies if copy.pinned), "")
        mine = one.best.state is not StepState.FOREIGN and one.lineage is not None
        attempt = one.lineage.attempt if one.lineage is not None and mine else -1
        one.order = (attempt, one.best.step, one.best.saved_at or 0.0)
    return sorted(steps.values(), key=lambda one: one.order, reverse=True)


def document(one: Listed) -> Document:
    """The object of one step in `planaria checkpoints list --json`."""
    best, lineage = one.best, one.lineage
    return {
        "step": best.step,
        "state": best.state.value,
        "reason": one.reason,
        "bytes": best.size,
        "lineage": lineage_document(lineage),
        "tiers": sorted(
            {copy.tier.value for copy in one.copies}, key=lambda tier: _NEAREST.index(Tier(tier))
        ),
        "chosen": one.chosen,
        "saved_at": screen.iso(best.saved_at),
        "pinned": one.pinned or None,
        "copies": [
            {
                "tier": copy.tier.value,
                "state": copy.state.value,
                "reason": copy.reason,
                "bytes": copy.size,
                "place": copy.place,
            }
            for copy in one.copies
        ],
    }


def lineage_document(lineage: Lineage | None) -> Document | None:
    if lineage is None:
        return None
    return {"job": lineage.job, "attempt": lineage.attempt, "parent_step": lineage.parent_step}


def state_word(state: StepState) -> Text:
    return Text(state.value, style=COLOURS[state])


def name_of(copy: StepCopy) -> str:
    """The step's number, or the directory's name where it tells none."""
    return str(copy.step) if copy.step >= 0 else copy.name


def picture(steps: Sequence[Listed], now: float) -> Table:
    """The list for people."""
    columns = ("", "STEP", "STATE", "SIZE", "SAVED", "ATTEMPT", "FROM", "WHERE", "WHY")
    return screen.table(columns, [_row(one, now) for one in steps], fold=("WHY",))


def _row(one: Listed, now: float) -> tuple[object, ...]:
    best, lineage = one.best, one.lineage
    why = [f"pinned: {one.pinned}"] if one.pinned else []
    why += [one.reason] if one.reason else []
    return (
        Text(ARROW if one.chosen else " ", style="bold green"),
        Text(name_of(best).rjust(6), style="bold" if best.usable else "dim"),
        state_word(best.state),
        Text(size(best.size).rjust(9)) if best.size else None,
        screen.ago(best.saved_at, now) or None,
        None if lineage is None else str(lineage.attempt),
        _parent(lineage),
        " ".join(dict.fromkeys(copy.tier.value for copy in one.copies)),
        Text(screen.clean("; ".join(why)), style="dim"),
    )


def _parent(lineage: Lineage | None) -> str | None:
    if lineage is None:
        return None
    return "start" if lineage.parent_step < 0 else str(lineage.parent_step)
