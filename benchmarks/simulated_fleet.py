"""A fleet without machines: a scheduler, agents and EC2's own events for instances that are only records.

The scheduler is the sandbox's own state machine behind the head's HTTP API. Launches, reboots and
terminations are heard of from the Lambdas' probe, because asking the emulator for 1,503 instances ten times a
second would be most of what is measured; they are followed by the events that EC2 and the node's agent send.
"""

import contextlib
import heapq
import itertools
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.storms import Entry
from planaria.core import tags
from planaria.memory.cluster_state import ClusterState
from planaria.sandbox.gameday_events import SOURCE, STATE_CHANGE
from planaria.sandbox.local_api import LocalApi
from planaria.schedulers.wire import decode

FOLLOW_SECONDS = 0.05
MOST_TICKETS = 20_000


class Scheduler:
    """The head's API for nodes that are always idle: no job runs, every check passes.

    isolated: scheduler name -> epoch seconds of its first isolation.
    """

    def __init__(self, token: str) -> None:
        self.state = ClusterState()
        self.isolated: dict[str, float] = {}
        self._lock = threading.RLock()
        self._tickets: dict[str, tuple[Any, dict[str, Any]]] = {}
        self._numbers = itertools.count()
        self.api = LocalApi(
            0,
            token,
            {
                ("POST", "/scheduler/submit"): self._submit,
                ("POST", "/scheduler/poll"): self._poll,
                ("POST", "/commands/submit"): self._command,
                ("POST", "/commands/poll"): self._output,
            },
        )
        self._commands: dict[str, list[str]] = {}

    def register(self, name: str, node: str) -> None:
        with self._lock:
            self.state.register(name, node)
            self.state.node_up(node)

    def up(self, node: str, alive: bool) -> None:
        with self._lock:
            (self.state.node_up if alive else self.state.node_down)(node)

    def _submit(self, body: dict[str, Any]) -> dict[str, Any]:
        request, now = decode(body), time.time()
        with self._lock:
            value = self.state.answer(request, now)
            ticket = f"scheduler-{next(self._numbers)}"
            self._tickets[ticket] = (request, value)
            if len(self._tickets) > MOST_TICKETS:
                del self._tickets[next(iter(self._tickets))]
            for name, word in value.items():
                if word == "ISOLATED":
                    self.isolated.setdefault(name, now)
        return {"ticket": ticket}

    def _poll(self, body: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            request, value = self._tickets[str(body["ticket"])]
            return {"state": "DONE", "value": self.state.review(request, value, time.time()), "reason": ""}

    def _command(self, body: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            ticket = f"command-{next(self._numbers)}"
            self._commands[ticket] = [str(node) for node in body.get("node_ids", [])]
        return {"ticket": ticket}

    def _output(self, body: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            nodes = self._commands.pop(str(body["ticket"]), [])
        passed = {"status": "SUCCESS", "output": {"passed": True, "reason": ""}}
        return {"state": "DONE", "value": dict.fromkeys(nodes, passed), "reason": ""}


class Fleet:
    """Follows the probe's file and plays the instances that it tells of.

    put: puts entries on Planaria's bus. boot_seconds: from the launch or reboot to the agent's Node Ready.
    ready: the instances whose agent has said so, in order. failure: what ended the play before its time.
    """

    def __init__(
        self, scheduler: Scheduler, probe: Path, put: Callable[[Sequence[Entry]], object], boot_seconds: float
    ) -> None:
        self._scheduler = scheduler
        self._probe = probe
        self._put = put
        self._boot_seconds = boot_seconds
        self._names: dict[str, str] = {}
        self._boots: dict[str, int] = {}
        self.ready: list[str] = []
        self._due: list[tuple[float, int, Callable[[], list[Entry]]]] = []
        self._order = itertools.count()
        self._ending = threading.Event()
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)

    @contextlib.contextmanager
    def playing(self) -> Iterator["Fleet"]:
        self._thread.start()
        try:
            yield self
        finally:
            self._ending.set()
            self._thread.join(10.0)

    def _run(self) -> None:
        position, rest = 0, b""
        try:
            while not self._ending.wait(FOLLOW_SECONDS):
                with self._probe.open("rb") as file:
                    file.seek(position)
                    found = file.read()
                position += len(found)
                *lines, rest = (rest + found).split(b"\n")
                for line in lines:
                    self._heard(json.loads(line))
                self._send_due()
        except Exception as error:  # noqa: BLE001  shown by whoever waits for the fleet
            self.failure = error

    def _heard(self, line: Mapping[str, Any]) -> None:
        now = time.time()
        for node, marks in line.get("launched", []):
            if node not in self._names:
                self._names[node] = marks.get(tags.NAME, node)
                self._later(now, partial(self._states, node, "pending", "running"))
                self._boot(node, now)
        for node in line.get("rebooted", []):
            self._scheduler.up(node, alive=False)
            self._boot(node, now)
        for node in line.get("terminated", []):
            self._scheduler.up(node, alive=False)
            self._later(now, partial(self._states, node, "shutting-down", "terminated"))

    def _boot(self, node: str, now: float) -> None:
        number = self._boots[node] = self._boots.get(node, 0) + 1
        self._later(now + self._boot_seconds, partial(self._ready, node, number))

    def _later(self, at: float, made: Callable[[], list[Entry]]) -> None:
        heapq.heappush(self._due, (at, next(self._order), made))

    def _send_due(self) -> None:
        entries: list[Entry] = []
        while self._due and self._due[0][0] <= time.time():
            entries += heapq.heappop(self._due)[2]()
        self._put(entries)

    @staticmethod
    def _states(node: str, *states: str) -> list[Entry]:
        return [
            {
                "Source": SOURCE,
                "DetailType": STATE_CHANGE,
                "Detail": json.dumps({"instance-id": node, "state": state}),
            }
            for state in states
        ]

    def _ready(self, node: str, number: int) -> list[Entry]:
        now = time.time()
        self._scheduler.up(node, alive=True)
        self.ready.append(node)
        detail = {
            "version": 1, "instance_id": node, "boot_id": f"{node}-{number}-{secrets.token_hex(4)}", "seq": 1,
            "time": now, "name": self._names.get(node, ""), "address": "10.0.0.1",
            "check": {"passed": True, "reason": ""},
        }  # fmt: skip
        source = f"planaria.node/AROABENCH:{node}"
        return [{"Source": source, "DetailType": "Planaria Node Ready", "Detail": json.dumps(detail)}]
