"""What all events have in common, and the total reading of values that may be anything."""

import hashlib
import json
import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from planaria.core.signal import Kind, Signal

# Wider than EC2's hexadecimal ids: AWS's own samples use placeholders, and the inventory decides anyway.
_INSTANCE_ID = re.compile(r"i-[0-9A-Za-z]{4,40}")
# The spot warning's ARN holds an availability zone and no account, one field fewer than others.
_INSTANCE_ARN = re.compile(r"arn:[^:/]*:ec2:[^/]*:instance/(i-[0-9A-Za-z]{4,40})")
EVIDENCE_LIMIT = 1024
SKEW_SECONDS = 120.0  # how far a reporter's clock may be ahead of EventBridge's
NAME_LIMIT = 256  # of an id, a source and a detail-type; EventBridge's own limits are lower


class Envelope:
    """One EventBridge event. source and detail_type are text; detail is None when it is no object."""

    __slots__ = ("detail", "detail_type", "event", "event_id", "injected", "key", "replay", "source", "time")

    def __init__(self, event: dict[str, Any], source: str, detail_type: str, injected: bool) -> None:
        self.event = event
        self.source = text(source)[:NAME_LIMIT]
        self.detail_type = text(detail_type)[:NAME_LIMIT]
        self.injected = injected
        self.replay = "replay-name" in event
        identity = event.get("id")
        named = isinstance(identity, str) and 0 < len(identity) <= NAME_LIMIT
        self.event_id = text(identity) if named else None
        self.key = self.event_id or digest(event)
        detail = event.get("detail")
        self.detail: dict[str, Any] | None = detail if isinstance(detail, dict) else None
        self.time = when(event.get("time"))

    def signal(
        self,
        kind: Kind,
        node_id: str | None,
        code: str = "",
        *,
        key: str | None = None,
        time: float | None = None,
        healthy: bool = False,
        injected: bool = False,
        evidence: dict[str, Any] | None = None,
    ) -> Signal:
        """time: when the source saw it, by its own clock; it cannot have been after the event was sent."""
        if time is None or (self.time is not None and time > self.time + SKEW_SECONDS):
            time = self.time
        return Signal(
            self.event_id,
            key or self.key,
            self.source,
            self.detail_type,
            kind,
            node_id,
            code[:200],
            time,
            healthy,
            self.injected or injected,
            self.replay,
            evidence if evidence is not None else {},
        )

    def invalid(self, kind: Kind, reason: str) -> list[Signal]:
        return [
            Signal(
                self.event_id,
                self.key,
                self.source,
                self.detail_type,
                kind,
                time=self.time,
                injected=self.injected,
                replay=self.replay,
                invalid=reason,
            )
        ]

    def unknown(self) -> list[Signal]:
        """A valid event of a type that nobody reads: one signal per instance it names, or one without."""
        nodes = self.instances()
        if len(nodes) < 2:
            return [self.signal(Kind.UNKNOWN, nodes[0] if nodes else None)]
        return [self.signal(Kind.UNKNOWN, node_id, key=f"{self.key}|{node_id}") for node_id in nodes]

    def instances(self) -> list[str]:
        """The instances that detail or resources name, each once, in their order."""
        found: dict[str, None] = {}
        if self.detail is not None:
            for name in ("instance-id", "instance_id", "InstanceId", "EC2InstanceId", "instanceId"):
                if node_id := instance_id(self.detail.get(name)):
                    found[node_id] = None
        for resource in self.resources():
            if node_id := instance_id(resource):
                found[node_id] = None
        return list(found)

    def resources(self) -> list[Any]:
        """AWS documents resources as a list and, for some events, as one text."""
        resources = self.event.get("resources")
        return resources if isinstance(resources, list) else [resources]


def instance_id(value: object) -> str | None:
    """The instance id that this value is or that this ARN ends with; None when there is none."""
    if not isinstance(value, str):
        return None
    if value.startswith("i-"):
        return value if _INSTANCE_ID.fullmatch(value) else None
    match = _INSTANCE_ARN.fullmatch(value)
    return match[1] if match else None


def text(value: object) -> str:
    """The value when it is text, cut to what evidence may hold; else "".

    JSON may hold half of a character (`"\\ud800"`), which no UTF-8 text and no table can; it becomes `?`.
    """
    if not isinstance(value, str):
        return ""
    cut = value[:EVIDENCE_LIMIT]
    return cut if cut.isascii() else cut.encode(errors="replace").decode()


def number(value: object) -> float | None:
    """The value when it is a number that a table can hold, else None; what is next to nothing is 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e15 < value < 1e15:
        return None
    return float(value) if abs(value) > 1e-9 else 0.0


def when(value: object) -> float | None:
    """Epoch seconds of an ISO 8601 text, an RFC 1123 text or a number of seconds; None when it is none."""
    if not isinstance(value, str):
        return number(value)
    if len(value) > 64:
        return None
    # An RFC 1123 text begins with the day of the week; to try it as ISO 8601 first would cost as much again.
    read = parsedate_to_datetime if value[:1].isalpha() else datetime.fromisoformat
    try:
        moment = read(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    try:
        seconds = moment.timestamp()
    except (ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) else None


def digest(event: object) -> str:
    """The same text for the same event, where AWS gave it no id."""
    try:
        content = json.dumps(event, sort_keys=True, default=str)
    except (RecursionError, TypeError, ValueError):
        content = "nested too deep"
    return "sha256:" + hashlib.sha256(content.encode()).hexdigest()[:32]
