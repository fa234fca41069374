"""The records of one delivery: judged one by one, and what tells nothing new is counted instead of written.

A signal that repeats a fault of its node within a minute and asks for no act is counted, as are duplicates.
So is what leads to nothing after the first few of its node in a minute, garbage above all. A storm thus costs
a read per batch and node, and a few writes per node, outcome and minute.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from lambdas import holding, judging, looking
from planaria.core import parsers, pool
from planaria.core.affected import affected
from planaria.core.classify import classify
from planaria.core.decision import DOUBTS
from planaria.core.errors import TransientError
from planaria.core.fault import Fault, Severity
from planaria.core.history import ENTRIES
from planaria.core.judge import Outcome, judge, memory_of, nothing_new
from planaria.core.node import NodeView
from planaria.core.policy import Mode
from planaria.core.pool import SpareState
from planaria.core.signal import Kind, Signal, on_time
from planaria.core.table import Conflict, Row
from planaria.wiring import Gateways

Message = tuple[str, str]  # id and body

# Outcomes of a job's exit after which further exits of the same attempt have the same.
_SETTLED = ("JOINED", "COVERED", "STALE")

_ACTED_ON = frozenset({"job", "node_ready", "state_change", "rebalance", "agent_checkpoint_saved"})

SINGLY = 8
"""How many signals of a node and outcome that lead to nothing are written singly in a minute."""


class Batch:
    def __init__(self, gw: Gateways) -> None:
        self._gw = gw
        self._known: dict[str, Row] = {}
        self._nodes: dict[str, tuple[Row, NodeView] | None] = {}
        self._counted: dict[Outcome, dict[str, int]] = {}
        self._exits: dict[tuple[Any, Any], Outcome] = {}
        self._answers = looking.Answers()

    def judge(self, messages: Sequence[Message]) -> Iterator[tuple[str, dict[str, Any] | Exception]]:
        """(message id, what was recorded, or why the message must be seen again); nothing for what was only
        counted. The counts are written at the end, and a message whose count is lost is to be seen again."""
        parsed = [(identity, body, parsers.parse_text(body)) for identity, body in messages]
        signals = [signal for _, _, found in parsed for signal in found]
        self._look_up(signals)
        self._answers = looking.Answers(self._nodes)
        for identity, body, found in parsed:
            try:
                for signal in found:
                    for one in affected(signal, judging.members(self._gw, signal)):
                        outcome = self._one(one, body)
                        if isinstance(outcome, Outcome):
                            counts = self._counted.setdefault(outcome, {})
                            counts[identity] = counts.get(identity, 0) + 1
                        else:
                            yield identity, outcome
            except Exception as error:  # noqa: BLE001  any failure means: this message again, the others not
                yield identity, error
        yield from self._count()

    def _look_up(self, signals: list[Signal]) -> None:
        """What the ledger knows of the events and their nodes, read together."""
        try:
            keys = [signal.dedupe_key for signal in signals]
            self._known = self._gw.ledger.outcomes(keys, self._gw.clock.now())
            nodes = {signal.node_id for signal in signals if signal.node_id is not None}
            found = self._gw.ledger.nodes_by_id(sorted(nodes))
        except TransientError:
            return  # each is looked up by itself
        self._nodes |= {row["node_id"]: (row, NodeView.from_row(row)) for row in found}

    def _one(self, signal: Signal, body: str) -> dict[str, Any] | Outcome:
        signal = on_time(signal, self._gw.clock.now())
        folded = self._folded(signal)
        if folded is not None:
            return folded
        if signal.node_id is not None:
            self._nodes.pop(signal.node_id, None)
        outcome = judging.judge_signal(self._gw, signal, body, self._answers)
        if not isinstance(outcome, Outcome):
            self._known[signal.dedupe_key] = outcome
            if outcome["outcome"] in _SETTLED and signal.code == "job_exit":
                self._exits[_attempt(signal)] = Outcome(outcome["outcome"])
        return outcome

    def _folded(self, signal: Signal) -> Outcome | None:
        """The outcome of a signal that needs no row of its own, None when it is to be judged and written."""
        if signal.dedupe_key in self._known and signal.source != parsers.SWEEP:
            return Outcome.DUPLICATE
        if signal.invalid:
            return self._beyond(signal.source, Outcome.INVALID)
        node = signal.node_id
        if node is None or signal.replay or signal.source == parsers.SWEEP:
            return None
        if node not in self._nodes:
            row = judging.row_of(self._gw, signal)
            self._nodes[node] = (row, NodeView.from_row(row)) if row is not None else None
        found = self._nodes[node]
        if found is None:
            return Outcome.NOT_MANAGED
        (row, view), now, policy = found, self._gw.clock.now(), self._gw.cluster.policy
        if signal.code == "job_exit" and signal.kind is Kind.AGENT:
            settled = self._exits.get(_attempt(signal))
            return self._beyond(node, settled) if settled is not None else None
        fault = classify(signal, view, policy)
        judgement = judge(signal, view, known=False, policy=policy, now=now, fault=fault)
        outcome = judgement.outcome
        repeats = nothing_new(signal, view, fault, now)
        if outcome is Outcome.OPENED and judgement.mode is Mode.OBSERVE and judgement.job_id is None:
            return outcome if repeats else self._beyond(node, outcome, ENTRIES)
        if outcome in (Outcome.OPENED, Outcome.HELD):
            left = view.phase == "ESCALATED" and holding.left_to_a_person(row, judgement)
            if repeats and (left or holding.holds(row, fault)):
                return Outcome.HELD
            if repeats and pool.state_of(row) is SpareState.LEFT and not row.get("waiting"):
                return Outcome.OBSERVED
            return self._beyond(node, Outcome.HELD) if left or holding.covers(row, judgement) else None
        if judgement.raises or judgement.cancels or judgement.tells_gone or fault.kind in _ACTED_ON:
            return None
        if repeats:
            return outcome if self._refreshed(signal, row, view, fault, now) else None
        # What waits for a second proof is remembered, whatever else the node tells meanwhile.
        if judgement.rule in DOUBTS:
            return self._beyond(f"{node} {judgement.rule}", outcome, ENTRIES)
        matters = outcome is Outcome.OBSERVED and fault.severity is not Severity.INFO
        return self._beyond(f"{node} {fault.severity}", outcome, ENTRIES if matters else SINGLY)

    def _beyond(self, who: str, outcome: Outcome, most: int = SINGLY) -> Outcome | None:
        """The outcome, once enough of the same have been written singly."""
        return outcome if self._gw.singly.beyond(who, outcome, self._gw.clock.now(), most) else None

    def _refreshed(self, signal: Signal, row: Row, view: NodeView, fault: Fault, now: float) -> bool:
        """The node's memory has this time of a known fault too; False when the row has changed meanwhile."""
        note = memory_of(signal, view, fault, now)
        if note is None:
            return True
        try:
            row = self._gw.table.write(
                row["pk"], row["sk"], sets=note.sets, removes=note.removes, when=note.when
            )
        except Conflict:
            return False
        self._nodes[row["node_id"]] = row, NodeView.from_row(row)
        return True

    def _count(self) -> Iterator[tuple[str, Exception]]:
        for outcome, messages in self._counted.items():
            try:
                self._gw.ledger.count(outcome.value, self._gw.clock.now(), sum(messages.values()))
            except Exception as error:  # noqa: BLE001  an event without an outcome has not ended
                yield from ((identity, error) for identity in messages)
        self._counted = {}


def _attempt(signal: Signal) -> tuple[Any, Any]:
    return signal.evidence.get("job_id"), signal.evidence.get("attempt")
