"""A node's state as Slurm writes it: one base state and any number of flags.

Written in four ways: `IDLE+CLOUD+POWERED_DOWN` (scontrol), `["IDLE", "CLOUD"]` (JSON from 23.02 on), a base
with a list of flags beside it (JSON of 22.05) and `idle~`, `drained*` (sinfo, and scontrol before 21.08).
node_words.csv holds every word, with its source. A word that is not there makes the whole state UNKNOWN.
"""

import csv
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from planaria.core.scheduling import NodeState

WORDS = Path(__file__).with_name("node_words.csv")

SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
    "+": "COMPLETING",
}
"""The characters behind a state, by sinfo(1), NODE STATE CODES. `+` stands behind `allocated` alone."""

BUSY_BASES = frozenset({"ALLOCATED", "MIXED"})
HELD = frozenset({"DRAIN", "FAIL"})
"""Set by a person or a program that wants no new work here."""

UNSETTLED = frozenset(
    {
        *("NOT_RESPONDING", "INVALID_REG", "REBOOT_ISSUED", "PERFCTRS", "DYNAMIC_FUTURE", "POWERED_DOWN"),
        *("POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP", "POWER_DRAIN", "RESUME", "UNDRAIN"),
    }
)
"""With one of these nobody can tell whether the node works: neither in service nor empty."""

NOT_WHEN_IDLE = frozenset({"REBOOT_REQUESTED", "MAINTENANCE"})
"""An idle node with one of these takes no work; a busy one goes on working."""

NOT_FOR_US = frozenset({"BLOCKED", "MAINTENANCE"})
"""Idle and well, but kept from other jobs. PLANNED is only what the backfill scheduler intends, and who holds
a RESERVED node is looked up."""


@dataclass(frozen=True, slots=True)
class Words:
    """base: "" where there is none, or more than one. unknown: words that are in no list."""

    base: str
    flags: frozenset[str]
    unknown: tuple[str, ...] = ()

    @property
    def plain(self) -> str:
        """As scontrol writes it."""
        return "+".join([self.base or "?", *sorted(self.flags), *self.unknown])

    @property
    def clear(self) -> bool:
        """Every word is known, so that the state may be acted on."""
        return bool(self.base) and not self.unknown

    @property
    def held(self) -> bool:
        """Somebody wants no new work here, in whatever state the node is."""
        return bool(self.flags & HELD)

    @property
    def down(self) -> bool:
        return self.base == "DOWN"

    @property
    def busy(self) -> bool:
        return self.base in BUSY_BASES or "COMPLETING" in self.flags

    @property
    def free(self) -> bool:
        """Takes new work now, as far as the state tells."""
        return self.state is NodeState.IDLE and not self.flags & NOT_FOR_US

    @property
    def state(self) -> NodeState:
        """The schedulers' common word. UNKNOWN whenever there is a doubt."""
        if not self.clear:
            return NodeState.UNKNOWN
        if self.down:
            return NodeState.DOWN
        if self.base not in {*BUSY_BASES, "IDLE"} or self.flags & UNSETTLED:
            return NodeState.UNKNOWN
        if self.busy:
            return NodeState.DRAINING if self.held else NodeState.ALLOCATED
        if self.flags & NOT_WHEN_IDLE:
            return NodeState.UNKNOWN
        return NodeState.DRAINED if self.held else NodeState.IDLE


def parse(state: str | Iterable[str], flags: Iterable[str] = ()) -> Words:
    """Read any of the four ways; never fails: what is not understood is in `unknown`."""
    written = [state] if isinstance(state, str) else list(state)
    pieces = [piece for words in [*written, *flags] for piece in _pieces(str(words))]
    bases: set[str] = set()
    found: set[str] = set()
    unknown: list[str] = []
    for piece in pieces:
        meaning = _table().get(piece)
        if meaning is None:
            unknown.append(piece)
        else:
            bases |= {meaning.base} - {""}
            found |= meaning.flags
    # `IDLE` and `DRAINED` (IDLE+DRAIN) may stand beside each other; two bases may not.
    base = bases.pop() if len(bases) == 1 else ""
    return Words(base, frozenset(found), tuple(unknown))


def _pieces(words: str) -> list[str]:
    """`DOWN*+DRAIN` -> DOWN, NOT_RESPONDING, DRAIN."""
    pieces: list[str] = []
    text = words.strip().upper()
    if text.endswith("+"):
        pieces.append("COMPLETING")
        text = text[:-1]
    for part in text.split("+"):
        word = part.strip()
        while word and word[-1] in SUFFIXES:
            pieces.append(SUFFIXES[word[-1]])
            word = word[:-1]
        pieces.append(word)
    return pieces


@functools.cache
def _table() -> dict[str, Words]:
    with WORDS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    return {row["word"]: Words(row["base"], frozenset(row["flags"].split())) for row in rows}
