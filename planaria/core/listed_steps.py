"""What a node tells of a job's folder (document planaria-list-checkpoints), read with care.

    {"steps": [as StepCopy.document() gives it: `directory` is the name of the step's own], newest first}

What is missing or of a wrong type has its default; an entry without `attempt` has no lineage that is known,
and one that says nothing of its state counts as partial: it is never chosen.
"""

from collections.abc import Mapping
from typing import Any

from planaria.core.manifest import NO_STEP, Format, Lineage
from planaria.core.saved_step import StepCopy, StepState, Tier

MOST = 1000


def copies(answer: object, job: str, folder: str = "") -> list[StepCopy]:
    """The steps of one folder, in the order of the answer; `place` is the step's own directory."""
    entries = answer.get("steps") if isinstance(answer, Mapping) else None
    return [_copy(entry, job, folder) for entry in list(entries or ())[:MOST] if isinstance(entry, Mapping)]


def _copy(entry: Mapping[str, Any], job: str, folder: str) -> StepCopy:
    state, form = str(entry.get("state")), str(entry.get("format"))
    name = str(entry.get("directory") or "")
    return StepCopy(
        step=_whole(entry.get("step"), NO_STEP),
        tier=Tier.FSX,
        state=StepState(state) if state in set(StepState) else StepState.PARTIAL,
        place=f"{folder.rstrip('/')}/{name}" if folder and name else name,
        reason=str(entry.get("reason") or ""),
        size=_whole(entry.get("size"), 0),
        lineage=_lineage(entry, job),
        saved_at=_seconds(entry.get("saved_at", entry.get("at"))),
        touched_at=_seconds(entry.get("touched_at")),
        digest=str(entry.get("digest") or ""),
        format=Format(form) if form in set(Format) else None,
        pinned=str(entry.get("pinned") or ""),
    )


def _lineage(entry: Mapping[str, Any], job: str) -> Lineage | None:
    if entry.get("attempt") is None:
        return None
    named = str(entry.get("job") or job)
    return Lineage(named, _whole(entry["attempt"], 0), _whole(entry.get("parent_step"), NO_STEP))


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: object, otherwise: int) -> int:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else otherwise
