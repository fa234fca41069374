"""Amazon EC2 Auto Scaling in memory, as far as the adapter asks it: groups that launch what they lack,
members that are detached, attached and ended, and instances that wait for lifecycle hooks.

It stands where boto3's clients of `autoscaling` and (for CreateTags) `ec2` do, and refuses in AWS's words.
`fleet` holds the instances; time is what `now` says, and `play` does what is due.
"""

# ruff: noqa: N803  arguments have boto3's names

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from planaria.core import tags
from planaria.memory.fleet import MemoryFleet

HOOK_SECONDS = 3600.0
TERMINATING = "autoscaling:EC2_INSTANCE_TERMINATING"


@dataclasses.dataclass(slots=True)
class Scaled:
    """One group. marks: the tags that it gives to what it launches."""

    name: str
    desired: int
    smallest: int
    largest: int
    marks: dict[str, str]
    suspended: set[str] = dataclasses.field(default_factory=set)
    hooks: dict[str, str] = dataclasses.field(default_factory=dict)
    activities: list[dict[str, Any]] = dataclasses.field(default_factory=list)


class AutoScalingService:
    """refuse: asked before each launch: why EC2 has no instance, "" when it has one. launched, waits, ended:
    told of an instance when that happens to it; waits also of the hook."""

    def __init__(self, fleet: MemoryFleet, now: Callable[[], float], launch_seconds: float = 0.0) -> None:
        self.fleet, self.now, self.launch_seconds = fleet, now, launch_seconds
        self.groups: dict[str, Scaled] = {}
        self.members: dict[str, tuple[str, str]] = {}
        self.calls: list[tuple[str, str]] = []
        self.refuse: Callable[[str], str] = lambda group: ""
        self.launched: Callable[[str], None] = lambda node: None
        self.waits: Callable[[str, str], None] = lambda node, hook: None
        self.ended: Callable[[str], None] = lambda node: None
        self._deadlines: dict[tuple[str, str], float] = {}
        self._short_since: dict[str, float] = {}
        self._number = 0

    # --- what a person or AWS does -------------------------------------------------------------------

    def create(self, name: str, members: list[str], marks: dict[str, str], **sizes: int) -> Scaled:
        desired = sizes.get("desired", len(members))
        group = Scaled(name, desired, sizes.get("smallest", 0), sizes.get("largest", desired + 4), marks)
        self.groups[name] = group
        self.members.update(dict.fromkeys(members, (name, "InService")))
        return group

    def scale_in(self, node: str) -> None:
        """The group wants one fewer, and this is the one."""
        self.groups[self.members[node][0]].desired -= 1
        self.end(node)

    def end(self, node: str) -> None:
        """The group ends this member, by its own health check say."""
        name, _ = self.members[node]
        hooks = [hook for hook, transition in self.groups[name].hooks.items() if transition == TERMINATING]
        if not hooks:
            self._gone(node)
            return
        self.members[node] = (name, "Terminating:Wait")
        for hook in hooks:
            self._deadlines[(node, hook)] = self.now() + HOOK_SECONDS
            self.waits(node, hook)

    def state(self, node: str) -> str:
        return self.members.get(node, ("", ""))[1]

    def play(self) -> None:
        """Hooks that time out, and launches that are due."""
        for (node, hook), until in list(self._deadlines.items()):
            if until <= self.now() and (node, hook) in self._deadlines:
                self._hook_over(node, hook)
        for node, (_, state) in list(self.members.items()):
            instance = self.fleet.instances.get(node)
            if state == "InService" and (instance is None or instance.state != "running"):
                del self.members[node]  # its health check
        for name in self.groups:
            self._launch(name)

    def _launch(self, name: str) -> None:
        group = self.groups[name]
        lacks = group.desired - self._size(name)
        if lacks <= 0 or "Launch" in group.suspended:
            self._short_since.pop(name, None)
            return
        if self.now() - self._short_since.setdefault(name, self.now()) < self.launch_seconds:
            return
        for _ in range(lacks):
            why = self.refuse(name)
            at = datetime.fromtimestamp(self.now(), UTC)
            activity = {
                "StartTime": at,
                "StatusCode": "Failed" if why else "Successful",
                "StatusMessage": why,
            }
            description = "Launching a new EC2 instance"
            if not why:
                node = self._new(group)
                description = f"{description}: {node}"
            group.activities.insert(0, {**activity, "Description": description})
            if why:
                return

    def _new(self, group: Scaled) -> str:
        self._number += 1
        node = f"i-0b{self._number:015x}"
        self.fleet.add(
            node,
            instance_type="p5.48xlarge",
            launched_at=self.now(),
            address=f"10.0.2.{self._number}",
            tags=dict(group.marks),
        )
        self.members[node] = (group.name, "InService")
        self.launched(node)
        return node

    def _size(self, name: str) -> int:
        return sum(group == name and state == "InService" for group, state in self.members.values())

    def _gone(self, node: str) -> None:
        self.members.pop(node, None)
        self._deadlines = {key: at for key, at in self._deadlines.items() if key[0] != node}
        if self.fleet.instances[node].state == "running":
            self.fleet.instances[node] = dataclasses.replace(self.fleet.instances[node], state="terminated")
            self.ended(node)

    def _hook_over(self, node: str, hook: str) -> None:
        del self._deadlines[(node, hook)]
        if not any(waiting == node for waiting, _ in self._deadlines):
            self._gone(node)

    # --- boto3's `autoscaling` -------------------------------------------------------------------------

    def describe_auto_scaling_groups(self, *, AutoScalingGroupNames: list[str]) -> dict[str, Any]:
        self.play()
        found = [self.groups[name] for name in AutoScalingGroupNames if name in self.groups]
        return {"AutoScalingGroups": [self._described(group) for group in found]}

    def _described(self, group: Scaled) -> dict[str, Any]:
        members = [
            {"InstanceId": node, "LifecycleState": state, "HealthStatus": "Healthy"}
            for node, (name, state) in self.members.items()
            if name == group.name
        ]
        suspended = [{"ProcessName": name} for name in sorted(group.suspended)]
        return {
            "AutoScalingGroupName": group.name,
            "DesiredCapacity": group.desired,
            "Instances": members,
            "SuspendedProcesses": suspended,
        }

    def describe_auto_scaling_instances(self, *, InstanceIds: list[str]) -> dict[str, Any]:
        self.play()
        found = [
            {"InstanceId": node, "AutoScalingGroupName": name, "LifecycleState": state}
            for node, (name, state) in self.members.items()
            if node in InstanceIds
        ]
        return {"AutoScalingInstances": found}

    def describe_lifecycle_hooks(self, *, AutoScalingGroupName: str) -> dict[str, Any]:
        hooks = self.groups[AutoScalingGroupName].hooks
        return {
            "LifecycleHooks": [
                {"LifecycleHookName": hook, "LifecycleTransition": transition}
                for hook, transition in hooks.items()
            ]
        }

    def describe_scaling_activities(self, *, AutoScalingGroupName: str, MaxRecords: int) -> dict[str, Any]:
        return {"Activities": self.groups[AutoScalingGroupName].activities[:MaxRecords]}

    def detach_instances(
        self,
        *,
        InstanceIds: list[str],
        AutoScalingGroupName: str,
        ShouldDecrementDesiredCapacity: bool,
    ) -> None:
        [node], name = InstanceIds, AutoScalingGroupName
        self.calls.append(("detach", node))
        if self.members.get(node, ("", ""))[0] != name:
            raise _refused(f"The instance {node} is not part of Auto Scaling group {name}.")
        if self.state(node) != "InService":
            raise _refused(f"The instance {node} is not in InService or Standby.")
        if ShouldDecrementDesiredCapacity:
            self._decrement(name, "detach")
        del self.members[node]

    def _decrement(self, name: str, act: str) -> None:
        group = self.groups[name]
        if group.desired <= group.smallest:
            raise _refused(
                f"AutoScalingGroup {name} has min-size={group.smallest}, max-size={group.largest}, and "
                f"desired-size={group.desired}. To {act} 1 instance, please update the AutoScalingGroup "
                "sizes appropriately."
            )
        group.desired -= 1

    def attach_instances(self, *, InstanceIds: list[str], AutoScalingGroupName: str) -> None:
        [node], group = InstanceIds, self.groups[AutoScalingGroupName]
        self.calls.append(("attach", node))
        if node in self.members:
            raise _refused(f"Instance {node} is already part of AutoScalingGroup:{group.name}")
        if group.desired >= group.largest:
            raise _refused(f"AutoScalingGroup {group.name} would exceed its max size of {group.largest}")
        group.desired += 1
        self.members[node] = (group.name, "InService")

    def terminate_instance_in_auto_scaling_group(
        self,
        *,
        InstanceId: str,
        ShouldDecrementDesiredCapacity: bool,
    ) -> None:
        self.calls.append(("end", InstanceId))
        if InstanceId not in self.members:
            raise _refused(f"Instance Id not found - No managed instance found for instance ID: {InstanceId}")
        if ShouldDecrementDesiredCapacity:
            self._decrement(self.members[InstanceId][0], "terminate")
        self.end(InstanceId)

    def complete_lifecycle_action(
        self,
        *,
        LifecycleHookName: str,
        AutoScalingGroupName: str,
        InstanceId: str,
        LifecycleActionResult: str,
    ) -> None:
        self._waits_for(InstanceId, LifecycleHookName)
        self.calls.append((f"complete {LifecycleHookName}", InstanceId))
        self._hook_over(InstanceId, LifecycleHookName)

    def record_lifecycle_action_heartbeat(
        self,
        *,
        LifecycleHookName: str,
        AutoScalingGroupName: str,
        InstanceId: str,
    ) -> None:
        self._waits_for(InstanceId, LifecycleHookName)
        self.calls.append((f"prolong {LifecycleHookName}", InstanceId))
        self._deadlines[(InstanceId, LifecycleHookName)] = self.now() + HOOK_SECONDS

    def _waits_for(self, node: str, hook: str) -> None:
        self.play()
        if (node, hook) not in self._deadlines:
            raise _refused(f"No active Lifecycle Action found with instance ID {node}")

    # --- boto3's `ec2` -----------------------------------------------------------------------------------

    def create_tags(self, *, Resources: list[str], Tags: list[dict[str, str]]) -> None:
        [node] = Resources
        instance = self.fleet.instances[node]
        marks = {**instance.tags, **{tag["Key"]: tag["Value"] for tag in Tags}}
        self.fleet.instances[node] = dataclasses.replace(instance, tags=marks)
        self.calls.append((f"tag {','.join(sorted(tag['Key'] for tag in Tags))}", node))


def cluster_marks(cluster: str, group: str) -> dict[str, str]:
    """The tags that a group must give to its instances."""
    return {tags.CLUSTER: cluster, tags.GROUP: group}


def _refused(text: str) -> ClientError:
    return ClientError({"Error": {"Code": "ValidationError", "Message": text}}, "Operation")
