"""`python -m planaria.slurm.start_slurmd`: slurmd on a node, under the name that this instance has.

    start_slurmd [--wait SECONDS] [--instance-id ID] [-- options of slurmd]

Which name an instance has stands in one place: in the Comment of the node in slurmctld, where Join wrote
`planaria?node=i-...` after the old instance's work there had ended. A tag from the launch would be too early:
a second slurmd under the name of a node that still works makes slurmctld take that node's jobs for lost. A
spare has no name before it is taken, and waits here. The same instance finds its name again after a reboot.
"""

import argparse
import os
import re
import shutil
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence

from planaria.slurm import marks
from planaria.slurm.programs import Slurm, SlurmError, environment

METADATA = "http://169.254.169.254/latest"
TOKEN_SECONDS = "300"  # noqa: S105  how long a token lasts, no secret
WAIT_SECONDS = 12 * 3600.0
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 15.0
_NODE = re.compile(r"^NodeName=(\S+)")
_COMMENT = re.compile(r"(?<!\S)Comment=(.*?)(?= [A-Z][A-Za-z]*=|$)")

Start = Callable[[str, list[str]], object]
"""(program, its words): takes the place of this process."""


def main(words: Sequence[str] | None = None, slurm: Slurm | None = None, start: Start = os.execv) -> int:
    """The exit status where slurmd was not started: 1 after the wait, 2 for what cannot be."""
    given = _parser().parse_args(words)
    calls = slurm or Slurm()
    program = shutil.which(
        "slurmd", path=f"{environment(os.environ)['PATH']}:/usr/sbin:/sbin:/opt/slurm/sbin"
    )
    if program is None:
        _say("slurmd is not installed here")
        return 2
    until, pause, last = calls.now() + given.wait, FIRST_PAUSE, ""
    instance = str(given.instance_id)
    while True:
        instance, name, why = look(calls, instance)
        if name:
            _say(f"{instance} is {name}; starting {program}")
            start(program, [program, "-D", "-N", name, *given.options])
            return 0
        if why != last:
            _say(f"waiting: {why}")
            last = why
        if calls.now() >= until:
            _say(f"gave up after {given.wait:.0f} s: {why}")
            return 1
        calls.sleep(min(pause, max(0.1, until - calls.now())))
        pause = min(LONGEST_PAUSE, pause * 1.5)


def look(slurm: Slurm, instance: str) -> tuple[str, str, str]:
    """(instance id, its name or "", why there is none)."""
    try:
        instance = instance or instance_id()
        names = names_of(slurm, instance)
    except OSError as error:
        return instance, "", f"the instance's metadata cannot be read ({error})"
    except SlurmError as error:
        return instance, "", str(error)
    if len(names) > 1:
        return instance, "", f"{instance} is noted on several nodes of Slurm: {', '.join(names)}"
    return (
        instance,
        names[0] if names else "",
        f"no node of Slurm is {instance} yet; Planaria's join says which",
    )


def names_of(slurm: Slurm, instance: str) -> list[str]:
    """The nodes whose Comment says that this instance has them."""
    try:
        printed = slurm.ask("scontrol", "--future", "--oneliner", "show", "node")
    except SlurmError as error:
        if not error.said:
            raise
        printed = slurm.ask("scontrol", "--oneliner", "show", "node")
    found = []
    for line in printed.splitlines():
        name, comment = _NODE.search(line), _COMMENT.search(line)
        if name and comment and marks.read(comment[1]).get("node") == instance:
            found.append(name[1])
    return found


def instance_id() -> str:
    """From IMDSv2. Raises OSError."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    lasts = {"X-aws-ec2-metadata-token-ttl-seconds": TOKEN_SECONDS}
    asked = urllib.request.Request(f"{METADATA}/api/token", method="PUT", headers=lasts)  # noqa: S310
    with opener.open(asked, timeout=2.0) as answer:
        token = answer.read().decode()
    shown = {"X-aws-ec2-metadata-token": token}
    request = urllib.request.Request(f"{METADATA}/meta-data/instance-id", headers=shown)  # noqa: S310
    with opener.open(request, timeout=2.0) as answer:
        found = str(answer.read().decode().strip())
    if not re.fullmatch(r"i-[0-9a-z-]{1,40}", found):
        raise OSError(f"{found[:40]!r} is no instance id")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="start_slurmd",
        description="Start slurmd under the name that Planaria's join gave to this instance.",
        allow_abbrev=False,
    )
    parser.add_argument("--wait", type=float, default=WAIT_SECONDS, help="seconds to wait for a name")
    parser.add_argument("--instance-id", default="", help="instead of what the instance's metadata says")
    parser.add_argument("options", nargs="*", help="more of slurmd's, behind --")
    return parser


def _say(sentence: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} start_slurmd: {sentence}.\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
