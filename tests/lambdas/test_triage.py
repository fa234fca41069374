"""Triage: every event has one recorded outcome, whatever is delivered twice, late or dies in between."""

import json
from typing import Any

import pytest

from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.test_node_stories import SICK, entered, fall_off
from tests.lambdas.world import NODES, World, nothing_answers, stub

QUEUE = "arn:aws:sqs:us-east-1:111122223333:planaria-demo-"


def record(body: str, identity: str, count: int = 1, queue: str = "urgent") -> dict[str, Any]:
    attributes = {"ApproximateReceiveCount": str(count)}
    return {
        "messageId": identity, "receiptHandle": f"r-{identity}", "body": body, "attributes": attributes,
        "eventSourceARN": QUEUE + queue,
    }  # fmt: skip


def failed(world: World, *records: dict[str, Any]) -> list[str]:
    answer = world.call("triage", {"Records": list(records)})
    return [item["itemIdentifier"] for item in answer["batchItemFailures"]]


def test_a_poison_record_fails_alone(world: World) -> None:
    """A node whose rows cannot be written is nobody else's matter."""

    def poisoned(pk: str, *args: Any, **kwargs: Any) -> Any:
        if pk == f"NODE#{NODES[2]}":
            raise RuntimeError("a defect")
        return write(pk, *args, **kwargs)

    write = stub(world.table, "write", poisoned)
    batch = [record(events.xid(node, 79, world.now - 1), node) for node in (NODES[1], NODES[2], NODES[3])]
    assert failed(world, *batch) == [NODES[2]]
    assert [row["node_id"] for row in world.incidents] == [NODES[1], NODES[3]]


@pytest.mark.parametrize("body", ["", "no json", "[1, 2", "null", "{}", '{"detail-type": 5}', "[" * 500])
def test_text_that_is_no_event_is_recorded_as_invalid_and_not_tried_again(world: World, body: str) -> None:
    assert failed(world, record(body, "m")) == []
    [row] = [row for (pk, _), row in world.table._rows.items() if pk.startswith("EVENT#")]
    assert (row["outcome"], bool(row["reason"])) == ("INVALID", True)


def test_an_event_without_detail_is_invalid(world: World) -> None:
    event = json.loads(events.spot(SICK, world.now))
    del event["detail"]
    assert failed(world, record(json.dumps(event), "m")) == []
    assert world.outcomes_of("spot_interruption") == ["INVALID"] and world.incidents == []


def test_nodes_of_others_are_counted_and_not_written_singly(world: World) -> None:
    for number in range(5):
        world.send(events.spot(f"i-0fffffffffffffff{number}", world.now))
    assert world.counted("NOT_MANAGED") == 5
    assert not [pk for pk, _ in world.table._rows if pk.startswith(("EVENT#", "NODE#i-0fff"))]


def test_a_new_instance_of_the_cluster_is_known_by_one_look(world: World) -> None:
    new = "i-0bbbbbbbbbbbbbbbb"
    world.fleet.add(new, tags={"planaria:cluster": "demo", "planaria:name": "demo-9"})
    world.send(events.state(new, "running", world.now))
    assert (world.node(new)["name"], world.outcomes_of("state_change")) == ("demo-9", ["OBSERVED"])


def test_a_large_event_lies_in_the_bucket_with_a_pointer_in_its_row(world: World) -> None:
    event = json.loads(events.xid(SICK, 79, world.now - 1))
    event["padding"] = "ü" * 3000
    text = json.dumps(event, ensure_ascii=False)
    world.send(text)
    [row] = [row for (pk, _), row in world.table._rows.items() if pk.startswith("EVENT#")]
    assert "event" not in row and world.objects.get(row["event_key"]).decode() == text


def test_an_urgent_record_that_failed_is_seen_again_soon(world: World) -> None:
    stub(world.fleet, "describe", nothing_answers)
    text = events.spot("i-0fffffffffffffff1", world.now)
    for count in (1, 2, 3, 4):
        assert failed(world, record(text, "m", count)) == ["m"]
    assert failed(world, record(text, "n", 1, "normal")) == ["n"]
    assert world.queues.retries == [(QUEUE + "urgent", "r-m", seconds) for seconds in (2, 4, 8)]


def test_triage_killed_between_claim_and_start_is_healed_by_redelivery(world: World) -> None:
    world.sweeps = False
    world.kill("triage", "workflows.start", before=True)
    fall_off(world)
    assert world.node(SICK)["phase"] == "CLAIMED" and world.driver.running == []
    start = world.now
    world.run(300)
    world.assert_healed(replaced=1, resumed=1)
    assert world.incidents[0]["closed_at"] - start < 120


def test_triage_killed_between_claim_and_start_is_healed_by_sweep(world: World) -> None:
    world.kill("triage", "workflows.start", before=True)
    world.at(30, world.sweep)
    fall_off(world)
    world.run(40)
    assert world.workflows.executions  # before the message came back after a minute
    world.run()
    world.assert_healed(replaced=1, resumed=1)


def test_what_the_breaker_held_is_healed_when_the_window_moves_on(world: World) -> None:
    world.limit_breaker(1)
    fall_off(world, NODES[2])
    fall_off(world)
    world.run()
    assert "HELD" in world.outcomes_of("agent") and len(world.launched) == 1
    world.clock.advance(3700)
    world.run(600)
    world.run()
    [(subject, text)] = world.notices.sent
    assert "is held" in subject and "breaker: 1 of 1" in text  # a person is told once
    world.notices.sent.clear()
    world.assert_healed(replaced=2, resumed=2)


def test_triage_killed_before_it_notes_what_is_held_does_not_lose_it(world: World) -> None:
    world.limit_breaker(1)
    fall_off(world, NODES[2])
    world.kill("triage", "table.write", nth=len(world.effects) and 5)
    world.sweeps = False
    text = events.xid(SICK, 79, world.now - 1)
    world.send(text)
    world.run(100)
    assert world.node(SICK).get("held") or world.node(SICK)["phase"] in ("CLAIMED", "RUNNING", "HEALED")


def test_an_event_whose_outcome_row_got_lost_does_not_open_a_second_incident(world: World) -> None:
    world.scheduler.state.foreign_isolate("demo-1", "maintenance", by="bob")
    text = events.spot(SICK, world.now, "spot-1")
    world.send(text)
    world.run()
    assert world.ends == ["ESCALATED"]
    [key] = [k for k, row in world.table._rows.items() if row.get("event_id") == "spot-1"]
    del world.table._rows[key]
    world.send(text)
    world.run()
    assert world.ends == ["ESCALATED"]


def test_a_report_of_an_agent_about_another_node_is_refused(world: World) -> None:
    event = json.loads(events.xid(SICK, 79, world.now))
    event["source"] = f"planaria.node/AROA:{NODES[2]}"
    world.send(json.dumps(event))
    assert world.outcomes_of("agent") == ["INVALID"] and world.incidents == []


def test_a_node_ready_that_is_older_than_the_reboot_answers_nothing(world: World) -> None:
    world.start("heal_node", {"node_id": SICK, "action": "reboot"})
    world.boots = False
    world.run(until=lambda: entered(world, "Wait for the node"))
    world.clock.advance(1)
    world.send(events.ready(SICK, world.now - 30, "demo-1", "10.0.1.1"))
    world.run(5)
    assert not entered(world, "Admit")


def test_a_replayed_event_is_judged_and_acts_on_nothing(build: Build) -> None:
    world = build()
    event = json.loads(events.xid(SICK, 79, world.now - 1))
    event["replay-name"] = "again"
    world.send(json.dumps(event))
    world.run(10)
    assert world.outcomes_of("agent") == ["OPENED"] and world.incidents == []
