"""The manifest of a checkpoint step: what belongs to it, written last. docs/checkpoints.md shows the file.

    {"version": 1, "step": int, "world_size": int, "format": "dcp" | "safetensors" | "torch" | "planaria",
     "lineage": {"job": str, "attempt": int, "parent_step": int},
     "shards": [{"name": str, "size": bytes, "crc64nvme": base64}],
     "framework": {"torch": "2.13.0", ...}, "saved_at": epoch seconds}

A checksum is CRC64NVME as S3 writes it, eight big-endian bytes in base64: S3 tells the same for the whole
object, however it was uploaded, so one HeadObject per shard proves that it is there.
https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from planaria.core.errors import InvalidInput

FILE_NAME = "planaria-manifest.json"
PIN_NAME = "planaria-pin.json"
"""{"reason": str, "by": str, "at": epoch seconds} beside the manifest: the step must stay. It is no shard."""
OWN_FILES = frozenset({FILE_NAME, PIN_NAME})
VERSION = 1
NO_STEP = -1
CHECKSUM_BYTES = 8
LARGEST = 64 << 20
"""Bytes of a manifest, in every tier: room for some 400,000 shards, and for no more than memory holds."""
LATEST = 9.2e9
"""Epoch seconds: no step is saved after the year 2261."""
_MOST_BYTES = 2**63 - 1
_HIGHEST = 10**18 - 1
_MOST_ATTEMPTS = 10**6 - 1
LONGEST_NAME = 800
"""Bytes of UTF-8: a key of S3 has at most 1,024, and prefix, job and step come before the name."""


class Format(StrEnum):
    """DCP: torch.distributed.checkpoint; TORCH: one torch.save file; PLANARIA: our own checkpoint library."""

    DCP = "dcp"
    SAFETENSORS = "safetensors"
    TORCH = "torch"
    PLANARIA = "planaria"


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a step comes from. parent_step: the step that its attempt saved or resumed from just before it,
    always below it; -1 for none, and where nobody knows."""

    job: str
    attempt: int = 0
    parent_step: int = NO_STEP


@dataclass(frozen=True, slots=True)
class Shard:
    """One file. name: its path below the step's directory, with `/`; size: bytes; crc64nvme: base64."""

    name: str
    size: int
    crc64nvme: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """world_size: ranks that saved it, 0 where nobody knows; saved_at: when the step was complete (epoch
    seconds); framework: package -> version, as far as known."""

    step: int
    lineage: Lineage
    world_size: int
    format: Format
    shards: tuple[Shard, ...]
    saved_at: float
    framework: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all shards."""
        return sum(shard.size for shard in self.shards)

    def to_json(self) -> bytes:
        """The same manifest gives the same bytes. Raises InvalidInput where they are more than LARGEST."""
        document = {
            "version": VERSION,
            "step": self.step,
            "world_size": self.world_size,
            "format": self.format.value,
            "lineage": {
                "job": self.lineage.job,
                "attempt": self.lineage.attempt,
                "parent_step": self.lineage.parent_step,
            },
            "shards": [
                {"name": shard.name, "size": shard.size, "crc64nvme": shard.crc64nvme}
                for shard in sorted(self.shards, key=lambda shard: shard.name)
            ],
            "framework": dict(sorted(self.framework.items())),
            "saved_at": self.saved_at,
        }
        body = json.dumps(document, ensure_ascii=True).encode()
        if len(body) > LARGEST:
            raise InvalidInput(too_large(len(body)))
        return body

    @classmethod
    def from_json(cls, body: bytes) -> "Manifest":
        """Raises InvalidInput with one sentence; whatever is in the bytes, nothing else is raised."""
        if len(body) > LARGEST:
            raise InvalidInput(too_large(len(body)))
        try:
            return _read(json.loads(body))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidInput(f"the manifest cannot be read: {_said(error)}") from None


def too_large(size: int) -> str:
    """size: bytes that a manifest has."""
    return f"the manifest has {size} bytes, and at most {LARGEST} are read: save the step in fewer files"


def digest(body: bytes) -> str:
    """Of a manifest's bytes: two copies of a step with the same one are the same."""
    return hashlib.sha256(body).hexdigest()


def encoded(crc: int) -> str:
    """A CRC64NVME as S3 writes it."""
    return base64.b64encode(crc.to_bytes(CHECKSUM_BYTES, "big")).decode()


def is_plain(name: str) -> bool:
    """A relative path below the step's directory that leads nowhere else and that S3 takes as a key."""
    if (
        name in (FILE_NAME, PIN_NAME)
        or "\0" in name
        or any(part in ("", ".", "..") for part in name.split("/"))
    ):
        return False
    try:
        return len(name.encode()) <= LONGEST_NAME
    except UnicodeEncodeError:  # a name on disk that is no UTF-8
        return False


def _read(document: Any) -> Manifest:
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    if document["version"] != VERSION:
        raise ValueError(f"it has version {document['version']!r:.40}, this release reads {VERSION}")
    lineage = document["lineage"]
    manifest = Manifest(
        step=_count(document["step"], "step", _HIGHEST),
        lineage=Lineage(
            _text(lineage["job"], "job"),
            _count(lineage["attempt"], "attempt", _MOST_ATTEMPTS),
            _whole(lineage["parent_step"], "parent_step", NO_STEP, _HIGHEST),
        ),
        world_size=_count(document["world_size"], "world_size"),
        format=Format(document["format"]),
        shards=tuple(_shard(each) for each in document["shards"]),
        saved_at=_seconds(document["saved_at"]),
        framework={
            _text(name, "framework"): _text(version, "framework")
            for name, version in document["framework"].items()
        },
    )
    if not manifest.shards:
        raise ValueError("it names no shards")
    if manifest.size > _MOST_BYTES:
        raise ValueError("its shards have more bytes than any file system holds")
    if len({shard.name for shard in manifest.shards}) != len(manifest.shards):
        raise ValueError("it names a shard twice")
    return manifest


def _shard(given: Mapping[str, Any]) -> Shard:
    name = _text(given["name"], "shard name")
    if not is_plain(name):
        raise ValueError(f"the shard name {name!r:.200} is no path below the step's directory")
    checksum = _text(given["crc64nvme"], "crc64nvme")
    if len(base64.b64decode(checksum, validate=True)) != CHECKSUM_BYTES:
        raise ValueError(f"the checksum of {name!r:.200} is no CRC64NVME")
    return Shard(name, _count(given["size"], "size"), checksum)


def _whole(value: Any, what: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{what} is {value!r:.40}, it must be a whole number from {least} to {most}")
    return value


def _count(value: Any, what: str, most: int = _MOST_BYTES) -> int:
    return _whole(value, what, 0, most)


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{what} is {value!r:.40}, it must be a text")
    return value


def _seconds(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= LATEST:
        raise ValueError(f"saved_at is {value!r:.40}, it must be epoch seconds")
    return float(value)


def _said(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]!r}"
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON ({error})"
    return str(error) or type(error).__name__
