"""Where checkpoints lie and how long they stay: the object `checkpoints` of the cluster document.

    {"file_systems": [{"name": str, "id": "fs-..." | "", "mount": "/fsx", "zone": str,
                       "associations": [{"file_system_path": "/checkpoints/",
                                         "data_repository_path": "s3://bucket/prefix/" | "prefix/",
                                         "auto_export": ["NEW", ...], "auto_import": [...]}]}],
     "retention": {"fsx": {"keep": int, "keep_seconds": float, "keep_every": int, "keep_tags": [str]},
                   "s3": {...}},
     "sync_seconds": float, "bandwidth_share": float 0..1, "sweep_seconds": float, "rpo_seconds": float}

An id is "" where Planaria's Storage stack makes the file system, and a data repository path without `s3://`
lies in Planaria's own bucket: neither is known at synth. planaria/wiring.py fills both in (`resolved`), so
Lambdas see them whole.
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from planaria.core.errors import InvalidInput
from planaria.core.saved_step import Tier

PREFIX = "checkpoints/"
"""Of all checkpoints in Planaria's own bucket: `checkpoints/<job>/<step's directory>/<shard>`."""
REPORTS = ".planaria-reports"
"""Below an association's data repository path: where FSx says which files a task failed on."""


@dataclass(frozen=True, slots=True)
class Association:
    """A directory of a file system that FSx keeps linked to a prefix of a bucket.

    file_system_path: from the file system's root, with `/` at both ends; data_repository_path:
    `s3://bucket/prefix/`. auto_export, auto_import: of NEW, CHANGED, DELETED. FSx runs no export task of ours
    while automatic export is at work: with auto_export a step is waited for, not exported by a task.
    https://docs.aws.amazon.com/fsx/latest/LustreGuide/export-changed-data-meta-dra.html
    """

    file_system_path: str
    data_repository_path: str
    auto_export: tuple[str, ...] = ()
    auto_import: tuple[str, ...] = ()

    @property
    def reports(self) -> str:
        """`s3://...`: FSx writes reports nowhere but in the linked repository."""
        return self.data_repository_path + REPORTS

    def holds(self, path: str) -> bool:
        """path: relative to the file system's root."""
        return f"/{path.strip('/')}/".startswith(self.file_system_path)

    def url(self, path: str) -> str:
        """The `s3://...` place of a path that it holds, without `/` at the end."""
        below = f"/{path.strip('/')}/"[len(self.file_system_path) :].strip("/")
        return (self.data_repository_path + below).rstrip("/")

    def holds_url(self, url: str) -> bool:
        return f"{url.rstrip('/')}/".startswith(self.data_repository_path)

    def path(self, url: str) -> str:
        """The way back: relative to the file system's root."""
        below = f"{url.rstrip('/')}/"[len(self.data_repository_path) :]
        return (self.file_system_path + below).strip("/")


@dataclass(frozen=True, slots=True)
class FileSystem:
    """name: the cluster file's word for it; mount: where every node mounts it; zone: where it lies."""

    name: str
    id: str
    mount: str
    zone: str
    associations: tuple[Association, ...] = ()

    def path(self, directory: str) -> str | None:
        """A directory on a node as a path from the file system's root; None for what lies elsewhere."""
        given = PurePosixPath(directory)
        if ".." in given.parts or not given.is_relative_to(self.mount):
            return None
        below = given.relative_to(self.mount).as_posix()
        return "" if below == "." else below

    def directory(self, path: str) -> str:
        """The way back: where a node sees a path of this file system."""
        return str(PurePosixPath(self.mount) / path.strip("/"))

    def association(self, path: str) -> Association | None:
        return next((each for each in self.associations if each.holds(path)), None)

    def of_url(self, url: str) -> Association | None:
        return next((each for each in self.associations if each.holds_url(url)), None)


@dataclass(frozen=True, slots=True)
class Place:
    """A directory that lies on a file system. path: from its root, "" for the root itself; url: where its
    association keeps it in S3, "" without one."""

    file_system: FileSystem
    path: str
    association: Association | None = None
    url: str = ""


@dataclass(frozen=True, slots=True)
class Retention:
    """What stays of one tier: the newest `keep` steps, those younger than keep_seconds (0: no such rule),
    those whose number is a multiple of keep_every (0: none), those with one of keep_tags. One is enough."""

    keep: int
    keep_seconds: float = 0.0
    keep_every: int = 0
    keep_tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """retention: nothing is removed from a tier that is not there. sync_seconds: how often a job's newest
    complete step goes to S3, whatever signals come. bandwidth_share: how much of a node's network a copy may
    take while a job runs on it. sweep_seconds: after which what is unfinished counts as abandoned.
    rpo_seconds: how old the newest durable step of a running job may be before a person is told."""

    file_systems: tuple[FileSystem, ...] = ()
    retention: Mapping[Tier, Retention] = field(default_factory=dict)
    sync_seconds: float = 600.0
    bandwidth_share: float = 0.5
    sweep_seconds: float = 86_400.0
    rpo_seconds: float = 3600.0

    def place(self, directory: str) -> Place | None:
        """Where a directory of a node lies; None where it is on no file system of the cluster file."""
        inner = sorted(self.file_systems, key=lambda each: len(each.mount), reverse=True)
        for file_system in inner:
            path = file_system.path(directory)
            if path is not None:
                found = file_system.association(path)
                return Place(file_system, path, found, found.url(path) if found else "")
        return None

    def file_system(self, file_system_id: str) -> FileSystem:
        """Raises InvalidInput that says which there are."""
        for each in self.file_systems:
            if each.id == file_system_id:
                return each
        known = ", ".join(each.id or each.name for each in self.file_systems) or "none"
        raise InvalidInput(f"file system {file_system_id!r} is not in the cluster file (it has: {known})")

    def resolved(self, bucket: str, ids: Mapping[str, str]) -> "Checkpoints":
        """bucket: Planaria's own; ids: name -> id of the file systems that the Storage stack has made."""

        def linked(each: Association) -> Association:
            path = each.data_repository_path
            return (
                each
                if path.startswith("s3://")
                else replace(each, data_repository_path=f"s3://{bucket}/{path}")
            )

        return replace(
            self,
            file_systems=tuple(
                replace(
                    each,
                    id=each.id or ids.get(each.name, ""),
                    associations=tuple(map(linked, each.associations)),
                )
                for each in self.file_systems
            ),
        )

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Checkpoints":
        """Raises InvalidInput that names the key."""
        default = cls()
        share = _number(document, "bandwidth_share", default.bandwidth_share)
        if not 0 < share <= 1:
            raise InvalidInput(f"checkpoints.bandwidth_share must be above 0 and at most 1, not {share:g}")
        return cls(
            tuple(map(_file_system, document.get("file_systems", ()))),
            {_tier(name): _retention(given) for name, given in (document.get("retention") or {}).items()},
            _number(document, "sync_seconds", default.sync_seconds),
            share,
            _number(document, "sweep_seconds", default.sweep_seconds),
            _number(document, "rpo_seconds", default.rpo_seconds),
        )


def overlapping(paths: Iterable[str]) -> tuple[str, str] | None:
    """Two of them of which one lies in the other, or is the same; each ends with `/`."""
    ordered = sorted(paths)
    for first, second in itertools.pairwise(ordered):
        if second.startswith(first):
            return first, second
    return None


def _file_system(given: Mapping[str, Any]) -> FileSystem:
    linked = tuple(
        Association(
            each["file_system_path"],
            each["data_repository_path"],
            tuple(each.get("auto_export", ())),
            tuple(each.get("auto_import", ())),
        )
        for each in given.get("associations", ())
    )
    return FileSystem(given["name"], given.get("id") or "", given["mount"], given.get("zone") or "", linked)


def _tier(name: str) -> Tier:
    try:
        return Tier(name)
    except ValueError:
        raise InvalidInput(f"checkpoints.retention has {name!r}, it may have: {', '.join(Tier)}") from None


def _retention(given: Mapping[str, Any]) -> Retention:
    keep = given.get("keep")
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise InvalidInput(
            f"checkpoints.retention: keep must be a whole number of at least 1, not {keep!r:.60}"
        )
    return Retention(
        keep,
        _number(given, "keep_seconds", 0.0),
        int(_number(given, "keep_every", 0.0)),
        tuple(given.get("keep_tags", ())),
    )


def _number(document: Mapping[str, Any], key: str, default: float) -> float:
    value = document.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InvalidInput(f"checkpoints: {key} must be a number of at least 0, not {value!r:.60}")
    return float(value)
