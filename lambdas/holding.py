"""Signals that are held: kept on the node's row, told to a person, judged anew by way of sweep."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from lambdas.inventory import each
from planaria.core import gates, history, parsers
from planaria.core.affected import affected
from planaria.core.breaker import KEY
from planaria.core.fault import Action, Fault
from planaria.core.incident import ACTIVE
from planaria.core.judge import Judgement, Outcome, judge
from planaria.core.node import NodeView
from planaria.core.signal import on_time
from planaria.core.table import Conflict, Path, Row, below, exists, missing
from planaria.wiring import Gateways

SOURCE = "planaria.sweep"
MOST_PER_SWEEP = 10
MOST_OF_A_NODE = 8
TOLD_SECONDS = 3600.0
"""A storm holds many nodes; a person is told of the first, and again after an hour."""

MAIL = "held"
TELLING_SECONDS = 60.0
AGAIN_SECONDS = 300.0
"""Between two held signals of one node that are told again: longer than a redelivery takes."""


def hold(gw: Gateways, row: Row, judgement: Judgement, body: dict[str, str], what: str, why: str) -> None:
    """Keep the event for sweep to repeat, and tell a person that nodes wait. Of several faults of a node each
    is kept, as far as there is room: one of them may be taken back while the others stand."""
    now = gw.clock.now()
    facts: dict[Any, Any] = {"held_reason": why, "held_since": row.get("held_since") or now}
    held, name = row.get("held"), _name(judgement.fault)
    detector = judgement.fault.detector if judgement.fault is not None else ""
    kept = {**body, "action": str(judgement.action or Action.MONITOR), "detector": detector}
    if not isinstance(held, dict):
        gw.ledger.note_node(row["node_id"], {**facts, "held": {name: kept}}, when=missing("held"))
    elif name in held or (room := _room(held, kept)) is None:
        gw.ledger.note_node(row["node_id"], facts)
    else:
        same = exists("held") & missing(("held", name))
        gw.ledger.note_node(row["node_id"], {**facts, ("held", name): kept}, when=same)
        if room:
            gw.table.write(row["pk"], row["sk"], removes=[("held", room)], when=exists("held"))
    _tell(gw, row, what, why)


def _tell(gw: Gateways, row: Row, what: str, why: str) -> None:
    tell_hourly(
        gw,
        MAIL,
        f"Planaria {gw.cluster.name}: {row['node_id']} is held",
        f"{row['node_id']} ({row.get('name', '')}) has a fault and is left alone for now.\n"
        f"Fault: {what}\nWhy held: {why}\n"
        "Others may be held as well; no more mail about it within the hour. See all: planaria nodes\n"
        f"To heal it all the same: planaria replace {row['node_id']} --override-breaker\n"
        "Runbook: docs/runbooks/held.md\n",
    )


def tell_hourly(gw: Gateways, what: str, subject: str, text: str) -> None:
    """Mail a person, once an hour for the whole fleet and this kind of mail."""
    now = gw.clock.now()
    if _may_tell(gw, what, now):
        gw.notices.publish(subject, text)
        gw.table.write(*KEY, sets={f"{what}_told_at": now})


def told_at(gw: Gateways, what: str) -> float | None:
    at = (gw.table.get(*KEY) or {}).get(f"{what}_told_at")
    return None if at is None else float(at)


def strongest(row: Row, judgement: Judgement) -> Judgement:
    """What is opened answers the held faults of the node too, so it must be as strong as the strongest of
    them that its source has not taken back and that nothing has answered."""
    answered, recent = history.answered_at(NodeView.from_row(row)), row.get("recent") or {}
    for name, body in (row.get("held") or {}).items():
        action, stands = _action(body), float((recent.get(name) or {}).get("last", 0.0)) > answered
        if stands and judgement.action is not None and action.strength > judgement.action.strength:
            reason = f"{judgement.reason}; {name.replace('|', ' ').strip()} was held and asks for {action}"
            judgement = dataclasses.replace(judgement, action=action, reason=reason)
    return judgement


def covers(row: Row, judgement: Judgement) -> bool:
    """What is held on the node asks for at least as much as this judgement."""
    held = row.get("held") if row.get("held_since") else None
    most = max((_action(body).strength for body in (held or {}).values()), default=-1)
    return judgement.action is not None and judgement.action.strength <= most


def _room(held: dict[str, Any], kept: dict[str, str]) -> str | None:
    """Which held fault gives way: "" none need to, None when all of them ask for at least as much."""
    if len(held) < MOST_OF_A_NODE:
        return ""
    weakest = min(held, key=lambda name: (_action(held[name]).strength, name))
    return weakest if _action(held[weakest]).strength < _action(kept).strength else None


def _action(body: Mapping[str, Any]) -> Action:
    word = str(body.get("action"))
    return Action(word) if word in Action.__members__ else Action.MONITOR


def left_to_a_person(row: Row, judgement: Judgement) -> bool:
    """What is HELD for this is not kept: a person was told and has the node, and whoever mends it does not
    want an old fault of it repeated."""
    fault, action = judgement.fault, judgement.action
    if judgement.outcome is not Outcome.HELD or fault is None or action is None:
        return False
    return bool(gates.left_to_a_person(fault, action, NodeView.from_row(row)))


def holds(row: Row, fault: Fault) -> bool:
    """This very fault waits on the node's row."""
    return bool(row.get("held_since")) and _name(fault) in (row.get("held") or {})


def release(gw: Gateways, nodes: list[Row]) -> int:
    """Judge held signals anew, the longest held first; a few at a time, for each may start an incident."""
    held = [row for row in nodes if row.get("held") and row.get("phase") not in ACTIVE]
    _tell_of_untold(gw, held)
    if not held or gw.breaker.full(gw.clock.now()):
        return 0
    done = 0
    for row in sorted(held, key=lambda row: float(row.get("held_since") or 0.0)):
        if done < MOST_PER_SWEEP:
            done += each([row], "held signal of", lambda row: again(gw, row))
    return done


def _tell_of_untold(gw: Gateways, held: list[Row]) -> None:
    """Where triage died before its mail was out."""
    told = told_at(gw, MAIL) if held else None
    for row in held:
        if told is None or float(row.get("held_since") or 0.0) > told + TOLD_SECONDS:
            what = ", ".join(name.replace("|", " ").strip() for name in row["held"])
            _tell(gw, row, what, str(row.get("held_reason", "")))
            return


def again(gw: Gateways, row: Row) -> bool:
    """The strongest held signal of a node goes through triage again, unless something still holds it; what
    the present state has settled is held no longer. The others wait, so that none is opened in place of a
    stronger one whose message is still under way. True when something was done."""
    now, settled, standing = gw.clock.now(), [], []
    for name, body in row["held"].items():
        text = body["event"] if "event" in body else gw.objects.get(body["event_key"]).decode()
        ends = _ends(gw, row, text)
        if ends <= {Outcome.STALE, Outcome.COVERED}:
            settled.append(name)
        elif Outcome.HELD not in ends and not gw.breaker.full(now, body.get("detector", "")):
            standing.append((_action(body).strength, name, text))
    sets: dict[str, Any] = {}
    if standing and now - float(row.get("held_again_at") or 0.0) >= AGAIN_SECONDS:
        _, name, text = max(standing)
        put(gw, repeated(text))
        settled.append(name)
        sets["held_again_at"] = now
    if not settled:
        return False
    left = len(settled) < len(row["held"])
    removes: list[Path] = [("held", name) for name in settled] if left else ["held"]
    gw.table.write(row["pk"], row["sk"], sets=sets, removes=removes, when=exists("held"))
    return True


def _ends(gw: Gateways, row: Row, text: str) -> set[Outcome]:
    view, now = NodeView.from_row(row), gw.clock.now()
    told = [one for signal in parsers.parse_text(text) for one in affected(signal, [view])]
    mine = [on_time(signal, now) for signal in told if signal.node_id in (row["node_id"], None)]
    ends = [judge(signal, view, known=False, policy=gw.cluster.policy, now=now) for signal in mine]
    # What waits for its own time waits elsewhere (lambdas/planning.py), once triage has it again.
    return {Outcome.OPENED if end.plan is not None else end.outcome for end in ends}


@dataclasses.dataclass(frozen=True, slots=True)
class Repeated:
    """An event as sweep tells of it again. resources: some of AWS's events name there alone what they are
    about."""

    detail_type: str
    detail: Mapping[str, Any]
    resources: tuple[str, ...]

    def event(self) -> dict[str, Any]:
        """As triage will get it, but for the times and names that the bus gives it."""
        return {
            "source": SOURCE,
            "detail-type": self.detail_type,
            "detail": dict(self.detail),
            "resources": list(self.resources),
        }


def repeated(text: str, more: Mapping[str, Any] | None = None) -> Repeated:
    """more: what is added to the detail."""
    event = json.loads(text)
    named = event.get("resources") or []
    resources = [named] if isinstance(named, str) else [one for one in named if isinstance(one, str)]
    # A reservation may be named at the top of the event, where the bus has no place for it.
    about = {str(signal.evidence.get("reservation") or "") for signal in parsers.parse(event)} - {""}
    resources += sorted(about - set(resources)) if "customer_event_id" in event else []
    detail_type = event.get("detail-type") or event["detail_type"]
    detail = {**event["detail"], parsers.REPEATS: True, **(more or {})}
    return Repeated(detail_type, detail, tuple(resources))


def put(gw: Gateways, again: Repeated) -> None:
    gw.bus.put(SOURCE, again.detail_type, [again.detail], list(again.resources))


def _name(fault: Fault | None) -> str:
    return history.key(fault) if fault is not None else "unknown"


def _may_tell(gw: Gateways, what: str, now: float) -> bool:
    """Once an hour for the whole fleet. Who is to tell has a minute for it; then another one does."""
    told_at, telling_at = f"{what}_told_at", f"{what}_telling_at"
    told = missing(told_at) | below(told_at, now - TOLD_SECONDS)
    free = missing(telling_at) | below(telling_at, now - TELLING_SECONDS)
    try:
        gw.table.write(*KEY, sets={telling_at: now}, when=told & free)
    except Conflict:
        return False
    return True
