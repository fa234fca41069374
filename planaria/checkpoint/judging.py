"""What one directory that claims to be a step is, by its name, its manifest and its files' sizes."""

import errno
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from planaria.checkpoint import formats, step_files
from planaria.checkpoint.step_files import FileStat
from planaria.core import pins, step_names
from planaria.core.errors import InvalidInput, PermanentError, TransientError
from planaria.core.manifest import FILE_NAME, LARGEST, PIN_NAME, Manifest, digest
from planaria.core.saved_step import StepCopy, StepState, Tier
from planaria.core.step_names import StepName

_LARGEST_PIN = 64 << 10
_DENIED = (errno.EACCES, errno.EPERM)
_AWAY = (errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN, errno.ETIMEDOUT, errno.ENODEV, errno.ESHUTDOWN)


@dataclass(frozen=True, slots=True)
class Judged:
    """manifest: None where there is none that can be read."""

    copy: StepCopy
    manifest: Manifest | None = None


def judge(path: Path, job: str, tier: Tier) -> Judged | None:
    """None: it is gone, or its name is no step's. Raises TransientError and PermanentError as
    `unreadable`."""
    name = step_names.read(path.name)
    if name is None:
        return None
    copy = StepCopy(name.step, tier, StepState.FOREIGN, os.fspath(path))
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            return Judged(replace(copy, reason="it is a symbolic link: what it leads to is not followed"))
        if not stat.S_ISDIR(mode):
            return Judged(replace(copy, reason="it is a file, and a step is a directory"))
        return _directory(copy, name, path, job)
    except FileNotFoundError:
        if not path.exists():
            return None
        return Judged(replace(copy, state=StepState.PARTIAL, reason="its files change: it is being written"))
    except OSError as error:
        if is_away(error):
            raise unreadable(error, path) from error
        return Judged(replace(copy, reason=said(error, path)))


def as_named(judged: Judged, name: str, job: str, root: Path) -> StepCopy:
    """The copy as it will be when its directory is called `name`."""
    told = step_names.read(name)
    copy = replace(judged.copy, place=os.fspath(root / name))
    if judged.manifest is None or told is None:
        return copy
    copy = replace(copy, step=told.step)
    state, reason = _state(copy, told, judged.manifest, step_files.files(Path(judged.copy.place)), job)
    return replace(copy, state=state, reason=reason)


def is_away(error: OSError) -> bool:
    """The file system does not answer: that says nothing about what is on it."""
    return error.errno in _AWAY


def said(error: OSError, path: Path) -> str:
    return f"{error.filename or path} cannot be read: {error.strerror or error}"


def unreadable(error: OSError, path: Path) -> TransientError | PermanentError:
    """The error of ours that an error of the file system means."""
    what = said(error, path)
    return PermanentError(what) if error.errno in _DENIED else TransientError(what)


def read_manifest(path: Path) -> tuple[Manifest, bytes]:
    """Of a step's directory, with its bytes. Raises InvalidInput, FileNotFoundError without one, OSError."""
    body = _regular(path / FILE_NAME, LARGEST + 1)
    return Manifest.from_json(body), body


def _directory(copy: StepCopy, name: StepName, path: Path, job: str) -> Judged:
    copy = replace(copy, pinned=_pinned(path))
    try:
        files = step_files.files(path)
    except InvalidInput as error:
        return Judged(replace(copy, reason=str(error)))
    copy = replace(
        copy, touched_at=step_files.newest(files.values()), size=sum(f.size for f in files.values())
    )
    try:
        manifest, body = read_manifest(path)
    except FileNotFoundError:
        return Judged(_without_manifest(copy, name, path, files))
    except InvalidInput as error:
        return Judged(replace(copy, state=StepState.CORRUPT, reason=str(error)))
    copy = replace(
        copy,
        size=manifest.size,
        lineage=manifest.lineage,
        saved_at=manifest.saved_at,
        digest=digest(body),
        format=manifest.format,
    )
    state, reason = _state(copy, name, manifest, files, job)
    return Judged(replace(copy, state=state, reason=reason), manifest)


def _state(
    copy: StepCopy, name: StepName, manifest: Manifest, files: Mapping[str, FileStat], job: str
) -> tuple[StepState, str]:
    if manifest.lineage.job != job:
        return StepState.FOREIGN, f"it belongs to the job {manifest.lineage.job!r:.100}"
    if name.unfinished:
        return StepState.PARTIAL, f"{copy.name!r:.100} is a save or a copy that did not finish"
    if manifest.step != copy.step:
        return StepState.CORRUPT, f"the manifest in {copy.name!r:.100} is of step {manifest.step}"
    for shard in manifest.shards:
        there = files.get(shard.name)
        if there is None:
            return StepState.CORRUPT, f"the file {shard.name!r:.200} is missing"
        if there.size != shard.size:
            return (
                StepState.CORRUPT,
                f"the file {shard.name!r:.200} has {there.size} bytes, the manifest says {shard.size}",
            )
    return StepState.COMPLETE, ""


def _without_manifest(copy: StepCopy, name: StepName, path: Path, files: Mapping[str, FileStat]) -> StepCopy:
    if name.unfinished:
        why = f"{copy.name!r:.100} is a save or a copy that did not finish"
        return replace(copy, state=StepState.PARTIAL, reason=why)
    if not files:
        return replace(copy, state=StepState.PARTIAL, reason="the directory is empty")
    if name.step < 0:
        return replace(copy, reason=f"the name {copy.name!r:.100} tells no step number")
    seen = formats.look(path, files)
    return replace(copy, state=seen.state, reason=seen.reason, format=seen.format)


def _pinned(path: Path) -> str:
    try:
        return pins.reason_of(_regular(path / PIN_NAME, _LARGEST_PIN))
    except FileNotFoundError:
        return ""
    except InvalidInput:
        return pins.UNREADABLE


def _regular(path: Path, most: int) -> bytes:
    """At most `most` bytes of a file. Raises InvalidInput where it is no regular file: opening a FIFO would
    wait for ever, and a link may lead anywhere."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise InvalidInput(f"{path.name} is no regular file") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise InvalidInput(f"{path.name} is no regular file")
        with open(handle, "rb", closefd=False) as stream:
            return stream.read(most)
    finally:
        os.close(handle)
