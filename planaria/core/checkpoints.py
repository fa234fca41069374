"""Which checkpoint a resume starts from: the newest usable one on the job's line, from the nearest tier."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planaria.core import lineage, listed_steps
from planaria.core.errors import PermanentError
from planaria.core.lineage import UNKNOWN, Key, key_of
from planaria.core.saved_step import StepCopy, StepState, Tier

NO_CHECKPOINT = -1

NOTHING: Mapping[str, Mapping[str, Any]] = {}

MOST_TOLD = 12
"""Steps that a reason names; of the others it tells how many they are."""

_NEAREST = tuple(Tier)
_WORST = (StepState.CORRUPT, StepState.FOREIGN)


@dataclass(frozen=True, slots=True)
class Choice:
    """copies: every usable copy of the step that is the same one, the nearest first; none, with step -1,
    where no step was ever completed. passed_over: what is newer or off the line, one sentence each."""

    step: int
    copies: tuple[StepCopy, ...]
    why: str
    passed_over: tuple[str, ...] = ()

    @property
    def copy(self) -> StepCopy | None:
        return self.copies[0] if self.copies else None


def choose_copy(
    copies: Iterable[StepCopy],
    job: str = "",
    aside: Mapping[str, Mapping[str, Any]] = NOTHING,
    starts: Mapping[int, int] = UNKNOWN,
) -> Choice:
    """From the copies of all tiers, in any order; of another job's than `job` ("": any) none is chosen.

    aside: step -> {"why", "copy"} of those that are not to be used; one that was saved at another time than
    `copy` is another one. starts: as lineage.line. Step -1 only where nothing was ever complete and nothing
    is damaged: then step 0 is the truth, and it is said. Raises PermanentError rather than start from a copy
    that is partial, corrupt, foreign, set aside or left behind, or silently from step 0.
    """
    mine = [_of_job(copy, job) for copy in copies]
    order = lineage.line(mine, starts)
    usable: dict[Key, list[StepCopy]] = {}
    for copy in sorted((each for each in mine if each.usable), key=_near):
        usable.setdefault(key_of(copy), []).append(copy)
    for key in order:
        good = [copy for copy in usable.get(key, ()) if not is_aside(copy, aside)]
        if good:
            same = [copy for copy in good if is_same(copy, good[0])]
            said = _passed_over(mine, order, key, aside)
            told = f"; passed over: {_listed(said)}" if said else ""
            where = "" if good[0].tier is Tier.FSX else f" (in {good[0].tier.value})"
            return Choice(key[1], tuple(same), f"newest complete step{where}{told}", said)
    _refuse_or_begin(mine, order, aside)
    return Choice(NO_CHECKPOINT, (), "no checkpoint was completed yet, so the job starts from step 0")


def _refuse_or_begin(
    mine: Sequence[StepCopy], order: Sequence[Key], aside: Mapping[str, Mapping[str, Any]]
) -> None:
    """Nothing on the line can be used: raises PermanentError unless nothing was ever there."""
    newest = sorted(mine, key=key_of, reverse=True)
    set_aside = [copy for copy in newest if copy.usable and is_aside(copy, aside)]
    behind = [copy for copy in newest if copy.usable and key_of(copy) not in order]
    damaged = sorted(
        (copy for copy in newest if copy.state in _WORST), key=lambda copy: _WORST.index(copy.state)
    )
    if set_aside:
        told = _listed(dict.fromkeys(_set_aside(copy, aside) for copy in set_aside), "; ")
        raise PermanentError(
            f"the job fails from every checkpoint that is kept ({told}); it is not started from step 0"
        )
    if behind:
        told = _listed(dict.fromkeys(_left_behind(copy) for copy in behind), "; ")
        raise PermanentError(
            f"no complete checkpoint that the newest attempt goes on from ({told}): "
            "a person must decide where the job starts"
        )
    if damaged:
        worst = damaged[0]
        raise PermanentError(
            f"no complete checkpoint; step {worst.step} is {worst.state.value} ({worst.reason}): "
            "a person must decide whether to start from step 0"
        )


def choose(
    steps: Sequence[Mapping[str, Any]], aside: Mapping[str, Mapping[str, Any]] = NOTHING
) -> tuple[int, str]:
    """(step, why) from the entries of one node's list, as choose_copy."""
    choice = choose_copy(listed_steps.copies({"steps": steps}, ""), "", aside)
    return choice.step, choice.why


def copy_of(steps: Sequence[Mapping[str, Any]], step: int) -> Any:
    """What tells this copy of a step from another one: when it was saved, None where that is not told."""
    return next(
        (entry.get("saved_at", entry.get("at")) for entry in steps if int(entry["step"]) == step), None
    )


def is_aside(copy: StepCopy, aside: Mapping[str, Mapping[str, Any]]) -> bool:
    """aside: as choose_copy."""
    mark = aside.get(str(copy.step))
    return mark is not None and mark.get("copy") == copy.saved_at


def is_same(one: StepCopy, other: StepCopy) -> bool:
    """Two copies of what was saved once."""
    if one.digest or other.digest:
        return one.digest == other.digest
    return key_of(one) == key_of(other) and one.saved_at == other.saved_at


def _of_job(copy: StepCopy, job: str) -> StepCopy:
    if job and copy.usable and copy.lineage is not None and copy.lineage.job != job:
        return replace(copy, state=StepState.FOREIGN, reason=f"it belongs to the job {copy.lineage.job!r}")
    if copy.usable and copy.step < 0:
        return replace(copy, state=StepState.FOREIGN, reason="nothing tells which step it is")
    return copy


def _near(copy: StepCopy) -> tuple[int, bool, float]:
    """Of two in one tier the proven one, then the one that was saved last."""
    return (_NEAREST.index(copy.tier), copy.state is not StepState.DURABLE, -(copy.saved_at or 0.0))


def _passed_over(
    mine: Sequence[StepCopy], order: Sequence[Key], chosen: Key, aside: Mapping[str, Mapping[str, Any]]
) -> tuple[str, ...]:
    """Everything of a higher number or of a later attempt than the chosen step, and why it was not taken."""
    several = len({copy.tier for copy in mine}) > 1
    found: dict[str, None] = {}
    for copy in sorted(mine, key=key_of, reverse=True):
        key = key_of(copy)
        newer = copy.step > chosen[1] or (copy.usable and key > chosen)
        if key == chosen or not newer:
            continue
        if not copy.usable:
            where = f" in {copy.tier.value}" if several else ""
            reason = f" ({copy.reason})" if copy.reason else ""
            found[f"step {copy.step} is {copy.state.value}{where}{reason}"] = None
        elif is_aside(copy, aside):
            found[_set_aside(copy, aside)] = None
        elif key not in order:
            found[_left_behind(copy)] = None
    return tuple(found)


def _set_aside(copy: StepCopy, aside: Mapping[str, Mapping[str, Any]]) -> str:
    return f"step {copy.step} is set aside ({aside[str(copy.step)]['why']})"


def _left_behind(copy: StepCopy) -> str:
    return f"step {copy.step} is of attempt {key_of(copy)[0]}, from where no later one went on"


def _listed(said: Iterable[str], between: str = ", ") -> str:
    told = list(said)
    more = len(told) - MOST_TOLD
    return between.join([*told[:MOST_TOLD], *([f"and {more} more"] if more > 0 else [])])
