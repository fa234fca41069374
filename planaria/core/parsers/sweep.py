"""Events of source planaria.sweep: what the once-a-minute comparison found.

Sweep may repeat any event that AWS or an agent would send (same detail-type, same detail). What only it can
see comes as any other detail-type with this detail:

    {"version": 1, "instance_id": "i-...", "kind": a Kind's word, "code": str, "time": epoch seconds,
     "healthy": bool, "starts_at": epoch seconds, "description": str}

kind and code are the catalogue's: (state_change, terminated), (scheduled_event, instance-retirement),
(status_check, StatusCheckFailed_System), (node_health, silent).
"""

from typing import Any

from planaria.core.parsers.envelope import Envelope, instance_id, number, text
from planaria.core.signal import Kind, Signal

_COMPLETED = ("[completed]", "[canceled]", "[cancelled]")


def parse(envelope: Envelope) -> list[Signal]:
    detail = envelope.detail
    if detail is None:
        return envelope.invalid(Kind.UNKNOWN, "an event of sweep must have a detail object")
    word = detail.get("kind")
    kind = Kind(word) if isinstance(word, str) and word in set(Kind) else Kind.UNKNOWN
    node_id = instance_id(detail.get("instance_id"))
    if node_id is None:
        return envelope.unknown()
    description = text(detail.get("description"))
    evidence: dict[str, Any] = {"starts_at": number(detail.get("starts_at")), "description": description}
    if kind is Kind.STATE_CHANGE:
        evidence["state_reason"] = text(detail.get("state_reason"))
        evidence["below_size"] = detail.get("below_size") is True
    if kind is Kind.STATUS_CHECK:
        evidence |= {"state": "ALARM", "instances": 1}
    # EC2 still lists an event for a week after it is over, and says so only in its description.
    over = description.lower().startswith(_COMPLETED)
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
