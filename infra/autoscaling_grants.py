"""Grants for nodes that Auto Scaling groups launch: none where the cluster file names no such group.

https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2autoscaling.html
"""

from infra.grants import Grant, Targets

MARKS = ("detached", "given-back", "group", "launch", "name", "replaces")
"""Tags that Planaria sets on members, each with `planaria:` before it; never the cluster's own."""

_NAMED = "The ARN of an Auto Scaling group has an id that AWS makes up; the group's name is given."
_READS = "Auto Scaling's Describe actions have no resource-level permissions; they only read."


def group_arn(partition: str, region: str, account: str, name: str) -> str:
    """The group of this name, whatever its id."""
    home = f"arn:{partition}:autoscaling:{region}:{account}"
    return f"{home}:autoScalingGroup:*:autoScalingGroupName/{name}"


def lifecycle_hooks(to: Targets) -> tuple[Grant, ...]:
    """Let a group that ends a node wait on, and go on once the node is empty."""
    return (
        *_reads(to, "AutoScalingInstances", "LifecycleHooks"),
        *_acts(to, "LifecycleHooks", "RecordLifecycleActionHeartbeat", "CompleteLifecycleAction"),
    )


def members(to: Targets) -> tuple[Grant, ...]:
    """Take a node out of its group or back into it, and make a new member the replacement."""
    if not to.auto_scaling_groups:
        return ()
    of_cluster = {"aws:ResourceTag/planaria:cluster": to.cluster}
    keys = {"aws:TagKeys": [f"planaria:{mark}" for mark in MARKS]}
    return (
        *_reads(to, "AutoScalingGroups", "AutoScalingInstances", "LifecycleHooks", "ScalingActivities"),
        *_acts(
            to,
            "Members",
            "DetachInstances",
            "AttachInstances",
            "TerminateInstanceInAutoScalingGroup",
            "CompleteLifecycleAction",
        ),
        Grant(
            "TagMembers",
            ("ec2:CreateTags",),
            (f"{to.account_ec2}:instance/*",),
            {
                "StringEquals": of_cluster,
                "ForAllValues:StringEquals": keys,
                "Null": {"aws:TagKeys": "false"},
            },
            wildcard="Members come and go; the cluster's tag on the instance is the limit.",
        ),
    )


def _reads(to: Targets, *what: str) -> tuple[Grant, ...]:
    actions = tuple(f"autoscaling:Describe{name}" for name in what)
    return (Grant("ReadScaling", actions, ("*",), wildcard=_READS),) if to.auto_scaling_groups else ()


def _acts(to: Targets, sid: str, *what: str) -> tuple[Grant, ...]:
    if not to.auto_scaling_groups:
        return ()
    actions = tuple(f"autoscaling:{name}" for name in what)
    return (Grant(f"Scaling{sid}", actions, to.auto_scaling_groups, wildcard=_NAMED),)
