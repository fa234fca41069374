"""One step of a job's checkpoints, in one place."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from planaria.core.manifest import NO_STEP, Format, Lineage

HIGHEST_STEP = 10**12 - 1
"""No run takes more: a larger number is a time, a count of tokens or a mistake."""
_FAR = 1000
_ALWAYS_NEAR = 10**6


class StepState(StrEnum):
    """DURABLE: every object of its manifest is in S3 with the right size and checksum. COMPLETE: every file
    of it is there, and not proven in S3. PARTIAL: a save or a copy that did not finish, or is under way.
    FOREIGN: another job's, one without a manifest, or nothing that we can read. CORRUPT: complete once, and
    no longer what it was."""

    DURABLE = "durable"
    COMPLETE = "complete"
    PARTIAL = "partial"
    FOREIGN = "foreign"
    CORRUPT = "corrupt"


USABLE = frozenset({StepState.DURABLE, StepState.COMPLETE})


class Tier(StrEnum):
    """Where a copy is, the nearest first: a node's memory, a peer's memory, FSx for Lustre, S3."""

    MEMORY = "memory"
    PEER = "peer"
    FSX = "fsx"
    S3 = "s3"


@dataclass(frozen=True, slots=True)
class StepCopy:
    """step: -1 where the name tells none. place: its directory's path, or `s3://bucket/prefix` without a
    final slash. reason: empty where it is usable, else one sentence. lineage: None without a manifest that
    can be read. saved_at: epoch seconds, None where nobody tells; it tells one copy of a step from another.
    touched_at: the newest change of any of its files. digest: of the manifest's bytes, "" without one; two
    copies with one digest are the same. format: also of a step without a manifest, when all that its own
    index names is there. pinned: why it must stay, "" where nobody has pinned it."""

    step: int
    tier: Tier
    state: StepState
    place: str
    reason: str = ""
    size: int = 0
    lineage: Lineage | None = None
    saved_at: float | None = None
    touched_at: float | None = None
    digest: str = ""
    format: Format | None = None
    pinned: str = ""

    @property
    def usable(self) -> bool:
        return self.state in USABLE

    @property
    def sealable(self) -> bool:
        """Whole by its own index, and nothing but the manifest is missing."""
        return self.state is StepState.FOREIGN and self.format is not None and not self.digest

    @property
    def name(self) -> str:
        """Its directory's name, the same in every tier."""
        return self.place.rpartition("/")[2]

    def document(self) -> dict[str, Any]:
        """As `planaria-list-checkpoints` tells it. directory: its name; job, attempt, parent_step: null
        without a manifest that can be read."""
        lineage = self.lineage
        return {
            "step": self.step,
            "state": self.state.value,
            "reason": self.reason,
            "size": self.size,
            "job": lineage and lineage.job,
            "attempt": lineage and lineage.attempt,
            "parent_step": lineage and lineage.parent_step,
            "saved_at": self.saved_at,
            "touched_at": self.touched_at,
            "digest": self.digest,
            "directory": self.name,
            "format": self.format and self.format.value,
            "sealable": self.sealable,
            "pinned": self.pinned,
        }


def newest_first(copies: Iterable[StepCopy]) -> list[StepCopy]:
    """By lineage: a later attempt's step is newer, whatever its number. One of unknown lineage counts as the
    newest attempt's: for a list that people read, not for a choice."""
    listed = list(copies)
    latest = max((copy.lineage.attempt for copy in listed if copy.lineage), default=0)

    def age(copy: StepCopy) -> tuple[int, int, float, str]:
        attempt = copy.lineage.attempt if copy.lineage else latest
        return (attempt, copy.step, copy.saved_at or 0.0, copy.place)

    return sorted(listed, key=age, reverse=True)


def without_implausible(copies: Iterable[StepCopy]) -> list[StepCopy]:
    """The same copies; a usable or sealable one whose number cannot be true is FOREIGN, with the reason.

    A number is wrong above HIGHEST_STEP, at or below its parent's, or where it names no parent and is a
    thousand times the next highest of its job: nothing tells then how the job should have come so far.
    """
    listed = list(copies)
    numbers = sorted({copy.step for copy in listed if copy.usable or copy.sealable})
    return [_plausible(copy, numbers) if copy.usable or copy.sealable else copy for copy in listed]


def implausible(step: int, parent: int, numbers: Iterable[int]) -> str:
    """Why a step's number cannot be true, "" where it can. numbers: of the job's other steps."""
    below = max((number for number in numbers if number < step), default=None)
    if step > HIGHEST_STEP:
        return f"step {step} is higher than any run goes"
    if parent >= step:
        return f"it says that it continues step {parent}, which comes after it"
    if parent == NO_STEP and below is not None and step > max(_ALWAYS_NEAR, _FAR * (below + 1)):
        return f"step {step} is far above the job's step {below}, and it does not say what it continues"
    return ""


def _plausible(copy: StepCopy, numbers: list[int]) -> StepCopy:
    why = implausible(copy.step, copy.lineage.parent_step if copy.lineage else NO_STEP, numbers)
    return replace(copy, state=StepState.FOREIGN, reason=why, format=None) if why else copy
