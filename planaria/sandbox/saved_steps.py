"""Checkpoints of a job on disk: commit, list, prune. The format is the same for every writer, and nothing
here needs torch.

A checkpoint is the directory `step-<n>` with the data files and COMMITTED, which is written last:

    {"version": 1, "step": n, "world_size": w, "files": {name: {"size": bytes, "sha256": hex}},
     "lineage": {"job": str, "attempt": int, "parent_step": int}, "request": str or null, "at": epoch seconds}

parent_step is the checkpoint that this one continued from, -1 for none. While it is being written the
directory is called `step-<n>.tmp`, and such a directory never counts, whatever it holds.
"""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from planaria.sandbox.job_folder import JobFolder

MARKER = "COMMITTED"
_NAME = re.compile(r"step-([0-9]{1,18})(\.tmp)?")
_REMOVED = ".removed.tmp"


class SavedState(StrEnum):
    """COMPLETE: marker and every byte it names are there. PARTIAL: a save that did not finish. FOREIGN:
    another job's. CORRUPT: committed once, and no longer what was committed."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    FOREIGN = "foreign"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class SavedStep:
    """One step on disk. reason: empty when complete, else one sentence. at: when it was committed (epoch
    seconds), which tells one copy of a step from another; None unless complete."""

    step: int
    state: SavedState
    reason: str = ""
    at: float | None = field(default=None, compare=False)

    def document(self) -> dict[str, Any]:
        """As the document planaria-list-checkpoints returns it."""
        told: dict[str, Any] = {"step": self.step, "state": self.state.value, "reason": self.reason}
        return told if self.at is None else {**told, "at": self.at}


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a checkpoint comes from."""

    job: str
    attempt: int
    parent_step: int


def list_steps(folder: JobFolder, job_id: str) -> list[SavedStep]:
    """Every step that has left anything on disk, newest first, one entry per step number.

    All bytes are read and compared with the marker. Of two directories with one number the complete one
    is reported.
    """
    found: dict[int, SavedStep] = {}
    for step, path in _directories(folder):
        saved = check_directory(path, step, job_id)
        if saved is None:
            continue
        if step not in found or saved.state is SavedState.COMPLETE:
            found[step] = saved
    return [found[step] for step in sorted(found, reverse=True)]


def check_step(folder: JobFolder, step: int, job_id: str) -> SavedStep | None:
    """One committed step, all bytes compared; None when there is no directory of that name."""
    return check_directory(folder.step(step), step, job_id)


def read_marker(folder: JobFolder, step: int) -> dict[str, Any]:
    """The commit marker of a step. Raises OSError or ValueError when there is none that can be read."""
    marker = json.loads((folder.step(step) / MARKER).read_bytes())
    if not isinstance(marker, dict):
        raise ValueError("the commit marker is no JSON object")
    return marker


def check_directory(path: Path, step: int, job_id: str) -> SavedStep | None:
    """Judge one directory that claims to be this step of this job; None when it is gone."""
    try:
        state, reason = _judge(path, step, job_id)
    except FileNotFoundError:
        if not path.exists():
            return None
        state, reason = SavedState.CORRUPT, "files vanished while they were read"
    except OSError as error:
        state, reason = SavedState.CORRUPT, f"cannot be read: {error.strerror}"
    return SavedStep(step, state, reason, _committed_at(path) if state is SavedState.COMPLETE else None)


def _committed_at(path: Path) -> float | None:
    try:
        at = json.loads((path / MARKER).read_bytes()).get("at")
    except (OSError, ValueError):
        return None
    return float(at) if isinstance(at, int | float) else None


def _judge(path: Path, step: int, job_id: str) -> tuple[SavedState, str]:
    if not path.is_dir():
        if not path.exists():
            raise FileNotFoundError(path)
        return SavedState.CORRUPT, f"{path.name} is no directory"
    names = os.listdir(path)
    if path.name.endswith(".tmp"):
        return SavedState.PARTIAL, "the save did not finish"
    if not names:
        return SavedState.PARTIAL, "the directory is empty"
    if MARKER not in names:
        return SavedState.PARTIAL, "there is no commit marker"
    try:
        marker = json.loads((path / MARKER).read_bytes())
        marked_step, job = marker["step"], marker["lineage"]["job"]
        files = {
            str(name): (int(each["size"]), str(each["sha256"])) for name, each in marker["files"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return SavedState.CORRUPT, "the commit marker cannot be read"
    if job != job_id:
        return SavedState.FOREIGN, f"it belongs to the job {job!r}"
    if marked_step != step or path.name != f"step-{step}":
        return SavedState.CORRUPT, f"the commit marker in {path.name} is of step {marked_step}"
    if not files:
        return SavedState.CORRUPT, "the commit marker names no files"
    for name, (size, digest) in files.items():
        if name != os.path.basename(name) or name in ("", ".", ".."):
            return SavedState.CORRUPT, f"the commit marker names {name!r}, which is no plain file name"
        if name not in names:
            return SavedState.CORRUPT, f"the file {name} is missing"
        actual = (path / name).stat().st_size
        if actual != size:
            return SavedState.CORRUPT, f"the file {name} has {actual} bytes, the commit marker says {size}"
        if _sha256(path / name) != digest:
            return SavedState.CORRUPT, f"the checksum of {name} is wrong"
    return SavedState.COMPLETE, ""


def commit(folder: JobFolder, step: int, world_size: int, lineage: Lineage, request: str | None) -> None:
    """Turn the finished `step-<n>.tmp` into the checkpoint `step-<n>`.

    The data files must be on disk already (fsync). Whatever stood at `step-<n>` is replaced; the caller
    has made sure that it is no complete checkpoint of this job. Raises OSError (disk full, say).
    """
    scratch, target = folder.step_in_progress(step), folder.step(step)
    files = {
        each.name: {"size": each.stat().st_size, "sha256": _sha256(each)}
        for each in sorted(scratch.iterdir())
        if each.name != MARKER
    }
    marker = {
        "version": 1,
        "step": step,
        "world_size": world_size,
        "files": files,
        "lineage": {"job": lineage.job, "attempt": lineage.attempt, "parent_step": lineage.parent_step},
        "request": request,
        "at": time.time(),
    }
    with (scratch / MARKER).open("w", encoding="utf-8") as stream:
        json.dump(marker, stream)
        stream.flush()
        os.fsync(stream.fileno())
    _fsync_directory(scratch)
    remove(target)
    os.rename(scratch, target)
    _fsync_directory(folder.checkpoints)


def prune(folder: JobFolder, job_id: str, keep: int, protect: int) -> list[int]:
    """Remove complete steps of this job beyond the newest `keep`, never the step `protect` (the resume
    point), and unfinished saves older than the newest complete step. Returns the removed step numbers.

    Foreign and corrupt directories stay: they are evidence for people.
    """
    complete: list[int] = []
    unfinished: list[int] = []
    for step, path in _directories(folder):
        if path.name.endswith(".tmp"):
            unfinished.append(step)
        elif (saved := check_directory(path, step, job_id)) and saved.state is SavedState.COMPLETE:
            complete.append(step)
    complete.sort(reverse=True)
    surplus = [step for step in complete[keep:] if step != protect]
    for step in surplus:
        remove(folder.step(step))
    for step in unfinished:
        if complete and step < complete[0]:
            shutil.rmtree(folder.step_in_progress(step), ignore_errors=True)
    for left_over in folder.checkpoints.glob(f"*{_REMOVED}"):
        shutil.rmtree(left_over, ignore_errors=True)
    return surplus


def remove(path: Path) -> None:
    """Remove a step's directory so that it counts as complete until it counts no more; quiet if absent."""
    doomed = path.with_name(path.name + _REMOVED)
    shutil.rmtree(doomed, ignore_errors=True)
    try:
        os.rename(path, doomed)
    except FileNotFoundError:
        return
    if doomed.is_dir() and not doomed.is_symlink():
        shutil.rmtree(doomed, ignore_errors=True)
    else:
        doomed.unlink()


def _directories(folder: JobFolder) -> Iterator[tuple[int, Path]]:
    try:
        names = sorted(os.listdir(folder.checkpoints))
    except FileNotFoundError:
        return
    for name in names:
        if match := _NAME.fullmatch(name):
            yield int(match[1]), folder.checkpoints / name


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
