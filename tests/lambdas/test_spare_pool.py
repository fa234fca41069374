"""The warm pool as sweep keeps it: filled, checked in rotation, trimmed; whatever crashes when."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from planaria.core import pool, tags
from planaria.core.cluster import Cluster
from planaria.core.errors import CapacityError, PermanentError, TransientError
from planaria.core.ports import Execution
from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.world import NODES, World, stub

GROUP = "workers"
CHECK_SECONDS = 600.0


def pooled(spares: int = 1, mode: str = "act", **policy: Any) -> Cluster:
    """The world's cluster with a warm pool; a spare comes before what is launched."""
    one = {"instance_type": "p5.48xlarge", "subnet": "subnet-1"}
    two = {"instance_type": "p5.48xlarge", "subnet": "subnet-2"}
    group = {
        "name": GROUP,
        "size": 4,
        "spares": spares,
        "launch_template": "planaria-demo-workers",
        "offerings": [
            *([{**one, "capacity": "spare"}] if spares else []),
            {**one, "capacity": "on-demand"},
            {**two, "capacity": "spot"},
        ],
    }
    limits = {"max_removals": 4, "max_share": 1.0, "window_seconds": 3600}
    return Cluster.from_document(
        {
            "name": "demo",
            "region": "us-east-1",
            "scheduler": "process",
            "policy": {"mode": mode, "breaker": limits, "spare_check_seconds": CHECK_SECONDS} | policy,
            "node_groups": [group],
        }
    )


def view(world: World) -> pool.View:
    return pool.read(world.gw.ledger, GROUP)


def states(world: World) -> list[str]:
    """The states of all that is or was a spare and is not gone."""
    rows = [world.node(node) for node in world.fleet.instances if node in world.alive]
    return sorted(str(state) for row in rows if (state := pool.state_of(row)) is not None)


def spare_of(world: World) -> str:
    """The only FREE spare."""
    (row,) = view(world).of(pool.SpareState.FREE)
    return str(row["node_id"])


def pass_time(world: World, seconds: float) -> None:
    """The world goes on for so long, also when nothing happens."""
    end = world.now + seconds
    while world.now < end:
        world.at(min(60.0, end - world.now), lambda: None)
        world.run(min(60.0, end - world.now))


def wait_for(world: World, seconds: float, what: Callable[[], bool]) -> None:
    end = world.now + seconds
    while not what():
        assert world.now < end, f"not within {seconds} s"
        pass_time(world, 10)


def filled(build: Build, spares: int = 1, **policy: Any) -> World:
    world = build(pooled(spares, **policy))
    world.commands.documents["planaria-check"] = lambda node, parameters: {"passed": True, "reason": ""}
    world.run()
    assert states(world) == ["FREE"] * spares
    return world


def aim(world: World, spares: int, mode: str = "act", **policy: Any) -> None:
    """The cluster file was changed and deployed."""
    world.gw.cluster = pooled(spares, mode, **policy)


# --- filling -----------------------------------------------------------------------------------------


def test_an_empty_pool_is_filled_with_nodes_that_have_no_place(build: Build) -> None:
    world = filled(build, 2)
    assert len(world.launched) == 2 and len(world.alive) == 6
    for node in world.launched:
        row = world.node(node)
        assert "name" not in row and "replaces" not in row and row["health"] == "Unschedulable"
        assert tags.NAME not in world.fleet.instances[node].tags
        assert world.fleet.instances[node].tags[tags.GROUP] == GROUP
        assert world.fleet.instances[node].lifecycle == "on-demand"
    assert sorted(world.scheduler.state.nodes) == world.names
    assert {slot["phase"] for slot in view(world).slots.values()} == {"FILLED"}
    assert set(world.workflows.executions.values()) == {Execution.SUCCEEDED}
    assert world.incidents == [] and world.notices.sent == []


def test_a_full_pool_is_left_alone(build: Build) -> None:
    world = filled(build, 2)
    effects = len(world.effects)
    pass_time(world, 300)
    assert world.effects[effects:] == [] and len(world.launched) == 2


def test_a_group_without_spares_has_no_pool(build: Build) -> None:
    world = build(pooled(0))
    world.run()
    assert world.launched == [] and world.table.query(f"SPARE#{GROUP}") == []


def test_observe_mode_launches_nothing(build: Build) -> None:
    world = build(pooled(2, "observe"))
    world.run()
    assert world.launched == [] and world.workflows.executions == {}


def test_spares_of_a_deployment_that_observes_now_are_left(build: Build) -> None:
    world = filled(build, 2)
    aim(world, 1, "observe")
    pass_time(world, 300)
    assert states(world) == ["FREE", "FREE"]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_any_effect_of_a_refill_may_be_the_last_one(build: Build, before: bool) -> None:
    effects = filled(build, 2).effects
    wrong = {}
    for number, (function, call) in enumerate(effects):
        world = build(pooled(2))
        world.kill_at(number, before=before)
        world.run()
        if states(world) != ["FREE", "FREE"] or len(world.launched) != 2 or world.driver.running:
            wrong[f"{number}: {function} {call}"] = (states(world), world.launched)
    assert wrong == {}


def test_every_task_of_a_refill_delivered_twice_does_everything_once(build: Build) -> None:
    world = build(pooled(2))
    world.twice = {"begin_refill", "launch_spare", "await_node", "close_refill"}
    world.run()
    assert states(world) == ["FREE", "FREE"] and len(world.launched) == 2
    assert [what for what, _ in world.fleet.calls] == ["launch", "launch"]
    assert set(world.workflows.executions.values()) == {Execution.SUCCEEDED}


def test_two_sweeps_at_once_begin_one_refill(build: Build) -> None:
    world = build(pooled(1))
    world.sweep()
    world.sweep()
    world.run()
    assert states(world) == ["FREE"] and len(world.workflows.executions) == 1


def test_a_refill_that_dies_is_followed_by_one_that_takes_over_its_launch(build: Build) -> None:
    world = build(pooled(1))
    world.boots = False
    world.run(70, until=lambda: bool(world.launched))
    (arn,) = world.driver.running
    world.abort(arn)
    world.boots = True
    world._boot(world.launched[0])
    world.run()
    assert states(world) == ["FREE"] and len(world.launched) == 1
    assert len(world.workflows.executions) == 2
    assert view(world).slots[1]["generation"] == 2


def test_a_refill_that_dies_again_and_again_rests(build: Build) -> None:
    world = build(pooled(1, max_attempts=3, cooldown_seconds=1200))
    world.boots = False
    dead = 0
    for _ in range(8):
        pass_time(world, 60)
        for arn in world.driver.running:
            world.abort(arn)
            dead += 1
    assert dead == 3
    slot = view(world).slots[1]
    assert slot["phase"] == "NOT_FILLED" and "died 3 times" in slot["outcome_reason"]
    assert states(world) == []  # what it had launched is terminated
    world.boots = True
    pass_time(world, 1300)
    assert states(world) == ["FREE"]


def test_nothing_has_capacity(build: Build) -> None:
    world = build(pooled(1))
    world.fleet.refuse = lambda request: CapacityError("none")
    world.run(3600)
    assert len(world.driver.running) == 1 and states(world) == []
    world.fleet.refuse = lambda request: None
    world.run(3600)
    assert states(world) == ["FREE"] and len(world.launched) == 1
    assert set(world.workflows.executions.values()) == {Execution.SUCCEEDED}


def test_capacity_that_is_missing_for_days_is_no_alarm_and_begins_anew(build: Build) -> None:
    world = build(pooled(1))
    world.fleet.refuse = lambda request: CapacityError("none")
    pass_time(world, 2 * 86_400)
    ends = list(world.workflows.executions.values())
    assert len(ends) >= 3 and set(ends) <= {Execution.SUCCEEDED, Execution.RUNNING}
    world.fleet.refuse = lambda request: None
    pass_time(world, 7200)
    assert states(world) == ["FREE"] and len(world.launched) == 1


def test_what_cannot_be_launched_fails_the_execution_and_is_tried_less_and_less(build: Build) -> None:
    world = build(pooled(1, cooldown_seconds=300))
    world.fleet.refuse = lambda request: PermanentError("You are not authorized to perform this operation")
    pass_time(world, 3600)
    ends = list(world.workflows.executions.values())
    assert set(ends) == {Execution.FAILED} and 3 <= len(ends) <= 5
    record = next(iter(world.driver.records.values()))
    assert "not authorized" in record.cause
    slot = view(world).slots[1]
    assert slot["failures"] == len(ends) and slot["retry_at"] > world.now
    world.fleet.refuse = lambda request: None
    pass_time(world, 10_000)
    assert states(world) == ["FREE"] and "failures" not in view(world).slots[1]


def test_a_refill_that_failed_and_dies_as_it_says_so_fails_all_the_same(build: Build) -> None:
    world = build(pooled(1))
    world.fleet.refuse = lambda request: PermanentError("You are not authorized to perform this operation")
    world.kill("close_refill", "table.write")
    pass_time(world, 200)
    assert list(world.workflows.executions.values()) == [Execution.FAILED]
    assert view(world).slots[1]["failures"] == 1


@pytest.mark.parametrize("how", ["dies", "sick", "silent"])
def test_a_spare_that_does_not_come_up_is_followed_by_another(build: Build, how: str) -> None:
    world = build(pooled(1, cooldown_seconds=60))
    if how == "sick":
        world.check_passes = lambda node: node != world.launched[0]
    world.boots = how == "sick"
    world.run(100, until=lambda: bool(world.launched))
    first = world.launched[0]
    if how == "dies":
        world.lose(first)
    world.at(30, lambda: setattr(world, "boots", True))
    pass_time(world, 7200)
    assert states(world) == ["FREE"] and spare_of(world) != first
    assert world.incidents == [] and first not in world.alive
    assert len(world.launched) == 2


def test_a_launch_that_nobody_noted_is_terminated_when_the_pool_needs_it_no_more(build: Build) -> None:
    world = build(pooled(1, max_attempts=1))
    world.kill("launch_spare", "fleet.launch", times=100)
    world.run(100, until=lambda: bool(world.launched))
    for arn in list(world.driver.running):
        world.abort(arn)
    pass_time(world, 61)
    assert view(world).slots[1]["phase"] == "NOT_FILLED"
    aim(world, 0)
    pass_time(world, 400)
    assert world.terminated == world.launched and len(world.launched) == 1
    assert states(world) == [] and "launch" not in view(world).slots[1]


# --- started by a person -----------------------------------------------------------------------------


def test_a_person_may_fill_the_pool_at_once(build: Build) -> None:
    world = build(pooled(1))
    world.sweeps = False
    arn = world.start("refill_spares", {"node_group": GROUP, "reason": "before the weekend"})
    world.run()
    assert world.workflows.state(arn) is Execution.SUCCEEDED and states(world) == ["FREE"]
    assert view(world).slots[1]["reason"] == "before the weekend"


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_persons_refill_ends_right_whatever_dies(build: Build, before: bool) -> None:
    def begin(world: World) -> World:
        world.start("refill_spares", {"node_group": GROUP})
        world.run()
        return world

    for number in range(len(begin(build(pooled(1))).effects)):
        world = build(pooled(1))
        world.kill_at(number, before=before)
        begin(world)
        assert (states(world), len(world.launched)) == (["FREE"], 1), number


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"node_group": "nodes"}, "node_group must be one of workers, got 'nodes'"),
        ({"reason": "x"}, "node_group must be one of workers, got None"),
        ({"node_group": GROUP, "count": 2}, "the field 'count' is not known"),
        ({"node_group": GROUP, "reason": 3}, "reason must be a text"),
        (["workers"], "must be a JSON object"),
        ({"node_group": GROUP, "slot": 1, "generation": "1"}, "slot and generation"),
    ],
)
def test_a_bad_document_is_refused_in_a_sentence(build: Build, document: object, says: str) -> None:
    world = build(pooled(1))
    world.sweeps = False
    arn = world.start("refill_spares", document)
    world.run()
    assert world.workflows.state(arn) is Execution.FAILED
    cause = world.driver.records[arn].cause
    assert says in cause and '{"node_group": "workers"' in cause


def test_a_person_cannot_have_more_spares_than_the_file_says(build: Build) -> None:
    world = filled(build)
    arn = world.start("refill_spares", {"node_group": GROUP})
    world.run()
    assert "has its 1 spares already (1 free" in world.driver.records[arn].cause
    aim(world, 0)
    again = world.start("refill_spares", {"node_group": GROUP}, "again")
    world.run()
    assert "keeps no spares" in world.driver.records[again].cause
    assert len(world.launched) == 1


# --- too many ----------------------------------------------------------------------------------------


def test_spares_above_the_target_are_retired_one_by_one(build: Build) -> None:
    world = filled(build, 3)
    aim(world, 1)
    counts = []
    for _ in range(4):
        pass_time(world, 60)
        counts.append(len(states(world)))
    assert counts == [2, 1, 1, 1] and states(world) == ["FREE"]
    assert world.node(spare_of(world))["spare"]["slot"] == 1
    assert all("terminate" in world.node(node)["acts"] for node in world.terminated)
    assert world.incidents == [] and len(world.launched) == 3


def test_the_spares_of_a_group_that_is_no_more_are_retired(build: Build) -> None:
    world = filled(build, 2)
    group = dataclasses.replace(world.gw.cluster.node_groups[GROUP], name="other", spares=0)
    world.gw.cluster = dataclasses.replace(world.gw.cluster, node_groups={"other": group})
    pass_time(world, 300)
    assert states(world) == [] and len(world.terminated) == 2


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_retiring_ends_right_whatever_dies(build: Build, before: bool) -> None:
    first = filled(build, 2)
    began = len(first.effects)
    aim(first, 1)
    pass_time(first, 200)
    for number in range(began, len(first.effects)):
        world = filled(build, 2)
        assert len(world.effects) == began
        aim(world, 1)
        world.kill_at(number, before=before)
        pass_time(world, 300)
        assert states(world) == ["FREE"] and len(world.alive) == 5, number


# --- checked in rotation -----------------------------------------------------------------------------


def checks(world: World) -> list[str]:
    return [nodes[0] for document, nodes, _ in world.commands.calls if document == "planaria-check"]


def answer(world: World, give: Callable[[str], Any]) -> None:
    world.commands.documents["planaria-check"] = lambda node, parameters: give(node)


def test_each_spare_is_checked_once_in_a_period(build: Build) -> None:
    world = filled(build, 2)
    pass_time(world, CHECK_SECONDS * 3 + 120)
    asked = checks(world)
    assert {asked.count(node) for node in world.launched} == {3}
    for node in world.launched:
        spare = world.node(node)["spare"]
        assert world.now - spare["checked_at"] < CHECK_SECONDS + 120 and "ticket" not in spare


def test_a_few_are_asked_at_once_the_oldest_first(build: Build) -> None:
    world = filled(build, 8)
    for number, node in enumerate(world.launched):
        world.table.write(f"NODE#{node}", "NODE", sets={("spare", "checked_at"): float(number)})
    pass_time(world, 60)
    assert checks(world) == world.launched[:5]


def test_one_failed_check_is_asked_again_at_once(build: Build) -> None:
    world = filled(build)
    spare, said = spare_of(world), iter([False])
    answer(world, lambda node: {"passed": next(said, True), "reason": "GPU 3 is missing"})
    wait_for(world, CHECK_SECONDS + 200, lambda: world.node(spare)["spare"].get("failed") == 1)
    assert "GPU 3" in world.node(spare)["spare"]["why"]
    wait_for(world, 130, lambda: "failed" not in world.node(spare)["spare"])
    assert len(world.launched) == 1


@pytest.mark.parametrize("how", ["sick", "fails", "silent"])
def test_a_spare_that_fails_twice_in_a_row_is_replaced(build: Build, how: str) -> None:
    world = filled(build)
    spare = spare_of(world)
    sick = {"passed": False, "reason": "GPU 3 is missing"}
    words = {"sick": sick, "fails": RuntimeError("no agent"), "silent": None}
    answer(world, lambda node: words[how] if node == spare else {"passed": True, "reason": ""})
    pass_time(world, CHECK_SECONDS + 900)
    assert world.terminated == [spare] and states(world) == ["FREE"] and spare_of(world) != spare
    assert "twice in a row" in world.node(spare)["lost"]
    mark = world.node(spare).get("quarantined")
    assert (mark or {}).get("incident_id") == (f"{spare}-spare" if how == "sick" else None)
    assert len(world.launched) == 2 and world.incidents == []
    assert world.outcomes_of("state_change").count("COVERED") >= 1


def test_when_nobody_answers_the_spares_are_not_to_blame(build: Build) -> None:
    world = filled(build, 4)
    answer(world, lambda node: None)
    pass_time(world, CHECK_SECONDS * 3)
    assert len(world.terminated) <= 3
    world = filled(build, 4)
    world.commands.reachable = False
    pass_time(world, CHECK_SECONDS * 3)
    assert world.terminated == []


def test_at_most_one_spare_leaves_in_a_sweep(build: Build) -> None:
    world = filled(build, 4, cooldown_seconds=60)
    bad = set(world.launched)
    answer(world, lambda node: {"passed": node not in bad, "reason": "no"})
    wait_for(world, CHECK_SECONDS * 3, lambda: bool(world.terminated))
    assert len(world.terminated) == 1
    pass_time(world, 1200)
    assert set(world.terminated) == bad and states(world) == ["FREE"] * 4


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_check_ends_right_whatever_dies(build: Build, before: bool) -> None:
    def begin(number: int = -1) -> tuple[World, int]:
        world = filled(build)
        began = len(world.effects)
        spare = spare_of(world)
        answer(world, lambda node: {"passed": node != spare, "reason": "GPU 3 is missing"})
        if number >= 0:
            world.kill_at(number, before=before)
        pass_time(world, CHECK_SECONDS + 1200)
        return world, began

    first, began = begin()
    for number in range(began, len(first.effects)):
        world, _ = begin(number)
        assert (states(world), len(world.launched)) == (["FREE"], 2), first.effects[number]


def test_spares_are_left_alone_in_a_maintenance_window(build: Build) -> None:
    world = filled(build)
    answer(world, lambda node: {"passed": False, "reason": "drivers are being installed"})
    window = {"start": "2020-01-01T00:00:00Z", "end": "2099-01-01T00:00:00Z"}
    aim(world, 1, maintenance=[window])
    pass_time(world, CHECK_SECONDS * 3)
    assert checks(world) == [] and states(world) == ["FREE"]


def test_a_spare_with_the_opt_out_tag_is_left_alone(build: Build) -> None:
    world = filled(build)
    node = spare_of(world)
    instance = world.fleet.instances[node]
    marks = {**instance.tags, tags.OPT_OUT: "true"}
    world.fleet.instances[node] = dataclasses.replace(instance, tags=marks)
    pass_time(world, 120)
    answer(world, lambda node: {"passed": False, "reason": "no"})
    aim(world, 0)
    pass_time(world, CHECK_SECONDS * 3)
    assert checks(world) == [] and states(world) == ["FREE"]


# --- faults on spares --------------------------------------------------------------------------------


def test_a_fault_on_a_spare_opens_no_incident(build: Build) -> None:
    world = filled(build)
    spare = spare_of(world)
    world.send(events.xid(spare, 79, world.now))
    assert world.outcomes_of("agent")[-1:] == ["OBSERVED"]
    pass_time(world, 300)
    assert world.terminated == [spare] and states(world) == ["FREE"] and spare_of(world) != spare
    assert world.incidents == [] and world.notices.sent == []
    assert (world.table.get("FLEET", "FLEET") or {}).get("removals", {}) == {}


def test_a_full_breaker_keeps_no_spare_from_being_replaced(build: Build) -> None:
    world = filled(build)
    world.limit_breaker(1)
    world.send(events.xid(NODES[1], 79, world.now))
    spare = spare_of(world)
    world.send(events.xid(spare, 79, world.now))
    pass_time(world, 600)
    assert spare in world.terminated
    assert [row["node_id"] for row in world.incidents] == [NODES[1]]


@pytest.mark.parametrize("tell", [True, False])
def test_a_spare_that_aws_ends_is_replaced(build: Build, tell: bool) -> None:
    world = filled(build)
    spare = spare_of(world)
    world.lose(spare, tell=tell)
    pass_time(world, 600)
    assert world.node(spare)["gone"] is True and states(world) == ["FREE"]
    assert world.incidents == [] and len(world.launched) == 2


def test_a_spot_notice_to_a_spare(build: Build) -> None:
    world = filled(build)
    spare = spare_of(world)
    world.interrupt(spare)
    pass_time(world, 600)
    assert states(world) == ["FREE"] and spare_of(world) != spare and world.incidents == []


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_fault_on_a_spare_ends_right_whatever_dies(build: Build, before: bool) -> None:
    def begin(number: int = -1) -> tuple[World, int]:
        world = filled(build)
        began = len(world.effects)
        if number >= 0:
            world.kill_at(number, before=before)
        world.send(events.xid(spare_of(world), 79, world.now))
        pass_time(world, 600)
        return world, began

    first, began = begin()
    for number in range(began, len(first.effects)):
        world, _ = begin(number)
        assert (states(world), len(world.launched)) == (["FREE"], 2), first.effects[number]
        assert world.incidents == []


def test_an_order_on_a_spare_is_refused(build: Build) -> None:
    world = filled(build)
    arn = world.start("heal_node", {"node_id": spare_of(world), "action": "replace", "reason": "x"})
    world.run()
    assert "is a spare of node group workers without a place" in world.driver.records[arn].cause
    assert states(world) == ["FREE"] and world.incidents == []


def test_a_node_whose_sweep_fails_keeps_no_pool_from_being_kept(build: Build) -> None:
    world = filled(build)
    world.send(events.xid(spare_of(world), 79, world.now))

    def refuse(node_id: str) -> None:
        raise TransientError("EC2 does not answer")

    real = stub(world.fleet, "terminate", refuse)
    pass_time(world, 200)
    assert "FREE" in states(world)
    stub(world.fleet, "terminate", real)
    pass_time(world, 200)
    assert states(world) == ["FREE"]


def test_a_sick_spare_that_reports_without_end_is_counted(build: Build) -> None:
    world = filled(build)
    spare = spare_of(world)
    for number in range(100):
        world.send(events.xid(spare, 79, world.now + number / 100))
    assert len(world.outcomes_of("agent")) < 5 and world.counted("OBSERVED") > 95
    assert states(world) == ["LEFT"]


def test_a_spare_whose_end_is_announced_is_replaced_before_it(build: Build) -> None:
    world = filled(build)
    spare = spare_of(world)
    world.send(events.retirement(spare, world.now))
    pass_time(world, 1200)
    assert spare in world.terminated and states(world) == ["FREE"] and world.incidents == []
