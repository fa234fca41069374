"""Which events reach Planaria, as data: the patterns of every EventBridge rule, without any CDK.

Two lanes. Urgent is for what cannot wait until a storm has passed: two-minute warnings, instances that end,
nodes and jobs that someone waits for. A sick node reports without end, so the faults that agents see take the
normal lane. The event of a failed, timed-out or aborted execution goes to the sweep function directly. No
event matches two rules.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

GAMEDAY_SOURCE = "planaria.gameday"
SWEEP_SOURCE = "planaria.sweep"
NODE_SOURCE_PREFIX = "planaria.node/"
EXECUTION_STATUS = "Step Functions Execution Status Change"


class Lane(StrEnum):
    URGENT = "urgent"
    NORMAL = "normal"
    SWEEP = "sweep"


@dataclass(frozen=True, slots=True)
class Rule:
    """name: last part of the rule's name. sources, detail_types and detail are EventBridge content
    filters as they stand in the pattern; empty means any.

    https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-create-pattern-operators.html
    """

    name: str
    lane: Lane
    sources: tuple[Any, ...]
    detail_types: tuple[Any, ...] = ()
    detail: Mapping[str, Any] = field(default_factory=dict)

    def pattern(self) -> dict[str, Any]:
        """The event pattern in EventBridge's own keys."""
        pattern: dict[str, Any] = {"source": list(self.sources)}
        if self.detail_types:
            pattern["detail-type"] = list(self.detail_types)
        if self.detail:
            pattern["detail"] = dict(self.detail)
        return pattern

    def twin(self) -> "Rule":
        """The same events as a game day sends them: only the source differs."""
        return replace(self, name=f"gameday-{self.name}", sources=(GAMEDAY_SOURCE,))


DEFAULT_BUS: tuple[Rule, ...] = (
    # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
    Rule(
        "spot-interruption",
        Lane.URGENT,
        ("aws.ec2",),
        ("EC2 Spot Instance Interruption Warning",),
    ),
    # Two titles: AWS's pages on Capacity Blocks and on interruptible reservations differ.
    # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitor-interruptible-cr.html
    Rule(
        "capacity-interruption",
        Lane.URGENT,
        ("aws.ec2",),
        (
            "EC2 Capacity Reservation Instance Interruption Warning",
            "EC2 Interruptible Capacity Reservation Instance Interruption Warning",
        ),
    ),
    # pending and running are left out: a node is there when its agent says so.
    Rule(
        "state-change",
        Lane.URGENT,
        ("aws.ec2",),
        ("EC2 Instance State-change Notification",),
        {"state": ["stopping", "stopped", "shutting-down", "terminated"]},
    ),
    # The user guide and EventBridge's list of EC2's events give it different titles.
    # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
    # https://docs.aws.amazon.com/eventbridge/latest/ref/events-ref-ec2.html
    Rule(
        "rebalance",
        Lane.NORMAL,
        ("aws.ec2",),
        ("EC2 Instance Rebalance Recommendation", "EC2 Spot Instance Rebalance Recommended"),
    ),
    # AWS's own pages differ in the title; the end is 40 minutes away, so this can wait.
    # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-monitor.html
    Rule(
        "capacity-block-end",
        Lane.NORMAL,
        ("aws.ec2",),
        (
            "Capacity Block Expiration Warning",
            "Capacity Block Reservation Expiration Warning",
            "EC2 Capacity Block Expiration Warning",
            "EC2 Capacity Block Reservation Expiration Warning",
        ),
    ),
    # Auto Scaling waits for the lifecycle hook's heartbeat, an hour unless it is set otherwise.
    # https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-event-reference.html
    Rule(
        "autoscaling-terminate",
        Lane.NORMAL,
        ("aws.autoscaling",),
        ("EC2 Instance-terminate Lifecycle Action",),
    ),
    # Account notices (a reservation that is little used, say) are no fault of a node.
    # https://docs.aws.amazon.com/health/latest/ug/aws-health-events-eventbridge-schema.html
    Rule(
        "health",
        Lane.NORMAL,
        ("aws.health",),
        ("AWS Health Event",),
        {
            "service": ["EC2"],
            "eventTypeCategory": [{"anything-but": ["accountNotification"]}],
            "eventTypeCode": [{"anything-but": {"prefix": "AWS_EC2_ODCR"}}],
        },
    ),
    Rule(
        "hyperpod-node-health",
        Lane.NORMAL,
        ("aws.sagemaker",),
        ("SageMaker HyperPod Cluster Node Health Event",),
    ),
    Rule(
        "hyperpod-cluster",
        Lane.NORMAL,
        ("aws.sagemaker",),
        ("SageMaker HyperPod Cluster Event",),
    ),
    # https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch-and-eventbridge.html
    Rule(
        "status-check-alarm",
        Lane.NORMAL,
        ("aws.cloudwatch",),
        ("CloudWatch Alarm State Change",),
        {
            "state": {"value": ["ALARM", "OK"]},
            "configuration": {
                "metrics": {
                    "metricStat": {
                        "metric": {"namespace": ["AWS/EC2"], "name": [{"prefix": "StatusCheckFailed"}]}
                    }
                }
            },
        },
    ),
)

SIGNAL, READY, JOB = "Planaria Node Signal", "Planaria Node Ready", "Planaria Job Signal"


def _but(value: str) -> list[dict[str, Any]]:
    """Any other value, or none at all: a malformed event has an outcome as well."""
    return [{"anything-but": [value]}, {"exists": False}]


def _agent(name: str, lane: Lane, detail_type: Any, detail: Mapping[str, Any] | None = None) -> Rule:
    return Rule(name, lane, ({"prefix": NODE_SOURCE_PREFIX},), (detail_type,), detail or {})


AGENTS: tuple[Rule, ...] = (
    _agent("agent-spot-notice", Lane.URGENT, SIGNAL, {"kind": ["spot_notice"]}),
    _agent("agent-ready", Lane.URGENT, READY),
    _agent("agent-step", Lane.URGENT, JOB, {"event": ["step"]}),
    _agent("agent-signal", Lane.NORMAL, SIGNAL, {"kind": _but("spot_notice")}),
    _agent("agent-exit", Lane.NORMAL, JOB, {"event": _but("step")}),
    # Saved checkpoints, node conditions, and what a newer agent may say.
    _agent("agent-other", Lane.NORMAL, {"anything-but": [SIGNAL, READY, JOB]}),
)

SWEEP = Rule("sweep", Lane.NORMAL, (SWEEP_SOURCE,))


def execution_ended(machines: Sequence[str]) -> Rule:
    """Executions of our machines (their ARNs) that ended without closing their incident.

    https://docs.aws.amazon.com/step-functions/latest/dg/eventbridge-integration.html
    """
    return Rule(
        "execution-ended",
        Lane.SWEEP,
        ("aws.states",),
        (EXECUTION_STATUS,),
        {"status": ["FAILED", "TIMED_OUT", "ABORTED"], "stateMachineArn": list(machines)},
    )


def default_bus(machines: Sequence[str]) -> tuple[Rule, ...]:
    """Every rule on the account's default bus."""
    return (*DEFAULT_BUS, execution_ended(machines))


def own_bus(machines: Sequence[str], gameday: bool) -> tuple[Rule, ...]:
    """Every rule on Planaria's own bus; the twins exist on game days only."""
    twins = tuple(rule.twin() for rule in default_bus(machines)) if gameday else ()
    return (*AGENTS, SWEEP, *twins)
