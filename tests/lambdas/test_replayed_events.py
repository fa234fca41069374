"""Events that EventBridge replays from an archive: judged on the present state, in observe mode; no acts."""

import json

import pytest

from planaria.core.event_rows import event_key
from planaria.core.table import Row
from tests.lambdas import events
from tests.lambdas.world import NODES, World

SICK = NODES[1]


def again(text: str, replay: str = "friday", identity: str = "") -> str:
    """The event as a replay sends it; whether it keeps its id is said nowhere, so both are tested."""
    event = json.loads(text)
    return json.dumps(event | {"replay-name": replay, "id": identity or event["id"]})


def row(world: World, text: str) -> Row:
    event = json.loads(text)
    key = f"replay/{event['replay-name']}/{event['id']}"
    return world.table.get(*event_key(key)) or {}


@pytest.mark.parametrize("identity", ["", "another-id"])
def test_a_replay_is_recorded_in_observe_mode_and_starts_nothing(world: World, identity: str) -> None:
    text = again(events.xid(SICK, 79, world.now - 1), identity=identity)
    world.send(text)
    world.run(200)
    found = row(world, text)
    assert (found["outcome"], found["action"], found["mode"]) == ("OPENED", "REPLACE", "observe")
    assert found["event"] == text
    assert world.incidents == [] and world.workflows.executions == {} and world.fleet.calls == []
    assert "recent" not in world.node(SICK) and "phase" not in world.node(SICK)


@pytest.mark.parametrize("identity", ["", "another-id"])
def test_a_replay_is_no_duplicate_of_its_original(world: World, identity: str) -> None:
    original = events.xid(SICK, 79, world.now - 1)
    world.send(original)
    world.run(3)
    [incident] = world.incidents
    text = again(original, identity=identity)
    world.send(text)
    found = row(world, text)
    # It finds the session that its original has opened, and is not taken for its redelivery.
    assert (found["outcome"], found["mode"]) == ("JOINED", "observe")
    assert "claimed by this very event" not in found["reason"]
    first = world.table.get(*event_key(json.loads(original)["id"])) or {}
    assert (first["outcome"], first["mode"]) == ("OPENED", "act")
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert [head["incident_id"] for head in world.incidents] == [incident["incident_id"]]


def test_after_the_end_it_is_judged_on_the_present_state(world: World) -> None:
    original = events.xid(SICK, 79, world.now - 1)
    world.send(original)
    world.run()
    text = again(original)
    world.send(text)
    assert (row(world, text)["outcome"], row(world, text)["mode"]) == ("STALE", "observe")
    assert len(world.incidents) == 1


def test_each_replay_has_its_outcome_and_a_redelivery_none(world: World) -> None:
    original = events.xid(SICK, 13, world.now - 1)
    for name in ("friday", "friday", "monday"):
        world.send(again(original, name))
    assert world.outcomes_of("agent") == ["OBSERVED", "OBSERVED"]
    assert world.counted("DUPLICATE") == 1


def test_a_replayed_report_of_a_boot_tells_the_ledger_nothing(world: World) -> None:
    before = world.node(SICK)
    world.send(again(events.ready(SICK, world.now + 5, "demo-1", "10.0.9.9")))
    assert world.node(SICK) == before
    first = world.job.get("first_step")
    world.send(again(events.job_step(SICK, "gpt", 1, 31, world.now)))
    assert world.job.get("first_step") == first


def test_a_replayed_healthy_report_cancels_nothing(world: World) -> None:
    world.send(events.hyperpod(SICK, "Unhealthy", "x", "None", world.now - 1))
    world.run(0.1)
    text = again(events.hyperpod(SICK, "Healthy", "well", "None", world.now + 2))
    world.send(text)
    assert row(world, text)["mode"] == "observe"
    world.run()
    assert world.ends == ["HEALED"]
