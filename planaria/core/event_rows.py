"""The events' half of the ledger: how each ended, for as long as a repeat could come."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from planaria.core.ports import Table
from planaria.core.table import Changes, Row

EVENT_DAYS = 30
DAY = 86_400.0
HOUR = 3600.0

COUNTED = ("NOT_MANAGED", "DUPLICATE", "COVERED", "STALE", "JOINED", "OBSERVED", "HELD", "OPENED", "INVALID")
"""Outcomes that may be counted per hour and not written singly: what is not ours, and storms."""


class EventRows:
    """Rows `EVENT#<digest>`, `OUTCOME` and hourly counters `COUNT#<what>`, `<hour>`; all expire.

    An event row is listed under the hour of its judgement (`listing` = `EVENT#<hour>`), so that a window of
    time is read without a scan of the table.
    """

    table: Table

    def outcome(self, dedupe_key: str, now: float) -> Row | None:
        row = self.table.get(*event_key(dedupe_key))
        return row if row is not None and float(row.get("expires_at", 0)) > now else None

    def outcomes(self, dedupe_keys: Iterable[str], now: float) -> dict[str, Row]:
        """The outcomes that are known of these events, read together; a missing one may yet be there."""
        keys = {event_key(dedupe_key): dedupe_key for dedupe_key in dedupe_keys}
        rows = self.table.get_many(list(keys))
        return {keys[row["pk"], row["sk"]]: row for row in rows if float(row.get("expires_at", 0)) > now}

    def record_outcome(self, dedupe_key: str, now: float, facts: Changes) -> None:
        sets: dict[Any, Any] = {
            "at": now,
            "expires_at": int(now + EVENT_DAYS * DAY),
            "listing": _listing(int(now // HOUR)),
            **facts,
        }
        self.table.write(*event_key(dedupe_key), sets=sets)

    def count(self, what: str, now: float, number: int = 1) -> None:
        """Counted per hour, not written singly: NOT_MANAGED and duplicates in a storm."""
        self.table.write(
            f"COUNT#{what}",
            f"{int(now // HOUR):010d}",
            sets={"expires_at": int(now + EVENT_DAYS * DAY)},
            adds={"number": number},
        )

    def events_since(
        self, since: float, until: float, each_hour: Callable[[], None] = lambda: None
    ) -> Iterator[Row]:
        """Event rows with since <= `at` < until, in the order in which they were judged.

        Reads the hours of the window one after the other and holds one of them at a time; each_hour is
        called after each. A row that was written without `listing` (by a release older than this index of
        hours), and one that DynamoDB has expired, is not found. The index is eventually consistent: what was
        judged a second ago may be missing.
        """
        for hour in hours(since, until):
            found = [row for row in self.table.listing(_listing(hour)) if since <= float(row["at"]) < until]
            yield from sorted(found, key=lambda row: (float(row["at"]), row["pk"]))
            each_hour()

    def counts(self, what: str, since: float, until: float) -> dict[float, int]:
        """Start of the hour (epoch seconds) -> number, for each whole hour that the window touches."""
        window = hours(since, until)
        rows = self.table.query(f"COUNT#{what}")
        found = {int(row["sk"]): int(row.get("number", 0)) for row in rows}
        return {hour * HOUR: found[hour] for hour in sorted(found) if hour in window}


def hours(since: float, until: float) -> range:
    """The hours since the epoch that the window since <= t < until touches."""
    return range(int(since // HOUR), int(-(-until // HOUR)))


def event_key(dedupe_key: str) -> tuple[str, str]:
    """The key of the row that holds the outcome of this event."""
    return f"EVENT#{hashlib.sha256(dedupe_key.encode()).hexdigest()[:40]}", "OUTCOME"


def _listing(hour: int) -> str:
    return f"EVENT#{hour:010d}"
