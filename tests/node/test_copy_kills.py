"""A copier that is killed at any point: whoever goes on comes to the same end, and what S3 has already is not
sent again. Nothing that is half there is ever a step."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planaria.checkpoint.directory import FileCheckpoints
from planaria.core.transfers import MIB, Mode
from tests.node.transfer_world import JOB, NOW, FileTable, World, crc_of

pytestmark = pytest.mark.needs("seaweedfs")

ROOT = Path(__file__).resolve().parents[2]
FILES = {"huge": os.urandom(40 * MIB + 3), "large": os.urandom(17 * MIB), "a b": b"x" * 5000, "empty": b""}
LATER = 61.0
"""Seconds after which a dead carrier's lease is over."""


@pytest.fixture
def world(tmp_path: Path, object_store: Any, bucket: str, monkeypatch: pytest.MonkeyPatch) -> World:
    for name, value in object_store.environment().items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    return World(folder, bucket, object_store.client(), FileTable(tmp_path / "table.json"))


def _child(
    world: World, verb: str, point: int, transfer: str, step: str, mode: Mode
) -> dict[str, Any] | None:
    """None: it was killed."""
    assert isinstance(world.table, FileTable)
    told = {
        "verb": verb,
        "folder": str(world.folder),
        "bucket": world.bucket,
        "table": str(world.table._path),
        "transfer": transfer,
        "step": step,
        "mode": mode.value,
        "point": point,
        "now": world.now,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.node.copy_child", json.dumps(told)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode == -9:
        return None
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _points(few: bool) -> Iterator[int]:
    """Every third point, which is some thirty processes and a minute or two, or five. The twins' tests
    of syncs and restores die at every one."""
    yield from range(1, 400, 3) if not few else (2, 7, 13, 22, 34)


def _copied(world: World, step: int) -> None:
    for name, body in FILES.items():
        assert world.proof(step, name) == (len(body), crc_of(body)), name


def _campaign(world: World, few: bool) -> int:
    """Kill the copy at each of them, then let another finish. -> the number of points that killed it."""
    world.save(1, FILES)
    killed = 0
    for point in _points(few):
        transfer = f"up{point}"
        for key in [each["Key"] for each in _listed(world)]:
            world.client.delete_object(Bucket=world.bucket, Key=key)
        verbs = ["plan", "run"]
        dead = False
        for verb in verbs:
            if _child(world, verb, point, transfer, "1", Mode.COPY) is None:
                dead = True
                killed += 1
                if verb == "run":
                    world.now += LATER
                assert _child(world, verb, 0, transfer, "1", Mode.COPY) is not None
        assert world.ledger.progress(transfer, world.now).finished
        _copied(world, 1)
        assert world.settle(transfer)["state"] == "complete"
        if not dead:
            return killed
    return killed


def _listed(world: World) -> list[dict[str, Any]]:
    told = world.client.list_objects_v2(Bucket=world.bucket, Prefix="checkpoints/")
    return list(told.get("Contents", ()))


def test_a_copier_killed_at_some_points_is_followed_by_another(world: World) -> None:
    assert _campaign(world, few=True) > 4


@pytest.mark.campaign
def test_a_copier_killed_at_every_third_point_is_followed_by_another(world: World) -> None:
    assert _campaign(world, few=False) > 10


def _fetch_campaign(world: World, few: bool) -> int:
    world.store(1, FILES)
    killed = 0
    for point in _points(few):
        transfer = f"down{point}"
        dead = False
        for verb in ("plan", "run", "settle"):
            if _child(world, verb, point, transfer, "step-1", Mode.FETCH) is None:
                dead = True
                killed += 1
                usable = [copy for copy in FileCheckpoints(world.folder, JOB).steps() if copy.usable]
                for copy in usable:
                    assert FileCheckpoints(world.folder, JOB).verify(copy).usable
                assert verb == "settle" or not usable
                if verb == "run":
                    world.now += LATER
                told = _child(world, verb, 0, transfer, "step-1", Mode.FETCH)
                assert told is not None
                assert verb != "settle" or told["answer"]["state"] == "complete", told
        for name, body in FILES.items():
            assert (world.folder / "step-1" / name).read_bytes() == body
        assert [copy.name for copy in FileCheckpoints(world.folder, JOB).steps() if copy.usable] == ["step-1"]
        assert sorted(os.listdir(world.folder)) == [".planaria", "step-1"]
        subprocess.run(["rm", "-rf", str(world.folder / "step-1")], check=True)
        if not dead:
            return killed
    return killed


def test_a_fetch_killed_at_some_points_is_followed_by_another(world: World) -> None:
    assert _fetch_campaign(world, few=True) > 4


@pytest.mark.campaign
def test_a_fetch_killed_at_every_third_point_is_followed_by_another(world: World) -> None:
    assert _fetch_campaign(world, few=False) > 7


def test_parts_that_s3_has_are_not_sent_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first copier ends before the upload is completed; the next one finds it and reads on."""
    from planaria.aws import transfer as engines

    body = os.urandom(64 * MIB + 5)
    root = world.save(2, {"huge": body})
    told: list[int] = []

    def killed(*_: Any) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engines.Engine, "finish_upload", killed)
        engine = world.setting().engine()
        from planaria.core.transfers import File
        from planaria.node.tree import Tree

        with Tree(root) as tree, pytest.raises(KeyboardInterrupt):
            engine.send(tree, File("huge", len(body)), f"checkpoints/{JOB}/step-2/huge")
        engine.close()
    assert world.uploads() == [f"checkpoints/{JOB}/step-2/huge"]
    real = engines.Engine._send_part

    def counted(self: Any, key: str, upload: str, number: int, *more: Any) -> Any:
        told.append(number)
        return real(self, key, upload, number, *more)

    monkeypatch.setattr(engines.Engine, "_send_part", counted)
    with (root / "huge").open("r+b") as file:  # the third part is another one now
        file.seek(40 * MIB)
        file.write(bytes([body[40 * MIB] ^ 1]))
    now = (root / "huge").read_bytes()
    (root / "planaria-manifest.json").write_bytes(world.manifest(2, {"huge": now}).to_json())
    world.plan(2, "t", Mode.COPY)
    assert world.run("t")["failed"] == []
    assert told == [3]
    assert world.proof(2, "huge") == (len(now), crc_of(now))
    assert world.uploads() == []


def test_a_carrier_that_lost_its_chunk_changes_nothing(world: World) -> None:
    world.save(3, {"a": b"1"})
    world.plan(3, "t", Mode.COPY, 1)
    lost = world.ledger.claim("t", "dead", NOW)
    assert lost is not None
    world.now = NOW + LATER
    assert world.run("t")["chunks"] == 1
    from planaria.core.errors import Fenced

    with pytest.raises(Fenced):
        world.ledger.done(lost, 1, (), "elsewhere", world.now)
    assert world.settle("t")["state"] == "complete"
