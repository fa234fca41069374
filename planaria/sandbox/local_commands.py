"""The Commands port on this machine: the command line of a document runs as a process of one's own.

What SSM's agent does on a node happens here in a thread: at most five documents at once, each within its
time, and what it prints is the answer.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import planaria
from planaria.core import documents
from planaria.core.documents import Document
from planaria.core.ports import Answer, AnswerState

AT_ONCE = 5
"""Commands that SSM's agent works on at a time, by default."""

LONGEST_ANSWER = 24_000
"""Characters of a command's output that SSM gives back; the rest is cut off."""

_MOST_TICKETS = 1000
Result = dict[str, Any]


class LocalCommands:
    """Every node id means this machine. environment: of the programs; they find Planaria by themselves.

    A document that nobody has, and one that ends badly or does not print JSON, is FAILED with a reason.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        paths = [str(Path(planaria.__file__).resolve().parent.parent), environment.get("PYTHONPATH", "")]
        self._environment = {**environment, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
        self._workers = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="commands")
        self._lock = threading.Lock()
        self._tickets: dict[str, dict[str, Future[Result]]] = {}

    def submit(self, document: str, node_ids: Sequence[str], parameters: Mapping[str, str]) -> str:
        """Raises InvalidInput for parameters that the document does not take."""
        known = documents.find(document)
        arguments = known.arguments(parameters) if known is not None else []
        ticket = f"local-{uuid.uuid4()}"
        with self._lock:
            self._tickets[ticket] = {
                node: self._workers.submit(self._run, document, known, arguments) for node in node_ids
            }
            for oldest in list(self._tickets)[:-_MOST_TICKETS]:
                del self._tickets[oldest]
        return ticket

    def poll(self, ticket: str) -> Answer:
        with self._lock:
            running = self._tickets.get(ticket)
        if running is None:
            return Answer(AnswerState.UNKNOWN, reason=f"no ticket {ticket}: ask again")
        if not all(future.done() for future in running.values()):
            return Answer(AnswerState.PENDING)
        return Answer(AnswerState.DONE, {node: future.result() for node, future in running.items()})

    def close(self) -> None:
        """Wait for what runs; nothing new is begun."""
        self._workers.shutdown(cancel_futures=True)

    def _run(self, name: str, document: Document | None, arguments: list[str]) -> Result:
        if document is None:
            return _failed(f"there is no document {name}")
        try:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            return _failed(f"{name} could not be started: {error.strerror}")
        try:
            said, complaint = process.communicate(timeout=document.seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return _failed(f"{name} took longer than {document.seconds} s")
        if process.returncode != 0:
            told = " ".join((complaint or said).split())[-300:]
            return _failed(f"{name} ended with status {process.returncode}: {told}")
        try:
            return {"status": "SUCCESS", "output": json.loads(said[:LONGEST_ANSWER])}
        except ValueError:
            return _failed(f"{name} did not answer with JSON: {said.strip()[:100]!r}")


def _failed(reason: str) -> Result:
    return {"status": "FAILED", "output": {"reason": reason}}
