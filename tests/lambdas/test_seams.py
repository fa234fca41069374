"""Where two parts meet: what a node's row must know of its lost replacements, and whose fault it is that
comes from a replacement before its admission."""

import dataclasses
from typing import Any

import pytest

from lambdas import replacement_rows
from planaria.core.errors import PermanentError
from planaria.core.maintenance import Window
from planaria.core.ports import Answer, AnswerState
from planaria.core.scheduling import NodeQuery
from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.test_job_failures import wait
from tests.lambdas.test_meaning import last
from tests.lambdas.test_node_stories import REPLACE, SICK, ask_reboot, entered, fall_off, report_well
from tests.lambdas.test_spare_pool import filled
from tests.lambdas.world import JOB, NODES, World, cluster, stub

TOLD = "is isolated, and its last incident ended ESCALATED: a person was told; planaria replace"


def no_replacement_passes(build: Build, **policy: Any) -> World:
    """An incident whose replacements are all lost; it ends ESCALATED and leaves the node isolated."""
    world = build(cluster(removals=4, **policy))
    world.check_passes = lambda node: False
    fall_off(world)
    wait(world, 1800)
    assert world.ends == ["ESCALATED"] and "demo-1" in world.isolated and len(world.launched) == 4
    return world


def no_reboot(build: Build) -> World:
    world = build(cluster(removals=4))

    def refused(*_: object) -> None:
        raise PermanentError("not allowed")

    stub(world.fleet, "reboot", refused)
    ask_reboot(world)
    wait(world, 600)
    assert world.ends == ["ESCALATED"] and "demo-1" in world.isolated
    return world


def mails(world: World) -> list[str]:
    """About nodes; that a job waits for one is told by itself."""
    return [subject for subject, _ in world.notices.sent if f"job {JOB}" not in subject]


def event_rows(world: World) -> int:
    return sum(pk.startswith("EVENT#") for pk, _ in world.table._rows)


# --- a node that was left to a person ----------------------------------------------------------------


def test_a_fault_that_goes_on_after_a_person_was_told_opens_nothing(build: Build) -> None:
    """A broken image: no replacement ever passes, and the isolated node tells of its fault all the time."""
    world = no_replacement_passes(build)
    for _ in range(11):
        fall_off(world)
        wait(world, 1800)
    assert world.ends == ["ESCALATED"] and len(world.launched) == 4 and len(mails(world)) == 1
    assert last(world)["outcome"] == "HELD" and TOLD in str(last(world)["reason"])


def test_what_is_held_for_it_is_not_kept_and_not_judged_again_by_sweep(build: Build) -> None:
    world = no_replacement_passes(build)
    fall_off(world)
    wait(world, 60)
    before = event_rows(world)
    wait(world, 2 * 86_400)
    assert event_rows(world) == before and len(mails(world)) == 1
    assert "held" not in world.node(SICK) and "held_since" not in world.node(SICK)


def test_a_storm_of_it_costs_a_few_rows(build: Build) -> None:
    world = no_replacement_passes(build)
    before = event_rows(world)
    for number in range(200):
        world.judge(events.xid(SICK, 79, world.now - 1 + number / 1000))
    assert event_rows(world) - before <= 8
    assert world.ends == ["ESCALATED"] and len(mails(world)) == 1


def test_a_fault_of_another_kind_is_news_until_the_name_has_had_too_many_instances(build: Build) -> None:
    world = no_replacement_passes(build, max_replacements=5)
    for _ in range(4):
        world.send(events.hyperpod(SICK, *REPLACE, world.now - 1))
        wait(world, 900)
        fall_off(world)
        wait(world, 900)
    assert world.ends == ["ESCALATED"] * 2 and len(world.launched) == 8
    assert len(world.node(SICK)["replacements"]) == 8


def test_the_number_of_new_instances_bounds_it(build: Build) -> None:
    world = no_replacement_passes(build)
    world.send(events.hyperpod(SICK, *REPLACE, world.now - 1))
    wait(world, 900)
    assert world.ends == ["ESCALATED"] and len(world.launched) == 4
    assert "it is not the hardware" in str(last(world)["reason"])


def test_a_stronger_fault_is_news(build: Build) -> None:
    world = no_reboot(build)
    wait(world, 600)
    ask_reboot(world)
    wait(world, 60)
    assert world.ends == ["ESCALATED"] and last(world)["outcome"] == "HELD"
    fall_off(world)
    wait(world, 900)
    assert world.ends == ["ESCALATED", "HEALED"] and SICK in world.terminated


def test_its_own_end_is_news(build: Build) -> None:
    world = no_reboot(build)
    wait(world, 600)
    world.lose(SICK)
    wait(world, 900)
    assert world.ends == ["ESCALATED", "HEALED"] and world.job["state"] == "RUNNING"


def test_a_persons_order_passes_and_begins_the_count_anew(build: Build) -> None:
    world = no_replacement_passes(build)
    fall_off(world)
    wait(world, 60)
    world.check_passes = lambda node: True  # the image is mended
    world.start("heal_node", {"node_id": SICK, "action": "replace", "reason": "new image"})
    wait(world, 900)
    assert world.ends == ["ESCALATED", "HEALED"] and world.job["state"] == "RUNNING"
    new = world.node(SICK)["replaced_by"]
    assert world.node(new)["replacements"] == []
    wait(world, 600)
    fall_off(world, new)
    wait(world, 900)
    assert world.ends == ["ESCALATED", "HEALED", "HEALED"]


@pytest.mark.parametrize("slow", [False, True])
def test_a_node_that_a_person_has_readmitted_by_hand_is_healed_again(build: Build, slow: bool) -> None:
    world = no_reboot(build)
    del world.fleet.__dict__["reboot"]
    world.scheduler.state.nodes["demo-1"].isolated = None
    poll, asked = world.scheduler.poll, dict[str, int]()

    def later(ticket: str) -> Answer:
        answer = poll(ticket)
        if isinstance(world.scheduler.requests[-1], NodeQuery) and asked.setdefault(ticket, 0) < 20:
            asked[ticket] += 1
            return Answer(AnswerState.PENDING)
        return answer

    if slow:
        world.scheduler.poll = later  # type: ignore[method-assign]
    wait(world, 900)
    assert "isolation" not in world.node(SICK)
    ask_reboot(world)
    wait(world, 900)
    assert world.ends == ["ESCALATED", "HEALED"]


def test_one_that_somebody_else_has_isolated_meanwhile_stays_as_it_is(build: Build) -> None:
    world = no_reboot(build)
    world.scheduler.state.foreign_isolate("demo-1", "cables", "root")
    wait(world, 900)
    assert "isolation" in world.node(SICK)


def test_what_was_given_back_in_good_order_is_no_replacement() -> None:
    row = {"opened_at": 10.0, "replacements": [1.0, 11.0, 12.0, 13.0]}
    assert replacement_rows.without_unused(row) == [1.0]
    assert replacement_rows.without_unused({**row, "replacements_lost": 2}) == [1.0, 11.0, 12.0]


# --- a fault on a replacement before its admission ----------------------------------------------------


def launched(build: Build, **policy: Any) -> tuple[World, str]:
    world = build(cluster(**policy))
    fall_off(world)
    world.run(300, until=lambda: bool(world.launched))
    world.clock.advance(5)
    return world, str(world.launched[0])


def under_maintenance(world: World) -> None:
    windows = (Window(world.now - 1, world.now + 7200, reason="new cables"),)
    policy = dataclasses.replace(world.gw.cluster.policy, maintenance=windows)
    world.gw.cluster = dataclasses.replace(world.gw.cluster, policy=policy)


def test_one_that_would_be_held_is_lost_to_its_incident_all_the_same(build: Build) -> None:
    world, lost = launched(build, max_replacements=1)
    fall_off(world, lost)
    wait(world, 900)
    assert world.ends == ["HEALED"] and len(world.launched) == 2
    assert lost in world.terminated and world.notices.sent == []
    assert last(world, lost)["outcome"] != "HELD"


def test_also_during_maintenance(build: Build) -> None:
    world, lost = launched(build)
    under_maintenance(world)
    fall_off(world, lost)
    wait(world, 900)
    assert world.ends == ["HEALED"] and lost in world.terminated and "held_since" not in world.node(lost)


def test_but_not_where_a_person_wants_the_instance_left_alone(build: Build) -> None:
    world, new = launched(build)
    world.gw.ledger.note_node(new, {"opted_out": True})
    world.judge(events.xid(new, 79, world.now - 1))
    assert "lost" not in world.node(new) and last(world, new)["outcome"] == "HELD"


def test_a_spare_that_was_taken_is_lost_and_one_that_stands_by_is_held(build: Build) -> None:
    world = filled(build, 2)
    world.boots = False
    fall_off(world)
    world.run(300, until=lambda: entered(world, "Wait for the node"))
    taken = str(world.node(SICK)["replacement_id"])
    spares = {row["node_id"]: row["spare"]["state"] for row in world.gw.ledger.nodes() if "spare" in row}
    assert spares.pop(taken) == "TAKEN" and set(spares.values()) == {"FREE"}
    under_maintenance(world)
    for node in (taken, *spares):
        world.judge(events.xid(node, 79, world.now - 1))
    assert world.node(taken)["lost"] and last(world, taken)["outcome"] == "JOINED"
    for node in spares:
        assert world.node(node)["held_since"] and "lost" not in world.node(node)


def test_one_whose_launch_is_not_recorded_yet_is_lost_too(build: Build) -> None:
    world, new = launched(build)
    row = world.node(SICK)
    number = {"number": row["launch"]["number"], "token": row["launch"]["token"]}
    world.gw.table.write(row["pk"], row["sk"], {"launch": number}, ("replacement_id",))
    world.judge(events.xid(new, 79, world.now - 1))
    assert world.node(new)["lost"] and last(world, new)["outcome"] == "JOINED"


# --- a replacement whose incident is over -------------------------------------------------------------


def forgotten(build: Build, cancelled_at: float = 0.3) -> tuple[World, str]:
    """Launched, then its incident is cancelled, and the next one of the node goes another way."""
    world = build()
    world.send(events.hyperpod(SICK, *REPLACE, world.now - 1))
    world.run(until=lambda: bool(world.launched) and "replaces" in world.node(world.launched[0]))
    new = str(world.launched[0])
    world.clock.advance(2)
    report_well(world)
    world.clock.advance(cancelled_at)
    return world, new


def test_a_fault_of_one_gives_it_back_and_isolates_nothing(build: Build) -> None:
    world, new = forgotten(build)
    world.judge(events.xid(new, 79, world.now))
    assert world.node(new)["lost"] and last(world, new)["outcome"] == "OBSERVED"
    assert "so sweep gives it back" in str(last(world, new)["reason"])
    wait(world, 900)
    assert new in world.terminated and world.ends == ["CANCELLED"] and not world.isolated
    assert world.scheduler.state.nodes["demo-1"].node_id == SICK and world.job["state"] == "RUNNING"


def test_a_reboot_that_follows_leaves_none_and_the_healed_node_keeps_its_name(build: Build) -> None:
    world, new = forgotten(build)
    world.send(events.xid(SICK, 48, world.now + 1))
    wait(world, 3000)
    world.clock.advance(1000)
    fall_off(world, new)
    wait(world, 3000)
    assert world.scheduler.state.nodes["demo-1"].node_id == SICK and SICK in world.alive
    assert new not in world.alive and JOB in world.scheduler.state.jobs
    assert "HEALED" in world.ends and world.isolated == {}


def unknown_to_its_node(build: Build) -> tuple[World, str]:
    """The node's row has forgotten the launch, so that nobody but sweep would end the instance."""
    world, new = forgotten(build)
    row = world.node(SICK)
    world.gw.table.write(row["pk"], row["sk"], removes=("launch", "replacement_id", "isolation_asked"))
    wait(world, 600)
    assert new in world.alive and world.ends == ["CANCELLED"]
    return world, new


@pytest.mark.parametrize("before", [True, False])
def test_sweep_ends_it_also_if_it_dies_at_that(build: Build, before: bool) -> None:
    world, new = unknown_to_its_node(build)
    world.kill("sweep", "fleet.terminate", before=before)
    fall_off(world, new)
    wait(world, 600)
    assert new in world.terminated and world.node(new)["gone"]
    assert world.ends == ["CANCELLED"] and set(NODES) <= set(world.alive) and mails(world) == []
    called = len(world.fleet.calls)
    wait(world, 600)
    assert [call for call in world.fleet.calls[called:] if call[0] == "terminate"] == []


def test_one_that_has_a_name_of_its_own_is_a_node_as_any_other(build: Build) -> None:
    world, new = unknown_to_its_node(build)
    world.gw.ledger.note_node(new, {"name": "demo-9"})
    world.judge(events.xid(new, 79, world.now))
    assert last(world, new)["outcome"] == "OPENED" and "lost" not in world.node(new)
