"""The documents of the Commands port, as the sandbox runs them. On AWS they are SSM documents."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from planaria.checkpoint.command_line import list_steps
from planaria.checkpoint.directory import FileCheckpoints
from planaria.core import documents
from planaria.core.documents import Document
from planaria.core.errors import InvalidInput
from planaria.node import check
from planaria.sandbox import node_programs
from planaria.sandbox.job_folder import read_json, write_json
from planaria.sandbox.jobs import Jobs
from planaria.sandbox.node_process import (
    GPUS,
    HEARTBEAT_AGE_SECONDS,
    NodeProcess,
    NodeStage,
    child_environment,
)

CHECKPOINT_NOW = "planaria-checkpoint-now"
LIST_CHECKPOINTS = "planaria-list-checkpoints"
CHECK = "planaria-check"
RESET_GPU = "planaria-reset-gpu"
PROGRAMS = frozenset({"planaria.checkpoint", "planaria.node.copy"})
"""Modules that documents start on a node as they are."""

HEAD = "head"
"""A node id that always answers: the head itself."""

_MOST_TICKETS = 1000
_LONGEST_SECONDS = 600.0
Result = dict[str, Any]


class _Pending(Protocol):
    """Something that takes a while. outcome: the result, None while it is under way."""

    def outcome(self) -> Result | None: ...


@dataclass(slots=True)
class _Checkpoint:
    """A checkpoint that was asked for: request is its id, until the end of patience (epoch seconds)."""

    documents: "Documents"
    job_id: str
    request: str
    until: float

    def outcome(self) -> Result | None:
        return self.documents.checkpoint(self)


@dataclass(slots=True)
class _DeepCheck:
    """The check's own process, in the node's process group: whatever ends the node ends it.

    ended: its result, once it is there.
    """

    process: subprocess.Popen[bytes]
    output: IO[bytes]
    ended: Result | None = field(default=None)

    def outcome(self) -> Result | None:
        if self.ended is None and self.process.poll() is not None:
            self.ended = self._read()
        return self.ended

    def _read(self) -> Result:
        self.output.seek(0)
        text = self.output.read().decode(errors="replace")
        self.output.close()
        try:
            found = json.loads(text)
            return _done({"passed": bool(found["passed"]), "reason": str(found["reason"])})
        except (ValueError, KeyError, TypeError):
            return _failed(f"the check ended with status {self.process.returncode}: {text.strip()[-200:]}")


class Documents:
    """nodes: the present nodes by instance id; folder: the sandbox's. Every value is {node id: {"status",
    "output"}}."""

    def __init__(
        self,
        nodes: Callable[[], Mapping[str, NodeProcess]],
        jobs: Jobs,
        live: Callable[[str], bool],
        folder: Path,
    ) -> None:
        self._nodes = nodes
        self._jobs = jobs
        self._folder = folder
        self._job_lives = live
        self._lock = threading.Lock()
        self._tickets: dict[str, dict[str, Result | _Pending]] = {}
        self._checks: dict[str, tuple[str, _DeepCheck]] = {}

    def submit(self, document: str, node_ids: Sequence[str], parameters: Mapping[str, str]) -> str:
        """Run it, or start to. -> a ticket. Raises InvalidInput with one sentence."""
        present = self._nodes()
        asked = list(node_ids) or [HEAD]
        gone = [n for n in asked if n != HEAD and (n not in present or present[n].stage is not NodeStage.UP)]
        results: dict[str, Result | _Pending] = {n: _failed(f"{n} is not running") for n in gone}
        able = [n for n in asked if n not in results]
        match document:
            case "planaria-check":
                suite = parameters.get("suite", "light")
                results |= {n: self._check(present.get(n), suite) for n in able}
            case "planaria-reset-gpu":
                results |= {n: self._reset(present.get(n), parameters.get("pci", "")) for n in able}
            case "planaria-list-checkpoints":
                job_id = self._job(parameters)
                if able:
                    directory = parameters.get("Directory") or self._jobs.folder(job_id).checkpoints
                    most = int(parameters.get("ReadGiB", "0")) << 30
                    listed = list_steps(FileCheckpoints(Path(directory), job_id), verify_bytes=most)
                    results |= {n: _done(listed) for n in able}
            case "planaria-checkpoint-now":
                job_id = self._job(parameters)
                if able:
                    wait = self._ask_for_checkpoint(job_id, parameters.get("deadline", ""))
                    results |= dict.fromkeys(able, wait)
            case _ if (found := documents.find(document)) and found.module in PROGRAMS:
                results |= {n: self._program(present.get(n), found, parameters) for n in able}
            case _:
                known = ", ".join((CHECK, CHECKPOINT_NOW, LIST_CHECKPOINTS, RESET_GPU))
                raise InvalidInput(f"unknown document {document!r}; known are {known}")
        ticket = f"command-{uuid.uuid4()}"
        with self._lock:
            self._tickets[ticket] = results
            for oldest in list(self._tickets)[:-_MOST_TICKETS]:
                del self._tickets[oldest]
        return ticket

    def poll(self, ticket: str) -> dict[str, Any]:
        with self._lock:
            known = self._tickets.get(ticket)
        if known is None:
            return {"state": "UNKNOWN", "value": {}, "reason": f"no ticket {ticket}: ask again"}
        results = {n: each if isinstance(each, dict) else each.outcome() or each for n, each in known.items()}
        with self._lock:
            self._tickets[ticket] = results
        if not all(isinstance(each, dict) for each in results.values()):
            return {"state": "PENDING", "value": {}, "reason": ""}
        return {"state": "DONE", "value": results, "reason": ""}

    def _job(self, parameters: Mapping[str, str]) -> str:
        job_id = parameters.get("Job") or parameters.get("job_id", "")
        if not job_id or "/" in job_id or not self._jobs.folder(job_id).root.is_dir():
            raise InvalidInput(f"there is no job {job_id!r}")
        return job_id

    # --- checks and resets -----------------------------------------------------------------------

    def _program(
        self, node: NodeProcess | None, document: Document, parameters: Mapping[str, str]
    ) -> Result | _Pending:
        if node is None:
            return _failed("the head is no node")
        return node_programs.start(node, document, parameters, self._folder)

    def _check(self, node: NodeProcess | None, suite: str) -> Result | _Pending:
        if suite not in ("light", "deep"):
            raise InvalidInput(f"suite must be light or deep, got {suite!r:.40}")
        if node is None:
            return _done({"passed": True, "reason": ""})
        age = node.heartbeat_age()
        if age is None or age > HEARTBEAT_AGE_SECONDS:
            return _done({"passed": False, "reason": "the agent's heartbeat is old"})
        if suite == "deep":
            return self._deep_check(node)
        passed, reason = check.light(node.place.hardware, node.place.folder)
        return _done({"passed": passed, "reason": reason})

    def _deep_check(self, node: NodeProcess) -> Result | _Pending:
        """One at a time on each node and boot: who asks meanwhile waits for the same one."""
        with self._lock:
            boot, running = self._checks.get(node.instance_id, ("", None))
            if running is not None and boot == node.boot_id and running.outcome() is None:
                return running
            leader = node.leader
            if leader is None:
                return _failed(f"{node.instance_id} is not running")
            place, output = node.place, tempfile.TemporaryFile()  # noqa: SIM115  closed with the result
            command = [sys.executable, "-m", "planaria.node.check_command", "--suite", "deep", "--brief"]
            where = ["--hardware", str(place.hardware), "--state-dir", str(place.folder)]
            environment = child_environment()
            environment["PATH"] = f"{place.tools}:{environment.get('PATH', os.defpath)}"
            try:
                process = subprocess.Popen(
                    [*command, *where],
                    cwd=place.folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    process_group=leader,
                )
            except OSError as error:  # the node died this very moment
                output.close()
                return _failed(f"the check could not be started: {error.strerror}")
            # Whatever ends it, it is no zombie in the node's group while nobody asks.
            threading.Thread(target=process.wait, daemon=True, name="deep-check").start()
            started = _DeepCheck(process, output)
            self._checks[node.instance_id] = (node.boot_id, started)
            return started

    def _reset(self, node: NodeProcess | None, pci: str) -> Result:
        """As the driver does it: not while processes hold the GPU, and not one that has left the bus."""
        if node is None:
            return _failed("the head has no GPUs")
        named = f"GPU {pci}" if pci else "the GPUs"
        if holders := self._jobs.ranks_on(node.instance_id):
            return _failed(f"{named} cannot be reset: {', '.join(holders)} uses it")
        if node.place.marked("stuck"):
            return _failed(f"{named} cannot be reset: the driver does not answer")
        if node.place.marked("broken"):
            return _failed(f"{named} cannot be reset: it has fallen off the bus")
        node.place.set_gpus(GPUS)
        return _done({"reason": ""})

    # --- checkpoints -----------------------------------------------------------------------------

    def _ask_for_checkpoint(self, job_id: str, deadline: str) -> _Checkpoint:
        """A request that is still unserved is joined, not replaced: its asker waits for it too."""
        until = time.time() + _LONGEST_SECONDS
        try:
            until = min(float(deadline or until), until)
        except ValueError:
            raise InvalidInput(f"deadline must be in epoch seconds, got {deadline!r}") from None
        folder = self._jobs.folder(job_id)
        with self._lock:
            pending = (read_json(folder.request) or {}).get("id")
            served = (read_json(folder.served) or {}).get("id")
            request = pending if pending and pending != served else str(uuid.uuid4())
            if request != pending:
                write_json(folder.request, {"id": request})
        return _Checkpoint(self, job_id, str(request), until)

    def checkpoint(self, wait: _Checkpoint) -> Result | None:
        """The outcome of a request; None while the ranks are at it."""
        served = read_json(self._jobs.folder(wait.job_id).served) or {}
        if served.get("id") == wait.request:
            return _done({"step": int(served["step"])})
        if not self._job_lives(wait.job_id):
            return _failed(f"no rank of {wait.job_id} runs")
        if time.time() > wait.until:
            return _failed("the deadline has passed")
        return None


def _done(output: Any) -> Result:
    return {"status": "SUCCESS", "output": output}


def _failed(reason: str) -> Result:
    return {"status": "FAILED", "output": {"reason": reason}}
