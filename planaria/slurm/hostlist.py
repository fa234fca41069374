"""Slurm's host lists: `gpu[01-03,7],login1` and back."""

import re
from collections.abc import Iterable

from planaria.core.errors import InvalidInput

MOST = 65536
"""Slurm's own bound of the nodes of a cluster."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def expand(text: str) -> list[str]:
    """Every name, in the list's order. Raises InvalidInput with one sentence."""
    names: list[str] = []
    for part in _parts(text):
        if part:
            _expand(part, names, text)
    return names


def compress(names: Iterable[str]) -> str:
    """A comma list that keeps the order; runs of numbers with one prefix become brackets."""
    found: list[str] = []
    run: list[str] = []
    for name in names:
        if run and not _follows(run[-1], name):
            found.append(_joined(run))
            run = []
        run.append(name)
    if run:
        found.append(_joined(run))
    return ",".join(found)


def _parts(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for at, sign in enumerate(text):
        depth += (sign == "[") - (sign == "]")
        if depth not in (0, 1):
            raise InvalidInput(f"{_short(text)} is no list of nodes: its brackets do not match")
        if sign == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    if depth:
        raise InvalidInput(f"{_short(text)} is no list of nodes: its brackets do not match")
    return [*parts, text[start:]]


def _expand(part: str, names: list[str], whole: str) -> None:
    bracket = re.search(r"\[([^\]]*)\]", part)
    if bracket is None:
        if not NAME.fullmatch(part):
            raise InvalidInput(f"{_short(part)} is no name of a node in {_short(whole)}")
        names.append(part)
        if len(names) > MOST:
            raise InvalidInput(f"{_short(whole)} names more than {MOST} nodes")
        return
    before, after = part[: bracket.start()], part[bracket.end() :]
    for piece in bracket[1].split(","):
        ends = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", piece)
        if ends is None or int(ends[2] or ends[1]) < int(ends[1]):
            raise InvalidInput(f"[{_short(bracket[1])}] is no range of numbers in {_short(whole)}")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if last - first >= MOST:
            raise InvalidInput(f"{_short(whole)} names more than {MOST} nodes")
        for number in range(first, last + 1):
            _expand(f"{before}{number:0{len(ends[1])}d}{after}", names, whole)


def _split(name: str) -> tuple[str, str] | None:
    found = re.fullmatch(r"(.*?)(\d{1,9})", name)
    return (found[1], found[2]) if found else None


def _follows(one: str, other: str) -> bool:
    before, after = _split(one), _split(other)
    if before is None or after is None or before[0] != after[0]:
        return False
    width = len(before[1])
    padded = len(after[1]) == width or (before[1][0] != "0" and after[1][0] != "0")
    return padded and int(after[1]) == int(before[1]) + 1


def _joined(run: list[str]) -> str:
    if len(run) == 1:
        return run[0]
    first, last = _split(run[0]), _split(run[-1])
    assert first is not None and last is not None
    return f"{first[0]}[{first[1]}-{last[1]}]"


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
