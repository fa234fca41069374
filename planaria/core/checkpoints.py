"""Which checkpoint a resume starts from."""

from collections.abc import Mapping, Sequence
from typing import Any

from planaria.core.errors import PermanentError

NO_CHECKPOINT = -1

NOTHING: Mapping[str, Mapping[str, Any]] = {}


def choose(
    steps: Sequence[Mapping[str, Any]], aside: Mapping[str, Mapping[str, Any]] = NOTHING
) -> tuple[int, str]:
    """The newest complete step and why, from `{"step", "state", "reason", "at"}` entries in any order.

    aside: step -> {"why", "copy"} of those that are not to be used; a copy that was saved at another time
    than `copy` (`at`, where the list tells it) is another one. (-1, reason) only when no step was ever
    completed and none is damaged: then step 0 is the truth, and it is said. Raises PermanentError rather than
    start from a partial, corrupt, foreign or set-aside copy, or silently from step 0.
    """
    complete = [entry for entry in steps if entry["state"] == "complete"]
    usable = [int(entry["step"]) for entry in complete if not _is_aside(entry, aside)]
    passed_over = [entry for entry in steps if entry["state"] != "complete"]
    if usable:
        newest = max(usable)
        newer = [f"step {e['step']} is {e['state']}" for e in passed_over if int(e["step"]) > newest]
        newer += [_said(entry, aside) for entry in complete if int(entry["step"]) > newest]
        newer.sort(reverse=True)
        return (
            newest,
            f"newest complete step; passed over: {', '.join(newer)}" if newer else "newest complete step",
        )
    if complete:
        told = "; ".join(_said(entry, aside) for entry in sorted(complete, key=lambda e: -int(e["step"])))
        raise PermanentError(
            f"the job fails from every checkpoint that is kept ({told}); it is not started from step 0"
        )
    damaged = [entry for entry in passed_over if entry["state"] != "partial"]
    if damaged:
        worst = damaged[0]
        raise PermanentError(
            f"no complete checkpoint; step {worst['step']} is {worst['state']} ({worst.get('reason', '')}): "
            "a person must decide whether to start from step 0"
        )
    return NO_CHECKPOINT, "no checkpoint was completed yet, so the job starts from step 0"


def copy_of(steps: Sequence[Mapping[str, Any]], step: int) -> Any:
    """What tells this copy of a step from another one: when it was saved, None where that is not told."""
    return next((entry.get("at") for entry in steps if int(entry["step"]) == step), None)


def _is_aside(entry: Mapping[str, Any], aside: Mapping[str, Mapping[str, Any]]) -> bool:
    mark = aside.get(str(entry["step"]))
    return mark is not None and mark.get("copy") == entry.get("at")


def _said(entry: Mapping[str, Any], aside: Mapping[str, Mapping[str, Any]]) -> str:
    return f"step {entry['step']} is set aside ({aside[str(entry['step'])]['why']})"
