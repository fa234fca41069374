"""A pin: a person wants a checkpoint step kept, whatever retention says.

It is the file `planaria-pin.json` (manifest.PIN_NAME) in the step's directory, on a file system and in S3
alike, and holds where it lies: copying a step does not copy its pin, and removing the step removes it. The
ledger has pins of its own, which hold for a job's step in every tier.

    {"version": 1, "reason": str, "by": str, "at": epoch seconds}
"""

import json
from dataclasses import dataclass

from planaria.core.errors import InvalidInput

VERSION = 1
REASON_LENGTH = 256
NO_REASON = "no reason given"
UNREADABLE = "its pin cannot be read"


@dataclass(frozen=True, slots=True)
class Pin:
    """reason: never empty; by: who; at: epoch seconds."""

    reason: str
    by: str
    at: float

    def to_json(self) -> bytes:
        document = {"version": VERSION, "reason": self.reason, "by": self.by, "at": self.at}
        return json.dumps(document, ensure_ascii=True).encode()


def pinned(reason: str, by: str, at: float) -> Pin:
    """A new pin. Raises InvalidInput where the reason is too long."""
    text = " ".join(reason.split())
    if len(text) > REASON_LENGTH:
        raise InvalidInput(f"the reason of a pin has at most {REASON_LENGTH} characters, not {len(text)}")
    return Pin(text or NO_REASON, by, at)


def reason_of(body: bytes) -> str:
    """Why the step is pinned. Whatever is in the bytes, it is pinned: what cannot be read keeps it too."""
    try:
        reason = json.loads(body)["reason"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return UNREADABLE
    return reason if isinstance(reason, str) and reason else NO_REASON
