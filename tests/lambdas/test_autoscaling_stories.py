"""Nodes that an Auto Scaling group launches: whole stories, the adapter itself over the service in memory."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from lambdas import boundary, scaling
from planaria import wiring
from planaria.aws.autoscaling import AutoScalingFleet
from planaria.aws.ec2 import Ec2Fleet
from planaria.core import tags
from planaria.core.cluster import Cluster
from planaria.core.scheduling import Requeue
from planaria.wiring import Gateways
from tests.contract.auto_scaling_service import TERMINATING, AutoScalingService
from tests.lambdas import events
from tests.lambdas.test_node_stories import SICK, ask_reboot, fall_off, report_well
from tests.lambdas.world import JOB, NODES, World, _Port, cluster

GROUP, HOOK = "gpu-nodes", "planaria-drain"


def scaled(**policy: Any) -> Cluster:
    of = cluster(size=len(NODES), **policy)
    groups = {n: dataclasses.replace(g, auto_scaling_group=GROUP) for n, g in of.node_groups.items()}
    return dataclasses.replace(of, node_groups=groups)


class ScaledWorld(World):
    """Its nodes are the members of one group, which has a lifecycle hook of ours for those that it ends."""

    def __init__(self, of: Cluster | None = None, job: bool = True) -> None:
        super().__init__(of or scaled(), job)
        self.service = AutoScalingService(self.fleet, self.clock.now, launch_seconds=8.0)
        marks = {tags.CLUSTER: "demo", tags.GROUP: "workers"}
        self.group = self.service.create(GROUP, list(self.nodes), marks, largest=len(self.nodes) + 1)
        self.group.hooks[HOOK] = TERMINATING
        self.service.launched = self._boot
        self.service.waits = lambda node, hook: self.send(events.lifecycle(node, self.now))
        self.service.ended = self.lose
        client = _Port(self, "groups", self.service)
        base = _Port(self, "fleet", self.fleet)
        adapter = AutoScalingFleet(client, client, base, "demo", self.clock.now)
        self.gw.fleet = adapter
        self.gw.scaling = adapter
        self.clock.advance(3600.0)

    def asked(self, call: str, real: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        name, _, method = call.partition(".")
        if name == "groups" and not method.startswith("describe"):
            return self.effect(call, real, args, kwargs)
        return real(*args, **kwargs) if name == "groups" else super().asked(call, real, args, kwargs)

    def _play(self) -> None:
        self.service.play()
        super()._play()

    def acts(self, what: str) -> list[str]:
        return [node for act, node in self.service.calls if act == what]

    def assert_whole(self, desired: int = len(NODES)) -> None:
        """The group has what it wants, and that is what lives."""
        assert self.group.desired == desired
        members = sorted(node for node, (_, state) in self.service.members.items() if state == "InService")
        assert members == sorted(self.alive)
        assert len(members) == desired


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ScaledWorld]:
    monkeypatch.setattr(boundary, "POLL_SECONDS", 0.0)

    def made(of: Cluster | None = None, job: bool = True) -> ScaledWorld:
        world = ScaledWorld(of, job)
        monkeypatch.setattr(wiring, "gateways", lambda: world.gw)
        return world

    return made


Make = Callable[..., ScaledWorld]


def unhealthy(world: ScaledWorld) -> None:
    """The group's own health check ends the node, and it wants another."""
    world.service.end(SICK)


def scale_in(world: ScaledWorld) -> None:
    world.service.scale_in(SICK)


def spot(world: ScaledWorld) -> None:
    world.interrupt(SICK)


def by_hand(world: ScaledWorld) -> None:
    world.start("heal_node", {"node_id": SICK, "action": "replace", "reason": "by hand"})


def gone(world: ScaledWorld) -> None:
    """Terminated from outside, and the group's health check has not seen it yet."""
    world.lose(SICK, tell=True)


STORIES: dict[str, Callable[[ScaledWorld], None]] = {
    "fault": fall_off, "unhealthy": unhealthy, "spot": spot, "by_hand": by_hand, "gone": gone,
}  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
def test_a_node_of_a_group_is_replaced_by_the_groups_next_instance(make: Make, story: str) -> None:
    world = make()
    STORIES[story](world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    world.assert_whole()
    assert world.ends == ["HEALED"]
    [new] = world.launched
    assert world.job["nodes"]["1"] == new and world.fleet.instances[new].tags[tags.NAME] == "demo-1"


def test_a_failed_node_leaves_its_group_before_its_groups_own_health_check_can_end_it(make: Make) -> None:
    world = make()
    fall_off(world)
    world.run()
    assert world.acts("detach") == [SICK] and world.terminated == [SICK]
    assert world.acts(f"complete {HOOK}") == [], "a detached node has no hook to wait for"


def test_a_working_node_is_not_detached_before_its_isolation_stands(make: Make) -> None:
    world = make()
    world.scheduler.state.nodes["demo-1"].isolated = {"reason": "ada looks at it", "by": "ada"}
    fall_off(world)
    world.run()
    assert world.ends == ["ESCALATED"]
    assert world.acts("detach") == [] and world.launched == []
    world.assert_whole()


def test_two_nodes_at_once_get_two_instances_and_one_resume(make: Make) -> None:
    world = make()
    for node in NODES[1:3]:
        fall_off(world, node)
    world.run()
    world.assert_healed(replaced=2, resumed=1)
    world.assert_whole()
    assert sorted(world.acts("detach")) == NODES[1:3]


def test_a_reboot_leaves_the_member_where_it_is(make: Make) -> None:
    world = make()
    ask_reboot(world)
    world.run()
    world.assert_healed(replaced=0, resumed=1)
    world.assert_whole()
    assert world.service.calls == []


# --- the group ends a node itself ---------------------------------------------------------------------------


@pytest.mark.parametrize("begin", [unhealthy, scale_in])
def test_the_hook_is_completed_once_the_node_is_empty_and_never_before(
    make: Make, begin: Callable[[ScaledWorld], None]
) -> None:
    world = make()
    begin(world)
    world.run(until=lambda: bool(world.acts(f"complete {HOOK}")))
    isolation = world.node(SICK)["isolation"]
    assert isolation["emptied_at"] <= world.now
    assert str(world.scheduler.state.jobs[JOB].state) != "RUNNING"
    assert world.commands.calls[0][0] == "planaria-checkpoint-now", "the job saved first"
    world.run()
    assert world.acts(f"complete {HOOK}") == [SICK]
    assert world.fleet.instances[SICK].state == "terminated"
    assert set(world.outcomes_of("state_change")) <= {"COVERED"}


def test_a_long_drain_prolongs_the_hook(make: Make) -> None:
    world = make(scaled(drain="wait", drain_deadline_seconds=3 * 3600.0))
    unhealthy(world)
    world.run(4000.0)
    assert world.service.state(SICK) == "Terminating:Wait", "an hour is over, and the job still runs"
    assert len(world.acts(f"prolong {HOOK}")) > 3
    world.run(4 * 3600.0)
    assert world.acts(f"complete {HOOK}") == [SICK]
    world.assert_whole()


def test_a_group_that_was_scaled_in_gets_no_other_and_its_job_waits(make: Make) -> None:
    world = make()
    scale_in(world)
    world.run()
    assert world.ends == ["RETIRED"] and world.launched == []
    world.assert_whole(desired=3)
    assert not [r for r in world.scheduler.requests if isinstance(r, Requeue)], "its node is gone"
    assert list(world.job["unresolved"]) == [SICK] and world.job["pending"] == {}
    assert "nobody has its place" in world.job["unresolved"][SICK]


def test_a_scale_in_of_an_idle_cluster_ends_quietly(make: Make) -> None:
    world = make(job=False)
    scale_in(world)
    world.run()
    assert world.ends == ["RETIRED"] and world.notices.sent == []
    world.assert_whole(desired=3)


def test_a_launch_by_hand_for_a_group_that_wants_none_is_refused_in_words(make: Make) -> None:
    world = make(job=False)
    scale_in(world)
    world.run()
    arn = world.start("launch_replacement", {"node_id": SICK, "reason": "we need it"}, "by-hand-2")
    world.run()
    assert "raise its desired capacity" in world.node(SICK).get("outcome_reason", "") + (
        world.driver.records[arn].cause
    )
    world.group.desired = 4
    world.start("launch_replacement", {"node_id": SICK, "reason": "we need it"}, "by-hand-3")
    world.run()
    assert world.ends[-1] == "HEALED"
    world.assert_whole()


def test_a_removed_node_is_wanted_no_more_by_its_group(make: Make) -> None:
    world = make(job=False)
    world.start("heal_node", {"node_id": SICK, "action": "remove", "reason": "we need fewer"})
    world.run()
    assert world.ends == ["RETIRED"] and world.launched == []
    world.assert_whole(desired=3)


def test_a_removal_from_a_group_of_the_smallest_size_says_what_to_change(make: Make) -> None:
    world = make(job=False)
    world.group.smallest = 4
    world.start("heal_node", {"node_id": SICK, "action": "remove", "reason": "we need fewer"})
    world.run()
    assert world.ends == ["ESCALATED"] and "MinSize" in world.incidents[0]["outcome_reason"]
    assert SICK in world.alive
    world.assert_whole()


# --- when it does not go well ------------------------------------------------------------------------------


def test_a_group_without_capacity_is_waited_for(make: Make) -> None:
    world = make()
    until = world.now + 1800.0
    short = "We currently do not have sufficient p5.48xlarge capacity. Launching EC2 instance failed."
    world.service.refuse = lambda group: short if world.now < until else ""
    fall_off(world)
    world.run(3600.0)
    world.assert_healed(replaced=1, resumed=1)
    world.assert_whole()


def test_a_group_that_cannot_launch_is_told_to_a_person_and_goes_on_once_it_can(make: Make) -> None:
    world = make()
    why = "You have requested more vCPU capacity than your current vCPU limit of 768 allows."
    world.service.refuse = lambda group: why
    fall_off(world)
    world.run()
    assert world.ends == ["ESCALATED"] and "vCPU limit" in world.incidents[0]["outcome_reason"]
    world.service.refuse = lambda group: ""
    world.run(300.0)
    world.start("heal_node", {"node_id": SICK, "action": "replace", "reason": "the quota is raised"})
    world.run()
    assert world.ends == ["ESCALATED", "HEALED"]
    world.assert_whole()


def test_a_replacement_that_is_lost_is_followed_by_another_of_the_group(make: Make) -> None:
    world = make()
    world.check_passes = lambda node: node != world.launched[0]
    fall_off(world)
    world.run(1800.0)
    world.assert_whole()
    assert world.ends == ["HEALED"] and len(world.launched) == 2
    assert sorted(world.job["nodes"].values()) == sorted(world.alive)


def well_again(world: ScaledWorld) -> None:
    """Its source takes back what it said after the group has launched another one."""
    told = "Unhealthy", "fault type NvidiaErrorTerminate", "Replace"
    world.send(events.hyperpod(SICK, *told, world.now - 1))
    world.run(until=lambda: bool(world.launched) and "launch_token" in world.node(world.launched[0]))
    report_well(world)
    world.run()


def assert_back(world: ScaledWorld) -> None:
    world.assert_whole()
    assert world.ends == ["CANCELLED"]
    assert SICK in world.alive and world.isolated == {}
    assert world.job["nodes"]["1"] == SICK


def test_a_node_that_is_well_again_goes_back_into_its_group(make: Make) -> None:
    world = make()
    well_again(world)
    assert_back(world)


def test_a_node_that_is_well_before_its_group_has_launched_goes_back_too(make: Make) -> None:
    world = make()
    world.service.launch_seconds = 40.0
    told = "Unhealthy", "fault type NvidiaErrorTerminate", "Replace"
    world.send(events.hyperpod(SICK, *told, world.now - 1))
    world.run(until=lambda: world.acts("detach") == [SICK])
    report_well(world)
    world.run()
    assert_back(world)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_any_effect_of_its_way_back_may_be_the_last_one(make: Make, before: bool) -> None:
    """Those of sweep, which takes back what the cancelled session had begun."""
    world = make()
    well_again(world)
    wrong = {}
    for number, (function, call) in enumerate(world.effects):
        if function == "sweep":
            other = make()
            other.kill_at(number, before=before)
            well_again(other)
            try:
                assert_back(other)
            except AssertionError as error:
                wrong[f"{number}: {function} {call}"] = str(error).partition("\n")[0]
    assert {"sweep"} <= {function for function, call in world.effects if call.startswith("groups.")}
    assert wrong == {}


# --- whose a new member is ---------------------------------------------------------------------------------


def claimed(world: ScaledWorld, node: str, token: str, **launch: str) -> None:
    """An active incident of this node launches with this token."""
    facts = {"phase": "RUNNING", "session": 1, "launch": {"token": token, **launch}}
    world.gw.ledger.note_node(node, facts)


FREE, TAKEN = "i-0b000000000000001", "i-0b000000000000002"


def test_a_member_that_works_is_nobodys_replacement(make: Make) -> None:
    world = make()
    for facts in ({"admitted_at": 1.0}, {"job_id": JOB}, {"lost": "it failed"}, {"gone": True}):
        world.gw.ledger.note_node(TAKEN, dict(facts))
        assert scaling._chooser(world.gw, SICK, "a")([TAKEN]) == "", facts
        world.table.write(f"NODE#{TAKEN}", "NODE", removes=tuple(facts))
    assert scaling._chooser(world.gw, SICK, "a")([TAKEN]) == TAKEN


def test_a_member_belongs_to_the_incident_that_wrote_itself_into_its_row_first(make: Make) -> None:
    world = make()
    claimed(world, SICK, "a")
    claimed(world, NODES[2], "b")
    mine, other = scaling._chooser(world.gw, SICK, "a"), scaling._chooser(world.gw, NODES[2], "b")
    assert mine([TAKEN, FREE]) == TAKEN
    assert other([TAKEN, FREE]) == FREE and other([TAKEN]) == ""
    assert mine([FREE, TAKEN]) == TAKEN, "the same one again, however they are listed"


def test_a_claim_ends_with_its_incident_or_when_that_has_another(make: Make) -> None:
    world = make()
    claimed(world, SICK, "a")
    assert scaling._chooser(world.gw, SICK, "a")([TAKEN]) == TAKEN
    other = scaling._chooser(world.gw, NODES[2], "b")
    assert other([TAKEN]) == ""
    claimed(world, SICK, "a", instance_id=TAKEN)
    assert other([TAKEN]) == ""
    claimed(world, SICK, "a", instance_id=FREE)
    assert other([TAKEN]) == TAKEN
    claimed(world, NODES[2], "b")
    world.gw.ledger.note_node(NODES[2], {"phase": "ESCALATED"})
    assert scaling._chooser(world.gw, NODES[3], "c")([TAKEN]) == TAKEN


def test_who_comes_second_by_a_moment_chooses_another(make: Make) -> None:
    world = make()
    claimed(world, SICK, "a")
    claimed(world, NODES[2], "b")
    real = world.gw.ledger.nodes_by_id

    def late(nodes: Any) -> Any:
        rows = real(nodes)
        world.gw.ledger.nodes_by_id = real  # type: ignore[method-assign]
        assert scaling._chooser(world.gw, NODES[2], "b")([TAKEN, FREE]) == TAKEN
        return rows

    world.gw.ledger.nodes_by_id = late  # type: ignore[method-assign]
    assert scaling._chooser(world.gw, SICK, "a")([TAKEN, FREE]) == FREE


# --- whatever dies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("story", ["fault", "unhealthy"])
def test_any_effect_may_be_the_last_one(make: Make, story: str, before: bool) -> None:
    def begin() -> ScaledWorld:
        world = make()
        STORIES[story](world)
        return world

    world = begin()
    world.run()
    wrong = {}
    for number, (function, call) in enumerate(world.effects):
        other = make()
        other.kill_at(number, before=before)
        STORIES[story](other)
        other.run()
        try:
            other.assert_healed(replaced=1, resumed=1)
            other.assert_whole()
            assert other.ends == ["HEALED"], other.ends
        except AssertionError as error:
            wrong[f"{number}: {function} {call}"] = str(error).partition("\n")[0]
    assert wrong == {}


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_any_effect_of_a_scale_in_may_be_the_last_one(make: Make, before: bool) -> None:
    world = make()
    scale_in(world)
    world.run()
    wrong = {}
    for number, (function, call) in enumerate(world.effects):
        other = make()
        other.kill_at(number, before=before)
        scale_in(other)
        other.run()
        try:
            other.assert_whole(desired=3)
            assert other.ends == ["RETIRED"], other.ends
            assert list(other.job["unresolved"]) == [SICK] and other.launched == []
        except AssertionError as error:
            wrong[f"{number}: {function} {call}"] = str(error).partition("\n")[0]
    assert wrong == {}


@pytest.mark.parametrize("story", STORIES)
def test_every_task_delivered_twice_does_everything_once(make: Make, story: str) -> None:
    world = make()
    world.twice = {
        "begin_incident", "handle_spot_interruption", "isolate_node", "launch_replacement", "await_node",
        "verify_node", "admit_node", "retire_node", "tell_job", "close_incident", "begin_resume",
        "choose_checkpoint", "requeue_job", "await_steps", "close_resume",
    }  # fmt: skip
    STORIES[story](world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    world.assert_whole()
    assert world.ends == ["HEALED"] and len(world.acts("detach")) <= 1


def test_the_adapter_is_that_of_groups_only_where_the_cluster_file_names_one() -> None:
    def made(of: Cluster) -> Gateways:
        return Gateways({}, of, client=lambda service: service)

    assert type(made(cluster()).fleet) is Ec2Fleet
    gw = made(scaled())
    assert type(gw.fleet) is AutoScalingFleet and gw.scaling is gw.fleet
