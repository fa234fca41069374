"""A real Slurm of six nodes for the verbs that it can show; each test finds it idle."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from planaria.sandbox import slurm_cluster
from planaria.sandbox.errors import SandboxError
from planaria.sandbox.slurm_cluster import SlurmCluster
from planaria.sandbox.slurm_files import SlurmSettings
from planaria.slurm.programs import Done, Slurm, run_program
from tests.sandbox.heads import eventually

PROLOG = """#!/bin/sh
# The site's prolog fails on a node for as long as this file is there.
[ ! -e "$(dirname "$0")/broken-$SLURMD_NODENAME" ]
"""

NAMES = tuple(f"demo-{number}" for number in range(1, 7))
SPARE = "demo-7"


@dataclass
class Real:
    """slurm: as the verbs see it. orders: what they had Slurm change, in order."""

    cluster: SlurmCluster
    folder: Path
    orders: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def slurm(self) -> Slurm:
        return Slurm(self._run)

    def _run(self, arguments: Sequence[str], seconds: float) -> Done:
        words = tuple(arguments)
        if words[0] == "scancel" or {"update", "create", "delete", "requeuehold", "hold"} & set(words):
            self.orders.append(words)
        return run_program(arguments, seconds)

    def submit(self, script: str, *options: str, wait: bool = True) -> str:
        """sbatch this text; wait until the job runs. -> its id."""
        path = self.folder / "script.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        job = self.cluster.run(
            "sbatch", "--parsable", "--requeue", f"--output={self.folder}/out-%j", "--open-mode=append",
            *options, str(path),
        )  # fmt: skip
        job = job.strip()
        if wait:
            eventually(lambda: self.state(job) == "RUNNING", 40.0, f"job {job} runs")
        return job

    def state(self, job: str) -> str:
        return self.facts(job)["JobState"]

    def facts(self, job: str) -> dict[str, str]:
        text = self.cluster.run("scontrol", "--oneliner", "show", "job", job).splitlines()[0]
        return {name: value for name, _, value in (word.partition("=") for word in text.split())}

    def node(self, name: str) -> str:
        return self.cluster.run("scontrol", "--details", "--oneliner", "show", "node", name)

    def update(self, *changes: str) -> None:
        self.cluster.run("scontrol", "update", *changes)

    def reset(self) -> None:
        for job in self.cluster.run("squeue", "--noheader", "--format=%A").split():
            with contextlib.suppress(SandboxError):  # it has ended meanwhile
                self.cluster.run("scancel", job)
        eventually(lambda: not self.cluster.run("squeue", "--noheader").strip(), 60.0, "no job is left")
        for line in self.cluster.run("scontrol", "--oneliner", "show", "reservation").splitlines():
            if line.startswith("ReservationName="):
                with contextlib.suppress(SandboxError):  # its time was up
                    self.cluster.run("scontrol", "delete", line.split()[0])
        for name in NAMES:
            if not self.cluster.runs(name):
                self.cluster.boot(name)
            self.update(f"NodeName={name}", "Comment=", "NodeAddr=127.0.0.1")
            with contextlib.suppress(SandboxError):  # it is neither down nor drained
                self.update(f"NodeName={name}", "State=RESUME")
            self.cluster.wait_for_node(name)


@pytest.fixture(scope="session")
def shared_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    if lack := slurm_cluster.missing():
        pytest.skip(f"slurm: {lack}")
    folder = tmp_path_factory.mktemp("slurm")
    prolog = folder / "prolog"
    prolog.write_text(PROLOG)
    prolog.chmod(0o755)
    # Heterogeneous jobs start in the backfill cycle alone, which is every 30 s by default.
    options = {"Prolog": str(prolog), "SchedulerParameters": "bf_interval=5"}
    settings = SlurmSettings(folder, NAMES, (SPARE,), options=options)
    with SlurmCluster(settings) as cluster:
        yield cluster


@pytest.fixture
def real(shared_slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Real]:
    monkeypatch.setenv("SLURM_CONF", shared_slurm.environment["SLURM_CONF"])
    running = Real(shared_slurm, tmp_path)
    yield running
    running.reset()
