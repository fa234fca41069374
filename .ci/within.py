"""Run a command within a time limit and leave none of its processes behind.

    python3 .ci/within.py SECONDS COMMAND...

This process becomes the reaper of all orphans below it (PR_SET_CHILD_SUBREAPER), so that also what left
its process group or session is found and ended. Ends with the command's own status, with 124 when the
time was over, with 128 + N after signal N.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 3.0


def descendants() -> list[int]:
    """The pids of all living processes below this one, zombies not counted."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    level = [os.getpid()]
    while level:
        level = [child for parent in level for child in children.get(parent, [])]
        found += level
    return found


def end_all() -> list[int]:
    """SIGTERM to all descendants, SIGKILL to what is left after a grace; returns those that were there."""
    there = descendants()
    for sign, patience in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, GRACE_SECONDS)):
        deadline = time.monotonic() + patience
        while (living := descendants()) and time.monotonic() < deadline:
            for pid in living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, sign)
            time.sleep(0.1)
    return there


def stop(number: int, _: object) -> None:
    end_all()
    os._exit(128 + number)


def main() -> int:
    seconds, command = float(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        code = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        print(f"ci: {' '.join(command)} did not end within {seconds:.0f} s", file=sys.stderr, flush=True)
        code = 124
    if code < 0:
        code = 128 - code
    # What ends by itself may do so; whatever is left then is a leak and is named.
    deadline = time.monotonic() + GRACE_SECONDS
    while code != 124 and descendants() and time.monotonic() < deadline:
        time.sleep(0.1)
    names = {}
    for pid in descendants():
        with contextlib.suppress(OSError):
            names[pid] = (
                Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
    end_all()
    for pid, name in names.items():
        print(f"ci: still ran and was ended: {pid} {name[:150]}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
