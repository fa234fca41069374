"""The state machines, from statemachines/*.asl.json."""

from collections.abc import Mapping

from aws_cdk import RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from infra import asl
from infra.grants import publish
from infra.notices import Notices
from infra.settings import Settings
from infra.suppressions import accept


class Workflows(Construct):
    """by_name: our name -> state machine. Each may invoke exactly the functions that its file names.

    Raises ValueError when a file is missing, is no ASL, or names what does not exist.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        settings: Settings,
        functions: Mapping[str, lambda_.Function],
        notices: Notices,
    ) -> None:
        super().__init__(scope, construct_id)
        self._settings = settings
        self._functions = functions
        self._notices = notices
        self.by_name = {machine: self._machine(machine) for machine in asl.MACHINES}

    def _machine(self, machine: str) -> sfn.StateMachine:
        file = asl.path(self._settings.root, machine)
        where = f"statemachines/{file.name}"
        try:
            text = asl.scaled(file.read_text(encoding="utf-8"), self._settings.time_scale)
        except OSError as error:
            raise ValueError(f"{where} cannot be read ({error.strerror}).") from error
        except ValueError as error:
            raise ValueError(f"{where}: {error}.") from error
        names = asl.placeholders(text)
        unknown = [name for name in names if name not in self._functions and name != asl.TOPIC_PLACEHOLDER]
        if unknown:
            raise ValueError(f"{where} names ${{{unknown[0]}}}, which is no function of lambdas/.")

        scope = Construct(self, machine)
        physical = self._settings.named(machine)
        log_group = logs.LogGroup(
            scope,
            "Log",
            # Under this prefix Step Functions needs no new entry in the account's log resource policy,
            # which is full after ten.
            log_group_name=f"/aws/vendedlogs/states/{physical}",
            retention=logs.RetentionDays.ONE_MONTH,
            removal_policy=RemovalPolicy.DESTROY,
        )
        state_machine = sfn.StateMachine(
            scope,
            "Machine",
            state_machine_name=physical,
            definition_body=sfn.DefinitionBody.from_string(text),
            definition_substitutions={name: self._arn(name) for name in names},
            # Every transition, so that an execution can be followed after its 90 days of history; without
            # data, which holds task tokens.
            logs=sfn.LogOptions(destination=log_group, level=sfn.LogLevel.ALL, include_execution_data=False),
        )
        invoked = [self._arn(name) for name in names if name in self._functions]
        if invoked:
            state_machine.add_to_role_policy(
                iam.PolicyStatement(sid="Tasks", actions=["lambda:InvokeFunction"], resources=invoked)
            )
        if asl.TOPIC_PLACEHOLDER in names:
            for grant in publish(self._notices.topic_arn, self._notices.key_arn):
                state_machine.add_to_role_policy(grant.statement())
        accept(
            state_machine,
            "AwsSolutions-IAM5[Resource::*]",
            "Step Functions sets up log delivery with actions that have no resource-level permissions.",
        )
        accept(
            state_machine,
            "AwsSolutions-SF2",
            "The incident's timeline in the ledger holds the seconds of every step; X-Ray's grant has no "
            "resource-level permissions.",
        )
        return state_machine

    def _arn(self, name: str) -> str:
        if name == asl.TOPIC_PLACEHOLDER:
            return self._notices.topic_arn
        return self._functions[name].function_arn
