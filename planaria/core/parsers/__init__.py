"""Events -> Signals: the registry of parsers, keyed by source and detail-type.

`parse` takes any JSON value and never raises: what cannot be parsed is a Signal with `invalid`, a type that
nobody reads is a Signal of kind unknown. There is at least one Signal per event, and one per instance where
an event names several.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace

from planaria.core.parsers import agent, autoscaling, capacity, cloudwatch, ec2, eks, health, sagemaker, sweep
from planaria.core.parsers.envelope import Envelope, digest, instance_id, number
from planaria.core.parsers.envelope import text as plain
from planaria.core.planned import PLAN, QUIET
from planaria.core.signal import Kind, Signal

Parser = Callable[[Envelope], list[Signal]]

GAMEDAY = "planaria.gameday"
SWEEP = "planaria.sweep"
AGENT = "planaria.node"

REPEATS = "repeats"
"""In the detail of an event of sweep and then in the evidence: told again, not seen again."""

PLANNED = "planned"
"""In the detail of such an event about a planned end (core/planned.py): which node is meant, its plan's key,
the newest date, and whether the node has no job: {"node_id", "plan", "deadline", "quiet"}."""

_INTERRUPTION = "Capacity Reservation Instance Interruption Warning"
# AWS's pages write these with and without "EC2" and "Reservation".
_BLOCKS = [f"{ec2}Capacity Block {word}" for ec2 in ("", "EC2 ") for word in ("", "Reservation ")]
_NOTICES = (
    *("EC2 Capacity Reservation " + state for state in
      ("Scheduled", "Active", "Delayed", "Unsupported", "Failed", "Expired", "Cancelled")),
    *("Future Capacity Request " + state for state in
      ("Canceled", "Completed", "Delayed", "Failed", "Scheduled")),
    "EC2 Capacity Reservation Interruptible Reclamation Complete",
    "EC2 Interruptible Capacity Reservation Allocation Reclamation Completed",
)  # fmt: skip

REGISTRY: dict[tuple[str, str], Parser] = {
    ("aws.ec2", "EC2 Spot Instance Interruption Warning"): ec2.spot_interruption,
    ("aws.ec2", "EC2 Instance Rebalance Recommendation"): ec2.rebalance,
    ("aws.ec2", "EC2 Spot Instance Rebalance Recommended"): ec2.rebalance,
    ("aws.ec2", "EC2 Instance State-change Notification"): ec2.state_change,
    ("aws.ec2", f"EC2 {_INTERRUPTION}"): capacity.interruption,
    ("aws.ec2", f"EC2 Interruptible {_INTERRUPTION}"): capacity.interruption,
    **{("aws.ec2", f"{block}Expiration Warning"): capacity.expiration for block in _BLOCKS},
    **{("aws.ec2", f"{block}Delivered"): capacity.notice for block in _BLOCKS},
    **{("aws.ec2", notice): capacity.notice for notice in _NOTICES},
    ("aws.health", "AWS Health Event"): health.parse,
    ("aws.cloudwatch", "CloudWatch Alarm State Change"): cloudwatch.parse,
    ("aws.autoscaling", "EC2 Instance-terminate Lifecycle Action"): autoscaling.terminate_action,
    ("aws.autoscaling", "EC2 Instance-launch Lifecycle Action"): autoscaling.report,
    ("aws.autoscaling", "EC2 Instance Launch Successful"): autoscaling.report,
    ("aws.autoscaling", "EC2 Instance Launch Unsuccessful"): autoscaling.report,
    ("aws.autoscaling", "EC2 Instance Terminate Successful"): autoscaling.report,
    ("aws.autoscaling", "EC2 Instance Terminate Unsuccessful"): autoscaling.report,
    ("aws.sagemaker", "SageMaker HyperPod Cluster Node Health Event"): sagemaker.node_health,
    ("aws.sagemaker", "SageMaker HyperPod Cluster Event"): sagemaker.cluster_event,
    ("aws.sagemaker", "SageMaker HyperPod Cluster State Change"): sagemaker.cluster_state,
    (AGENT, "Planaria Node Signal"): agent.node_signal,
    (AGENT, "Planaria Node Ready"): agent.node_ready,
    (AGENT, "Planaria Job Signal"): agent.job_signal,
    (AGENT, "Planaria Checkpoint Saved"): agent.checkpoint_saved,
    (AGENT, eks.DETAIL_TYPE): eks.condition,
}

# A game day plays AWS alone; sweep repeats what anyone said.
_PLAYED = {detail_type: parser for (source, detail_type), parser in REGISTRY.items() if source != AGENT}
_REPEATED = {detail_type: parser for (_, detail_type), parser in REGISTRY.items()}


def parse(event: object) -> list[Signal]:
    """The signals of one event, in the order of the entities that it names."""
    if not isinstance(event, dict):
        return [invalid("an event must be a JSON object", digest(event))]
    detail_type = event.get("detail-type")
    if detail_type is None:
        # AWS's page on Capacity Blocks prints the key with an underscore.
        detail_type = event.get("detail_type")
    if not isinstance(detail_type, str) or not detail_type:
        return [invalid("an event must have a detail-type", digest(event))]
    source = event.get("source")
    source = source if isinstance(source, str) else ""
    envelope = Envelope(event, source, detail_type, source == GAMEDAY)
    parser = REGISTRY.get((source, detail_type)) or _other(source, detail_type)
    signals = parser(envelope) if parser is not None else envelope.unknown()
    if source == SWEEP and envelope.detail is not None and envelope.detail.get(REPEATS) is True:
        return _repeated(signals, envelope.detail.get(PLANNED), envelope.time)
    return [_replayed(signal, event["replay-name"]) for signal in signals] if envelope.replay else signals


def _repeated(signals: list[Signal], plan: object, time: float | None) -> list[Signal]:
    """Of a planned end one node is meant, though the event may name many, or none but their reservation; it
    stands when it is told of again."""
    added: dict[str, object] = {REPEATS: True}
    node = instance_id(plan.get("node_id")) if isinstance(plan, dict) else None
    mine = [signal for signal in signals if signal.node_id in (node, None) and not signal.invalid]
    if isinstance(plan, dict) and node is not None and mine:
        signals = [replace(signal, node_id=node, time=time) for signal in mine]
        added |= {PLAN: plain(plan.get("plan")), QUIET: plan.get("quiet") is True}
        if (deadline := number(plan.get("deadline"))) is not None:
            added["deadline"] = deadline
    return [replace(signal, evidence={**signal.evidence, **added}) for signal in signals]


def _replayed(signal: Signal, name: object) -> Signal:
    """A replay by EventBridge has an outcome of its own, whether it keeps the original's id or not (no page
    of AWS says); a second replay under another name has another one."""
    return replace(signal, dedupe_key=f"replay/{plain(name)[:64]}/{signal.dedupe_key}")


def parse_text(text: str | bytes) -> list[Signal]:
    """As `parse`, for what came over the wire; text that is no JSON is one INVALID signal."""
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):
        content = text.encode(errors="replace") if isinstance(text, str) else text
        return [invalid("the event is not JSON", f"sha256:{hashlib.sha256(content).hexdigest()[:32]}")]
    return parse(event)


def invalid(reason: str, key: str) -> Signal:
    """The signal of something that is no event at all."""
    return Signal(None, key, "", "", Kind.UNKNOWN, invalid=reason)


def _other(source: str, detail_type: str) -> Parser | None:
    if source == GAMEDAY:
        return _PLAYED.get(detail_type)
    if source == SWEEP:
        return _REPEATED.get(detail_type, sweep.parse)
    if source.startswith(agent.PREFIX):
        return REGISTRY.get((AGENT, detail_type))
    return None
