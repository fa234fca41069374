"""The single grants that permissions.py gives out, as data before they become IAM statements.

Action names, resource types and condition keys are those of the Service Authorization Reference:
https://docs.aws.amazon.com/service-authorization/latest/reference/
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aws_cdk import aws_iam as iam

Conditions = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Targets:
    """The ARNs that grants name. machines: our name -> ARN; account_ec2: `arn:...:ec2:region:account`;
    launch_exact: image, templates, subnets, security groups and keys of the cluster file; reservations: its
    capacity reservations and Capacity Blocks, of whichever account; auto_scaling_groups: those it names.
    documents: of SSM, our name -> ARN; head_node: the instance with Slurm's controller, "" without Slurm;
    eks_cluster: "" without EKS. linked: `arn:aws:s3:::bucket/prefix/*` of checkpoints in other buckets;
    account_fsx: `arn:...:fsx:region:account`; file_systems: those with data repository associations."""

    cluster: str
    table: str
    bus: str
    bucket: str
    topic: str
    topic_key: str
    queues: tuple[str, ...]
    machines: Mapping[str, str]
    account_ec2: str
    launch_exact: tuple[str, ...]
    reservations: tuple[str, ...]
    snapshots: str
    node_role: str
    auto_scaling_groups: tuple[str, ...] = ()
    documents: Mapping[str, str] = field(default_factory=dict)
    head_node: str = ""
    eks_cluster: str = ""
    linked: tuple[str, ...] = ()
    account_fsx: str = ""
    file_systems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Grant:
    """One Allow statement.

    wildcard: why a `*` in its resources cannot be narrowed. unnamed: the sandbox's IAM, which knows less
    than AWS's, sees no resource in these calls.
    """

    sid: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    conditions: Conditions = field(default_factory=dict)
    wildcard: str = ""
    unnamed: bool = False

    def in_sandbox(self) -> "Grant":
        """The same grant where condition keys may be absent and some calls name no resource."""
        eased = {
            f"{test.removesuffix('IfExists')}IfExists": keys
            for test, keys in self.conditions.items()
            if test != "Null"
        }
        if not self.unnamed:
            return replace(self, conditions=eased)
        reason = self.wildcard or "The sandbox's IAM sees no resource in this call."
        return replace(self, conditions=eased, resources=("*",), wildcard=reason)

    def statement(self) -> iam.PolicyStatement:
        return iam.PolicyStatement(
            sid=self.sid,
            actions=list(self.actions),
            resources=list(self.resources),
            conditions=dict(self.conditions),
        )


Maker = Callable[[Targets], tuple[Grant, ...]]


def rows(to: Targets) -> tuple[Grant, ...]:
    actions = ("dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:UpdateItem", "dynamodb:Query")
    return (Grant("Rows", actions, (to.table,)),)


def listing(to: Targets) -> tuple[Grant, ...]:
    """The index holds keys only; the rows are read after it."""
    return (Grant("Listing", ("dynamodb:Query",), (f"{to.table}/index/listing",)),)


def queues(to: Targets) -> tuple[Grant, ...]:
    actions = (
        "sqs:ReceiveMessage",
        "sqs:DeleteMessage",
        "sqs:GetQueueAttributes",
        "sqs:GetQueueUrl",
        "sqs:ChangeMessageVisibility",
    )
    return (Grant("Queues", actions, to.queues),)


def large_events(to: Targets) -> tuple[Grant, ...]:
    return (
        Grant(
            "LargeEvents",
            ("s3:PutObject",),
            (f"{to.bucket}/events/*",),
            wildcard="Object keys below events/ are made from event bodies at run time.",
        ),
    )


def held_events(to: Targets) -> tuple[Grant, ...]:
    return (
        Grant(
            "HeldEvents",
            ("s3:GetObject",),
            (f"{to.bucket}/events/*",),
            wildcard="Object keys below events/ are made from event bodies at run time.",
        ),
    )


def describe(*actions: str) -> Maker:
    reason = "EC2's Describe actions have no resource-level permissions; they only read."
    grant = Grant("Describe", actions, ("*",), wildcard=reason)
    return lambda _: (grant,)


def notices(to: Targets) -> tuple[Grant, ...]:
    return publish(to.topic, to.topic_key)


def publish(topic: str, key: str) -> tuple[Grant, ...]:
    """SNS encrypts with the publisher's own permissions on the topic's key."""
    return (
        Grant("Notices", ("sns:Publish",), (topic,)),
        Grant("NoticesKey", ("kms:GenerateDataKey", "kms:Decrypt"), (key,)),
    )


def starts(*machines: str) -> Maker:
    return lambda to: (Grant("Start", ("states:StartExecution",), tuple(to.machines[m] for m in machines)),)


def looks_at(*machines: str) -> Maker:
    """See whether executions of these machines still run."""
    return lambda to: (_executions("LookAt", "states:DescribeExecution", to, machines),)


def stops(*machines: str) -> Maker:
    """Stop executions of these machines: a superseding session ends its predecessor's."""
    return lambda to: (_executions("Stop", "states:StopExecution", to, machines),)


def answers(*machines: str) -> Maker:
    """Return the task token of a waiting Task. IAM checks it on the machine that waits."""
    return lambda to: (
        Grant("Answer", ("states:SendTaskSuccess",), tuple(to.machines[m] for m in machines), unnamed=True),
    )


def _executions(sid: str, action: str, to: Targets, machines: tuple[str, ...]) -> Grant:
    found = tuple(f"{to.machines[m].replace(':stateMachine:', ':execution:')}:*" for m in machines)
    return Grant(
        sid, (action,), found, wildcard="Execution names are made from node and session at run time."
    )


def sweep_events(to: Targets) -> tuple[Grant, ...]:
    return (put_events(to.bus, "planaria.sweep"),)


def put_events(bus: str, source: str) -> Grant:
    """Put events on our bus under one source. The key may hold several values, one per entry."""
    only = {"ForAllValues:StringEquals": {"events:source": source}, "Null": {"events:source": "false"}}
    return Grant("Events", ("events:PutEvents",), (bus,), only)


def launch(to: Targets) -> tuple[Grant, ...]:
    both = ("ec2:CreateFleet", "ec2:RunInstances")  # an instant fleet runs instances in the caller's name
    kinds = ("instance", "volume", "network-interface", "spot-instances-request")
    made = tuple(f"{to.account_ec2}:{kind}/*" for kind in kinds)
    new = "What is launched has no id yet; the cluster's tag in the request is the limit."
    on_launch = {"StringEquals": {"ec2:CreateAction": ["CreateFleet", "RunInstances"]}}
    shared = (
        "A capacity reservation may be shared by another account, whose id the cluster file does not have."
    )
    reserved = Grant("LaunchReserved", both, to.reservations, wildcard=shared)
    return (
        Grant("LaunchFrom", both, to.launch_exact),
        *((reserved,) if to.reservations else ()),
        Grant(
            "LaunchSnapshots",
            both,
            (to.snapshots,),
            wildcard="The snapshots behind an image are not known at synth; the image itself is named.",
        ),
        Grant(
            "Launch",
            both,
            made,
            {"StringEquals": {"aws:RequestTag/planaria:cluster": to.cluster}},
            wildcard=new,
            unnamed=True,
        ),
        Grant("LaunchFleet", ("ec2:CreateFleet",), (f"{to.account_ec2}:fleet/*",), wildcard=new),
        Grant("TagOnLaunch", ("ec2:CreateTags",), made, on_launch, wildcard=new),
        Grant(
            "PassNodeRole",
            ("iam:PassRole",),
            (to.node_role,),
            {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
        ),
    )


def on_own_instances(sid: str, action: str) -> Maker:
    return lambda to: (
        Grant(
            sid,
            (action,),
            (f"{to.account_ec2}:instance/*",),
            {"StringEquals": {"aws:ResourceTag/planaria:cluster": to.cluster}},
            wildcard="Instance ids come and go; the cluster's tag on the instance is the limit.",
        ),
    )
