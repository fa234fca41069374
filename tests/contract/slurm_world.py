"""The contract suite's world on a real Slurm: three nodes, a fourth name that nobody runs."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from planaria.memory.cluster_state import JobState
from planaria.memory.table import MemoryTable
from planaria.sandbox.errors import SandboxError
from planaria.sandbox.local_commands import LocalCommands
from planaria.sandbox.slurm_cluster import SlurmCluster
from planaria.sandbox.slurm_files import SlurmSettings
from planaria.schedulers.slurm import SlurmScheduler
from planaria.slurm import marks
from planaria.wiring import SystemClock
from tests.sandbox.heads import eventually
from tests.slurm_real.jobs import RealJob, submit

HEAD = "i-0head"
NAMES, SPARE = ("demo-1", "demo-2", "demo-3"), "demo-7"


class SlurmWorld:
    """Job ids are Slurm's own, which are given one after the other."""

    short_hold_seconds = 8.0
    """Some commands must fit into it, on a busy machine too."""

    def __init__(self, slurm: SlurmCluster, folder: Path) -> None:
        self.slurm = slurm
        self.folder = folder
        self.commands = LocalCommands(slurm.environment)
        # Its calls are gathered for a moment only: here nobody else asks.
        self.scheduler = SlurmScheduler(
            self.commands, HEAD, MemoryTable(), SystemClock(), window=0.05, poll_seconds=0.05
        )
        self.node_ids = {name: f"i-{name}" for name in NAMES}
        self.jobs: dict[str, RealJob] = {}
        self.came: dict[str, str] = {}
        for name in NAMES:
            self._enter(name)

    def _enter(self, name: str) -> None:
        """As its instance has joined and was readmitted long ago."""
        comment = marks.write("", {"node": self.node_ids[name]})
        words = (f"comment={comment}", "nodeaddr=127.0.0.1", "nodehostname=localhost")
        self.slurm.run("scontrol", "update", f"nodename={name}", *words)

    def job_id(self, number: int) -> str:
        text = self.slurm.run("scontrol", "show", "config")
        following = next(line for line in text.splitlines() if line.startswith("NEXT_JOB_ID"))
        return str(int(following.partition("=")[2]) + number)

    def add_job(self, job_id: str, nodes: int, stubborn: bool = False) -> None:
        # srun answers SIGTERM by killing the step; a script without it leaves that to the rank.
        launcher = "" if stubborn else "srun --kill-on-bad-exit=1"
        job = submit(self.slurm, self.folder / job_id, nodes, stubborn=stubborn, launcher=launcher)
        assert job.job_id == job_id, f"Slurm called it {job.job_id}"
        self.jobs[job_id] = job

    def end_rank(self, job_id: str, rank: int, code: int) -> None:
        self.jobs[job_id].tell(rank, code)
        eventually(lambda: rank not in self.live_ranks(job_id))

    def cancel(self, job_id: str) -> None:
        self.slurm.run("scancel", job_id)

    def isolate_by_itself(self, name: str) -> None:
        """As slurmd asks slurmctld to: in the name of the user that Slurm runs as."""
        self.isolate_by_someone_else(name, "Kill task failed")

    def isolate_by_someone_else(self, name: str, reason: str) -> None:
        self.slurm.run("scontrol", "update", f"nodename={name}", "state=drain", f"reason={reason}")

    def bring_up(self, node_id: str, name: str) -> None:
        self.came[name] = node_id
        self.slurm.boot(name)
        self.slurm.wait_for_node(name)

    def launch(self, node_id: str, name: str) -> None:
        """What has not booted is nowhere."""

    def lose(self, name: str) -> None:
        self.slurm.kill_node(name)

    def let_pass(self, seconds: float) -> None:
        time.sleep(seconds + 0.2)

    def live_ranks(self, job_id: str) -> list[int]:
        return self.jobs[job_id].live_ranks()

    def job_state(self, job_id: str) -> str:
        """In the twin's words: a job that is out of work and may be started again is stopped."""
        facts = self.jobs[job_id].facts()
        state = facts["JobState"].partition("+")[0]
        if state in ("PENDING", "REQUEUE_HOLD", "REQUEUED", "CANCELLED"):
            return JobState.STOPPED
        return {"COMPLETED": JobState.COMPLETED, "FAILED": JobState.FAILED}.get(state, JobState.RUNNING)

    def reset(self) -> None:
        """Idle nodes, no jobs, no reservations, every name with its first instance."""
        for job_id in self.slurm.run("squeue", "--noheader", "--format=%A").split():
            with contextlib.suppress(SandboxError):  # it has ended meanwhile
                self.slurm.run("scancel", "--full", "--signal=KILL", job_id)
            with contextlib.suppress(SandboxError):
                self.slurm.run("scancel", job_id)
        for name in (*NAMES, SPARE):
            if name in self.came or not self.slurm.runs(name):
                self.slurm.kill_node(name)
        eventually(self._empty, 90.0, "no job runs")
        for reservation in self._reservations():
            self.slurm.run("scontrol", "delete", f"reservationname={reservation}")
        if SPARE in self.came:
            self.slurm.run("scontrol", "update", f"nodename={SPARE}", "state=future")
        for name in NAMES:
            if not self.slurm.runs(name):
                self.slurm.boot(name)
            with contextlib.suppress(SandboxError):  # it is neither down nor drained
                self.slurm.run("scontrol", "update", f"nodename={name}", "state=resume")
            self._enter(name)
            self.slurm.wait_for_node(name)
        self.came.clear()
        self.jobs.clear()

    def _empty(self) -> bool:
        return not self.slurm.run("squeue", "--noheader", "--format=%A").split()

    def _reservations(self) -> list[str]:
        text = self.slurm.run("scontrol", "--oneliner", "show", "reservation")
        words = [word for word in text.split() if word.startswith("ReservationName=")]
        return [word.partition("=")[2] for word in words]


@contextlib.contextmanager
def slurm_world(folder: Path) -> Iterator[SlurmWorld]:
    # Slurm waits so long between TERM and KILL where it ends a job by itself; 30 s by default.
    settings = SlurmSettings(folder / "slurm", NAMES, (SPARE,), options={"KillWait": "5"})
    with SlurmCluster(settings) as slurm:
        world = SlurmWorld(slurm, folder)
        try:
            yield world
        finally:
            world.commands.close()
