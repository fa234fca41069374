"""How often a fault came: what repeats within minutes is one occurrence."""

from dataclasses import dataclass

BURST_GAP = 4
"""Minutes: after at least three quiet minutes it is another occurrence (NVSentinel counts alike)."""

BURST_LENGTH = 60
"""Minutes after which what never became quiet counts as another occurrence."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A fault of a node's memory (core/history.py). last: epoch seconds; minutes: since the epoch, sorted."""

    kind: str
    code: str
    pci: str
    place: str
    detector: str
    last: float
    minutes: tuple[int, ...] = ()

    def bursts(self, since: float) -> int:
        """Occurrences at or after `since` (epoch seconds)."""
        found, began, before = 0, 0, -BURST_GAP
        for minute in self.minutes:
            if minute * 60.0 < since - 60.0:
                continue
            if minute - before >= BURST_GAP or minute - began >= BURST_LENGTH:
                found, began = found + 1, minute
            before = minute
        return found
