"""Jobs of tests on a real Slurm: sbatch scripts whose ranks say where they run and do as they are told."""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planaria.sandbox import processes
from planaria.sandbox.slurm_cluster import SlurmCluster
from tests.sandbox.heads import eventually

RANK = Path(__file__).with_name("rank.py")
START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RealJob:
    """One job of a real Slurm. job_id: Slurm's. folder: where its ranks read and write."""

    slurm: SlurmCluster
    job_id: str
    folder: Path
    size: int

    def facts(self) -> dict[str, str]:
        """What scontrol says: JobState, Reason, NodeList, Restarts, ExitCode and all the others."""
        text = self.slurm.run("scontrol", "--oneliner", "show", "job", self.job_id)
        pairs = [word.partition("=") for word in text.split()]
        return {name: value for name, _, value in pairs}

    def starts(self) -> int:
        """How often all ranks of the job have come up."""
        found: dict[int, int] = {}
        for path in (self.folder / "ranks").glob("*.json"):
            start = int(path.stem.partition("-")[0])
            found[start] = found.get(start, 0) + 1
        return sum(count == self.size for count in found.values())

    def ranks(self) -> list[dict[str, Any]]:
        """What the ranks of the newest start have said, in their order."""
        paths = list((self.folder / "ranks").glob("*.json"))
        newest = max((int(path.stem.partition("-")[0]) for path in paths), default=-1)
        said = [json.loads(p.read_text()) for p in paths if p.stem.startswith(f"{newest}-")]
        return sorted(said, key=lambda rank: int(rank["rank"]))

    def places(self) -> list[str]:
        """The node of each rank of the newest start."""
        return [str(rank["node"]) for rank in self.ranks()]

    def live_ranks(self) -> list[int]:
        return [int(r["rank"]) for r in self.ranks() if processes.started_at(r["pid"]) == r["started"]]

    def wait_for_start(self, number: int = 1, seconds: float = START_SECONDS) -> None:
        """Until all ranks have come up so often and live."""
        eventually(
            lambda: self.starts() >= number and len(self.live_ranks()) == self.size,
            seconds,
            f"start {number} of job {self.job_id}",
        )

    def tell(self, rank: int, code: int) -> None:
        """This rank ends with this code."""
        scratch = self.folder / "do" / f".{rank}"
        scratch.write_text(str(code))
        scratch.rename(self.folder / "do" / str(rank))

    def steps(self) -> list[dict[str, Any]]:
        path = self.folder / "steps.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def submit(
    slurm: SlurmCluster,
    folder: Path,
    nodes: int,
    *options: str,
    stubborn: bool = False,
    steps: bool = False,
    launcher: str = "srun --kill-on-bad-exit=1",
    wait: bool = True,
) -> RealJob:
    """sbatch a job of so many whole nodes with one rank each. options: more of sbatch's. launcher: what
    starts the ranks, "" for a script that is its only rank itself."""
    for name in ("do", "ranks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    if stubborn:
        (folder / "do/stubborn").touch()
    if steps:
        (folder / "do/steps").touch()
    # A script that runs in the foreground would wait with its own TERM until srun has ended.
    trap = "trap '' TERM\n" if stubborn else ""
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\n{trap}{launcher} {sys.executable} -S {RANK} {folder}\n")
    said = slurm.run(
        "sbatch",
        "--parsable",
        "--exclusive",
        "--requeue",
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        f"--output={folder}/out-%j.log",
        "--open-mode=append",
        *options,
        str(script),
    )
    job = RealJob(slurm, said.strip().partition(";")[0], folder, nodes)
    if wait:
        job.wait_for_start()
    return job


def seconds_since(moment: float) -> float:
    return time.monotonic() - moment
