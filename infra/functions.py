"""The Lambda functions: one code asset, one layer, one role and one log group each."""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aws_cdk import Duration, RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra import assets, permissions
from infra.grants import Targets
from infra.settings import Settings
from infra.suppressions import accept_wildcards

RUNTIME = lambda_.Runtime.PYTHON_3_14
# A Lambda has CPU by its memory: at 256 MB a cold start with its first calls takes seconds.
MEMORY_MB = 1024
SANDBOX_CONCURRENCY = 4
LOG_LEVEL = "INFO"


@dataclass(frozen=True, slots=True)
class Spec:
    """One file of lambdas/. timeout: seconds, never scaled: work takes what it takes."""

    timeout: int
    purpose: str


SPECS: Mapping[str, Spec] = {
    "triage": Spec(10, "Judges health events and starts incidents"),
    "sweep": Spec(50, "Looks at the whole cluster once a minute and at ended executions at once"),
    "begin_incident": Spec(30, "Claims the node and marks the incident as running"),
    "ask_approval": Spec(30, "Asks a person and keeps the task token until there is an answer"),
    "handle_spot_interruption": Spec(30, "Asks a node that AWS takes back for an emergency checkpoint"),
    "isolate_node": Spec(30, "Takes the node out of scheduling"),
    "launch_replacement": Spec(60, "Launches the replacement instance"),
    "await_node": Spec(30, "Waits until a node reports that it is ready"),
    "reset_gpu": Spec(30, "Resets a GPU of an isolated node"),
    "reboot_node": Spec(30, "Reboots the instance"),
    "verify_node": Spec(30, "Checks the node before it works again"),
    "climb_ladder": Spec(30, "Goes on to the next stronger repair"),
    "continue_incident": Spec(30, "Goes on waiting for capacity in a new execution"),
    "admit_node": Spec(30, "Gives the node its place and work again"),
    "retire_node": Spec(30, "Terminates the failed instance"),
    "tell_job": Spec(30, "Removes the node from the job's pending nodes and starts its resume"),
    "close_incident": Spec(30, "Writes the incident's outcome"),
    "begin_resume": Spec(30, "Marks the job's resume as running"),
    "choose_checkpoint": Spec(30, "Chooses the newest good checkpoint of the job"),
    "await_restore": Spec(30, "Waits until a checkpoint is back on the file system"),
    "requeue_job": Spec(30, "Starts the job's next attempt"),
    "await_steps": Spec(30, "Waits until the job's steps advance"),
    "close_resume": Spec(30, "Writes the resume's outcome"),
    "begin_refill": Spec(30, "Claims a slot of a warm pool"),
    "launch_spare": Spec(60, "Launches a spare"),
    "close_refill": Spec(30, "Lets the spare stand by, or the slot rest"),
    "begin_restore": Spec(30, "Claims the restore of a job's checkpoint"),
    "choose_restore": Spec(30, "Chooses the newest good checkpoint over all tiers"),
    "bring_checkpoint": Spec(30, "Lets nodes bring a checkpoint from S3 to the file system"),
    "settle_restore": Spec(30, "Lets a node check the checkpoint and give it its name"),
    "close_restore": Spec(30, "Writes the restore's outcome and answers who waits"),
    "begin_sync": Spec(30, "Claims the sync of a job's checkpoints"),
    "plan_sync": Spec(30, "Takes the oldest step that is not safe in S3 yet"),
    "start_sync": Spec(60, "Sends nodes to copy a step, or has FSx export it"),
    "follow_sync": Spec(30, "Looks how far nodes or FSx have come with a step"),
    "verify_sync": Spec(60, "Proves every object of a step in S3"),
    "record_sync": Spec(30, "Commits a step's manifest and records it as durable"),
    "retain_sync": Spec(60, "Removes steps that the policy keeps no longer"),
    "close_sync": Spec(30, "Writes the sync's outcome"),
    "continue_sync": Spec(30, "Goes on with the sync in a new execution"),
}
NAMES = tuple(SPECS)


class Functions(Construct):
    """by_name: our name -> function; log_groups the same way."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        settings: Settings,
        targets: Targets,
        environment: Mapping[str, str],
    ) -> None:
        super().__init__(scope, construct_id)
        self._settings = settings
        self._targets = targets
        self._environment = {
            **environment,
            "PLANARIA_MACHINES": json.dumps(dict(targets.machines), sort_keys=True),
            "POWERTOOLS_LOG_LEVEL": LOG_LEVEL,
        }
        self._layer = lambda_.LayerVersion(
            self,
            "Layer",
            layer_version_name=settings.named("dependencies"),
            description="Powertools for AWS Lambda; pure Python",
            code=lambda_.Code.from_asset(str(assets.layer(settings.root))),
            compatible_runtimes=[RUNTIME],
        )
        with tempfile.TemporaryDirectory() as folder:  # CDK copies it to its output right here
            assets.stage_code(settings.root, Path(folder), NAMES, settings.document)
            self._code = lambda_.Code.from_asset(folder)
            self.by_name = {name: self._function(name, spec) for name, spec in SPECS.items()}

    def _function(self, name: str, spec: Spec) -> lambda_.Function:
        physical = self._settings.named(name)
        scope = Construct(self, name)
        log_group = logs.LogGroup(
            scope,
            "Log",
            log_group_name=f"/aws/lambda/{physical}",
            retention=logs.RetentionDays.ONE_MONTH,
            removal_policy=RemovalPolicy.DESTROY,
        )
        sandbox = self._settings.sandbox is not None
        return lambda_.Function(
            scope,
            "Function",
            function_name=physical,
            description=spec.purpose,
            runtime=RUNTIME,
            architecture=lambda_.Architecture.ARM_64,  # a fifth cheaper, and all code is pure Python
            handler=f"lambdas.{name}.handler",
            code=self._code,
            layers=[self._layer],
            role=self._role(scope, name, log_group),
            timeout=Duration.seconds(spec.timeout),
            memory_size=MEMORY_MB,
            environment={**self._environment, "POWERTOOLS_SERVICE_NAME": name},
            log_group=log_group,
            logging_format=lambda_.LoggingFormat.JSON,
            application_log_level_v2=lambda_.ApplicationLogLevel.INFO,
            system_log_level_v2=lambda_.SystemLogLevel.WARN,
            # On AWS the account's pool is large and a storm must not be throttled; on one machine every
            # concurrent Lambda is a process.
            reserved_concurrent_executions=SANDBOX_CONCURRENCY if sandbox else None,
            # Off: the incident's timeline in the ledger holds the seconds of every step, and X-Ray's
            # grant has no resource-level permissions.
            tracing=lambda_.Tracing.DISABLED,
        )

    def _role(self, scope: Construct, name: str, log_group: logs.LogGroup) -> iam.Role:
        grants = permissions.of(name, self._targets, self._settings.sandbox is not None)
        own_log = iam.PolicyStatement(
            sid="OwnLog",
            actions=["logs:CreateLogStream", "logs:PutLogEvents"],
            resources=[log_group.log_group_arn],
        )
        statements = [own_log, *(grant.statement() for grant in grants)]
        role = iam.Role(
            scope,
            "Role",
            description=f"Planaria {self._settings.cluster}: {name}",
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
            inline_policies={"grants": iam.PolicyDocument(statements=statements)},
        )
        accept_wildcards(role, grants)
        return role


def machine_arns(scope: Construct, settings: Settings, machines: tuple[str, ...]) -> dict[str, str]:
    """ARNs built from physical names: functions and machines name each other, so neither can wait."""
    stack = Stack.of(scope)
    home = f"arn:{stack.partition}:states:{stack.region}:{stack.account}"
    return {machine: f"{home}:stateMachine:{settings.named(machine)}" for machine in machines}
