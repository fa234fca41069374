"""What calls a person: every dead-letter queue, late lanes, failing functions, executions that died."""

from collections.abc import Mapping

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from infra.patterns import Lane
from infra.settings import Settings

LATE_SECONDS: Mapping[Lane, int] = {Lane.URGENT: 60, Lane.NORMAL: 300}
MINUTE = Duration.minutes(1)
FIVE_MINUTES = Duration.minutes(5)


class Alarms(Construct):
    """All go to the topic. Missing data is well: nothing came, nothing failed."""

    def __init__(self, scope: Construct, construct_id: str, settings: Settings, topic: sns.ITopic) -> None:
        super().__init__(scope, construct_id)
        self._settings = settings
        self._action = actions.SnsAction(topic)

    def dead_letters(self, queues: Mapping[str, sqs.Queue]) -> None:
        for name, queue in queues.items():
            depth = queue.metric_approximate_number_of_messages_visible(period=MINUTE, statistic="Maximum")
            self.alarm(
                f"{name}-dlq",
                depth,
                1,
                "Messages that nobody could handle: `planaria redrive` once it is clear why.",
                "dead-letters",
            )

    def lateness(self, queues: Mapping[Lane, sqs.Queue]) -> None:
        for lane, queue in queues.items():
            age = queue.metric_approximate_age_of_oldest_message(period=MINUTE, statistic="Maximum")
            what = f"Events wait in the {lane.value} lane."
            self.alarm(f"{lane.value}-late", age, LATE_SECONDS[lane], what, "late-events")

    def functions(self, functions: Mapping[str, lambda_.Function]) -> None:
        """Errors of all. Throttles only where no state machine retries and reports them."""
        for name, function in functions.items():
            errors = function.metric_errors(period=FIVE_MINUTES, statistic="Sum")
            self.alarm(
                f"{name}-errors", errors, 1, f"The function {name} raised an error.", "function-errors"
            )
        for name in ("triage", "sweep"):
            throttles = functions[name].metric_throttles(period=FIVE_MINUTES, statistic="Sum")
            self.alarm(
                f"{name}-throttles", throttles, 1, f"The function {name} is throttled.", "function-errors"
            )

    def executions(self, machines: Mapping[str, sfn.StateMachine]) -> None:
        for name, machine in machines.items():
            ends = {
                "failed": machine.metric_failed(period=FIVE_MINUTES, statistic="Sum"),
                "timed-out": machine.metric_timed_out(period=FIVE_MINUTES, statistic="Sum"),
                "aborted": machine.metric_aborted(period=FIVE_MINUTES, statistic="Sum"),
            }
            for end, metric in ends.items():
                self.alarm(f"{name}-{end}", metric, 1, f"An execution of {name} ended {end}.", "executions")

    def alarm(self, name: str, metric: cloudwatch.IMetric, threshold: float, what: str, runbook: str) -> None:
        alarm = cloudwatch.Alarm(
            self,
            name,
            alarm_name=self._settings.named(name),
            alarm_description=f"{what} Runbook: docs/runbooks/{runbook}.md",
            metric=metric,
            threshold=threshold,
            evaluation_periods=1,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        )
        alarm.add_alarm_action(self._action)
