"""Checkpoint steps on real files, as the tests of `planaria checkpoints` want them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planaria.aws.checkpoint_bucket import S3Checkpoints
from planaria.checkpoint import checksums
from planaria.checkpoint.directory import FileCheckpoints
from planaria.core.manifest import FILE_NAME, Format, Lineage, Manifest, Shard

SAVED = 1_793_600_000.0
FILES: Mapping[str, bytes] = {
    "__0_0.distcp": b"weights" * 1000,
    "rank 1/größe.distcp": b"\0" * 4096,
    "leer": b"",
}


def save(
    root: Path,
    step: int,
    attempt: int = 1,
    parent: int = -1,
    job: str = "gpt",
    files: Mapping[str, bytes] = FILES,
    name: str = "",
) -> Path:
    """One complete step -> its directory. The later the step and attempt, the later it was saved."""
    directory = root / (name or f"step-{step}")
    for shard, body in files.items():
        path = directory / shard
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    sums = checksums.of_files(directory, {shard: len(body) for shard, body in files.items()})
    manifest = Manifest(
        step=step,
        lineage=Lineage(job, attempt, parent),
        world_size=2,
        format=Format.DCP,
        shards=tuple(Shard(shard, told.size, told.crc64nvme) for shard, told in sums.items()),
        saved_at=SAVED + attempt * 10_000 + step,
        framework={"torch": "2.13.0"},
    )
    FileCheckpoints(root, job).commit(manifest, directory.name)
    return directory


def flip(path: Path, at: int = 0) -> None:
    """One bit of a file is another one now; its length and its time are as before."""
    body, told = bytearray(path.read_bytes()), path.stat()
    body[at] ^= 1
    path.write_bytes(bytes(body))
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))


def size(files: Mapping[str, bytes] = FILES) -> int:
    return sum(len(body) for body in files.values())


def put(client: Any, bucket: str, prefix: str, directory: Path, commit: bool = True) -> None:
    """A complete step's directory into S3, as an upload of ours leaves it there."""
    manifest = Manifest.from_json((directory / FILE_NAME).read_bytes())
    for shard in manifest.shards:
        client.put_object(
            Bucket=bucket,
            Key=f"{prefix}/{directory.name}/{shard.name}",
            Body=(directory / shard.name).read_bytes(),
            ChecksumCRC64NVME=shard.crc64nvme,
        )
    if commit:
        S3Checkpoints(client, bucket, prefix, manifest.lineage.job).commit(manifest, directory.name)
