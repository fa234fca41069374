"""The Fleet and Scaling ports over an Auto Scaling group: on moto, and on the service in memory, which also
plays what moto does not (lifecycle hooks, activities, sizes); the wire forms of the rest, stubbed."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from planaria.aws.autoscaling import EARLIER_SECONDS, AutoScalingFleet
from planaria.aws.autoscaling_groups import AutoScalingGroups, Member, Refused, launch_failure
from planaria.aws.ec2 import Ec2Fleet
from planaria.core import tags
from planaria.core.errors import (
    CapacityError,
    PermanentError,
    PlanariaError,
    TransientError,
    Waiting,
)
from planaria.core.ports import LaunchRequest
from planaria.memory.fleet import MemoryFleet
from tests.contract.auto_scaling_service import HOOK_SECONDS, TERMINATING, AutoScalingService, cluster_marks

TOKEN = "3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca"
UNKNOWN = "i-0fffffffffffffff0"
_numbers = itertools.count(1)


class MemoryWorld:
    def __init__(self, desired: int = 2, **sizes: int) -> None:
        self.now = 1_793_610_845.0
        self.cluster, self.group = "demo", "gpu-nodes"
        self.base = MemoryFleet(self.cluster, lambda: self.now)
        self.service = AutoScalingService(self.base, lambda: self.now)
        self.scaled = self.service.create(
            self.group, [], cluster_marks(self.cluster, "workers"), desired=desired, **sizes
        )
        self.service.play()
        self.now += 10_000.0
        self.fleet = AutoScalingFleet(self.service, self.service, self.base, self.cluster, lambda: self.now)

    @property
    def desired(self) -> int:
        return self.scaled.desired

    @property
    def members(self) -> list[str]:
        self.service.play()
        return sorted(node for node, (_, state) in self.service.members.items() if state == "InService")


class MotoWorld:
    """One account for all tests, and a group for each."""

    def __init__(self, account: dict[str, Any], desired: int = 2) -> None:
        self.scaling, self.ec2 = account["autoscaling"], account["ec2"]
        number = next(_numbers)
        self.cluster, self.group = f"demo-{number}", f"gpu-nodes-{number}"
        mark = {"ResourceId": self.group, "ResourceType": "auto-scaling-group", "PropagateAtLaunch": True}
        self.scaling.create_auto_scaling_group(
            AutoScalingGroupName=self.group,
            LaunchTemplate={"LaunchTemplateName": "gpu", "Version": "$Latest"},
            MinSize=0,
            MaxSize=8,
            DesiredCapacity=desired,
            VPCZoneIdentifier=account["subnet"],
            Tags=[{**mark, "Key": tags.CLUSTER, "Value": self.cluster}],
        )
        base = Ec2Fleet(self.ec2, self.cluster)
        # Its instances are an hour old by this clock, so that what is launched later is seen as such.
        self.now = datetime.now(UTC).timestamp()
        self.fleet = AutoScalingFleet(self.scaling, self.ec2, base, self.cluster, lambda: self.now)

    @property
    def _described(self) -> dict[str, Any]:
        found = self.scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[self.group])
        return dict(found["AutoScalingGroups"][0])

    @property
    def desired(self) -> int:
        return int(self._described["DesiredCapacity"])

    @property
    def members(self) -> list[str]:
        return sorted(member["InstanceId"] for member in self._described["Instances"])


World = MemoryWorld | MotoWorld


@pytest.fixture(scope="module")
def account() -> Iterator[dict[str, Any]]:
    with mock_aws():
        ec2 = boto3.client("ec2", region_name="us-east-1")
        image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
        ec2.create_launch_template(
            LaunchTemplateName="gpu", LaunchTemplateData={"ImageId": image, "InstanceType": "p5.48xlarge"}
        )
        subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
        scaling = boto3.client("autoscaling", region_name="us-east-1")
        yield {"ec2": ec2, "autoscaling": scaling, "subnet": subnet}


@pytest.fixture(params=["memory", "moto"])
def world(request: pytest.FixtureRequest) -> World:
    return MemoryWorld() if request.param == "memory" else MotoWorld(request.getfixturevalue("account"))


@pytest.fixture
def memory() -> MemoryWorld:
    return MemoryWorld()


class Taken:
    """The ledger's half: an instance goes to the first who asks, and the same token gets the same again."""

    def __init__(self, *others: str) -> None:
        self.by: dict[str, str] = dict.fromkeys(others, "another incident")

    def choose(self, token: str, candidates: Sequence[str]) -> str:
        mine = [node for node in candidates if self.by.get(node) == token]
        free = [node for node in candidates if node not in self.by]
        for node in [*mine, *free]:
            self.by[node] = token
            return node
        return ""


def order(world: World, replaces: str, taken: Taken | None = None, token: str = TOKEN) -> LaunchRequest:
    others = taken or Taken(*world.members)
    return LaunchRequest(
        token, "", "p5.48xlarge", "", "on-demand",
        {tags.GROUP: "workers", tags.NAME: "demo-1", tags.REPLACES: replaces},
        auto_scaling_group=world.group, replaces=replaces, since=world.now,
        choose=lambda candidates: others.choose(token, candidates),
    )  # fmt: skip


def launched(world: World, request: LaunchRequest) -> str:
    """The loop of the machine."""
    for _ in range(3):
        try:
            return world.fleet.launch(request)
        except Waiting:
            continue
    raise AssertionError("it did not come")


# --- on both -----------------------------------------------------------------------------------------


def test_a_failed_member_is_detached_and_another_takes_its_place(world: World) -> None:
    sick, well = world.members
    new = launched(world, order(world, sick))
    assert new not in (sick, well)
    assert (world.desired, world.members) == (2, sorted([well, new]))
    [found] = world.fleet.launched(TOKEN)
    assert found.node_id == new
    assert found.tags[tags.NAME] == "demo-1" and found.tags[tags.REPLACES] == sick
    [old] = world.fleet.describe([sick])
    assert old.state == "running", "it is drained first"


def test_the_same_launch_again_is_the_same_instance(world: World) -> None:
    sick, taken = world.members[0], Taken(*world.members)
    new = launched(world, order(world, sick, taken))
    assert launched(world, order(world, sick, taken)) == new
    assert len(world.members) == world.desired == 2


def test_two_incidents_get_two_instances(world: World) -> None:
    taken, sick = Taken(*world.members), world.members
    new = [launched(world, order(world, node, taken, f"{n:048d}")) for n, node in enumerate(sick)]
    assert len(set(new)) == 2 and not set(new) & set(sick)
    assert (world.desired, world.members) == (2, sorted(new))


def test_the_end_of_a_detached_node_leaves_the_group_as_it_is(world: World) -> None:
    sick = world.members[0]
    new = launched(world, order(world, sick))
    for _ in range(2):
        world.fleet.terminate(sick)
    [old] = world.fleet.describe([sick])
    assert old.state in ("shutting-down", "terminated")
    assert world.desired == 2 and new in world.members


def test_the_end_of_a_lost_replacement_lets_the_group_launch_another(world: World) -> None:
    sick, taken = world.members[0], Taken(*world.members)
    lost = launched(world, order(world, sick, taken))
    world.fleet.terminate(lost)
    other = launched(world, order(world, sick, taken, "b" * 48))
    assert other not in (sick, lost) and other in world.members
    assert len(world.members) == world.desired == 2


def test_a_removed_node_is_wanted_no_more_by_its_group(world: World) -> None:
    gone, well = world.members
    for _ in range(2):
        world.fleet.remove(gone)
    assert (world.desired, world.members) == (1, [well])


def test_a_replacement_that_is_given_back_leaves_the_old_member_in_its_place(world: World) -> None:
    sick, well = world.members
    new = launched(world, order(world, sick))
    for _ in range(2):
        world.fleet.give_back(new, sick)
    assert (world.desired, world.members) == (2, sorted([sick, well]))
    assert [i.state for i in world.fleet.describe([new])] in (["terminated"], ["shutting-down"])


def test_an_old_member_that_came_back_may_fail_again(world: World) -> None:
    sick, taken = world.members[0], Taken(*world.members)
    new = launched(world, order(world, sick, taken))
    world.fleet.give_back(new, sick)
    other = launched(world, order(world, sick, taken, "b" * 48))
    assert other not in (sick, new) and other in world.members and world.desired == 2


def test_a_launch_that_was_broken_off_finds_its_member_later(world: World) -> None:
    (sick, well), taken = world.members, Taken(*world.members)
    request = order(world, sick, taken)
    world.fleet.claim(request)
    assert world.members == sorted([sick, well]) and world.fleet.launched(TOKEN) == [], "it never left"
    with pytest.raises(Waiting):
        world.fleet.launch(request)
    for _ in range(2):
        world.fleet.claim(request)
    [late] = world.fleet.launched(TOKEN)
    world.fleet.give_back(late.node_id, sick)
    world.fleet.claim(request)
    assert (world.desired, world.members) == (2, sorted([sick, well]))


def test_what_is_in_no_group_is_ec2s_alone(world: World) -> None:
    sick = world.members[0]
    launched(world, order(world, sick))
    world.fleet.prolong(sick)
    world.fleet.complete(sick)
    assert not world.fleet.ending(sick)
    for act in (world.fleet.terminate, world.fleet.remove, world.fleet.reboot):
        act(UNKNOWN)
    world.fleet.give_back(UNKNOWN, sick)
    assert world.desired == 2


def test_a_group_that_is_not_there_is_for_a_person(world: World) -> None:
    sick = world.members[0]
    with pytest.raises(PermanentError, match="there is no Auto Scaling group no-such-group"):
        world.fleet.launch(dataclasses.replace(order(world, sick), auto_scaling_group="no-such-group"))
    assert sick in world.members


# --- what moto does not play -----------------------------------------------------------------------------


def test_a_node_that_its_group_has_replaced_already(memory: MemoryWorld) -> None:
    """Its health check was faster: nothing is left to detach, and the new one is a little older than the
    incident."""
    sick, taken = memory.members[0], Taken(*memory.members)
    memory.service.end(sick)
    [new] = set(memory.members) - set(taken.by)
    memory.now += 120.0
    assert memory.fleet.launch(order(memory, sick, taken)) == new
    assert not [call for call in memory.service.calls if call[0] == "detach"]
    assert (memory.desired, len(memory.members)) == (2, 2)


def test_a_member_that_was_there_before_is_nobodys_replacement(memory: MemoryWorld) -> None:
    sick, _ = memory.members
    memory.scaled.desired = 3
    memory.service.play()  # a person wants one more, long before
    memory.now += EARLIER_SECONDS + 60.0
    asked: list[str] = []

    def choose(candidates: Sequence[str]) -> str:
        asked.extend(candidates)
        return ""

    with pytest.raises(Waiting):
        memory.fleet.launch(dataclasses.replace(order(memory, sick), choose=choose))
    assert asked == []


def test_a_group_that_was_scaled_in_wants_no_other(memory: MemoryWorld) -> None:
    memory.scaled.hooks["planaria-drain"] = TERMINATING
    leaving = memory.members[0]
    memory.service.scale_in(leaving)
    assert memory.fleet.launch(order(memory, leaving)) == ""
    assert memory.desired == 1


def test_a_group_that_ends_a_node_and_wants_another(memory: MemoryWorld) -> None:
    memory.scaled.hooks["planaria-drain"] = TERMINATING
    leaving, taken = memory.members[0], Taken(*memory.members)
    memory.service.launch_seconds = 30.0
    memory.service.end(leaving)
    with pytest.raises(Waiting, match="has 1 of 2 and launches another"):
        memory.fleet.launch(order(memory, leaving, taken))
    memory.now += 31.0
    assert memory.fleet.launch(order(memory, leaving, taken)) in memory.members
    assert memory.service.state(leaving) == "Terminating:Wait"


def test_only_our_own_hook_is_prolonged_and_completed(memory: MemoryWorld) -> None:
    memory.scaled.hooks |= {"planaria-drain": TERMINATING, "upload-logs": TERMINATING}
    memory.scaled.hooks["planaria-boot"] = "autoscaling:EC2_INSTANCE_LAUNCHING"
    leaving = memory.members[0]
    memory.service.scale_in(leaving)
    assert memory.fleet.ending(leaving)
    memory.now += HOOK_SECONDS - 1.0
    memory.fleet.prolong(leaving)
    memory.now += HOOK_SECONDS - 1.0
    memory.service.calls.clear()
    for _ in range(2):
        memory.fleet.complete(leaving)
    assert memory.service.calls == [("complete planaria-drain", leaving)]


@pytest.mark.parametrize("act", ["complete", "terminate", "remove"])
def test_a_node_that_its_group_ends_is_let_go_once(memory: MemoryWorld, act: str) -> None:
    memory.scaled.hooks["planaria-drain"] = TERMINATING
    leaving, well = memory.members
    memory.service.scale_in(leaving)
    for _ in range(2):
        getattr(memory.fleet, act)(leaving)
    assert memory.base.instances[leaving].state == "terminated"
    assert (memory.desired, memory.members) == (1, [well])


def test_the_action_may_be_over_already(memory: MemoryWorld) -> None:
    memory.scaled.hooks["planaria-drain"] = TERMINATING
    leaving = memory.members[0]
    memory.service.scale_in(leaving)
    memory.service._deadlines.clear()  # another has completed it, and the list of members is older
    memory.fleet.prolong(leaving)
    memory.fleet.complete(leaving)


def test_a_hook_that_is_not_waiting_yet_is_asked_about_again(memory: MemoryWorld) -> None:
    memory.scaled.hooks["planaria-drain"] = TERMINATING
    leaving = memory.members[0]
    memory.service.members[leaving] = (memory.group, "Terminating")
    with pytest.raises(TransientError, match="does not wait for its lifecycle hook yet"):
        memory.fleet.complete(leaving)


@pytest.mark.parametrize(
    ("why", "error"),
    [
        ("InsufficientInstanceCapacity - there is none. Launching EC2 instance failed.", CapacityError),
        ("We currently do not have sufficient p5.48xlarge capacity in us-east-1a.", CapacityError),
        ("UnfulfillableCapacity - Unable to fulfill capacity. There is no Spot capacity", CapacityError),
        ("You have requested more vCPU capacity than your current vCPU limit of 0 allows.", PermanentError),
        ("You are not authorized to use launch template: gpu", PermanentError),
        ("The image id '[ami-1]' does not exist", PermanentError),
        ("Internal error", Waiting),
    ],
)
def test_why_a_group_cannot_launch(memory: MemoryWorld, why: str, error: type[PlanariaError]) -> None:
    sorted_as = type(launch_failure("gpu-nodes", why))
    assert sorted_as is (TransientError if error is Waiting else error)
    sick, taken = memory.members[0], Taken(*memory.members)
    memory.service.refuse = lambda group: why
    with pytest.raises(Waiting):
        memory.fleet.launch(order(memory, sick, taken))
    with pytest.raises(error, match="Auto Scaling group gpu-nodes cannot launch: "):
        memory.fleet.launch(order(memory, sick, taken))
    memory.service.refuse = lambda group: ""
    assert launched(memory, order(memory, sick, taken)) in memory.members


def test_nothing_is_detached_from_a_group_that_would_launch_no_other(memory: MemoryWorld) -> None:
    memory.scaled.suspended.add("Launch")
    sick = memory.members[0]
    with pytest.raises(PermanentError, match="has its process Launch suspended"):
        memory.fleet.launch(order(memory, sick))
    assert sick in memory.members


def test_a_member_that_a_person_has_put_into_standby_stays_there(memory: MemoryWorld) -> None:
    sick = memory.members[0]
    memory.service.members[sick] = (memory.group, "Standby")
    with pytest.raises(PermanentError, match="is Standby in Auto Scaling group gpu-nodes: a person"):
        memory.fleet.launch(order(memory, sick))
    memory.service.members[sick] = (memory.group, "Pending:Wait")
    with pytest.raises(TransientError):
        memory.fleet.launch(order(memory, sick))


def test_a_member_of_another_group_is_a_wrong_cluster_file(memory: MemoryWorld) -> None:
    sick = memory.members[0]
    memory.service.create("other", [sick], {}, desired=1)
    with pytest.raises(PermanentError, match="a member of Auto Scaling group other, not of gpu-nodes"):
        memory.fleet.launch(order(memory, sick))


def test_a_group_without_the_clusters_tag_is_told_of(memory: MemoryWorld) -> None:
    sick, taken = memory.members[0], Taken(*memory.members)
    memory.scaled.marks.clear()
    with pytest.raises(Waiting):
        memory.fleet.launch(order(memory, sick, taken))
    with pytest.raises(Waiting, match="must give its instances the tag planaria:cluster=demo at launch"):
        memory.fleet.launch(order(memory, sick, taken))


def test_a_group_of_the_smallest_size_is_not_made_smaller() -> None:
    memory = MemoryWorld(smallest=2)
    node = memory.members[0]
    with pytest.raises(PermanentError, match="lower the group's MinSize, or replace the node instead"):
        memory.fleet.remove(node)
    assert node in memory.members and memory.base.instances[node].state == "running"


def test_a_replacement_is_given_back_to_a_group_of_the_smallest_size() -> None:
    memory = MemoryWorld(smallest=2)
    sick, well = memory.members
    new = launched(memory, order(memory, sick))
    for _ in range(2):
        memory.fleet.give_back(new, sick)
    assert (memory.desired, memory.members) == (2, sorted([sick, well]))
    assert memory.base.instances[new].state == "terminated"


def test_a_group_of_one_fixed_size_keeps_the_replacement_as_a_free_member() -> None:
    memory = MemoryWorld(smallest=2, largest=2)
    sick, well = memory.members
    new = launched(memory, order(memory, sick))
    for _ in range(2):
        memory.fleet.give_back(new, sick)
    assert (memory.desired, memory.members) == (2, sorted([well, new]))
    again = Taken(sick, well)
    assert launched(memory, order(memory, sick, again, "b" * 48)) == new, "the next incident takes it"


def test_a_crash_while_a_replacement_is_given_back_is_made_good(memory: MemoryWorld) -> None:
    """After every call that changes something, the same again from the start."""
    for last in range(1, 6):
        memory = MemoryWorld()
        sick, well = memory.members
        new = launched(memory, order(memory, sick))
        memory.service.calls.clear()
        _die_after(memory, last, functools.partial(memory.fleet.give_back, new, sick))
        memory.fleet.give_back(new, sick)
        assert (memory.desired, memory.members) == (2, sorted([sick, well])), last
        assert memory.base.instances[new].state == "terminated"


def test_a_crash_while_a_node_is_replaced_is_made_good() -> None:
    for last in range(1, 5):
        memory = MemoryWorld()
        (sick, well), taken = memory.members, Taken(*memory.members)
        _die_after(memory, last, functools.partial(launched, memory, order(memory, sick, taken)))
        new = launched(memory, order(memory, sick, taken))
        assert (memory.desired, memory.members) == (2, sorted([well, new])), last
        assert [i.node_id for i in memory.fleet.launched(TOKEN)] == [new]


def _die_after(memory: MemoryWorld, last: int, act: Callable[[], object]) -> None:
    """Do it until the call of this number, of those that change something, is done; if there are as many."""
    left = itertools.count(1)

    class Gone(BaseException):
        pass

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (memory.service, "create_tags"), (memory.service, "detach_instances"),
            (memory.service, "attach_instances"), (memory.base, "terminate"),
        ):  # fmt: skip
            real = getattr(owner, name)

            def call(*args: Any, real: Any = real, **kwargs: Any) -> Any:
                answer = real(*args, **kwargs)
                if next(left) == last:
                    raise Gone
                return answer

            patch.setattr(owner, name, call)
        try:
            act()
        except Gone:
            return


# --- the wire forms, which neither moto nor the service in memory checks -----------------------------------


@pytest.fixture
def stubbed() -> Iterator[tuple[AutoScalingGroups, Stubber]]:
    client = boto3.client(
        "autoscaling", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
    )  # fmt: skip
    with Stubber(client) as stub:
        yield AutoScalingGroups(client), stub


WAITS = Member(UNKNOWN, "gpu-nodes", "Terminating:Wait")
HOOK = {
    "LifecycleHookName": "planaria-drain", "AutoScalingGroupName": "gpu-nodes", "InstanceId": UNKNOWN,
}  # fmt: skip


def test_a_hook_is_completed_by_instance_with_continue(stubbed: Any) -> None:
    groups, stub = stubbed
    stub.add_response("complete_lifecycle_action", {}, {**HOOK, "LifecycleActionResult": "CONTINUE"})
    groups.complete(WAITS, "planaria-drain")
    stub.add_response("record_lifecycle_action_heartbeat", {}, HOOK)
    groups.prolong(WAITS, "planaria-drain")
    stub.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("operation", "act"),
    [("complete_lifecycle_action", "complete"), ("record_lifecycle_action_heartbeat", "prolong")],
)
def test_a_wait_that_is_over_is_no_error_and_any_other_is(stubbed: Any, operation: str, act: str) -> None:
    groups, stub = stubbed
    over = f"No active Lifecycle Action found with instance ID {UNKNOWN}"
    stub.add_client_error(operation, "ValidationError", over)
    getattr(groups, act)(WAITS, "planaria-drain")
    for code, error in (
        ("ValidationError", Refused), ("AccessDenied", PermanentError),
        ("Throttling", TransientError), ("ResourceContention", TransientError),
    ):  # fmt: skip
        stub.add_client_error(operation, code, "why")
        with pytest.raises(error):
            getattr(groups, act)(WAITS, "planaria-drain")


def test_detaching_says_whether_the_group_wants_fewer(stubbed: Any) -> None:
    groups, stub = stubbed
    member = Member(UNKNOWN, "gpu-nodes", "InService")
    asked = {"InstanceIds": [UNKNOWN], "AutoScalingGroupName": "gpu-nodes"}
    for fewer in (True, False):
        stub.add_response("detach_instances", {}, {**asked, "ShouldDecrementDesiredCapacity": fewer})
        groups.detach(member, fewer)
    over = f"The instance {UNKNOWN} is not part of Auto Scaling group gpu-nodes."
    stub.add_client_error("detach_instances", "ValidationError", over)
    groups.detach(member, fewer=False)
    changing = f"The instance {UNKNOWN} is not in InService or Standby."
    stub.add_client_error("detach_instances", "ValidationError", changing)
    with pytest.raises(TransientError):
        groups.detach(member, fewer=False)


def test_the_newest_activity_tells_how_the_launches_go(stubbed: Any) -> None:
    groups, stub = stubbed

    def activity(second: int, status: str, description: str, message: str = "m") -> dict[str, Any]:
        at = datetime(2026, 3, 18, 13, 19, second, tzinfo=UTC)
        cause = {"AutoScalingGroupName": "gpu-nodes", "Cause": "c", "ActivityId": str(second)}
        return {**cause, "StartTime": at, "StatusCode": status, "Description": description,
                "StatusMessage": message}  # fmt: skip

    since = datetime(2026, 3, 18, 13, 19, 10, tzinfo=UTC).timestamp()
    early = activity(1, "Successful", "Launching a new EC2 instance: i-0aaaaaaaaaaaaaaa1")
    good = activity(20, "InProgress", "Launching a new EC2 instance: i-0aaaaaaaaaaaaaaa2")
    bad = activity(30, "Failed", "Launching a new EC2 instance.  Status Reason: none", "none left")
    end = activity(40, "Successful", "Terminating EC2 instance: i-0aaaaaaaaaaaaaaa3")
    asked = {"AutoScalingGroupName": "gpu-nodes", "MaxRecords": 100}
    for activities, failure in (([end, bad, good, early], "none left"), ([end, good, early], "")):
        stub.add_response("describe_scaling_activities", {"Activities": activities}, asked)
        found = groups.launches("gpu-nodes", since)
        assert (found.instances, found.failure) == (frozenset({"i-0aaaaaaaaaaaaaaa2"}), failure)
