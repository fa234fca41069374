"""The security group of an FSx for Lustre file system, and what nodes need to reach it.

Lustre speaks both ways: file servers also call their clients, and each other. With EFA the group, and the
clients' with it, must let all traffic between themselves through.
https://docs.aws.amazon.com/fsx/latest/LustreGuide/limit-access-security-groups.html
"""

from collections.abc import Sequence

from aws_cdk import RemovalPolicy
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

PORTS = ((988, 988), (1018, 1023))
ALL = "-1"


class LustreAccess(Construct):
    """group_id: what the file system is put in. rules: all of them must be there before it is made."""

    def __init__(
        self, scope: Construct, construct_id: str, vpc: str, clients: Sequence[str], efa: bool, what: str
    ) -> None:
        """clients: the nodes' security groups; what: for people who find the group."""
        super().__init__(scope, construct_id)
        self._efa = efa
        group = ec2.CfnSecurityGroup(
            self,
            "Group",
            group_description=what,
            vpc_id=vpc,
            # One that leads nowhere: without any, EC2 adds one that leads everywhere.
            security_group_egress=[
                ec2.CfnSecurityGroup.EgressProperty(
                    ip_protocol="icmp",
                    from_port=252,
                    to_port=86,
                    cidr_ip="255.255.255.255/32",
                    description="Nothing else than the rules below",
                )
            ],
        )
        group.apply_removal_policy(RemovalPolicy.RETAIN)  # the file system stays in it
        self.group_id = group.attr_group_id
        self.rules: list[ec2.CfnSecurityGroupIngress | ec2.CfnSecurityGroupEgress] = []
        self._both_ways("Own", self.group_id, self.group_id)
        for client in clients:
            self._both_ways(client, self.group_id, client)
            self._in(f"{client}-Called", client, self.group_id)
            if efa:
                self._out(f"{client}-Calls", client, self.group_id)

    def _both_ways(self, name: str, group: str, peer: str) -> None:
        self._in(f"{name}-In", group, peer)
        self._out(f"{name}-Out", group, peer)

    def _in(self, name: str, group: str, source: str) -> None:
        for protocol, first, last in self._traffic():
            rule = ec2.CfnSecurityGroupIngress(
                self,
                f"{name}-{first or protocol}",
                group_id=group,
                ip_protocol=protocol,
                from_port=first,
                to_port=last,
                source_security_group_id=source,
                description="Lustre",
            )
            self._keep(rule)

    def _out(self, name: str, group: str, target: str) -> None:
        for protocol, first, last in self._traffic():
            rule = ec2.CfnSecurityGroupEgress(
                self,
                f"{name}-{first or protocol}",
                group_id=group,
                ip_protocol=protocol,
                from_port=first,
                to_port=last,
                destination_security_group_id=target,
                description="Lustre",
            )
            self._keep(rule)

    def _keep(self, rule: ec2.CfnSecurityGroupIngress | ec2.CfnSecurityGroupEgress) -> None:
        rule.apply_removal_policy(RemovalPolicy.RETAIN)
        self.rules.append(rule)

    def _traffic(self) -> list[tuple[str, int | None, int | None]]:
        return [(ALL, None, None)] if self._efa else [("tcp", first, last) for first, last in PORTS]
