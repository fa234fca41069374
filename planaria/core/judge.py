"""Signal + what is known of its node -> the one outcome that the event has.

The outcomes are tried in the order of `Outcome`; the first that fits is the answer (docs/outcomes.md).
Pure: whoever calls looks up the node's row and whether the event is known, and does what is judged.
"""

from dataclasses import dataclass
from enum import StrEnum

from planaria.core.classify import classify
from planaria.core.decision import decide
from planaria.core.fault import Action, Decision, Fault
from planaria.core.node import DESTRUCTIVE, NodeView
from planaria.core.policy import Mode, Policy
from planaria.core.signal import Kind, Signal


class Outcome(StrEnum):
    """How an event ends, in the order in which they are tried."""

    INVALID = "INVALID"
    NOT_MANAGED = "NOT_MANAGED"
    DUPLICATE = "DUPLICATE"
    COVERED = "COVERED"
    STALE = "STALE"
    JOINED = "JOINED"
    OBSERVED = "OBSERVED"
    HELD = "HELD"
    OPENED = "OPENED"


@dataclass(frozen=True, slots=True)
class Judgement:
    """action: None where nothing was weighed (INVALID, NOT_MANAGED, DUPLICATE, COVERED, STALE).
    raises: JOINED, and stronger than the active session: a superseding session is to be opened.
    cancels: JOINED, and the source takes back what opened the active session.
    job_id: the job that this is about; OPENED with it opens the job's resume and touches no node.
    tells_gone: the event proves that the instance is terminated; note it on the node's row.
    mode: observe for replayed events and observing clusters: record, do not act.
    """

    outcome: Outcome
    action: Action | None
    reason: str
    rule: str
    fault: Fault | None = None
    raises: bool = False
    cancels: bool = False
    job_id: str | None = None
    tells_gone: bool = False
    mode: Mode = Mode.ACT


OVERDUE_SECONDS = 600.0
"""A two-minute warning whose time passed this long ago did not come true."""

REBOOT_SETTLES = 1 / 30
"""Share of the boot time-out in which a fault after a reboot is still an echo of the one before it."""

_ENDING = frozenset({"stopping", "stopped", "shutting-down", "terminated"})
_TERMINAL = frozenset({"shutting-down", "terminated"})
_WARNINGS = frozenset({Kind.SPOT_INTERRUPTION, Kind.CAPACITY_END})
_ANNOUNCED = frozenset({Kind.SPOT_INTERRUPTION, Kind.CAPACITY_END, Kind.SCHEDULED_EVENT, Kind.LIFECYCLE})
_REBOOT_SHOWS_IN = frozenset({"StatusCheckFailed", "StatusCheckFailed_Instance"})
# A healthy report of these takes back one code, not everything that its source ever said.
_ONE_CODE = frozenset({"scheduled_event", "status_check", "health_issue"})


def judge(
    signal: Signal, node: NodeView | None, *, known: bool, policy: Policy, now: float, hold: str = ""
) -> Judgement:
    """known: this dedupe key already has an outcome. now: epoch seconds. hold: why nothing may be opened
    on this node at present (maintenance, approval); the breaker is asked by the caller, after OPENED.
    """
    mode = Mode.OBSERVE if signal.replay or policy.mode is Mode.OBSERVE else Mode.ACT
    if signal.invalid:
        return Judgement(Outcome.INVALID, None, signal.invalid, "invalid", mode=mode)
    if signal.node_id is not None and (node is None or not node.managed):
        reason = f"{signal.node_id} is no instance of this cluster"
        return Judgement(Outcome.NOT_MANAGED, None, reason, "not-managed", mode=mode)
    if known:
        return Judgement(Outcome.DUPLICATE, None, "this event already has an outcome", "duplicate", mode=mode)
    gone = signal.kind is Kind.STATE_CHANGE and signal.code == "terminated" and signal.node_id is not None
    if node is not None and signal.node_id is not None:
        mine = node.active and node.claim_id != "" and node.claim_id in (signal.dedupe_key, signal.event_id)
        if not mine:
            if reason := _covered(signal, node, policy):
                return Judgement(Outcome.COVERED, None, reason, "own-act", tells_gone=gone, mode=mode)
            if reason := _stale(signal, node, policy, now):
                return Judgement(Outcome.STALE, None, reason, "stale", tells_gone=gone, mode=mode)
        fault = classify(signal, node, policy)
        decision = decide(fault, node, policy)
        if mine:
            action = _action(node) or decision.action
            reason = f"claimed by this very event before; {decision.reason}"
            rule, job = decision.rule, fault.job_id
            return Judgement(Outcome.OPENED, action, reason, rule, fault, False, False, job, gone, mode)
        if node.active and signal.kind is not Kind.UNKNOWN:
            return _joined(signal, node, fault, decision, policy, gone, mode)
    else:
        fault = classify(signal, None, policy)
        decision = decide(fault, None, policy)
    outcome, action, reason = Outcome.OPENED, decision.action, decision.reason
    if signal.node_id is None:
        outcome, action, reason = Outcome.OBSERVED, Action.MONITOR, _without_node(decision)
    elif action is Action.MONITOR and not (fault.kind == "job" and fault.code == "exit"):
        outcome = Outcome.OBSERVED
    elif hold:
        outcome, reason = Outcome.HELD, hold
    return Judgement(outcome, action, reason, decision.rule, fault, False, False, fault.job_id, gone, mode)


def _without_node(decision: Decision) -> str:
    if decision.action is Action.MONITOR:
        return decision.reason
    return f"{decision.reason}; no instance of this cluster is named or found"


def _covered(signal: Signal, node: NodeView, policy: Policy) -> str:
    """Which act of ours this event is an effect of; "" when it is none."""
    if signal.kind is Kind.STATE_CHANGE and signal.code in _ENDING:
        if node.phase == "RETIRED":
            return "our own session retired this node"
        if "terminate" in node.acts and not _before(signal, node.acts["terminate"]):
            return "our own termination of the instance"
        if signal.code not in _TERMINAL and "stop" in node.acts and not _before(signal, node.acts["stop"]):
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


def _stale(signal: Signal, node: NodeView, policy: Policy, now: float) -> str:
    """Why this event no longer says anything about the node; "" when it does."""
    if node.over:
        return "the node is gone"
    if signal.kind is Kind.STATE_CHANGE and signal.code in _TERMINAL:
        return ""
    agent = signal.evidence.get("kind") if signal.kind is Kind.AGENT else None
    deadline = signal.evidence.get("deadline")
    warning = signal.kind in _WARNINGS or agent == "spot_notice"
    if warning and deadline is not None and now > deadline + OVERDUE_SECONDS:
        return "the end it announced is long past and the node is still there"
    if agent in ("job_exit", "job_step"):
        return ""
    last = node.act_at(*DESTRUCTIVE)
    ended = node.ended_at
    if signal.kind in _ANNOUNCED or agent == "spot_notice" or signal.detail_type == "AWS Health Event":
        # Nothing that AWS announces is undone by a reboot: only a session that was cancelled answers it.
        last = node.act_at("terminate")
        ended = node.ended_at if node.phase == "CANCELLED" else None
    if last is not None and _before(signal, last):
        return "older than our last act on the node"
    # What came after the session's own reboot was not cured by it, even if it is told of late.
    fresh = _after_reboot(signal, node, policy)
    if ended is not None and not node.active and not fresh and _before(signal, ended):
        return "older than the end of the node's last session"
    return ""


def _before(signal: Signal, moment: float) -> bool:
    """AWS cuts times to whole seconds, so such a time means any moment of its second."""
    if signal.time is None:
        return False
    return (signal.time if signal.time % 1 else signal.time + 0.999) < moment


def _joined(
    signal: Signal, node: NodeView, fault: Fault, decision: Decision, policy: Policy, gone: bool, mode: Mode
) -> Judgement:
    raises = cancels = False
    action, reason, rule = decision.action, decision.reason, decision.rule
    active = _action(node) or Action.MONITOR
    if signal.healthy:
        cancels = _takes_back(signal, node, fault)
        effect = "takes back" if cancels else "does not concern"
        reason = f"{reason}; it {effect} what opened the active session"
    elif action.strength > active.strength:
        raises = True
        reason = f"{reason}; stronger than the active session's {active}"
    elif _survived_reboot(signal, node, active, action, policy):
        raises, action, rule = True, Action.REPLACE, "reboot-did-not-cure"
        reason = f"{reason}; it came back after the reboot of the active session"
    else:
        reason = f"{reason}; evidence for the active session's {active}"
    return Judgement(Outcome.JOINED, action, reason, rule, fault, raises, cancels, fault.job_id, gone, mode)


def _takes_back(signal: Signal, node: NodeView, fault: Fault) -> bool:
    """A healthy report cancels only what its own source opened, only after that was seen, and only until a
    destructive act is recorded."""
    if fault.kind != node.fault_kind or fault.kind == "node_ready" or node.destroyed_at() is not None:
        return False
    if fault.kind in _ONE_CODE and _bare(fault.code) != _bare(node.fault_code):
        return False
    seen = node.detected_at if node.detected_at is not None else node.opened_at
    return seen is None or not _before(signal, seen)


def _action(node: NodeView) -> Action | None:
    return Action(node.action) if node.action is not None and node.action in Action.__members__ else None


def _bare(code: str) -> str:
    return code.partition("/")[0]


def _survived_reboot(signal: Signal, node: NodeView, active: Action, action: Action, policy: Policy) -> bool:
    both = active in (Action.RESET, Action.REBOOT) and action in (Action.RESET, Action.REBOOT)
    return both and _after_reboot(signal, node, policy)


def _after_reboot(signal: Signal, node: NodeView, policy: Policy) -> bool:
    """Seen after the newest session's reboot or reset, and late enough to be no echo of what it cured."""
    at = node.destroyed_at()
    settled = policy.boot_timeout_seconds * REBOOT_SETTLES
    return at is not None and signal.time is not None and signal.time > at + settled
