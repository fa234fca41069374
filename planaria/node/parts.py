"""The parts of a check, each with its own end; and programs that run for a part, with a deadline."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

KILL_SECONDS = 5.0
"""How long a program that was killed is waited for. One that hangs in the kernel, on a dead GPU or disk,
never ends, and must not hold up the report."""

_TAIL = 300


class State(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Part:
    """What one part found. UNKNOWN: it could not be checked. reason: why, or what is wrong."""

    name: str
    state: State
    reason: str = ""
    seconds: float = 0.0

    def document(self) -> dict[str, Any]:
        said = {"name": self.name, "state": self.state.value, "reason": self.reason}
        return {**said, "seconds": round(self.seconds, 2)}


Finding = tuple[State, str]


def timed(name: str, look: Callable[[], Finding]) -> Part:
    """Run one part. A defect of the part is no finding about the node."""
    began = time.monotonic()
    try:
        state, reason = look()
    except Exception as error:  # noqa: BLE001  the other parts must still be looked at
        state, reason = State.UNKNOWN, f"{type(error).__name__}: {error}"
    return Part(name, state, reason[:_TAIL], time.monotonic() - began)


def verdict(parts: Sequence[Part]) -> dict[str, Any]:
    """{"passed", "reason", "parts"}: passed when no part failed; reason then lists what was not checked."""
    failed = [f"{part.name}: {part.reason}" for part in parts if part.state is State.FAILED]
    unknown = [f"{part.name} ({part.reason})" for part in parts if part.state is State.UNKNOWN]
    reason = "; ".join(failed) if failed else f"not checked: {', '.join(unknown)}" if unknown else ""
    return {"passed": not failed, "reason": reason, "parts": [part.document() for part in parts]}


# --- programs --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended. code: its exit status, negative for a signal; None: it did not end in time."""

    code: int | None
    output: str

    @property
    def tail(self) -> str:
        """Its last line."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return lines[-1][:_TAIL] if lines else "it said nothing"


def find(name: str, folders: Sequence[str] = ()) -> str:
    """The program's path, from PATH or one of these folders (with wildcards), "" when it is not there."""
    found = shutil.which(name)
    if found:
        return found
    for pattern in folders:
        root = Path("/")
        for path in sorted(root.glob(str(Path(pattern.lstrip("/")) / name)), reverse=True):
            if os.access(path, os.X_OK):
                return str(path)
    return ""


def start(command: Sequence[str], output: Any) -> "subprocess.Popen[bytes]":
    """In the caller's own process group: what ends this node ends its checks."""
    return subprocess.Popen(list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)


def run(command: Sequence[str], seconds: float) -> Ended:
    """Run it, for so long at most. Its output goes to a file, so that no grandchild can hold up the end."""
    with tempfile.TemporaryFile() as output:
        process = start(command, output)
        code = wait(process, seconds)
        output.seek(0)
        return Ended(code, output.read().decode(errors="replace"))


def wait(process: "subprocess.Popen[bytes]", seconds: float) -> int | None:
    """The exit status; None when it did not end in time and was killed."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    try:
        process.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        pass  # it hangs in the kernel; it is left behind
    return None
