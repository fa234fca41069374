"""The Fleet port where an Auto Scaling group launches the nodes, and the Scaling port.

A failed member is detached without lowering the group's desired capacity, so that the group launches another
one at once and neither its health checks nor its scaling end the old one while it is drained. Which new
instance takes the failed one's place is decided in the ledger (`LaunchRequest.choose`), for EC2's tags know
no condition. A group that ends a node itself waits for our lifecycle hook, if it has one
(AutoScalingGroups.hooks), until the node is empty.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planaria.aws.autoscaling_groups import (
    AutoScalingGroups,
    Group,
    Launches,
    Member,
    Refused,
    launch_failure,
)
from planaria.aws.errors import translated
from planaria.core import tags
from planaria.core.errors import PermanentError, TransientError, Waiting
from planaria.core.ports import Fleet, Instance, InstanceStatus, LaunchRequest

EARLIER_SECONDS = 900.0
"""How long before an incident began a group may have replaced the node itself, by its own health check."""

SLACK_SECONDS = 5.0
"""EC2 cuts the time of a launch to whole seconds."""

FEW = 100
"""Ids that one filter of DescribeInstances may well name; of more the whole cluster is listed."""

_ENDED = frozenset({"shutting-down", "terminated"})
_ALIVE = frozenset({"pending", "running"})


class AutoScalingFleet:
    """scaling, ec2: boto3 clients; fleet: the Fleet that knows the cluster's instances, members or not."""

    def __init__(self, scaling: Any, ec2: Any, fleet: Fleet, cluster: str, now: Callable[[], float]) -> None:
        self._groups = AutoScalingGroups(scaling)
        self._ec2 = ec2
        self._fleet = fleet
        self._cluster = cluster
        self._now = now

    # --- Fleet ---------------------------------------------------------------------------------------

    def describe(self, node_ids: Sequence[str]) -> list[Instance]:
        return self._fleet.describe(node_ids)

    def cluster(self) -> list[Instance]:
        return self._fleet.cluster()

    def statuses(self, node_ids: Sequence[str]) -> list[InstanceStatus]:
        return self._fleet.statuses(node_ids)

    def launched(self, token: str) -> list[Instance]:
        return self._fleet.launched(token)

    def reboot(self, node_id: str) -> None:
        self._fleet.reboot(node_id)

    def launch(self, request: LaunchRequest) -> str:
        """The group's new member that takes the place of `request.replaces`, with our tags; "" where the
        group wants no further one. Raises Waiting while the group has not launched it."""
        name = request.auto_scaling_group
        if not name:
            return self._fleet.launch(request)
        group = self._groups.group(name)
        since = self._leave(group, request)
        launches = self._groups.launches(name, since)
        unseen, fresh = self._fresh(group, request.replaces, launches, since)
        chosen = request.choose(fresh)
        if not chosen:
            return self._none_yet(group, request.replaces, launches, unseen)
        self._tag(chosen, {**request.tags, tags.LAUNCH: request.token})
        return chosen

    def terminate(self, node_id: str) -> None:
        """End it; its group keeps its desired capacity. A member that the group itself ends is left to it."""
        member = self._groups.member(node_id)
        if member is not None and member.leaving:
            self._complete(member)
            return
        if member is not None and member.state == "InService":
            self._groups.detach(member, fewer=False)
        # A member that is still coming cannot be detached: its group notices its end and launches another.
        self._fleet.terminate(node_id)

    # --- Scaling -------------------------------------------------------------------------------------

    def prolong(self, node_id: str) -> None:
        member = self._groups.member(node_id)
        if member is not None and member.state == "Terminating:Wait":
            for hook in self._groups.hooks(member.group):
                self._groups.prolong(member, hook)

    def ending(self, node_id: str) -> bool:
        member = self._groups.member(node_id)
        return member is not None and member.leaving

    def complete(self, node_id: str) -> None:
        member = self._groups.member(node_id)
        if member is not None and member.leaving:
            self._complete(member)

    def remove(self, node_id: str) -> None:
        """Raises PermanentError, and ends nothing, when the group is at its smallest size."""
        member = self._groups.member(node_id)
        if member is not None and member.leaving:
            self._complete(member)
            return
        if member is not None:
            try:
                self._take_out(member)
            except Refused as refused:
                raise PermanentError(
                    f"{node_id} is not removed: Auto Scaling group {member.group} has its smallest size "
                    f"already ({refused.text}); lower the group's MinSize, or replace the node instead"
                ) from refused
        self._fleet.terminate(node_id)

    def claim(self, request: LaunchRequest) -> None:
        since = self._detached_at(request.replaces)
        if since is None or self._groups.member(request.replaces) is not None:
            return
        group = self._groups.group(request.auto_scaling_group)
        launches = self._groups.launches(group.name, since - SLACK_SECONDS)
        _, fresh = self._fresh(group, request.replaces, launches, since - SLACK_SECONDS)
        chosen = request.choose(fresh)
        if chosen:
            self._tag(chosen, {tags.LAUNCH: request.token})

    def give_back(self, node_id: str, instead_of: str) -> None:
        """A group that may not get smaller first takes the old one back; one that may not grow either keeps
        the replacement as a free member, which the next incident takes."""
        found = self._fleet.describe([node_id])
        if not found:
            return
        member = self._groups.member(node_id)
        if found[0].tags.get(tags.GIVEN_BACK) != instead_of:
            if found[0].state in _ENDED or member is None or not member.coming:
                self._fleet.terminate(node_id)
                return
            self._tag(node_id, {tags.GIVEN_BACK: instead_of})
        if member is not None and member.coming:
            try:
                self._take_out(member)
            except Refused:
                if not self._return(instead_of):
                    return
                self._take_out(member)
        self._fleet.terminate(node_id)
        self._return(instead_of)

    # --- parts ---------------------------------------------------------------------------------------

    def _leave(self, group: Group, request: LaunchRequest) -> float:
        """See that the group has, or gets, room for another one. -> from when on a launch may be that one."""
        old = self._groups.member(request.replaces) if request.replaces else None
        if old is not None and old.group != group.name:
            raise PermanentError(
                f"{old.node_id} is a member of Auto Scaling group {old.group}, not of {group.name}, which "
                "the cluster file names for its node group"
            )
        since = self._detached_at(request.replaces)
        if old is None or old.leaving or old.state == "Detaching":
            return request.since - EARLIER_SECONDS if since is None else since - SLACK_SECONDS
        if "Launch" in group.suspended:
            raise PermanentError(
                f"{old.node_id} is not detached: Auto Scaling group {group.name} has its process Launch "
                "suspended and would launch no other; resume it and start the replacement again"
            )
        if old.state != "InService":
            if old.state.startswith("Pending"):
                raise TransientError(f"{old.node_id} is {old.state} in Auto Scaling group {group.name}")
            raise PermanentError(
                f"{old.node_id} is {old.state} in Auto Scaling group {group.name}: a person has taken it out "
                "of service there; put it back into service or detach it, then start the replacement again"
            )
        now = self._now()
        # Before it is detached: what the group launches from now on may take its place, whoever dies here.
        self._tag(old.node_id, {tags.DETACHED: f"{now:.0f} {group.name}"})
        self._groups.detach(old, fewer=False)
        return now - SLACK_SECONDS

    def _detached_at(self, node_id: str) -> float | None:
        for instance in self._fleet.describe([node_id]) if node_id else []:
            at = instance.tags.get(tags.DETACHED, "").partition(" ")[0]
            return float(at) if at.isdigit() else None
        return None

    def _fresh(
        self, group: Group, replaces: str, launches: Launches, since: float
    ) -> tuple[list[str], list[str]]:
        """(members that lack the cluster's tag, members launched since, the oldest first)."""
        ids = [m.node_id for m in group.members if m.coming and m.node_id != replaces]
        known = self._fleet.describe(ids) if len(ids) <= FEW else self._fleet.cluster()
        seen = {i.node_id: i for i in known if i.node_id in ids and i.state in _ALIVE}
        fresh = [i for i in seen.values() if i.launched_at >= since or i.node_id in launches.instances]
        fresh.sort(key=lambda instance: (instance.launched_at, instance.node_id))
        return [node for node in ids if node not in seen], [instance.node_id for instance in fresh]

    def _none_yet(self, group: Group, replaces: str, launches: Launches, unseen: list[str]) -> str:
        has = sum(member.coming and member.node_id != replaces for member in group.members)
        if has >= group.desired:
            if not unseen:
                return ""
            raise Waiting(
                f"{unseen[0]} of Auto Scaling group {group.name} is not known as a node of {self._cluster}: "
                f"the group must give its instances the tag {tags.CLUSTER}={self._cluster} at launch"
            )
        if launches.failure:
            error = launch_failure(group.name, launches.failure)
            # The group tries again by itself, whatever it was.
            raise Waiting(str(error)) if isinstance(error, TransientError) else error
        if "Launch" in group.suspended:
            raise PermanentError(
                f"Auto Scaling group {group.name} has its process Launch suspended; resume it and start the "
                "replacement again"
            )
        raise Waiting(f"Auto Scaling group {group.name} has {has} of {group.desired} and launches another")

    def _take_out(self, member: Member) -> None:
        if member.state == "InService":
            self._groups.detach(member, fewer=True)
        else:
            self._groups.end_with_its_place(member.node_id)

    def _complete(self, member: Member) -> None:
        hooks = self._groups.hooks(member.group)
        if hooks and member.state == "Terminating":
            raise TransientError(f"{member.node_id} does not wait for its lifecycle hook yet")
        for hook in hooks if member.state == "Terminating:Wait" else []:
            self._groups.complete(member, hook)

    def _return(self, node_id: str) -> bool:
        """Back into the group that it was detached from, if it still runs; False when it stays outside."""
        for instance in self._fleet.describe([node_id]):
            group = instance.tags.get(tags.DETACHED, "").partition(" ")[2]
            if not group or instance.state != "running" or not self._groups.attach(node_id, group):
                return False
            self._tag(node_id, {tags.DETACHED: ""})
            return True
        return False

    def _tag(self, node_id: str, marks: Mapping[str, str]) -> None:
        given = [{"Key": key, "Value": value} for key, value in sorted(marks.items())]
        with translated():
            self._ec2.create_tags(Resources=[node_id], Tags=given)
