"""Names of the files in a job's folder, and the exit codes of its ranks. No torch here: the head and the
node agents read these too.

    <root>/job.json  train.jsonl  final.json  checkpoint-now  checkpoint-served
    <root>/checkpoints/step-<n>/   (step-<n>.tmp while it is written)
    <root>/attempts/<k>/rank-<r>.log  rank-<r>.ready  rank-<r>.exit
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any


class RankExit(IntEnum):
    """Exit codes of a rank. A rank that a signal ended has the negative signal number instead.

    PEER_LOST is a consequence and never a cause: another rank of the job ended or stopped answering.
    """

    DONE = 0
    FAILED = 1
    CANNOT_RESUME = 3
    PEER_LOST = 4
    SUPERSEDED = 5


@dataclass(frozen=True, slots=True)
class JobFolder:
    """The paths of one job. `root` is `jobs/<job id>` of the sandbox folder."""

    root: Path

    @property
    def train_log(self) -> Path:
        """One JSON line per step: attempt, step, loss (mean over ranks), at (epoch seconds)."""
        return self.root / "train.jsonl"

    @property
    def final(self) -> Path:
        """{"step", "loss", "weights_sha256"}: there once the job has ended well."""
        return self.root / "final.json"

    @property
    def request(self) -> Path:
        """{"id": str}: somebody wants a checkpoint at the next step boundary."""
        return self.root / "checkpoint-now"

    @property
    def served(self) -> Path:
        """{"id": str, "step": int, "at": epoch seconds}: the last request that has its checkpoint."""
        return self.root / "checkpoint-served"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def step(self, step: int) -> Path:
        return self.checkpoints / f"step-{step}"

    def step_in_progress(self, step: int) -> Path:
        return self.checkpoints / f"step-{step}.tmp"

    @property
    def attempts(self) -> Path:
        return self.root / "attempts"

    def rank_log(self, attempt: int, rank: int) -> Path:
        return self.attempts / str(attempt) / f"rank-{rank}.log"

    def rank_ready(self, attempt: int, rank: int) -> Path:
        """{"forked_at", "first_collective_at"}, both epoch seconds; written by the rank."""
        return self.attempts / str(attempt) / f"rank-{rank}.ready"

    def rank_store(self, attempt: int) -> Path:
        """{"port"}: written by rank 0 when the store at which the ranks meet listens there."""
        return self.attempts / str(attempt) / "store"

    def rank_exit(self, attempt: int, rank: int) -> Path:
        """{"exit_code", "at"}; written by the rank server when it has reaped the rank."""
        return self.attempts / str(attempt) / f"rank-{rank}.exit"

    def newest_attempt(self) -> int:
        """The highest attempt that was ever started; 0 when there was none."""
        try:
            names = os.listdir(self.attempts)
        except FileNotFoundError:
            return 0
        return max((int(name) for name in names if name.isdecimal()), default=0)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write so that a reader sees the old file or the whole new one, never a part."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        scratch.write_text(json.dumps(document) + "\n", encoding="utf-8")
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None when there is no such file or it holds no JSON object."""
    try:
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return document if isinstance(document, dict) else None
