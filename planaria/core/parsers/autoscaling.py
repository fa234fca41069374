"""Events of source aws.autoscaling: lifecycle actions and reports about one instance."""

from planaria.core.parsers.envelope import Envelope, instance_id, text
from planaria.core.signal import Kind, Signal

TERMINATING = "autoscaling:EC2_INSTANCE_TERMINATING"


def terminate_action(envelope: Envelope) -> list[Signal]:
    """Auto Scaling waits for the lifecycle hook before it terminates the instance, or puts it back into the
    warm pool (Destination WarmPool): its work ends either way. Origin and Destination are left out where the
    group has no warm pool.
    """
    node_id = instance_id(envelope.detail.get("EC2InstanceId")) if envelope.detail is not None else None
    if node_id is None or envelope.detail is None:
        return envelope.invalid(
            Kind.LIFECYCLE, "a terminate lifecycle action must name its instance in detail.EC2InstanceId"
        )
    detail = envelope.detail
    evidence = {
        "group": text(detail.get("AutoScalingGroupName")),
        "hook": text(detail.get("LifecycleHookName")),
        "token": text(detail.get("LifecycleActionToken")),
        "origin": text(detail.get("Origin")),
        "destination": text(detail.get("Destination")),
    }
    # An instance that leaves the warm pool never worked: nothing has to be drained.
    code = "warm-pool" if evidence["origin"] == "WarmPool" else TERMINATING
    return [envelope.signal(Kind.LIFECYCLE, node_id, code, evidence=evidence)]


def report(envelope: Envelope) -> list[Signal]:
    """A launch action, or a launch or termination that succeeded or failed."""
    node_id = instance_id(envelope.detail.get("EC2InstanceId")) if envelope.detail is not None else None
    code = envelope.detail_type.removeprefix("EC2 Instance").strip(" -").lower().replace(" ", "-")
    return [envelope.signal(Kind.LIFECYCLE, node_id, code)]
