"""The control plane: everything that can be deleted and deployed again without losing anything."""

from typing import Any

from aws_cdk import CfnOutput, Stack
from constructs import Construct

from infra import asl
from infra.alarms import Alarms
from infra.autoscaling_grants import group_arn
from infra.event_path import EventPath
from infra.functions import Functions, machine_arns
from infra.grants import Targets
from infra.node_group import NodeGroups
from infra.notices import Notices
from infra.settings import Settings
from infra.state_stack import State
from infra.workflows import Workflows


class ControlStack(Stack):
    """Wires the constructs."""

    def __init__(
        self, scope: Construct, construct_id: str, settings: Settings, state: State, **stack: Any
    ) -> None:
        super().__init__(
            scope, construct_id, description=f"Planaria {settings.cluster}: control plane", **stack
        )
        machines = machine_arns(self, settings, asl.MACHINES)
        notices = Notices(self, "Notices", settings)
        event_path = EventPath(self, "Events", settings)
        nodes = NodeGroups(self, "Nodes", settings, state.bucket_arn, event_path.bus.event_bus_arn)
        targets = Targets(
            cluster=settings.cluster,
            table=state.table_arn,
            bus=event_path.bus.event_bus_arn,
            bucket=state.bucket_arn,
            topic=notices.topic_arn,
            topic_key=notices.key_arn,
            queues=tuple(queue.queue_arn for queue in event_path.queues.values()),
            machines=machines,
            account_ec2=f"arn:{self.partition}:ec2:{self.region}:{self.account}",
            launch_exact=self._launch_exact(settings, nodes),
            reservations=self._reservations(settings),
            snapshots=f"arn:{self.partition}:ec2:{self.region}::snapshot/*",
            node_role=nodes.role.role_arn,
            auto_scaling_groups=self._auto_scaling_groups(settings),
        )
        environment = {
            "PLANARIA_CLUSTER": settings.cluster,
            "PLANARIA_TABLE": state.table_name,
            "PLANARIA_BUS": event_path.bus.event_bus_name,
            "PLANARIA_BUCKET": state.bucket_name,
            "PLANARIA_TOPIC": notices.topic_arn,
        }
        if settings.sandbox is not None:
            environment["PLANARIA_SANDBOX_URL"] = settings.sandbox.url
            environment["PLANARIA_SANDBOX_TOKEN"] = settings.sandbox.token
        functions = Functions(self, "Functions", settings, targets, environment).by_name
        workflows = Workflows(self, "Workflows", settings, functions, notices).by_name
        event_path.connect(functions["triage"], functions["sweep"], list(machines.values()))

        alarms = Alarms(self, "Alarms", settings, notices.topic)
        alarms.dead_letters(event_path.dead_letters)
        alarms.lateness(event_path.queues)
        alarms.functions(functions)
        alarms.executions(workflows)

        CfnOutput(
            self,
            "NoticesTopic",
            value=notices.topic_arn,
            description="Subscribe a mail address to this topic",
        )

    def _launch_exact(self, settings: Settings, nodes: NodeGroups) -> tuple[str, ...]:
        """ARNs of all that the cluster file names for launching."""
        home = f"arn:{self.partition}:ec2:{self.region}"
        own = f"{home}:{self.account}"
        groups = settings.node_groups
        named = [f"{home}::image/{group.image}" for group in groups]
        named += [f"{own}:subnet/{subnet}" for group in groups for subnet in group.subnets]
        named += [f"{own}:security-group/{sg}" for group in groups for sg in group.security_groups]
        named += [f"{own}:key-pair/{group.key}" for group in groups if group.key]
        named += [f"{own}:launch-template/{template.ref}" for template in nodes.templates]
        return tuple(dict.fromkeys(named))

    def _auto_scaling_groups(self, settings: Settings) -> tuple[str, ...]:
        named = [group["auto_scaling_group"] for group in settings.document["node_groups"]]
        arns = [group_arn(self.partition, self.region, self.account, name) for name in named if name]
        return tuple(dict.fromkeys(arns))

    def _reservations(self, settings: Settings) -> tuple[str, ...]:
        home = f"arn:{self.partition}:ec2:{self.region}:*:capacity-reservation"
        named = [reserved.id for group in settings.node_groups for reserved in group.reservations]
        return tuple(dict.fromkeys(f"{home}/{name}" for name in named))
