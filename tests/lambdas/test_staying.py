"""Planned ends of a node that works: it goes on working until its replacement is ready, for a job that is
stopped while there is no capacity stands still for nothing."""

from typing import Any

import pytest

from planaria.core.errors import CapacityError
from planaria.core.planned import MARGIN_SECONDS
from tests.lambdas.conftest import Build
from tests.lambdas.test_leaving import HOUR, OTHER, advise, moving, saves, steps
from tests.lambdas.test_node_stories import SICK, fall_off
from tests.lambdas.test_planned import DAY, closed, health
from tests.lambdas.world import JOB, World, cluster

ENDS = 10 * HOUR
"""Less than the lead: the drain begins at once."""


def retire(world: World, node: str = SICK) -> float:
    """AWS announces the end of this node; when that is."""
    ends = world.now + ENDS
    world.send(health(node, ends, world.now, arn=f"arn:{node}"))
    return ends


def no_capacity(world: World, until: float = float("inf")) -> None:
    def refuse(request: Any) -> CapacityError | None:
        return CapacityError("InsufficientInstanceCapacity") if world.now < until else None

    world.fleet.refuse = refuse


def go_by(world: World, seconds: float) -> None:
    """Minute by minute, unlike a jump of the clock."""
    end = world.now + seconds
    world.run(seconds)
    world.clock.advance(max(0.0, end - world.now))


def works(world: World) -> bool:
    job = world.scheduler.state.jobs[JOB]
    return str(job.state) == "RUNNING" and job.attempt == 1 and world.isolated == {}


def test_the_job_works_on_until_the_replacement_is_ready(build: Build) -> None:
    world = build()
    retire(world)
    world.run(600, until=lambda: bool(world.launched))
    assert works(world) and not world.job["pending"]
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    at = steps(world)
    assert at["replacement_launched"] + 20 <= at["isolated"] <= at["job_stopped"]
    assert world.scheduler.state.jobs[JOB].resume_step == 35 and saves(world) == [(SICK,)]


def test_it_works_on_while_there_is_no_capacity(build: Build) -> None:
    world = build()
    no_capacity(world, until=world.now + 3 * HOUR)
    retire(world)
    go_by(world, 2.9 * HOUR)
    assert works(world) and world.launched == [] and not world.job["pending"]
    go_by(world, HOUR)
    world.assert_healed(replaced=1, resumed=1)
    assert steps(world)["isolated"] > 3 * HOUR


def test_without_capacity_it_is_drained_in_time_before_its_end(build: Build) -> None:
    world = build()
    no_capacity(world)
    ends, policy = retire(world), world.gw.cluster.policy
    due = ends - policy.drain_deadline_seconds - MARGIN_SECONDS
    go_by(world, due - world.now - 60)
    assert works(world)
    go_by(world, 300)
    assert world.isolated and str(world.scheduler.state.jobs[JOB].state) == "STOPPED"
    assert world.now < ends - 60 and saves(world) == [(SICK,)]
    world.fleet.refuse = lambda request: None
    go_by(world, HOUR)
    world.assert_healed(replaced=1, resumed=1)
    assert world.scheduler.state.jobs[JOB].resume_step == 35


def test_a_job_that_fails_meanwhile_goes_on_at_once(build: Build) -> None:
    """On all of its nodes: this one works as well as before."""
    world = build()
    no_capacity(world, until=world.now + 3 * HOUR)
    retire(world)
    go_by(world, HOUR)
    world.scheduler.end_ranks(JOB, -9, 2)
    go_by(world, 600)
    job = world.scheduler.state.jobs[JOB]
    assert (str(job.state), job.attempt) == ("RUNNING", 2) and SICK in job.placement
    go_by(world, 3 * HOUR)
    world.assert_healed(replaced=1, resumed=2)


def test_a_job_that_ends_meanwhile_is_not_touched(build: Build) -> None:
    world = build()
    no_capacity(world, until=world.now + 3 * HOUR)
    retire(world)
    go_by(world, HOUR)
    world.scheduler.end_ranks(JOB, 0)
    go_by(world, 4 * HOUR)
    assert world.ends == ["HEALED"] and world.attempts == [] and world.job["state"] == "COMPLETED"
    assert world.terminated == [SICK] and world.isolated == {}


def test_a_fault_meanwhile_goes_on_with_its_launch(build: Build) -> None:
    world = build()
    world.boots = False
    retire(world)
    world.run(600, until=lambda: bool(world.launched))
    fall_off(world)
    world.run(60)
    assert world.isolated
    world.boots = True
    for node in world.launched:
        world._boot(node)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["SUPERSEDED", "HEALED"]


def test_a_replacement_that_does_not_come_up_is_followed_by_another(build: Build) -> None:
    world = build(cluster(boot_timeout_seconds=600.0))
    world.boots = False
    retire(world)
    world.run(600, until=lambda: bool(world.launched))
    go_by(world, 500)
    assert works(world) and len(world.launched) == 1
    world.boots = True
    go_by(world, HOUR)
    world.assert_healed(replaced=2, resumed=1)
    assert sorted(world.terminated) == sorted([SICK, world.launched[0]])


def test_replacements_that_never_come_up_leave_the_node_at_work_and_call_a_person(build: Build) -> None:
    world = build(cluster(boot_timeout_seconds=300.0))
    world.boots = False
    retire(world)
    go_by(world, 4 * HOUR)
    assert world.ends == ["ESCALATED"] and works(world) and len(world.launched) <= 5
    assert set(world.terminated) == set(world.launched)
    [(_, text)] = [mail for mail in world.notices.sent if "needs you" in mail[0]]
    assert "replacements were lost" in text and "is NOT isolated" in text


def test_taken_back_meanwhile_nothing_has_happened(build: Build) -> None:
    world = build()
    no_capacity(world)
    ends = world.now + ENDS
    world.send(health(SICK, ends, world.now))
    go_by(world, HOUR)
    closed(world, ends)
    go_by(world, HOUR)
    assert world.ends == ["CANCELLED"] and works(world) and world.launched == []
    go_by(world, DAY)
    assert world.ends == ["CANCELLED"] and works(world)


def test_two_planned_ends_of_one_job_stop_it_once_each_with_its_replacement(build: Build) -> None:
    world = build()
    no_capacity(world, until=world.now + HOUR)
    retire(world, SICK)
    retire(world, OTHER)
    go_by(world, 0.9 * HOUR)
    assert works(world)
    go_by(world, 2 * HOUR)
    world.assert_healed(replaced=2, resumed=len(world.attempts))
    assert 1 <= len(world.attempts) <= 2


def test_a_hint_without_capacity_stops_nothing(build: Build) -> None:
    """It is only likely that EC2 takes the node: the job saves at once, and nothing else comes of it."""
    world = moving(build)
    no_capacity(world)
    advise(world)
    go_by(world, 2 * HOUR)
    assert world.ends == ["CANCELLED"] and works(world) and world.launched == []
    assert saves(world) == [(SICK,)] and world.notices.sent == []
    assert "nowhere to move it to" in world.incidents[0]["outcome_reason"]


def test_an_idle_node_is_taken_out_at_once(build: Build) -> None:
    """Nobody's job stands still, and none is to begin there."""
    world = build(job=False)
    no_capacity(world)
    retire(world)
    go_by(world, 300)
    assert world.isolated


def test_a_person_who_orders_it_is_not_kept_waiting(world: World) -> None:
    no_capacity(world, until=world.now + HOUR / 2)
    world.start("heal_node", {"node_id": SICK, "action": "replace", "reason": "slow"})
    world.run(120)
    assert world.isolated
    world.run(2 * HOUR)
    world.assert_healed(replaced=1, resumed=1)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_any_effect_may_be_the_last_one(build: Build, before: bool) -> None:
    def begin() -> World:
        world = build()
        no_capacity(world, until=world.now + 600)
        return world

    first = begin()
    retire(first)
    first.run(HOUR)
    first.assert_healed(replaced=1, resumed=1)
    for number in range(len(first.effects)):
        world = begin()
        world.kill_at(number, before=before)
        retire(world)
        world.run(2 * HOUR)
        world.assert_healed(replaced=1, resumed=1)
        assert world.ends == ["HEALED"], number


def test_weeks_of_waiting_fit_into_executions(build: Build) -> None:
    """A lead of a week without capacity: the incident goes on in new executions and stops nothing."""
    world = build(cluster(lead_seconds=7 * DAY))
    no_capacity(world)
    ends = world.now + 6 * DAY
    world.send(health(SICK, ends, world.now))
    go_by(world, 5 * DAY)
    assert works(world) and world.node(SICK)["continued"] >= 3
    world.fleet.refuse = lambda request: None
    go_by(world, HOUR)
    world.assert_healed(replaced=1, resumed=1)
