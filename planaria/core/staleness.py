"""Whether an event is an effect of our own acts, or too old to say anything about its node."""

from planaria.core import history
from planaria.core.decision import SETTLES
from planaria.core.fault import Fault
from planaria.core.node import DESTRUCTIVE, NodeView
from planaria.core.policy import Policy
from planaria.core.signal import Kind, Signal

OVERDUE_SECONDS = 600.0
"""A two-minute warning whose time passed this long ago did not come true."""

STANDING = frozenset({"pending", "running"})
"""States of an instance that is there or is coming."""

OLD_SECONDS = 86_400.0
"""What is a day old says nothing of the node's present: a fault that lasts is told of again by its source."""

_ENDING = frozenset({"stopping", "stopped", "shutting-down", "terminated"})
_TERMINAL = frozenset({"shutting-down", "terminated"})
_WARNINGS = frozenset({Kind.SPOT_INTERRUPTION, Kind.CAPACITY_END})
_ANNOUNCED = frozenset({Kind.SPOT_INTERRUPTION, Kind.CAPACITY_END, Kind.SCHEDULED_EVENT, Kind.LIFECYCLE})
_REBOOT_SHOWS_IN = frozenset({"StatusCheckFailed", "StatusCheckFailed_Instance"})


def covered(signal: Signal, node: NodeView, policy: Policy) -> str:
    """Which act of ours this event is an effect of; "" when it is none."""
    if signal.kind is Kind.STATE_CHANGE and signal.code in _ENDING:
        if node.phase == "RETIRED":
            return "our own session retired this node"
        if "terminate" in node.acts and not before(signal, node.acts["terminate"]):
            return "our own termination of the instance"
        if signal.code not in _TERMINAL and "stop" in node.acts and not before(signal, node.acts["stop"]):
            return "our own stop of the instance"
    elif signal.kind is Kind.LIFECYCLE and "terminate" in node.acts:
        return "our own termination of the instance"
    elif signal.kind is Kind.STATUS_CHECK and signal.code in _REBOOT_SHOWS_IN and not signal.healthy:
        reboot = node.act_at("reboot")
        if reboot is None or signal.time is None:
            return ""
        return (
            "our own reboot of the instance"
            if reboot <= signal.time <= reboot + policy.boot_timeout_seconds
            else ""
        )
    return ""


def stale(signal: Signal, node: NodeView, fault: Fault, policy: Policy, now: float) -> str:
    """Why this event no longer says anything about the node; "" when it does."""
    if node.over:
        return "the node is gone"
    if signal.kind is Kind.STATE_CHANGE and signal.code in _ENDING and not signal.healthy:
        now_is = signal.evidence.get("state_now")
        if now_is in STANDING:
            return f"EC2 says that the instance is {now_is}"
    if signal.kind is Kind.STATE_CHANGE and signal.code in _TERMINAL:
        return ""
    agent = signal.evidence.get("kind") if signal.kind is Kind.AGENT else None
    deadline = signal.evidence.get("deadline")
    warning = signal.kind in _WARNINGS or agent == "spot_notice"
    if warning and deadline is not None and now > deadline + OVERDUE_SECONDS:
        return "the end it announced is long past and the node is still there"
    if agent in ("job_exit", "job_step"):
        return ""
    well = history.well_since(node, fault)
    if well is not None and not signal.healthy and signal.time is not None and signal.time < well:
        return "its source has reported the node well since"
    announced = (
        signal.kind in _ANNOUNCED or agent == "spot_notice" or signal.detail_type == "AWS Health Event"
    )
    if not announced and signal.time is not None and not signal.healthy:
        if now - signal.time > OLD_SECONDS:
            return "it is more than a day old, and its source would tell of a fault that lasts"
        if signal.kind is Kind.AGENT and node.check_passed and _of_an_older_boot(signal, node):
            return "the node has booted since, and its check passed"
    last = node.act_at(*DESTRUCTIVE)
    ended = node.ended_at
    if announced:
        # Nothing that AWS announces is undone by a reboot: only a session that was cancelled answers it.
        last = node.act_at("terminate")
        ended = node.ended_at if node.phase == "CANCELLED" and _of_last_session(node) else None
    if last is not None and before(signal, last):
        return "older than our last act on the node"
    # What came after the session's own reboot was not cured by it, even if it is told of late.
    fresh = after_reboot(signal, node, policy)
    if ended is not None and not node.active and not fresh and before(signal, ended):
        return "older than the end of the node's last session"
    return ""


def before(signal: Signal, moment: float) -> bool:
    """AWS cuts times to whole seconds, so such a time means any moment of its second."""
    if signal.time is None:
        return False
    return (signal.time if signal.time % 1 else signal.time + 0.999) < moment


def after_reboot(signal: Signal, node: NodeView, policy: Policy) -> bool:
    """Seen after the newest session's reboot or reset, and late enough to be no echo of what it cured."""
    at = node.destroyed_at()
    return at is not None and settled_after(signal, at, policy)


def settled_after(signal: Signal, at: float, policy: Policy) -> bool:
    return signal.time is not None and signal.time > at + policy.boot_timeout_seconds * SETTLES


def _of_last_session(node: NodeView) -> bool:
    """ended_at is the end of the newest session: one that a healthy report cancelled leaves none."""
    return node.ended_at is not None and (node.opened_at is None or node.ended_at >= node.opened_at)


def _of_an_older_boot(signal: Signal, node: NodeView) -> bool:
    """Told by an agent of another boot than the one that last reported ready, and seen before that."""
    boot = signal.evidence.get("boot_id")
    other = bool(boot) and bool(node.boot_id) and boot != node.boot_id
    return other and signal.time is not None and signal.time < (node.ready_at or 0.0)
