"""A Signal is one parsed observation about at most one node. Unknown is a value, never an exception."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What sort of observation it is; the word that `planaria triage` prints."""

    SPOT_INTERRUPTION = "spot_interruption"
    REBALANCE = "rebalance"
    STATE_CHANGE = "state_change"
    CAPACITY_END = "capacity_end"
    SCHEDULED_EVENT = "scheduled_event"
    STATUS_CHECK = "status_check"
    NODE_HEALTH = "node_health"
    NODE_CONDITION = "node_condition"
    LIFECYCLE = "lifecycle"
    AGENT = "agent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Signal:
    """One observation.

    event_id: the event's `id`, null when it has none. dedupe_key: what makes two deliveries the same
    event (the id; for AWS Health: eventArn, communicationId, page and entity).
    node_id: EC2 instance id or None when no node is named.
    code: the source's own word (an Xid number, an event type code, an instance state).
    time: seconds since the epoch at which the source saw it; None when it does not say.
    healthy: the source reports the node well. injected: a game day, not AWS or hardware.
    evidence: small JSON values for people and for classification.
    invalid: why this could not be parsed; such a signal ends INVALID.
    """

    event_id: str | None
    dedupe_key: str
    source: str
    detail_type: str
    kind: Kind
    node_id: str | None = None
    code: str = ""
    time: float | None = None
    healthy: bool = False
    injected: bool = False
    replay: bool = False
    evidence: dict[str, Any] = field(default_factory=dict)
    invalid: str = ""


SKEW_SECONDS = 300.0
"""How far ahead of ours a clock may be; EC2 keeps its own within a second."""


def on_time(signal: Signal, now: float) -> Signal:
    """The signal, with a time that a wrong clock put into the future set to now (epoch seconds): a fault of
    the year 2099 would make everything before it old."""
    if signal.time is None or signal.time <= now + SKEW_SECONDS:
        return signal
    return replace(signal, time=now)
