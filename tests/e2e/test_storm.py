"""A storm through the deployed bus, queues, Lambda and ledger, with a spot warning in its middle."""

import json
import sys

import pytest

from benchmarks import storms
from benchmarks.storms import Lanes, Plan
from tests.e2e.conftest import Bench

pytestmark = pytest.mark.campaign

EVENTS = 2_400
PATIENCE_SECONDS = 240.0


def test_a_storm_loses_nothing_and_a_spot_warning_does_not_wait_for_it(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """99 of 100 events repeat another, half of them with its id, half with one of their own."""
    assert bench.world.emulator is not None
    bench.until("idle nodes", bench.idle)
    sick, doomed, *noisy = (bench.node(f"e2e-{number}") for number in (2, 3, 1, 4))
    before = bench.instances()
    lanes = Lanes(bench.world.emulator, bench.gw)
    plan = Plan(sick, doomed, tuple(noisy), EVENTS)
    # It raises when an event has no outcome, or more than one, or lies in a dead-letter queue.
    found = storms.weather(lanes, plan, PATIENCE_SECONDS, lambda _: None, seed=3)
    assert found.waiting_then > 0, "the spot warning was claimed only after the storm had passed"
    assert sum(found.outcomes.values()) == found.events == EVENTS + 1
    assert found.outcomes["OPENED"] == 2
    assert found.rows < EVENTS / 2

    rows = [bench.incident(node, seconds=120) for node in (sick, doomed)]
    assert [(row["fault"]["kind"], row["fault"]["code"]) for row in rows] == [
        ("xid", "79"),
        ("spot_interruption", "terminate"),
    ]
    assert [bench.incidents_of(node) for node in noisy] == [[], []]
    assert started(bench, [sick, doomed]) == 2 and started(bench, noisy) == 0
    bench.until("four instances", lambda: len(bench.instances()) == 4)
    assert set(bench.instances()) == set(before) - {sick, doomed} | {row["replacement_id"] for row in rows}
    bench.until("empty queues", lambda: not any(bench.queue_depth(lane) for lane in ("urgent", "normal")))
    assert lanes.dead() == {}
    with capsys.disabled():
        sys.stdout.write(
            f"\n{found.events:,} events in {found.seconds:.1f} s, {found.rows} with a row; the spot warning "
            f"claimed after {found.claimed_after:.2f} s while {found.waiting_then:,} events waited\n"
        )


def started(bench: Bench, nodes: list[str]) -> int:
    """Executions of heal_node that were started for these nodes."""
    assert bench.world.emulator is not None
    client = bench.world.emulator.client("stepfunctions")
    arn = json.loads(bench.gw._need("PLANARIA_MACHINES"))["heal_node"]
    pages = client.get_paginator("list_executions").paginate(stateMachineArn=arn)
    names = [execution["name"] for page in pages for execution in page["executions"]]
    return sum(any(node in name for node in nodes) for name in names)
