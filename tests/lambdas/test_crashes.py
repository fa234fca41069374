"""Whatever call is the last one that a Lambda gets to do, the story ends as it would have.

Every effect of a story (a write, a launch, a submit, a start...) is made the last one, once before it
happens and once right after; Step Functions, SQS and sweep then do what they do.
"""

from collections.abc import Callable

import pytest

from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.test_node_stories import SICK, ask_reboot, fall_off
from tests.lambdas.world import JOB, NODES, World


def xid(world: World) -> None:
    fall_off(world)


def reboot(world: World) -> None:
    ask_reboot(world)


def spot(world: World) -> None:
    world.interrupt(SICK)


def gone(world: World) -> None:
    world.lose(SICK, tell=False)


def console(world: World) -> None:
    world.start("heal_node", {"node_id": SICK, "action": "replace", "reason": "by hand"})


STORIES: dict[str, tuple[Callable[[World], None], int]] = {
    "xid": (xid, 1), "reboot": (reboot, 0), "spot": (spot, 1), "gone": (gone, 1), "console": (console, 1),
}  # fmt: skip


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("story", STORIES)
def test_any_effect_may_be_the_last_one(build: Build, story: str, before: bool) -> None:
    begin, replaced = STORIES[story]
    world = build()
    begin(world)
    world.run()
    world.assert_healed(replaced=replaced, resumed=1)
    wrong = {}
    for number, (function, call) in enumerate(world.effects):
        other = build()
        other.kill_at(number, before=before)
        begin(other)
        other.run()
        try:
            other.assert_healed(replaced=replaced, resumed=1)
            assert other.ends == ["HEALED"], other.ends
        except AssertionError as error:
            wrong[f"{number}: {function} {call}"] = str(error).partition("\n")[0]
    assert wrong == {}


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_process_crash_ends_in_one_resume_whatever_dies(build: Build, before: bool) -> None:
    def begin(world: World) -> World:
        world.scheduler.end_ranks(JOB, -9, 2)
        world.run()
        return world

    for number in range(len(begin(build()).effects)):
        world = build()
        world.kill_at(number, before=before)
        begin(world)
        assert str(world.scheduler.state.jobs[JOB].state) == "RUNNING" and world.attempts == [2], number
        assert world.incidents == [] and world.notices.sent == []


@pytest.mark.parametrize("story", STORIES)
def test_every_task_delivered_twice_does_everything_once(build: Build, story: str) -> None:
    begin, replaced = STORIES[story]
    world = build()
    functions = (
        "begin_incident handle_spot_interruption isolate_node launch_replacement await_node reboot_node"
    )
    functions += " admit_node retire_node tell_job close_incident begin_resume choose_checkpoint requeue_job"
    world.twice = set(f"{functions} await_steps close_resume".split())
    begin(world)
    world.run()
    world.assert_healed(replaced=replaced, resumed=1)
    assert world.ends == ["HEALED"]
    launches = [call for call in world.fleet.calls if call[0] == "launch"]
    reboots = [call for call in world.fleet.calls if call[0] == "reboot"]
    assert (len(launches), len(reboots)) == (replaced, 1 - replaced)
    if story in ("spot", "console"):
        asked = [call for call in world.commands.calls if call[0] == "planaria-checkpoint-now"]
        assert len(asked) == 1


def test_a_process_crash_delivered_twice_is_resumed_once(world: World) -> None:
    world.twice = {"begin_resume", "choose_checkpoint", "requeue_job", "await_steps", "close_resume"}
    world.scheduler.end_ranks(JOB, -9, 2)
    world.run()
    world.assert_healed(replaced=0, resumed=1)


def test_an_event_twice_at_once_and_once_more_after_the_end(world: World) -> None:
    text = events.spot(SICK, world.now)
    world.send(text)
    world.send(text)
    world.run()
    world.send(text)
    world.run()
    world.assert_healed(replaced=1, resumed=1)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_two_nodes_are_resumed_once_whichever_task_dies(build: Build, before: bool) -> None:
    """Only a triage that dies before it has written anything leaves nobody who knows of its node: the job is
    resumed on it, and once more."""

    def begin(world: World) -> World:
        fall_off(world)
        fall_off(world, NODES[2])
        world.run()
        return world

    twice = []
    for number, (function, call) in enumerate(begin(build()).effects):
        world = build()
        world.kill_at(number, before=before)
        begin(world)
        world.run()
        if len(world.attempts) == 2:
            twice.append(f"{function} {call}")
        assert world.ends == ["HEALED", "HEALED"], (number, function, call)
        world.assert_healed(replaced=2, resumed=len(world.attempts))
    assert twice == (["triage table.write"] * 2 if before else [])


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_an_isolation_and_a_launch_by_hand_end_right_whatever_dies(build: Build, before: bool) -> None:
    def begin(world: World) -> World:
        world.start("isolate_node", {"node_id": SICK, "reason": "inspect the cables"}, "isolate")
        world.run()
        assert (world.ends, world.attempts) == (["RETIRED"], [])
        world.start("launch_replacement", {"node_id": SICK, "reason": "go on"}, "launch")
        world.run()
        return world

    for number in range(len(begin(build()).effects)):
        world = build()
        world.kill_at(number, before=before)
        begin(world)
        assert (world.ends, world.attempts) == (["RETIRED", "HEALED"], [2]), number
        assert SICK in world.alive and len(world.launched) == 1 and world.notices.sent == []
