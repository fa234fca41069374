"""Reads the state machines' ASL files as text: placeholders and scaled time-outs. No CDK."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MACHINES = (
    "heal_node",
    "resume_job",
    "isolate_node",
    "launch_replacement",
    "refill_spares",
    "restore_checkpoint",
    "sync_checkpoints",
)
TOPIC_PLACEHOLDER = "notices"
FLOOR_SECONDS = 3

_PLACEHOLDER = re.compile(r"\$\{([A-Za-z]\w*)\}")
_TIMEOUTS = ("TimeoutSeconds", "HeartbeatSeconds")


def path(root: Path, machine: str) -> Path:
    return root / "statemachines" / f"{machine}.asl.json"


def placeholders(text: str) -> tuple[str, ...]:
    """The names in `${...}`, each once, sorted."""
    return tuple(sorted(set(_PLACEHOLDER.findall(text))))


def scaled(text: str, time_scale: float) -> str:
    """The same machine with every time-out multiplied by `time_scale`, rounded up, at least 3 s.

    Raises ValueError when the text is no JSON or a time-out is not a literal number.
    """
    machine = json.loads(text)
    if time_scale != 1:
        for state in _timed(machine):
            for key in _TIMEOUTS:
                if key in state:
                    state[key] = _seconds(key, state[key], time_scale)
    return json.dumps(machine, indent=1)


def _seconds(key: str, value: Any, time_scale: float) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{key} must be a literal whole number of seconds, not {value!r}")
    return max(FLOOR_SECONDS, math.ceil(round(value * time_scale, 6)))


def _timed(machine: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The machine itself and every state in it, however deep; never the data inside a state."""
    yield machine
    for state in machine.get("States", {}).values():
        inner = [*state.get("Branches", []), state.get("ItemProcessor"), state.get("Iterator")]
        yield state
        for part in inner:
            if part:
                yield from _timed(part)
