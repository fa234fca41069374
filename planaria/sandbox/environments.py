"""Processes that are known by a mark in their environment, whoever started them and whoever is their parent.

Daemons fork, give their children away and outlive who started them. The environment is passed on all the
same, and a mark that holds a folder's path is nobody else's.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

POLL_SECONDS = 0.02
Environment = Mapping[str, str]


def find(wanted: Callable[[Environment], bool]) -> set[int]:
    """The pids of all living processes with such an environment, and of their descendants. This process, and
    those of other users, are never among them."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        pid = int(entry)
        parent, alive = _parent(pid)
        if not alive:
            continue
        parents[pid] = parent
        if wanted(environment(pid)):
            found.add(pid)
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    waiting = list(found)
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found - {os.getpid()}


def end(wanted: Callable[[Environment], bool], number: int = signal.SIGKILL, patience: float = 10.0) -> bool:
    """Send the signal to all of them, again and again, until none is left. False when some still live after
    `patience` seconds."""
    deadline = time.monotonic() + patience
    while pids := find(wanted):
        for pid in pids:
            send(pid, number)
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def send(pid: int, number: int) -> None:
    """One that is gone, or not ours, is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def environment(pid: int) -> dict[str, str]:
    """What the process was started with; empty when it is gone or another user's."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)


def _parent(pid: int) -> tuple[int, bool]:
    """(pid of the parent, is it alive); a zombie is not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0, False
    return int(fields[1]), fields[0] not in "ZX"
