"""The documents of the Commands port, as the sandbox runs them. On AWS they are SSM documents."""

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planaria.core.errors import InvalidInput
from planaria.node import check
from planaria.sandbox.job_folder import read_json, write_json
from planaria.sandbox.jobs import Jobs
from planaria.sandbox.node_process import HEARTBEAT_AGE_SECONDS, NodeProcess, NodeStage
from planaria.sandbox.saved_steps import list_steps

CHECKPOINT_NOW = "planaria-checkpoint-now"
LIST_CHECKPOINTS = "planaria-list-checkpoints"
CHECK = "planaria-check"
HEAD = "head"
"""A node id that always answers: the head itself."""

_MOST_TICKETS = 1000
_LONGEST_SECONDS = 600.0
Result = dict[str, Any]


@dataclass(slots=True)
class _Wait:
    """A checkpoint that was asked for: request is its id, until the end of patience (epoch seconds)."""

    job_id: str
    request: str
    until: float


class Documents:
    """nodes: the present nodes by instance id. Every value is {node id: {"status", "output"}}."""

    def __init__(
        self, nodes: Callable[[], Mapping[str, NodeProcess]], jobs: Jobs, live: Callable[[str], bool]
    ) -> None:
        self._nodes = nodes
        self._jobs = jobs
        self._job_lives = live
        self._lock = threading.Lock()
        self._tickets: dict[str, tuple[dict[str, Result], _Wait | None]] = {}

    def submit(self, document: str, node_ids: Sequence[str], parameters: Mapping[str, str]) -> str:
        """Run it, or start to. -> a ticket. Raises InvalidInput with one sentence."""
        present = self._nodes()
        asked = list(node_ids) or [HEAD]
        gone = [n for n in asked if n != HEAD and (n not in present or present[n].stage is not NodeStage.UP)]
        results = {n: _failed(f"{n} is not running") for n in gone}
        wait: _Wait | None = None
        able = [n for n in asked if n not in results]
        match document:
            case "planaria-check":
                results |= {n: _done(self._check(present.get(n))) for n in able}
            case "planaria-list-checkpoints":
                job_id = self._job(parameters)
                saved = list_steps(self._jobs.folder(job_id), job_id) if able else []
                results |= {n: _done({"steps": [each.document() for each in saved]}) for n in able}
            case "planaria-checkpoint-now":
                job_id = self._job(parameters)
                if able:
                    wait = self._ask_for_checkpoint(job_id, parameters.get("deadline", ""))
                    results |= {n: {} for n in able}
            case _:
                known = ", ".join((CHECK, CHECKPOINT_NOW, LIST_CHECKPOINTS))
                raise InvalidInput(f"unknown document {document!r}; known are {known}")
        ticket = f"command-{uuid.uuid4()}"
        with self._lock:
            self._tickets[ticket] = (results, wait)
            for oldest in list(self._tickets)[:-_MOST_TICKETS]:
                del self._tickets[oldest]
        return ticket

    def poll(self, ticket: str) -> dict[str, Any]:
        with self._lock:
            known = self._tickets.get(ticket)
        if known is None:
            return {"state": "UNKNOWN", "value": {}, "reason": f"no ticket {ticket}: ask again"}
        results, wait = known
        if wait is not None:
            outcome = self._checkpoint(wait)
            if outcome is None:
                return {"state": "PENDING", "value": {}, "reason": ""}
            results = {n: result or outcome for n, result in results.items()}
            with self._lock:
                self._tickets[ticket] = (results, None)
        return {"state": "DONE", "value": results, "reason": ""}

    def _job(self, parameters: Mapping[str, str]) -> str:
        job_id = parameters.get("job_id", "")
        if not job_id or "/" in job_id or not self._jobs.folder(job_id).root.is_dir():
            raise InvalidInput(f"there is no job {job_id!r}")
        return job_id

    @staticmethod
    def _check(node: NodeProcess | None) -> dict[str, Any]:
        if node is None:
            return {"passed": True, "reason": ""}
        age = node.heartbeat_age()
        if age is None or age > HEARTBEAT_AGE_SECONDS:
            return {"passed": False, "reason": "the agent's heartbeat is old"}
        passed, reason = check.light(node.place.hardware, node.place.folder)
        return {"passed": passed, "reason": reason}

    def _ask_for_checkpoint(self, job_id: str, deadline: str) -> _Wait:
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
        return _Wait(job_id, str(request), until)

    def _checkpoint(self, wait: _Wait) -> Result | None:
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
