"""Transfers of whole steps: plan, run, settle, on real files and a real S3 endpoint."""

import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from planaria.core.transfers import MIB, Mode
from planaria.memory.table import MemoryTable
from planaria.node import transfer_run
from tests.node.transfer_world import JOB, World, crc_of

pytestmark = pytest.mark.needs("seaweedfs")

LARGE = os.urandom(40 * MIB + 7)


@pytest.fixture
def world(tmp_path: Path, object_store: Any, bucket: str, monkeypatch: pytest.MonkeyPatch) -> World:
    for name, value in object_store.environment().items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    return World(folder, bucket, object_store.client(), MemoryTable())


def _files() -> dict[str, bytes]:
    names = ["a b/ü%2F+ name.bin", "empty", "__0_0.distcp", "deep/er/x", "line\nbreak&<x>\"'", "Ωmega.pt"]
    files = {name: os.urandom(1000 + 97 * number) for number, name in enumerate(names)}
    return {**files, "empty": b"", "medium": os.urandom(3 * MIB), "large": LARGE}


def test_copy_and_fetch_bring_back_the_same_step(world: World) -> None:
    files = _files()
    root = world.save(10, files)
    planned = world.plan(10, "up", Mode.COPY)
    assert planned == {
        "state": "complete",
        "reason": "",
        "size": sum(map(len, files.values())),
        "files": len(files),
        "chunks": 2,
        "manifest": True,
    }
    told = world.run("up")
    assert (told["chunks"], told["failed"]) == (2, [])
    progress = world.ledger.progress("up", world.now)
    assert progress.finished and progress.bytes == planned["size"] and not progress.failed
    for name, body in files.items():
        assert world.proof(10, name) == (len(body), crc_of(body))
    assert world.uploads() == []
    assert world.settle("up")["state"] == "complete"

    manifest = (root / "planaria-manifest.json").read_bytes()
    world.client.put_object(
        Bucket=world.bucket, Key=f"checkpoints/{JOB}/step-10/planaria-manifest.json", Body=manifest
    )
    os.rename(root, world.folder.parent / "kept")
    assert world.plan("step-10", "down", Mode.FETCH, 3)["state"] == "complete"
    assert world.run("down")["failed"] == []
    assert not root.exists()
    settled = world.settle("down")
    assert (settled["state"], settled["place"]) == ("complete", str(root))
    assert world.settle("down") == settled
    for name, body in files.items():
        assert (root / name).read_bytes() == body
    assert (root / "planaria-manifest.json").read_bytes() == manifest
    assert sorted(os.listdir(world.folder)) == [".planaria", "step-10"]
    assert not [name for name in os.listdir(root) if name.startswith(".planaria")]


def test_a_second_copy_sends_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    files = _files()
    world.save(10, files)
    world.plan(10, "first", Mode.COPY)
    world.run("first")
    sent: list[str] = []
    engine = transfer_run.Engine
    monkeypatch.setattr(engine, "_send_whole", lambda *a: sent.append("whole"))
    monkeypatch.setattr(engine, "_send_parts_of", lambda *a: sent.append("parts"))
    world.plan(10, "second", Mode.COPY)
    assert world.run("second")["failed"] == []
    assert sent == []


@pytest.mark.parametrize("mode", [Mode.COPY, Mode.HASH])
def test_a_huge_file_is_carried_in_ranges_by_several(
    world: World, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    monkeypatch.setattr("planaria.core.transfers.SPLIT", 16 * MIB)
    files = {"huge": LARGE, "small": b"x"}
    world.save(10, files)
    assert world.plan(10, "t", mode, 3)["chunks"] == 3
    assert world.run("t")["failed"] == []
    assert world.settle("t")["state"] == "complete"
    if mode is Mode.COPY:
        assert world.proof(10, "huge") == (len(LARGE), crc_of(LARGE))
        assert world.uploads() == []


def test_a_huge_file_comes_down_in_ranges(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planaria.core.transfers.SPLIT", 16 * MIB)
    monkeypatch.setattr("planaria.node.carry.RANGE", 8 * MIB)
    files = {"huge": LARGE, "small": b"x"}
    world.store(10, files)
    assert world.plan(10, "t", Mode.FETCH, 3)["chunks"] == 3
    assert world.run("t")["failed"] == []
    assert world.settle("t")["state"] == "complete"
    assert (world.folder / "step-10/huge").read_bytes() == LARGE


@pytest.mark.needs("torch")
def test_a_step_without_a_manifest_gets_one(world: World) -> None:
    import torch
    from torch.distributed import checkpoint

    root = world.folder / "step-7"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint.save({"w": torch.arange(1000.0)}, checkpoint_id=str(root), no_dist=True)
    assert world.plan(7, "t", Mode.COPY)["manifest"] is False
    assert world.run("t")["failed"] == []
    settled = world.settle("t")
    assert settled["state"] == "complete"
    assert world.settle("t") == settled
    from planaria.core.manifest import Manifest, digest

    body = (root / "planaria-manifest.json").read_bytes()
    assert settled["digest"] == digest(body)
    put = world.client.get_object(Bucket=world.bucket, Key="transfers/t/manifest.json")["Body"].read()
    assert put == body
    for shard in Manifest.from_json(body).shards:
        assert world.proof(7, shard.name) == (shard.size, shard.crc64nvme)


def test_hash_finds_a_flipped_bit(world: World) -> None:
    root = world.save(10, {"a": b"good" * 1000, "b": b"fine"})
    (root / "a").write_bytes(b"goot" + b"good" * 999)
    world.plan(10, "t", Mode.HASH)
    failed = world.run("t")["failed"]
    assert [(each["name"], each["cause"]) for each in failed] == [("a", "bad")]
    assert world.settle("t")["state"] == "corrupt"


def test_copy_does_not_send_what_the_manifest_does_not_say(world: World) -> None:
    root = world.save(10, {"a": b"good" * 1000, "large": LARGE, "b": b"fine"})
    (root / "a").write_bytes(b"goot" + b"good" * 999)
    with (root / "large").open("r+b") as file:
        file.write(bytes([LARGE[0] ^ 1]))
    world.plan(10, "t", Mode.COPY)
    failed = world.run("t")["failed"]
    assert [(each["name"], each["cause"]) for each in failed] == [("a", "bad"), ("large", "bad")]
    listed = world.client.list_objects_v2(Bucket=world.bucket, Prefix="checkpoints/")
    assert [each["Key"].rpartition("/")[2] for each in listed["Contents"]] == ["b"]
    assert world.uploads() == []


@pytest.mark.parametrize("flaw", ["flipped", "truncated", "missing"])
@pytest.mark.parametrize("name", ["small", "large"])
def test_fetch_leaves_nothing_of_a_bad_copy(world: World, flaw: str, name: str) -> None:
    files = {"small": b"good" * 1000, "large": LARGE, "c": b"x"}
    world.store(10, files)
    key = f"checkpoints/{JOB}/step-10/{name}"
    body = files[name]
    bad = {"flipped": bytes([body[0] ^ 1]) + body[1:], "truncated": body[:-1]}
    if flaw == "missing":
        world.client.delete_object(Bucket=world.bucket, Key=key)
    else:
        world.client.put_object(Bucket=world.bucket, Key=key, Body=bad[flaw])
    world.plan("step-10", "t", Mode.FETCH)
    failed = world.run("t")["failed"]
    assert [(each["name"], each["cause"]) for each in failed] == [(name, "bad")]
    settled = world.settle("t")
    assert (settled["state"], settled["cause"]) == ("corrupt", "bad")
    assert name in settled["reason"]
    assert os.listdir(world.folder) == []


def test_planning_again_changes_nothing(world: World) -> None:
    root = world.save(10, {"a": b"1"})
    first = world.plan(10, "t", Mode.COPY)
    (root / "z").write_bytes(b"2")
    assert world.plan(10, "t", Mode.COPY) == first


def test_what_cannot_be_planned_says_why(world: World) -> None:
    assert world.plan(99, "a", Mode.COPY)["state"] == "partial"
    assert "no manifest" in world.plan("step-99", "b", Mode.FETCH)["reason"]
    (world.folder / "step-5").mkdir()
    (world.folder / "step-5/notes.txt").write_text("x")
    told = world.plan(5, "c", Mode.COPY)
    assert told["state"] in ("foreign", "partial") and told["reason"]


def test_a_cancelled_fetch_leaves_nothing(world: World) -> None:
    world.store(10, {"a": b"1", "b": b"2"})
    world.plan("step-10", "t", Mode.FETCH)
    (world.folder / "step-10.restore.tmp").mkdir()
    world.ledger.cancel("t", "not wanted", world.now)
    assert world.run("t")["chunks"] == 0
    assert world.settle("t")["state"] == "partial"
    assert os.listdir(world.folder) == []
