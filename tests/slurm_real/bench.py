"""A real Slurm with Planaria's adapter on it, and the course of a resume as the workflows ask for it."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planaria.core import scheduling
from planaria.memory.table import MemoryTable
from planaria.sandbox.errors import SandboxError
from planaria.sandbox.local_commands import LocalCommands
from planaria.sandbox.slurm_cluster import SlurmCluster
from planaria.schedulers.slurm import SlurmScheduler
from planaria.wiring import SystemClock
from tests.sandbox.heads import done, eventually
from tests.slurm_real.jobs import RealJob

HEAD = "i-0head"
MARK = "planaria:i-0aaaa.17"
PATIENCE_SECONDS = 60.0
SLOW_SECONDS = 12.0


@dataclass(frozen=True, slots=True)
class Resumed:
    """seconds: from the first Requeue to the answer RUNNING. words: what Requeue answered, each once."""

    seconds: float
    words: tuple[str, ...]


class Bench:
    def __init__(self, slurm: SlurmCluster) -> None:
        self.slurm = slurm
        self.commands = LocalCommands(slurm.environment)
        # Its calls are gathered for a moment only: here nobody else asks.
        self.scheduler = SlurmScheduler(
            self.commands, HEAD, MemoryTable(), SystemClock(), window=0.05, poll_seconds=0.05
        )

    def ask(self, request: scheduling.SchedulerRequest) -> dict[str, Any]:
        return done(self.scheduler.poll, self.scheduler.submit(request), PATIENCE_SECONDS)

    def until(self, request: scheduling.SchedulerRequest, wanted: dict[str, Any]) -> None:
        """Ask again until the answer is this."""
        eventually(lambda: self.ask(request) == wanted, PATIENCE_SECONDS, f"{request} -> {wanted}")

    def node(self, name: str) -> dict[str, Any]:
        return dict(self.ask(scheduling.NodeQuery((name,)))[name])

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.ask(scheduling.JobQuery((job_id,)))[job_id])

    def quarantine(self, job: RealJob, lost: str, names: Sequence[str]) -> None:
        """What is asked when the instance behind `lost` is gone: nobody gets its job's nodes meanwhile."""
        assert self.ask(scheduling.Isolate((lost,), MARK)) == {lost: "ISOLATED"}
        assert self.ask(scheduling.Hold(job.job_id, tuple(names), 600.0)) == {job.job_id: "HELD"}
        assert self.ask(scheduling.Lost((lost,), MARK)) == {lost: "ISOLATED"}
        self.until(scheduling.Stop((job.job_id,), "TERM", 2.0), {job.job_id: "STOPPED"})
        assert job.live_ranks() == []

    def replace(self, name: str, node_id: str, address: str) -> None:
        """The replacement boots, takes the name, and may work."""
        self.slurm.boot(name)
        join = scheduling.Join(name, node_id, address, MARK)
        self.until(join, {name: "JOINED"})
        self.until(scheduling.Readmit((name,), MARK), {name: "READMITTED"})

    def requeue(self, job_id: str, names: Sequence[str], attempt: int, step: int = -1) -> Resumed:
        """Asked again until it runs, as the workflow does."""
        began, words = time.monotonic(), []
        request = scheduling.Requeue(job_id, tuple(names), attempt, step)

        def running() -> bool:
            words.append(str(self.ask(request)[job_id]))
            # Readmitted nodes are heard once more before they get work: the workflow asks again then.
            assert not words[-1].startswith("REFUSED") or words[-1].endswith("is down"), words
            if words[-1] != "RUNNING" and time.monotonic() > began + SLOW_SECONDS:
                self.mend(names)
            return words[-1] == "RUNNING"

        eventually(running, 2 * PATIENCE_SECONDS, f"{job_id} runs")
        return Resumed(time.monotonic() - began, tuple(dict.fromkeys(words)))

    def mend(self, names: Sequence[str]) -> None:
        """What an incident does about these nodes where Slurm itself has drained them."""
        for name in sorted(set(names) & set(self.ask(scheduling.NodeQuery(())))):
            self.until(scheduling.Isolate((name,), MARK), {name: "ISOLATED"})
            self.until(scheduling.Readmit((name,), MARK), {name: "READMITTED"})

    def reset(self, names: Sequence[str], spare: str) -> None:
        """No job, no reservation, every node idle, and the spare name nobody's again."""
        for job_id in self.slurm.run("squeue", "--noheader", "--format=%A").split():
            with contextlib.suppress(SandboxError):  # it has ended meanwhile
                self.slurm.run("scancel", "--full", "--signal=KILL", job_id)
            with contextlib.suppress(SandboxError):
                self.slurm.run("scancel", job_id)
        for name in names:
            if not self.slurm.runs(name):
                self.slurm.boot(name)
        if self.slurm.node_state(spare):
            self.slurm.kill_node(spare)
            self.slurm.run("scontrol", "update", f"nodename={spare}", "comment=", "state=down", "reason=gone")
        eventually(lambda: not self.slurm.run("squeue", "--noheader").split(), 60.0, "no job is left")
        if self.slurm.node_state(spare):
            self.slurm.run("scontrol", "update", f"nodename={spare}", "state=future")
        text = self.slurm.run("scontrol", "--oneliner", "show", "reservation")
        for word in text.split():
            if word.startswith("ReservationName="):
                self.slurm.run("scontrol", "delete", word)
        for name in names:
            self.slurm.run("scontrol", "update", f"nodename={name}", "nodeaddr=127.0.0.1", "comment=")
            with contextlib.suppress(SandboxError):  # it is neither down nor drained
                self.slurm.run("scontrol", "update", f"nodename={name}", "state=resume")
        for name in names:
            self.slurm.wait_for_node(name)


@contextlib.contextmanager
def watched(slurm: SlurmCluster, mine: str) -> Iterator[list[tuple[str, str]]]:
    """While this lasts: (job, nodes) of every job but `mine` that Slurm says has nodes, each once."""
    import threading

    seen: list[tuple[str, str]] = []
    ending = threading.Event()

    def look() -> None:
        while not ending.is_set():
            text = slurm.run("squeue", "--noheader", "--states=R,CG,CF,S", "--format=%A %N")
            for line in text.splitlines():
                job, _, nodes = line.strip().partition(" ")
                if job != mine and (job, nodes) not in seen:
                    seen.append((job, nodes))
            ending.wait(0.1)

    thread = threading.Thread(target=look, name="watch", daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        ending.set()
        thread.join(30.0)


def folder_of(path: Path, name: str) -> Path:
    made = path / name
    made.mkdir(parents=True, exist_ok=True)
    return made
