"""Why nothing may be opened on a node at present, though its fault asks for it: HELD, and judged anew later.

In this order: an isolated node that was left to a person, the node's opt-out tag, a maintenance window, too
many new instances under one scheduler name. The breaker is asked later, with the claim. docs/runbooks/held.md
says the same for people.
"""

from collections.abc import Iterable

from planaria.core.fault import Action, Fault
from planaria.core.maintenance import under_way
from planaria.core.node import NodeView
from planaria.core.policy import Policy
from planaria.core.tags import OPT_OUT
from planaria.core.wording import span

ENDED_BY_AWS = frozenset({"spot_interruption", "capacity_end", "lifecycle"})
"""Faults after which AWS takes the node whatever anyone decides: to wait only loses the checkpoint."""

_GONE = frozenset({"shutting-down", "terminated"})


def hold(fault: Fault, action: Action, node: NodeView, policy: Policy, now: float) -> str:
    """The reason in words, "" when nothing is in the way. A job's own fault touches no node."""
    if action is Action.MONITOR or fault.job_id is not None:
        return ""
    if node.phase == "ESCALATED" and (left := left_to_a_person(fault, action, node)):
        return left
    name = node.name or node.node_id
    if node.opted_out:
        return f"{name} is left alone: it has the tag {OPT_OUT}; without the tag it is healed"
    if not _cannot_wait(fault, node, policy, now) and (why := under_way(policy.maintenance, now, node.group)):
        return f"{why}: nothing is opened on {name} by itself"
    return _lineage(fault, action, node, policy, now)


def left_to_a_person(fault: Fault, action: Action, node: NodeView) -> str:
    """Why this fault of an isolated node is no news, "" when it is: the node's last incident ended ESCALATED
    and knew of faults of this kind, and this one asks for no more. What is held for it is not judged anew."""
    if node.phase != "ESCALATED" or not node.isolated or _ends(fault, node):
        return ""
    if node.action is None or node.action not in Action.__members__:
        return ""
    if action.strength > Action(node.action).strength:
        return ""
    if fault.kind != node.fault_kind and not _known(fault.kind, node):
        return ""
    return (
        f"{node.name or node.node_id} is isolated, and its last incident ended ESCALATED: a person was told; "
        f"planaria replace {node.node_id}"
    )


def ends_anyway(kind: str, gone: bool) -> bool:
    """Nobody's decision keeps this node: AWS has ended it or is about to."""
    return gone or kind in ENDED_BY_AWS


def _cannot_wait(fault: Fault, node: NodeView, policy: Policy, now: float) -> bool:
    if _ends(fault, node):
        return True
    # An end that AWS has announced for a time at which people are still at work here.
    ends = [end for window in policy.maintenance if (end := window.until(now, node.group)) is not None]
    return fault.deadline is not None and bool(ends) and fault.deadline < max(ends)


def _ends(fault: Fault, node: NodeView) -> bool:
    gone = node.gone or (fault.kind == "state_change" and fault.code.partition("/")[0] in _GONE)
    return ends_anyway(fault.kind, gone)


def _known(kind: str, node: NodeView) -> bool:
    """A fault of this kind was seen before the end of the node's last session. Of two kinds that come in turn
    each is else news after the other."""
    ended = node.ended_at or 0.0
    for subject in node.subjects.values():
        if subject.get("kind") == kind and float(subject.get("since") or ended + 1) <= ended:
            return True
    seen = (entry.get("minutes") or () for entry in node.recent.values() if entry.get("kind") == kind)
    return any((minute + 1) * 60.0 <= ended for minutes in seen for minute in minutes)


def _lineage(fault: Fault, action: Action, node: NodeView, policy: Policy, now: float) -> str:
    """A fault that comes back with every new instance is not cured by another one. What AWS takes back, spot
    above all, is nobody's fault and does not end the replacing."""
    if action is not Action.REPLACE or fault.kind in ENDED_BY_AWS:
        return ""
    return too_many(node.name or node.node_id, node.replacements, policy, now)


def too_many(name: str, replacements: Iterable[float], policy: Policy, now: float) -> str:
    """Why a scheduler name gets no further instance by itself, "" when it does. replacements: when it got
    new ones."""
    recent = sum(now - policy.replacements_seconds < at <= now for at in replacements)
    if recent < policy.max_replacements:
        return ""
    within = span(policy.replacements_seconds)
    return f"{name} has got {recent} new instances within {within}: it is not the hardware; a person looks"
