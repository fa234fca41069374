"""The Workflows, Bus and Notices ports in memory: they keep what they were told."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from planaria.core.ports import Execution


class MemoryWorkflows:
    """executions: ARN -> state; a test ends one by writing there. inputs: ARN -> document."""

    def __init__(self) -> None:
        self.executions: dict[str, Execution] = {}
        self.inputs: dict[str, Mapping[str, Any]] = {}
        self.waiting: set[str] = set()
        self.answers: dict[str, Mapping[str, Any]] = {}

    def start(self, machine: str, name: str, document: Mapping[str, Any]) -> tuple[str, Execution]:
        arn = f"arn:aws:states:us-east-1:111122223333:execution:{machine}:{name}"
        if arn not in self.executions:
            self.executions[arn] = Execution.RUNNING
            self.inputs[arn] = json.loads(json.dumps(document))
        return arn, self.executions[arn]

    def state(self, execution_arn: str) -> Execution:
        return self.executions.get(execution_arn, Execution.NONE)

    def stop(self, execution_arn: str, reason: str) -> None:
        if self.executions.get(execution_arn) is Execution.RUNNING:
            self.executions[execution_arn] = Execution.ABORTED

    def answer(self, task_token: str, output: Mapping[str, Any]) -> bool:
        if task_token not in self.waiting:
            return False
        self.waiting.discard(task_token)
        self.answers[task_token] = output
        return True


class MemoryBus:
    """events: (source, detail-type, detail) of each; resources: of each, in the same order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, Mapping[str, Any]]] = []
        self.resources: list[list[str]] = []

    def put(
        self,
        source: str,
        detail_type: str,
        details: Sequence[Mapping[str, Any]],
        resources: Sequence[str] = (),
    ) -> None:
        self.events += [(source, detail_type, detail) for detail in details]
        self.resources += [list(resources) for _ in details]


class MemoryNotices:
    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []

    def publish(self, subject: str, text: str) -> None:
        self.sent.append((subject, text))
