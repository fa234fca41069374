"""Signal + what is known of its node -> the one outcome that the event has.

The outcomes are tried in the order of `Outcome`; the first that fits is the answer (docs/outcomes.md).
Pure: whoever calls looks up the node's row, notes in it what is to be remembered of the signal (`memory_of`),
looks up whether the event is known, and does what is judged.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from planaria.core import gates, history, planned, staleness
from planaria.core.classify import classify
from planaria.core.decision import decide, stands
from planaria.core.fault import Action, Decision, Fault
from planaria.core.node import NodeView
from planaria.core.planned import Plan
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
    sources: where the rule comes from.
    plan: of an end whose time has not come: kept for later (HELD, JOINED), or drained early (OPENED).
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
    sources: str = ""
    plan: Plan | None = None


def judge(
    signal: Signal,
    node: NodeView | None,
    *,
    known: bool,
    policy: Policy,
    now: float,
    fault: Fault | None = None,
) -> Judgement:
    """known: this dedupe key already has an outcome. now: epoch seconds. fault: what the signal means, where
    the caller has asked `classify` already. The breaker is asked by the caller, after OPENED."""
    judgement = _judge(signal, node, known, policy, now, fault)
    mode = Mode.OBSERVE if signal.replay else policy.mode
    tells = signal.kind is Kind.STATE_CHANGE and signal.code == "terminated" and signal.node_id is not None
    tells = tells and judgement.outcome not in (Outcome.INVALID, Outcome.NOT_MANAGED, Outcome.DUPLICATE)
    return replace(judgement, mode=mode, tells_gone=tells) if tells or mode is not Mode.ACT else judgement


def memory_of(signal: Signal, node: NodeView, fault: Fault, now: float) -> history.Note | None:
    """What the node's row should remember of this signal, before it is judged; None if it is nothing new."""
    if signal.invalid or signal.replay or not node.managed or signal.evidence.get("repeats"):
        return None
    return history.remember(node, fault, seen_at(signal, now), signal.healthy)


def nothing_new(signal: Signal, node: NodeView, fault: Fault, now: float) -> bool:
    """The node's row knows this fault of this minute already."""
    return not signal.healthy and history.concerns(fault) and history.knows(node, fault, seen_at(signal, now))


def seen_at(signal: Signal, now: float) -> float:
    """Epoch seconds at which the source saw it, as well as is known."""
    return signal.time if signal.time is not None else now


def _judge(
    signal: Signal, node: NodeView | None, known: bool, policy: Policy, now: float, fault: Fault | None
) -> Judgement:
    if signal.invalid:
        return Judgement(Outcome.INVALID, None, signal.invalid, "invalid")
    if signal.node_id is not None and (node is None or not node.managed):
        reason = f"{signal.node_id} is no instance of this cluster"
        return Judgement(Outcome.NOT_MANAGED, None, reason, "not-managed")
    if known:
        return Judgement(Outcome.DUPLICATE, None, "this event already has an outcome", "duplicate")
    if signal.node_id is None or node is None:
        fault = fault or classify(signal, None, policy)
        decision = decide(fault, None, policy)
        return _weighed(Outcome.OBSERVED, decision, fault, _without_node(decision), Action.MONITOR)
    # A replayed event claims nothing, so it is never the one that did.
    claims = node.active and node.claim_id != "" and not signal.replay
    mine = claims and node.claim_id in (signal.dedupe_key, signal.event_id)
    if not mine and (reason := staleness.covered(signal, node, policy)):
        return Judgement(Outcome.COVERED, None, reason, "own-act")
    fault = fault or classify(signal, node, policy)
    if not mine and (reason := staleness.stale(signal, node, fault, policy, now)):
        return Judgement(Outcome.STALE, None, reason, "stale", fault)
    decision = decide(fault, node, policy, seen_at(signal, now))
    if mine:
        reason = f"claimed by this very event before; {decision.reason}"
        return _weighed(Outcome.OPENED, decision, fault, reason, _action(node))
    plan = None
    if decision.action is Action.DRAIN:
        plan = planned.plan_of(signal, fault, node, policy, now)
    if node.active and signal.kind is not Kind.UNKNOWN:
        return _joined(signal, node, fault, decision, policy, plan)
    if decision.action is Action.MONITOR and not (fault.kind == "job" and fault.code == "exit"):
        return _weighed(Outcome.OBSERVED, decision, fault, _in_words(signal, node, decision))
    if planned.dropped(signal, node):
        reason = "its plan was taken back, or answered, before it was told of again"
        return Judgement(Outcome.STALE, None, reason, "stale", fault)
    if plan is not None and plan.holds:
        return replace(_weighed(Outcome.HELD, decision, fault, plan.reason), plan=plan)
    if hold := gates.hold(fault, decision.action, node, policy, now):
        return _weighed(Outcome.HELD, decision, fault, hold)
    if plan is not None:
        reason = f"{decision.reason}; {plan.reason}"
        return replace(_weighed(Outcome.OPENED, decision, fault, reason), plan=plan)
    return _weighed(Outcome.OPENED, decision, fault)


def _weighed(
    outcome: Outcome,
    decision: Decision,
    fault: Fault,
    reason: str = "",
    action: Action | None = None,
    raises: bool = False,
    cancels: bool = False,
) -> Judgement:
    return Judgement(
        outcome,
        action or decision.action,
        reason or decision.reason,
        decision.rule,
        fault,
        raises,
        cancels,
        fault.job_id,
        sources=decision.sources,
    )


def _without_node(decision: Decision) -> str:
    if decision.action is Action.MONITOR:
        return decision.reason
    return f"{decision.reason}; no instance of this cluster is named or found"


def _in_words(signal: Signal, node: NodeView, decision: Decision) -> str:
    """What a healthy report takes back is said with it."""
    return decision.reason + planned.off(signal, node) if signal.healthy and node.planned else decision.reason


def _joined(
    signal: Signal, node: NodeView, fault: Fault, decision: Decision, policy: Policy, plan: Plan | None
) -> Judgement:
    active, said = _action(node) or Action.MONITOR, _in_words(signal, node, decision)
    if signal.healthy:
        kept = _takes_back(signal, node, fault, policy)
        reason = f"{said}; {kept or 'it takes back what opened the active session'}"
        return _weighed(Outcome.JOINED, decision, fault, reason, cancels=not kept)
    stronger = decision.action.strength > active.strength
    if stronger and plan is not None and plan.holds:
        reason = f"{plan.reason}, and not in place of the active session's {active}"
        return replace(_weighed(Outcome.JOINED, decision, fault, reason), plan=plan)
    if stronger:
        reason = f"{said}; stronger than the active session's {active}"
        return _weighed(Outcome.JOINED, decision, fault, reason, raises=True)
    following = Action.REPLACE if active is Action.REBOOT else Action.REBOOT
    may = following.strength <= policy.escalate_to.strength
    if may and _survived(signal, node, active, decision.action, policy):
        reason = f"{said}; it came back after the {active.lower()} of the active session"
        decision = Decision(following, reason, f"{active.lower()}-did-not-cure", decision.sources)
        return _weighed(Outcome.JOINED, decision, fault, raises=True)
    return _weighed(Outcome.JOINED, decision, fault, f"{said}; evidence for the active session's {active}")


def _takes_back(signal: Signal, node: NodeView, fault: Fault, policy: Policy) -> str:
    """ "" when a healthy report cancels the active session, else why not: it cancels only what its own source
    opened, if that was seen before and not again since, only until a destructive act is recorded, and only if
    nobody else has found a reason to act on the node."""
    about = history.subject(fault.kind, fault.code)
    if fault.kind == "node_ready" or about != history.subject(node.fault_kind, node.fault_code):
        return "it does not concern what opened the active session"
    if node.destroyed_at() is not None:
        return "it comes after an act of the active session, which goes on to its end"
    last = node.subjects.get(about, {}).get("last")
    seen = max((at for at in (last, node.detected_at or node.opened_at) if at is not None), default=None)
    if signal.time is not None and seen is not None and signal.time <= seen:
        return "its source has reported the node bad since"
    other = stands(node, policy, about)
    if other is not None:
        return f"the active session goes on for {other.kind} {other.code}"
    return ""


def _action(node: NodeView) -> Action | None:
    return Action(node.action) if node.action is not None and node.action in Action.__members__ else None


def _survived(signal: Signal, node: NodeView, active: Action, action: Action, policy: Policy) -> bool:
    """Seen after the active session's own repair: one that it has gone on from does not count."""
    repairs = (Action.RESET, Action.REBOOT)
    if active not in repairs or action not in repairs:
        return False
    done = node.act_at(active.lower())
    begun = node.opened_at is None or (done is not None and done >= node.opened_at)
    return done is not None and begun and staleness.settled_after(signal, done, policy)
