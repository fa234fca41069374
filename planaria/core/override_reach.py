"""How far a cluster's own answer reaches: everything of its kind, or all that a later one would answer."""

import itertools
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from planaria.core import catalog

if TYPE_CHECKING:
    from planaria.core.overrides import Override

TAKEN_BACK = frozenset({"unknown", "ambiguous", "requested", "ok", "none", "injected"})
"""What these qualifiers say of a fault is that it is none, or not this node's: only an entry that names them
answers to them. `/well` is answered to by none."""

_WILD = re.compile(r"\*|\?|\[!?\]?[^\]]*\]")
_FILLINGS = ("", "0", "q", "79", "q0q", "q/q")
_QUALIFIERS = ("", "/q", "/reset", *(f"/{word}" for word in sorted(TAKEN_BACK)))
_MOST_SAMPLES = 1_000


def sweeps(kind: str, code: str) -> bool:
    """The pattern fits everything of its kind: `*`, or what comes to the same."""
    if not set("*?[") & set(code):
        return False
    if not set(code) - set("*?/"):
        return True
    known = {pattern.partition("/")[0].replace("*", "q") for pattern in catalog.codes(kind)} - {"q"}
    return len(known) > 1 and all(fnmatchcase(one, code) for one in known)


def hides(earlier: "Override", later: "Override") -> bool:
    """The earlier entry answers all that the later one would: tried with codes of every sort."""
    if earlier.kind != later.kind:
        return False
    if earlier.families and not (later.families and set(later.families) <= set(earlier.families)):
        return False
    family = later.families[0] if later.families else ""
    ever = False
    for code in _samples(later.code, earlier.code):
        if later.answers(later.kind, code, family):
            if not earlier.answers(later.kind, code, family):
                return False
            ever = True
    return ever


def _samples(pattern: str, other: str) -> Iterator[str]:
    """Codes that a pattern may fit. The letters of both are among them: they may tell codes apart."""
    parts = _WILD.split(pattern)
    letters = [*_FILLINGS, *sorted(set(other + pattern) - set("*?[]!"))]
    while len(letters) > 1 and len(letters) ** (len(parts) - 1) > _MOST_SAMPLES:
        letters.pop()
    for filling in itertools.product(letters, repeat=len(parts) - 1):
        code = "".join(itertools.chain.from_iterable(zip(parts, (*filling, ""), strict=True)))
        yield from (code + qualifier for qualifier in _QUALIFIERS)
