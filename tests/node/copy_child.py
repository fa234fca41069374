"""A carrier in a process of its own that kills itself (SIGKILL) at the n-th point that is told to it.

    python -m tests.node.copy_child '{"verb", "folder", "bucket", "table", "transfer", "step", "mode", ...}'

A point is the moment before or after a request to S3, a write of the ledger, or a change of the file
system that is not a write of bytes. Requests come from several threads: which of them is the n-th may
differ from run to run, and whichever it is must do. It prints how many points there were.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3

from planaria.aws import crt, small_objects
from planaria.core.transfers import MIB, Mode
from tests.node.transfer_world import FileTable, World

_lock = threading.Lock()
_count = 0


def reached(point: int) -> None:
    global _count
    with _lock:
        _count += 1
        if _count == point:
            os.kill(os.getpid(), signal.SIGKILL)


def around(owner: Any, name: str, point: int) -> None:
    """Before and after each call of it."""
    real: Callable[..., Any] = getattr(owner, name)

    def counted(*given: Any, **named: Any) -> Any:
        reached(point)
        answer = real(*given, **named)
        reached(point)
        return answer

    setattr(owner, name, counted)


def main() -> None:
    told = json.loads(sys.argv[1])
    from planaria.core import transfers
    from planaria.node import carry

    transfers.SPLIT = 16 * MIB
    carry.RANGE = 8 * MIB
    point = int(told["point"])
    for owner, name in (
        (crt.Call, "reply"),
        (small_objects.SmallObjects, "ask"),
        (FileTable, "write"),
        (os, "rename"),
        (os, "link"),
        (os, "unlink"),
        (os, "ftruncate"),
    ):
        around(owner, name, point)
    world = World(
        Path(told["folder"]), told["bucket"], boto3.client("s3"), FileTable(Path(told["table"])), told["now"]
    )
    match told["verb"]:
        case "plan":
            answer = world.plan(told["step"], told["transfer"], Mode(told["mode"]), 2)
        case "run":
            answer = world.run(told["transfer"])
        case _:
            answer = world.settle(told["transfer"])
    print(json.dumps({"answer": answer, "points": _count}))  # noqa: T201
    sys.stdout.flush()
    os._exit(0)  # threads of the runtime may be about to count on


if __name__ == "__main__":
    main()
