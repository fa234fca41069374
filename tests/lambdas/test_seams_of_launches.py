"""No instance that an incident launched runs on without work, whatever ends the incident or its execution."""

import itertools
from typing import Any

import pytest

from lambdas import undoing
from planaria.core.errors import CapacityError
from planaria.core.ports import LaunchRequest
from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.test_job_failures import wait
from tests.lambdas.test_node_stories import REPLACE, SICK, entered, fall_off, report_well
from tests.lambdas.world import NODES, World, stub


@pytest.mark.parametrize("machine", ["heal_node", "launch_replacement"])
def test_the_second_replacement_may_wait_for_capacity(world: World, machine: str) -> None:
    """The first is lost before it is ready, then EC2 has none for some minutes: the waits use up no round."""
    if machine == "launch_replacement":
        world.start("isolate_node", {"node_id": SICK, "reason": "cables"})
        world.run(600)
        world.start("launch_replacement", {"node_id": SICK, "reason": "go on"}, "second")
    else:
        fall_off(world)
    world.run(300, until=lambda: bool(world.launched))
    tries = itertools.count()

    def launch(request: LaunchRequest) -> Any:
        if next(tries) < 14:
            raise CapacityError("none")
        return real(request)

    real = stub(world.fleet, "launch", launch)
    world.clock.advance(3)
    fall_off(world, world.launched[0])
    wait(world, 9000)
    assert world.ends[-1] == "HEALED"


def test_a_recorded_launch_whose_task_fails_for_good_is_given_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enter(node: str, session: int) -> Any:
        row = real(node, session)
        if world._function == "launch_replacement" and (row.get("launch") or {}).get("instance_id"):
            raise RuntimeError("throttled")
        return row

    def step(*args: Any, **more: Any) -> Any:
        if world._function == "launch_replacement":
            raise RuntimeError("throttled")
        return note(*args, **more)

    real, note = world.gw.ledger.enter, world.gw.ledger.step
    monkeypatch.setattr(world.gw.ledger, "enter", enter)
    monkeypatch.setattr(world.gw.ledger, "step", step)
    fall_off(world)
    wait(world, 9000)
    assert world.ends == ["ESCALATED"]
    assert sorted(world.alive) == sorted(NODES) and world.terminated == world.launched


def test_a_replacement_that_is_lost_while_no_execution_runs_is_ended(world: World) -> None:
    fall_off(world)
    world.run(until=lambda: entered(world, "Wait for the node"))
    world.abort(world.node(SICK)["execution_arn"])
    world.clock.advance(0.1)
    fall_off(world, world.launched[0])
    wait(world, 9000)
    assert world.ends == ["HEALED"] and len(world.alive) == len(NODES)


def test_undoing_a_session_leaves_the_next_ones_isolation(build: Build) -> None:
    """Sweep has read the row of a cancelled session; the next one has isolated before it is undone."""
    world = build()
    world.send(events.hyperpod(SICK, *REPLACE, world.now - 1))
    world.run(until=lambda: bool(world.launched))
    world.clock.advance(2)
    world.status_changes = world.sweeps = False
    report_well(world)
    seen = dict(world.node(SICK))
    assert seen["phase"] == "CANCELLED"
    world.clock.advance(2)
    fall_off(world)
    world.run(10, until=lambda: "emptied_at" in (world.node(SICK).get("isolation") or {}))
    undoing.undo(world.gw, seen)
    assert list(world.isolated) == ["demo-1"]
