"""Process groups, read from /proc: who is alive, and how to end them all."""

import contextlib
import os
import signal
import time
from pathlib import Path

POLL_SECONDS = 0.02


def started_at(pid: int) -> int | None:
    """Clock ticks since boot at which this process started; None when it is gone or a zombie.

    With the pid it names a process for good: pids are used again, pairs are not.
    """
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


def members(group: int) -> list[int]:
    """The pids of the living processes of a process group, zombies not counted."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat(int(entry))
            if fields and int(fields[2]) == group and fields[0] not in "ZX":
                found.append(int(entry))
    return found


def end_group(group: int, grace: float = 1.0) -> None:
    """SIGTERM to a process group, SIGKILL to what is left after `grace` seconds; returns when it is empty.

    A group that does not exist is no error.
    """
    for sign, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, sign)
        deadline = time.monotonic() + patience
        while members(group):
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        else:
            return


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat after the command's name: state, ppid, pgrp, ... (proc(5))."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
