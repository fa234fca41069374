"""Incidents that take a spare: at once, one each, and whatever they do not use comes back."""

import pytest

from lambdas import spares
from planaria.core import pool
from planaria.core.errors import CapacityError
from planaria.core.ports import Execution
from planaria.core.table import Row
from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.test_spare_pool import (
    CHECK_SECONDS,
    GROUP,
    aim,
    answer,
    filled,
    pass_time,
    pooled,
    spare_of,
    states,
    view,
)
from tests.lambdas.world import BOOT_SECONDS, JOB, NODES, World

SICK, OTHER = NODES[1], NODES[2]
TASKS = {
    *("begin_incident", "isolate_node", "launch_replacement", "await_node", "verify_node", "admit_node"),
    *("retire_node", "tell_job", "close_incident", "begin_resume", "choose_checkpoint", "requeue_job"),
    *("await_steps", "close_resume", "begin_refill", "launch_spare", "close_refill"),
}


def break_it(world: World, node: str = SICK) -> None:
    world.send(events.xid(node, 79, world.now))


def as_before(world: World, spares: int = 1, resumed: int = 1) -> None:
    """Four nodes at work, the pool full, nothing left over."""
    assert not world.driver.running and not world.dead_letters and world.isolated == {}
    assert states(world) == ["FREE"] * spares, states(world)
    assert len(world.alive) == 4 + spares, world.alive
    assert {str(world.scheduler.state.state_of(name)) for name in world.names} == {"ALLOCATED"}
    assert sorted(world.scheduler.state.nodes) == world.names
    job = world.job
    assert (job["pending"], job["unresolved"], job["state"]) == ({}, {}, "RUNNING")
    free = [row["node_id"] for row in view(world).of(pool.SpareState.FREE)]
    assert sorted([*job["nodes"].values(), *free]) == sorted(world.alive)
    assert len(world.attempts) == resumed and world.notices.sent == []
    names = sorted(
        world.node(node)["name"] for node in world.alive if node not in free and world.node(node).get("name")
    )
    assert names == world.names
    assert all("name" not in world.node(node) for node in free)


# --- taken -------------------------------------------------------------------------------------------


def test_a_failed_node_takes_the_spare_at_once_and_the_pool_is_refilled(build: Build) -> None:
    world = filled(build)
    spare, launched_at = spare_of(world), world.node(spare_of(world))["launched_at"]
    at = world.now
    break_it(world)
    world.run(60, until=lambda: world.ends == ["HEALED"])
    assert world.incidents[0]["closed_at"] - at < BOOT_SECONDS / 2  # nothing had to boot
    row = world.node(spare)
    assert (row["name"], row["replaces"], row["launched_at"]) == ("demo-1", SICK, launched_at)
    assert row["health"] == "Schedulable" and pool.state_of(row) is None
    assert world.scheduler.state.nodes["demo-1"].node_id == spare
    assert world.incidents[0]["replacement_id"] == spare
    world.run()
    as_before(world)
    assert len(world.launched) == 2 and spare_of(world) != spare


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_any_effect_may_be_the_last_one(build: Build, before: bool) -> None:
    def begin(number: int = -1) -> tuple[World, int]:
        world = filled(build)
        began = len(world.effects)
        if number >= 0:
            world.kill_at(number, before=before)
        break_it(world)
        world.run()
        return world, began

    first, began = begin()
    as_before(first)
    wrong = {}
    for number in range(began, len(first.effects)):
        world, _ = begin(number)
        try:
            as_before(world)
            assert world.ends == ["HEALED"], world.ends
            assert len(world.launched) == 2, world.launched
        except AssertionError as error:
            wrong[f"{number}: {first.effects[number]}"] = str(error).partition("\n")[0]
    assert wrong == {}


def test_every_task_delivered_twice_takes_one_spare(build: Build) -> None:
    world = filled(build, 2)
    world.twice = set(TASKS)
    break_it(world)
    world.run()
    as_before(world, 2)
    assert world.ends == ["HEALED"] and len(world.launched) == 3


def test_two_incidents_want_the_one_spare(build: Build) -> None:
    world = filled(build)
    spare = spare_of(world)
    break_it(world, SICK)
    break_it(world, OTHER)
    world.run()
    as_before(world)
    assert world.ends == ["HEALED", "HEALED"]
    replaced = {row["node_id"]: row["replacement_id"] for row in world.incidents}
    assert list(replaced.values()).count(spare) == 1 and len(set(replaced.values())) == 2
    assert len(world.launched) == 3  # the first spare, the other replacement, the refill


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_two_incidents_and_one_spare_whatever_dies(build: Build, before: bool) -> None:
    def begin(number: int = -1) -> tuple[World, int]:
        world = filled(build)
        began = len(world.effects)
        if number >= 0:
            world.kill_at(number, before=before)
        break_it(world, SICK)
        break_it(world, OTHER)
        world.run()
        return world, began

    first, began = begin()
    for number in range(began, len(first.effects)):
        function, call = first.effects[number]
        if function != "launch_replacement" and number % 5:
            continue
        world, _ = begin(number)
        assert world.ends == ["HEALED", "HEALED"], (number, function, call)
        as_before(world, resumed=len(world.attempts))
        assert len({row["replacement_id"] for row in world.incidents}) == 2
        assert len(world.launched) == 3, (number, function, call)


def test_as_many_incidents_as_spares_and_more(build: Build) -> None:
    world = filled(build, 2)
    had = [row["node_id"] for row in view(world).of(pool.SpareState.FREE)]
    for node in NODES:
        break_it(world, node)
    world.run()
    as_before(world, 2)
    taken = [row["replacement_id"] for row in world.incidents]
    assert sorted(set(taken) & set(had)) == sorted(had) and len(set(taken)) == 4
    assert len(world.launched) == 6


def test_an_empty_pool_costs_no_time(build: Build) -> None:
    world = build(pooled(1))
    world.sweeps = False
    break_it(world)
    world.run()
    assert world.ends == ["HEALED"] and len(world.launched) == 1


def test_a_spare_helps_where_nothing_has_capacity(build: Build) -> None:
    world = filled(build)
    world.fleet.refuse = lambda request: CapacityError("none")
    break_it(world)
    world.run(300, until=lambda: world.ends == ["HEALED"])
    assert world.ends == ["HEALED"]
    pass_time(world, 600)
    assert states(world) == []
    world.fleet.refuse = lambda request: None
    pass_time(world, 1200)
    as_before(world)


@pytest.mark.parametrize(
    "facts",
    [
        {"lost": "it is sick"},
        {"quarantined": {"reason": "its GPU", "until": 4e9}},
        {"state": "stopped"},
        {"check": {"passed": False, "reason": "GPU 3 is missing"}},
        {"opted_out": True},
        {"held_since": 1.0},
        {("spare", "failed"): 1},
        {("spare", "checked_at"): 0.0},
    ],
    ids=lambda facts: str(next(iter(facts))),
)
def test_a_doubtful_spare_is_not_taken(build: Build, facts: Row) -> None:
    world = filled(build)
    world.sweeps = False
    spare = spare_of(world)
    world.table.write(f"NODE#{spare}", "NODE", sets=facts)
    break_it(world)
    world.run()
    assert world.ends == ["HEALED"]
    assert world.incidents[0]["replacement_id"] != spare and world.node(spare)["spare"]["state"] == "FREE"


def test_the_nearest_spare_is_taken_then_the_one_that_was_checked_last(build: Build) -> None:
    world = filled(build, 4)
    nodes = sorted(row["node_id"] for row in view(world).of(pool.SpareState.FREE))
    for number, node in enumerate(nodes):
        zone = "us-east-1b" if number in (1, 2) else "us-east-1a"
        checked = world.now - 10 * number
        world.table.write(f"NODE#{node}", "NODE", sets={"zone": zone, ("spare", "checked_at"): checked})
    failed = {"zone": "us-east-1b", "instance_type": "p5.48xlarge"}
    order = []
    for number in range(4):
        incident = {"node_id": f"i-0000000{number}", "incident_id": f"i-0000000{number}-1"}
        order.append(spares.take(world.gw, world.gw.cluster.group(GROUP), incident, failed))
    assert order == [nodes[1], nodes[2], nodes[0], nodes[3]]


def test_taking_is_idempotent_also_for_a_session_that_supersedes(build: Build) -> None:
    world = filled(build, 2)
    group = world.gw.cluster.group(GROUP)

    def take(node: str, session: int) -> str | None:
        return spares.take(world.gw, group, {"node_id": node, "incident_id": f"{node}-{session}"}, {})

    first = take(SICK, 1)
    assert first == take(SICK, 1) == take(SICK, 2)
    assert world.node(str(first))["spare"]["by"] == f"{SICK}-2"
    second = take(OTHER, 1)
    assert second is not None and second != first and take(NODES[3], 1) is None
    world.table.write(f"NODE#{first}", "NODE", sets={"lost": "it is sick"})
    assert take(SICK, 2) is None


def test_a_session_that_supersedes_takes_over_the_spare(build: Build) -> None:
    world = filled(build)
    spare = spare_of(world)
    world.send(events.retirement(SICK, world.now))
    world.run(30, until=lambda: world.node(spare)["spare"]["state"] == "TAKEN")
    break_it(world)
    world.run()
    assert world.ends == ["SUPERSEDED", "HEALED"] and world.incidents[1]["replacement_id"] == spare
    as_before(world)


# --- a spare that is taken and fails ---------------------------------------------------------------------


@pytest.mark.parametrize("state", ["Wait for the node", "Verify", "Admit"])
@pytest.mark.parametrize("how", ["fault", "gone"])
def test_a_spare_that_dies_while_it_is_taken_is_followed_by_another(
    build: Build, state: str, how: str
) -> None:
    world = filled(build, 2)
    taken: list[str] = []
    real = world.driver.invoke

    def dies(function: str, payload: dict[str, object]) -> object:
        name = {"Wait for the node": "await_node", "Verify": "verify_node", "Admit": "admit_node"}[state]
        if function == name and not taken and "incident" in payload:
            node = str(payload["node_id"])
            taken.append(node)
            if how == "fault":
                world.send(events.xid(node, 79, world.now))
            else:
                world.lose(node)
                world.send(events.state(node, "terminated", world.now))
        return real(function, payload)

    world.driver.invoke = dies
    break_it(world)
    world.run()
    pass_time(world, 300)
    assert world.ends == ["HEALED"] and world.incidents[0]["replacement_id"] != taken[0]
    as_before(world, 2)
    assert taken[0] not in world.alive


def test_a_spare_that_fails_its_check_anew_is_given_back_as_lost(build: Build) -> None:
    world = filled(build, 2)
    first: list[str] = []

    def check(node: str) -> object:
        first.append(node)
        return {"passed": node != first[0], "reason": "GPU 3 is missing"}

    answer(world, check)
    break_it(world)
    world.run()
    assert world.ends == ["HEALED"] and world.terminated[0] in (first[0], SICK)
    assert first[0] in world.terminated and "GPU 3" in world.node(first[0])["lost"]
    pass_time(world, 300)
    as_before(world, 2)


# --- what nobody needs comes back --------------------------------------------------------------------


def refuse_isolation(world: World) -> None:
    """The scheduler's answer comes when the replacement is there already."""
    world.scheduler.pending_polls = 12
    world.scheduler.state.foreign_isolate("demo-1", "cable swap", "operator")
    world.start("heal_node", {"node_id": SICK, "action": "replace", "reason": "by mistake"})


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_spare_that_its_incident_does_not_use_stands_by_again(build: Build, before: bool) -> None:
    def begin(number: int = -1) -> tuple[World, int, str]:
        world = filled(build)
        began, spare = len(world.effects), spare_of(world)
        if number >= 0:
            world.kill_at(number, before=before)
        refuse_isolation(world)
        world.run()
        pass_time(world, 180)
        return world, began, spare

    first, began, spare = begin()
    assert first.ends == ["ESCALATED"] and spare in first.alive
    for number in range(began, len(first.effects)):
        world, _, spare = begin(number)
        assert world.ends == ["ESCALATED"], first.effects[number]
        assert states(world) == ["FREE"], (number, first.effects[number], states(world))
        assert len(world.alive) == 5 and len(world.launched) <= 2
        row = world.node(spare_of(world))
        assert "name" not in row and "replaces" not in row and "by" not in row["spare"]


def test_a_cancelled_incident_gives_its_spare_back(build: Build) -> None:
    world = filled(build)
    spare = spare_of(world)
    world.send(events.hyperpod(SICK, "Unhealthy", "NvidiaErrorReset", "Replace", world.now))
    world.run(30, until=lambda: world.node(spare)["spare"]["state"] == "TAKEN")
    world.send(events.hyperpod(SICK, "Healthy", "", "None", world.now + 1))
    world.run()
    pass_time(world, 300)
    if world.ends == ["CANCELLED"]:
        assert spare_of(world) == spare and len(world.launched) == 1
        assert sorted(world.scheduler.state.nodes) == world.names


def test_an_unused_replacement_becomes_a_spare_by_policy(build: Build) -> None:
    world = build(pooled(1, unused_replacement="spare"))
    world.sweeps = False
    refuse_isolation(world)
    world.run()
    assert world.ends == ["ESCALATED"]
    (kept,) = world.launched
    assert kept in world.alive and states(world) == ["FREE"]
    row = world.node(kept)
    assert "name" not in row and "replaces" not in row
    world.sweeps = True
    world.scheduler.pending_polls = 0
    pass_time(world, 300)
    assert world.launched == [kept] and "name" not in world.node(kept)
    break_it(world, OTHER)
    world.run()
    assert world.ends == ["ESCALATED", "HEALED"] and world.incidents[1]["replacement_id"] == kept
    assert world.node(kept)["name"] == "demo-2"


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_keeping_ends_right_whatever_dies(build: Build, before: bool) -> None:
    def begin(number: int = -1) -> World:
        world = build(pooled(1, unused_replacement="spare"))
        world.sweeps = False
        if number >= 0:
            world.kill_at(number, before=before)
        refuse_isolation(world)
        world.run()
        world.sweeps = True
        pass_time(world, 600)
        return world

    first = begin()
    for number in range(len(first.effects)):
        if first.effects[number][0] == "sweep":
            continue
        world = begin(number)
        assert world.ends == ["ESCALATED"], first.effects[number]
        assert states(world) == ["FREE"] and len(world.alive) == 5, (number, first.effects[number])


@pytest.mark.parametrize(("spares_wanted", "word"), [(1, "terminate"), (0, "spare")])
def test_an_unused_replacement_is_terminated_otherwise(build: Build, spares_wanted: int, word: str) -> None:
    world = build(pooled(spares_wanted, unused_replacement=word))
    world.sweeps = False
    refuse_isolation(world)
    world.run()
    assert world.ends == ["ESCALATED"] and world.terminated == world.launched


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_an_escalated_incident_leaves_no_instance_behind(build: Build, before: bool) -> None:
    """Also where the launch died before it knew of what, and the isolation was refused meanwhile."""
    effects = (first := build()).effects
    refuse_isolation(first)
    first.run()
    for number, (function, _) in enumerate(effects):
        if function == "launch_replacement":
            world = build()
            world.kill_at(number, before=before)
            refuse_isolation(world)
            world.run()
            pass_time(world, 300)
            assert world.ends == ["ESCALATED"] and world.alive == world.nodes, effects[number]
            launch = world.node(SICK).get("launch", {})
            assert "token" not in launch or "instance_id" in launch


def test_a_full_pool_keeps_no_replacement(build: Build) -> None:
    world = filled(build, 1, unused_replacement="spare")
    world.table.write(f"NODE#{spare_of(world)}", "NODE", sets={("spare", "checked_at"): 0.0})
    refuse_isolation(world)
    world.run(120)
    assert world.ends == ["ESCALATED"] and len(world.terminated) == 1 and states(world) == ["FREE"]


def test_a_spare_whose_incident_ended_without_a_word_is_settled(build: Build) -> None:
    """The right to it was written, and nothing else was."""
    world = filled(build)
    spare, group = spare_of(world), world.gw.cluster.group(GROUP)
    incident = {"node_id": SICK, "incident_id": f"{SICK}-1"}
    assert spares.take(world.gw, group, incident, world.node(SICK)) == spare
    pass_time(world, 120)
    assert spare_of(world) == spare
    assert spares.take(world.gw, group, incident, world.node(SICK)) == spare
    world.table.write(f"NODE#{spare}", "NODE", sets={"lost": "it is sick"})
    pass_time(world, 300)
    assert world.terminated == [spare] and states(world) == ["FREE"]


def test_another_incident_s_spare_is_never_touched(build: Build) -> None:
    world = filled(build)
    spare, group = spare_of(world), world.gw.cluster.group(GROUP)
    assert spares.take(world.gw, group, {"node_id": OTHER, "incident_id": f"{OTHER}-1"}, {}) == spare
    assert spares.keep_as_spare(world.gw, spare, "no use for it", SICK) is True
    assert world.node(spare)["spare"]["by"] == f"{OTHER}-1"
    assert spares.keep_as_spare(world.gw, spare, "no use for it", OTHER) is True
    assert world.node(spare)["spare"]["state"] == "FREE"
    assert spares.keep_as_spare(world.gw, spare, "no use for it", OTHER) is True


def test_a_spare_that_had_got_a_name_is_not_kept(build: Build) -> None:
    world = filled(build)
    spare, group = spare_of(world), world.gw.cluster.group(GROUP)
    spares.take(world.gw, group, {"node_id": SICK, "incident_id": f"{SICK}-1"}, {})
    world.table.write(f"NODE#{SICK}", "NODE", sets={"replaced_by": spare})
    assert spares.keep_as_spare(world.gw, spare, "no use for it", SICK) is False
    pass_time(world, 200)
    assert spare in world.terminated


# --- what a spare is not -----------------------------------------------------------------------------


def test_spares_are_no_part_of_the_size_of_their_group(build: Build) -> None:
    world = filled(build, 2)
    arn = world.start("heal_node", {"node_id": SICK, "action": "remove", "reason": "sold"})
    world.run(60)
    assert world.workflows.state(arn) is not Execution.RUNNING
    from planaria.core import wanted

    rows = world.gw.ledger.nodes()
    assert wanted.below_size(rows, GROUP, 4, {}, NODES[0]) is True
    assert wanted.below_size(rows, GROUP, 4, {}, spare_of_any(world)) is False
    assert world.gw.cluster.size == 4


def spare_of_any(world: World) -> str:
    return str(view(world).of(pool.SpareState.FREE)[0]["node_id"])


def test_a_spare_gets_no_job(build: Build) -> None:
    world = filled(build)
    world.scheduler.add_job("second", 1)
    assert str(world.scheduler.state.jobs["second"].state) == "PENDING"
    assert JOB in world.scheduler.state.jobs


def test_a_spare_that_took_a_place_heals_like_any_other_node(build: Build) -> None:
    world = filled(build)
    first = spare_of(world)
    break_it(world)
    world.run()
    second = spare_of(world)
    world.send(events.xid(first, 79, world.now))
    world.run()
    assert world.ends == ["HEALED", "HEALED"] and world.incidents[1]["node_id"] == first
    assert world.node(second)["name"] == "demo-1" and world.node(second)["lineage"] == SICK
    as_before(world, resumed=2)


def test_a_reboot_of_a_former_spare_keeps_its_name(build: Build) -> None:
    world = filled(build)
    spare = spare_of(world)
    break_it(world)
    world.run()
    world.start("heal_node", {"node_id": spare, "action": "reboot", "reason": "by hand"})
    world.run()
    assert world.ends == ["HEALED", "HEALED"] and world.node(spare)["name"] == "demo-1"
    as_before(world, resumed=2)


def test_observe_mode_takes_no_spare_by_itself(build: Build) -> None:
    world = filled(build)
    aim(world, 1, "observe")
    break_it(world)
    pass_time(world, CHECK_SECONDS)
    assert states(world) == ["FREE"] and world.incidents == []
