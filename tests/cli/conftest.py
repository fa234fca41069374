"""The command line on the memory twins: no AWS, no sandbox, no network."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lambdas import begin_incident, begin_resume
from planaria import wiring
from planaria.cli import main, target
from planaria.core.claim import Claim
from planaria.core.cluster import Cluster
from planaria.core.incident import Phase, Step
from planaria.core.ports import Execution
from planaria.core.table import Row
from planaria.memory.clock import MemoryClock
from planaria.memory.fleet import MemoryFleet
from planaria.memory.table import MemoryTable
from planaria.memory.workflows import MemoryWorkflows
from planaria.recipes import ClusterFile
from planaria.sandbox.world import DEMO_CLUSTER
from planaria.wiring import Gateways

NOW = 1_793_610_845.0
NODES = [f"i-{number:017x}" for number in range(1, 5)]


@dataclass
class Answer:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class HealNode(MemoryWorkflows):
    """Runs the first state of heal_node or resume_job at once, and `afterwards` when it began."""

    def __init__(self) -> None:
        super().__init__()
        self.causes: dict[str, str] = {}
        self.afterwards: Callable[[Mapping[str, Any]], None] = lambda incident: None

    def start(self, machine: str, name: str, document: Mapping[str, Any]) -> tuple[str, Execution]:
        assert machine in ("heal_node", "resume_job")
        assert len(name) <= 80
        arn, state = super().start(machine, name, document)
        begin = begin_incident if machine == "heal_node" else begin_resume
        answer = begin.handler({"document": dict(document), "execution": arn, "machine": machine}, None)
        if answer["result"] == "DONE":
            self.afterwards(answer.get("incident", answer.get("resume", {})))
        elif answer["result"] == "FENCED":
            self.executions[arn] = Execution.SUCCEEDED
        else:
            self.executions[arn], self.causes[arn] = Execution.FAILED, answer["reason"]
        return arn, state

    def describe_execution(self, executionArn: str) -> dict[str, Any]:  # noqa: N803  boto3's own name
        return {"status": self.executions[executionArn].value, "cause": self.causes.get(executionArn)}


@dataclass
class Bench:
    """A cluster `demo` of four nodes in memory, and the command line to it."""

    gateways: Gateways
    fleet: MemoryFleet
    workflows: HealNode
    clock: MemoryClock
    capture: pytest.CaptureFixture[str]
    clients: dict[str, Any] = field(default_factory=dict)

    def run(self, *words: str) -> Answer:
        status = main(words)
        out, err = self.capture.readouterr()
        return Answer(status, out, err)

    def add_nodes(self, job: str = "") -> None:
        for number, node in enumerate(NODES, 1):
            instance = self.fleet.add(node, instance_type="p5.48xlarge", zone="us-east-1a", launched_at=NOW)
            facts = {
                "name": f"demo-{number}",
                "group": "workers",
                "state": instance.state,
                "ready_at": NOW + 3,
            }
            self.gateways.ledger.note_node(node, facts | ({"job_id": job} if job else {}))
        if job:
            names = [f"demo-{number}" for number in range(1, 5)]
            self.gateways.jobs.register(job, names, NODES, {"attempt": 1, "recipe": "gpt-demo"})

    def add_incident(self, node: str = NODES[2], closed: bool = True) -> str:
        """A healed (or open) incident with a few steps; its id."""
        ledger = self.gateways.ledger
        claim = Claim(node, f"event-{node}", "REPLACE", "Xid 79: a GPU is gone", "xid-79", "act", NOW + 10.25)
        row = ledger.claim(claim, ledger.node(node), NOW + 10.5)
        name = f"{node}-{row['session']}"
        for step, seconds in ((Step.DETECTED, 10.25), (Step.TRIAGED, 10.5), (Step.ISOLATED, 11.0)):
            ledger.step(name, step, NOW + seconds)
        if closed:
            ledger.note_incident(
                name, {"replacement_id": "i-00000000000000009", "resume_step": 40, "execution_arn": "arn:x"}
            )
            ledger.step(name, Step.FIRST_STEP, NOW + 14.75, train_step=41)
            ledger.close(node, int(row["session"]), Phase.HEALED, NOW + 15.0)
        return name

    def node(self, node: str) -> Row:
        return self.gateways.ledger.node(node) or {}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")
    for name in ("PLANARIA_CLUSTER", "PLANARIA_SANDBOX", "PLANARIA_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    cluster = Cluster.from_document(ClusterFile.load(DEMO_CLUSTER).document(1))
    gateways = Gateways({}, cluster)
    clock, fleet, workflows = MemoryClock(NOW + 20), MemoryFleet("demo"), HealNode()
    gateways.table, gateways.fleet, gateways.workflows = MemoryTable(), fleet, workflows
    gateways.clock = clock
    made = Bench(gateways, fleet, workflows, clock, capsys, {"stepfunctions": workflows})
    monkeypatch.setattr(wiring, "gateways", lambda: gateways)
    monkeypatch.setattr(
        target, "_aws", lambda name: target.Target(name, gateways, lambda service: made.clients[service])
    )
    return made
