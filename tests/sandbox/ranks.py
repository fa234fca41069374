"""A rank server, nodes that are `sleep` processes, and jobs on them, for tests."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from planaria.sandbox.job_folder import JobFolder, read_json
from planaria.sandbox.rank_server import ask

ROOT = Path(__file__).resolve().parents[2]
SERVER = ("-m", "planaria.sandbox.rank_server")
_IDLE = """
import sys, time
from planaria.sandbox import rank_server

def rank(request, forked_at):
    if request.job_id == "short":
        return 7
    time.sleep(600)

sys.exit(rank_server.main(sys.argv[1:], lambda: rank))
"""
IDLE_SERVER = ("-c", _IDLE)
"""The same server, whose ranks sleep (or end with 7) instead of training: no torch, ready at once."""

TINY = {"layers": 1, "heads": 2, "width": 32, "context": 16, "dropout": 0.1}


def within(seconds: float, what: str, true: Callable[[], Any]) -> Any:
    """Poll until `true()` is truthy and return that; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := true():
            return found
        time.sleep(0.005)
    raise AssertionError(f"not within {seconds} s: {what}")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Cluster:
    """A running rank server with `nodes` process groups."""

    def __init__(self, server: subprocess.Popen[str], path: Path, nodes: int) -> None:
        self.server, self.socket = server, path
        self.nodes = [self._node() for _ in range(nodes)]

    @staticmethod
    def _node() -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "600"], process_group=0)

    def replace(self, node: int) -> None:
        """Kill a node's process group and put a new node in its place."""
        os.killpg(self.nodes[node].pid, signal.SIGKILL)
        self.nodes[node].wait()
        self.nodes[node] = self._node()

    def ask(self, **request: Any) -> dict[str, Any]:
        return ask(self.socket, request)

    def pids(self, job: str) -> dict[int, int]:
        """rank -> pid of the living ranks of a job."""
        return {
            each["rank"]: each["pid"] for each in self.ask(verb="status")["ranks"] if each["job_id"] == job
        }

    def request(self, folder: JobFolder, rank: int = 0, **fields: Any) -> dict[str, Any]:
        return {
            "job_id": folder.root.name,
            "attempt": 1,
            "rank": rank,
            "world_size": 1,
            "node_id": f"i-{rank}",
            "pgid_of": self.nodes[rank].pid,
            "master_port": 21090,
            "dir": str(folder.root),
            "resume_step": -1,
        } | fields

    def start(self, folder: JobFolder, world_size: int, **fields: Any) -> list[int]:
        """Fork all ranks of an attempt, rank r on node r; returns their pids."""
        fields.setdefault("master_port", free_port())
        return [
            self.ask(verb="fork", **self.request(folder, rank, world_size=world_size, **fields))["pid"]
            for rank in range(world_size)
        ]

    def ended(self, folder: JobFolder, world_size: int, attempt: int = 1, seconds: float = 20) -> list[int]:
        """Wait for all ranks of an attempt; returns their exit codes."""
        paths = [folder.rank_exit(attempt, rank) for rank in range(world_size)]
        within(
            seconds, f"all ranks of {folder.root.name} ended", lambda: all(each.exists() for each in paths)
        )
        return [json.loads(each.read_text())["exit_code"] for each in paths]


def free_port() -> int:
    """A free port of the loopback address that no connection of another test picks by chance."""
    for port in range(21000, 21090):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _used:
            _used.add(port)
            return port
    _used.clear()
    return free_port()


_used: set[int] = set()


@contextmanager
def cluster(folder: Path, nodes: int, program: Sequence[str] = IDLE_SERVER) -> Iterator[Cluster]:
    path = folder / "ranks.sock"
    server = subprocess.Popen(
        [sys.executable, *program, "--socket", str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdin
    assert server.stdout
    assert server.stderr
    running = None
    try:
        ready = server.stdout.readline()
        assert ready, server.stderr.read()
        running = Cluster(server, path, nodes)
        yield running
    finally:
        server.stdin.close()
        try:
            server.wait(10)
        finally:
            server.kill()
            server.wait()
            server.stdout.close()
            server.stderr.close()
            for node in running.nodes if running else ():
                os.killpg(node.pid, signal.SIGKILL)
                node.wait()


def train_log(folder: JobFolder) -> list[dict[str, Any]]:
    """The whole lines of train.jsonl."""
    if not folder.train_log.exists():
        return []
    return [
        json.loads(line)
        for line in folder.train_log.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]


def final(folder: JobFolder) -> dict[str, Any]:
    document = read_json(folder.final)
    assert document is not None
    return document
