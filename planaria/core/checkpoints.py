"""Which checkpoint a resume starts from."""

from collections.abc import Mapping, Sequence
from typing import Any

from planaria.core.errors import PermanentError

NO_CHECKPOINT = -1


def choose(steps: Sequence[Mapping[str, Any]]) -> tuple[int, str]:
    """The newest complete step and why, from `{"step", "state", "reason"}` entries in any order.

    (-1, reason) only when no step was ever completed and none is damaged: then step 0 is the truth, and it
    is said. Raises PermanentError rather than start from a partial, corrupt or foreign copy, or silently
    from step 0.
    """
    complete = [int(entry["step"]) for entry in steps if entry["state"] == "complete"]
    passed_over = [entry for entry in steps if entry["state"] != "complete"]
    if complete:
        newest = max(complete)
        newer = sorted(
            (f"step {e['step']} is {e['state']}" for e in passed_over if int(e["step"]) > newest),
            reverse=True,
        )
        return (
            newest,
            f"newest complete step; passed over: {', '.join(newer)}" if newer else "newest complete step",
        )
    damaged = [entry for entry in passed_over if entry["state"] != "partial"]
    if damaged:
        worst = damaged[0]
        raise PermanentError(
            f"no complete checkpoint; step {worst['step']} is {worst['state']} ({worst.get('reason', '')}): "
            "a person must decide whether to start from step 0"
        )
    return NO_CHECKPOINT, "no checkpoint was completed yet, so the job starts from step 0"
