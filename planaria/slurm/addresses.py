"""Where a node's instance is reached: what `join` set, and put back after Slurm has forgotten it.

`scontrol reconfigure` and a restart of slurmctld take NodeAddr and NodeHostName from slurm.conf again, while
the node's comment survives: a name that changed hands would point at the dead instance again.
"""

import re
from collections.abc import Iterable

from planaria.slurm.nodes import Node
from planaria.slurm.programs import Slurm


def set_address(slurm: Slurm, node: Node, address: str) -> None:
    if address and address != node.address:
        slurm.ask(
            "scontrol",
            "update",
            f"NodeName={node.name}",
            f"NodeAddr={address}",
            f"NodeHostname={hostname(address)}",
        )


def restore(slurm: Slurm, nodes: Iterable[Node]) -> None:
    """Only where Slurm has gone back to the address that the node had before the join, and nothing answers
    there: any other address was written by somebody, and what somebody holds is not touched."""
    for node in nodes:
        mark = node.mark
        silent = node.words.down or "NOT_RESPONDING" in node.words.flags
        if silent and not node.foreign and mark.get("before") == node.address:
            set_address(slurm, node, mark.get("address", ""))


def hostname(address: str) -> str:
    """EC2's name for a private address, `ip-10-0-0-9`; a name stays what it is."""
    if re.fullmatch(r"\d{1,3}(\.\d{1,3}){3}", address):
        return f"ip-{address.replace('.', '-')}"
    return address.partition(".")[0]
