"""The whole ladder on the emulator, with nodes whose GPUs fail as hardware does. `make campaign` runs it."""

from collections.abc import Iterator

import pytest
import yaml

from planaria.core.quarantine import Quarantine
from planaria.core.table import Row
from planaria.sandbox.world import World, WorldConfig
from tests.e2e.conftest import HERE, SCALE, Bench

pytestmark = pytest.mark.campaign
JOB = "ladder"


@pytest.fixture(scope="module")
def resetting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """The end-to-end cluster with a policy that lets single GPUs be reset, and a job on all its nodes."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("ministack", reason="the emulator is not installed")
    folder = tmp_path_factory.mktemp("ladder")
    document = yaml.safe_load((HERE / "cluster.yaml").read_text())
    document["policy"]["gpu_reset"] = True
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(document))
    config = WorldConfig(folder / "sandbox", path, time_scale=SCALE, boot_seconds=1.5, auth=True, direct=True)
    with World(config) as world:
        bench = Bench(world)
        bench.submit(JOB, steps=100_000, save_every=10)
        bench.train_to(JOB, 12)
        yield bench


def heal(bench: Bench, fault: str, name: str) -> tuple[str, Row]:
    """Break a node and wait for the end: (its instance, the incident)."""
    node, before = bench.node(name), bench.gw.jobs.job(JOB) or {}
    bench.inject(fault, name)
    row = bench.incident(node, seconds=180)
    bench.resumed(JOB, int(before["attempt"]), seconds=120)
    scheduler = bench.world.head().get("/status")["scheduler"]
    assert [each["isolated"] for each in scheduler.values()] == [None] * 4
    return node, row


def test_a_reset_that_the_driver_refuses_is_followed_by_a_reboot_that_helps(resetting: Bench) -> None:
    node, row = heal(resetting, "stuck-gpu", "e2e-2")
    assert (row["rule"], row["action"]) == ("xid-119", "REBOOT")
    assert resetting.node("e2e-2") == node, "the instance stays"
    known = resetting.gw.ledger.node(node) or {}
    assert "the driver does not answer" in known["tried"]["reset"]["result"]
    assert known["tried"]["reboot"]["result"] == "passed" and known["health"] == "Schedulable"
    timeline = resetting.timeline(row["incident_id"])
    order = ("isolated", "went_on_to_reboot", "rebooted", "node_ready", "node_verified", "node_joined")
    assert [timeline[step] for step in order] == sorted(timeline[step] for step in order)
    assert "gpu_reset" not in timeline and "replacement_launched" not in timeline


def test_a_gpu_that_only_the_deep_check_finds_bad_leads_to_a_replacement(resetting: Bench) -> None:
    before = set(resetting.instances())
    node, row = heal(resetting, "bad-gpu", "e2e-3")
    assert (row["rule"], row["action"]) == ("xid-48", "REPLACE")
    assert [(left["action"], left["to"]) for left in row["climbed"]] == [
        ("RESET", "REBOOT"),
        ("REBOOT", "REPLACE"),
    ]
    assert all("memory test" in left["reason"] for left in row["climbed"])
    assert resetting.node("e2e-3") == row["replacement_id"] and node not in resetting.instances()
    assert set(resetting.instances()) - before == {row["replacement_id"]}
    tried = (resetting.gw.ledger.node(node) or {})["tried"]
    assert {act: tried[act]["result"].partition(":")[0] for act in ("reset", "reboot")} == {
        "reset": "failed",
        "reboot": "failed",
    }
    [entry] = Quarantine(resetting.gw.table).all(float(row["closed_at"]))
    assert (entry["hardware"], entry["incident_id"]) == (node, row["incident_id"])
    timeline = resetting.timeline(row["incident_id"])
    assert {"gpu_reset", "rebooted", "replacement_launched", "node_verified", "node_retired"} <= set(timeline)


def test_a_reset_that_helps_keeps_the_node_and_its_boot(resetting: Bench) -> None:
    name = "e2e-4"
    boot = (resetting.gw.ledger.node(resetting.node(name)) or {})["boot_id"]
    line = "NVRM: Xid (PCI:0000:b3:00.0): 48, pid=12345, An uncorrectable double bit error (DBE)."
    node, before = resetting.node(name), resetting.gw.jobs.job(JOB) or {}
    resetting.inject("kernel-line", name, line=line)
    row = resetting.incident(node, seconds=180)
    resetting.resumed(JOB, int(before["attempt"]), seconds=120)
    assert row["action"] == "RESET" and row.get("climbed", []) == []
    known = resetting.gw.ledger.node(node) or {}
    assert known["boot_id"] == boot and known["tried"]["reset"]["result"] == "passed"
    _, steps = resetting.gw.ledger.incident(row["incident_id"])
    verified = next(step for step in steps if step["step"] == "node_verified")
    assert verified["suite"] == "deep" and "nvlink" in verified["unchecked"]
    assert resetting.node(name) == node
