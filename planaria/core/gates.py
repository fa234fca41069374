"""Why nothing may be opened on a node at present, though its fault asks for it: HELD, and judged anew later.

In this order: the node's opt-out tag, a maintenance window, too many new instances under one scheduler name.
The breaker is asked later, with the claim. docs/runbooks/held.md says the same for people.
"""

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
    name = node.name or node.node_id
    if node.opted_out:
        return f"{name} is left alone: it has the tag {OPT_OUT}; without the tag it is healed"
    if not _cannot_wait(fault, node, policy, now) and (why := under_way(policy.maintenance, now, node.group)):
        return f"{why}: nothing is opened on {name} by itself"
    return _lineage(fault, action, node, policy, now)


def ends_anyway(kind: str, gone: bool) -> bool:
    """Nobody's decision keeps this node: AWS has ended it or is about to."""
    return gone or kind in ENDED_BY_AWS


def _cannot_wait(fault: Fault, node: NodeView, policy: Policy, now: float) -> bool:
    gone = node.gone or (fault.kind == "state_change" and fault.code.partition("/")[0] in _GONE)
    if ends_anyway(fault.kind, gone):
        return True
    # An end that AWS has announced for a time at which people are still at work here.
    ends = [end for window in policy.maintenance if (end := window.until(now, node.group)) is not None]
    return fault.deadline is not None and bool(ends) and fault.deadline < max(ends)


def _lineage(fault: Fault, action: Action, node: NodeView, policy: Policy, now: float) -> str:
    """A fault that comes back with every new instance is not cured by another one. What AWS takes back, spot
    above all, is nobody's fault and does not end the replacing."""
    if action is not Action.REPLACE or fault.kind in ENDED_BY_AWS:
        return ""
    recent = [at for at in node.replacements if at > now - policy.replacements_seconds]
    if len(recent) < policy.max_replacements:
        return ""
    return (
        f"{node.name or node.node_id} has got {len(recent)} new instances within "
        f"{span(policy.replacements_seconds)}: it is not the hardware; a person looks"
    )
