"""A replacement that is lost before it was ready is followed by another, by the incident that launched it."""

from functools import partial

from tests.lambdas import events
from tests.lambdas.test_node_stories import SICK, entered, fall_off
from tests.lambdas.world import World


def more_than(world: World, number: int) -> bool:
    return len(world.launched) > number or bool(world.ends)


def lose_the_first(world: World) -> str:
    world.boots = False
    fall_off(world)
    world.run(until=lambda: entered(world, "Wait for the node"))
    world.boots = True
    return str(world.launched[0])


def test_one_that_is_terminated_while_it_boots(world: World) -> None:
    lost = lose_the_first(world)
    world.lose(lost)
    world.run()
    assert len(world.launched) == 2
    assert lost not in world.alive
    assert world.node(lost)["gone"]
    assert world.ends == ["HEALED"]
    assert world.node(SICK)["replacement_id"] == world.launched[1]
    assert str(world.scheduler.state.jobs["gpt"].state) == "RUNNING"
    assert world.notices.sent == []


def test_one_that_breaks_before_it_is_ready_is_given_back(world: World) -> None:
    lost = lose_the_first(world)
    world.send(events.xid(lost, 79, world.now))
    world.run()
    assert len(world.launched) == 2
    assert lost in world.terminated
    assert world.ends == ["HEALED"]


def test_one_after_the_other_ends_with_a_person(world: World) -> None:
    world.boots = False
    fall_off(world)
    while len(world.launched) < 4:
        known = len(world.launched)
        world.run(30)
        world.lose(world.launched[-1])
        world.run(600, until=partial(more_than, world, known))
    world.lose(world.launched[-1])
    world.run(3000, until=lambda: world.ends == ["ESCALATED"])
    assert world.ends == ["ESCALATED"]
    assert "were lost before they were ready" in world.notices.sent[0][1]
