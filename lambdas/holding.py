"""Signals that are held: kept on the node's row, told to a person, judged anew by way of sweep."""

import json
from typing import Any

from lambdas.inventory import each
from planaria.core import history, parsers
from planaria.core.breaker import KEY
from planaria.core.fault import Fault
from planaria.core.incident import ACTIVE
from planaria.core.judge import Outcome, judge
from planaria.core.node import NodeView
from planaria.core.signal import on_time
from planaria.core.table import Condition, Conflict, Path, Row, below, exists, missing
from planaria.wiring import Gateways

SOURCE = "planaria.sweep"
MOST_PER_SWEEP = 10
MOST_OF_A_NODE = 8
TOLD_SECONDS = 3600.0
"""A storm holds many nodes; a person is told of the first, and again after an hour."""


def hold(gw: Gateways, row: Row, fault: Fault | None, body: dict[str, str], what: str, why: str) -> None:
    """Keep the event for sweep to repeat, and tell a person that nodes wait. Of several faults of a node each
    is kept: one of them may be taken back while the others stand."""
    now, first = gw.clock.now(), not row.get("held_since")
    facts: dict[Any, Any] = {"held_reason": why, "held_since": row.get("held_since") or now}
    held, name = row.get("held"), _name(fault)
    if not isinstance(held, dict):
        _note(gw, row, {**facts, "held": {name: body}}, missing("held"))
    elif name not in held and len(held) < MOST_OF_A_NODE:
        _note(gw, row, {**facts, ("held", name): body}, exists("held"))
    if not first or not _to_be_told(gw, now):
        return
    gw.notices.publish(
        f"Planaria {gw.cluster.name}: {row['node_id']} is held",
        f"{row['node_id']} ({row.get('name', '')}) has a fault and is left alone for now.\n"
        f"Fault: {what}\nWhy held: {why}\n"
        "Others may be held as well; no more mail about it within the hour. See all: planaria nodes\n"
        f"To heal it all the same: planaria replace {row['node_id']} --override-breaker\n"
        "Runbook: docs/runbooks/held.md\n",
    )


def holds(row: Row, fault: Fault) -> bool:
    """This very fault waits on the node's row."""
    return _name(fault) in (row.get("held") or {})


def release(gw: Gateways, nodes: list[Row]) -> int:
    """Judge held signals anew, the longest held first; a few at a time, for each may start an incident."""
    held = [row for row in nodes if row.get("held") and row.get("phase") not in ACTIVE]
    if not held or gw.breaker.full(gw.clock.now()):
        return 0
    done = 0
    for row in sorted(held, key=lambda row: float(row.get("held_since") or 0.0)):
        if done < MOST_PER_SWEEP:
            done += each([row], "held signal of", lambda row: again(gw, row))
    return done


def again(gw: Gateways, row: Row) -> bool:
    """The held signals of a node go through triage again, but for those that the present state of the node
    has settled or still holds."""
    over = [name for name, body in row["held"].items() if _settled_or_sent(gw, row, body)]
    if not over:
        return False
    left = len(row["held"]) - len(over)
    removes: list[Path] = [("held", name) for name in over] if left else ["held", "held_since", "held_reason"]
    gw.table.write(row["pk"], row["sk"], removes=removes, when=exists("held"))
    return True


def _settled_or_sent(gw: Gateways, row: Row, body: dict[str, str]) -> bool:
    text = body["event"] if "event" in body else gw.objects.get(body["event_key"]).decode()
    view, now = NodeView.from_row(row), gw.clock.now()
    mine = [on_time(s, now) for s in parsers.parse_text(text) if s.node_id in (row["node_id"], None)]
    ends = {judge(s, view, known=False, policy=gw.cluster.policy, now=now).outcome for s in mine}
    if Outcome.HELD in ends:
        return False
    if not ends <= {Outcome.STALE, Outcome.COVERED}:
        event = json.loads(text)
        # Some of AWS's events name what they are about there alone.
        named = event.get("resources") or []
        resources = [named] if isinstance(named, str) else [each for each in named if isinstance(each, str)]
        detail_type = event.get("detail-type") or event["detail_type"]
        gw.bus.put(SOURCE, detail_type, [event["detail"]], resources)
    return True


def _note(gw: Gateways, row: Row, sets: dict[Any, Any], when: Condition) -> None:
    """Raises Conflict when another signal of the node was held meanwhile: the event is judged again."""
    gw.ledger.note_node(row["node_id"], sets, when=when)


def _name(fault: Fault | None) -> str:
    return history.key(fault) if fault is not None else "unknown"


def _to_be_told(gw: Gateways, now: float) -> bool:
    """Once an hour for the whole fleet: one conditional write decides who tells."""
    old = missing("held_told_at") | below("held_told_at", now - TOLD_SECONDS)
    try:
        gw.table.write(*KEY, sets={"held_told_at": now}, when=old)
    except Conflict:
        return False
    return True
