"""A warm pool on the emulator: a failed node takes the spare, which is replaced. `make campaign` runs it."""

import json
from collections.abc import Iterator

import pytest
import yaml

from planaria.core import pool
from planaria.core.pool import SpareState
from planaria.sandbox.world import World, WorldConfig
from tests.e2e.conftest import HERE, SCALE, Bench

pytestmark = pytest.mark.campaign
JOB, GROUP = "spared", "workers"
BOOT_SECONDS = 6.0


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """The end-to-end cluster with one spare, and a job on its four nodes."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("ministack", reason="the emulator is not installed")
    folder = tmp_path_factory.mktemp("spares")
    document = yaml.safe_load((HERE / "cluster.yaml").read_text())
    document["node_groups"][0]["spares"] = 1
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(document))
    config = WorldConfig(
        folder / "sandbox", path, time_scale=SCALE, boot_seconds=BOOT_SECONDS, auth=True, direct=True
    )
    with World(config) as world:
        bench = Bench(world)
        bench.until("first spare", lambda: free(bench))
        bench.submit(JOB, steps=100_000, save_every=10)
        bench.train_to(JOB, 12)
        yield bench


def free(bench: Bench) -> list[str]:
    return [str(row["node_id"]) for row in pool.read(bench.gw.ledger, GROUP).of(SpareState.FREE)]


def test_a_failed_node_takes_the_spare_and_the_pool_is_filled_again(warm: Bench) -> None:
    (spare,) = free(warm)
    scheduler = warm.world.head().get("/status")["scheduler"]
    assert sorted(scheduler) == ["e2e-1", "e2e-2", "e2e-3", "e2e-4"], "a spare is nobody to the scheduler"
    node = warm.node("e2e-3")
    warm.inject("xid79", "e2e-3")
    row = warm.incident(node)
    assert row["replacement_id"] == spare == warm.node("e2e-3")
    timeline = warm.timeline(row["incident_id"])
    assert float((warm.gw.ledger.node(spare) or {})["ready_at"]) < timeline["detected"], "nothing had to boot"
    job = warm.resumed(JOB, 1)
    assert spare in job["nodes"].values() and job["resume_step"] >= 10
    (following,) = warm.until("next spare", lambda: free(warm), 150)
    assert following not in (spare, node) and len(warm.instances()) == 5
    assert (warm.gw.ledger.node(spare) or {})["name"] == "e2e-3"


def test_a_fault_on_the_spare_replaces_it_without_an_incident(warm: Bench) -> None:
    (spare,) = warm.until("spare", lambda: free(warm), 150)
    warm.inject("xid79", spare)
    (following,) = warm.until("next spare", lambda: [n for n in free(warm) if n != spare], 200)
    warm.until("end of the old one", lambda: spare not in warm.instances())
    assert warm.incidents_of(spare) == [] and warm.incidents_of(following) == []
    assert {row["outcome"] for row in warm.outcomes(node_id=spare, kind="agent", code="79")} <= {"OBSERVED"}


def test_a_wrong_document_is_refused_in_a_sentence(warm: Bench) -> None:
    assert warm.world.emulator is not None
    client = warm.world.emulator.client("stepfunctions")
    arn = json.loads(warm.gw._need("PLANARIA_MACHINES"))["refill_spares"]
    started = client.start_execution(stateMachineArn=arn, input=json.dumps({"node_group": "gpus"}))
    found = started["executionArn"]

    def ended() -> bool:
        return bool(client.describe_execution(executionArn=found)["status"] != "RUNNING")

    warm.until("end of the execution", ended)
    cause = client.describe_execution(executionArn=found)["cause"]
    assert "node_group must be one of workers" in cause and '{"node_group": "workers"' in cause
