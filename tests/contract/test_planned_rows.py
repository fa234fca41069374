"""Plans on the node's row, by triage's and sweep's own writes, in memory, on moto and on the emulator."""

import json
from typing import Any

import pytest

from lambdas import planned_due, planning
from planaria.core.incident import Phase
from planaria.core.ports import InstanceStatus, StatusEvent, Table
from planaria.core.table import Conflict, Row
from planaria.wiring import Gateways
from tests.contract.test_claims import NODES, NOW, gateways, judged
from tests.lambdas import events

DAY = 86_400.0
NODE = NODES[1]


@pytest.fixture
def gw(table: Table) -> Gateways:
    gw = gateways(table, NODES)
    gw.ledger.note_node(NODE, {"job_id": "gpt"})
    gw.jobs.register("gpt", ["demo-1"], [NODE], {"attempt": 1})
    return gw


def finding(gw: Gateways, number: int, starts: float, healthy: bool = False) -> str:
    detail = {
        "version": 1, "instance_id": NODE, "kind": "scheduled_event", "code": "instance-retirement",
        "time": gw.clock.now(), "starts_at": starts, "event_id": f"event-{number}", "healthy": healthy,
        "description": "[Canceled]" if healthy else "degraded hardware", "extra": {"count": 1.5},
    }  # fmt: skip
    return events.event("planaria.sweep", "Planaria Sweep Finding", detail, gw.clock.now())


def outcome(gw: Gateways, text: str) -> str:
    [end] = judged(gw, text)
    return str(end["outcome"])


def row(gw: Gateways) -> Row:
    return gw.ledger.node(NODE) or {}


def release(gw: Gateways) -> int:
    return planned_due.release(gw, gw.ledger.nodes(), gw.jobs.jobs())


def put(gw: Gateways) -> list[str]:
    """What sweep has put on the bus, as triage gets it."""
    bus: Any = gw.bus
    found = [events.event(source, kind, dict(detail), gw.clock.now()) for source, kind, detail in bus.events]
    bus.events.clear()
    return found


def test_a_plan_is_kept_moved_told_of_again_and_answered(gw: Gateways) -> None:
    clock: Any = gw.clock
    fleet: Any = gw.fleet
    assert outcome(gw, finding(gw, 1, NOW + 10 * DAY)) == "HELD"
    clock.advance(60)
    assert outcome(gw, finding(gw, 2, NOW + 10 * DAY + 0.125)) == "HELD"
    clock.advance(60.0625)
    assert outcome(gw, finding(gw, 1, NOW + 12 * DAY)) == "HELD"
    assert {plan["deadline"] for plan in row(gw)["planned"].values()} == {NOW + 12 * DAY}
    assert release(gw) == 0 and put(gw) == []
    clock.advance(11 * DAY)
    assert release(gw) == 0  # EC2 lists nothing
    plans = row(gw)["planned"].values()
    assert {plan["why"] for plan in plans} == {"EC2 lists it no longer"} and len(plans) == 2
    listed = StatusEvent("event-1", "instance-retirement", "degraded hardware", NOW + 12 * DAY)
    fleet.checks[NODE] = InstanceStatus(NODE, "ok", "ok", "ok", events=(listed,))
    assert release(gw) == 1
    [text] = put(gw)
    assert json.loads(text)["detail"]["planned"]["plan"] == "scheduled_event|event-1"
    assert release(gw) == 0 and put(gw) == []  # not every minute
    assert outcome(gw, text) == "OPENED" and row(gw)["fault"]["deadline"] == NOW + 12 * DAY
    session = int(row(gw)["session"])
    clock.advance(600)
    assert release(gw) == 0 and len(row(gw)["planned"]) == 2
    gw.ledger.close(NODE, session, Phase.ESCALATED, gw.clock.now(), "no capacity")
    assert release(gw) == 0 and row(gw)["planned"] == {}


def test_a_plan_is_taken_back(gw: Gateways) -> None:
    clock: Any = gw.clock
    outcome(gw, finding(gw, 1, NOW + 10 * DAY))
    clock.advance(60)
    assert outcome(gw, finding(gw, 1, NOW + 10 * DAY, healthy=True)) == "OBSERVED"
    assert row(gw)["planned"] == {}
    clock.advance(60)
    assert outcome(gw, finding(gw, 3, NOW + 10 * DAY)) == "HELD" and len(row(gw)["planned"]) == 1


def test_what_sweep_forgets_is_what_it_has_read(gw: Gateways) -> None:
    """AWS names another date between sweep's look and its write."""
    clock: Any = gw.clock
    outcome(gw, finding(gw, 1, NOW + 10 * DAY))
    clock.advance(11 * DAY + 60)
    nodes = gw.ledger.nodes()
    outcome(gw, finding(gw, 1, NOW + 30 * DAY))
    planned_due.release(gw, nodes, gw.jobs.jobs())
    [plan] = row(gw)["planned"].values()
    assert plan["deadline"] == NOW + 30 * DAY
    with pytest.raises(Conflict):
        planning.forget(gw, next(node for node in nodes if node["node_id"] == NODE), list(row(gw)["planned"]))
