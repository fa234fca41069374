"""The sandbox's mirror of a Slurm job: what the ranks wrote down is what the head and the agents see."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from planaria.core.errors import InvalidInput
from planaria.memory.cluster_state import ClusterState, JobState, Node
from planaria.sandbox import processes, slurm_side
from planaria.sandbox.job_folder import JobFolder, read_json, write_json
from planaria.sandbox.rank_server_process import RankServerProcess
from planaria.sandbox.slurm_cluster import SlurmCluster
from planaria.sandbox.slurm_files import SlurmSettings
from planaria.sandbox.slurm_jobs import SlurmJobs
from planaria.sandbox.slurm_rank import request_of, start_file
from planaria.sandbox.slurm_side import SlurmSide

RECIPE = {"name": "tiny", "nodes": 2, "ranks_per_node": 1}
TASK = {
    "SLURM_JOB_ID": "12",
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_RESTART_COUNT": "2",
    "SLURMD_NODENAME": "demo-2",
    "PLANARIA_ATTEMPT": "3",
    "PLANARIA_RESUME_STEP": "40",
}


class Mirror:
    def __init__(self, folder: Path) -> None:
        self.state, lock = ClusterState(), threading.RLock()
        self.ids = {"demo-1": "i-1", "demo-2": "i-2"}
        slurm = SlurmCluster(SlurmSettings(folder / "slurm"))
        self.jobs = SlurmJobs(
            folder,
            self.state,
            lock,
            RankServerProcess(folder),
            slurm,
            lambda name: self.ids.get(name, ""),
        )
        self.folder: JobFolder = self.jobs.folder("12")
        self.state.submit_job("12", 2, 1, {})
        self.children: list[subprocess.Popen[bytes]] = []

    def start_rank(self, attempt: int, rank: int, node: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        self.children.append(child)
        place = start_file(self.folder, attempt, rank)
        place.parent.mkdir(parents=True, exist_ok=True)
        told = {"pid": child.pid, "started": processes.started_at(child.pid), "node": node, "ranks": 2}
        write_json(place, {**told, "resume_step": 40, "at": time.time()})
        return child

    def look(self) -> None:
        self.jobs._step(time.time())


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Mirror]:
    made = Mirror(tmp_path)
    yield made
    for child in made.children:
        child.kill()
        child.wait()


def test_a_task_knows_its_rank_from_slurm_and_its_attempt_from_planaria(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text(json.dumps({"training": {"steps": 77}}))
    request = request_of(tmp_path, TASK)
    assert (request.job_id, request.rank, request.world_size, request.attempt) == ("12", 1, 2, 3)
    assert (request.resume_step, request.node_id, request.config.steps) == (40, "demo-2", 77)
    other = request_of(tmp_path, {**TASK, "SLURM_PROCID": "0"})
    assert request.master_port == other.master_port, "they meet at one port"
    again = request_of(tmp_path, {**TASK, "SLURM_RESTART_COUNT": "3"})
    assert again.master_port != request.master_port, "the last attempt's may linger"
    alone = {key: value for key, value in TASK.items() if not key.startswith("PLANARIA")}
    first = request_of(tmp_path, alone)
    assert (first.attempt, first.resume_step) == (3, -1)


def test_outside_of_slurm_a_task_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no task of a job of the sandbox: 'SLURM_JOB_ID'"):
        request_of(tmp_path, {})


def test_an_attempt_is_taken_up_once_all_its_ranks_have_come(mirror: Mirror) -> None:
    mirror.start_rank(1, 0, "demo-1")
    mirror.look()
    job = mirror.state.jobs["12"]
    assert (job.attempt, job.placement) == (0, [])
    mirror.start_rank(1, 1, "demo-2")
    mirror.look()
    assert (job.attempt, job.placement, job.nodes) == (1, ["i-1", "i-2"], ["demo-1", "demo-2"])
    assert (job.resume_step, job.state, job.live_ranks) == (40, JobState.RUNNING, [0, 1])
    document = read_json(mirror.folder.root / "job.json")
    assert document is not None
    assert document["placement"] == ["i-1", "i-2"]
    mirror.ids["demo-2"] = "i-3"
    mirror.start_rank(2, 0, "demo-1")
    mirror.start_rank(2, 1, "demo-2")
    mirror.look()
    assert (job.attempt, job.placement) == (2, ["i-1", "i-3"])


def test_a_rank_that_slurm_killed_has_an_end_all_the_same(mirror: Mirror) -> None:
    first, second = mirror.start_rank(1, 0, "demo-1"), mirror.start_rank(1, 1, "demo-2")
    mirror.look()
    assert mirror.jobs.kill_ranks_on("i-2") == ["12 rank 1"]
    assert second.wait() == -signal.SIGKILL
    mirror.look()
    job = mirror.state.jobs["12"]
    assert (job.live_ranks, job.exits, job.state) == ([0], {1: -9}, JobState.FAILED)
    ended = read_json(mirror.folder.rank_exit(1, 1))
    assert ended is not None
    assert ended["reason"] == "killed with its step of Slurm job 12"
    mirror.jobs.stopping("12,")
    assert (mirror.folder.attempts / "1" / "stopped").exists()
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    mirror.look()
    assert job.live_ranks == []


def test_a_replacement_takes_the_port_of_a_name_when_it_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = ClusterState()
    side = SlurmSide(tmp_path, ("demo-1",), state, threading.RLock())
    booted: list[str] = []
    queue = ["17"]
    sent: list[dict[str, str]] = []
    monkeypatch.setattr(side.slurm, "boot", booted.append)
    monkeypatch.setattr(side.slurm, "runs", lambda name: True)
    monkeypatch.setattr(side.slurm, "run", lambda *words: "\n".join(queue))

    def submit(document: str, node_ids: list[str], parameters: dict[str, str]) -> str:
        sent.append(parameters)
        return "local-1"

    monkeypatch.setattr(side._commands, "submit", submit)
    state.nodes["demo-1"] = Node("demo-1", "i-1")
    side.came_up("demo-1", "i-1")
    side.came_up("demo-1", "i-2")
    assert booted == ["demo-1"], "a replacement waits for its Join"
    join = {"Name": "demo-1", "NodeId": "i-2", "Address": "10.0.0.9", "Reason": "planaria:x"}
    side.submit(slurm_side.JOIN, ["i-0head"], join)
    assert (booted, side.holder_of("demo-1")) == (["demo-1"], "i-1"), "a job still runs there"
    queue.clear()
    side.submit(slurm_side.JOIN, ["i-0head"], join)
    side.submit(slurm_side.JOIN, ["i-0head"], join)
    assert (booted, side.holder_of("demo-1")) == (["demo-1", "demo-1"], "i-2")
    assert {each["Address"] for each in sent} == {"127.0.1.2"}
    side.submit("planaria-slurm-node", ["i-0head"], {"Nodes": "demo-1"})
    assert sent[-1] == {"Nodes": "demo-1"}
    side._commands.close()
