"""Walks the real ASL files in simulated time, JSONata included, as far as the machines of Planaria go.

Task (invoke and waitForTaskToken, Retry, Catch, TimeoutSeconds), Choice, Wait, Pass, Parallel, Succeed and
Fail. Branches of a Parallel run side by side: whichever wakes first goes on first.
"""

import functools
import itertools
import json
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonata

from planaria.core.ports import Execution
from planaria.memory.clock import MemoryClock
from planaria.memory.workflows import MemoryWorkflows

ROOT = Path(__file__).resolve().parents[2]
Invoke = Callable[[str, dict[str, Any]], Any]


class StateError(Exception):
    """A state failed: an error name and a cause, as Catch and Retry see them."""

    def __init__(self, error: str, cause: str) -> None:
        super().__init__(f"{error}: {cause}")
        self.error, self.cause = error, cause


@dataclass(frozen=True, slots=True)
class Pause:
    """A task sleeps until this moment, or earlier if `ready` says so."""

    until: float
    ready: Callable[[], bool] = lambda: False


Steps = Generator[Pause, None, Any]


@dataclass(slots=True)
class Running:
    arn: str
    steps: Steps
    pause: Pause | None = None
    result: Any = None
    error: StateError | None = None
    done: bool = False


@dataclass(slots=True)
class Record:
    """What one execution did. states: the names of the states it entered, in order. inputs: what each of them
    was first entered with."""

    machine: str
    started_at: float
    states: list[str] = field(default_factory=list)
    inputs: dict[str, Any] = field(default_factory=dict)
    output: Any = None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A Task state is about to call its function. timeout: TimeoutSeconds of the state."""

    machine: str
    state: str
    execution: str
    function: str
    payload: Mapping[str, Any]
    timeout: float
    callback: bool


class TooLong(Exception):
    """Raised by `Driver.around`: the call goes on when the state's time-out has come."""


class Lost(Exception):
    """Raised by `Driver.around`: the call of a callback state told nobody of its token."""


def definition(machine: str) -> dict[str, Any]:
    return dict(json.loads((ROOT / "statemachines" / f"{machine}.asl.json").read_text()))


@functools.cache
def _parsed(text: str) -> Any:
    return jsonata.Jsonata.jsonata(text)


def evaluate(template: Any, states: Mapping[str, Any]) -> Any:
    """A JSONata template of a state. Raises StateError where AWS would: an expression without a value."""
    if isinstance(template, str) and template.startswith("{%") and template.endswith("%}"):
        try:
            value = _parsed(template[2:-2].strip()).evaluate(None, {"states": states})
        except Exception as error:
            raise StateError("States.QueryEvaluationError", f"{template}: {error}") from error
        if value is None:
            raise StateError("States.QueryEvaluationError", f"{template} has no value")
        return json.loads(json.dumps(value))
    if isinstance(template, dict):
        return {key: evaluate(value, states) for key, value in template.items()}
    if isinstance(template, list):
        return [evaluate(value, states) for value in template]
    return template


class Driver:
    """Runs every execution that `workflows` says is running.

    invoke: (function name, payload) -> its answer; an exception is a failed invocation.
    ended: called with (arn, state) when an execution ends in any way.
    around: stands around every call of a Task state; (call, the invocation) -> the answer.
    generated: machines that are in no file, by name.
    """

    def __init__(
        self,
        clock: MemoryClock,
        workflows: MemoryWorkflows,
        invoke: Invoke,
        ended: Callable[[str, Execution], None] = lambda arn, state: None,
    ) -> None:
        self.clock, self.workflows, self.invoke, self.ended = clock, workflows, invoke, ended
        self.around: Callable[[Call, Callable[[], Any]], Any] = lambda call, go: go()
        self.generated: dict[str, dict[str, Any]] = {}
        self.records: dict[str, Record] = {}
        self._tasks: list[Running] = []
        self._over: set[str] = set()
        self._tokens = itertools.count(1)

    # --- time ------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Let everything that can go on at this moment go on once; False when nothing could."""
        moved = self._spawn() | self._reap()
        for task in list(self._tasks):
            if task.done or not self._awake(task):
                continue
            moved = True
            try:
                task.pause = next(task.steps)
            except StopIteration as stop:
                task.done, task.result = True, stop.value
            except StateError as error:
                task.done, task.error = True, error
        self._tasks = [task for task in self._tasks if not task.done]
        return moved

    def next_wake(self) -> float:
        """The earliest moment at which a sleeping task wakes by itself; inf when there is none."""
        return min((t.pause.until for t in self._tasks if t.pause is not None), default=math.inf)

    @property
    def running(self) -> list[str]:
        return [a for a, state in self.workflows.executions.items() if state is Execution.RUNNING]

    def _awake(self, task: Running) -> bool:
        pause = task.pause
        return pause is None or pause.until <= self.clock.now() or pause.ready()

    def _spawn(self) -> bool:
        new = [arn for arn in self.running if arn not in self.records]
        for arn in new:
            machine = arn.split(":")[-2]
            self.records[arn] = Record(machine, self.clock.now())
            self._tasks.append(Running(arn, self._execution(arn, self._definition(machine))))
        return bool(new)

    def _reap(self) -> bool:
        """Executions that were stopped from outside, and those past the machine's time-out."""
        for arn in self.running:
            if arn in self.records:
                limit = self._definition(self.records[arn].machine).get("TimeoutSeconds", math.inf)
                if self.clock.now() >= self.records[arn].started_at + limit:
                    self.workflows.executions[arn] = Execution.TIMED_OUT
        ended = {a for a, s in self.workflows.executions.items() if s is not Execution.RUNNING} - self._over
        self._over |= ended
        self._tasks = [task for task in self._tasks if task.arn not in ended]
        for arn in sorted(ended):
            self.ended(arn, self.workflows.executions[arn])
        return bool(ended)

    def _definition(self, machine: str) -> dict[str, Any]:
        return self.generated.get(machine) or definition(machine)

    # --- states ----------------------------------------------------------------------------------

    def _execution(self, arn: str, machine: dict[str, Any]) -> Steps:
        record = self.records[arn]
        try:
            record.output = yield from self._walk(arn, machine, self.workflows.inputs[arn])
            self.workflows.executions[arn] = Execution.SUCCEEDED
        except StateError as error:
            record.cause = f"{error.error}: {error.cause}"
            self.workflows.executions[arn] = Execution.FAILED

    def _walk(self, arn: str, machine: dict[str, Any], document: Any) -> Steps:
        name = machine["StartAt"]
        while True:
            state = machine["States"][name]
            self.records[arn].states.append(name)
            self.records[arn].inputs.setdefault(name, document)
            assert len(json.dumps(document)) < 64 * 1024, f"the input of {name} is over 64 KB"
            following, document = yield from self._state(arn, name, state, document)
            if following is None:
                return document
            name = following

    def _state(self, arn: str, name: str, state: dict[str, Any], document: Any) -> Steps:
        context = {"Execution": {"Id": arn, "Name": arn.split(":")[-1]}, "State": {"Name": name}}
        states: dict[str, Any] = {"input": document, "context": context}
        following = state.get("Next")
        match state["Type"]:
            case "Succeed":
                return None, document
            case "Fail":
                raise StateError(state["Error"], str(evaluate(state["Cause"], states)))
            case "Pass":
                return following, self._output(state, states, document)
            case "Wait":
                seconds = evaluate(state["Seconds"], states)
                if not float(seconds).is_integer():
                    raise StateError("States.QueryEvaluationError", f"{name} waits {seconds} s")
                yield Pause(self.clock.now() + float(seconds))
                return following, document
            case "Choice":
                for rule in state["Choices"]:
                    if evaluate(rule["Condition"], states) is True:
                        return rule["Next"], self._output(rule, states, document)
                return state["Default"], self._output(state, states, document)
            case "Parallel":
                result = yield from self._parallel(arn, state, document)
                return following, result
            case "Task":
                return (yield from self._task(arn, state, states, document))
        raise AssertionError(f"the driver does not know {state['Type']}")

    def _output(self, state: Mapping[str, Any], states: Mapping[str, Any], otherwise: Any) -> Any:
        return evaluate(state["Output"], states) if "Output" in state else otherwise

    def _parallel(self, arn: str, state: dict[str, Any], document: Any) -> Steps:
        # As the emulator: a Parallel's own Output is not looked at.
        branches = [Running(arn, self._walk(arn, branch, document)) for branch in state["Branches"]]
        self._tasks += branches
        yield Pause(math.inf, lambda: all(branch.done for branch in branches))
        for branch in branches:
            if branch.error is not None:
                raise branch.error
        return [branch.result for branch in branches]

    def _task(self, arn: str, state: dict[str, Any], states: dict[str, Any], document: Any) -> Steps:
        tried = [0] * len(state.get("Retry", []))
        while True:
            try:
                states["result"] = yield from self._call(state, states)
                return state.get("Next"), self._output(state, states, states["result"])
            except StateError as error:
                which = _first(state.get("Retry", []), error.error)
                if which is not None and tried[which] < state["Retry"][which].get("MaxAttempts", 3):
                    yield Pause(self.clock.now() + _delay(state["Retry"][which], tried[which]))
                    tried[which] += 1
                    continue
                which = _first(state.get("Catch", []), error.error)
                if which is None:
                    raise
                catch = state["Catch"][which]
                caught = {**states, "errorOutput": {"Error": error.error, "Cause": error.cause}}
                return catch["Next"], self._output(catch, caught, caught["errorOutput"])

    def _call(self, state: dict[str, Any], states: dict[str, Any]) -> Steps:
        token = ""
        if state["Resource"].endswith(".waitForTaskToken"):
            token = f"token-{next(self._tokens)}"
            self.workflows.waiting.add(token)
            states = {**states, "context": {**states["context"], "Task": {"Token": token}}}
        arguments = evaluate(state["Arguments"], states)
        name = arguments["FunctionName"].removeprefix("${").removesuffix("}")
        payload, limit = json.loads(json.dumps(arguments["Payload"])), float(state["TimeoutSeconds"])
        machine, of = states["context"]["Execution"]["Id"].split(":")[-2], states["context"]["State"]["Name"]
        call = Call(machine, of, states["context"]["Execution"]["Id"], name, payload, limit, bool(token))
        try:
            answer = self.around(call, lambda: self.invoke(name, json.loads(json.dumps(payload))))
        except TooLong:
            # A callback state waits for its token however its call goes on.
            if not token:
                yield Pause(self.clock.now() + limit)
                raise StateError("States.Timeout", "") from None
        except Lost:
            assert token, f"{of} waits for no token"
        except Exception as error:
            self.workflows.waiting.discard(token)
            raise StateError(type(error).__name__, json.dumps({"errorMessage": str(error)})) from error
        if not token:
            return {"Payload": json.loads(json.dumps(answer))}
        yield Pause(self.clock.now() + limit, lambda: token in self.workflows.answers)
        if token not in self.workflows.answers:
            self.workflows.waiting.discard(token)
            raise StateError("States.Timeout", "")
        return json.loads(json.dumps(self.workflows.answers[token]))


def _first(rules: list[dict[str, Any]], error: str) -> int | None:
    for number, rule in enumerate(rules):
        if error in rule["ErrorEquals"] or "States.ALL" in rule["ErrorEquals"]:
            return number
    return None


def _delay(retry: dict[str, Any], tried: int) -> float:
    seconds = retry.get("IntervalSeconds", 1) * retry.get("BackoffRate", 2.0) ** tried
    return float(min(seconds, retry.get("MaxDelaySeconds", math.inf)))
