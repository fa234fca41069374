"""Cluster placement groups: EC2 puts what is launched into one near together, within an Availability Zone.

A stack of its own: the sandbox's emulator has none of these, and a placement group that holds a capacity
reservation outlives every control plane. A Capacity Block is placed by AWS and takes no placement group; a
capacity reservation takes one only if it was made in it.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/placement-strategies.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/cr-cpg.html
"""

from collections.abc import Mapping
from typing import Any

from aws_cdk import RemovalPolicy, Stack
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from infra.settings import Settings


def wanted(settings: Settings) -> bool:
    return settings.sandbox is None and any(group.placement_group for group in settings.node_groups)


class PlacementStack(Stack):
    """exports: node group -> name of its placement group, which CloudFormation makes."""

    def __init__(self, scope: Construct, construct_id: str, settings: Settings, **stack: Any) -> None:
        super().__init__(
            scope, construct_id, description=f"Planaria {settings.cluster}: placement groups", **stack
        )
        found: dict[str, str] = {}
        for group in settings.node_groups:
            if not group.placement_group:
                continue
            made = ec2.CfnPlacementGroup(self, group.name, strategy="cluster")
            # Instances and reservations may be in it still.
            made.apply_removal_policy(RemovalPolicy.RETAIN)
            found[group.name] = self.export_value(made.ref)
        self.exports: Mapping[str, str] = found
