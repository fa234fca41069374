"""What a rebalance recommendation leads to, by policy.rebalance: checkpoint, move or ignore.

It says that EC2 is likely to take a spot instance soon; often nothing follows, and the replacement may hear
the same. So a node is moved only when it is old enough and its scheduler name was not moved too often;
otherwise its job saves a checkpoint. EC2 user guide: EC2 instance rebalance recommendations.

    moves   on the node's row: when this scheduler name got a new instance for it (epoch seconds)
"""

from planaria.core.fault import Action, Decision, Fault
from planaria.core.node import NodeView
from planaria.core.policy import Policy, Rebalance
from planaria.core.signal import Kind
from planaria.core.table import Row
from planaria.core.wording import span

HINT, LIMIT, MOVE = "rebalance-hint", "rebalance-limit", "rebalance-move"
"""Rules: the catalogue's; a move that is one too many; a move."""

MOVES = 8


def advised(decision: Decision, node: NodeView, policy: Policy, at: float) -> Decision:
    """decision: the catalogue's, or a person's own answer, which stands. at: when EC2 said so."""
    if decision.rule != HINT:
        return decision
    said = decision.reason
    if policy.rebalance is Rebalance.IGNORE:
        return Decision(Action.MONITOR, f"{said}; policy.rebalance is ignore", HINT, decision.sources)
    if policy.rebalance is Rebalance.CHECKPOINT:
        return decision
    if why := _stays(node, policy, at):
        return Decision(Action.MONITOR, f"{said}; it is not moved: {why}", LIMIT, decision.sources)
    reason = (
        f"EC2 is likely to take {node.name or node.node_id} soon, so its job saves and it is moved to "
        "another offering before that (policy.rebalance is move)"
    )
    return Decision(Action.DRAIN, reason, MOVE, decision.sources)


def _stays(node: NodeView, policy: Policy, at: float) -> str:
    """Why a node is not moved: moves must not end in a loop of launches."""
    name = node.name or node.node_id
    if node.launched_at is None:
        return f"how old {name} is is not known"
    age, grace = at - node.launched_at, policy.rebalance_grace_seconds
    if age < grace:
        return f"{name} is {span(max(0.0, age))} old, and none is moved before {span(grace)}"
    rounds = sum(moved > at - policy.replacements_seconds for moved in node.moves)
    if rounds < policy.rebalance_rounds:
        return ""
    times = "once" if rounds == 1 else f"{rounds} times"
    return f"{name} was moved {times} within {span(policy.replacements_seconds)}"


def saves(fault: Fault, rule: str, policy: Policy) -> bool:
    """Its job is to save a checkpoint on the advice; a node that is moved works on for a while too."""
    heeded = rule in (HINT, LIMIT, MOVE) and policy.rebalance is not Rebalance.IGNORE
    return fault.kind == Kind.REBALANCE and heeded


def moves(row: Row, now: float) -> list[float]:
    """`moves` of the replacement's row; `row`: that of the node which it replaces."""
    before = [float(at) for at in row.get("moves", [])]
    moved = (row.get("fault") or {}).get("kind") == Kind.REBALANCE
    return [*before, now][-MOVES:] if moved else before
