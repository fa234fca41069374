"""Which events reach Planaria, as data: the patterns of every EventBridge rule, without any CDK.

Two lanes: urgent, where seconds matter, and normal. The event of a failed, timed-out or aborted
execution goes to the sweep function directly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

GAMEDAY_SOURCE = "planaria.gameday"
SWEEP_SOURCE = "planaria.sweep"
NODE_SOURCE_PREFIX = "planaria.node/"


class Lane(StrEnum):
    URGENT = "urgent"
    NORMAL = "normal"
    SWEEP = "sweep"


@dataclass(frozen=True, slots=True)
class Rule:
    """name: last part of the rule's name. sources, detail_types and detail are EventBridge content
    filters as they stand in the pattern; empty means any."""

    name: str
    lane: Lane
    sources: tuple[Any, ...]
    detail_types: tuple[str, ...] = ()
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
    # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
    Rule(
        "rebalance",
        Lane.NORMAL,
        ("aws.ec2",),
        ("EC2 Instance Rebalance Recommendation",),
    ),
    # Two titles, for AWS's own pages differ:
    # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-monitor.html
    Rule(
        "capacity-block-end",
        Lane.NORMAL,
        ("aws.ec2",),
        ("Capacity Block Expiration Warning", "Capacity Block Reservation Expiration Warning"),
    ),
    # Account notices (a reservation that is little used, say) are no fault of a node.
    # https://docs.aws.amazon.com/health/latest/ug/aws-health-events-eventbridge-schema.html
    Rule(
        "health",
        Lane.NORMAL,
        ("aws.health",),
        ("AWS Health Event",),
        {"service": ["EC2"], "eventTypeCategory": [{"anything-but": ["accountNotification"]}]},
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

AGENTS: tuple[Rule, ...] = (
    Rule(
        "agent-urgent",
        Lane.URGENT,
        ({"prefix": NODE_SOURCE_PREFIX},),
        ("Planaria Node Signal", "Planaria Node Ready", "Planaria Job Signal"),
    ),
    Rule(
        "agent-normal",
        Lane.NORMAL,
        ({"prefix": NODE_SOURCE_PREFIX},),
        ("Planaria Checkpoint Saved",),
    ),
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
        ("Step Functions Execution Status Change",),
        {"status": ["FAILED", "TIMED_OUT", "ABORTED"], "stateMachineArn": list(machines)},
    )


def default_bus(machines: Sequence[str]) -> tuple[Rule, ...]:
    """Every rule on the account's default bus."""
    return (*DEFAULT_BUS, execution_ended(machines))


def own_bus(machines: Sequence[str], gameday: bool) -> tuple[Rule, ...]:
    """Every rule on Planaria's own bus; the twins exist on game days only."""
    twins = tuple(rule.twin() for rule in default_bus(machines)) if gameday else ()
    return (*AGENTS, SWEEP, *twins)
