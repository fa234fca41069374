"""How a node is emptied: its jobs are let finish, or save first, or are stopped; and the deadline."""

import pytest

from planaria.core.scheduling import Lost
from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.test_node_stories import SICK, fall_off
from tests.lambdas.world import JOB, World, cluster

DEADLINE = 600.0


def retire(world: World) -> None:
    """AWS retires the instance now: a planned end of a node that works."""
    world.send(events.retirement(SICK, world.now - 1))


def stopped_at(world: World) -> float:
    """Seconds from the isolation until the job had been stopped."""
    [name] = [row["incident_id"] for row in world.incidents]
    _, steps = world.gw.ledger.incident(name)
    at = {str(step["step"]): float(step["at"]) for step in steps}
    return at["job_stopped"] - at["isolated"]


def test_a_planned_end_saves_first_and_then_stops(build: Build) -> None:
    world = build(cluster(drain_deadline_seconds=DEADLINE))
    retire(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.scheduler.state.jobs[JOB].resume_step == 35 and stopped_at(world) < 60


def test_a_planned_end_may_stop_at_once(build: Build) -> None:
    world = build(cluster(drain="stop", drain_deadline_seconds=DEADLINE))
    retire(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.scheduler.state.jobs[JOB].resume_step == 30


def test_jobs_are_let_finish(build: Build) -> None:
    """The job comes to its own end within the deadline: nothing is saved, stopped or resumed."""
    world = build(cluster(drain="wait", drain_deadline_seconds=DEADLINE))
    retire(world)
    world.at(200.0, lambda: world.scheduler.end_ranks(JOB, 0))
    world.run()
    assert world.ends == ["HEALED"] and world.terminated == [SICK]
    assert world.job["state"] == "COMPLETED" and world.attempts == []
    assert not [call for call in world.commands.calls if call[0] == "planaria-checkpoint-now"]


def test_jobs_that_do_not_finish_in_time_save_and_stop(build: Build) -> None:
    world = build(cluster(drain="wait", drain_deadline_seconds=DEADLINE))
    retire(world)
    world.run(3000)
    world.assert_healed(replaced=1, resumed=1)
    assert world.scheduler.state.jobs[JOB].resume_step == 35
    assert 0.8 * DEADLINE <= stopped_at(world) <= DEADLINE + 120


def test_a_broken_node_is_not_waited_for(build: Build) -> None:
    world = build(cluster(drain="wait", drain_deadline_seconds=DEADLINE))
    fall_off(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert stopped_at(world) < 60


def test_a_node_that_is_never_empty_is_given_up_at_the_deadline(world: World) -> None:
    """Ranks that no signal ends: the node is terminated past the deadline, and not before."""
    world.scheduler.stubborn = True
    fall_off(world)
    world.run(500)
    assert world.terminated == [] and not [r for r in world.scheduler.requests if isinstance(r, Lost)]
    world.run(1500, until=lambda: bool(world.terminated))
    [lost] = [r for r in world.scheduler.requests if isinstance(r, Lost)]
    assert lost.nodes == ("demo-1",) and world.terminated == [SICK]
    assert world.incidents[0]["drained_by_force"] == JOB


@pytest.mark.parametrize("drain", ["wait", "checkpoint", "stop"])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_any_effect_of_a_drain_may_be_the_last_one(build: Build, drain: str, before: bool) -> None:
    def begin() -> World:
        world = build(cluster(drain=drain, drain_deadline_seconds=60.0))
        retire(world)
        return world

    first = begin()
    first.run()
    first.assert_healed(replaced=1, resumed=1)
    for number in range(len(first.effects)):
        world = begin_killed(build, drain, number, before)
        world.run()
        world.assert_healed(replaced=1, resumed=1)
        assert world.ends == ["HEALED"], number


def begin_killed(build: Build, drain: str, number: int, before: bool) -> World:
    world = build(cluster(drain=drain, drain_deadline_seconds=60.0))
    world.kill_at(number, before=before)
    retire(world)
    return world


def test_a_foreign_isolation_during_the_wait_is_left_alone(build: Build) -> None:
    world = build(cluster(drain="wait", drain_deadline_seconds=DEADLINE))
    retire(world)
    world.at(100.0, lambda: world.scheduler.state.foreign_isolate("demo-1", "maintenance", by="bob"))
    world.at(200.0, lambda: world.scheduler.end_ranks(JOB, 0))
    world.run()
    assert world.isolated == {"demo-1": "maintenance"} and world.ends == ["ESCALATED"]
    assert SICK in world.alive and world.terminated == world.launched
