"""Ends of a node that AWS has announced and that wait for their time, as people and scripts see them."""

from collections.abc import Mapping
from typing import Any

from planaria.cli.screen import iso
from planaria.core import planned
from planaria.core.node import NodeView
from planaria.core.signal import Kind
from planaria.core.table import Row

Document = dict[str, Any]


def plans(row: Row) -> list[Document]:
    """The soonest first; none of a node that is gone. docs/cli.md has their keys."""
    node = NodeView.from_row(row)
    found = [] if node.over else sorted(node.planned.values(), key=lambda plan: float(plan["latest"]))
    return [
        {
            "kind": plan.get("kind"),
            "code": plan.get("code"),
            "ends_at": _moment(plan["deadline"]),
            "drained_by": _moment(plan["latest"]),
            "when_idle": _when_idle(plan),
            "held_by": plan.get("why") or None,
            "says": _words(plan),
        }
        for plan in found
    ]


def _words(plan: Mapping[str, Any]) -> str:
    how = "drained when idle, at the latest" if _when_idle(plan) else "drained"
    said = f"ends {planned.utc(plan['deadline'])}: {how} {planned.utc(plan['latest'])}"
    return f"{said}; held: {plan['why']}" if plan.get("why") else said


def _when_idle(plan: Mapping[str, Any]) -> bool:
    return plan.get("kind") == Kind.SCHEDULED_EVENT


def _moment(at: float) -> str | None:
    """None for a date that no calendar has."""
    try:
        return iso(at)
    except (ValueError, OverflowError, OSError):
        return None
