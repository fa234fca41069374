"""The life of training jobs: carries out what the scheduler's state asks for, with real processes."""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from planaria.core.errors import InvalidInput
from planaria.memory.cluster_state import ClusterState, EndNode, EndRanks, Job, StartRanks
from planaria.sandbox.job_folder import JobFolder, read_json, write_json
from planaria.sandbox.job_recipe import parse_job_recipe
from planaria.sandbox.ports import free_port
from planaria.sandbox.rank_server_process import RankServerProcess

STEP_SECONDS = 0.05
RESTART_SECONDS = 5.0  # at least between two starts of a rank server that dies
STOPPED_MARKER = "stopped"
logger = logging.getLogger(__name__)


class Jobs:
    """Owns the folder jobs/ and the rank server. `lock` guards `state`; every method may be called from any
    thread, and the work itself is done in one thread of its own.

    leader_of: pid of the leader of a node's process group, None when the node is not up.
    """

    def __init__(
        self,
        folder: Path,
        state: ClusterState,
        lock: threading.RLock,
        leader_of: Callable[[str], int | None],
        ranks: RankServerProcess,
    ) -> None:
        self._folder = folder / "jobs"
        self._nodes_file = folder / "nodes.json"
        self._state = state
        self._lock = lock
        self._leader_of = leader_of
        self.ranks = ranks
        self._written: dict[Path, dict[str, Any]] = {}
        self._unstarted: list[StartRanks] = []
        self._kills: list[tuple[float, EndRanks]] = []
        self._pids: dict[tuple[str, int, int], int] = {}
        self._restart_at = 0.0
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self) -> None:
        """Continue from the files of an earlier head, whose ranks are all dead, and start to work."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.ranks.wait_for_earlier()
        self._restore()
        self.ranks.start()
        self._thread.start()

    def stop(self) -> None:
        """End the thread and all ranks. The jobs stay as they are on disk."""
        self._ending.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(10.0)
        self.ranks.stop()

    def folder(self, job_id: str) -> JobFolder:
        return JobFolder(self._folder / job_id)

    def submit(self, job_id: str, recipe: dict[str, Any]) -> Job:
        """Raises InvalidInput for a bad id or recipe; the same id again changes nothing."""
        parsed = parse_job_recipe(recipe, f"job {job_id}")
        with self._lock:
            job = self._state.submit_job(job_id, parsed.nodes, parsed.ranks_per_node, asdict(parsed))
        self.work()
        return job

    def work(self) -> None:
        """Write what has changed to disk; the thread then carries it out at once."""
        with self._lock:
            self._persist()
        self._wake.set()

    def kill_ranks_on(self, node_id: str) -> list[str]:
        """SIGKILL to every rank on this node. -> what was killed, as "job rank"."""
        killed = []
        for job_id, attempt, rank in self._live():
            if self._state.jobs[job_id].placement[rank] == node_id:
                self._signal(job_id, attempt, rank, signal.SIGKILL)
                killed.append(f"{job_id} rank {rank}")
        return killed

    def ranks_on(self, node_id: str) -> list[str]:
        """What runs on this node, as "job rank"."""
        with self._lock:
            jobs = list(self._state.jobs.values())
            return [
                f"{job.job_id} rank {rank}"
                for job in jobs
                for rank in job.live_ranks
                if job.placement[rank] == node_id
            ]

    def kill_rank(self, job_id: str, rank: int) -> bool:
        """SIGKILL to one rank; False when it does not run."""
        for live_job, attempt, live_rank in self._live():
            if (live_job, live_rank) == (job_id, rank):
                return self._signal(job_id, attempt, rank, signal.SIGKILL)
        return False

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._step(time.time())
            except Exception:  # a full disk, say: the next turn may do better
                logger.exception("jobs")
                self._ending.wait(0.5)
            self._wake.wait(STEP_SECONDS)
            self._wake.clear()

    def _step(self, now: float) -> None:
        if self.ranks.died():
            self._write_missing_exits("the rank server died")
            if now >= self._restart_at:
                logger.warning("the rank server died and is started again; see rank-server.log")
                self._restart_at = now + RESTART_SECONDS
                self.ranks.start()
        self._watch(now)
        with self._lock:
            self._state.tick(now)
            effects = self._state.take_effects()
            self._persist()
        for effect in effects:
            match effect:
                case StartRanks():
                    self._unstarted.append(effect)
                case EndRanks():
                    self._end(effect, now)
                case EndNode(node_id=node_id):
                    self.kill_ranks_on(node_id)
        if self._unstarted and self.ranks.ready():
            for start in self._unstarted:
                self._start(start)
            self._unstarted.clear()
        for due in [each for each in self._kills if each[0] <= now]:
            self._kills.remove(due)
            self._kill_attempt(due[1])

    def _start(self, start: StartRanks) -> None:
        job = self._state.jobs[start.job_id]
        folder = self.folder(start.job_id)
        (folder.attempts / str(start.attempt)).mkdir(parents=True, exist_ok=True)
        master_port = free_port()
        for rank, node_id in enumerate(start.placement):
            request = {
                "verb": "fork",
                "job_id": start.job_id,
                "attempt": start.attempt,
                "rank": rank,
                "world_size": len(start.placement),
                "node_id": node_id,
                "pgid_of": self._leader_of(node_id),
                "master_port": master_port,
                "dir": str(folder.root.resolve()),
                "resume_step": start.resume_step,
                "config": job.recipe.get("training", {}),
            }
            try:
                if request["pgid_of"] is None:
                    raise InvalidInput(f"node {node_id} is not running")
                self._pids[(start.job_id, start.attempt, rank)] = int(self.ranks.ask(request)["pid"])
            except (InvalidInput, OSError) as error:
                logger.warning("rank %d of %s was not started: %s", rank, start.job_id, error)
                self._write_exit(start.job_id, start.attempt, rank, -signal.SIGKILL, str(error))

    def _end(self, end: EndRanks, now: float) -> None:
        folder = self.folder(end.job_id).attempts / str(end.attempt)
        if end.asked:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / STOPPED_MARKER, {"at": now})
        never = [s for s in self._unstarted if (s.job_id, s.attempt) == (end.job_id, end.attempt)]
        for start in never:
            self._unstarted.remove(start)
            for rank in range(len(start.placement)):
                self._write_exit(end.job_id, end.attempt, rank, -signal.SIGTERM, "stopped before its start")
        number = signal_number(end.signal)
        if number == signal.SIGKILL or end.grace_seconds <= 0:
            self._kill_attempt(end)
            return
        for job_id, attempt, rank in self._live():
            if (job_id, attempt) == (end.job_id, end.attempt):
                self._signal(job_id, attempt, rank, number)
        self._kills.append((now + end.grace_seconds, end))

    def _kill_attempt(self, end: EndRanks) -> None:
        try:
            self.ranks.ask({"verb": "stop", "job_id": end.job_id, "attempt": end.attempt})
        except OSError as error:
            # The server's death is the ranks' death; the next turn sees it.
            logger.warning("the rank server does not answer: %s", error)

    def _watch(self, now: float) -> None:
        """Take over the exit codes that the rank server wrote."""
        ended = []
        for job_id, attempt, rank in self._live():
            document = read_json(self.folder(job_id).rank_exit(attempt, rank))
            if document is not None:
                ended.append((job_id, attempt, rank, int(document.get("exit_code", 1))))
        with self._lock:
            for job_id, attempt, rank, code in ended:
                self._pids.pop((job_id, attempt, rank), None)
                self._state.rank_exited(job_id, attempt, rank, code, now)

    # --- small things ----------------------------------------------------------------------------

    def _live(self) -> list[tuple[str, int, int]]:
        with self._lock:
            return [(j.job_id, j.attempt, rank) for j in self._state.jobs.values() for rank in j.live_ranks]

    def _signal(self, job_id: str, attempt: int, rank: int, number: int) -> bool:
        pid = self._pids.get((job_id, attempt, rank))
        # The rank server writes the exit file when it has reaped the rank; before that the pid is the rank's.
        if pid is None or self.folder(job_id).rank_exit(attempt, rank).exists():
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            return True
        return False

    def _write_exit(self, job_id: str, attempt: int, rank: int, code: int, reason: str) -> None:
        path = self.folder(job_id).rank_exit(attempt, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_json(path, {"exit_code": int(code), "at": time.time(), "reason": reason})

    def _write_missing_exits(self, reason: str) -> None:
        waiting = {(s.job_id, s.attempt) for s in self._unstarted}
        for job_id, attempt, rank in self._live():
            if (job_id, attempt) not in waiting:
                self._write_exit(job_id, attempt, rank, -signal.SIGKILL, reason)

    def _persist(self) -> None:
        """Write nodes.json and every job.json that has changed."""
        documents = {self._nodes_file: self._state.nodes_document()}
        for job_id in self._state.jobs:
            documents[self._folder / job_id / "job.json"] = self._state.job_document(job_id)
        for path, document in documents.items():
            if self._written.get(path) != document:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, document)
                self._written[path] = document

    def _restore(self) -> None:
        jobs = [document for path in sorted(self._folder.glob("*/job.json")) if (document := read_json(path))]
        try:
            with self._lock:
                self._state.restore(read_json(self._nodes_file) or {}, jobs)
        except (TypeError, KeyError, ValueError) as error:
            raise InvalidInput(f"{self._nodes_file.parent} holds files of another version: {error}") from None
        self._write_missing_exits("the sandbox was ended")


def signal_number(name: str) -> int:
    """TERM or SIGTERM -> 15. Raises InvalidInput."""
    try:
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except KeyError:
        raise InvalidInput(f"{name!r} is no signal; use TERM, INT or KILL") from None
