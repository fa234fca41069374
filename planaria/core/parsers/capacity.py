"""Events of source aws.ec2 about reserved capacity.

AWS's pages disagree on key (`detail-type`, `detail_type`), on titles, and on `resources` (list or text);
all spellings are taken. EC2 user guide: Monitor Capacity Blocks using EventBridge, Monitor interruptible
Capacity Reservations, Monitor state changes for future-dated Capacity Reservations; EventBridge reference:
Amazon EC2 events.
"""

import re

from planaria.core.parsers.ec2 import SPOT_NOTICE_SECONDS, named, no_instance
from planaria.core.parsers.envelope import Envelope, text, when
from planaria.core.signal import Kind, Signal

# The warning comes 40 minutes before the end, and EC2 begins to terminate 30 minutes before it.
BLOCK_TERMINATION_LEAD_SECONDS = 1800.0
BLOCK_WARNING_SECONDS = 600.0

_RESERVATIONS = (
    "capacity-reservation-id",
    "capacity_reservation_id",
    "capacityReservationId",
    "CapacityReservationId",
    "sourceCapacityReservationId",
)
_ENDS = ("end-date", "end_date", "endDate", "EndDate")
_CUSTOMER_EVENT = re.compile(r"cr-[0-9A-Za-z]{1,60}")


def interruption(envelope: Envelope) -> list[Signal]:
    """A warning two minutes ahead; it names its instance."""
    node_id = named(envelope)
    if node_id is None or envelope.detail is None:
        return envelope.invalid(Kind.CAPACITY_END, no_instance("a capacity reservation interruption warning"))
    deadline = when(envelope.detail.get("instance-termination-time"))
    if deadline is None and envelope.time is not None:
        deadline = envelope.time + SPOT_NOTICE_SECONDS
    evidence = {
        "deadline": deadline,
        "instance_action": text(envelope.detail.get("instance-action")),
        "lifecycle": text(envelope.detail.get("instance-lifecycle")),
    }
    return [envelope.signal(Kind.CAPACITY_END, node_id, "interruption", evidence=evidence)]


def expiration(envelope: Envelope) -> list[Signal]:
    """The end of a Capacity Block; it names the reservation, and `affected` finds its nodes."""
    reservation = reservation_of(envelope)
    if not reservation:
        return envelope.invalid(
            Kind.CAPACITY_END, "a Capacity Block warning must name detail.capacity-reservation-id"
        )
    detail = envelope.detail or {}
    end = next((at for name in _ENDS if (at := when(detail.get(name))) is not None), None)
    deadline = None
    if end is not None:
        deadline = end - BLOCK_TERMINATION_LEAD_SECONDS
    elif envelope.time is not None:
        deadline = envelope.time + BLOCK_WARNING_SECONDS
    evidence = {"reservation": reservation, "deadline": deadline}
    return [envelope.signal(Kind.CAPACITY_END, None, "expiration", evidence=evidence)]


def notice(envelope: Envelope) -> list[Signal]:
    """A reservation was delivered, is scheduled, active, delayed, or was reclaimed: no node ends by it."""
    code = envelope.detail_type.removeprefix("EC2 ").removeprefix("Interruptible ").removeprefix("Future ")
    evidence = {"reservation": reservation_of(envelope)}
    return [envelope.signal(Kind.UNKNOWN, None, code.lower().replace(" ", "-"), evidence=evidence)]


def reservation_of(envelope: Envelope) -> str:
    """The id in detail, else the one at the end of a resource, else the one at the start of the key
    `customer_event_id` that AWS's page on Capacity Blocks prints."""
    detail = envelope.detail or {}
    named_there = [detail.get(name) for name in _RESERVATIONS]
    for value in (*named_there, *envelope.resources()):
        identity = text(value).rpartition("/")[2]
        if identity.startswith("cr-"):
            return identity[:64]
    match = _CUSTOMER_EVENT.match(text(envelope.event.get("customer_event_id")))
    return match[0] if match else ""
