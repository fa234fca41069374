"""What a node is: the nodes' role, and launch templates: one per node group and one per capacity reservation.

CreateFleet cannot name a reservation by itself; the launch template that it launches from can.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-fleet-launch-instances-capacity-blocks-walkthrough.html
"""

import json
from collections.abc import Mapping
from typing import Any

from aws_cdk import Fn, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from constructs import Construct

from infra import ssm_documents
from infra.checkpoint_grants import of_nodes, places
from infra.command_grants import answers_whole
from infra.grants import Grant, put_events
from infra.settings import NodeGroup, Reservation, Settings
from infra.state_stack import State
from infra.suppressions import accept, accept_wildcards

CLUSTER_TAG = "planaria:cluster"
GROUP_TAG = "planaria:group"
_TAGGED = ("instance", "volume", "network-interface", "spot-instances-request")


class NodeGroups(Construct):
    """role: what every node runs as; templates: the launch templates, in the cluster file's order."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        settings: Settings,
        state: State,
        bus_arn: str,
        placement_groups: Mapping[str, str],
    ) -> None:
        """placement_groups: node group -> name of its placement group."""
        super().__init__(scope, construct_id)
        self._settings = settings
        self._state = state
        self.placement_groups = placement_groups
        self.role = self._node_role(bus_arn)
        self._profile = iam.CfnInstanceProfile(self, "Profile", roles=[self.role.role_name])
        self.templates = [
            self._template(group, reserved)
            for group in settings.node_groups
            for reserved in (None, *group.reservations)
        ]

    def _node_role(self, bus_arn: str) -> iam.Role:
        grants: tuple[Grant, ...] = (
            # A node may speak for itself alone: its user id is <role id>:<instance id>.
            put_events(bus_arn, "planaria.node/${aws:userid}"),
            *of_nodes(
                self._state.bucket_arn,
                self._state.table_arn,
                places(Stack.of(self).partition, self._settings.storage),
            ),
            *((answers_whole(self._state.bucket_arn),) if ssm_documents.names(self._settings) else ()),
        )
        if self._settings.sandbox is not None:
            grants = tuple(grant.in_sandbox() for grant in grants)
        role = iam.Role(
            self,
            "Role",
            role_name=self._settings.named("node"),
            description=f"Planaria {self._settings.cluster}: every node",
            assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
            managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name("AmazonSSMManagedInstanceCore")],
            inline_policies={"grants": iam.PolicyDocument(statements=[g.statement() for g in grants])},
        )
        accept(
            role,
            "AwsSolutions-IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/AmazonSSMManagedInstanceCore]",
            "AWS's own minimal policy for the SSM agent, kept up to date by AWS with the agent.",
        )
        accept_wildcards(role, grants)
        return role

    def _template(self, group: NodeGroup, reserved: Reservation | None) -> ec2.CfnLaunchTemplate:
        tags = [
            {"key": CLUSTER_TAG, "value": self._settings.cluster},
            {"key": GROUP_TAG, "value": group.name},
        ]
        template = ec2.CfnLaunchTemplate
        return template(
            self,
            group.name if reserved is None else f"{group.name}-{reserved.id}",
            launch_template_name=group.template if reserved is None else reserved.template,
            launch_template_data=template.LaunchTemplateDataProperty(
                image_id=group.image,
                key_name=group.key,
                security_group_ids=None if group.efa else list(group.security_groups),
                network_interfaces=_interfaces(group) if group.efa else None,
                placement=self._placement(group, reserved),
                iam_instance_profile=template.IamInstanceProfileProperty(arn=self._profile.attr_arn),
                metadata_options=template.MetadataOptionsProperty(
                    http_endpoint="enabled",
                    http_tokens="required",
                    http_put_response_hop_limit=1,
                    instance_metadata_tags="enabled",
                ),
                block_device_mappings=[
                    template.BlockDeviceMappingProperty(
                        device_name=group.root_device,
                        ebs=template.EbsProperty(
                            encrypted=True,
                            volume_type="gp3",
                            volume_size=group.root_gib,
                            delete_on_termination=True,
                        ),
                    )
                ],
                tag_specifications=[
                    template.TagSpecificationProperty(resource_type=kind, tags=tags) for kind in _TAGGED
                ],
                user_data=self._user_data(group),
                capacity_reservation_specification=_only_in(reserved) if reserved is not None else None,
                instance_market_options=_of_block() if reserved is not None and reserved.is_block else None,
            ),
        )

    def _placement(
        self, group: NodeGroup, reserved: Reservation | None
    ) -> ec2.CfnLaunchTemplate.PlacementProperty | None:
        """On-Demand and Spot, and a reservation that was made in the group's placement group."""
        name = self.placement_groups.get(group.name)
        if name is None or (reserved is not None and not reserved.in_placement_group):
            return None
        return ec2.CfnLaunchTemplate.PlacementProperty(group_name=name)

    def _user_data(self, group: NodeGroup) -> str:
        """Tells the node where it belongs and what it must have; the same group gives the same bytes."""
        here: dict[str, Any] = {
            "cluster": self._settings.cluster,
            "group": group.name,
            "bus": self._settings.prefix,
            "region": self._settings.region,
            "table": self._settings.prefix,
            "bucket": self._state.bucket_name,
        }
        if self._settings.storage is not None:
            here["mounts"] = [each.mount for each in self._settings.storage.file_systems]
        files: dict[str, dict[str, Any]] = {"node.json": here}
        if group.efa:
            files["hardware.json"] = {"efa": {"expected": len(group.efa)}}
        script = "#!/bin/sh\nmkdir -p /etc/planaria\n"
        for name, content in files.items():
            text = json.dumps(content, sort_keys=True)
            script += f"cat > /etc/planaria/{name} <<'END'\n{text}\nEND\n"
        return Fn.base64(
            script
        )  # CloudFormation makes it: the bucket's name is known only to the State stack


def _interfaces(group: NodeGroup) -> list[ec2.CfnLaunchTemplate.NetworkInterfaceProperty]:
    """The instance's own address first, then the EFA devices. The subnet is the fleet request's."""

    def one(card: int, device: int, kind: str) -> ec2.CfnLaunchTemplate.NetworkInterfaceProperty:
        return ec2.CfnLaunchTemplate.NetworkInterfaceProperty(
            network_card_index=card,
            device_index=device,
            interface_type=kind,
            groups=list(group.security_groups),
            delete_on_termination=True,
        )

    return [one(0, 0, "interface"), *(one(card, device, "efa-only") for card, device in group.efa)]


def _only_in(reserved: Reservation) -> ec2.CfnLaunchTemplate.CapacityReservationSpecificationProperty:
    """In this reservation or nowhere: outside of it the offering of another kind comes next."""
    template = ec2.CfnLaunchTemplate
    return template.CapacityReservationSpecificationProperty(
        capacity_reservation_preference="capacity-reservations-only",
        capacity_reservation_target=template.CapacityReservationTargetProperty(
            capacity_reservation_id=reserved.id
        ),
    )


def _of_block() -> ec2.CfnLaunchTemplate.InstanceMarketOptionsProperty:
    return ec2.CfnLaunchTemplate.InstanceMarketOptionsProperty(market_type="capacity-block")
