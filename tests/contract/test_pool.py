"""The warm pool's conditional writes on the memory twin and on DynamoDB (moto, emulator)."""

import threading
from typing import Any

import pytest

from lambdas import spares
from planaria.core import pool, refills
from planaria.core.errors import Fenced
from planaria.core.ledger import Ledger
from planaria.core.ports import Table
from planaria.core.refills import Filled, Refill
from planaria.core.table import Conflict
from planaria.memory.clock import MemoryClock
from planaria.wiring import Gateways
from tests.lambdas.test_spare_pool import GROUP, pooled

NOW = 1_793_610_845.0
SPARES = [f"i-0bbbbbbbbbbbbbbb{n}" for n in range(3)]
FAILED = [f"i-0aaaaaaaaaaaaaaa{n}" for n in range(8)]


def claim(table: Table, seen: Any = None, claim_id: str = "sweep/1", slot: int = 1) -> Refill:
    row = refills.claim(table, GROUP, slot, seen, claim_id=claim_id, reason="short", now=NOW)
    return Refill.of(row)


def gateways(table: Table, spare_nodes: int = len(SPARES)) -> Gateways:
    """A pool of FREE spares."""
    gw = Gateways({}, pooled(spare_nodes))
    gw.table, gw.clock = table, MemoryClock(NOW)
    for slot, node in enumerate(SPARES[:spare_nodes], 1):
        refill = claim(table, slot=slot)
        refills.write(table, refill, sets={"instance_id": node})
        spare = {"state": "FREE", "slot": slot, "checked_at": NOW - slot}
        check = {"passed": True, "reason": ""}
        facts = {"group": GROUP, "state": "running", "ready_at": NOW, "check": check, "spare": spare}
        gw.ledger.note_node(node, facts)
        refills.close(table, refill, Filled.FILLED, NOW)
    return gw


def take(gw: Gateways, node: str, session: int = 1) -> str | None:
    incident = {"node_id": node, "incident_id": f"{node}-{session}"}
    return spares.take(gw, gw.cluster.group(GROUP), incident, {})


def test_a_refill_is_claimed_once_and_fenced_by_its_generation(table: Table) -> None:
    first = claim(table)
    assert claim(table) == first  # the SDK's own retry
    with pytest.raises(Conflict):
        claim(table, claim_id="sweep/other")
    second = claim(table, refills.enter(table, first), "sweep/2")
    assert second.generation == 2
    for late in (lambda: refills.enter(table, first), lambda: refills.write(table, first, {"x": 1})):
        with pytest.raises(Fenced):
            late()
    with pytest.raises(Conflict):
        refills.write(table, second, {"x": 1}, when=refills.as_seen({}))


def test_a_successor_takes_over_what_was_launched(table: Table) -> None:
    first = claim(table)
    refills.write(table, first, sets={"launch": {"number": 1, "token": "t"}})
    row = refills.enter(table, first)
    second = claim(table, row, "sweep/2")
    assert refills.enter(table, second)["launch"]["token"] == "t"
    refills.close(table, second, Filled.NOT_FILLED, NOW, "no", 1, 60.0)
    closed = table.get(*pool.slot_key(GROUP, 1)) or {}
    assert (closed["failures"], closed["retry_at"]) == (1, NOW + 60)
    third = claim(table, closed, "sweep/3")
    assert refills.enter(table, third)["launch"]["token"] == "t"
    refills.write(table, third, sets={("launch", "instance_id"): SPARES[0], "instance_id": SPARES[0]})
    refills.close(table, third, Filled.FILLED, NOW)
    done = table.get(*pool.slot_key(GROUP, 1)) or {}
    assert "failures" not in done
    fourth = refills.enter(table, claim(table, done, "sweep/4"))
    assert "launch" not in fourth and "instance_id" not in fourth


def test_closing_twice_is_closing_once(table: Table) -> None:
    refill = claim(table)
    for _ in range(2):
        refills.close(table, refill, Filled.NOT_FILLED, NOW, "no", 3, 60.0)
    slot = table.get(*pool.slot_key(GROUP, 1)) or {}
    assert (slot["failures"], slot["retry_at"]) == (3, NOW + 240)
    with pytest.raises(Fenced):
        refills.close(table, refill, Filled.FILLED, NOW)


def test_taken_put_back_and_left(table: Table) -> None:
    gw = gateways(table)
    first = take(gw, FAILED[0])
    assert first == SPARES[0] == take(gw, FAILED[0]) == take(gw, FAILED[0], 2)
    assert take(gw, FAILED[1]) == SPARES[1]
    gw.ledger.note_node(first, {"name": "demo-1", "replaces": FAILED[0]})
    assert spares.keep_as_spare(gw, first, "no use", FAILED[0])
    row = gw.ledger.node(first) or {}
    assert pool.state_of(row) is pool.SpareState.FREE and "by" not in row["spare"]
    assert "name" not in row and "replaces" not in row
    assert pool.state_of(spares.leave(gw, row, "it is sick")) is pool.SpareState.LEFT
    assert take(gw, FAILED[2]) == SPARES[2] and take(gw, FAILED[3]) is None
    taken = gw.ledger.node(SPARES[1]) or {}
    assert spares.leave(gw, taken, "it is sick")["spare"]["state"] == "TAKEN"
    assert take(gw, FAILED[1]) is None  # it is lost to its incident, and there is no other


def test_of_many_incidents_each_spare_serves_one(shared_table: Table) -> None:
    gw = gateways(shared_table)
    got: dict[str, str | None] = {}

    def compete(node: str) -> None:
        own = Gateways({}, gw.cluster)
        own.table, own.clock = shared_table, gw.clock
        got[node] = take(own, node)

    threads = [threading.Thread(target=compete, args=(node,)) for node in FAILED for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = [spare for spare in got.values() if spare is not None]
    assert sorted(taken) == SPARES and len(got) == len(FAILED)
    ledger = Ledger(shared_table)
    by = {node: (ledger.node(node) or {})["spare"]["by"] for node in SPARES}
    assert by == {spare: f"{node}-1" for node, spare in got.items() if spare is not None}


def test_a_replacement_that_is_kept_gets_a_slot(table: Table) -> None:
    gw = gateways(table, 1)
    gw.cluster = pooled(2, unused_replacement="spare")
    gw.ledger.note_node(
        SPARES[1], {"group": GROUP, "state": "running", "name": "demo-1", "replaces": FAILED[0]}
    )
    assert spares.keep_as_spare(gw, SPARES[1], "no use", FAILED[0])
    assert spares.keep_as_spare(gw, SPARES[1], "no use", FAILED[0])
    view = pool.read(gw.ledger, GROUP)
    assert {slot["instance_id"] for slot in view.slots.values()} == set(SPARES[:2])
    assert [pool.state_of(row) for row in view.nodes.values()] == [pool.SpareState.FREE] * 2
    assert view.missing(2, NOW) == 0 and view.vacant() == 3
    gw.ledger.note_node(SPARES[2], {"group": GROUP, "state": "running", "replaces": FAILED[1]})
    assert not spares.keep_as_spare(gw, SPARES[2], "no use", FAILED[1])  # the pool is full
