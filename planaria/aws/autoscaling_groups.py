"""What Planaria asks of Amazon EC2 Auto Scaling, and what its answers mean.

Auto Scaling says most of its refusals as `ValidationError`, so they are told apart by their text.
https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_Operations.html
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from planaria.aws.errors import code_of, meaning, translated
from planaria.core.errors import CapacityError, PermanentError, PlanariaError, TransientError

TERMINATING = "autoscaling:EC2_INSTANCE_TERMINATING"

OWN_HOOK = "planaria"
"""Lifecycle hooks whose name begins so are ours to complete; somebody else waits for any other."""

_COMING = ("InService", "Pending")
_CODE = re.compile(r"\b([A-Z][A-Za-z]+(?:\.[A-Za-z]+)?) - ")
_ID = re.compile(r"\bi-[0-9a-f]+\b")
_NEEDS_A_PERSON = ("limit", "quota", "not authorized", "access denied", "invalid", "does not exist")


@dataclass(frozen=True, slots=True)
class Member:
    """An instance and its group. state: Auto Scaling's word, such as InService or Terminating:Wait.

    https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-lifecycle.html
    """

    node_id: str
    group: str
    state: str

    @property
    def coming(self) -> bool:
        """Counted in the group's desired capacity."""
        return self.state.startswith(_COMING)

    @property
    def leaving(self) -> bool:
        """Its group is ending it."""
        return self.state.startswith("Terminat")


@dataclass(frozen=True, slots=True)
class Group:
    """suspended: names of its processes that a person has suspended."""

    name: str
    desired: int
    members: tuple[Member, ...]
    suspended: frozenset[str]


@dataclass(frozen=True, slots=True)
class Launches:
    """What a group has launched since some moment. failure: why its newest try failed, "" if it did not."""

    instances: frozenset[str]
    failure: str


class Refused(PermanentError):
    """Auto Scaling's ValidationError. text: its words."""

    def __init__(self, text: str) -> None:
        super().__init__(f"Auto Scaling refuses: {text}")
        self.text = text


class AutoScalingGroups:
    """client: a boto3 client of `autoscaling`."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def group(self, name: str) -> Group:
        """Raises PermanentError when there is none of that name."""
        with _sorted():
            found = self._client.describe_auto_scaling_groups(AutoScalingGroupNames=[name])
        for group in found["AutoScalingGroups"]:
            if group["AutoScalingGroupName"] == name:
                members = tuple(
                    Member(member["InstanceId"], name, member["LifecycleState"])
                    for member in group.get("Instances", [])
                )
                suspended = frozenset(p["ProcessName"] for p in group.get("SuspendedProcesses", []))
                return Group(name, int(group["DesiredCapacity"]), members, suspended)
        raise PermanentError(
            f"there is no Auto Scaling group {name} in this account and region; correct auto_scaling_group "
            "in the cluster file and deploy"
        )

    def member(self, node_id: str) -> Member | None:
        """None: in no group, or detached, or ended."""
        with _sorted():
            found = self._client.describe_auto_scaling_instances(InstanceIds=[node_id])
        for one in found["AutoScalingInstances"]:
            if one["InstanceId"] == node_id and one["LifecycleState"] != "Detached":
                return Member(node_id, one["AutoScalingGroupName"], one["LifecycleState"])
        return None

    def detach(self, member: Member, fewer: bool) -> None:
        """Out of its group, running on; fewer: the group wants one fewer, else it launches another at once.

        Lifecycle hooks do not run for it. Raises Refused when a group at its smallest size should want fewer.
        https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DetachInstances.html
        """
        try:
            with _sorted():
                self._client.detach_instances(
                    InstanceIds=[member.node_id],
                    AutoScalingGroupName=member.group,
                    ShouldDecrementDesiredCapacity=fewer,
                )
        except Refused as refused:
            if "is not in InService" in refused.text:
                why = f"{member.node_id} changes its state in Auto Scaling group {member.group} just now"
                raise TransientError(why) from refused
            if "is not part of" not in refused.text:
                raise

    def attach(self, node_id: str, group: str) -> bool:
        """A member again, and the group wants one more; False when Auto Scaling will not have it.

        https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_AttachInstances.html
        """
        try:
            with _sorted():
                self._client.attach_instances(InstanceIds=[node_id], AutoScalingGroupName=group)
        except Refused as refused:
            return "already part of" in refused.text
        return True

    def end_with_its_place(self, node_id: str) -> None:
        """End a member of any state; its group wants one fewer. Raises Refused at the group's smallest size.

        https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_TerminateInstanceInAutoScalingGroup.html
        """
        try:
            with _sorted():
                self._client.terminate_instance_in_auto_scaling_group(
                    InstanceId=node_id, ShouldDecrementDesiredCapacity=True
                )
        except Refused as refused:
            if "No managed instance found" not in refused.text:
                raise

    def hooks(self, group: str) -> list[str]:
        """Our own lifecycle hooks for instances that the group ends."""
        with _sorted():
            found = self._client.describe_lifecycle_hooks(AutoScalingGroupName=group)["LifecycleHooks"]
        return sorted(
            hook["LifecycleHookName"]
            for hook in found
            if hook["LifecycleTransition"] == TERMINATING and hook["LifecycleHookName"].startswith(OWN_HOOK)
        )

    def complete(self, member: Member, hook: str) -> None:
        """The wait of this hook is over; one that is over already is no error.

        https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_CompleteLifecycleAction.html
        """
        with _sorted(), _over_already():
            self._client.complete_lifecycle_action(
                LifecycleHookName=hook,
                AutoScalingGroupName=member.group,
                InstanceId=member.node_id,
                LifecycleActionResult="CONTINUE",
            )

    def prolong(self, member: Member, hook: str) -> None:
        """The wait of this hook starts anew, for its heartbeat time-out; at most 100 times or 48 hours.

        https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_RecordLifecycleActionHeartbeat.html
        """
        with _sorted(), _over_already():
            self._client.record_lifecycle_action_heartbeat(
                LifecycleHookName=hook, AutoScalingGroupName=member.group, InstanceId=member.node_id
            )

    def launches(self, group: str, since: float) -> Launches:
        """Auto Scaling keeps its activities of six weeks and tells the newest first.

        https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeScalingActivities.html
        """
        with _sorted():
            found = self._client.describe_scaling_activities(AutoScalingGroupName=group, MaxRecords=100)
        tries = [
            activity
            for activity in found["Activities"]
            if str(activity.get("Description", "")).startswith("Launching")
            and activity["StartTime"].timestamp() >= since
        ]
        launched = frozenset(
            node for t in tries if t["StatusCode"] != "Failed" for node in _ID.findall(t["Description"])
        )
        newest = max(tries, key=lambda activity: activity["StartTime"], default=None)
        if newest is None or newest["StatusCode"] != "Failed":
            return Launches(launched, "")
        return Launches(launched, str(newest.get("StatusMessage") or "it gave no reason"))


def launch_failure(group: str, text: str) -> PlanariaError:
    """What an activity's StatusMessage means: EC2's error code is in it, or only EC2's sentence."""
    sentence = f"Auto Scaling group {group} cannot launch: {text}"
    for code in _CODE.findall(text):
        error = meaning(code, text)
        if not isinstance(error, TransientError):
            return type(error)(sentence)
    low = text.lower()
    if "capacity" in low and ("sufficient" in low or "no spot capacity" in low):
        return CapacityError(sentence)
    if any(word in low for word in _NEEDS_A_PERSON):
        return PermanentError(sentence)
    return TransientError(sentence)


@contextmanager
def _sorted() -> Iterator[None]:
    """Our errors; a ValidationError becomes Refused, with its words."""
    try:
        with translated():
            yield
    except PlanariaError as error:
        cause = error.__cause__
        if isinstance(cause, ClientError) and code_of(cause) == "ValidationError":
            raise Refused(str(cause.response["Error"].get("Message", ""))) from cause
        raise


@contextmanager
def _over_already() -> Iterator[None]:
    """Raised inside `_sorted`, so it sees botocore's own error."""
    try:
        yield
    except ClientError as error:
        text = str(error.response.get("Error", {}).get("Message", ""))
        if "no active lifecycle action" not in text.lower():
            raise
