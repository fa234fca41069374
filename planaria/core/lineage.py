"""The order of a job's steps: by attempt, then by number, along the line that its newest attempt continues.

An attempt that went back to step 1000 leaves what an older one saved above 1000 behind. Such steps are off
the line, however high their number is; older steps at or below 1000 are on it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from planaria.core.manifest import NO_STEP, Lineage
from planaria.core.saved_step import StepCopy

Key = tuple[int, int]
"""(attempt, step): sorts by age. Two copies with one key are the same step, saved once or twice."""

UNKNOWN: Mapping[int, int] = {}


def key_of(copy: StepCopy) -> Key:
    """Without a manifest it counts as saved before the first attempt that is known."""
    return (copy.lineage.attempt if copy.lineage else 0, copy.step)


def line(
    copies: Iterable[StepCopy], starts: Mapping[int, int] = UNKNOWN, attempt: int | None = None
) -> list[Key]:
    """The steps that an attempt goes on from, its own included, the newest first. None: the newest attempt
    that has saved anything.

    starts: attempt -> the step that it started from, where the job's row tells; else the parent of the lowest
    step that is known of it. Where neither tells, older attempts' steps below its lowest one count.
    """
    parents: dict[int, dict[int, int]] = {}
    for copy in copies:
        if copy.lineage is not None or copy.usable:
            number, step = key_of(copy)
            parent = copy.lineage.parent_step if copy.lineage else NO_STEP
            known = parents.setdefault(number, {})
            known[step] = max(known.get(step, NO_STEP), parent)
    found: list[Key] = []
    limit: int | None = None
    follow = max(parents, default=0) if attempt is None else attempt
    if follow not in parents and follow in starts:
        limit = starts[follow]
        follow = _owner(parents, follow, limit)
    for number in sorted(parents, reverse=True):
        own = [step for step in parents[number] if limit is None or step <= limit]
        if number > follow or not own:
            continue
        found += [(number, step) for step in sorted(own, reverse=True)]
        lowest = min(own)
        told = (parents[number][lowest], starts.get(number, NO_STEP))
        limit = min((step for step in told if NO_STEP < step < lowest), default=lowest - 1)
        follow = _owner(parents, number, limit)
    return found


def _owner(parents: Mapping[int, Mapping[int, int]], attempt: int, start: int) -> int:
    """The attempt that saved the very step from which this one started: those between have no part in it."""
    owners = [older for older in parents if older < attempt and start in parents[older]]
    return max(owners, default=attempt - 1)


def starts_of(attempts: Mapping[str, Mapping[str, Any]]) -> dict[int, int]:
    """attempt -> the step that it started from, of a job row's `attempts`, where it tells one."""
    told = {int(number): entry.get("step") for number, entry in attempts.items()}
    return {number: int(step) for number, step in told.items() if step is not None and int(step) > NO_STEP}


def left_behind(attempts: Mapping[str, Mapping[str, Any]], attempt: int, step: int) -> bool:
    """A later attempt of this job row's `attempts` went back to before this step."""
    return any(later > attempt and start < step for later, start in starts_of(attempts).items())


def of_saved_at(job: str, attempts: Mapping[str, Mapping[str, Any]], step: int, saved_at: float) -> Lineage:
    """The lineage of a step that was saved without us: that of the attempt which ran at the time.

    The attempt of now would make a stale step, looked at late, the newest one. attempts: of the job's row;
    saved_at: epoch seconds.
    """
    begun = {int(number): float(entry.get("at") or 0.0) for number, entry in attempts.items()}
    ran = [number for number, at in begun.items() if at <= saved_at]
    attempt = max(ran, default=max(min(begun, default=1) - 1, 0))
    parent = starts_of(attempts).get(attempt, NO_STEP)
    return Lineage(job, attempt, parent if parent < step else NO_STEP)
