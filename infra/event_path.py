"""The buffer between events and triage: Planaria's own bus, the two lanes, their dead-letter queues."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aws_cdk import Duration
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra import patterns
from infra.functions import SANDBOX_CONCURRENCY
from infra.patterns import Lane
from infra.settings import Settings
from infra.suppressions import accept

VISIBILITY = Duration.seconds(60)
RETENTION = Duration.days(14)
RECEIVES = 16
"""With 60 s between them (2, 4 and 8 s at first in the urgent lane) a message outlives ten minutes in which
triage cannot do its work, and is no dead letter that a person must send through again."""


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """batch: records; window: seconds; delivery: seconds that a rule tries to deliver;
    concurrency: batches at once, so that this lane leaves room for the other."""

    batch: int
    window: int
    delivery: int
    concurrency: int | None = None


LANES: Mapping[Lane, LaneSpec] = {
    # A warning that could not be delivered for five minutes is about a node that is gone.
    Lane.URGENT: LaneSpec(batch=10, window=0, delivery=300),
    Lane.NORMAL: LaneSpec(batch=100, window=1, delivery=3600, concurrency=10),
}
SWEEP_DELIVERY = 60  # the next sweep comes in a minute
RETRIES = 185  # EventBridge's own default; the age ends it first


class EventPath(Construct):
    """queues and dead_letters: by lane; dead_letters also holds what no rule could deliver (`rules`)."""

    def __init__(self, scope: Construct, construct_id: str, settings: Settings) -> None:
        super().__init__(scope, construct_id)
        self._settings = settings
        # No dead-letter queue here: a bus uses one only for events that a customer key fails to encrypt.
        self.bus = events.EventBus(self, "Bus", event_bus_name=settings.prefix)
        self.dead_letters: dict[str, sqs.Queue] = {}
        self.queues = {lane: self._lane(lane) for lane in LANES}
        self.undelivered = self._dead_letter_queue("rules")

    def connect(self, triage: lambda_.Function, sweep: lambda_.Function, machines: Sequence[str]) -> None:
        """Add every rule and both event source mappings. machines: ARNs of our state machines."""
        default = patterns.default_bus(machines)
        own = patterns.own_bus(machines, self._settings.gameday)
        made = [(rule, self._rule(rule, None, sweep)) for rule in default]
        made += [(rule, self._rule(rule, self.bus.event_bus_name, sweep)) for rule in own]
        clock = self._sweep_clock(sweep)
        self._deliverable(self.undelivered, [rule.attr_arn for _, rule in made] + [clock.attr_arn])
        for lane, queue in self.queues.items():
            self._deliverable(queue, [rule.attr_arn for spec, rule in made if spec.lane is lane])
            self._source(lane, queue, triage)
        for spec, rule in made:
            if spec.lane is Lane.SWEEP:
                self._invocable(spec.name, sweep, rule)
        # A minute-old sweep is worth nothing: the next one does its work.
        lambda_.EventInvokeConfig(
            self,
            "SweepOnce",
            function=sweep,
            retry_attempts=0,
            max_event_age=Duration.seconds(SWEEP_DELIVERY),
        )

    def _lane(self, lane: Lane) -> sqs.Queue:
        dead = self._dead_letter_queue(lane.value)
        return sqs.Queue(
            self,
            lane.value,
            queue_name=self._settings.named(lane.value),
            visibility_timeout=VISIBILITY,
            retention_period=RETENTION,
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=self._settings.tls_only,
            dead_letter_queue=sqs.DeadLetterQueue(queue=dead, max_receive_count=RECEIVES),
        )

    def _dead_letter_queue(self, name: str) -> sqs.Queue:
        queue = sqs.Queue(
            self,
            f"{name}-dlq",
            queue_name=self._settings.named(f"{name}-dlq"),
            retention_period=RETENTION,
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=self._settings.tls_only,
        )
        self.dead_letters[name] = queue
        accept(queue, "AwsSolutions-SQS3", "This is a dead-letter queue; an alarm watches its depth.")
        return queue

    def _rule(self, rule: patterns.Rule, bus: str | None, sweep: lambda_.Function) -> events.CfnRule:
        if rule.lane is Lane.SWEEP:
            target, delivery = sweep.function_arn, SWEEP_DELIVERY
        else:
            target, delivery = self.queues[rule.lane].queue_arn, LANES[rule.lane].delivery
        return events.CfnRule(
            self,
            f"rule-{rule.name}",
            name=self._settings.named(rule.name),
            event_bus_name=bus,
            event_pattern=rule.pattern(),
            state="ENABLED",
            targets=[self._target(target, delivery)],
        )

    def _target(self, arn: str, delivery: int) -> events.CfnRule.TargetProperty:
        return events.CfnRule.TargetProperty(
            id="planaria",
            arn=arn,
            dead_letter_config=events.CfnRule.DeadLetterConfigProperty(arn=self.undelivered.queue_arn),
            retry_policy=events.CfnRule.RetryPolicyProperty(
                maximum_event_age_in_seconds=delivery, maximum_retry_attempts=RETRIES
            ),
        )

    def _sweep_clock(self, sweep: lambda_.Function) -> events.CfnRule:
        rule = events.CfnRule(
            self,
            "rule-every-minute",
            name=self._settings.named("every-minute"),
            schedule_expression="rate(1 minute)",
            state="ENABLED",
            targets=[self._target(sweep.function_arn, SWEEP_DELIVERY)],
        )
        self._invocable("every-minute", sweep, rule)
        return rule

    def _invocable(self, name: str, function: lambda_.Function, rule: events.CfnRule) -> None:
        lambda_.CfnPermission(
            self,
            f"invoke-{name}",
            action="lambda:InvokeFunction",
            function_name=function.function_arn,
            principal="events.amazonaws.com",
            source_arn=rule.attr_arn,
        )

    def _deliverable(self, queue: sqs.Queue, rules: list[str]) -> None:
        """One statement for all rules: a queue's policy has room for twenty."""
        queue.add_to_resource_policy(
            iam.PolicyStatement(
                sid="Rules",
                principals=[iam.ServicePrincipal("events.amazonaws.com")],
                actions=["sqs:SendMessage"],
                resources=[queue.queue_arn],
                conditions={"ArnEquals": {"aws:SourceArn": rules}},
            )
        )

    def _source(self, lane: Lane, queue: sqs.Queue, triage: lambda_.Function) -> None:
        spec = LANES[lane]
        scaling = None
        if spec.concurrency is not None:
            small = self._settings.sandbox is not None
            scaling = lambda_.CfnEventSourceMapping.ScalingConfigProperty(
                maximum_concurrency=SANDBOX_CONCURRENCY // 2 if small else spec.concurrency
            )
        lambda_.CfnEventSourceMapping(
            self,
            f"{lane.value}-to-triage",
            function_name=triage.function_name,
            event_source_arn=queue.queue_arn,
            batch_size=spec.batch,
            maximum_batching_window_in_seconds=spec.window,
            function_response_types=["ReportBatchItemFailures"],
            scaling_config=scaling,
        )
