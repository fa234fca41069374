"""Fault -> Decision: which action, why, and by which rule.

In this order: the cluster's own answer or the catalogue's; what else was seen on the node (correlate); what
is possible here; confirmation, where one observer's word is not enough; the ladder, which takes the next step
when the last one did not help; repeat offenders.
"""

import math
from dataclasses import replace

from planaria.core import history, ladder, rebalance
from planaria.core.catalog import Entry, look_up
from planaria.core.classify import condition_detector
from planaria.core.correlate import correlate, patience
from planaria.core.fault import ONE_OBSERVER, Action, Decision, Fault
from planaria.core.node import NodeView
from planaria.core.occurrences import Seen
from planaria.core.policy import Policy

WITHOUT_RESET = "single GPUs are not reset here, so the node reboots"

DOUBTS = frozenset({"boot-grace", "not-lasting", "unconfirmed"})
"""Rules of faults that are worth an act and are not acted on yet."""

SETTLES = 1 / 30
"""Share of the boot time-out in which a fault after a reboot or reset is an echo of the one before it."""

# Detectors that look through the same eyes are one observer: what NVML misreads, all that ask it misread; and
# a node that cannot be reached is silent to everybody.
_OBSERVERS = {
    **dict.fromkeys(("gpu_ecc", "gpu_remap", "gpu_missing", "nvlink", "thermal", "dcgm"), "nvml"),
    "node_health|silent": "reach",
    "node_condition|Ready": "reach",
}

# Sources of these tell of a change once and are silent while it lasts.
_STATES = frozenset({"status_check", "node_condition", "node_health"})
_DETECTOR_OF = {"status_check": "ec2_status", "node_health": "hyperpod"}

_REPAIRS = (Action.RESET, Action.REBOOT)
_TRIED = {step: action for action, step in ladder.ACTS.items()}


def decide(fault: Fault, node: NodeView | None, policy: Policy, at: float | None = None) -> Decision:
    """What is to be done about a fault that was seen at `at` (epoch seconds; None: the node's memory is not
    asked). Total, as the catalogue is.

    A fault that is a proof weighs with the others that stand: of two that confirm each other, the stronger
    answer counts, whichever came first.
    """
    entry = look_up(fault.kind, fault.code, node.family if node is not None else "", policy.catalog)
    if node is None or at is None:
        return _possible(Decision(entry.action, entry.reason, entry.rule, entry.sources), policy)
    decision = _alone(fault, entry, node, policy, at)
    if entry.action is Action.MONITOR or len(node.recent) < 2:
        return decision
    for seen in history.entries(node, at - policy.confirmation_seconds):
        if _stands(seen, node) and seen.last <= at + policy.confirmation_seconds:
            other, answer = _remembered(seen, node, policy)
            found = _alone(other, answer, node, policy, seen.last)
            if found.action.strength > decision.action.strength:
                decision = replace(
                    found, reason=f"{found.reason}; {fault.kind} {fault.code} was seen as well"
                )
    return decision


def stands(node: NodeView, policy: Policy, but: str) -> Fault | None:
    """A fault of the node's memory that asks for an act of its own and that nothing has answered, if any.

    but: the subject (core/history.py) that does not count.
    """
    planned = {(plan.get("kind"), plan.get("code")) for plan in node.planned.values()}
    for seen in history.entries(node, 0.0):
        if (seen.kind, seen.code) in planned:
            continue  # it waits for its own time, whatever becomes of the session
        if _stands(seen, node) and history.subject(seen.kind, seen.code) != but:
            fault, entry = _remembered(seen, node, policy)
            if _alone(fault, entry, node, policy, seen.last).action is not Action.MONITOR:
                return fault
    return None


def due(node: NodeView, policy: Policy, now: float) -> list[tuple[str, str, float]]:
    """(kind, code, since) of what its source calls bad, told of once and was not believed then, but would be
    acted on now: it has lasted, or the time after a boot is over."""
    found = []
    for entry in node.subjects.values():
        kind, code, last = str(entry.get("kind")), str(entry.get("code")), float(entry.get("last") or 0.0)
        if kind not in _STATES or last <= history.answered_at(node) or now - last > history.FORGOTTEN_SECONDS:
            continue
        answer = look_up(kind, code, node.family, policy.catalog)
        confidence = 1.0 if answer.proof == "sure" else ONE_OBSERVER
        detector = _DETECTOR_OF.get(kind) or condition_detector(code)
        fault = Fault(kind, code, answer.severity, detector, confidence)
        then, today = (_alone(fault, answer, node, policy, at).action for at in (last, now))
        if then is Action.MONITOR and today is not Action.MONITOR:
            found.append((kind, code, history.unhealthy_since(node, fault, now)))
    return found


def _stands(seen: Seen, node: NodeView) -> bool:
    """Neither an act on the node nor the end of a session came after it."""
    return seen.last > history.answered_at(node)


def _remembered(seen: Seen, node: NodeView, policy: Policy) -> tuple[Fault, Entry]:
    entry = look_up(seen.kind, seen.code, node.family, policy.catalog)
    confidence = 1.0 if entry.proof == "sure" else ONE_OBSERVER
    fault = Fault(
        seen.kind, seen.code, entry.severity, seen.detector, confidence, pci=seen.pci, place=seen.place
    )
    return fault, entry


def _alone(fault: Fault, entry: Entry, node: NodeView, policy: Policy, at: float) -> Decision:
    decision = Decision(entry.action, entry.reason, entry.rule, entry.sources)
    if fault.kind == "rebalance":
        return rebalance.advised(decision, node, policy, at)
    decision, climbs = _in_context(decision, fault, node, at)
    decision = _possible(decision, policy)
    if decision.action is Action.MONITOR:
        return decision
    if doubt := _doubt(fault, node, policy, at):
        rule, reason = doubt
        return Decision(Action.MONITOR, f"{decision.reason}; {reason}", rule, decision.sources)
    if decision.action not in _REPAIRS:
        return decision
    return _climb(decision, climbs, fault, node, policy, at)


def _possible(decision: Decision, policy: Policy) -> Decision:
    if decision.action is Action.RESET and not policy.gpu_reset:
        return replace(decision, action=Action.REBOOT, reason=f"{decision.reason}; {WITHOUT_RESET}")
    return decision


def _in_context(decision: Decision, fault: Fault, node: NodeView, at: float) -> tuple[Decision, bool]:
    """A cluster's own answer stands, whatever else was seen: a person wrote it."""
    if decision.rule.startswith("override-"):
        return decision, True
    found = correlate(fault, node, at)
    weaker = found is not None and found.action.strength < decision.action.strength
    if found is None or (weaker and found.action is not Action.MONITOR):
        return decision, True
    return Decision(found.action, found.reason, found.rule, found.sources), found.climbs


def _doubt(fault: Fault, node: NodeView, policy: Policy, at: float) -> tuple[str, str] | None:
    """(rule, reason) why nothing destructive may follow yet."""
    single, boots = fault.confidence < 1.0, (node.launched_at, node.act_at("reboot", "reset"))
    young = at - max((boot for boot in boots if boot is not None), default=-math.inf)
    if (single or fault.kind == "status_check") and 0 <= young < policy.boot_grace_seconds:
        return "boot-grace", f"the node booted {young:.0f} s before, and what is seen so soon is not believed"
    seconds, why = patience(fault.kind, fault.code)
    lasted = at - history.unhealthy_since(node, fault, at)
    if lasted < seconds:
        return "not-lasting", f"it has lasted {lasted:.0f} of {seconds:.0f} s; {why}"
    if single and not _confirmed(fault, node, policy, at):
        return (
            "unconfirmed",
            f"one observer's word ({fault.detector}), which waits for a second, independent one",
        )
    return None


def _confirmed(fault: Fault, node: NodeView, policy: Policy, at: float) -> bool:
    """Another observer found the node worth an act of its own at about the same time."""
    observer = _observer(fault.kind, fault.code, fault.detector)
    for other in history.entries(node, at - policy.confirmation_seconds):
        late = other.last > at + policy.confirmation_seconds
        if late or _observer(other.kind, other.code, other.detector) == observer:
            continue
        answer = look_up(other.kind, other.code, node.family, policy.catalog)
        if answer.action is not Action.MONITOR:
            return True
    return False


def _observer(kind: str, code: str, detector: str) -> str:
    return _OBSERVERS.get(kind) or _OBSERVERS.get(history.subject(kind, code), detector)


def _climb(
    decision: Decision, climbs: bool, fault: Fault, node: NodeView, policy: Policy, at: float
) -> Decision:
    for act, step in sorted(_TRIED.items(), key=lambda item: -item[1].strength):
        if step.strength < decision.action.strength or not (what := _in_vain(act, fault, node, policy, at)):
            continue
        if not climbs:
            reason = f"{decision.reason}; {what}, and the application may be to blame: a person looks"
            return Decision(Action.MONITOR, reason, "tried-before", decision.sources)
        following = Action.REPLACE if step is Action.REBOOT else Action.REBOOT
        if following.strength > policy.escalate_to.strength:
            reason = f"{decision.reason}; {what}, and policy escalate_to {policy.escalate_to} allows no more"
            return replace(decision, reason=reason)
        return Decision(following, f"{decision.reason}; {what}", "tried-before", decision.sources)
    before = node.opened_at if node.active and node.opened_at is not None else at
    lately = [opened for opened in node.openings if opened < before and at - opened < policy.offender_seconds]
    if climbs and len(lately) + 1 >= policy.offender_incidents:
        reason = (
            f"{decision.reason}; incident {len(lately) + 1} of this node in {_span(policy.offender_seconds)}"
        )
        return Decision(Action.REPLACE, reason, "repeat-offender", decision.sources)
    return decision


def _in_vain(act: str, fault: Fault, node: NodeView, policy: Policy, at: float) -> str:
    """In words, that this act was tried for such a fault and is not worth another try; "" when it is.

    One after which the node passed its check may help again after a while. One that failed, as a reset that
    the driver refused, is remembered as long as a repeat offender; one that was never done says nothing.
    """
    tried = node.tried.get(act)
    result = str((tried or {}).get("result") or "")
    if tried is None or tried.get("kind") != fault.kind or result.startswith(ladder.REFUSED):
        return ""
    if fault.pci and tried.get("pci") and fault.pci != tried["pci"]:
        return ""
    failed = result.startswith(ladder.FAILED)
    kept = max(policy.ladder_seconds, policy.offender_seconds) if failed else policy.ladder_seconds
    since = at - float(tried.get("at", 0.0))
    if not policy.boot_timeout_seconds * SETTLES < since < kept:
        return ""
    if failed and since >= policy.ladder_seconds:
        return f"a {act} {_span(since)} before {result}"
    return f"a {act} {_span(since)} before did not cure it"


def _span(seconds: float) -> str:
    return f"{seconds / 3600:.0f} h" if seconds >= 5400 else f"{seconds / 60:.0f} min"
