"""The CheckpointStore port: a directory of a file system, a bucket and the memory twin."""

import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

from planaria.checkpoint.directory import FileCheckpoints
from planaria.core.checkpoint_ports import CheckpointStore
from planaria.core.errors import InvalidInput, PermanentError
from planaria.core.manifest import FILE_NAME, Manifest, digest
from planaria.core.pins import Pin
from planaria.core.saved_step import StepCopy, StepState
from planaria.memory.checkpoints import Held, MemoryCheckpoints
from tests.checkpoint.steps import FILES, JOB, flip, manifest, write

LATER = 4e9


class World(Protocol):
    """What lies in the place, put there by somebody else than the store."""

    @property
    def store(self) -> CheckpointStore: ...
    def put(self, name: str, files: Mapping[str, bytes]) -> None: ...
    def put_manifest(self, name: str, body: bytes) -> None: ...
    def take(self, name: str, shard: str) -> None: ...
    def flip(self, name: str, shard: str) -> None: ...
    def names(self) -> set[str]: ...


@dataclass
class Directory:
    root: Path
    store: FileCheckpoints

    def put(self, name: str, files: Mapping[str, bytes]) -> None:
        write(self.root / name, files)

    def put_manifest(self, name: str, body: bytes) -> None:
        write(self.root / name, {FILE_NAME: body})

    def take(self, name: str, shard: str) -> None:
        (self.root / name / shard).unlink()

    def flip(self, name: str, shard: str) -> None:
        flip(self.root / name / shard)

    def names(self) -> set[str]:
        return {name for name in os.listdir(self.root) if any((self.root / name).rglob("*"))}


@dataclass
class Memory:
    store: MemoryCheckpoints
    now: float = field(default_factory=time.time)

    def put(self, name: str, files: Mapping[str, bytes]) -> None:
        self.store.put(name, manifest(1, files or FILES).shards if files else (), self.now)

    def put_manifest(self, name: str, body: bytes) -> None:
        self.store.held.setdefault(name, Held(touched_at=self.now)).manifest = body

    def take(self, name: str, shard: str) -> None:
        del self.store.held[name].shards[shard]

    def flip(self, name: str, shard: str) -> None:
        self.store.held[name].shards[shard] = (self.store.held[name].shards[shard][0], "AAAAAAAAAAA=")

    def names(self) -> set[str]:
        return set(self.store.held)


@dataclass
class Bucket:
    """prefix: with a slash at its end."""

    client: Any
    bucket: str
    prefix: str
    store: CheckpointStore

    def put(self, name: str, files: Mapping[str, bytes]) -> None:
        for shard, body in files.items():
            self._put(f"{name}/{shard}", body)

    def put_manifest(self, name: str, body: bytes) -> None:
        self._put(f"{name}/{FILE_NAME}", body)

    def take(self, name: str, shard: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=f"{self.prefix}{name}/{shard}")

    def flip(self, name: str, shard: str) -> None:
        body = bytearray(FILES[shard])
        body[3] ^= 1
        self._put(f"{name}/{shard}", bytes(body))

    def names(self) -> set[str]:
        listed = self.client.list_objects_v2(Bucket=self.bucket, Prefix=self.prefix).get("Contents", [])
        return {each["Key"].removeprefix(self.prefix).partition("/")[0] for each in listed}

    def _put(self, key: str, body: bytes) -> None:
        self.client.put_object(
            Bucket=self.bucket, Key=self.prefix + key, Body=body, ChecksumAlgorithm="CRC64NVME"
        )


@pytest.fixture(params=["directory", "memory", pytest.param("bucket", marks=pytest.mark.needs("seaweedfs"))])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "directory":
        root = tmp_path / "checkpoints"
        root.mkdir()
        yield Directory(root, FileCheckpoints(root, JOB))
    elif request.param == "memory":
        yield Memory(MemoryCheckpoints(JOB))
    else:
        from planaria.aws.checkpoint_bucket import S3Checkpoints

        client = request.getfixturevalue("object_store").client()
        bucket = request.getfixturevalue("bucket")
        store = S3Checkpoints(client, bucket, "checkpoints/job", JOB)
        yield Bucket(client, bucket, "checkpoints/job/", store)


def save(world: World, step: int, name: str = "", **facts: Any) -> Manifest:
    told = manifest(step, **facts)
    world.put(name or f"step-{step}", FILES)
    assert world.store.commit(told, name)
    return told


def only(world: World) -> StepCopy:
    (copy,) = world.store.steps()
    return copy


def test_nothing_was_ever_saved(world: World) -> None:
    assert world.store.steps() == []


@pytest.mark.parametrize("name", ["", "iter_0000010", "checkpoint-10", "epoch=1-step=10"])
def test_a_committed_step_is_whole(world: World, name: str) -> None:
    told = save(world, 10, name)
    copy = only(world)
    assert copy.usable
    assert copy.place == world.store.place(name or "step-10")
    assert (copy.step, copy.name, copy.size) == (10, name or "step-10", told.size)
    assert (copy.lineage, copy.saved_at) == (told.lineage, told.saved_at)
    assert copy.digest == digest(told.to_json())
    assert world.store.manifest(copy) == Manifest.from_json(told.to_json())
    verified = world.store.verify(copy)
    assert verified.usable and verified.digest == copy.digest


def test_a_shard_that_is_missing_is_seen_at_once(world: World) -> None:
    save(world, 10)
    world.take("step-10", "model.bin")
    copy = only(world)
    assert copy.state is StepState.CORRUPT and "model.bin" in copy.reason
    assert world.store.verify(copy).state is StepState.CORRUPT


def test_a_shard_of_another_size_is_seen_at_once(world: World) -> None:
    save(world, 10)
    world.put("step-10", {"model.bin": b"short"})
    copy = only(world)
    assert copy.state is StepState.CORRUPT and "model.bin" in copy.reason


def test_a_flipped_bit_is_seen_by_verify(world: World) -> None:
    save(world, 10)
    world.flip("step-10", "model.bin")
    copy = only(world)
    assert copy.usable
    verified = world.store.verify(copy)
    assert verified.state is StepState.CORRUPT and "model.bin" in verified.reason


def test_another_jobs_step_is_foreign(world: World) -> None:
    world.put("step-10", FILES)
    world.put_manifest("step-10", manifest(10, job="job-2").to_json())
    copy = only(world)
    assert copy.state is StepState.FOREIGN and "job-2" in copy.reason


def test_name_and_manifest_must_agree(world: World) -> None:
    world.put("step-500", FILES)
    world.put_manifest("step-500", manifest(10).to_json())
    copy = only(world)
    assert (copy.step, copy.state) == (500, StepState.CORRUPT) and "step 10" in copy.reason


@pytest.mark.parametrize("name", ["step-10.tmp", "step-10.restore.tmp", "tmp-checkpoint-10"])
def test_what_is_called_unfinished_is_never_usable(world: World, name: str) -> None:
    world.put(name, FILES)
    world.put_manifest(name, manifest(10).to_json())
    copy = only(world)
    assert (copy.step, copy.state) == (10, StepState.PARTIAL) and copy.reason


def test_a_step_without_a_manifest_is_not_usable(world: World) -> None:
    world.put("step-10", FILES)
    copy = only(world)
    assert not copy.usable and copy.reason
    with pytest.raises(InvalidInput):
        world.store.manifest(copy)
    assert not world.store.verify(copy).usable


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"version": 7}', b"\xff\xfe", b"[" * 100_000])
def test_a_manifest_that_cannot_be_read_is_corrupt(world: World, body: bytes) -> None:
    world.put("step-10", FILES)
    world.put_manifest("step-10", body)
    copy = only(world)
    assert copy.state is StepState.CORRUPT and "manifest" in copy.reason
    with pytest.raises(InvalidInput):
        world.store.manifest(copy)


def test_an_implausible_number_is_not_usable(world: World) -> None:
    save(world, 10)
    save(world, 10**15)
    told = {copy.step: copy for copy in world.store.steps()}
    assert told[10].usable
    assert told[10**15].state is StepState.FOREIGN and told[10**15].reason


def test_other_things_in_the_place_are_no_steps(world: World) -> None:
    save(world, 10)
    for name in ("latest", "logs", "step-10.removed.tmp"):
        world.put(name, {"a": b"1"})
    assert [copy.name for copy in world.store.steps() if copy.usable] == ["step-10"]


def test_the_same_manifest_twice_is_one(world: World) -> None:
    told = save(world, 10)
    assert world.store.commit(told) is False
    assert only(world).usable


def test_another_manifest_is_refused(world: World) -> None:
    told = save(world, 10)
    with pytest.raises(PermanentError):
        world.store.commit(manifest(10, attempt=2))
    assert only(world).digest == digest(told.to_json())


def test_a_manifest_of_another_step_or_job_is_refused(world: World) -> None:
    world.put("step-10", FILES)
    for told in (manifest(20), manifest(10, job="job-2")):
        with pytest.raises(PermanentError):
            world.store.commit(told, "step-10")
    assert not only(world).usable


def test_of_many_committers_one_wins(world: World) -> None:
    world.put("step-10", FILES)
    told = [manifest(10, attempt=number) for number in range(1, 9)]

    def commit(each: Manifest) -> bool:
        try:
            return world.store.commit(each)
        except PermanentError:
            return False

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(commit, told))
    assert won.count(True) == 1
    copy = only(world)
    assert copy.usable and world.store.manifest(copy).lineage.attempt == told[won.index(True)].lineage.attempt


def test_of_many_who_commit_the_same_none_fails(world: World) -> None:
    world.put("step-10", FILES)
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda _: world.store.commit(manifest(10)), range(8)))
    assert won.count(True) == 1


def test_remove_takes_all_of_one_step_and_nothing_else(world: World) -> None:
    save(world, 10)
    save(world, 20)
    copy = next(copy for copy in world.store.steps() if copy.step == 10)
    world.store.remove(copy)
    assert world.names() == {"step-20"}
    assert only(world).step == 20
    world.store.remove(copy)


def test_what_was_saved_anew_since_is_not_removed(world: World) -> None:
    save(world, 10)
    listed = only(world)
    world.put_manifest("step-10", manifest(10, attempt=2).to_json())
    with pytest.raises(PermanentError):
        world.store.remove(listed)
    assert only(world).usable


def test_a_copy_of_elsewhere_is_refused(world: World) -> None:
    save(world, 10)
    copy = StepCopy(10, only(world).tier, StepState.COMPLETE, "/etc/step-10")
    for act in (world.store.remove, world.store.manifest, world.store.verify):
        with pytest.raises(InvalidInput):
            act(copy)
    assert only(world).usable


def test_sweep_takes_what_nobody_finished_and_leaves_the_rest(world: World) -> None:
    save(world, 10)
    world.put("step-20.tmp", FILES)
    world.put("step-30.tmp", FILES)
    assert world.store.sweep(before=1.0) == []
    world.store.sweep(before=LATER, active=["step-30.tmp"])
    assert world.names() == {"step-10", "step-30.tmp"}
    assert {copy.step for copy in world.store.steps() if copy.usable} == {10}


def test_a_pin_is_told_and_goes(world: World) -> None:
    save(world, 10)
    world.store.pin(only(world), Pin("the one for the paper", "kim", 1.0))
    world.store.pin(only(world), Pin("for the talk", "kim", 2.0))
    copy = only(world)
    assert copy.usable and copy.pinned == "for the talk"
    assert world.store.verify(copy).usable
    world.store.unpin(copy)
    world.store.unpin(copy)
    assert only(world).pinned == ""


def test_what_is_not_there_cannot_be_pinned(world: World) -> None:
    save(world, 20)
    copy = StepCopy(10, only(world).tier, StepState.PARTIAL, world.store.place("step-10"))
    with pytest.raises(PermanentError):
        world.store.pin(copy, Pin("why", "kim", 1.0))
