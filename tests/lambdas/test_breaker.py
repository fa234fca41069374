"""Stories in which nodes are held: by the breaker, a maintenance window, the opt-out tag, a name's limit."""

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest

from planaria.core.breaker import KEY
from planaria.core.errors import PermanentError
from planaria.core.table import Row
from planaria.core.tags import OPT_OUT
from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.test_node_stories import SICK, ask_reboot, entered, fall_off, report_well
from tests.lambdas.world import NODES, World, cluster

OTHER, THIRD = NODES[2], NODES[3]
WINDOW = 3600.0


def fleet_row(world: World) -> Row:
    return world.table.get(*KEY) or {}


def fill(world: World) -> None:
    """One of one removals is used, and the sick node is held."""
    world.limit_breaker(1)
    fall_off(world, OTHER)
    fall_off(world)
    world.run()
    assert [row["outcome"] for row in world.incidents if row["node_id"] == OTHER] == ["HEALED"]
    assert world.node(SICK)["held"] and world.isolated == {}


def next_window(world: World) -> None:
    world.clock.advance(WINDOW + 60)


def test_a_held_node_is_left_alone_and_a_person_is_told_what_to_do(world: World) -> None:
    fill(world)
    [(subject, text)] = world.notices.sent
    assert SICK in subject + text and "1 of 1 removals of the fleet" in text and "--override-breaker" in text
    assert "tripped" in fleet_row(world)


def test_the_first_after_the_window_is_the_probe_and_its_healing_closes_the_breaker(world: World) -> None:
    fill(world)
    next_window(world)
    world.run(70, lambda: "probe" in fleet_row(world)["tripped"])
    assert fleet_row(world)["tripped"]["probe"] == f"{SICK}-{world.node(SICK)['session']}"
    fall_off(world, THIRD)
    assert "half-open: waits for incident" in world.node(THIRD)["held_reason"]
    world.run()
    assert "tripped" not in fleet_row(world)
    next_window(world)
    world.run(600)
    world.run()
    world.notices.sent.clear()
    world.assert_healed(replaced=3, resumed=3)


def test_a_probe_that_is_escalated_opens_it_for_another_window(world: World) -> None:
    fill(world)
    fall_off(world, THIRD)
    world.fleet.refuse = lambda request: PermanentError("UnauthorizedOperation: no")
    next_window(world)
    world.run(600)
    assert world.node(SICK)["phase"] == "ESCALATED"
    world.fleet.refuse = lambda request: None
    world.clock.advance(WINDOW / 2)
    world.run(130)
    assert world.node(THIRD)["held"] and "was not healed" in world.gw.breaker.full(world.now)
    next_window(world)
    world.run(200, lambda: world.node(THIRD).get("phase") == "RUNNING")
    world.run()
    assert [row["outcome"] for row in world.incidents if row["node_id"] == THIRD][-1] == "HEALED"
    assert "tripped" not in fleet_row(world)


def test_a_probe_that_is_cancelled_makes_room_for_the_next_one(world: World) -> None:
    world.limit_breaker(1)
    fall_off(world, OTHER)
    world.run()
    ask_reboot(world)
    assert world.node(SICK)["held"]
    next_window(world)
    world.boots = False
    ask_reboot(world)
    world.run(30, lambda: "probe" in fleet_row(world)["tripped"])
    world.clock.advance(2)
    report_well(world)
    assert world.ends[-1] == "CANCELLED"
    assert "probe" not in fleet_row(world)["tripped"] and fleet_row(world)["removals"] == {}
    world.boots = True
    fall_off(world, THIRD)
    assert fleet_row(world)["tripped"]["probe"].startswith(THIRD)


def test_healthy_reports_pass_a_full_breaker(world: World) -> None:
    world.limit_breaker(1)
    ask_reboot(world)
    fall_off(world, OTHER)
    assert world.node(OTHER)["held"]
    report_well(world)
    assert world.incidents[0]["outcome"] == "CANCELLED"
    assert fleet_row(world)["removals"] == {}


def test_a_person_overrides_it_for_one_node(world: World) -> None:
    fill(world)
    order = {"node_id": SICK, "action": "replace", "reason": "it is really broken", "override_breaker": True}
    world.start("heal_node", order)
    world.run()
    world.notices.sent.clear()
    world.assert_healed(replaced=2, resumed=2)
    name = f"{SICK}-{world.node(SICK)['session']}"
    head, _ = world.gw.ledger.incident(name)
    assert head is not None and head["override_breaker"] is True
    assert name in fleet_row(world)["removals"] and len(fleet_row(world)["removals"]) == 2


@pytest.mark.parametrize(
    ("machine", "document", "words"),
    [
        (
            "heal_node",
            {"action": "replace", "override_breaker": "yes"},
            "override_breaker must be true or false",
        ),
        ("heal_node", {"action": "replace", "override_breaker": 1}, "got 1"),
        ("launch_replacement", {"override_breaker": True}, "'override_breaker' is not known"),
    ],
)
def test_a_wrong_override_is_refused(world: World, machine: str, document: Row, words: str) -> None:
    arn = world.start(machine, {"node_id": SICK, **document})
    world.run()
    assert (
        words in world.driver.records[arn].cause and "a right document is" in world.driver.records[arn].cause
    )


def test_an_isolation_may_override_too(world: World) -> None:
    fill(world)
    world.start("isolate_node", {"node_id": SICK, "override_breaker": True})
    world.run()
    assert world.node(SICK)["phase"] == "RETIRED" and list(world.isolated) == ["demo-1"]


def test_a_person_closes_it_and_the_held_node_is_healed_within_a_minute_or_two(world: World) -> None:
    fill(world)
    start = world.now
    world.gw.breaker.close("ada", "the driver is rolled back", world.now)
    world.run(130, lambda: bool(world.isolated))
    assert list(world.isolated) == ["demo-1"] and world.now - start < 120
    world.run()
    world.notices.sent.clear()
    world.assert_healed(replaced=2, resumed=2)


def test_an_order_that_supersedes_takes_over_the_slot(world: World) -> None:
    world.limit_breaker(1)
    world.start("heal_node", {"node_id": SICK, "action": "reboot"}, "reboot")
    world.run(until=lambda: entered(world, "Wait for the node"))
    world.clock.advance(2)
    fall_off(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert list(fleet_row(world)["removals"]) == [f"{SICK}-{world.node(SICK)['session']}"]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_whatever_dies_around_a_probe_no_slot_and_no_part_is_lost(build: Build, before: bool) -> None:
    def play(kill: int | None) -> World:
        world = build()
        fill(world)
        world.effects.clear()
        if kill is not None:
            world.kill_at(kill, before=before)
        next_window(world)
        world.run(900)
        world.run(600)
        return world

    effects = list(play(None).effects)
    wrong = {}
    for number, (function, call) in enumerate(effects):
        world = play(number)
        world.notices.sent.clear()
        try:
            assert "tripped" not in fleet_row(world), fleet_row(world)
            assert len(fleet_row(world)["removals"]) <= 1
            world.assert_healed(replaced=2, resumed=2)
        except AssertionError as error:
            wrong[f"{number}: {function} {call}"] = str(error).partition("\n")[0]
    assert wrong == {}


# --- the other reasons ------------------------------------------------------------------------------


def test_a_maintenance_window_holds_and_its_end_heals(build: Build) -> None:
    world = build()
    start = datetime.fromtimestamp(world.now, UTC)
    window = {
        "start": (start - timedelta(hours=1)).isoformat(),
        "end": (start + timedelta(hours=1)).isoformat(),
    }
    world = build(cluster(maintenance=[{**window, "reason": "new cables"}]))
    fall_off(world)
    world.run(300)
    assert world.incidents == [] and "new cables" in world.node(SICK)["held_reason"]
    assert fleet_row(world).get("removals", {}) == {}
    world.clock.advance(3600)
    world.run(200, lambda: bool(world.incidents))
    world.run()
    assert len(world.notices.sent) == 1
    world.notices.sent.clear()
    world.assert_healed(replaced=1, resumed=1)


def test_a_spot_warning_does_not_wait_for_the_end_of_maintenance(build: Build) -> None:
    world = build(cluster(maintenance=[{"weekly": "mon 00:00", "hours": 168}]))
    world.interrupt(SICK)
    world.run()
    world.assert_healed(replaced=1, resumed=1)


def test_a_node_with_the_opt_out_tag_is_left_alone_until_the_tag_is_gone(world: World) -> None:
    def tag(value: dict[str, str]) -> None:
        instance = world.fleet.instances[SICK]
        kept = {key: text for key, text in instance.tags.items() if key != OPT_OUT}
        world.fleet.instances[SICK] = dataclasses.replace(instance, tags={**kept, **value})

    tag({OPT_OUT: "true"})
    world.run(130)
    fall_off(world)
    world.run(600)
    assert world.incidents == [] and OPT_OUT in world.node(SICK)["held_reason"]
    tag({})
    world.run(400)
    world.run()
    world.notices.sent.clear()
    world.assert_healed(replaced=1, resumed=1)


def test_a_name_whose_instances_fail_one_after_the_other_needs_a_person(world: World) -> None:
    recent = [world.now - 300, world.now - 200, world.now - 100]
    world.gw.ledger.note_node(SICK, {"replacements": recent})
    fall_off(world)
    world.run(300)
    assert world.incidents == [] and "it is not the hardware" in world.node(SICK)["held_reason"]
    world.send(events.spot(SICK, world.now))
    world.run()
    assert world.ends == ["HEALED"]  # what AWS takes back is no fault of the hardware either
