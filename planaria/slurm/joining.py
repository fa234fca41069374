"""join: an instance takes a scheduler name, isolated with our reason.

The first choice is the failed node's name: its address is updated and slurm.conf stays as it is, so that all
ranks of any job stay where they are. A new name must be one that slurm.conf knows (State=FUTURE or CLOUD).
"""

from planaria.slurm import isolation, jobs, marks, nodes
from planaria.slurm.addresses import set_address
from planaria.slurm.alone import NODES, alone
from planaria.slurm.nodes import Node
from planaria.slurm.programs import Slurm


def join(slurm: Slurm, name: str, node_id: str, address: str, reason: str) -> dict[str, str]:
    """{name: JOINED | BUSY: <reason>}; asked again for the same instance it isolates nothing anew."""
    with alone(slurm, NODES) as mine:
        if not mine:
            return {name: "BUSY: another command that writes to nodes is at work"}
        return _join(slurm, name, node_id, address, reason)


def _join(slurm: Slurm, name: str, node_id: str, address: str, reason: str) -> dict[str, str]:
    found = nodes.every(slurm)
    node = found.get(name) or nodes.read(slurm, (name,)).get(name)
    holder = next((each for each in found.values() if each.mark.get("node") == node_id), None)
    if holder is not None and holder.name != name:
        return {name: f"BUSY: {node_id} is {holder.name} already"}
    if node is None:
        return {name: f"BUSY: Slurm has no node {name}; add it to slurm.conf (State=FUTURE) and reconfigure"}
    again = node.mark.get("node") == node_id
    if not again and (running := jobs.live_on(jobs.every(slurm), (name,))[name]):
        old = node.mark.get("node") or "the instance before"
        return {name: f"BUSY: ranks of {', '.join(running)} still run on {old}"}
    if not again:
        return {name: _take(slurm, node, node_id, address, reason)}
    if node.words.held and not node.foreign and node.reason != reason:
        return {name: _word(isolation.isolate_alone(slurm, [isolation.Entry(name, reason)])[name])}
    _place(slurm, node, node_id, address)
    return {name: "JOINED"}


def _take(slurm: Slurm, node: Node, node_id: str, address: str, reason: str) -> str:
    """Isolated first: the name must take no work before its instance has been looked at."""
    word = _word(isolation.isolate_alone(slurm, [isolation.Entry(node.name, reason)])[node.name])
    if word != "JOINED":
        return word
    present = nodes.read(slurm, (node.name,)).get(node.name, node)
    _place(slurm, present, node_id, address)
    return "JOINED"


def _place(slurm: Slurm, node: Node, node_id: str, address: str) -> None:
    set_address(slurm, node, address)
    mark = {**node.mark, "node": node_id}
    if address:
        mark |= {"address": address, "before": mark.get("before", node.address)}
    comment = marks.write(node.comment, mark)
    if comment != node.comment:
        slurm.ask("scontrol", "update", f"NodeName={node.name}", f"Comment={comment}")


def _word(word: str) -> str:
    # Somebody else's isolation outlives the instance; the name changes hands all the same.
    if word == "ISOLATED" or word.startswith("FOREIGN"):
        return "JOINED"
    return f"BUSY: {word.removeprefix('UNKNOWN: ')}"
