"""Events of source planaria.sweep: what the once-a-minute comparison found.

Sweep may repeat any event that AWS or an agent would send (same detail-type, same detail). What only it can
see comes as any other detail-type with this detail:

    {"version": 1, "instance_id": "i-...", "kind": a Kind's word, "code": str, "time": epoch seconds,
     "healthy": bool, "starts_at": epoch seconds, "description": str, "event_id": str, "since": epoch seconds,
     "state_reason": str, "below_size": bool}

kind and code are the catalogue's: (state_change, terminated), (scheduled_event, instance-retirement),
(status_check, StatusCheckFailed_System), (node_health, silent), of a node that Slurm keeps out of work by
its own words (node_condition, Slurm/KillTaskFailed), and for one that lasts (node_condition,
Ready/KubeletNotReady). event_id: EC2's name of a scheduled event; since: when a status check began to fail,
or Slurm wrote its reason.
Kinds that sweep cannot find by itself are unknown.
"""

from typing import Any

from planaria.core.parsers.envelope import Envelope, instance_id, number, text
from planaria.core.signal import Kind, Signal

OVER = ("[completed]", "[canceled]", "[cancelled]")
"""How the description of a scheduled event begins that is over; in lower case."""

_FOUND = frozenset(
    {Kind.STATE_CHANGE, Kind.SCHEDULED_EVENT, Kind.STATUS_CHECK, Kind.NODE_HEALTH, Kind.NODE_CONDITION}
)


def parse(envelope: Envelope) -> list[Signal]:
    detail = envelope.detail
    if detail is None:
        return envelope.invalid(Kind.UNKNOWN, "an event of sweep must have a detail object")
    word = detail.get("kind")
    kind = next((found for found in _FOUND if found == word), Kind.UNKNOWN)
    node_id = instance_id(detail.get("instance_id"))
    if node_id is None:
        return envelope.unknown()
    description = text(detail.get("description"))
    evidence: dict[str, Any] = {"starts_at": number(detail.get("starts_at")), "description": description}
    if event_id := text(detail.get("event_id")):
        evidence["event_id"] = event_id
    if (since := number(detail.get("since"))) is not None:
        evidence["since"] = since
    if kind is Kind.STATE_CHANGE:
        evidence["state_reason"] = text(detail.get("state_reason"))
        evidence["below_size"] = detail.get("below_size") is True
    if kind is Kind.STATUS_CHECK:
        evidence |= {"state": "ALARM", "instances": 1}
    if kind is Kind.NODE_CONDITION:
        evidence["status"] = "False"
    # EC2 still lists an event for a week after it is over, and says so only in its description.
    over = description.lower().startswith(OVER)
    return [
        envelope.signal(
            kind,
            node_id,
            text(detail.get("code")),
            time=number(detail.get("time")),
            healthy=over or detail.get("healthy") is True,
            evidence=evidence,
        )
    ]
