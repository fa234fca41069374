"""Stories of nodes that are left before EC2 takes them: spot interruptions, rebalance recommendations,
the end of a Capacity Block."""

import dataclasses
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from planaria.core.cluster import Cluster
from planaria.core.offering_rows import OfferingRows
from planaria.core.planned import MARGIN_SECONDS
from planaria.core.tags import OPT_OUT
from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.test_node_stories import SICK, fall_off
from tests.lambdas.test_planned import later, plans
from tests.lambdas.world import JOB, NODES, World, cluster

HOUR = 3600.0
OTHER = NODES[2]
BLOCK = "cr-0ddddddddddddddd4"
SAVE = "planaria-checkpoint-now"


def saves(world: World) -> list[tuple[str, ...]]:
    return [nodes for document, nodes, _ in world.commands.calls if document == SAVE]


def steps(world: World, number: int = 0) -> dict[str, float]:
    """When the incident of this number got to each of its steps, in seconds since it was detected."""
    _, rows = world.gw.ledger.incident(world.incidents[number]["incident_id"])
    at = {str(row["step"]): float(row["at"]) for row in rows}
    return {step: moment - at["detected"] for step, moment in at.items()}


def reasons(world: World, kind: str) -> list[str]:
    rows = [row for (pk, _), row in world.table._rows.items() if pk.startswith("EVENT#")]
    return [str(row["reason"]) for row in rows if row["kind"] == kind]


def groups(world_cluster: Cluster, *offerings: dict[str, Any]) -> Cluster:
    """The cluster with these offerings, tried in this order."""
    [group] = world_cluster.node_groups.values()
    document = {
        "name": world_cluster.name, "region": world_cluster.region, "scheduler": world_cluster.scheduler,
        "policy": {},
        "node_groups": [{"name": group.name, "size": group.size, "launch_template": group.launch_template,
                         "offerings": [{"instance_type": "p5.48xlarge", "subnet": "subnet-1", **one}
                                       for one in offerings]}],
    }  # fmt: skip
    return dataclasses.replace(Cluster.from_document(document), policy=world_cluster.policy)


# --- the two minutes of a spot interruption -------------------------------------------------------------


def of_spot(world: World, *nodes: str) -> None:
    for node in nodes:
        instance = world.fleet.instances[node]
        world.fleet.instances[node] = dataclasses.replace(instance, lifecycle="spot")
        world.gw.ledger.note_node(node, {"lifecycle": "spot", "instance_type": "p5.48xlarge"})


def test_all_that_is_urgent_fits_into_the_two_minutes(build: Build) -> None:
    """The checkpoint is saved and the node is empty long before EC2 takes it; the replacement comes from
    another pool; EC2's own end of the node joins the incident and opens nothing."""
    pools = groups(cluster(), {"capacity": "spot"}, {"capacity": "on-demand"})
    world = build(pools)
    of_spot(world, *NODES)
    start = world.now
    world.interrupt(SICK)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    at = steps(world)
    assert at["checkpoint_asked"] < 5 and at["checkpoint_saved"] < 60 and at["job_stopped"] < 90
    assert at["isolated"] < 90 and at["replacement_launched"] < 30
    assert float(world.commands.calls[0][2]["deadline"]) <= start + 121
    assert world.fleet.instances[world.launched[0]].lifecycle == "on-demand"
    assert world.ends == ["HEALED"]
    assert set(world.outcomes_of("state_change")) <= {"JOINED", "COVERED", "STALE"}
    assert world.scheduler.state.jobs[JOB].resume_step == 35


def test_an_end_that_comes_before_its_replacement_joins_the_incident(world: World) -> None:
    world.boots = False
    world.interrupt(SICK)
    world.run(200, until=lambda: "JOINED" in world.outcomes_of("state_change"))
    assert len(world.incidents) == 1 and world.outcomes_of("state_change") == ["JOINED"]
    world.boots = True
    for node in world.launched:
        world._boot(node)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["HEALED"] and "OPENED" not in world.outcomes_of("state_change")


def test_the_agents_word_and_ec2s_event_are_one_interruption(world: World) -> None:
    notice = {"kind": "spot_notice", "code": "terminate", "deadline": world.now + 120, "count": 1}
    world.send(events.agent(SICK, "Planaria Node Signal", world.now, **notice))
    world.clock.advance(3)
    world.interrupt(SICK)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["HEALED"] and saves(world) == [(SICK,)]


# --- rebalance recommendations: checkpoint --------------------------------------------------------------


def advise(world: World, node: str = SICK) -> None:
    detail = {"instance-id": node}
    world.send(events.event("aws.ec2", "EC2 Instance Rebalance Recommendation", detail, world.now))


def test_its_job_saves_at_once_and_works_on(world: World) -> None:
    advise(world)
    world.run()
    world.assert_healed()
    assert saves(world) == [(SICK,)] and world.outcomes_of("rebalance") == ["OBSERVED"]
    [(_, _, parameters)] = [call for call in world.commands.calls if call[0] == SAVE]
    assert parameters["job_id"] == JOB and float(parameters["deadline"]) > world.now - 300
    assert "saves a checkpoint now" in reasons(world, "rebalance")[0]
    assert world.incidents == []


def test_once_for_the_job_within_the_cool_down(world: World) -> None:
    for node in (SICK, OTHER, SICK):
        advise(world, node)
        world.clock.advance(30)
    assert saves(world) == [(SICK,)] and "was asked for a checkpoint" in reasons(world, "rebalance")[-1]
    world.clock.advance(600)
    advise(world, OTHER)
    assert saves(world) == [(SICK,), (OTHER,)]


@pytest.mark.parametrize(
    ("policy", "mode"),
    [({"rebalance": "ignore"}, "act"), ({}, "observe"), ({"rebalance": "move"}, "observe")],
)
def test_nothing_is_asked_where_the_policy_says_so(build: Build, policy: dict[str, Any], mode: str) -> None:
    world = build(cluster(mode, **policy))
    advise(world)
    world.run()
    assert world.commands.calls == [] and world.incidents == []


def test_a_node_without_a_job_has_nothing_to_save(build: Build) -> None:
    world = build(job=False)
    advise(world)
    assert world.commands.calls == [] and "no job runs on it" in reasons(world, "rebalance")[0]


def test_a_hint_that_cannot_be_heeded_is_no_dead_letter(world: World) -> None:
    world.commands.reachable = False
    advise(world)
    world.run()
    assert world.dead_letters == [] and "could not be asked" in reasons(world, "rebalance")[0]
    world.commands.reachable = True
    advise(world)
    assert saves(world) == [(SICK,)]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_the_checkpoint_is_asked_for_whatever_dies(build: Build, before: bool) -> None:
    first = build()
    advise(first)
    for number in range(len(first.effects)):
        world = build()
        world.kill_at(number, before=before)
        advise(world)
        world.run()
        world.assert_healed()
        assert saves(world) and world.incidents == [] and world.outcomes_of("rebalance") == ["OBSERVED"]


# --- rebalance recommendations: move ---------------------------------------------------------------------


def moving(build: Build, **policy: Any) -> World:
    pools = groups(cluster(rebalance="move", **policy), {"capacity": "spot"}, {"capacity": "on-demand"})
    world = build(pools)
    of_spot(world, *NODES)
    for node in NODES:
        old = world.now - 2 * HOUR
        world.fleet.instances[node] = dataclasses.replace(world.fleet.instances[node], launched_at=old)
        world.gw.ledger.note_node(node, {"launched_at": old})
    return world


def test_a_move_saves_and_replaces_from_another_offering(build: Build) -> None:
    world = moving(build)
    advise(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    [incident] = world.incidents
    assert (incident["action"], incident["rule"], incident["outcome"]) == (
        "DRAIN",
        "rebalance-move",
        "HEALED",
    )
    [new] = world.launched
    assert world.fleet.instances[new].lifecycle == "on-demand" and world.terminated == [SICK]
    assert world.scheduler.state.jobs[JOB].resume_step == 35
    assert len(world.node(new)["moves"]) == 1 and world.node(new)["replacements"] == []


def test_a_young_node_is_not_moved_and_its_job_saves(build: Build) -> None:
    world = moving(build)
    world.gw.ledger.note_node(SICK, {"launched_at": world.now - 600})
    advise(world)
    world.run()
    world.assert_healed()
    assert world.incidents == [] and saves(world) == [(SICK,)]
    assert "10 min old, and none is moved before 1 h" in reasons(world, "rebalance")[0]


def test_a_name_that_was_moved_often_enough_stays(build: Build) -> None:
    world = moving(build)
    node = SICK
    for _ in range(2):
        advise(world, node)
        world.run()
        node = world.node(node)["replaced_by"]
        world.clock.advance(2 * HOUR)
    assert world.ends == ["HEALED", "HEALED"] and len(world.node(node)["moves"]) == 2
    before = len(saves(world))
    advise(world, node)
    world.run()
    assert world.ends == ["HEALED", "HEALED"] and saves(world)[before:] == [(node,)]
    assert "was moved 2 times within 24 h" in reasons(world, "rebalance")[-1]
    world.clock.advance(24 * HOUR)
    advise(world, node)
    world.run()
    assert len(world.ends) == 3
    world.assert_healed(replaced=3, resumed=3)


def test_a_node_whose_pool_is_the_only_one_is_not_moved(build: Build) -> None:
    """Its replacement would come from the pool that EC2 wants back."""
    world = build(groups(cluster(rebalance="move"), {"capacity": "spot"}))
    of_spot(world, *NODES)
    world.gw.ledger.note_node(SICK, {"launched_at": world.now - 2 * HOUR})
    advise(world)
    world.run()
    world.assert_healed()
    assert world.incidents == [] and saves(world) == [(SICK,)]
    assert "node group workers lists no other offering" in reasons(world, "rebalance")[0]


def test_a_node_is_not_moved_where_no_other_offering_had_capacity_lately(build: Build) -> None:
    """A hint must not stop a job that works."""
    world = moving(build)
    other = world.gw.cluster.group("workers").offerings[1]
    until = world.now + 600
    OfferingRows(world.gw.table).cool("workers", other.key, OTHER, "no capacity", world.now, until)
    advise(world)
    world.run()
    world.assert_healed()
    assert world.incidents == [] and saves(world) == [(SICK,)]
    assert "no other offering of node group workers had capacity lately" in reasons(world, "rebalance")[0]
    world.clock.advance(660)
    advise(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)


def test_two_words_of_one_advice_move_once(build: Build) -> None:
    world = moving(build)
    advise(world)
    world.clock.advance(1)
    world.send(
        events.agent(SICK, "Planaria Node Signal", world.now, kind="rebalance", code="rebalance", count=1)
    )
    advise(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["HEALED"]


def test_an_interruption_during_the_move_goes_on_with_its_launch(build: Build) -> None:
    world = moving(build)
    world.boots = False
    advise(world)
    world.run(60, until=lambda: bool(world.launched))
    world.clock.advance(2)
    world.interrupt(SICK)
    world.boots = True
    for node in world.launched:
        world._boot(node)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["SUPERSEDED", "HEALED"]


def test_the_breaker_bounds_moves_too(build: Build) -> None:
    world = moving(build, breaker={"max_removals": 1, "max_share": 0.25, "window_seconds": 3600})
    world.limit_breaker(1)
    advise(world)
    advise(world, OTHER)
    world.run()
    assert len(world.launched) == 1 and world.node(OTHER)["held"]


def test_a_persons_answer_goes_before_the_policy(build: Build) -> None:
    stay = {"kind": "rebalance", "code": "*", "action": "MONITOR", "reason": "ours are never taken"}
    world = moving(build, catalog=[stay])
    advise(world)
    world.run()
    world.assert_healed()
    assert world.incidents == [] and saves(world) == []


# --- the end of a Capacity Block --------------------------------------------------------------------------


def expiring(world: World, end: float) -> str:
    """EC2's warning: it names the block, and no node."""
    date = datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    detail = {"capacity-reservation-id": BLOCK, "end-date": date}
    return events.event("aws.ec2", "Capacity Block Reservation Expiration Warning", detail, world.now)


def in_block(build: Build, *nodes: str, **policy: Any) -> World:
    block = {"capacity": "capacity-block", "reservation": BLOCK, "launch_template": f"planaria-{BLOCK}"}
    world = build(groups(cluster(**policy), block, {"capacity": "on-demand"}))
    for node in nodes:
        world.fleet.instances[node] = dataclasses.replace(world.fleet.instances[node], reservation=BLOCK)
        world.gw.ledger.note_node(node, {"reservation": BLOCK})
    return world


def test_its_nodes_are_empty_before_ec2_begins_to_take_them(build: Build) -> None:
    """The warning comes 40 minutes before the end, ten before EC2 terminates."""
    world = in_block(build, SICK, OTHER)
    taken = world.now + 600
    world.send(expiring(world, taken + 1800))
    world.run()
    world.assert_healed(replaced=2, resumed=1)
    assert world.ends == ["HEALED", "HEALED"]
    assert {row["node_id"] for row in world.incidents} == {SICK, OTHER}
    for number in range(2):
        at, detected = steps(world, number), world.incidents[number]["detected_at"]
        assert detected + max(at["isolated"], at["job_stopped"]) < taken
    assert {world.fleet.instances[node].lifecycle for node in world.launched} == {"on-demand"}
    assert world.scheduler.state.jobs[JOB].resume_step == 35
    fault = world.node(SICK)["fault"]
    assert (fault["reservation"], fault["deadline"]) == (BLOCK, pytest.approx(taken, abs=1))


def test_a_word_that_comes_hours_before_drains_no_node_too_early(build: Build) -> None:
    """What is paid for is used, as far as the drain allows; an idle node too, for it costs the same."""
    world = in_block(build, SICK, OTHER)
    taken = world.now + 6 * HOUR
    world.send(expiring(world, taken + 1800))
    world.run()
    assert world.incidents == [] and world.outcomes_of("capacity_end") == ["HELD", "HELD"]
    latest = taken - world.gw.cluster.policy.drain_deadline_seconds - MARGIN_SECONDS
    assert [plan["latest"] for plan in plans(world).values()] == [pytest.approx(latest, abs=1)]
    world.notices.sent.clear()
    later(world, latest - 300 - world.now)
    assert world.incidents == []
    later(world, 240)
    world.assert_healed(replaced=2, resumed=1)
    assert all(latest - 1 <= row["opened_at"] <= latest + 180 for row in world.incidents)
    assert sorted(world.outcomes_of("capacity_end")) == ["HELD", "HELD", "OPENED", "OPENED"]


def test_a_block_that_is_named_at_the_top_of_its_event_alone(build: Build) -> None:
    """As one of AWS's pages prints it; what sweep tells again has no such place."""
    world = in_block(build, SICK)
    event = json.loads(expiring(world, world.now + 6 * HOUR))
    del event["detail"]["capacity-reservation-id"]
    world.send(json.dumps(event | {"customer_event_id": f"{BLOCK}-approaching-expiry"}))
    world.notices.sent.clear()
    later(world, 5.4 * HOUR)
    world.assert_healed(replaced=1, resumed=1)
    assert world.node(SICK)["fault"]["reservation"] == BLOCK


def test_the_warning_hurries_on_what_was_planned(build: Build) -> None:
    """Should the end have come nearer: the newest date counts."""
    world = in_block(build, SICK)
    world.send(expiring(world, world.now + 9 * HOUR))
    world.notices.sent.clear()
    later(world, HOUR)
    world.send(expiring(world, world.now + 2400))
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["HEALED"]


def test_a_block_holds_for_no_breaker_and_no_maintenance(build: Build) -> None:
    world = in_block(build, SICK, maintenance=[{"weekly": "mon 00:00", "hours": 168}])
    world.limit_breaker(1)
    fall_off(world, OTHER)
    world.send(expiring(world, world.now + 6 * HOUR))
    assert world.incidents == []
    later(world, 5.5 * HOUR)
    assert [row["node_id"] for row in world.incidents] == [SICK] and world.ends == ["HEALED"]


def test_an_opted_out_node_of_a_block_is_told_of_to_triage_no_more_than_it_must(build: Build) -> None:
    world = in_block(build, SICK, OTHER)
    instance = world.fleet.instances[SICK]
    world.fleet.instances[SICK] = dataclasses.replace(instance, tags={**instance.tags, OPT_OUT: "true"})
    world.gw.ledger.note_node(SICK, {"opted_out": True})
    world.send(expiring(world, world.now + 2400))
    world.run()
    events_before = len(world.outcomes_of("capacity_end"))
    assert [row["node_id"] for row in world.incidents] == [OTHER] and OPT_OUT in world.node(SICK)[
        "held_reason"
    ]
    later(world, 300)
    assert len(world.outcomes_of("capacity_end")) == events_before
