"""The plan of a transfer, as an object in the bucket: what all its carriers read.

transfers/<id>/plan.json     this plan
transfers/<id>/manifest.json the step's manifest, where it has one
transfers/<id>/chunk-0007-<fence>.json   what became of a chunk
transfers/<id>/result.json   {"mode", "files": [[name, bytes, crc64nvme]], "failed": [{name, reason, cause}]}
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planaria.aws.crt import Refused
from planaria.aws.transfer import Engine
from planaria.checkpoint import judging, step_files
from planaria.checkpoint.directory import FileCheckpoints
from planaria.checkpoint.step_files import FileStat
from planaria.core import manifest as manifests
from planaria.core.errors import InvalidInput, PermanentError
from planaria.core.manifest import Lineage, Manifest
from planaria.core.saved_step import StepCopy
from planaria.core.transfers import Cause, File, Mode, Piece, balanced, split_files
from planaria.node import carry
from planaria.node.transfer_setting import Setting, bucket_of

VERSION = 1
SCRATCH = ".restore.tmp"
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """step: the name of the step's directory, or its number. place: `s3://bucket/prefix` of the job."""

    job: str
    directory: Path
    step: str
    transfer: str
    mode: Mode
    chunks: int
    place: str = ""
    attempt: int = 0
    parent_step: int = -1


@dataclass(frozen=True, slots=True)
class Plan:
    """root: where the files are read or written. objects: `s3://bucket/prefix` of the step. seen: the files
    as they were, of a step without a manifest. uploads: file index -> id of the multipart upload of a file
    that several carriers send. there: S3 has objects of that step already. step: its number, -1 for none."""

    transfer: str
    mode: Mode
    job: str
    name: str
    step: int
    root: Path
    objects: str
    files: tuple[File, ...]
    chunks: tuple[tuple[Piece, ...], ...]
    manifest: bool
    lineage: Lineage
    seen: Mapping[str, FileStat] = field(default_factory=dict)
    uploads: Mapping[int, str] = field(default_factory=dict)
    there: bool = False

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def answer(self) -> Answer:
        return {
            "state": "complete",
            "reason": "",
            "size": self.size,
            "files": len(self.files),
            "chunks": len(self.chunks),
            "manifest": self.manifest,
        }

    def to_json(self) -> bytes:
        document = {
            "version": VERSION,
            "transfer": self.transfer,
            "mode": self.mode.value,
            "job": self.job,
            "name": self.name,
            "step": self.step,
            "root": str(self.root),
            "objects": self.objects,
            "files": [[each.name, each.size, each.crc64nvme] for each in self.files],
            "chunks": [[[p.file, p.start, p.length] for p in chunk] for chunk in self.chunks],
            "manifest": self.manifest,
            "lineage": [self.lineage.job, self.lineage.attempt, self.lineage.parent_step],
            "seen": {n: [s.size, s.modified, s.changed, s.inode] for n, s in self.seen.items()},
            "uploads": {str(index): upload for index, upload in self.uploads.items()},
            "there": self.there,
        }
        return json.dumps(document).encode()

    @classmethod
    def from_json(cls, body: bytes) -> "Plan":
        """Raises InvalidInput."""
        try:
            told = json.loads(body)
            if told["version"] != VERSION:
                raise InvalidInput(f"the plan is of version {told['version']}, this release reads {VERSION}")
            return cls(
                transfer=told["transfer"],
                mode=Mode(told["mode"]),
                job=told["job"],
                name=told["name"],
                step=told["step"],
                root=Path(told["root"]),
                objects=told["objects"],
                files=tuple(File(*each) for each in told["files"]),
                chunks=tuple(tuple(Piece(*piece) for piece in chunk) for chunk in told["chunks"]),
                manifest=told["manifest"],
                lineage=Lineage(*told["lineage"]),
                seen={name: FileStat(*each) for name, each in told["seen"].items()},
                uploads={int(index): upload for index, upload in told["uploads"].items()},
                there=told["there"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"the plan of the transfer cannot be read: {error}") from None


def key(transfer: str, name: str) -> str:
    return f"transfers/{transfer}/{name}"


def read(engine: Engine, transfer: str) -> Plan | None:
    """None where there is no such plan. Raises InvalidInput, Refused, TransientError."""
    body = read_object(engine, key(transfer, "plan.json"))
    return None if body is None else Plan.from_json(body)


def read_object(engine: Engine, name: str) -> bytes | None:
    try:
        return engine.get(name)
    except Refused as error:
        if error.status == 404:
            return None
        raise


def plan(asked: Asked, setting: Setting) -> Answer:
    """Write the plan, once: asked again, it is the same. -> {"state", "reason", "cause"?, "size", "files",
    "chunks", "manifest"}."""
    with contextlib.closing(setting.engine()) as engine:
        made = read(engine, asked.transfer)
        return _plan(asked, setting, engine) if made is None else made.answer()


def _plan(asked: Asked, setting: Setting, engine: Engine) -> Answer:
    bucket, prefix = bucket_of(asked.place or f"s3://{setting.bucket}/checkpoints/{asked.job}")
    objects = engine if bucket == setting.bucket else setting.engine(bucket)
    if asked.mode is Mode.FETCH:
        made_or_not = _fetch(asked, setting, objects, prefix)
    else:
        made_or_not = _read_local(asked, bucket, prefix)
    if isinstance(made_or_not, dict):
        return made_or_not
    found, manifest = made_or_not
    if manifest is not None:
        engine.put(key(asked.transfer, "manifest.json"), manifest.to_json())
    if asked.mode is Mode.COPY:
        found = _with_uploads(found, objects)
    engine.put(key(asked.transfer, "plan.json"), found.to_json())
    return found.answer()


def _with_uploads(found: Plan, objects: Engine) -> Plan:
    prefix = bucket_of(found.objects)[1]
    uploads = {
        index: objects.begin_upload(f"{prefix}/{found.files[index].name}")
        for index in sorted(split_files(found.chunks))
    }
    return Plan(
        **{
            **{name: getattr(found, name) for name in found.__dataclass_fields__},
            "uploads": uploads,
            "there": objects.any(f"{prefix}/"),
        }
    )


def _read_local(asked: Asked, bucket: str, prefix: str) -> tuple[Plan, Manifest | None] | Answer:
    """COPY and HASH: of the step's directory."""
    store = FileCheckpoints(asked.directory, asked.job)
    copy = _look(store, asked.step)
    if copy is None:
        return _not(
            {"state": "partial", "reason": f"there is no step {asked.step} in {asked.directory}"}, Cause.BAD
        )
    root = asked.directory / copy.name
    manifest, seen = None, {}
    if copy.usable:
        manifest = store.manifest(copy)
        files = tuple(File(shard.name, shard.size, shard.crc64nvme) for shard in manifest.shards)
    elif copy.sealable:
        try:
            seen = step_files.files(root)
        except OSError as error:
            raise judging.unreadable(error, root) from error
        files = tuple(File(name, seen[name].size) for name in sorted(seen))
    else:
        return _not({"state": copy.state.value, "reason": copy.reason}, Cause.BAD)
    lineage = manifest.lineage if manifest else Lineage(asked.job, asked.attempt, asked.parent_step)
    objects = f"s3://{bucket}/{prefix}/{copy.name}"
    chunks = balanced(files, asked.chunks)
    found = Plan(asked.transfer, asked.mode, asked.job, copy.name, copy.step, root, objects, files, chunks,
                 manifest is not None, lineage, seen)  # fmt: skip
    return found, manifest


def _look(store: FileCheckpoints, step: str) -> StepCopy | None:
    """By the directory's name, else by the number alone."""
    if not step.isdecimal():
        return store.look(step)
    those = [copy for copy in store.steps() if copy.step == int(step)]
    return next((copy for copy in those if copy.usable or copy.sealable), those[0] if those else None)


def _fetch(
    asked: Asked, setting: Setting, objects: Engine, prefix: str
) -> tuple[Plan, Manifest | None] | Answer:
    name = asked.step
    if name.isdecimal():
        name = f"step-{name}"
    base = f"{prefix}/{name}"
    body = read_object(objects, f"{base}/{manifests.FILE_NAME}")
    if body is None:
        reason = f"s3://{objects.bucket}/{base} has no manifest"
        return _not({"state": "corrupt", "reason": reason}, Cause.BAD)
    try:
        manifest = Manifest.from_json(body)
    except InvalidInput as error:
        return _not({"state": "corrupt", "reason": str(error)}, Cause.BAD)
    if manifest.lineage.job != asked.job:
        reason = f"the step is of job {manifest.lineage.job}, not of {asked.job}"
        return _not({"state": "foreign", "reason": reason}, Cause.BAD)
    if reason := setting.wrong_place(asked.directory):
        return _not({"state": "partial", "reason": reason}, Cause.OTHER)
    root = asked.directory / f"{name}{SCRATCH}"
    files = tuple(File(shard.name, shard.size, shard.crc64nvme) for shard in manifest.shards)
    if reason := carry.room_lacking(root, files):
        return _not({"state": "partial", "reason": reason}, Cause.FULL)
    chunks = balanced(files, asked.chunks)
    url = f"s3://{objects.bucket}/{base}"
    found = Plan(
        asked.transfer,
        asked.mode,
        asked.job,
        name,
        manifest.step,
        root,
        url,
        files,
        chunks,
        True,
        manifest.lineage,
    )
    return found, manifest


def _not(said: Mapping[str, str], cause: Cause) -> Answer:
    return {**said, "cause": cause.value, "size": 0, "files": 0, "chunks": 0, "manifest": False}


def failures_of(told: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """As documents, bounded in length."""
    return [
        {"name": str(t["name"]), "reason": str(t["reason"])[:300], "cause": str(t["cause"])} for t in told
    ]


def whole(body: bytes | None) -> dict[str, Any]:
    """A JSON object of ours. Raises PermanentError where it is none."""
    try:
        found = json.loads(body or b"")
        return dict(found)
    except (ValueError, TypeError) as error:
        raise PermanentError(f"an object of the transfer cannot be read: {error}") from None
