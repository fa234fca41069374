"""isolate, lost and readmit: no new work on nodes, and work again.

Read, write, read again: what is answered is what Slurm shows after the deed. A node that somebody else keeps
out is not written to. Reason, user and time of our own isolation are noted in the node's comment, and readmit
takes back that isolation only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planaria.slurm import jobs, marks, nodes, reasons
from planaria.slurm.alone import NODES, alone
from planaria.slurm.nodes import Node
from planaria.slurm.programs import Slurm, SlurmError

ANSWER_SECONDS = 3.0
LOOK_SECONDS = 0.2

HELD_BY_SLURM = frozenset({"jobholdmaxrequeue", "launch_failed_requeued_held"})
"""Why a job is held that nobody has put on hold, by squeue(1), JOB REASON CODES."""

OTHER = "UNKNOWN: another command that writes to nodes is at work"

NOTED = ("reason", "by", "at")
"""Of the mark of a node: what isolation writes there."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A node and the reason of an isolation, `planaria:<incident>`."""

    name: str
    reason: str


def isolate(slurm: Slurm, entries: Sequence[Entry]) -> dict[str, str]:
    """name -> ISOLATED | FOREIGN: <reason> | UNKNOWN: <reason>. What runs there goes on."""
    with alone(slurm, NODES) as mine:
        return isolate_alone(slurm, entries) if mine else {entry.name: OTHER for entry in entries}


def lost(slurm: Slurm, entries: Sequence[Entry]) -> dict[str, str]:
    """As isolate, and what runs there ends at once: drained first and then set down.

    Never down alone: with ReturnToService=2 Slurm takes such a node back by itself.
    """
    with alone(slurm, NODES) as mine:
        return _isolate(slurm, entries, True) if mine else {entry.name: OTHER for entry in entries}


def isolate_alone(slurm: Slurm, entries: Sequence[Entry]) -> dict[str, str]:
    """As isolate, for a caller that has the lock of the nodes."""
    return _isolate(slurm, entries, lost=False)


def readmit(slurm: Slurm, entries: Sequence[Entry]) -> dict[str, str]:
    """name -> READMITTED | FOREIGN: <reason> | UNKNOWN: <reason>."""
    with alone(slurm, NODES) as mine:
        return _readmit(slurm, entries) if mine else {entry.name: OTHER for entry in entries}


def _readmit(slurm: Slurm, entries: Sequence[Entry]) -> dict[str, str]:
    wanted = {entry.name: entry.reason for entry in entries}
    before = nodes.read(slurm, wanted)
    words = {name: _readmittable(name, before.get(name), reason) for name, reason in wanted.items()}
    chosen = [name for name, word in words.items() if not word]
    failed = _each(slurm, [name for name in chosen if before[name].kept_out], "State=RESUME")
    after = _responding(slurm, [name for name in chosen if name not in failed])
    after |= nodes.read(slurm, failed)
    for name in chosen:
        words[name] = _readmitted(name, after.get(name), failed.get(name, ""))
        if words[name] == "READMITTED":
            _note(slurm, after[name], {})
    if failed.keys() != set(chosen):
        _release_jobs(slurm)
    return words


def _release_jobs(slurm: Slurm) -> None:
    """Jobs that Slurm itself has put on hold, since they could not be launched or were requeued too often:
    what kept them from running may have been one of these nodes. Slurm holds them again if it was not."""
    for job in jobs.every(slurm):
        reason = job.head.reason.replace(" ", "_").casefold()
        if job.state == "PENDING" and job.head.held and reason in HELD_BY_SLURM:
            slurm.ask("scontrol", "release", job.target)


def _responding(slurm: Slurm, names: Sequence[str]) -> dict[str, Node]:
    """The nodes once they have answered slurmctld, which asks them anew after a resume, or after a moment."""
    until = slurm.now() + ANSWER_SECONDS
    while True:
        found = nodes.read(slurm, names)
        silent = [name for name, node in found.items() if "NOT_RESPONDING" in node.words.flags]
        if not silent or slurm.now() >= until:
            return found
        slurm.sleep(LOOK_SECONDS)


def _isolate(slurm: Slurm, entries: Sequence[Entry], lost: bool) -> dict[str, str]:
    wanted = {entry.name: entry.reason for entry in entries}
    before = nodes.read(slurm, wanted)
    words = {name: _untouchable(name, before.get(name)) for name in wanted}
    chosen = [name for name, word in words.items() if not word]
    said: dict[str, str] = {}
    for reason in dict.fromkeys(wanted[name] for name in chosen):
        same = [name for name in chosen if wanted[name] == reason]
        drain = [name for name in same if not (before[name].words.held and before[name].reason == reason)]
        said |= _each(slurm, drain, "State=DRAIN", f"Reason={reason}")
        if lost:
            # A word that is not known here may mean anything: such a node is drained and no more.
            said |= {name: _unclear(before[name]) for name in same if not before[name].words.clear}
            down = [name for name in same if name not in said and not before[name].words.down]
            said |= _each(slurm, down, "State=DOWN", f"Reason={reason}")
    after = nodes.read(slurm, chosen)
    for name in chosen:
        words[name] = _isolated(name, after.get(name), wanted[name], lost, said.get(name, ""))
        if words[name] == "ISOLATED":
            node = after[name]
            noted = {"reason": node.reason, "by": node.reason_by, "at": str(node.reason_at)}
            _note(slurm, node, noted)
    return words


def _untouchable(name: str, node: Node | None) -> str:
    """Why this node is not written to; "" when it may be."""
    if node is None:
        return f"UNKNOWN: no node {name}"
    return f"FOREIGN: {node.foreign}" if node.foreign else ""


def _unclear(node: Node) -> str:
    return f"{node.name} is {node.words.plain}, which is not known here, so it is drained and not set down"


def _isolated(name: str, node: Node | None, reason: str, lost: bool, said: str) -> str:
    if node is None:
        return f"UNKNOWN: no node {name}"
    if node.reason != reason and node.foreign:
        return f"FOREIGN: {node.foreign}"
    if not node.words.held or node.reason != reason or (lost and not node.words.down):
        return f"UNKNOWN: {said or f'{name} is {node.words.plain} after the order, reason {node.reason!r}'}"
    return "ISOLATED"


def _readmittable(name: str, node: Node | None, reason: str) -> str:
    """Why this node is not resumed; "" when it may be, or needs not be."""
    if node is None:
        return f"UNKNOWN: no node {name}"
    if not node.kept_out:
        return ""
    if node.foreign:
        return f"FOREIGN: {node.foreign}"
    mark = node.mark
    if reasons.is_ours(node.reason):
        if node.reason != reason:
            return f"FOREIGN: {node.reason}"
        same = mark.get("reason") != reason or _written(mark) == (node.reason_by, node.reason_at)
        return "" if same else f"FOREIGN: {node.reason}, set again by {node.reason_by or 'somebody'}"
    # Slurm has written a reason of its own since, and nobody else has: what we isolated is still ours.
    return "" if mark.get("reason") == reason else f"FOREIGN: {node.reason or 'down'}"


def _written(mark: Mapping[str, str]) -> tuple[str, int]:
    at = mark.get("at", "")
    return mark.get("by", ""), int(at) if at.isdigit() else 0


def _readmitted(name: str, node: Node | None, said: str) -> str:
    if node is None:
        return f"UNKNOWN: no node {name}"
    if "NOT_RESPONDING" in node.words.flags and not node.foreign:
        return f"UNKNOWN: {name} does not answer slurmctld yet"
    if not node.kept_out:
        return "READMITTED"
    if node.foreign:
        return f"FOREIGN: {node.foreign}"
    return f"UNKNOWN: {said or f'{name} is {node.words.plain} after the order'}"


def _note(slurm: Slurm, node: Node, noted: Mapping[str, str]) -> None:
    """Keep in the node's comment what we wrote; everything else in it stays."""
    mark = {name: value for name, value in node.mark.items() if name not in NOTED}
    comment = marks.write(node.comment, {**mark, **noted})
    if comment != node.comment:
        slurm.ask("scontrol", "update", f"NodeName={node.name}", f"Comment={comment}")


def _each(slurm: Slurm, names: Sequence[str], *changes: str) -> dict[str, str]:
    """Write to all of them at once; should that fail, to each, since one node must not keep others from being
    isolated. -> name -> what Slurm said against it."""
    if not names:
        return {}
    try:
        slurm.ask("scontrol", "update", f"NodeName={','.join(names)}", *changes)
        return {}
    except SlurmError as error:
        if len(names) == 1:
            return {names[0]: error.said or str(error)}
    return {name: why for each in names for name, why in _each(slurm, [each], *changes).items()}
