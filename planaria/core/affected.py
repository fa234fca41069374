"""Which nodes an event about a capacity reservation affects."""

from collections.abc import Iterable
from dataclasses import replace

from planaria.core.node import NodeView
from planaria.core.signal import Kind, Signal


def affected(signal: Signal, nodes: Iterable[NodeView]) -> list[Signal]:
    """The signal once per node of the reservation that it names; itself where that is not its matter.

    Each copy has its own dedupe key. A reservation without nodes of ours leaves the one signal without a
    node. Nodes that are over count no more.
    """
    if signal.kind is not Kind.CAPACITY_END or signal.node_id is not None or signal.invalid:
        return [signal]
    reservation = signal.evidence.get("reservation")
    members = sorted(
        node.node_id
        for node in nodes
        if reservation and node.reservation == reservation and node.managed and not node.over
    )
    return [
        replace(signal, node_id=node_id, dedupe_key=f"{signal.dedupe_key}|{node_id}") for node_id in members
    ] or [signal]
