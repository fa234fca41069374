"""planaria spares: pools for scripts and for people."""

from typing import Any

from planaria.core import pool, refills
from planaria.core.refills import Filled, Refill
from tests.cli.conftest import NODES, NOW, Bench

SPARE, OTHER = "i-000000000000000aa", "i-000000000000000ab"


def add_pool(bench: Bench, target: int = 2) -> None:
    facts = {"group": "workers", "target": target, "listing": "SPARE"}
    bench.gateways.table.write(*pool.pool_key("workers"), sets=facts)


def add_spare(bench: Bench, node: str, slot: int, state: str = "FREE", **more: Any) -> None:
    row = refills.claim(
        bench.gateways.table, "workers", slot, None, claim_id=f"c{slot}", reason="short", now=NOW
    )
    sets = {"instance_id": node}
    if state != "FILLING":
        sets["phase"] = Filled.FILLED.value
    bench.gateways.table.write(row["pk"], row["sk"], sets=sets)
    spare = {"state": state, "slot": slot, "checked_at": NOW - 100, **more}
    facts = {"group": "workers", "state": "running", "ready_at": NOW, "zone": "us-east-1a", "spare": spare}
    bench.gateways.ledger.note_node(node, facts)
    bench.fleet.add(node, instance_type="p5.48xlarge", zone="us-east-1a", launched_at=NOW)


def test_no_pool(bench: Bench) -> None:
    answer = bench.run("spares")
    assert answer.status == 0 and "There is no warm pool in cluster demo" in answer.out
    assert bench.run("spares", "--json").json == []
    assert "node group gpu of cluster demo" in bench.run("spares", "--group", "gpu").out


def test_a_pool(bench: Bench) -> None:
    bench.add_nodes()
    add_pool(bench)
    add_spare(bench, SPARE, 1)
    add_spare(bench, OTHER, 2, "TAKEN", by=f"{NODES[1]}-1")
    (document,) = bench.run("spares", "--json").json
    numbers = {key: document[key] for key in ("group", "target", "free", "filling", "taken")}
    assert numbers == {"group": "workers", "target": 2, "free": 1, "filling": 0, "taken": 1}
    assert document["refills"] == []
    free, taken = document["spares"]
    assert (free["node_id"], free["state"], free["checked_at"]) == (
        SPARE,
        "FREE",
        "2026-11-02T09:12:25.000Z",
    )
    assert (taken["node_id"], taken["incident_id"]) == (OTHER, f"{NODES[1]}-1")
    table = bench.run("spares").out
    assert "2 min ago" in table and SPARE in table and f"for {NODES[1]}-1" in table
    assert bench.run("spares", "--group", "other", "--json").json == []


def test_what_is_wrong_is_said(bench: Bench) -> None:
    add_pool(bench)
    add_spare(bench, SPARE, 1, failed=1, why="it did not pass its check: GPU 3 is missing")
    table = bench.gateways.table
    row = refills.claim(table, "workers", 2, None, claim_id="c", reason="short", now=NOW)
    (document,) = bench.run("spares", "--json").json
    assert document["filling"] == 1 and document["refills"][0]["refill_id"] == "workers-2-1"
    refills.close(table, Refill.of(row), Filled.NOT_FILLED, NOW, "not authorized", 1, 60.0)
    (document,) = bench.run("spares", "--json").json
    assert document["filling"] == 0
    (refill,) = document["refills"]
    assert (refill["failures"], refill["reason"]) == (1, "not authorized")
    assert refill["retry_at"] == "2026-11-02T09:15:05.000Z"
    out = bench.run("spares").out
    assert "GPU 3 is missing" in out and "workers-2-1 was not filled: not authorized" in out


def test_nodes_tells_spares_apart(bench: Bench) -> None:
    bench.add_nodes()
    add_spare(bench, SPARE, 1)
    documents = bench.run("nodes", "--json").json
    assert [(d["name"], d["spare"]) for d in documents[3:]] == [("demo-4", None), (None, "FREE")]
    assert "SPARE" in bench.run("nodes").out
