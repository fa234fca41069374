"""What others can put into a step's directory costs that step, never the listing."""

import base64
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planaria.aws import bucket_objects
from planaria.aws.checkpoint_bucket import S3Checkpoints
from planaria.aws.step_judging import jobs_in
from planaria.checkpoint import safetensors_index
from planaria.checkpoint.directory import FileCheckpoints
from planaria.cli import screen
from planaria.core import manifest as manifests
from planaria.core import pins
from planaria.core.checkpoint_policy import Retention
from planaria.core.errors import InvalidInput
from planaria.core.manifest import FILE_NAME, PIN_NAME, Manifest
from planaria.core.retention import plan
from planaria.core.saved_step import StepCopy, StepState, Tier

SHARD = {"name": "a", "size": 0, "crc64nvme": base64.b64encode(bytes(8)).decode()}


def body(**given: Any) -> bytes:
    lineage = {"job": "j", "attempt": 0, "parent_step": -1}
    told = {"version": 1, "step": 500, "world_size": 1, "format": "dcp", "lineage": lineage}
    return json.dumps({**told, "shards": [SHARD], "framework": {}, "saved_at": 1.0, **given}).encode()


def step(root: Path, number: int) -> Path:
    path = root / f"step-{number}"
    path.mkdir()
    (path / "a").write_bytes(b"")
    (path / FILE_NAME).write_bytes(body(step=number))
    return path


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, _socket, lambda path: path.symlink_to("/dev/zero")])
def test_no_regular_file_in_a_manifests_or_a_pins_place(tmp_path: Path, make: Callable[[Path], None]) -> None:
    step(tmp_path, 400)
    bad, pinned = step(tmp_path, 500), step(tmp_path, 600)
    (bad / FILE_NAME).unlink()
    make(bad / FILE_NAME)
    make(pinned / PIN_NAME)
    found = {copy.step: copy for copy in FileCheckpoints(tmp_path, "j").steps()}
    assert found[400].state is StepState.COMPLETE
    assert (found[500].state, "no regular file" in found[500].reason) == (StepState.CORRUPT, True)
    assert (found[600].state, found[600].pinned) == (StepState.COMPLETE, pins.UNREADABLE)


def test_a_manifest_above_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step(tmp_path, 400)
    with (step(tmp_path, 500) / FILE_NAME).open("wb") as stream:
        stream.truncate(manifests.LARGEST + 1)
    found = {copy.step: copy for copy in FileCheckpoints(tmp_path, "j").steps()}
    assert found[400].state is StepState.COMPLETE
    assert (found[500].state, "at most" in found[500].reason) == (StepState.CORRUPT, True)
    kept = Manifest.from_json(body())
    monkeypatch.setattr(manifests, "LARGEST", 10)
    with pytest.raises(InvalidInput, match="fewer files"):
        kept.to_json()


@pytest.mark.parametrize(
    "given",
    [
        {"saved_at": 9.3e9},
        {"saved_at": 10**400},
        {"step": 10**18},
        {"lineage": {"job": "j", "attempt": 10**6, "parent_step": -1}},
        {"lineage": {"job": "j", "attempt": 0, "parent_step": 10**18}},
        {"world_size": 2**63},
        {"shards": [{**SHARD, "size": 2**63}]},
        {"shards": [{**SHARD, "size": 2**62}, {**SHARD, "name": "b", "size": 2**62}]},
    ],
)
def test_values_that_cannot_be_true(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Manifest.from_json(body(**given))


@pytest.mark.parametrize("at", [9e11, 1e300, float("inf"), float("nan"), -1e18])
def test_a_time_that_no_calendar_has(at: float) -> None:
    assert screen.iso(at) is None


def test_a_safetensors_header_or_index_above_the_bound(tmp_path: Path) -> None:
    length = safetensors_index.LONGEST_HEADER + 1
    for name in ("model.safetensors", "other.safetensors.index.json"):
        path = tmp_path / name / "step-500"
        path.mkdir(parents=True)
        with (path / name).open("wb") as stream:
            stream.write(length.to_bytes(8, "little"))
            stream.truncate(safetensors_index.LARGEST_INDEX + 1)
        if "index" in name:
            (path / "m.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
        [copy] = FileCheckpoints(tmp_path / name, "j").steps()
        assert (copy.state, "are read" in copy.reason) == (StepState.FOREIGN, True)


@pytest.mark.parametrize(
    ("saved", "touched", "goes"),
    [(1e9, None, False), (1e9, 1e9, False), (1e9, 0.0, True), (1e6 + 3600, 0.0, False), (0.0, 1e9, True)],
)
def test_a_save_in_the_far_future_does_not_stay_for_ever(
    saved: float, touched: float | None, goes: bool
) -> None:
    lineage = manifests.Lineage("j")
    old = StepCopy(
        5, Tier.S3, StepState.DURABLE, "s3://b/step-5", lineage=lineage, saved_at=saved, touched_at=touched
    )
    new = StepCopy(9, Tier.S3, StepState.DURABLE, "s3://b/step-9", lineage=lineage, saved_at=1e6)
    told = plan([old, new], Tier.S3, Retention(keep=1, keep_seconds=7200.0), 1e6).verdicts
    assert {each.copy.step: each.goes for each in told} == {5: goes, 9: False}


def test_one_object_above_the_bound_leaves_the_listing(
    object_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, bucket = object_store.client(), object_store.make_bucket()
    monkeypatch.setattr(bucket_objects, "LARGEST", 1000)
    for number in (400, 500, 600):
        client.put_object(Bucket=bucket, Key=f"p/step-{number}/a", Body=b"")
        client.put_object(Bucket=bucket, Key=f"p/step-{number}/{FILE_NAME}", Body=body(step=number))
    client.put_object(Bucket=bucket, Key=f"p/step-500/{FILE_NAME}", Body=b" " * 1001)
    client.put_object(Bucket=bucket, Key=f"p/step-600/{PIN_NAME}", Body=b" " * 1001)
    found = {copy.step: copy for copy in S3Checkpoints(client, bucket, "p", "j").steps()}
    assert found[400].state is StepState.COMPLETE
    assert (found[500].state, "at most" in found[500].reason) == (StepState.CORRUPT, True)
    assert (found[600].state, found[600].pinned) == (StepState.COMPLETE, pins.UNREADABLE)
    assert jobs_in(client, bucket, "p") == {"j": 2}
