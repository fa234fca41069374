"""One place of the campaign: a job of two nodes, to the second of which the stories happen."""

import contextlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from planaria.cli.approve import give
from planaria.core import approval, tags
from planaria.core.approval import Answer
from planaria.core.errors import PlanariaError
from planaria.core.incident import ACTIVE, incident_id
from planaria.core.plans import facts
from planaria.core.ports import Instance, LaunchRequest
from planaria.core.table import Row
from planaria.sandbox.faults import XID_79
from planaria.sandbox.world import submit_job
from planaria.wiring import Gateways
from tests.e2e import fault_cases
from tests.e2e.campaign.world import TASK_SECONDS, CampaignWorld
from tests.e2e.fault_cases import ISOLATE, LAUNCH, Fault, Story, Task

LOOK_SECONDS = 0.5
END_SECONDS = 180.0
QUIET_SECONDS = 0.6
"""How long everything must have been over before a case is judged."""

NODES_OF_A_JOB = 2

RETIRED_SECONDS = 3600.0
"""Until the date of a retirement: less than the lead in the campaign's time, so that it is answered at once,
and long enough to wait for the replacement."""

_RETIREMENT = {
    "version": 1, "kind": "scheduled_event", "code": "instance-retirement", "description": "retirement",
}  # fmt: skip


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


@dataclass(frozen=True, slots=True)
class Before:
    """What the place was like before a story began."""

    node: str
    session: int
    resume: int
    attempt: int
    at: float


class Slot:
    """world, gw: shared by all slots. submitting: held from idle nodes to a placed job."""

    def __init__(self, world: CampaignWorld, gw: Gateways, job: str, submitting: threading.Lock) -> None:
        self.world, self.gw, self.job = world, gw, job
        self._submitting = submitting
        self._orders = 0
        self.head = world.head()

    # --- the place -----------------------------------------------------------------------------------

    def settle_in(self) -> None:
        """Launch the nodes and start the job on them."""
        group = next(iter(self.gw.cluster.node_groups.values()))
        offering = group.offerings[0]
        names = [f"{self.job}-{letter}" for letter in "ab"[:NODES_OF_A_JOB]]
        for name in names:
            marks = {tags.GROUP: group.name, tags.NAME: name}
            self.gw.fleet.launch(
                LaunchRequest(
                    f"first-{name}",
                    group.launch_template,
                    offering.instance_type,
                    offering.subnet,
                    offering.capacity,
                    marks,
                )
            )
        # Another place's job may have taken one of them, and leaves one of its own for that.
        up = ("IDLE", "ALLOCATED")
        self.until("booted nodes", lambda: all(self._state(name) in up for name in names), 60)
        # Triage has taken in what they reported: what the ledger knows of a node begins with that.
        self.until("known nodes", lambda: set(names) <= {r.get("name") for r in self.gw.ledger.nodes()}, 60)
        with self._submitting:
            submit_job(self.head, self.gw, self.job, {"name": self.job, "nodes": NODES_OF_A_JOB})
        self.until("a running job", lambda: self.whole() == "", 30)

    def _state(self, name: str) -> str:
        nodes = self.head.get("/status")["scheduler"]
        return str(nodes.get(name, {}).get("state"))

    @property
    def name(self) -> str:
        """The scheduler name of the node to which the stories happen."""
        return str(self.row["names"][-1])

    @property
    def node(self) -> str:
        return str(self.row["nodes"][str(NODES_OF_A_JOB - 1)])

    @property
    def row(self) -> Row:
        return self.gw.jobs.job(self.job) or {}

    def whole(self) -> str:
        """Why the place is not as it should be at rest; "" when it is."""
        row, status = self.row, self.head.get("/status")
        job = status["jobs"].get(self.job, {})
        if row.get("pending") or row.get("unresolved") or row.get("state") != "RUNNING":
            found = {key: row.get(key) for key in ("pending", "unresolved", "state")}
            return f"the job's row says {found}"
        if row.get("resume_phase") in ACTIVE:
            return f"resume {row['resume_number']} is {row['resume_phase']}"
        if job.get("state") != "RUNNING" or len(job["live_ranks"]) != NODES_OF_A_JOB:
            return f"the job is {job.get('state')} with the ranks {job.get('live_ranks')}"
        if job["attempt"] != row["attempt"] or set(job["placement"]) != set(row["nodes"].values()):
            return f"attempt {job['attempt']} on {job['placement']} is not {row['attempt']} on {row['nodes']}"
        for name in row["names"]:
            node = status["scheduler"][name]
            if node["isolated"] or node["node_id"] not in row["nodes"].values():
                return f"{name} is {node}"
        return ""

    def until(self, what: str, found: Callable[[], Any], seconds: float = END_SECONDS) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            value = found()
            if value:
                return value
            if time.monotonic() > deadline:
                raise Wrong(f"no {what} within {seconds:.0f} s; {self.told()}")
            time.sleep(LOOK_SECONDS)

    def told(self) -> str:
        """What a person would look at."""
        row = self.row
        nodes = [self.gw.ledger.node(node) or {} for node in row.get("nodes", {}).values()]
        facts = (
            "node_id",
            "name",
            "session",
            "phase",
            "action",
            "outcome_reason",
            "launch",
            "replacement_id",
            "isolation",
        )
        job = (
            "attempt",
            "state",
            "pending",
            "unresolved",
            "resume_number",
            "resume_phase",
            "resume_outcome_reason",
        )
        return json.dumps(
            {
                "nodes": [{key: node[key] for key in facts if key in node} for node in nodes],
                "job": {key: row[key] for key in job if key in row},
                "running": {name: self._where(name) for name in self._running()},
                "why": self.whole(),
            },
            default=str,
        )

    # --- a story ---------------------------------------------------------------------------------------

    def play(self, case: Case) -> None:
        """Raises Wrong when it does not end as it should."""
        story = fault_cases.STORIES[case.story]
        row = self.row
        node = self.node
        before = Before(
            node, int((self.gw.ledger.node(node) or {}).get("session", 0)), int(row.get("resume_number", 0)),
            int(row["attempt"]), time.time(),
        )  # fmt: skip
        self._plan(case, story, before)
        self._begin(story, before)
        if story.answer:
            self._answer(story, before)
        self._until_over(case, story, before)
        self.check(story, before)
        if case.fault is None:
            self._redrive(case, story, before)

    def _plan(self, case: Case, story: Story, before: Before) -> None:
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
            for each in story.leads
        ]
        for subject in (before.node, self.job):
            plan = self.world.faults / "plans" / f"{subject}.json"
            plan.with_suffix(".new").write_text(json.dumps({"leads": leads, "fault": fault}))
            plan.with_suffix(".new").rename(plan)
            met = self.world.faults / "met" / subject
            for path in met.glob("*") if met.is_dir() else ():
                path.unlink()

    def _begin(self, story: Story, before: Before) -> None:
        match story.begin:
            case "xid":
                # Its ranks live on: where they die too, the job may be resumed once before the news comes.
                line = {"fault": "kernel-line", "node": before.node, "line": XID_79}
                self.head.post("/inject", line)
            case "replace it":
                self.order("heal_node", node_id=before.node, action="replace")
            case "retire it":
                finding = {**_RETIREMENT, "instance_id": before.node, "time": time.time()}
                finding["starts_at"] = time.time() + RETIRED_SECONDS
                self.gw.bus.put("planaria.sweep", "Planaria Sweep Finding", [finding])
            case "reboot it":
                self.order("heal_node", node_id=before.node, action="reboot")
            case "reset it":
                self.order("heal_node", node_id=before.node, action="reset")
            case "process exit":
                self.head.post("/inject", {"fault": "kill-rank", "node": before.node, "job_id": self.job})
            case "isolate it":
                self.order(ISOLATE, node_id=before.node)
            case "launch for it":
                self.order(ISOLATE, node_id=before.node)
                self.until("isolated node", lambda: self._phase(before) == "RETIRED")
                self.order(LAUNCH, node_id=before.node)
                self.until("second session", lambda: self._phase(before) != "RETIRED")
            case _:
                raise Wrong(f"the emulator does not know how {story.begin!r} begins")

    def order(self, machine: str, **document: str) -> str:
        """A person starts an execution in the console."""
        self._orders += 1
        about = document.get("node_id") or document["job_id"]
        name = f"order-{about}-{self._orders}-{int(time.time())}"
        return self.gw.workflows.start(machine, name, {**document, "reason": "campaign"})[0]

    def _phase(self, before: Before) -> str:
        row = self.gw.ledger.node(before.node) or {}
        return str(row.get("phase")) if int(row.get("session", 0)) > before.session else ""

    def _answer(self, story: Story, before: Before) -> None:
        self.until("question", lambda: approval.waits(self.gw.ledger.node(before.node) or {}))
        row = self.gw.ledger.node(before.node) or {}
        word = Answer.APPROVED if story.answer == "yes" else Answer.REJECTED
        give(self.gw, incident_id(before.node, int(row["session"])), word, "ada", "campaign")

    # --- its end ---------------------------------------------------------------------------------------

    def _until_over(self, case: Case, story: Story, before: Before) -> None:
        def over() -> bool:
            return self._ended(story, before) and self._befallen(case, before) and not self._running()

        self.until("end", over)
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < QUIET_SECONDS:
            if not over():
                quiet_since = time.monotonic()
            time.sleep(LOOK_SECONDS / 2)

    def _ended(self, story: Story, before: Before) -> bool:
        if story.outcome:
            phase = self._phase(before)
            if not phase or phase in ACTIVE:
                return False
            if phase != story.outcome and not (story.begin == "launch for it" and phase == "RETIRED"):
                raise Wrong(f"the incident ended {phase} instead of {story.outcome}; {self.told()}")
            if phase != story.outcome:
                return False
        row = self.row
        if row.get("pending"):
            return False
        if story.resume:
            new = int(row.get("resume_number", 0)) > before.resume
            phase = str(row.get("resume_phase")) if new else ""
            if phase == "ESCALATED" != story.resume:
                raise Wrong(f"the resume ended {phase}; {self.told()}")
            return phase == story.resume
        return row.get("resume_phase") not in ACTIVE

    def _befallen(self, case: Case, before: Before) -> bool:
        """The fault has befallen its call, and the call has done what it ever will."""
        if case.task is None or case.fault is None:
            return True
        mark = f"{case.task.machine}.{case.task.state}".replace("/", "_")
        return any(
            path.name.startswith(f"{mark}.")
            for subject in (before.node, self.job)
            for path in (self.world.faults / "met" / subject).glob("*.done")
        )

    def _running(self) -> list[str]:
        """Running executions about this place."""
        assert self.world.emulator is not None
        client = self.world.emulator.client("stepfunctions")
        pages = client.get_paginator("list_executions").paginate(statusFilter="RUNNING")
        names = [execution["name"] for page in pages for execution in page["executions"]]
        nodes = self.row.get("nodes", {}).values()
        return sorted(n for n in names if any(about in n for about in (*nodes, f"{self.job}-")))

    def _where(self, name: str) -> list[str]:
        """The last states that a running execution entered, and how its Tasks failed."""
        assert self.world.emulator is not None
        client = self.world.emulator.client("stepfunctions")
        for page in client.get_paginator("list_executions").paginate(statusFilter="RUNNING"):
            for execution in page["executions"]:
                if execution["name"] == name:
                    arn = execution["executionArn"]
                    newest = client.get_execution_history(executionArn=arn, reverseOrder=True, maxResults=30)
                    return [said for event in newest["events"] if (said := _said(event))][:8]
        return []

    def check(self, story: Story, before: Before) -> None:
        """One outcome, one resume, at most one replacement, no job lost, nothing isolated but on purpose."""
        wrong: list[str] = []

        def expect(what: str, found: object, wanted: object) -> None:
            if found != wanted:
                wrong.append(f"{what}: {found} instead of {wanted}")

        expected = ["RETIRED"] * (story.begin == "launch for it") + [story.outcome] * bool(story.outcome)
        heads = [row for row in self.gw.ledger.incidents() if row.get("node_id") == before.node]
        heads = sorted(
            (r for r in heads if int(r["session"]) > before.session), key=lambda r: int(r["session"])
        )
        expect("incidents of the node", [row.get("outcome") for row in heads], expected)

        rows = [row for row in self.gw.ledger.nodes() if row.get("replaces") == before.node]
        launched = sorted(row["node_id"] for row in rows if float(row["launched_at"]) > before.at - 1)
        present = {i.node_id: i for i in self.gw.fleet.cluster()}
        ours = {n for n, i in present.items() if i.tags.get(tags.REPLACES) == before.node}
        alive = sorted(n for n in ours if present[n].state == "running")
        expect("instances launched", len(launched), story.launched)
        expect("launched instances that are in no row", sorted(ours - set(launched)), [])
        expect("replacements that run", len(alive), int(story.served))
        gone = story.served and not story.old_stays
        old = present[before.node].state if before.node in present else "terminated"
        expect("the old instance", old, "terminated" if gone else "running")

        row, status = self.row, self.head.get("/status")
        node = status["scheduler"][self.name]
        expect("isolated by us", bool(node["isolated"]), story.isolated)
        expect(
            "the instance of the name", node["node_id"], alive[0] if story.served and alive else before.node
        )
        expect("unresolved nodes of the job", list(row["unresolved"]), [before.node] * story.isolated)
        attempts = self.world.job_folder(self.job) / "attempts"
        begun = sorted(int(path.name) for path in attempts.iterdir() if int(path.name) > before.attempt)
        expect("attempts of the job that were started", len(begun), int(story.resume == "HEALED"))
        if not story.isolated and story.resume != "ESCALATED":
            expect("the place", self.whole(), "")
        if wrong:
            raise Wrong(f"{'; '.join(wrong)}; {self.told()}")

    # --- redrive ---------------------------------------------------------------------------------------

    def _redrive(self, case: Case, story: Story, before: Before) -> None:
        """Start at every Task of the story with the input it was entered with; nothing may change."""
        picture = self._picture(before)
        for task in fault_cases.tasks_of(case.story):
            self._redrive_task(task, before)
            after = self._picture(before)
            changed = {key: (picture[key], after[key]) for key in picture if after[key] != picture[key]}
            if changed:
                raise Wrong(f"a redrive at {task} changed {json.dumps(changed, default=str)}")
        self.check(story, before)

    def _redrive_task(self, task: Task, before: Before) -> None:
        assert self.world.emulator is not None
        client = self.world.emulator.client("stepfunctions")
        arn, entered = self._entered(client, task, before)
        machine = client.describe_state_machine(
            stateMachineArn=arn.replace(":execution:", ":stateMachine:").rpartition(":")[0]
        )
        definition = fault_cases.starting_at(json.loads(machine["definition"]), task, arn)
        name = f"redrive-{self.job}-{task.machine}-{task.state.replace(' ', '-')}"
        made = client.create_state_machine(
            name=f"planaria-{self.gw.cluster.name}-{name}", definition=json.dumps(definition),
            roleArn=machine["roleArn"],
        )  # fmt: skip
        started = client.start_execution(
            stateMachineArn=made["stateMachineArn"], name=f"{before.node}-{self.job}-again", input=entered
        )["executionArn"]
        self.until(f"end of the redrive at {task}", lambda: not self._runs(client, started), 60)
        time.sleep(QUIET_SECONDS)
        client.delete_state_machine(stateMachineArn=made["stateMachineArn"])

    @staticmethod
    def _runs(client: Any, arn: str) -> bool:
        return bool(client.describe_execution(executionArn=arn)["status"] == "RUNNING")

    def _entered(self, client: Any, task: Task, before: Before) -> tuple[str, str]:
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
            if execution["startDate"].timestamp() >= before.at - 1
            and any(about in execution["name"] for about in (before.node, f"{self.job}-"))
        ]
        for execution in found:
            history = client.get_paginator("get_execution_history").paginate(executionArn=execution)
            for page in history:
                for event in page["events"]:
                    details = event.get("stateEnteredEventDetails") or {}
                    if event["type"].endswith("StateEntered") and details.get("name") == state:
                        return execution, str(details["input"])
        raise Wrong(f"no execution of the story entered {task}; looked at {found}")

    def _picture(self, before: Before) -> dict[str, Any]:
        """What a redrive could change."""
        present = {i.node_id: i.state for i in self.gw.fleet.cluster() if i.state == "running"}
        about = {before.node, self.node}
        status = self.head.get("/status")
        return {
            "instances": sorted(
                i.node_id
                for i in self.gw.fleet.cluster()
                if i.state == "running" and (i.node_id in about or i.tags.get(tags.REPLACES) == before.node)
            ),
            "nodes": [
                _lasting(self.gw.ledger.node(node) or {}) for node in sorted(about & set(present) | about)
            ],
            "incidents": [row for row in self.gw.ledger.incidents() if row.get("node_id") in about],
            "job": _lasting(self.row),
            "scheduler": {k: status["scheduler"][self.name][k] for k in ("node_id", "isolated")},
            "attempt": status["jobs"][self.job]["attempt"],
        }

    # --- afterwards ------------------------------------------------------------------------------------

    def rescue(self) -> bool:
        """After a case that went wrong: make the place fit for the next one, if that can be done."""
        try:
            row = self.row
            for subject in (*row["nodes"].values(), self.job):
                (self.world.faults / "plans" / f"{subject}.json").unlink(missing_ok=True)
            for execution in self._running():
                self.until(f"end of {execution}", lambda e=execution: e not in self._running(), 60)  # type: ignore[misc]
            for node in self.row["nodes"].values():
                if (self.gw.ledger.node(node) or {}).get("phase") == "ESCALATED":
                    self.order("heal_node", node_id=node, action="replace")
            self.until("a whole place", lambda: self.whole() == "", 60)
        except Exception:  # noqa: BLE001  then it is lost
            return False
        return True

    def repair(self, case: Case) -> None:
        """What a person would order after such an end, by Planaria; the place is whole again."""
        story = fault_cases.STORIES[case.story]
        old = self.node
        for subject in (old, self.job):
            (self.world.faults / "plans" / f"{subject}.json").unlink(missing_ok=True)
        if story.isolated and story.begin in ("isolate it", "launch for it"):
            self.order(LAUNCH, node_id=old)
        elif story.isolated:
            self.order("heal_node", node_id=old, action="replace")
        elif story.resume == "ESCALATED":
            self.order("resume_job", job_id=self.job)
        self.until("a whole place after the repair", lambda: self.whole() == "", 60)
        self.until("end of the repair", lambda: not self._running(), 60)
        rows = (r for r in self.gw.ledger.nodes() if r["node_id"] not in self.row["nodes"].values())
        for row in rows:
            if row.get("name") in self.row["names"] and not row.get("gone"):
                with contextlib.suppress(PlanariaError):
                    self.gw.fleet.terminate(row["node_id"])


def _said(event: dict[str, Any]) -> str:
    if "stateEnteredEventDetails" in event:
        return str(event["stateEnteredEventDetails"]["name"])
    done = json.loads((event.get("taskSucceededEventDetails") or {}).get("output") or "{}").get("Payload")
    if isinstance(done, dict):
        return f"{done.get('result')} {done.get('reason')}"
    failed = event.get("taskFailedEventDetails")
    return f"failed: {failed['error']} {failed['cause'][:200]}" if failed else ""


def _lasting(row: Row) -> Row:
    """A node's or job's row without what reports and sweeps write by themselves."""
    noise = {"watched", "seen", "recent", "times_missing", "resumes_pruned_at", "subjects", "asked_isolation"}
    noise |= set(facts(Instance("", "")))  # sweep notes what EC2 says of an instance
    return {key: value for key, value in row.items() if key not in noise}
