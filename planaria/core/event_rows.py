"""The events' half of the ledger: how each ended, for as long as a repeat could come."""

import hashlib
from typing import Any

from planaria.core.ports import Table
from planaria.core.table import Changes, Row

EVENT_DAYS = 30
DAY = 86_400.0


class EventRows:
    """Rows `EVENT#<digest>`, `OUTCOME` and hourly counters `COUNT#<what>`, `<hour>`; all expire."""

    table: Table

    def outcome(self, dedupe_key: str, now: float) -> Row | None:
        row = self.table.get(*_event_key(dedupe_key))
        return row if row is not None and float(row.get("expires_at", 0)) > now else None

    def record_outcome(self, dedupe_key: str, now: float, facts: Changes) -> None:
        sets: dict[Any, Any] = {"at": now, "expires_at": int(now + EVENT_DAYS * DAY), **facts}
        self.table.write(*_event_key(dedupe_key), sets=sets)

    def count(self, what: str, now: float, number: int = 1) -> None:
        """Counted per hour, not written singly: NOT_MANAGED and duplicates in a storm."""
        hour = int(now // 3600)
        self.table.write(
            f"COUNT#{what}",
            f"{hour:010d}",
            sets={"expires_at": int(now + EVENT_DAYS * DAY)},
            adds={"number": number},
        )


def _event_key(dedupe_key: str) -> tuple[str, str]:
    return f"EVENT#{hashlib.sha256(dedupe_key.encode()).hexdigest()[:40]}", "OUTCOME"
