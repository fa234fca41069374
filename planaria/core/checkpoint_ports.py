"""What holds checkpoints, as Protocols. Adapters live in planaria/checkpoint (file systems), planaria/aws
(S3, FSx) and planaria/memory (twins)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from planaria.core.manifest import Manifest, Shard
from planaria.core.pins import Pin
from planaria.core.saved_step import StepCopy, StepState


@dataclass(frozen=True, slots=True)
class Flaw:
    """What is wrong with one shard. name: the shard's; state: what the step is for that."""

    name: str
    reason: str
    state: StepState = StepState.CORRUPT


class CheckpointStore(Protocol):
    """One job's checkpoint steps in one place: a directory of a file system, or a prefix of a bucket.

    steps: everything that claims to be a step, in any order, judged by names and sizes alone; an implausible
    number is FOREIGN (saved_step.without_implausible). verify: judged by every byte (a file system) or every
    object's checksum (S3). manifest: raises InvalidInput when there is none that can be read. commit: writes
    the manifest of the step directory `name` ("": `step-<n>`), last; False when the very same is there
    already; raises PermanentError when another one is. remove: the manifest goes first, so that nothing half
    removed is ever usable; quiet when nothing is there. sweep: removes what saves and uploads left unfinished
    and nobody has touched since `before` (epoch seconds), but those with a name in `active` -> what it
    removed. pin, unpin: StepCopy.pinned; pinned again, the newer reason counts. All raise TransientError
    where the place cannot be reached.
    """

    def steps(self) -> list[StepCopy]: ...
    def verify(self, copy: StepCopy) -> StepCopy: ...
    def manifest(self, copy: StepCopy) -> Manifest: ...
    def commit(self, manifest: Manifest, name: str = "") -> bool: ...
    def remove(self, copy: StepCopy) -> None: ...
    def sweep(self, before: float, active: Collection[str] = ()) -> list[str]: ...
    def pin(self, copy: StepCopy, pin: Pin) -> None: ...
    def unpin(self, copy: StepCopy) -> None: ...
    def place(self, name: str) -> str: ...


class DurableStore(CheckpointStore, Protocol):
    """A store in S3. prove: one HeadObject for each of these shards of the step directory `place` -> those
    that are not there with the right size and checksum; raises TransientError where S3 does not answer."""

    def prove(self, place: str, shards: Sequence[Shard]) -> list[Flaw]: ...


class TaskState(StrEnum):
    """FSx's lifecycle of a data repository task. NONE: there is no such task."""

    PENDING = "PENDING"
    EXECUTING = "EXECUTING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELING = "CANCELING"
    CANCELED = "CANCELED"
    NONE = "NONE"


@dataclass(frozen=True, slots=True)
class RepositoryTask:
    """report: where FSx writes which files failed (`s3://...`), "" without one. succeeded, failed, total:
    files."""

    task_id: str
    state: TaskState
    paths: tuple[str, ...] = ()
    succeeded: int = 0
    failed: int = 0
    total: int = 0
    reason: str = ""
    report: str = ""


class DataRepository(Protocol):
    """FSx for Lustre's data repository tasks. One file system runs one task at a time.

    start: `kind` is EXPORT_TO_REPOSITORY or IMPORT_METADATA_FROM_REPOSITORY; paths are relative to the file
    system's root (export) or `s3://` URLs (import); started twice with one token it is one task. Raises
    Waiting while another task of that file system runs. tasks: those that are not over.
    """

    def start(self, file_system: str, kind: str, paths: Sequence[str], token: str) -> str: ...
    def task(self, task_id: str) -> RepositoryTask: ...
    def tasks(self, file_system: str) -> list[RepositoryTask]: ...
    def cancel(self, task_id: str) -> None: ...
