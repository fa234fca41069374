"""The control plane: everything that can be deleted and deployed again without losing anything."""

from collections.abc import Mapping
from typing import Any

from aws_cdk import CfnOutput, Stack
from constructs import Construct

from infra import asl, checkpoint_grants, ssm_documents
from infra.alarms import Alarms
from infra.autoscaling_grants import group_arn
from infra.eks_access import EksAccess
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
        self,
        scope: Construct,
        construct_id: str,
        settings: Settings,
        state: State,
        placement_groups: Mapping[str, str],
        file_systems: Mapping[str, str],
        **stack: Any,
    ) -> None:
        """placement_groups: node group -> name of its placement group; file_systems: name -> id of those that
        the Storage stack has made."""
        super().__init__(
            scope, construct_id, description=f"Planaria {settings.cluster}: control plane", **stack
        )
        machines = machine_arns(self, settings, asl.MACHINES)
        notices = Notices(self, "Notices", settings)
        event_path = EventPath(self, "Events", settings)
        bus_arn = event_path.bus.event_bus_arn
        nodes = NodeGroups(self, "Nodes", settings, state, bus_arn, placement_groups)
        account_fsx = f"arn:{self.partition}:fsx:{self.region}:{self.account}"
        targets = Targets(
            cluster=settings.cluster,
            table=state.table_arn,
            bus=bus_arn,
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
            documents=self._documents(settings),
            head_node=self._head_node(settings),
            eks_cluster=self._eks_cluster(settings),
            linked=checkpoint_grants.places(self.partition, settings.storage),
            account_fsx=account_fsx,
            file_systems=checkpoint_grants.file_systems(account_fsx, settings.storage, file_systems),
        )
        environment = {
            "PLANARIA_CLUSTER": settings.cluster,
            "PLANARIA_TABLE": state.table_name,
            "PLANARIA_BUS": event_path.bus.event_bus_name,
            "PLANARIA_BUCKET": state.bucket_name,
            "PLANARIA_TOPIC": notices.topic_arn,
        }
        if file_systems:
            environment["PLANARIA_FILE_SYSTEMS"] = self.to_json_string(dict(file_systems))
        if settings.sandbox is not None:
            environment["PLANARIA_SANDBOX_URL"] = settings.sandbox.url
            environment["PLANARIA_SANDBOX_TOKEN"] = settings.sandbox.token
        functions = Functions(self, "Functions", settings, targets, environment).by_name
        if targets.eks_cluster:
            EksAccess(self, "EksAccess", settings.document["eks"]["cluster"], functions)
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
        named += [f"{own}:placement-group/{name}" for name in nodes.placement_groups.values()]
        return tuple(dict.fromkeys(named))

    def _documents(self, settings: Settings) -> dict[str, str]:
        home = f"arn:{self.partition}:ssm:{self.region}:{self.account}:document"
        names = ssm_documents.names(settings)
        return {name: f"{home}/{ssm_documents.physical(settings, name)}" for name in names}

    def _head_node(self, settings: Settings) -> str:
        slurm = settings.document.get("slurm") or {}
        named = slurm.get("head_node")
        return f"arn:{self.partition}:ec2:{self.region}:{self.account}:instance/{named}" if named else ""

    def _eks_cluster(self, settings: Settings) -> str:
        """Its ARN; the sandbox has no EKS."""
        if settings.document["scheduler"] != "eks" or settings.sandbox is not None:
            return ""
        name = settings.document["eks"]["cluster"]
        return f"arn:{self.partition}:eks:{self.region}:{self.account}:cluster/{name}"

    def _auto_scaling_groups(self, settings: Settings) -> tuple[str, ...]:
        named = [group["auto_scaling_group"] for group in settings.document["node_groups"]]
        arns = [group_arn(self.partition, self.region, self.account, name) for name in named if name]
        return tuple(dict.fromkeys(arns))

    def _reservations(self, settings: Settings) -> tuple[str, ...]:
        home = f"arn:{self.partition}:ec2:{self.region}:*:capacity-reservation"
        named = [reserved.id for group in settings.node_groups for reserved in group.reservations]
        return tuple(dict.fromkeys(f"{home}/{name}" for name in named))
