"""Steps on disk for tests: files with bytes of their own, and manifests that fit them."""

from collections.abc import Mapping
from pathlib import Path

from awscrt.checksums import crc64nvme

from planaria.core.manifest import NO_STEP, Format, Lineage, Manifest, Shard, encoded

JOB = "job-1"
FILES: Mapping[str, bytes] = {"model.bin": bytes(range(256)) * 40, "parts/optim ü.bin": b"moments" * 99}


def manifest(
    step: int,
    files: Mapping[str, bytes] = FILES,
    job: str = JOB,
    attempt: int = 1,
    parent: int = NO_STEP,
    saved_at: float = 1_700_000_000.0,
) -> Manifest:
    shards = (Shard(name, len(body), encoded(crc64nvme(body))) for name, body in files.items())
    lineage = Lineage(job, attempt, parent)
    return Manifest(step, lineage, 4, Format.PLANARIA, tuple(shards), saved_at, {"torch": "2.13.0"})


def write(directory: Path, files: Mapping[str, bytes] = FILES) -> Path:
    """The files of a step, without a manifest."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, body in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    return directory


def flip(path: Path, at: int = 3) -> None:
    """One bit of a file."""
    body = bytearray(path.read_bytes())
    body[at] ^= 1
    path.write_bytes(body)
