"""Steps of checkpoints that jobs have saved: a new whole one is told, so that it gets to S3 without delay.

A step with Planaria's manifest is whole when that is there, for it is written last. Of a step in another
format nobody knows when the last byte is written: it is told once nothing in it has changed for a while,
and whoever copies it looks closely.
"""

import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planaria.core import step_names
from planaria.core.errors import InvalidInput
from planaria.core.manifest import FILE_NAME, LARGEST, Manifest

CHECKPOINT_SAVED = "Planaria Checkpoint Saved"
LOOK_SECONDS = 1.0
QUIET_SECONDS = 30.0


@dataclass(slots=True)
class _Folder:
    """One job's. told: step directory -> what was told of it last, or found when the agent began. waits:
    those that are not whole yet -> (time of their newest change, since when it is so)."""

    told: dict[str, str] = field(default_factory=dict)
    waits: dict[str, tuple[float, float]] = field(default_factory=dict)
    first: bool = True


class CheckpointProbe:
    """Reports steps of the jobs whose rank 0 runs on this node: one node tells, not all.

    jobs: a folder with one folder per job, as RankProbe reads it; a job's steps are in `checkpoints` there,
    or in the folder that its job.json names so. What was there before the agent began is told by its newest
    step alone."""

    detail_type = CHECKPOINT_SAVED

    def __init__(self, jobs: Path, instance_id: str) -> None:
        self._jobs = jobs
        self._instance_id = instance_id
        self._folders: dict[str, _Folder] = {}
        self._looked_at = float("-inf")

    def poll(self, now: float) -> list[dict[str, Any]]:
        if now - self._looked_at < LOOK_SECONDS:
            return []
        self._looked_at = now
        details: list[dict[str, Any]] = []
        try:
            names = sorted(os.listdir(self._jobs))
        except FileNotFoundError:
            return []
        for name in names:
            details += self._job(name, now)
        return details

    def _job(self, name: str, now: float) -> list[dict[str, Any]]:
        try:
            job = json.loads((self._jobs / name / "job.json").read_text(encoding="utf-8"))
            job_id, attempt, placement = str(job["job_id"]), int(job["attempt"]), list(job["placement"])
        except (OSError, ValueError, KeyError, TypeError):
            return []
        if not placement or placement[0] != self._instance_id:
            return []
        folder = Path(str(job.get("checkpoints") or self._jobs / name / "checkpoints"))
        known = self._folders.setdefault(name, _Folder())
        found = self._new(folder, job_id, attempt, known, now)
        if known.first:
            found = found[-1:]
            known.first = False
        return [{"job_id": job_id, "attempt": number, "step": step} for number, step in found]

    def _new(
        self, folder: Path, job_id: str, attempt: int, known: _Folder, now: float
    ) -> list[tuple[int, int]]:
        """(attempt, step) of those that are whole and were not told yet, the oldest first."""
        try:
            entries = [entry for entry in os.scandir(folder) if entry.is_dir()]
        except OSError:
            return []
        steps = {
            entry.name: step for entry in entries if (step := step_names.step_of(entry.name)) is not None
        }
        for gone in set(known.told) - set(steps):
            del known.told[gone]
        found = []
        for name, step in steps.items():
            told = self._look(folder / name, job_id, attempt, known, now)
            if told is not None:
                found.append((told, step))
        return sorted(found)

    def _look(self, path: Path, job_id: str, attempt: int, known: _Folder, now: float) -> int | None:
        """Of which attempt a step is that is to be told now."""
        name = path.name
        try:
            manifest = (path / FILE_NAME).stat()
        except OSError:
            return attempt if self._quiet(path, known, now) else None
        mark = f"{manifest.st_mtime_ns}-{manifest.st_size}-{manifest.st_ino}"
        if known.told.get(name) == mark:
            return None
        known.told[name] = mark
        if not stat.S_ISREG(manifest.st_mode) or manifest.st_size > LARGEST:
            return attempt
        try:
            lineage = Manifest.from_json((path / FILE_NAME).read_bytes()).lineage
        except (OSError, InvalidInput):
            return None
        return lineage.attempt if lineage.job == job_id else None

    def _quiet(self, path: Path, known: _Folder, now: float) -> bool:
        """Nothing in a directory without a manifest has changed for a while, and it was not told so."""
        newest, empty = 0.0, True
        try:
            newest = path.stat().st_mtime
            for entry in os.scandir(path):
                newest, empty = max(newest, entry.stat().st_mtime), False
        except OSError:
            return False
        mark = f"quiet-{newest}"
        if empty or known.told.get(path.name) == mark:
            return False
        since = known.waits.get(path.name, (0.0, now))
        if since[0] != newest:
            since = known.waits[path.name] = newest, now
        if now - since[1] < QUIET_SECONDS:
            return False
        known.waits.pop(path.name, None)
        known.told[path.name] = mark
        return True
