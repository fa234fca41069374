"""Training jobs of the sandbox where Slurm is its scheduler: sbatch jobs, mirrored from what their ranks say.

The mirror is what the head tells of jobs (`sandbox status`, job.json for the agents); Slurm alone decides.
"""

import contextlib
import json
import logging
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from planaria.core.errors import InvalidInput
from planaria.memory.cluster_state import ClusterState, Job, JobState
from planaria.sandbox import processes
from planaria.sandbox.errors import SandboxError
from planaria.sandbox.job_folder import read_json, write_json
from planaria.sandbox.job_recipe import JobRecipe, parse_job_recipe
from planaria.sandbox.jobs import STOPPED_MARKER, Jobs
from planaria.sandbox.node_process import child_environment
from planaria.sandbox.rank_server_process import RankServerProcess
from planaria.sandbox.slurm_cluster import SlurmCluster
from planaria.sandbox.slurm_rank import start_file

logger = logging.getLogger(__name__)


class SlurmJobs(Jobs):
    """holder_of: the instance that has a node's name now, "" when none has. A job's id is Slurm's own."""

    def __init__(
        self,
        folder: Path,
        state: ClusterState,
        lock: threading.RLock,
        ranks: RankServerProcess,
        slurm: SlurmCluster,
        holder_of: Callable[[str], str],
    ) -> None:
        super().__init__(folder, state, lock, lambda _: None, ranks)
        self._slurm = slurm
        self._holder_of = holder_of

    def start(self) -> None:
        """The rank server stays down: a task of Slurm must be a child of Slurm."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def submit(self, job_id: str, recipe: dict[str, Any]) -> Job:
        """job_id: its name in Slurm. Raises InvalidInput for a bad recipe or where sbatch refuses it."""
        parsed = parse_job_recipe(recipe, f"job {job_id}")
        with self._lock:
            for known in self._state.jobs.values():
                if known.recipe.get("submitted_as") == job_id:
                    return known
        number = self._sbatch(job_id, parsed)
        with self._lock:
            job = self._state.submit_job(
                number, parsed.nodes, parsed.ranks_per_node, {**asdict(parsed), "submitted_as": job_id}
            )
        self.work()
        return job

    def stopping(self, job_ids: str) -> None:
        """Somebody stops these jobs (a comma list) on purpose: how their ranks end is no failure."""
        for job_id in job_ids.split(","):
            folder = self.folder(job_id)
            if job_id and (newest := folder.newest_attempt()) > 0:
                write_json(folder.attempts / str(newest) / STOPPED_MARKER, {"at": 0})

    def kill_ranks_on(self, node_id: str) -> list[str]:
        killed = []
        for job_id, attempt, rank in self._live():
            if self._state.jobs[job_id].placement[rank] == node_id:
                self._signal(job_id, attempt, rank, signal.SIGKILL)
                killed.append(f"{job_id} rank {rank}")
        return killed

    # --- the thread ------------------------------------------------------------------------------

    def _step(self, now: float) -> None:
        with self._lock:
            jobs = list(self._state.jobs.values())
        for job in jobs:
            self._take_up(job)
        self._watch(now)
        with self._lock:
            self._persist()

    def _take_up(self, job: Job) -> None:
        """A new attempt, once all its ranks have said where they run."""
        folder = self.folder(job.job_id)
        newest = folder.newest_attempt()
        if newest > job.attempt:
            first = read_json(start_file(folder, newest, 0))
            count = int(first["ranks"]) if first else 0
            found = [read_json(start_file(folder, newest, rank)) for rank in range(count)]
            if first is None or not all(found):
                return
            placement = [self._holder_of(str(start["node"])) for start in found if start]
            with self._lock:
                job.attempt, job.placement, job.exits = newest, placement, {}
                job.nodes = list(dict.fromkeys(str(start["node"]) for start in found if start))
                job.resume_step, job.state, job.stop = int(first["resume_step"]), JobState.RUNNING, None
        for rank in job.live_ranks if job.attempt else []:
            self._end_if_gone(job, rank)

    def _end_if_gone(self, job: Job, rank: int) -> None:
        """Slurm kills a task with the process that would have written down its end."""
        folder = self.folder(job.job_id)
        start = read_json(start_file(folder, job.attempt, rank))
        if start is None or processes.started_at(int(start["pid"])) == start["started"]:
            return
        if not folder.rank_exit(job.attempt, rank).exists():
            reason = f"killed with its step of Slurm job {job.job_id}"
            self._write_exit(job.job_id, job.attempt, rank, -signal.SIGKILL, reason)

    def _signal(self, job_id: str, attempt: int, rank: int, number: int) -> bool:
        start = read_json(start_file(self.folder(job_id), attempt, rank))
        if start is None or processes.started_at(int(start["pid"])) != start["started"]:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(start["pid"]), number)
            return True
        return False

    # --- sbatch ----------------------------------------------------------------------------------

    def _sbatch(self, name: str, recipe: JobRecipe) -> str:
        """Held until its folder, which is named after its number, is there. -> the number."""
        jobs = self._folder.resolve()
        python = shlex.quote(sys.executable)
        script = (
            "#!/bin/bash\n"
            f"exec {python} -m planaria.slurm.in_job srun --kill-on-bad-exit=0"
            f' {python} -m planaria.sandbox.slurm_rank "{jobs}/$SLURM_JOB_ID"\n'
        )
        variables = {**child_environment(), "PYTHONDONTWRITEBYTECODE": "1"}
        variables.pop("PATH", None)
        exported = ",".join(["ALL", *(f"{key}={value}" for key, value in variables.items())])
        try:
            said = self._slurm.run(
                "sbatch",
                "--parsable",
                "--hold",
                "--exclusive",
                "--requeue",
                f"--job-name={name}",
                f"--nodes={recipe.nodes}",
                f"--ntasks-per-node={recipe.ranks_per_node}",
                f"--gres=gpu:{self._slurm.settings.gpus}",
                f"--output={jobs}/slurm-%j.log",
                "--open-mode=append",
                f"--export={exported}",
                stdin=script,
            )
            number = said.strip().partition(";")[0]
            folder = self.folder(number).root
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "recipe.json").write_text(json.dumps(asdict(recipe)), encoding="utf-8")
            told = f"planaria?folder={folder.resolve()}&ranks_per_node={recipe.ranks_per_node}"
            self._slurm.run("scontrol", "update", f"jobid={number}", f"comment={told}")
            self._slurm.run("scontrol", "release", number)
        except SandboxError as error:
            raise InvalidInput(str(error)) from None
        return number
