"""Maintenance windows: times in which people work on the cluster and Planaria opens nothing by itself.

A window is {"start": ISO 8601, "end": ISO 8601} or {"weekly": "sun 02:00", "hours": 4}, times in UTC, both
with an optional "reason" and "node_groups" (all groups where it is absent). Weekly windows may run over the
end of the week.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from planaria.core.errors import InvalidInput

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
WEEK = 7 * 86_400.0
_WEEKLY = re.compile(r"(mon|tue|wed|thu|fri|sat|sun) ([01]\d|2[0-3]):([0-5]\d)")
_EPOCH_WEEKDAY = 3  # 1970-01-01 was a Thursday


@dataclass(frozen=True, slots=True)
class Window:
    """start and end: epoch seconds; of a weekly window, seconds since Monday 00:00 UTC. groups: () is all."""

    start: float
    end: float
    weekly: bool = False
    reason: str = ""
    groups: tuple[str, ...] = ()

    def until(self, now: float, group: str) -> float | None:
        """Epoch seconds at which the window that covers `now` ends; None when it does not cover it."""
        if self.groups and group not in self.groups:
            return None
        if not self.weekly:
            return self.end if self.start <= now < self.end else None
        passed = (now + _EPOCH_WEEKDAY * 86_400.0 - self.start) % WEEK
        length = self.end - self.start
        return now + length - passed if passed < length else None


def under_way(windows: Sequence[Window], now: float, group: str) -> str:
    """Why nothing is opened on a node of this group now; "" when no window covers it."""
    ends = [(end, window) for window in windows if (end := window.until(now, group)) is not None]
    if not ends:
        return ""
    end, window = max(ends, key=lambda pair: pair[0])
    until = datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"maintenance until {until}" + (f" ({window.reason})" if window.reason else "")


def windows_of(entries: object) -> tuple[Window, ...]:
    """The windows of the cluster document. Raises InvalidInput that names the entry and the rule."""
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise InvalidInput(f"policy.maintenance must be a list of windows, not {entries!r:.60}")
    return tuple(_window(entry, f"policy.maintenance[{number}]") for number, entry in enumerate(entries))


def _window(entry: object, where: str) -> Window:
    if not isinstance(entry, Mapping):
        raise InvalidInput(f"{where} must be an object, not {entry!r:.60}")
    reason, groups = str(entry.get("reason") or ""), entry.get("node_groups") or ()
    listed = isinstance(groups, Sequence) and not isinstance(groups, str)
    if not listed or not all(isinstance(group, str) for group in groups):
        raise InvalidInput(f"{where}.node_groups must be a list of group names, not {groups!r:.60}")
    if "weekly" in entry:
        start, length = weekly(entry["weekly"], f"{where}.weekly"), entry.get("hours")
        if isinstance(length, bool) or not isinstance(length, int | float) or not 0 < length <= 168:
            raise InvalidInput(f"{where}.hours must be a number above 0 and at most 168, not {length!r:.60}")
        return Window(start, start + length * 3600.0, True, reason, tuple(groups))
    start, end = (moment(entry.get(key), f"{where}.{key}") for key in ("start", "end"))
    if end <= start:
        raise InvalidInput(f"{where}.end must be later than its start")
    return Window(start, end, False, reason, tuple(groups))


def weekly(value: Any, where: str) -> float:
    """Seconds since Monday 00:00 UTC. Raises InvalidInput."""
    match = _WEEKLY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InvalidInput(f"{where} must be a day and a time in UTC such as 'sun 02:00', not {value!r:.60}")
    return DAYS.index(match[1]) * 86_400.0 + int(match[2]) * 3600.0 + int(match[3]) * 60.0


def moment(value: Any, where: str) -> float:
    """Epoch seconds of an ISO 8601 time; one without a zone is UTC. Raises InvalidInput."""
    try:
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        message = f"{where} must be a time such as 2026-12-24T18:00:00Z, not {value!r:.60}"
        raise InvalidInput(message) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
