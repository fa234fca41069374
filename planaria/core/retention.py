"""Which steps of a tier go, and why each other one stays. docs/checkpoints.md explains the rules.

Only durable steps count, and only they may go. None of these ever goes, whatever the rules say: the newest
durable step (of the line and by age, set aside or not), a resume point, a step that something reads or
writes, a pinned one, and the newest durable step that an attempt without a durable one of its own could go
back to.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planaria.core import lineage
from planaria.core.checkpoint_policy import Retention
from planaria.core.checkpoints import NOTHING, is_aside, is_same
from planaria.core.errors import PlanariaError, TransientError
from planaria.core.lineage import UNKNOWN, Key, key_of
from planaria.core.saved_step import StepCopy, StepState, Tier

HOUR = 3600.0
_SKEW = 24 * HOUR
"""Clocks differ; a time further ahead than this tells no age."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the steps themselves do not tell; by step number, so that a fact holds for every attempt's.

    resume_points: steps that an attempt runs from or is about to start from. pinned: step -> why. tags: step
    -> its tags. busy: steps that a save, a copy or a restore works on now -> which. starts: as lineage.line,
    with the attempt that runs now. aside: as checkpoints.choose_copy.
    """

    resume_points: Collection[int] = ()
    pinned: Mapping[int, str] = field(default_factory=dict)
    tags: Mapping[int, Collection[str]] = field(default_factory=dict)
    busy: Mapping[int, str] = field(default_factory=dict)
    starts: Mapping[int, int] = field(default_factory=lambda: UNKNOWN)
    aside: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True)
class Verdict:
    """why: one clause, also of one that goes."""

    copy: StepCopy
    goes: bool
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """verdicts: one for each copy of the tier, the newest first."""

    tier: Tier
    verdicts: tuple[Verdict, ...]

    @property
    def going(self) -> list[StepCopy]:
        """The oldest first: a plan that is broken off has removed what matters least."""
        return [verdict.copy for verdict in reversed(self.verdicts) if verdict.goes]


@dataclass(frozen=True, slots=True)
class Pruned:
    """failed: (step, why it is still there). more: the bound was met, and there may be others."""

    removed: tuple[StepCopy, ...]
    failed: tuple[tuple[StepCopy, str], ...] = ()
    more: bool = False


def plan(
    copies: Iterable[StepCopy], tier: Tier, rules: Retention | None, now: float, facts: Facts | None = None
) -> Plan:
    """copies: of one job, in all tiers that are known. rules: None keeps everything. now: epoch seconds.

    A copy counts as durable in its tier when its state is DURABLE, or when it is whole and a copy with the
    same digest is durable elsewhere: so a file system's copies count once S3 has them.
    """
    listed, facts = list(copies), facts or Facts()
    here = sorted((copy for copy in listed if copy.tier is tier), key=key_of, reverse=True)
    proven = {copy.digest for copy in listed if copy.state is StepState.DURABLE}
    durable = [copy for copy in here if _is_durable(copy, proven)]
    order = lineage.line(listed, facts.starts)
    ranked = _ranked({key_of(copy) for copy in durable}, order)
    needed = _needed(durable, listed, order, facts)
    verdicts = []
    for copy in here:
        stays = _unfit(copy, copy in durable) or _held(copy, facts) or needed.get(key_of(copy), "")
        if stays or rules is None:
            verdicts.append(Verdict(copy, False, stays or f"nothing is ever removed from {tier.value}"))
            continue
        rank = ranked.index(key_of(copy))
        kept = _ruled(copy, rank, rules, now, facts)
        why = kept or f"{rank} newer durable steps are kept, and no rule keeps it"
        verdicts.append(Verdict(copy, not kept, why))
    return Plan(tier, tuple(verdicts))


def carry_out(look: Callable[[], Plan], remove: Callable[[StepCopy], None], most: int = 1000) -> Pruned:
    """Remove what the first plan would, at most `most` of it; before each removal `look` plans on what is
    there then, and only what goes in that plan too is removed.

    remove: raises what the store raises, or any error of ours for a step that is not to go after all. After a
    TransientError nothing more is tried.
    """
    first = look()
    todo, current = first.going[:most], first
    removed: list[StepCopy] = []
    failed: list[tuple[StepCopy, str]] = []
    for copy in todo:
        if copy is not todo[0]:
            current = look()
        if not any(_same_copy(copy, other) for other in current.going):
            continue
        try:
            remove(copy)
        except TransientError as error:
            failed.append((copy, str(error)))
            break
        except PlanariaError as error:
            failed.append((copy, str(error)))
        else:
            removed.append(copy)
    return Pruned(tuple(removed), tuple(failed), len(first.going) > len(todo))


def abandoned(copies: Iterable[StepCopy], before: float, active: Collection[str] = ()) -> list[StepCopy]:
    """Half-written steps that nobody has touched since `before` (epoch seconds). active: names of directories
    that a save or a copy works on now. One whose last change nobody tells is never abandoned."""
    return [
        copy
        for copy in copies
        if copy.state is StepState.PARTIAL
        and copy.touched_at is not None
        and copy.touched_at < before
        and copy.name not in active
        and not copy.pinned
    ]


def _is_durable(copy: StepCopy, proven: Collection[str]) -> bool:
    return copy.state is StepState.DURABLE or (copy.usable and copy.digest != "" and copy.digest in proven)


def _ranked(durable: Collection[Key], order: Sequence[Key]) -> list[Key]:
    """By age, and what the newest attempt does not go on from comes last."""
    on_line = [key for key in order if key in durable]
    return on_line + sorted((key for key in durable if key not in order), reverse=True)


def _unfit(copy: StepCopy, durable: bool) -> str:
    match copy.state:
        case StepState.PARTIAL:
            return "it is being written, or was left half-written: the sweep sees to it"
        case StepState.FOREIGN | StepState.CORRUPT:
            return f"it is {copy.state.value}, which a person may want to look at"
    return "" if durable else "it is not durable yet"


def _held(copy: StepCopy, facts: Facts) -> str:
    if copy.pinned or copy.step in facts.pinned:
        return f"it is pinned ({copy.pinned or facts.pinned[copy.step]})"
    if copy.step in facts.resume_points:
        return "it is a resume point"
    return facts.busy.get(copy.step, "") and f"it is in use ({facts.busy[copy.step]})"


def _needed(
    durable: Sequence[StepCopy], listed: Sequence[StepCopy], order: Sequence[Key], facts: Facts
) -> dict[Key, str]:
    """The steps without which somebody would have nothing to go back to."""
    keys = {key_of(copy) for copy in durable}
    if not keys:
        return {}
    fit = {key_of(copy) for copy in durable if not is_aside(copy, facts.aside)}
    needed: dict[Key, str] = {}
    attempts = {key_of(copy)[0] for copy in listed if copy.usable} | set(facts.starts)
    for attempt in sorted(attempts - {attempt for attempt, _ in keys}):
        back = lineage.line(listed, facts.starts, attempt)
        for some in (keys, fit):
            if newest := next((key for key in back if key in some), None):
                needed[newest] = f"attempt {attempt} has no other durable step to go back to"
    for some in (keys, fit):
        if newest := next((key for key in order if key in some), None):
            needed[newest] = "it is the newest durable step"
        if some:
            needed[max(some)] = "it is the newest durable step"
    return needed


def _ruled(copy: StepCopy, rank: int, rules: Retention, now: float, facts: Facts) -> str:
    if rank < max(rules.keep, 1):
        return f"it is among the newest {max(rules.keep, 1)}"
    saved = _saved(copy, now)
    if rules.keep_seconds and saved is None:
        return "nobody tells its age"
    if rules.keep_seconds and saved is not None and now - saved < rules.keep_seconds:
        return f"it is younger than {rules.keep_seconds / HOUR:g} h"
    if rules.keep_every and copy.step % rules.keep_every == 0:
        return f"its number is a multiple of {rules.keep_every}"
    tagged = sorted(set(rules.keep_tags) & set(facts.tags.get(copy.step, ())))
    return f"it has the tag {tagged[0]}" if tagged else ""


def _saved(copy: StepCopy, now: float) -> float | None:
    """Of what its manifest and its files tell, the first that is not far in the future."""
    told = (at for at in (copy.saved_at, copy.touched_at) if at is not None and at <= now + _SKEW)
    return next(told, None)


def _same_copy(one: StepCopy, other: StepCopy) -> bool:
    return one.place == other.place and key_of(one) == key_of(other) and is_same(one, other)
