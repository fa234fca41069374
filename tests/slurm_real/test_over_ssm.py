"""Over the whole way that AWS has, but for AWS: the adapter, boto3, SSM's wire format, the documents as infra
makes them, a shell that runs their line, `python -m planaria.slurm`, and a real Slurm."""

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pytest

from infra import ssm_documents
from planaria.aws.ssm import SsmCommands
from planaria.core import documents
from planaria.core.scheduling import Isolate, JobQuery, JobsOn, Lost, NodeQuery, Readmit, Stop
from planaria.memory.table import MemoryTable
from planaria.schedulers.slurm import SlurmScheduler
from planaria.wiring import SystemClock
from tests.contract.ssm_service import Ended, SsmService
from tests.sandbox.heads import done
from tests.slurm_real.bench import PATIENCE_SECONDS, Bench
from tests.slurm_real.conftest import NAMES
from tests.slurm_real.jobs import submit

pytestmark = pytest.mark.campaign

ROOT = Path(__file__).resolve().parents[2]
HEAD, BUCKET = "i-0123456789abcdef0", "bucket"
MARK = "planaria:i-0123456789abcdef0-1793610845000"


class Agent:
    """SSM's agent on the head node. running: (document, its parameters) -> the process and its output."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **environment, "PYTHONPATH": str(ROOT)}
        self._running: dict[int, tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]] = {}
        self.lines: list[str] = []

    def run(self, content: Mapping[str, Any], parameters: Mapping[str, str]) -> Ended | None:
        key = id(parameters)  # one command has one mapping for as long as it is known
        if key not in self._running:
            (line,) = content["mainSteps"][0]["inputs"]["runCommand"]
            for name, value in parameters.items():
                line = line.replace(f"{{{{ {name} }}}}", value)
            self.lines.append(line)
            files = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
            shell = shutil.which("sh") or "/bin/sh"
            process = subprocess.Popen(
                [shell, "-c", line], cwd="/", env=self._environment, stdout=files[0], stderr=files[1]
            )
            self._running[key] = process, *files
        process, *said = self._running[key]
        if process.poll() is None:
            return None
        texts = []
        for file in said:
            file.seek(0)
            texts.append(file.read().decode())
        status = "Success" if process.returncode == 0 else "Failed"
        return Ended(status, texts[0], texts[1], process.returncode)

    def close(self) -> None:
        for process, output, said in self._running.values():
            if process.poll() is None:
                process.kill()
            process.wait()
            output.close()
            said.close()


class Way:
    """functions: as many adapters as there are Lambdas at a time."""

    def __init__(self, bench: Bench) -> None:
        table = {**ssm_documents.read(ROOT), "python": sys.executable}
        names = [name for name, each in documents.documents().items() if each.runs_on == "head"]
        contents = {documents.aws_name("c", name): ssm_documents.content(table, name) for name in names}
        self.agent = Agent(bench.slurm.environment)
        self.service = SsmService(contents, time.time)
        self.service.managed = {HEAD}
        for name, content in contents.items():
            self.service.run[name] = functools.partial(self._run, content)
        self._client = self.service.client()
        self._table = MemoryTable()

    def _run(self, content: Mapping[str, Any], node: str, parameters: Mapping[str, str]) -> Ended | None:
        assert node == HEAD
        return self.agent.run(content, parameters)

    def function(self) -> SlurmScheduler:
        read = self.service.objects.__getitem__
        commands = SsmCommands(self._client, "c", BUCKET, read, time.time)
        return SlurmScheduler(commands, HEAD, self._table, SystemClock())

    def ask(self, request: Any) -> dict[str, Any]:
        """Asked in one Lambda, heard in another."""
        return done(self.function().poll, self.function().submit(request), PATIENCE_SECONDS)


@pytest.fixture
def way(bench: Bench) -> Iterator[Way]:
    there = Way(bench)
    yield there
    there.agent.close()


def test_a_node_out_of_work_and_back(way: Way, bench: Bench, tmp_path: Path) -> None:
    job = submit(bench.slurm, tmp_path / "job", 1)
    (name,) = job.places()
    assert way.ask(JobsOn((name,))) == {name: [job.job_id]}
    assert way.ask(Isolate((name,), MARK)) == {name: "ISOLATED"}
    found = way.ask(NodeQuery((name, "no-such-node")))
    assert (found[name]["state"], found[name]["reason"]) == ("DRAINING", MARK)
    assert found["no-such-node"]["state"] == "UNKNOWN"
    stop = Stop((job.job_id, "990099"), "TERM", 1.0)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (words := way.ask(stop))[job.job_id] != "STOPPED":
        assert time.monotonic() < deadline, words
    assert words["990099"].startswith("UNKNOWN: no job")
    assert way.ask(JobQuery((job.job_id, "990099")))["990099"] is None
    assert way.ask(Readmit((name,), MARK)) == {name: "READMITTED"}


def test_someone_elses_reason_comes_back_whole(way: Way, bench: Bench) -> None:
    reason = "bad $(fan) = \"3\"; see 'ticket' `7`"
    bench.slurm.run("scontrol", "update", f"nodename={NAMES[0]}", "state=drain", f"reason={reason}")
    for request in (Isolate((NAMES[0],), MARK), Lost((NAMES[0],), MARK), Readmit((NAMES[0],), MARK)):
        assert way.ask(request) == {NAMES[0]: f"FOREIGN: {reason}"}


def test_many_incidents_at_once_are_few_commands(way: Way) -> None:
    """One thread for each of eight nodes' incidents."""
    answers: dict[str, Any] = {}

    def incident(name: str) -> None:
        answers.update(way.ask(Isolate((name,), f"{MARK}-{name}")))

    threads = [threading.Thread(target=incident, args=(name,)) for name in NAMES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == dict.fromkeys(NAMES, "ISOLATED")
    assert len(way.agent.lines) <= 3
    found = way.ask(NodeQuery(NAMES))
    assert {name: found[name]["reason"] for name in NAMES} == {name: f"{MARK}-{name}" for name in NAMES}


def test_a_head_node_without_a_controller_is_unknown(way: Way, bench: Bench, tmp_path: Path) -> None:
    conf = bench.slurm.places.conf.read_text()
    away = re.sub(r"(?m)^SlurmctldPort=.*$", "SlurmctldPort=1\nMessageTimeout=2", conf)
    (tmp_path / "slurm.conf").write_text(away)
    way.agent._environment["SLURM_CONF"] = str(tmp_path / "slurm.conf")
    answer = None
    scheduler = way.function()
    ticket = scheduler.submit(NodeQuery((NAMES[0],)))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (answer := scheduler.poll(ticket)).state == "PENDING":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert answer.state == "UNKNOWN"
    assert HEAD in answer.reason
