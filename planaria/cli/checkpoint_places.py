"""What `planaria checkpoints` is about: a directory, a bucket's prefix, or a job of the cluster."""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from planaria.cli import screen
from planaria.core.checkpoint_ports import CheckpointStore
from planaria.core.errors import InvalidInput
from planaria.core.manifest import FILE_NAME
from planaria.core.saved_step import StepCopy
from planaria.core.step_names import step_of

HELP = "A directory (./ckpt, /fsx/gpt), s3://BUCKET/PREFIX, or a job's id."
S3 = "s3://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_UNTELLING = frozenset({"checkpoints", "checkpoint", "ckpt", "ckpts", "models", ""})
"""Names of folders that name no job; the folder above them may."""


@dataclass(frozen=True, slots=True)
class Directory:
    """only: the one step's directory that was given instead of the folder of all steps; "" for all."""

    path: Path
    only: str = ""

    def __str__(self) -> str:
        return str(self.path / self.only) if self.only else str(self.path)


@dataclass(frozen=True, slots=True)
class Bucket:
    """prefix: without a slash at either end. only: as Directory.only."""

    bucket: str
    prefix: str
    only: str = ""

    def __str__(self) -> str:
        return S3 + "/".join(part for part in (self.bucket, self.prefix, self.only) if part)


@dataclass(frozen=True, slots=True)
class Job:
    job_id: str

    def __str__(self) -> str:
        return self.job_id


Place: TypeAlias = Directory | Bucket | Job
Moved: TypeAlias = Callable[[int], None]
"""Called with the number of bytes (in S3: objects) that were dealt with since the last call."""


def parse(text: str) -> Place:
    """What a person has typed. Raises InvalidInput with one sentence; nothing is looked up yet, but whether a
    directory is one step's."""
    if text.lower().startswith(S3):
        return _bucket(text)
    if "://" in text:
        raise InvalidInput(f"{text!r:.80} is no place of checkpoints: use s3://BUCKET/PREFIX or a directory")
    if "/" in text or text in (".", "..", "~"):
        return _directory(Path(text).expanduser())
    if not _JOB.fullmatch(text):
        raise InvalidInput(f"{text!r:.80} is no job's id; a directory is written with a slash: ./{text:.60}")
    return Job(text)


def parse_directory(text: str) -> Directory:
    """As parse, where nothing but a directory will do; a slash is not needed there."""
    if "://" in text:
        raise InvalidInput(f"{text!r:.80} is no directory")
    return _directory(Path(text).expanduser())


def parse_bucket(text: str) -> Bucket:
    """As parse, where nothing but a bucket will do."""
    if not text.lower().startswith(S3):
        raise InvalidInput(f"{text!r:.80} is no place in S3: write s3://BUCKET/PREFIX")
    return _bucket(text)


def _bucket(text: str) -> Bucket:
    bucket, _, key = text[len(S3) :].partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise InvalidInput(f"{text!r:.80} names no bucket that there can be: write s3://BUCKET/PREFIX")
    parts = [part for part in key.split("/") if part]
    if ".." in parts or "." in parts:
        raise InvalidInput(f"{text!r:.80} has . or .. in it, which are plain names in S3")
    if parts and parts[-1] == FILE_NAME:
        parts.pop()
    if parts and is_step(parts[-1]):
        return Bucket(bucket, "/".join(parts[:-1]), parts[-1])
    return Bucket(bucket, "/".join(parts))


def _directory(path: Path) -> Directory:
    if path.name == FILE_NAME:
        path = path.parent
    whole = path.resolve()
    if is_step(whole.name) or (whole / FILE_NAME).is_file():
        return Directory(whole.parent, whole.name)
    return Directory(path)


def is_step(name: str) -> bool:
    """The name of one step's directory."""
    return step_of(name) is not None


def job_by_name(place: Directory | Bucket) -> str:
    """The job that a folder's name tells: the last part of it that is no general word, such as checkpoints.
    Raises InvalidInput where none does."""
    parts = place.path.resolve().parts if isinstance(place, Directory) else place.prefix.split("/")
    for part in reversed(parts):
        if part.lower() not in _UNTELLING and part != "/":
            return part
    raise InvalidInput(f"{place} does not tell whose checkpoints these are: name the job with --job")


def whose(place: Directory | Bucket, given: str, found: Mapping[str, int], strict: bool) -> str:
    """The job whose checkpoints are meant. given: by --job. found: job -> how many manifests name it.

    strict: something is going to be changed, so that a folder of several jobs has to be told apart by the
    person; else the job with the most steps is meant, and said. Raises InvalidInput.
    """
    if given:
        return given
    if not found:
        return job_by_name(place)
    ordered = sorted(found, key=lambda job: (-found[job], job))
    if len(ordered) > 1:
        names = ", ".join(f"{job!r:.60}" for job in ordered[:4])
        if strict:
            raise InvalidInput(f"{place} has checkpoints of several jobs ({names}): name one with --job")
        screen.say(f"{place} has checkpoints of several jobs ({names}); --job tells which is meant")
    return ordered[0]


@dataclass(frozen=True, slots=True)
class Opened:
    """A store, and what of it is meant. only: name of one step's directory, "" for all. settled: the job was
    named by --job or by a manifest, and not guessed from the folder's name."""

    place: Directory | Bucket
    store: CheckpointStore
    job: str
    settled: bool
    only: str = ""


def open_store(
    place: Directory | Bucket, job: str = "", strict: bool = False, moved: Moved | None = None
) -> Opened:
    """The store of a place. moved: told how verify goes on. Raises InvalidInput where no such place is."""
    if isinstance(place, Directory):
        return _open_directory(place, job, strict, moved)
    return _open_bucket(place, job, strict, moved)


def _open_directory(place: Directory, job: str, strict: bool, moved: Moved | None) -> Opened:
    from planaria.checkpoint.directory import FileCheckpoints, jobs_in

    if not place.path.is_dir():
        what = "is no directory" if place.path.exists() else "is not there"
        raise InvalidInput(f"{place} {what}: name the folder that holds a job's step directories")
    found = {} if job else jobs_in(place.path)
    named = whose(place, job, found, strict)
    store = FileCheckpoints(place.path, named, progress=moved)
    return Opened(place, store, named, bool(job or found), place.only)


def _open_bucket(place: Bucket, job: str, strict: bool, moved: Moved | None) -> Opened:
    from planaria.aws.step_judging import jobs_in

    found = {} if job else jobs_in(s3_client(), place.bucket, place.prefix)
    named = whose(place, job, found, strict)
    return Opened(place, bucket_store(place, named, moved), named, bool(job or found), place.only)


def bucket_store(place: Bucket, job: str, moved: Moved | None = None) -> Any:
    """The store of a job's steps at this place, which needs not be there yet."""
    from planaria.aws.checkpoint_bucket import S3Checkpoints

    return S3Checkpoints(s3_client(), place.bucket, place.prefix, job, progress=moved)


def meant(opened: Opened, copies: Sequence[StepCopy], wanted: Sequence[int]) -> list[StepCopy]:
    """Those of the step numbers that were asked for, and of the one directory that was given as the place.
    Raises InvalidInput for a number that no step has."""
    found = [copy for copy in copies if not opened.only or copy.name == opened.only]
    there = {copy.step for copy in found}
    missing = sorted(set(wanted) - there)
    if missing:
        known = ", ".join(str(step) for step in sorted(there, reverse=True)[:8] if step >= 0) or "none"
        raise InvalidInput(f"there is no step {missing[0]} in {opened.place}; the newest it has: {known}")
    if opened.only and not found:
        raise InvalidInput(f"{opened.place} is not there")
    return [copy for copy in found if not wanted or copy.step in wanted]


@functools.cache
def s3_client() -> Any:
    """The command's one client. AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL names another endpoint."""
    import boto3
    from botocore.config import Config

    config = Config(connect_timeout=5, read_timeout=60, max_pool_connections=64)
    return boto3.Session().client("s3", config=config)
