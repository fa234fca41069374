"""A directory up or down by this machine alone, without a cluster.

What was sent is remembered in a cursor, by default ~/.cache/planaria/sent/<digest of both places>.json:

    {"version": 1, "place": "s3://...", "listed_at": epoch seconds,
     "files": {name: [bytes, mtime ns, inode, crc64nvme, ETag]}}

A file that is as the cursor says is not read. Where any file has changed, S3's listing tells whether the
others' objects are still there. Where none has, and the listing is younger than a day, a sample of the
objects is asked for instead: a prefix that was emptied, moved or written by someone else is seen, one object
of many that somebody removed meanwhile only a day later. `up` proves nothing: durable is what HeadObject
tells of every object of a manifest.
"""

import contextlib
import hashlib
import json
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from planaria.aws.transfer import Engine, Identity
from planaria.core.errors import InvalidInput, PermanentError, TransientError
from planaria.core.manifest import OWN_FILES, Shard, is_plain
from planaria.core.transfers import Cause, Failure
from planaria.node import carry
from planaria.node.transfer_setting import bucket_of
from planaria.node.tree import Tree

VERSION = 1
FAILURES_TOLD = 100
LISTED_SECONDS = 86_400.0
"""After so long the listing is read again, whatever the cursor says."""
SAMPLE = 16
SCRATCH = ".tmp"
Known = Mapping[str, tuple[Identity, str, str]]
Answer = dict[str, Any]


def up(
    directory: Path, place: str, cursor: Path | None, on_signals: Callable[[Callable[[], None]], None]
) -> Answer:
    """-> {"files", "bytes", "skipped", "failed": [{name, reason, cause}], "failures"}."""
    bucket, prefix = bucket_of(place)
    stop = threading.Event()
    on_signals(stop.set)
    path = cursor or _cursor_of(directory, place)
    told = _told_by(path, place)
    if _unchanged(directory, told) and _there(bucket, prefix, told["files"], stop):
        return {
            "files": len(told["files"]),
            "bytes": 0,
            "skipped": len(told["files"]),
            "failed": [],
            "failures": 0,
        }
    known = _known(told)
    carried = carry.upload_step(directory, bucket, prefix, stop=stop, known=known)
    write(path, place, carried.known)
    return _told(carried)


def down(place: str, directory: Path, on_signals: Callable[[Callable[[], None]], None]) -> Answer:
    """Into `<directory>.tmp`, which becomes `directory` when every object is there. -> as `up`."""
    bucket, prefix = bucket_of(place)
    stop = threading.Event()
    on_signals(stop.set)
    if directory.exists():
        raise PermanentError(f"{directory} is there already; name a directory that is not, or remove it")
    shards, refused = _shards(bucket, prefix, stop)
    if not shards and not refused:
        raise InvalidInput(f"there is nothing at {place}")
    scratch = directory.with_name(directory.name + SCRATCH)
    carried = carry.download_step(shards, bucket, prefix, scratch, stop=stop)
    told = _told(carried, refused)
    if not told["failures"]:
        os.rename(scratch, directory)
    return told


def _shards(bucket: str, prefix: str, stop: threading.Event) -> tuple[list[Shard], list[Failure]]:
    """What a listing tells; a key that is no path below a directory is refused by name."""
    shards, refused = [], []
    with contextlib.closing(Engine(bucket, stop=stop)) as engine:
        there = engine.listed(f"{prefix}/")
    for key, listed in there.items():
        name = key[len(prefix) + 1 :]
        if not name or name in OWN_FILES or (name.endswith("/") and not listed.size):
            continue
        if is_plain(name):
            shards.append(Shard(name, listed.size, ""))
        else:
            refused.append(Failure(name, "its key is no path below a directory", Cause.BAD))
    return shards, refused


def _told(carried: carry.Carried, refused: list[Failure] | None = None) -> Answer:
    failed = [*(refused or ()), *carried.failed]
    return {
        "files": len(carried.shards),
        "bytes": carried.bytes,
        "skipped": carried.skipped,
        "failed": [
            {"name": f.name, "reason": f.reason, "cause": f.cause.value} for f in failed[:FAILURES_TOLD]
        ],
        "failures": len(failed),
    }


def _cursor_of(directory: Path, place: str) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(f"{directory.resolve()}\0{place}".encode()).hexdigest()[:32]
    return base / "planaria" / "sent" / f"{digest}.json"


def _told_by(path: Path, place: str) -> dict[str, Any]:
    """The cursor; an empty one where it is not there or tells of another place."""
    nothing: dict[str, Any] = {"files": {}, "listed_at": 0.0}
    try:
        told = json.loads(path.read_bytes())
        return dict(told) if told["version"] == VERSION and told["place"] == place else nothing
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return nothing


def _known(told: Mapping[str, Any]) -> Known:
    try:
        return {n: (Identity(s, m, i), str(c), str(e)) for n, (s, m, i, c, e) in told["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _unchanged(directory: Path, told: Mapping[str, Any]) -> bool:
    """Exactly the files of the cursor are there, each as it was."""
    try:
        if not told["files"] or not 0 <= time.time() - told["listed_at"] < LISTED_SECONDS:
            return False
        with Tree(directory) as tree:
            found = tree.walk()
        if found.refused or len(found.files) != len(told["files"]):
            return False
        known = told["files"]
        return all(name in known and tuple(known[name][:3]) == here for name, here in found.files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # what is wrong is told by the long way


def _there(bucket: str, prefix: str, files: Mapping[str, Any], stop: threading.Event) -> bool:
    """Whether a sample of the objects is what the cursor says."""
    sample = random.sample(sorted(files), min(SAMPLE, len(files)))
    with contextlib.closing(Engine(bucket, stop=stop)) as engine, ThreadPoolExecutor(8) as pool:
        try:
            for name, stored in zip(
                sample, pool.map(lambda n: engine.stored(f"{prefix}/{n}"), sample), strict=True
            ):
                size, _, _, crc, etag = files[name]
                if stored is None or (stored.size, stored.crc64nvme or crc, stored.etag) != (size, crc, etag):
                    return False
        except (PermanentError, TransientError, ValueError, TypeError):
            return False
    return True


def write(path: Path, place: str, known: Known) -> None:
    """Whole or not at all; a cursor that cannot be written is only a loss of time."""
    files = {n: [i.size, i.mtime_ns, i.inode, crc, etag] for n, (i, crc, etag) in known.items()}
    scratch = path.with_name(f"{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            scratch.write_text(
                json.dumps({"version": VERSION, "place": place, "listed_at": time.time(), "files": files}),
                encoding="utf-8",
            )
            os.replace(scratch, path)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError:
        return
