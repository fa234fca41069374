"""What `scontrol --oneliner show` prints: `Key=value Key=value ...` with nothing quoted.

A value may hold blanks and `=` (`Reason=Kill task failed [root@...]`, `Comment=lr=0.1`, the name of a job),
so a line is taken apart at the keys that are known. A value that holds a known key makes that key stand there
twice, and then nobody can tell which one is Slurm's: such a line is unreadable rather than believed.
"""

import re
from collections.abc import Collection

from planaria.slurm.programs import Unreadable

KEY = re.compile(r"(?:^|(?<=\s))([A-Z][A-Za-z/:]*)=")

FREE = frozenset({"Reason", "Comment", "AdminComment", "Extra", "JobName", "OS", "Command", "WorkDir"})
"""Keys whose values people write: only a known key ends them."""


def fields(line: str, keys: Collection[str], needed: Collection[str], what: str) -> dict[str, str]:
    """Key -> value of the known keys; `(null)`, `N/A` and the like become "".

    needed: keys that Slurm prints always, one of the last among them, so that a cut line is found out.
    Raises Unreadable when one of `needed` is missing or any of `keys` is there twice.
    """
    starts = list(KEY.finditer(line))
    found: dict[str, str] = {}
    for at, start in enumerate(starts):
        key = start[1]
        if key not in keys:
            continue
        if key in found:
            raise Unreadable(f"{what} has {key} twice, so one of them is part of a name or a comment")
        following = starts[at + 1 :]
        ends = [other.start() for other in following if key not in FREE or other[1] in keys]
        value = line[start.end() : min([*ends, len(line)])].strip()
        found[key] = "" if value in ("(null)", "N/A", "None", "Unknown") else value
    missing = [key for key in needed if key not in found]
    if missing:
        raise Unreadable(f"{what} has no {missing[0]}: it is cut, or this version of Slurm is not known here")
    return found
