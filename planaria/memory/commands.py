"""The Commands port in memory: a document is a function of the node and the parameters."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planaria.core.errors import TransientError
from planaria.core.ports import Answer, AnswerState

Document = Callable[[str, Mapping[str, str]], Any]
"""(node id, parameters) -> the output; None while it is still out; an Exception is a failed command."""


class MemoryCommands:
    """documents: name -> what it does; one that is not known fails on every node.

    calls: (document, node ids, parameters) of every submit. reachable: False makes every call raise
    TransientError.
    """

    def __init__(self, documents: Mapping[str, Document] | None = None) -> None:
        self.documents: dict[str, Document] = dict(documents or {})
        self.calls: list[tuple[str, tuple[str, ...], dict[str, str]]] = []
        self.reachable = True
        self._numbers = itertools.count(1)
        self._tickets: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {}

    def submit(self, document: str, node_ids: Sequence[str], parameters: Mapping[str, str]) -> str:
        self._reach()
        call = document, tuple(node_ids), dict(parameters)
        self.calls.append(call)
        ticket = f"command-{next(self._numbers)}"
        self._tickets[ticket] = call
        return ticket

    def poll(self, ticket: str) -> Answer:
        self._reach()
        if ticket not in self._tickets:
            return Answer(AnswerState.UNKNOWN, reason=f"no ticket {ticket}: ask again")
        document, nodes, parameters = self._tickets[ticket]
        value: dict[str, Any] = {}
        for node in nodes:
            output = self._output(document, node, parameters)
            if output is None:
                return Answer(AnswerState.PENDING)
            failed = isinstance(output, Exception)
            value[node] = {
                "status": "FAILED" if failed else "SUCCESS",
                "output": str(output) if failed else output,
            }
        return Answer(AnswerState.DONE, value)

    def _output(self, document: str, node: str, parameters: Mapping[str, str]) -> Any:
        if document not in self.documents:
            return KeyError(f"no document {document}")
        return self.documents[document](node, parameters)

    def _reach(self) -> None:
        if not self.reachable:
            raise TransientError("the commands cannot be sent")
