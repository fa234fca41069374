"""Slurm's head node in memory: the documents' contract over the Scheduler port's twin."""

from collections.abc import Callable, Mapping
from typing import Any

from planaria.core import documents, scheduling
from planaria.memory.commands import MemoryCommands
from planaria.memory.scheduler import MemoryScheduler

HEAD = "i-00000000000000fee"


class HeadNode:
    """twin: what stands there for Slurm. commands: the port to the node. answers: what planaria.slurm would
    print instead, by document, for tests of bad answers. calls: (document, parameters) of each command."""

    def __init__(self, twin: MemoryScheduler) -> None:
        self.twin = twin
        self.answers: dict[str, Any] = {}
        names = [name for name, each in documents.documents().items() if each.runs_on == "head"]
        self.commands = MemoryCommands({name: self._document(name) for name in names})

    @property
    def calls(self) -> list[tuple[str, dict[str, str]]]:
        return [(document, parameters) for document, _, parameters in self.commands.calls]

    def _document(self, name: str) -> Any:
        def run(node: str, parameters: Mapping[str, str]) -> Any:
            assert node == HEAD
            row = documents.find(name)
            assert row is not None
            given = row.checked(parameters)
            if name in self.answers:
                return self.answers[name]
            return {"version": 1, "value": self._value(row.verb, given)}

        return run

    def _value(self, verb: str, given: Mapping[str, str]) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for request in _requests(verb, given):
            value |= self.twin.poll(self.twin.submit(request)).value
        return value


def _requests(verb: str, given: Mapping[str, str]) -> list[scheduling.SchedulerRequest]:
    def several(name: str) -> tuple[str, ...]:
        return tuple(given[name].split(",")) if given[name] else ()

    marked: dict[str, Callable[..., scheduling.SchedulerRequest]] = {
        "isolate": scheduling.Isolate,
        "lost": scheduling.Lost,
        "readmit": scheduling.Readmit,
    }
    if verb in marked:
        entries = [entry.split("=") for entry in several("Entries")]
        return [marked[verb]((name,), reason) for name, reason in entries]
    match verb:
        case "node":
            return [scheduling.NodeQuery(several("Nodes"))]
        case "jobs-on":
            return [scheduling.JobsOn(several("Nodes"))]
        case "jobs":
            return [scheduling.JobQuery(several("Jobs"), several("Nodes"))]
        case "stop":
            return [scheduling.Stop(several("Jobs"), given["Signal"], float(given["Grace"]))]
        case "join":
            return [scheduling.Join(given["Name"], given["NodeId"], given["Address"], given["Reason"])]
        case "hold":
            return [scheduling.Hold(given["Job"], several("Nodes"), float(given["Seconds"]))]
        case "requeue":
            attempt, step = int(given["Attempt"]), int(given["ResumeStep"])
            return [scheduling.Requeue(given["Job"], several("Nodes"), attempt, step, given["Kept"])]
    return [scheduling.Place(given["Job"], int(given["Count"]))]
