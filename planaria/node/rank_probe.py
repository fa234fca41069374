"""The ranks that run on this node: which failed, and whether a new attempt trains."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planaria.node.probe import JOB_SIGNAL
from planaria.node.tail import Tail

# A file may appear in the same tick of the file system's clock in which its directory was last read.
SETTLE_SECONDS = 0.1
REASON_BYTES = 300
REMEMBERED_ATTEMPTS = 100
_LOG_TAIL_BYTES = 4096


@dataclass(slots=True)
class _Attempt:
    """The newest attempt of one job. waiting: own ranks that have not ended."""

    job_id: str
    number: int
    folder: Path
    waiting: set[int]
    steps: Tail | None
    changed_at: float = field(default=-1.0)


class RankProbe:
    """Reports a rank of this node that ended other than well, unless the attempt was stopped on purpose, and
    (where rank 0 runs) the first completed step of an attempt.

    jobs: a folder with one folder per job, as the sandbox lays it out: job.json (job_id, attempt,
    placement = instance id per rank), train.jsonl, attempts/<k>/rank-<r>.exit and `stopped`.
    memory: a file that keeps, over a reboot, what was reported already.
    """

    detail_type = JOB_SIGNAL

    def __init__(self, jobs: Path, instance_id: str, memory: Path) -> None:
        self._jobs = jobs
        self._instance_id = instance_id
        self._memory = memory
        self._reported: dict[str, list[str]] = _read(memory) or {}
        self._documents: dict[str, tuple[int, int]] = {}
        self._attempts: dict[str, _Attempt] = {}
        self._names: list[str] = []
        self._listed_at = -1.0

    def poll(self, now: float) -> list[dict[str, Any]]:
        details: list[dict[str, Any]] = []
        if self._changed_jobs(now):
            self._names = sorted(os.listdir(self._jobs))
        for name in self._names:
            self._follow(name)
        for attempt in self._attempts.values():
            details += self._exits(attempt, now)
            details += self._first_step(attempt)
        return details

    def _changed_jobs(self, now: float) -> bool:
        try:
            changed_at = self._jobs.stat().st_mtime
        except FileNotFoundError:
            return False
        changed = changed_at != self._listed_at
        if changed and now - changed_at > SETTLE_SECONDS:
            self._listed_at = changed_at
        return changed

    def _follow(self, name: str) -> None:
        """Read job.json if it was replaced, and take up a new attempt."""
        path = self._jobs / name / "job.json"
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return
        mark = (found.st_mtime_ns, found.st_ino)
        if self._documents.get(name) == mark:
            return
        job = _read(path)
        if job is None:
            return
        self._documents[name] = mark
        number, placement = int(job.get("attempt", 0)), list(job.get("placement", []))
        known = self._attempts.get(name)
        if number < 1 or (known is not None and known.number == number):
            return
        own = {rank for rank, node in enumerate(placement) if node == self._instance_id}
        said = self._said(str(job["job_id"]), number)
        steps = Tail(self._jobs / name / "train.jsonl") if 0 in own and "step" not in said else None
        folder = self._jobs / name / "attempts" / str(number)
        own -= {rank for rank in own if f"rank-{rank}" in said}
        self._attempts[name] = _Attempt(str(job["job_id"]), number, folder, own, steps)

    def _exits(self, attempt: _Attempt, now: float) -> list[dict[str, Any]]:
        if not attempt.waiting:
            return []
        try:
            changed_at = attempt.folder.stat().st_mtime
        except FileNotFoundError:
            return []
        if changed_at == attempt.changed_at:
            return []
        details = []
        for rank in sorted(attempt.waiting):
            ended = _read(attempt.folder / f"rank-{rank}.exit")
            if ended is None:
                continue
            attempt.waiting.discard(rank)
            code = int(ended.get("exit_code", 1))
            if code == 0 or (attempt.folder / "stopped").exists():
                continue
            self._say(attempt, f"rank-{rank}")
            reason = str(ended.get("reason", "")) or _last_words(attempt.folder / f"rank-{rank}.log", code)
            told = {"exit_code": code, "reason": reason}
            if isinstance(ended.get("at"), int | float):
                told["ended_at"] = float(ended["at"])
            details.append(_detail(attempt, rank, event="exit", **told))
        if now - changed_at > SETTLE_SECONDS:
            attempt.changed_at = changed_at
        return details

    def _first_step(self, attempt: _Attempt) -> list[dict[str, Any]]:
        for line in attempt.steps.lines() if attempt.steps else []:
            try:
                entry = json.loads(line)
                number, step, loss = int(entry["attempt"]), int(entry["step"]), float(entry["loss"])
            except (ValueError, KeyError, TypeError):
                continue
            if number == attempt.number:
                attempt.steps = None
                self._say(attempt, "step")
                return [_detail(attempt, 0, event="step", step=step, loss=loss)]
        return []

    def _said(self, job_id: str, number: int) -> list[str]:
        return self._reported.get(f"{job_id}/{number}", [])

    def _say(self, attempt: _Attempt, what: str) -> None:
        key = f"{attempt.job_id}/{attempt.number}"
        self._reported[key] = [*self._reported.pop(key, []), what]
        for oldest in list(self._reported)[:-REMEMBERED_ATTEMPTS]:
            del self._reported[oldest]
        scratch = self._memory.with_suffix(".tmp")
        scratch.write_text(json.dumps(self._reported), encoding="utf-8")
        os.replace(scratch, self._memory)


def _detail(attempt: _Attempt, rank: int, **rest: Any) -> dict[str, Any]:
    return {"job_id": attempt.job_id, "attempt": attempt.number, "rank": rank, **rest}


def _read(path: Path) -> dict[str, Any] | None:
    """A JSON object that others replace by rename; None when it is not there (yet)."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _last_words(log: Path, code: int) -> str:
    """How the rank ended and the last line it wrote."""
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _LOG_TAIL_BYTES))
            lines = file.read().decode("utf-8", errors="replace").split("\n")
    except OSError:
        return how
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"{how}: {last}"[:REASON_BYTES] if last else how
