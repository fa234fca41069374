"""A whole cluster in memory around the real Lambdas and the real ASL files, in simulated time.

It plays what is not ours: EC2 (boot, termination and their events), the scheduler and its ranks, agents,
SQS with redelivery, EventBridge from Planaria's bus, Step Functions (asl_driver) and the minute's schedule.
Any call that changes something outside can be made the last one its Lambda gets to do (`kill`).
"""

import dataclasses
import heapq
import importlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from planaria.core import tags
from planaria.core.breaker import Breaker, allowed
from planaria.core.cluster import Cluster
from planaria.core.errors import TransientError
from planaria.core.ports import Execution
from planaria.core.saved_step import StepCopy
from planaria.core.scheduling import Requeue
from planaria.core.table import Row
from planaria.memory.clock import MemoryClock
from planaria.memory.commands import MemoryCommands
from planaria.memory.fleet import MemoryFleet
from planaria.memory.objects import MemoryObjects
from planaria.memory.queues import MemoryQueues
from planaria.memory.scheduler import MemoryScheduler
from planaria.memory.table import MemoryTable
from planaria.memory.topology import MemoryTopology
from planaria.memory.workflows import MemoryBus, MemoryNotices, MemoryWorkflows
from planaria.wiring import Gateways
from tests.lambdas import events
from tests.lambdas.asl_driver import Driver

JOB = "gpt"
NODES = [f"i-0aaaaaaaaaaaaaaa{n}" for n in range(4)]
NAMES = [f"demo-{n}" for n in range(4)]
BOOT_SECONDS = 20.0
START_SECONDS = 3.0
VISIBILITY_SECONDS = 60.0
INVOKE_SECONDS = 0.02
RECEIVES = 5

# The calls that change something outside of the Lambda.
EFFECTS = {
    "table": {"write"},
    "fleet": {"launch", "reboot", "terminate"},
    "scheduler": {"submit"},
    "commands": {"submit"},
    "workflows": {"start", "stop", "answer"},
    "bus": {"put"},
    "notices": {"publish"},
    "objects": {"put"},
    "stores": {"commit", "remove"},
    "fsx": {"start", "cancel"},
}


class Killed(BaseException):
    """The process is gone at this very moment: nothing in it can catch this."""


class LambdaCrashed(Exception):
    """What Step Functions sees of a killed function."""


@dataclasses.dataclass(slots=True)
class Kill:
    """matches: (function, call such as "fleet.launch", number of the effect in the story) -> here?"""

    matches: Callable[[str, str, int], bool]
    before: bool = False
    times: int = 1


class _Port:
    """A port whose effects are counted and may be the last thing a Lambda does."""

    def __init__(self, world: "World", name: str, real: Any) -> None:
        self._world, self._name, self._real = world, name, real

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(self._real, attribute)
        if not callable(value):
            return value
        return lambda *args, **kwargs: self._world.asked(f"{self._name}.{attribute}", value, args, kwargs)


def stub(port: Any, method: str, instead: Callable[..., Any]) -> Callable[..., Any]:
    """Put `instead` in the place of a twin's method; the method itself comes back."""
    real: Callable[..., Any] = getattr(port, method)
    setattr(port, method, instead)
    return real


def nothing_answers(*_: Any) -> Any:
    """A defect: no error of ours."""
    raise RuntimeError("a defect")


class _Stored:
    """A job's prefix of the bucket, as a Lambda lists it."""

    def __init__(self, world: "World", job: str) -> None:
        self._world, self._job = world, job

    def steps(self) -> list[StepCopy]:
        found = list(self._world.stored.get(self._job, []))
        return list(self._world.asked("objects.list", lambda: found, (), {}))


def cluster(mode: str = "act", size: int = 8, removals: int = 4, **policy: Any) -> Cluster:
    limits = {"max_removals": removals, "max_share": 0.5, "window_seconds": 3600}
    offerings = [
        {"instance_type": "p5.48xlarge", "capacity": "on-demand", "subnet": "subnet-1"},
        {"instance_type": "p5.48xlarge", "capacity": "spot", "subnet": "subnet-2"},
    ]
    group = {"name": "workers", "size": size, "launch_template": "planaria-demo-workers"}
    return Cluster.from_document(
        {
            "name": "demo",
            "region": "us-east-1",
            "scheduler": "process",
            "policy": {"mode": mode, "breaker": limits, **policy},
            "node_groups": [{**group, "offerings": offerings}],
        }
    )


class World:
    def __init__(self, of: Cluster | None = None, job: bool = True, nodes: int = len(NODES)) -> None:
        """nodes: of the cluster, all of which run the job; at most 16."""
        self.nodes = [f"i-0aaaaaaaaaaaaaaa{number:x}" for number in range(nodes)]
        self.names = [f"demo-{number}" for number in range(nodes)]
        self.clock = MemoryClock()
        self.table = MemoryTable()
        self.fleet = MemoryFleet("demo", self.clock.now)
        self.scheduler = MemoryScheduler(self.clock.now)
        self.workflows = MemoryWorkflows()
        self.bus, self.notices = MemoryBus(), MemoryNotices()
        self.objects, self.queues = MemoryObjects(), MemoryQueues()
        self.saved: list[dict[str, Any]] = [
            {"step": 30, "state": "complete", "reason": ""}, {"step": 20, "state": "complete", "reason": ""},
        ]  # fmt: skip
        self.commands = MemoryCommands(
            {
                "planaria-checkpoint-now": lambda node, parameters: self._save(node),
                "planaria-list-checkpoints": lambda node, parameters: (
                    {"steps": self.saved} if node in self.scheduler.state.up else None
                ),
                "planaria-check": lambda node, parameters: self.suites(node, parameters["suite"]),
                "planaria-reset-gpu": lambda node, parameters: self.resets(node, parameters["pci"]),
            }
        )
        self.gw = Gateways({}, of or cluster())
        for name in EFFECTS:
            if hasattr(self, name):
                setattr(self.gw, name, _Port(self, name, getattr(self, name)))
        self.stored: dict[str, list[StepCopy]] = {}
        """What S3 has of each job's checkpoints."""
        self.gw.checkpoints = lambda job, place="": _Stored(self, job)  # type: ignore[assignment,return-value]
        self.topology = MemoryTopology()
        self.gw.clock, self.gw.queues, self.gw.topology = self.clock, self.queues, self.topology
        self.driver = Driver(self.clock, self.workflows, self._task, self._execution_ended)

        self.refuses: Callable[[str], bool] = lambda call: False
        """Asked before every call of a port by a Lambda, such as "table.get": does AWS answer with 500?"""
        self.receives = RECEIVES
        self._out_until = -math.inf
        self.kills: list[Kill] = []
        self.twice: set[str] = set()
        self.effects: list[tuple[str, str]] = []
        self.dead_letters: list[str] = []
        self.outcomes: list[dict[str, Any]] = []
        self.boots = True
        self.steps = True
        self.sweeps = True
        self.check_passes: Callable[[str], bool] = lambda node: True
        self.suites: Callable[[str, str], Any] = lambda node, suite: {"passed": True, "reason": ""}
        self.resets: Callable[[str, str], Any] = lambda node, pci: {"reason": ""}
        """What the documents planaria-check and planaria-reset-gpu answer, as memory/commands.py has it."""
        self.status_changes = True
        self._function = ""
        self._numbers = itertools.count()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._next_sweep = self.clock.now() + 60.0
        self._seen_exits: set[tuple[int, int]] = set()
        self._seen_attempt = 1
        self._seen_calls = 0
        for number, (name, node) in enumerate(zip(self.names, self.nodes, strict=True)):
            self.add_node(name, node, f"10.0.1.{number}")
        if job:
            self.scheduler.add_job(JOB, nodes)
            self.gw.jobs.register(JOB, self.names, self.nodes, {"attempt": 1, "recipe": "gpt"})
            for node in self.nodes:
                self.gw.ledger.note_node(node, {"job_id": JOB})

    # --- Lambdas ---------------------------------------------------------------------------------

    def call(self, function: str, event: dict[str, Any]) -> Any:
        """Invoke one function; Killed leaves it when a kill was set."""
        handler = importlib.import_module(f"lambdas.{function}").handler
        self.clock.advance(INVOKE_SECONDS)
        before, self._function = self._function, function
        try:
            return handler(json.loads(json.dumps(event)), None)
        finally:
            self._function = before

    def _task(self, function: str, payload: dict[str, Any]) -> Any:
        try:
            answer = self.call(function, payload)
            if function in self.twice:
                answer = self.call(function, payload)
            return answer
        except Killed as killed:
            raise LambdaCrashed(str(killed)) from killed

    def asked(self, call: str, real: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The call of a port, by a Lambda or by the world itself."""
        name, _, method = call.partition(".")
        if self._function and (self.now < self._out_until or self.refuses(call)):
            raise TransientError(f"{call}: InternalServerError (500)")
        if method in EFFECTS[name]:
            return self.effect(call, real, args, kwargs)
        return real(*args, **kwargs)

    def effect(self, call: str, real: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not self._function:
            return real(*args, **kwargs)
        number = len(self.effects)
        self.effects.append((self._function, call))
        kill = next((k for k in self.kills if k.times and k.matches(self._function, call, number)), None)
        if kill is None:
            return real(*args, **kwargs)
        kill.times -= 1
        if not kill.before:
            real(*args, **kwargs)
        when = "before" if kill.before else "after"
        raise Killed(f"{self._function} {when} {call}")

    def kill(self, function: str, call: str, *, before: bool = False, times: int = 1, nth: int = 1) -> None:
        """`function` dies at its nth such call (of this and later stories)."""
        seen = itertools.count(1)

        def matches(f: str, c: str, number: int) -> bool:
            return (f, c) == (function, call) and next(seen) >= nth

        self.kills.append(Kill(matches, before, times))

    def kill_at(self, number: int, *, before: bool) -> None:
        """Whatever Lambda makes the effect of this number dies there."""
        self.kills.append(Kill(lambda f, c, n: n == number, before))

    # --- EventBridge and SQS -----------------------------------------------------------------------

    def send(self, text: str) -> None:
        """One event arrives now; delivered again after the visibility time-out until it is judged. While the
        region is out it waits at its sender: an agent keeps what it cannot send, EventBridge tries again."""
        if self.now < self._out_until:
            self.at(self._out_until - self.now, lambda: self.send(text))
        else:
            self._receive(text, 1)

    def outage(self, seconds: float) -> None:
        """From now on AWS answers every call of a Lambda with 500, for so long."""
        self._out_until = self.now + seconds

    def _receive(self, text: str, count: int) -> None:
        record = {
            "messageId": "m",
            "receiptHandle": "r",
            "body": text,
            "attributes": {"ApproximateReceiveCount": str(count)},
            "eventSourceARN": "arn:aws:sqs:us-east-1:111122223333:planaria-demo-urgent",
        }
        try:
            failed = self.call("triage", {"Records": [record]})["batchItemFailures"]
        except (Killed, TransientError):
            failed = [record]
        if failed and count >= self.receives:
            self.dead_letters.append(text)
        elif failed:
            self.at(VISIBILITY_SECONDS, lambda: self._receive(text, count + 1))

    def judge(self, text: str) -> list[dict[str, Any]]:
        """The outcomes of one event, as triage logs them."""
        from lambdas.batch import Batch

        before, self._function = self._function, "triage"
        try:
            ends = [end for _, end in Batch(self.gw).judge([("m", text)])]
            return [end for end in ends if not isinstance(end, Exception)]
        finally:
            self._function = before

    def sweep(self, event: dict[str, Any] | None = None) -> None:
        try:
            self.call("sweep", event or {"source": "aws.scheduler"})
        except (Killed, TransientError):
            return

    def _execution_ended(self, arn: str, state: Execution) -> None:
        if state is Execution.SUCCEEDED or not self.status_changes:
            return
        detail = {"executionArn": arn, "status": state.value}
        change = {"detail-type": "Step Functions Execution Status Change", "detail": detail}
        self.at(0.5, lambda: self.sweep(change))

    # --- EC2, agents, ranks ------------------------------------------------------------------------

    def add_node(self, name: str, node: str, address: str) -> None:
        marks = {tags.CLUSTER: "demo", tags.GROUP: "workers", tags.NAME: name}
        self.fleet.add(node, address=address, instance_type="p5.48xlarge", tags=marks)
        self.scheduler.add_node(name, node, address)
        facts = {"name": name, "group": "workers", "state": "running", "address": address}
        self.gw.ledger.note_node(node, {**facts, "instance_type": "p5.48xlarge", "gone": False})

    def lose(self, node: str, *, tell: bool = True) -> None:
        """EC2 ends the instance; `tell`: its state-change events arrive."""
        self.fleet.instances[node] = dataclasses.replace(self.fleet.instances[node], state="terminated")
        self.scheduler.kill_node(node)
        if tell:
            self.at(1.0, lambda: self.send(events.state(node, "shutting-down", self.now)))
            self.at(30.0, lambda: self.send(events.state(node, "terminated", self.now)))

    def interrupt(self, node: str) -> None:
        """A spot interruption: the notice, and two minutes later the end."""
        self.send(events.spot(node, self.now))

        def end() -> None:
            if self.fleet.instances[node].state == "running":
                self.lose(node)

        self.at(120.0, end)

    def _save(self, node: str) -> Any:
        """Every rank saves at the next step boundary, if the job still runs."""
        if not self.scheduler.state.jobs[JOB].live_ranks or node not in self.scheduler.state.up:
            return RuntimeError("the job does not run")
        if self.saved and self.saved[0]["step"] == 35:
            return {"step": 35}
        self.saved.insert(0, {"step": 35, "state": "complete", "reason": ""})
        return {"step": 35}

    def _play(self) -> None:
        """What the world does about the calls since the last look."""
        calls, self._seen_calls = self.fleet.calls[self._seen_calls :], len(self.fleet.calls)
        for what, value in calls:
            if what == "launch":
                for instance in self.fleet.launched(value):
                    self._boot(instance.node_id)
            elif what == "reboot":
                self.scheduler.kill_node(value)
                self._boot(value)
            elif what == "terminate" and value in self.fleet.instances:
                self.lose(value)
        self._ranks()

    def _boot(self, node: str) -> None:
        def up() -> None:
            instance = self.fleet.instances[node]
            if instance.state != "running":
                return
            self.scheduler.state.node_up(node)
            name = instance.tags.get(tags.NAME, "")
            passed = self.check_passes(node)
            reason = "" if passed else "GPU 3 is missing"
            self.send(events.ready(node, self.now, name, instance.address, passed, reason))

        if self.boots:
            self.at(BOOT_SECONDS, up)

    def _ranks(self) -> None:
        job = self.scheduler.state.jobs.get(JOB)
        if job is None:
            return
        self.scheduler.state.tick(self.now)
        for rank, code in job.exits.items():
            if code and (job.attempt, rank) not in self._seen_exits:
                self._seen_exits.add((job.attempt, rank))
                text = events.job_exit(job.placement[rank], JOB, job.attempt, rank, code, self.now)
                if job.placement[rank] in self.scheduler.state.up:
                    self.at(0.2, lambda text=text: self.send(text))  # type: ignore[misc]
        if job.attempt > self._seen_attempt:
            self._seen_attempt = job.attempt
            if self.steps:
                first = job.placement[0], job.attempt, job.resume_step + 1
                self.at(START_SECONDS, lambda: self._first_step(*first))

    def _first_step(self, node: str, attempt: int, step: int) -> None:
        job = self.scheduler.state.jobs[JOB]
        if job.attempt == attempt and job.live_ranks:
            self.send(events.job_step(node, JOB, attempt, step, self.now))

    # --- time ----------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.clock.now()

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self.now + seconds, next(self._numbers), act))

    def run(self, seconds: float = 900.0, until: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until everything is quiet (then one more sweep), `until` is true or time is up."""
        end, quiet = self.now + seconds, 0
        while not until():
            if self.driver.step() or self._due():
                self._play()
                continue
            self._play()
            wake = min(self.driver.next_wake(), self._timers[0][0] if self._timers else math.inf)
            if self.sweeps:
                quiet = 0 if wake < math.inf or self.driver.running else quiet + 1
                if quiet > 2:
                    return
                wake = min(wake, self._next_sweep)
            if wake > end:
                self.clock.advance(max(0.0, end - self.now) if wake < math.inf else 0.0)
                return
            self.clock.advance(wake - self.now)

    def _due(self) -> bool:
        did = False
        while self._timers and self._timers[0][0] <= self.now:
            heapq.heappop(self._timers)[2]()
            did = True
        if self.sweeps and self.now >= self._next_sweep:
            self._next_sweep = self.now + 60.0
            self.sweep()
            put = zip(self.bus.events, self.bus.resources, strict=True)
            for (source, detail_type, detail), resources in list(put):
                self.send(events.event(source, detail_type, dict(detail), self.now, resources=resources))
            self.bus.events.clear()
            self.bus.resources.clear()
            did = True
        return did

    # --- what one asks afterwards ----------------------------------------------------------------------

    def node(self, node: str) -> Row:
        return self.table.get(f"NODE#{node}", "NODE") or {}

    @property
    def job(self) -> Row:
        return self.gw.jobs.job(JOB) or {}

    @property
    def incidents(self) -> list[Row]:
        """Node incidents in the order of their sessions."""
        rows = [row for row in self.gw.ledger.incidents() if row["node_id"]]
        return sorted(rows, key=lambda row: int(row["session"]))

    @property
    def ends(self) -> list[str]:
        return [str(row.get("outcome", "none")) for row in self.incidents]

    def timeline(self, name: str) -> list[str]:
        return [row["step"] for row in self.gw.ledger.incident(name)[1]]

    @property
    def launched(self) -> list[str]:
        """Instances that were ever launched."""
        return [node for node in self.fleet.instances if node not in self.nodes]

    @property
    def alive(self) -> list[str]:
        return [i.node_id for i in self.fleet.instances.values() if i.state == "running"]

    @property
    def terminated(self) -> list[str]:
        return [node for what, node in self.fleet.calls if what == "terminate"]

    @property
    def attempts(self) -> list[int]:
        """Attempts that the scheduler was asked to start, each once."""
        asked = Counter(r.attempt for r in self.scheduler.requests if isinstance(r, Requeue))
        return sorted(asked)

    @property
    def isolated(self) -> dict[str, str]:
        """name -> reason of every isolation in the scheduler."""
        nodes = self.scheduler.state.nodes.values()
        return {node.name: node.isolated["reason"] for node in nodes if node.isolated}

    def outcomes_of(self, kind: str) -> list[str]:
        rows = [row for (pk, _), row in self.table._rows.items() if pk.startswith("EVENT#")]
        return [row["outcome"] for row in rows if row["kind"] == kind]

    def counted(self, what: str) -> int:
        rows = [row for (pk, _), row in self.table._rows.items() if pk == f"COUNT#{what}"]
        return sum(int(row["number"]) for row in rows)

    def start(self, machine: str, document: Any, name: str = "by-hand") -> str:
        """A person starts an execution in the console."""
        return self.workflows.start(machine, name, document)[0]

    def abort(self, arn: str) -> None:
        self.workflows.executions[arn] = Execution.ABORTED

    def limit_breaker(self, removals: int) -> None:
        self.gw.breaker = Breaker(self.gw.table, allowed(removals, 1.0, removals), 3600.0)

    def assert_healed(self, *, replaced: int = 0, resumed: int = 0) -> None:
        """The end that every story must come to: all as before, and nothing left over."""
        assert not self.driver.running
        assert not self.dead_letters
        assert len(self.alive) == len(self.nodes), self.alive
        assert len(self.launched) == replaced, self.launched
        assert self.isolated == {}
        states = {name: str(self.scheduler.state.state_of(name)) for name in self.names}
        assert set(states.values()) == {"ALLOCATED"}, states
        job = self.job
        assert (job["pending"], job["unresolved"], job["state"]) == ({}, {}, "RUNNING")
        assert sorted(job["nodes"].values()) == sorted(self.alive)
        assert job["attempt"] == self.scheduler.state.jobs[JOB].attempt
        assert str(self.scheduler.state.jobs[JOB].state) == "RUNNING"
        assert len(self.attempts) == resumed, self.attempts
        assert self.notices.sent == []
        open_rows = [r["incident_id"] for r in self.gw.ledger.incidents() if "outcome" not in r]
        assert open_rows == []
