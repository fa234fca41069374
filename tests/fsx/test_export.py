"""A step on a file system, exported by FSx's task into a real S3 endpoint, is durable by S3's own word; and
comes back."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from awscrt.checksums import crc64nvme

from planaria.aws.checkpoint_bucket import S3Checkpoints
from planaria.aws.fsx import EXPORT, IMPORT, FsxDataRepository
from planaria.checkpoint.directory import FileCheckpoints
from planaria.core.checkpoint_policy import Association, Checkpoints, Place
from planaria.core.checkpoint_policy import FileSystem as InFile
from planaria.core.checkpoint_ports import TaskState
from planaria.core.manifest import Format, Lineage, Manifest, Shard, encoded
from planaria.core.repository_report import Failed, failures
from planaria.core.saved_step import StepState
from tests.fsx.double import FsxDouble
from tests.fsx.file_system import FileSystem, S3Bucket

pytestmark = pytest.mark.needs("seaweedfs")
ID = "fs-0123456789abcdef0"
NAMES = ("__0_0.distcp", "mit leer zeichen", "ünï/cödé+%20", ".metadata")


class World:
    """A job's step 500 on a file system whose /checkpoints is linked to a bucket."""

    def __init__(self, root: Path, bucket: str, client: Any, double: FsxDouble, url: str) -> None:
        self.root, self.double = root / "fsx", double
        links = {"/checkpoints/": f"s3://{bucket}/linked/"}
        self.file_system = FileSystem(ID, self.root, links)
        double.add(self.file_system)
        association = Association("/checkpoints/", f"s3://{bucket}/linked/")
        policy = Checkpoints((InFile("scratch", ID, str(self.root), "us-east-1a", (association,)),))
        self.client, self.bucket = client, bucket
        self.repository = FsxDataRepository(
            boto3.client(
                "fsx",
                region_name="us-east-1",
                aws_access_key_id="x",
                aws_secret_access_key="x",
                endpoint_url=url,
            ),
            policy,
            "demo",
        )
        self.folder = self.root / "checkpoints/gpt"
        shards = []
        for number, name in enumerate(NAMES):
            body = bytes([number]) * (1000 * number)
            file = self.folder / "step-500" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(body)
            shards.append(Shard(name, len(body), encoded(crc64nvme(body))))
        self.manifest = Manifest(500, Lineage("gpt", 1), 4, Format.PLANARIA, tuple(shards), 1_793_610_845.0)
        self.files = FileCheckpoints(self.folder, "gpt")
        self.files.commit(self.manifest, "step-500")
        found = policy.place(str(self.folder / "step-500"))
        assert isinstance(found, Place)
        self.place = found
        bucket_name, _, prefix = found.url.removeprefix("s3://").partition("/")
        self.store = S3Checkpoints(client, bucket_name, prefix.rpartition("/")[0], "gpt", threads=4)

    def run(self, kind: str, path: str, token: str) -> TaskState:
        """As the workflow does it: started, then looked at until it is over."""
        task_id = self.repository.start(ID, kind, [path], token)
        for _ in range(10):
            task = self.repository.task(task_id)
            if task.state not in (TaskState.PENDING, TaskState.EXECUTING):
                self.report = task.report
                return task.state
        raise AssertionError("the task does not end")


@pytest.fixture
def world(tmp_path: Path, object_store: Any, bucket: str) -> Iterator[World]:
    client = object_store.client()
    double = FsxDouble(S3Bucket(client), self_moving=True)
    with double.served() as url:
        yield World(tmp_path, bucket, client, double, url)
    assert double.complaints == []


def test_an_exported_step_is_durable_by_s3s_own_word(world: World) -> None:
    assert world.run(EXPORT, world.place.path, "t-1") is TaskState.SUCCEEDED
    (copy,) = world.store.steps()
    assert copy.usable and copy.step == 500 and copy.place == world.place.url
    assert world.store.verify(copy).state is StepState.DURABLE
    (own,) = world.files.steps()
    assert copy.digest == own.digest, "both tiers hold the same bytes"
    assert world.store.commit(world.manifest, "step-500") is False, "FSx has brought the manifest along"


def test_a_file_that_was_being_written_leaves_a_step_that_is_not_durable(world: World) -> None:
    busy = f"{world.place.path}/__0_0.distcp"
    world.file_system.busy.add(busy)
    assert world.run(EXPORT, world.place.path, "t-1") is TaskState.FAILED
    bucket, _, key = world.report.removeprefix("s3://").partition("/")
    report = world.client.get_object(Bucket=bucket, Key=key)["Body"].read()
    assert failures(report) == (Failed(busy, "ResourceBusy"),)
    (copy,) = world.store.steps()
    assert world.store.verify(copy).state is not StepState.DURABLE
    world.file_system.busy.clear()
    assert world.run(EXPORT, world.place.path, "t-2") is TaskState.SUCCEEDED
    (copy,) = world.store.steps()
    assert world.store.verify(copy).state is StepState.DURABLE


def test_a_file_that_changed_after_its_manifest_is_not_durable(world: World) -> None:
    (world.folder / "step-500" / ".metadata").write_bytes(b"\xff" * 3000)
    assert world.run(EXPORT, world.place.path, "t-1") is TaskState.SUCCEEDED, "FSx knows no manifest"
    (copy,) = world.store.steps()
    proven = world.store.verify(copy)
    assert proven.state is StepState.CORRUPT and ".metadata" in proven.reason


def test_a_wiped_file_system_gets_its_step_back(world: World) -> None:
    world.run(EXPORT, world.place.path, "t-1")
    shutil.rmtree(world.folder)
    assert world.run(IMPORT, world.place.url, "t-2") is TaskState.SUCCEEDED
    (copy,) = world.files.steps()
    assert copy.usable and world.files.verify(copy).usable
    assert (world.folder / "step-500" / "ünï/cödé+%20").stat().st_size == 2000
