"""Events of source aws.ec2 about one instance: spot interruption, rebalance, state change."""

from planaria.core.parsers.envelope import Envelope, instance_id, text
from planaria.core.signal import Kind, Signal

SPOT_NOTICE_SECONDS = 120.0


def spot_interruption(envelope: Envelope) -> list[Signal]:
    node_id = named(envelope)
    if node_id is None or envelope.detail is None:
        return envelope.invalid(Kind.SPOT_INTERRUPTION, no_instance("a spot interruption warning"))
    deadline = None if envelope.time is None else envelope.time + SPOT_NOTICE_SECONDS
    code = text(envelope.detail.get("instance-action"))
    return [envelope.signal(Kind.SPOT_INTERRUPTION, node_id, code, evidence={"deadline": deadline})]


def rebalance(envelope: Envelope) -> list[Signal]:
    node_id = named(envelope)
    if node_id is None:
        return envelope.invalid(Kind.REBALANCE, no_instance("a rebalance recommendation"))
    return [envelope.signal(Kind.REBALANCE, node_id, "rebalance")]


def state_change(envelope: Envelope) -> list[Signal]:
    """EC2 does not send the StateReason; whoever looks it up adds `state_reason` to the detail (sweep) or
    to the signal's evidence (triage), with `below_size`: the group would miss its wanted size."""
    node_id = named(envelope)
    detail = envelope.detail
    if node_id is None or detail is None:
        return envelope.invalid(Kind.STATE_CHANGE, no_instance("an instance state change"))
    state = text(detail.get("state"))
    if not state:
        return envelope.invalid(Kind.STATE_CHANGE, "an instance state change must name detail.state")
    evidence: dict[str, object] = {}
    if reason := text(detail.get("state_reason")):
        evidence["state_reason"] = reason
    if isinstance(detail.get("below_size"), bool):
        evidence["below_size"] = detail["below_size"]
    return [envelope.signal(Kind.STATE_CHANGE, node_id, state, evidence=evidence)]


def named(envelope: Envelope) -> str | None:
    """The instance of an event that is about exactly one; detail goes before resources, whose ARN holds an
    availability zone and no account in some events."""
    if envelope.detail is None:
        return None
    if "instance-id" in envelope.detail:
        return instance_id(envelope.detail["instance-id"])
    found = envelope.instances()
    return found[0] if len(found) == 1 else None


def no_instance(what: str) -> str:
    return f"{what} must name its instance in detail.instance-id"
