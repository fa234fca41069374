"""A check of this node, as a command.

    python -m planaria.node.check_command --suite light|deep [--hardware FILE] [--state-dir FOLDER]

prints {"passed": bool, "reason": str, "parts": [...]} as JSON. It exits with 0 whatever it finds: another
status means that nothing was found out. Two deep checks at once would disturb each other: the second waits
for the first and gives its answer.
"""

import argparse
import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from planaria.node import deep_check, parts
from planaria.node.check import light
from planaria.node.figures import figures_of, own_instance_type
from planaria.node.parts import Part, State


def deep(hardware: Path, bench: deep_check.Bench) -> dict[str, Any]:
    """The light check, and if that passed every part of the deep one. -> as parts.verdict."""
    passed, reason = light(hardware, bench.folder)
    first = Part("devices", State.PASSED if passed else State.FAILED, reason)
    return parts.verdict([first, *deep_check.deep(bench)] if passed else [first])


def deep_once(hardware: Path, bench: deep_check.Bench) -> dict[str, Any]:
    """As deep, one at a time."""
    answer = bench.folder / "deep-check.json"
    asked = time.time()
    with _alone(bench.folder / "deep-check.lock"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            other = json.loads(answer.read_text(encoding="utf-8"))
            if float(other["ended_at"]) > asked:
                return dict(other["answer"])
        found = deep(hardware, bench)
        scratch = answer.with_suffix(".tmp")
        scratch.write_text(json.dumps({"ended_at": time.time(), "answer": found}), encoding="utf-8")
        os.replace(scratch, answer)
    return found


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="planaria.node.check_command", description="Check this node.")
    parser.add_argument("--suite", choices=("light", "deep"), default="light")
    parser.add_argument("--hardware", type=Path, default=Path("/etc/planaria/hardware.json"))
    parser.add_argument("--state-dir", type=Path, default=Path("/var/lib/planaria"))
    parser.add_argument("--instance-type", default="", help="by default the machine is asked")
    parser.add_argument("--brief", action="store_true", help="little load: several nodes share the machine")
    chosen = parser.parse_args(arguments)
    if chosen.suite == "light":
        passed, reason = light(chosen.hardware, chosen.state_dir)
        found: dict[str, Any] = {"passed": passed, "reason": reason}
    else:
        load = deep_check.BRIEF if chosen.brief else deep_check.Load()
        figures = figures_of(chosen.instance_type or own_instance_type())
        found = deep_once(chosen.hardware, deep_check.Bench(chosen.state_dir, figures, load))
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
