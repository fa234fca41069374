"""What was seen on a node, asks for an act, and has had none: mostly one observer's word."""

from typing import Any

from planaria.cli.screen import iso
from planaria.core import history
from planaria.core.catalog import look_up
from planaria.core.decision import decide
from planaria.core.event_rows import DAY
from planaria.core.fault import ONE_OBSERVER, Action, Decision, Fault
from planaria.core.node import NodeView
from planaria.core.policy import Policy
from planaria.core.table import Row

Document = dict[str, Any]


def suspicions(row: Row, policy: Policy, now: float) -> list[Document]:
    """Faults of the last day that ask for an act and that nothing has answered, the newest first; none while
    an incident is active or the node is gone."""
    node = NodeView.from_row(row)
    if node.active or node.over:
        return []
    found = []
    for seen in sorted(history.entries(node, now - DAY), key=lambda seen: (-seen.last, seen.kind, seen.code)):
        entry = look_up(seen.kind, seen.code, node.family, policy.catalog)
        if seen.last <= history.answered_at(node) or entry.action is Action.MONITOR:
            continue
        confidence = 1.0 if entry.proof == "sure" else ONE_OBSERVER
        fault = Fault(
            seen.kind, seen.code, entry.severity, seen.detector, confidence, pci=seen.pci, place=seen.place
        )
        decision = decide(fault, node, policy, seen.last)
        plans = {(plan.get("kind"), plan.get("code")) for plan in node.planned.values()}
        if decision.action is not Action.MONITOR and (row.get("held") or (seen.kind, seen.code) in plans):
            continue  # the reason of the hold says it, or the plan
        found.append(
            {
                "kind": seen.kind,
                "code": seen.code,
                "pci": seen.pci or None,
                "seen_at": iso(seen.last),
                "action": entry.action.value,
                "rule": decision.rule,
                "waits_for": _lacks(decision),
            }
        )
    return found


def _lacks(decision: Decision) -> str | None:
    """What keeps a fault from being acted on, in a few words; None where nothing does."""
    if decision.action is not Action.MONITOR:
        return None
    known = {
        "unconfirmed": "a second observer",
        "not-lasting": "it to last",
        "boot-grace": "the boot to settle",
        "tried-before": "a person",
    }
    return known.get(decision.rule, f"a person (rule {decision.rule})")
