"""Events of source aws.ec2 about reserved capacity.

AWS's pages disagree on key (`detail-type`, `detail_type`), on titles, and on `resources` (list or text);
all spellings are taken.
"""

from planaria.core.parsers.ec2 import SPOT_NOTICE_SECONDS, named, no_instance
from planaria.core.parsers.envelope import Envelope, text, when
from planaria.core.signal import Kind, Signal

# The warning comes 40 minutes before the end, and EC2 begins to terminate 30 minutes before it.
BLOCK_TERMINATION_LEAD_SECONDS = 1800.0
BLOCK_WARNING_SECONDS = 600.0


def interruption(envelope: Envelope) -> list[Signal]:
    """A warning two minutes ahead; it names its instance."""
    node_id = named(envelope)
    if node_id is None or envelope.detail is None:
        return envelope.invalid(Kind.CAPACITY_END, no_instance("a capacity reservation interruption warning"))
    deadline = when(envelope.detail.get("instance-termination-time"))
    if deadline is None and envelope.time is not None:
        deadline = envelope.time + SPOT_NOTICE_SECONDS
    evidence = {"deadline": deadline, "instance_action": text(envelope.detail.get("instance-action"))}
    return [envelope.signal(Kind.CAPACITY_END, node_id, "interruption", evidence=evidence)]


def expiration(envelope: Envelope) -> list[Signal]:
    """The end of a Capacity Block; it names the reservation, and `affected` finds its nodes."""
    reservation = reservation_of(envelope)
    if not reservation:
        return envelope.invalid(
            Kind.CAPACITY_END, "a Capacity Block warning must name detail.capacity-reservation-id"
        )
    assert envelope.detail is not None
    end = when(envelope.detail.get("end-date"))
    deadline = None
    if end is not None:
        deadline = end - BLOCK_TERMINATION_LEAD_SECONDS
    elif envelope.time is not None:
        deadline = envelope.time + BLOCK_WARNING_SECONDS
    evidence = {"reservation": reservation, "deadline": deadline}
    return [envelope.signal(Kind.CAPACITY_END, None, "expiration", evidence=evidence)]


def notice(envelope: Envelope) -> list[Signal]:
    """A reservation was delivered, is scheduled, active, delayed, or was reclaimed: no node ends by it."""
    code = envelope.detail_type.removeprefix("EC2 ").lower().replace(" ", "-")
    evidence = {"reservation": reservation_of(envelope)}
    return [envelope.signal(Kind.UNKNOWN, None, code, evidence=evidence)]


def reservation_of(envelope: Envelope) -> str:
    """The id in detail, else the one at the end of the first resource."""
    if envelope.detail is None:
        return ""
    for name in ("capacity-reservation-id", "capacityReservationId", "sourceCapacityReservationId"):
        if value := text(envelope.detail.get(name)):
            return value
    for resource in envelope.resources():
        identity = text(resource).rpartition("/")[2]
        if identity.startswith("cr-"):
            return identity
    return ""
