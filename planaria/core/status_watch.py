"""EC2's own checks and scheduled events of an instance -> what sweep has to tell of them, each once.

DescribeInstanceStatus says the same every minute. What was told already stands on the node's row as
`watched`, bounded:

    {"events": {EC2's event id: {"state": "open" | "over", "at": epoch seconds when it was last listed,
                                 "starts_at": its date as it was told}},
     "checks": {metric: {"sweeps": how often it was impaired in a row, "told": epoch seconds, absent before}}}

Facts: EC2 API reference, InstanceStatusEvent (an event that is over is listed for a week more) and
InstanceStatusSummary; EC2 user guide, Status checks.
"""

from collections.abc import Mapping
from typing import Any

from planaria.core.parsers.sweep import OVER
from planaria.core.ports import InstanceStatus, StatusEvent
from planaria.core.signal import Kind

IMPAIRED_SWEEPS = 2
"""How many sweeps in a row must see a check impaired before it is told of: one may be a passing fault."""

MOVED_SECONDS = 60.0
"""By how much the date of an event must have moved to be told of again."""

EVENTS = 20
DAY = 86_400.0
KEPT_SECONDS = 14 * DAY

METRICS = {
    "system": "StatusCheckFailed_System",
    "instance": "StatusCheckFailed_Instance",
    "ebs": "StatusCheckFailed_AttachedEBS",
}
"""Our check -> the CloudWatch metric of the same check: the code that both are known by."""

Detail = dict[str, Any]


def watch(
    status: InstanceStatus, watched: Mapping[str, Any], now: float, news_at: float | None = None
) -> tuple[list[Detail], Detail]:
    """(the findings to put on the bus, what to remember when that is done).

    news_at: from then on a check that is still impaired is told of once more: an act on the node, or the end
    of its session, should have shown by then.
    """
    told_events, events = _events(status, watched.get("events") or {}, now)
    told_checks, checks = _checks(status, watched.get("checks") or {}, now, news_at)
    return told_events + told_checks, {"events": events, "checks": checks}


def name_of(event: StatusEvent) -> str:
    return event.event_id or f"{event.code}@{event.not_before or 0:.0f}"


def is_over(event: StatusEvent) -> bool:
    """EC2 has done it, or has taken it back."""
    return event.description.lower().startswith(OVER)


def _events(
    status: InstanceStatus, known: Mapping[str, Any], now: float
) -> tuple[list[Detail], dict[str, Any]]:
    told: list[Detail] = []
    listed: dict[str, Any] = {}
    for event in sorted(status.events, key=lambda e: (e.not_before or now, e.event_id))[:EVENTS]:
        key, over = name_of(event), is_over(event)
        before = known.get(key) or {}
        state = "over" if over else "open"
        # What was over before it was ever seen open took nothing from us that could be given back.
        moved = not over and _moved(event, before)
        if (before.get("state") != state and (before or not over)) or moved:
            told.append(_scheduled(status.node_id, event, key, over, now))
        at = before.get("at") if before.get("state") == state and not moved else None
        # Noted anew once a day only: a row is not written every minute for as long as an event is listed.
        listed[key] = {"state": state, "at": at if at is not None and now - at < DAY else now}
        date = before.get("starts_at") if before and not moved else event.not_before
        date = event.not_before if date is None else date
        listed[key] |= {} if date is None else {"starts_at": date}
    # One that EC2 does not list for a moment is not told of again when it is back.
    gone = {key: entry for key, entry in known.items() if key not in listed}
    fresh = [key for key, entry in gone.items() if now - float(entry.get("at") or 0) < KEPT_SECONDS]
    newest = sorted(fresh, key=lambda key: -float(gone[key]["at"]))[: EVENTS - len(listed)]
    return told, {**listed, **{key: dict(gone[key]) for key in newest}}


def _moved(event: StatusEvent, before: Mapping[str, Any]) -> bool:
    """EC2 has set another date since the event was told of."""
    known = before.get("starts_at")
    if known is None or event.not_before is None:
        return False
    return abs(event.not_before - float(known)) >= MOVED_SECONDS


def _scheduled(node: str, event: StatusEvent, key: str, over: bool, now: float) -> Detail:
    detail = _finding(node, Kind.SCHEDULED_EVENT, event.code, now, over)
    detail |= {"description": event.description, "event_id": key}
    return detail | ({} if event.not_before is None else {"starts_at": event.not_before})


def _checks(
    status: InstanceStatus, known: Mapping[str, Any], now: float, news_at: float | None
) -> tuple[list[Detail], dict[str, Any]]:
    told: list[Detail] = []
    after: dict[str, Any] = {}
    for check, metric in METRICS.items():
        word: str = getattr(status, check)
        before = dict(known.get(metric) or {})
        told_at = before.get("told")
        if word == "impaired":
            after[metric] = before
            if told_at is not None and not (news_at is not None and told_at < news_at <= now):
                continue
            before["sweeps"] = min(int(before.get("sweeps", 0)) + 1, IMPAIRED_SWEEPS)
            if told_at is not None or before["sweeps"] >= IMPAIRED_SWEEPS:
                before["told"] = now
                detail = _finding(status.node_id, Kind.STATUS_CHECK, metric, now, False)
                since = status.since.get(check)
                told.append(detail | ({} if since is None else {"since": since}))
        elif word == "ok":
            if told_at is not None:
                told.append(_finding(status.node_id, Kind.STATUS_CHECK, metric, now, True))
        elif told_at is not None:
            after[metric] = before  # a check that cannot see takes nothing back
    return told, after


def _finding(node: str, kind: Kind, code: str, now: float, healthy: bool) -> Detail:
    return {
        "version": 1,
        "instance_id": node,
        "kind": kind.value,
        "code": code,
        "time": now,
        "healthy": healthy,
    }
