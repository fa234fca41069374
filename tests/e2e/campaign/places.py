"""What every place of the campaign does: it plans what befalls a story, waits for its end and redrives it."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planaria.core.plans import facts
from planaria.core.ports import Instance
from planaria.core.table import Row
from planaria.wiring import Gateways
from tests.e2e import fault_cases
from tests.e2e.campaign.world import TASK_SECONDS, CampaignWorld
from tests.e2e.fault_cases import Fault, Task

LOOK_SECONDS = 0.5
END_SECONDS = 180.0
QUIET_SECONDS = 0.6
"""How long everything must have been over before a case is judged."""


class Wrong(Exception):
    """A case did not end as its story does."""


@dataclass(frozen=True, slots=True)
class Case:
    """One story in one place. task, fault: where and what; without a fault the story's Tasks are redriven."""

    story: str
    task: Task | None = None
    fault: Fault | None = None

    def __str__(self) -> str:
        return f"{self.task} {self.fault}" if self.task else f"redrive of {self.story!r}"


class Place(ABC):
    """world, gw: shared by all places. name: of this one.

    What a story is about in a place are its subjects, such as a node and a job: they name the plans of the
    fault hook, and stand in the names of the executions.
    """

    def __init__(self, world: CampaignWorld, gw: Gateways, number: int) -> None:
        self.world, self.gw, self.name = world, gw, self.named(number, gw)
        self._orders = 0

    @staticmethod
    @abstractmethod
    def named(number: int, gw: Gateways) -> str:
        """The name of the nth place of this kind."""

    @abstractmethod
    def settle_in(self) -> None:
        """Make the place ready for its first story."""

    @abstractmethod
    def subjects(self) -> tuple[str, ...]:
        """What executions of this place are about at this moment."""

    @abstractmethod
    def whole(self) -> str:
        """Why the place is not as it should be at rest; "" when it is."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What a person would look at."""

    @abstractmethod
    def play(self, case: Case) -> None:
        """Raises Wrong when it does not end as it should."""

    @abstractmethod
    def repair(self, case: Case) -> None:
        """After a case that went well: the place is whole again."""

    @abstractmethod
    def rescue(self) -> bool:
        """After a case that went wrong: make the place fit for the next one, if that can be done."""

    # --- what is to befall it --------------------------------------------------------------------------

    def plan(self, case: Case, *subjects: str) -> None:
        fault = None
        if case.task is not None and case.fault is not None:
            fault = {
                "machine": case.task.machine,
                "state": case.task.state,
                "kind": case.fault.value,
                "seconds": TASK_SECONDS + 1.0,
                "proxy": self.world.proxy,
            }
        leads = [
            {"machine": each.machine, "state": each.state, "answer": each.answer, "times": each.times}
            for each in fault_cases.STORIES[case.story].leads
        ]
        for subject in subjects:
            plan = self._plan_of(subject)
            plan.with_suffix(".new").write_text(json.dumps({"leads": leads, "fault": fault}))
            plan.with_suffix(".new").rename(plan)
            met = self.world.faults / "met" / subject
            for path in met.glob("*") if met.is_dir() else ():
                path.unlink()

    def forget_plans(self, *subjects: str) -> None:
        for subject in subjects:
            self._plan_of(subject).unlink(missing_ok=True)

    def _plan_of(self, subject: str) -> Path:
        return self.world.faults / "plans" / f"{subject}.json"

    def befallen(self, case: Case, *subjects: str) -> bool:
        """The fault has befallen its call, and the call has done what it ever will."""
        if case.task is None or case.fault is None:
            return True
        mark = f"{case.task.machine}.{case.task.state}".replace("/", "_")
        return any(
            path.name.startswith(f"{mark}.")
            for subject in subjects
            for path in (self.world.faults / "met" / subject).glob("*.done")
        )

    def order(self, machine: str, **document: str) -> str:
        """A person starts an execution in the console."""
        self._orders += 1
        about = next(document[key] for key in ("node_id", "job_id", "node_group") if key in document)
        name = f"order-{about}-{self._orders}-{int(time.time())}"
        return self.gw.workflows.start(machine, name, {**document, "reason": "campaign"})[0]

    # --- waiting ---------------------------------------------------------------------------------------

    def until(self, what: str, found: Callable[[], Any], seconds: float = END_SECONDS) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            value = found()
            if value:
                return value
            if time.monotonic() > deadline:
                raise Wrong(f"no {what} within {seconds:.0f} s; {self.told()}")
            time.sleep(LOOK_SECONDS)

    def until_over(self, over: Callable[[], bool]) -> None:
        """It is over, nothing runs any more, and it stays so for a while."""

        def at_rest() -> bool:
            return over() and not self.running()

        self.until("end", at_rest)
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < QUIET_SECONDS:
            if not at_rest():
                quiet_since = time.monotonic()
            time.sleep(LOOK_SECONDS / 2)

    def told(self) -> str:
        running = {name: self._where(name) for name in self.running()}
        return json.dumps({**self.state(), "running": running, "why": self.whole()}, default=str)

    def running(self) -> list[str]:
        """Running executions about this place."""
        client = self._step_functions()
        pages = client.get_paginator("list_executions").paginate(statusFilter="RUNNING")
        names = [execution["name"] for page in pages for execution in page["executions"]]
        return sorted(name for name in names if _about(name, self.subjects()))

    def _where(self, name: str) -> list[str]:
        """The last states that a running execution entered, and how its Tasks failed."""
        client = self._step_functions()
        for page in client.get_paginator("list_executions").paginate(statusFilter="RUNNING"):
            for execution in page["executions"]:
                if execution["name"] == name:
                    arn = execution["executionArn"]
                    newest = client.get_execution_history(executionArn=arn, reverseOrder=True, maxResults=30)
                    return [said for event in newest["events"] if (said := _said(event))][:8]
        return []

    def _step_functions(self) -> Any:
        assert self.world.emulator is not None
        return self.world.emulator.client("stepfunctions")

    # --- redrive ---------------------------------------------------------------------------------------

    def redrive(
        self, case: Case, since: float, subjects: tuple[str, ...], picture: Callable[[], Mapping[str, Any]]
    ) -> None:
        """Start at every Task of the story with the input it was entered with; nothing may change."""
        before = picture()
        for task in fault_cases.tasks_of(case.story):
            self._redrive_task(task, since, subjects)
            after = picture()
            changed = {key: (before[key], after[key]) for key in before if after[key] != before[key]}
            if changed:
                raise Wrong(f"a redrive at {task} changed {json.dumps(changed, default=str)}")

    def _redrive_task(self, task: Task, since: float, subjects: tuple[str, ...]) -> None:
        client = self._step_functions()
        arn, entered = self._entered(client, task, since, subjects)
        machine = client.describe_state_machine(
            stateMachineArn=arn.replace(":execution:", ":stateMachine:").rpartition(":")[0]
        )
        definition = fault_cases.starting_at(json.loads(machine["definition"]), task, arn)
        name = f"redrive-{self.name}-{task.machine}-{task.state.replace(' ', '-')}"
        made = client.create_state_machine(
            name=f"planaria-{self.gw.cluster.name}-{name}", definition=json.dumps(definition),
            roleArn=machine["roleArn"],
        )  # fmt: skip
        started = client.start_execution(
            stateMachineArn=made["stateMachineArn"], name="-".join((*subjects, "again")), input=entered
        )["executionArn"]
        self.until(f"end of the redrive at {task}", lambda: not self._runs(client, started), 60)
        time.sleep(QUIET_SECONDS)
        client.delete_state_machine(stateMachineArn=made["stateMachineArn"])

    @staticmethod
    def _runs(client: Any, arn: str) -> bool:
        return bool(client.describe_execution(executionArn=arn)["status"] == "RUNNING")

    def _entered(self, client: Any, task: Task, since: float, subjects: tuple[str, ...]) -> tuple[str, str]:
        """(ARN, input) of the execution of this place that entered this state. The emulator's histories leave
        out what is in a branch; there the input of the Parallel state stands for it."""
        state = task.within[0][0] if task.within else task.state
        machine = f"planaria-{self.gw.cluster.name}-{task.machine}"
        arn = next(
            m["stateMachineArn"]
            for page in client.get_paginator("list_state_machines").paginate()
            for m in page["stateMachines"]
            if m["name"] == machine
        )
        pages = client.get_paginator("list_executions").paginate(stateMachineArn=arn)
        found = [
            execution["executionArn"]
            for page in pages
            for execution in page["executions"]
            if execution["startDate"].timestamp() >= since - 1 and _about(execution["name"], subjects)
        ]
        for execution in found:
            history = client.get_paginator("get_execution_history").paginate(executionArn=execution)
            for page in history:
                for event in page["events"]:
                    details = event.get("stateEnteredEventDetails") or {}
                    if event["type"].endswith("StateEntered") and details.get("name") == state:
                        return execution, str(details["input"])
        raise Wrong(f"no execution of the story entered {task}; looked at {found}")


class Findings:
    """What of an end was found to be otherwise than wanted."""

    def __init__(self) -> None:
        self._wrong: list[str] = []

    def expect(self, what: str, found: object, wanted: object) -> None:
        if found != wanted:
            self._wrong.append(f"{what}: {found} instead of {wanted}")

    def judge(self, place: Place) -> None:
        """Raises Wrong."""
        if self._wrong:
            raise Wrong(f"{'; '.join(self._wrong)}; {place.told()}")


def _about(execution: str, subjects: tuple[str, ...]) -> bool:
    return any(f"{subject}-" in execution for subject in subjects)


def _said(event: dict[str, Any]) -> str:
    if "stateEnteredEventDetails" in event:
        return str(event["stateEnteredEventDetails"]["name"])
    done = json.loads((event.get("taskSucceededEventDetails") or {}).get("output") or "{}").get("Payload")
    if isinstance(done, dict):
        return f"{done.get('result')} {done.get('reason')}"
    failed = event.get("taskFailedEventDetails")
    return f"failed: {failed['error']} {failed['cause'][:200]}" if failed else ""


def lasting(row: Row) -> Row:
    """A node's or job's row without what reports and sweeps write by themselves."""
    noise = {"watched", "seen", "recent", "times_missing", "resumes_pruned_at", "subjects", "asked_isolation"}
    noise |= {"located", "topology", *facts(Instance("", ""))}  # sweep notes what EC2 says of an instance
    return {key: value for key, value in row.items() if key not in noise}
