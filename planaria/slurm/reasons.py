"""Whose hold a node is under: ours, Slurm's own, or somebody else's.

Ours is exactly `planaria:<incident>`; a person who adds a word to it has made it theirs.
"""

import csv
import functools
import re
from pathlib import Path

OWN_REASONS = Path(__file__).with_name("own_reasons.csv")

CODES = "Slurm/"

OURS = re.compile(r"planaria:[A-Za-z0-9:_.-]{1,150}")


def is_ours(reason: str) -> bool:
    return OURS.fullmatch(reason) is not None


def is_slurms(reason: str) -> bool:
    """The words of Slurm itself and nothing else, written because something failed: a signal, nobody's will.
    Who wrote them is for the caller to look at."""
    return bool(codes(reason))


def codes(reason: str) -> list[str]:
    """What the fault catalogue calls Slurm's own words, such as `Slurm/KillTaskFailed`: one for each of them,
    none where a part of the reason is not Slurm's."""
    found = [_code(part) for part in reason.split(", ")]
    return list(dict.fromkeys(found)) if all(found) else []


def _code(part: str) -> str:
    return next((f"{CODES}{code}" for pattern, code in _own() if pattern.fullmatch(part)), "")


@functools.cache
def _own() -> list[tuple[re.Pattern[str], str]]:
    with OWN_REASONS.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return [(re.compile(row["pattern"]), row["code"]) for row in rows]
