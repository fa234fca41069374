"""What EC2 knows of a node beside the event, looked up once before something is opened."""

import dataclasses
from collections.abc import Iterable

from planaria.core import wanted
from planaria.core.breaker import KEY
from planaria.core.errors import TransientError
from planaria.core.judge import Judgement, Outcome
from planaria.core.planned import BUSY
from planaria.core.plans import facts
from planaria.core.ports import Instance
from planaria.core.signal import Kind, Signal
from planaria.core.staleness import STANDING
from planaria.core.table import Row
from planaria.wiring import Gateways

ADDED = ("state_reason", "below_size", "state_now", BUSY)
"""Evidence that EC2 adds to a state change, and the scheduler to a planned end."""

SETTLES_SECONDS = 120.0
"""DescribeInstances may answer with what was a while ago: so long a contradiction is asked about again."""


class Answers:
    """What EC2 says of the nodes of one delivery, asked once for all of them when the first is wanted.

    EC2 lets an account ask 20 times a second, and hundreds of nodes may fail at once.
    """

    def __init__(self, nodes: Iterable[str] = ()) -> None:
        self._nodes = sorted(set(nodes))
        self._found: dict[str, Instance] | None = None
        self._error: TransientError | None = None

    def of(self, gw: Gateways, node: str) -> list[Instance]:
        """The instance, or nothing where EC2 does not know it. Raises TransientError, for every node of the
        delivery once it has for one: each try takes the time that the others need."""
        if self._error is not None:
            raise self._error
        try:
            if self._found is None:
                nodes = self._nodes if node in self._nodes else [node]
                self._found = {instance.node_id: instance for instance in gw.fleet.describe(nodes)}
            return [self._found[node]] if node in self._found else gw.fleet.describe([node])
        except TransientError as error:
            self._error = error
            raise


def needed(signal: Signal, judgement: Judgement, row: Row) -> bool:
    """Only where an act on a node would follow, and not again for one that is held: a storm that the breaker
    holds must not ask EC2 about each of its nodes."""
    if row.get("held_since") and signal.kind is not Kind.STATE_CHANGE:
        return False
    return judgement.raises or (judgement.outcome is Outcome.OPENED and judgement.job_id is None)


def look(gw: Gateways, signal: Signal, row: Row, answers: Answers) -> Signal:
    """The signal with what EC2 adds to it; a changed opt-out is noted on the node's row.

    That the instance is gone is not noted here: a node known as gone before its claim would make the event
    stale. Raises TransientError where the answer decides whether a person asked for this end.
    """
    node = row["node_id"]
    try:
        found = answers.of(gw, node)
    except TransientError:
        if signal.kind is Kind.STATE_CHANGE:
            raise
        return signal  # a warning must not wait for an answer that would only refine it
    for instance in found:
        opted_out = facts(instance)["opted_out"]
        if opted_out != bool(row.get("opted_out")):
            gw.ledger.note_node(node, {"opted_out": opted_out})
        if signal.kind is Kind.STATE_CHANGE and not signal.injected:
            return _with_state(gw, signal, row, instance)
    return signal


def _with_state(gw: Gateways, signal: Signal, row: Row, instance: Instance) -> Signal:
    """What EC2 says of the instance now goes before what an old event says of it."""
    contradicts = instance.state in STANDING and signal.code not in STANDING
    if contradicts and signal.time is not None and gw.clock.now() - signal.time < SETTLES_SECONDS:
        raise TransientError(f"EC2 still calls {instance.node_id} {instance.state}; asked again soon")
    more: dict[str, object] = {"state_now": instance.state}
    if instance.state_reason:
        more |= {"state_reason": instance.state_reason, "below_size": _below_size(gw, row)}
    return dataclasses.replace(signal, evidence={**signal.evidence, **more})


def _below_size(gw: Gateways, row: Row) -> bool:
    """Without this node its group has fewer than it should have. A node of no group counts for none."""
    name = str(row.get("group", ""))
    if name not in gw.cluster.node_groups:
        return False
    declared = gw.cluster.node_groups[name].size
    fleet = gw.table.get(*KEY) or {}
    return wanted.below_size(gw.ledger.nodes(), name, declared, fleet, row["node_id"])
