"""Which nodes an event about a capacity reservation affects."""

from collections.abc import Iterable
from dataclasses import replace

from planaria.core.node import NodeView
from planaria.core.signal import Kind, Signal


def affected(signal: Signal, nodes: Iterable[NodeView]) -> list[Signal]:
    """The signal once per node of the reservation that it names; itself where that is not its matter.

    Each copy has its own dedupe key. A reservation without nodes of ours leaves the one signal without a
    node.
    """
    if signal.kind is not Kind.CAPACITY_END or signal.node_id is not None or signal.invalid:
        return [signal]
    reservation = signal.evidence.get("reservation")
    members = sorted(n.node_id for n in nodes if reservation and n.reservation == reservation and n.managed)
    return [
        replace(signal, node_id=node_id, dedupe_key=f"{signal.dedupe_key}|{node_id}") for node_id in members
    ] or [signal]
