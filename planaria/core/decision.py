"""Fault -> Decision: which action, why, and by which rule."""

from planaria.core.catalog import look_up
from planaria.core.fault import Action, Decision, Fault
from planaria.core.node import NodeView
from planaria.core.policy import Policy

WITHOUT_RESET = "single GPUs are not reset here, so the node reboots"


def decide(fault: Fault, node: NodeView | None, policy: Policy) -> Decision:
    """The catalogue's answer, within what policy allows. Total, as the catalogue is."""
    entry = look_up(fault.kind, fault.code, node.family if node is not None else "")
    if entry.action is Action.RESET and not policy.gpu_reset:
        return Decision(Action.REBOOT, f"{entry.reason}; {WITHOUT_RESET}", entry.rule)
    return Decision(entry.action, entry.reason, entry.rule)
