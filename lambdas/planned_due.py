"""Sweep's half of planned ends: which of them are due, told to triage again, and which are over.

One is due when its latest moment has come, or when the scheduler says that nothing runs on its node: it is
asked every five minutes. Until then nothing else is written, and nothing is sent.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from lambdas import holding, planning
from lambdas.inventory import each
from planaria.core import parsers, planned
from planaria.core.errors import PlanariaError
from planaria.core.incident import ACTIVE
from planaria.core.judge import Outcome, judge
from planaria.core.node import NodeView
from planaria.core.policy import Mode
from planaria.core.ports import StatusEvent
from planaria.core.signal import Kind
from planaria.core.status_watch import MOVED_SECONDS, is_over, name_of
from planaria.core.table import Row
from planaria.wiring import Gateways

DUE_PER_SWEEP = 100
EARLY_PER_SWEEP = 10

Listed = Mapping[str, StatusEvent]


@dataclasses.dataclass(frozen=True, slots=True)
class _Due:
    """early: its latest moment has not come, but the node may have no job any more."""

    row: Row
    name: str
    early: bool

    @property
    def plan(self) -> Mapping[str, Any]:
        plan: Mapping[str, Any] = self.row["planned"][self.name]
        return plan


def release(gw: Gateways, nodes: list[Row], jobs: list[Row]) -> int:
    """Tell triage of the planned ends that are due, one of each node, the soonest first, and forget what is
    over. How many were told."""
    rows = [row for row in nodes if row.get("planned")]
    if not rows or gw.cluster.policy.mode is Mode.OBSERVE:
        return 0
    now = gw.clock.now()
    _tell_of_untold(gw, rows)
    standing = [row for row in rows if not each([row], "planned end of", lambda row: _tidy(gw, row, now))]
    states = {str(job["job_id"]): job for job in jobs}
    due = sorted(
        (one for row in standing if row.get("phase") not in ACTIVE for one in _due(gw, row, states, now)),
        key=lambda one: (one.early, float(one.plan["latest"]), one.name),
    )
    each(standing, "planned end of", lambda row: _unblock(gw, row, due))
    listed = _listed(gw, due[:DUE_PER_SWEEP])
    told, early = set[str](), set[str]()
    for one in due[:DUE_PER_SWEEP]:
        node = one.row["node_id"]
        if node in told or (one.early and (node in early or len(early) >= EARLY_PER_SWEEP)):
            continue
        if one.early:
            early.add(node)
        if each([one.row], "planned end of", _sender(gw, one, listed, now)):
            told.add(node)
    return len(told)


def _due(gw: Gateways, row: Row, jobs: Mapping[str, Row], now: float) -> Iterator[_Due]:
    """By today's policy, which may be another one than when it was planned."""
    plans = row["planned"]
    if any(now - float(plan.get("sent_at") or 0.0) < planning.AGAIN_SECONDS for plan in plans.values()):
        return
    busy_at = float((row.get("asked_idle") or {}).get("busy_at") or 0.0)
    rests = now - busy_at >= planning.AGAIN_SECONDS and planned.may_rest(jobs.get(str(row.get("job_id"))))
    for name, plan in plans.items():
        early = now < planned.latest_of(plan["kind"], float(plan["deadline"]), gw.cluster.policy)
        if not early or (rests and plan["kind"] == Kind.SCHEDULED_EVENT):
            yield _Due(row, name, early)


def _unblock(gw: Gateways, row: Row, due: list[_Due]) -> bool:
    """What is not due is held by nothing but its time."""
    mine = {one.name for one in due if one.row is row}
    for name, plan in row["planned"].items():
        if plan.get("why") and name not in mine and not plan.get("sent_at"):
            planning.note(gw, row, name, {"why": ""})
            return True
    return False


def _listed(gw: Gateways, due: list[_Due]) -> Listed | None:
    """What EC2 has scheduled now, by its event id; None when it does not answer. It is asked about ends that
    it told of itself: it may have taken one back without a word."""
    plans = {one.row["node_id"]: one.row["planned"].values() for one in due}
    nodes = sorted(node for node, mine in plans.items() if any(plan.get("event_id") for plan in mine))
    try:
        statuses = gw.fleet.statuses(nodes) if nodes else []
    except PlanariaError:
        return None
    return {name_of(event): event for status in statuses for event in status.events}


def _sender(gw: Gateways, one: _Due, listed: Listed | None, now: float) -> Any:
    return lambda _: _send(gw, one, listed, now)


def _send(gw: Gateways, one: _Due, listed: Listed | None, now: float) -> bool:
    row, plan = one.row, one.plan
    text = plan["event"] if "event" in plan else gw.objects.get(plan["event_key"]).decode()
    told = {
        "node_id": row["node_id"], "plan": one.name, "deadline": float(plan["deadline"]), "quiet": one.early,
    }  # fmt: skip
    again = holding.repeated(text, {parsers.PLANNED: told})
    if why := _unlisted(one, listed) or _held(gw, one, again, now):
        planning.note(gw, row, one.name, {"why": why})
        return False
    if one.early and not planning.free_for_long(gw, row):
        return False
    holding.put(gw, again)
    planning.note(gw, row, one.name, {"why": "", "sent_at": now})
    return True


def _unlisted(one: _Due, listed: Listed | None) -> str:
    """Why an end is not acted on, though it would be due: EC2 told of it too, and does not list it so now."""
    plans = planned.same_end(one.row["planned"], one.plan)
    if one.plan.get("event_id"):
        plans = {one.name: one.plan}
    names = [str(plan["event_id"]) for plan in plans.values() if plan.get("event_id")]
    if not names:
        return ""
    if listed is None:
        return "EC2 does not say whether it stands" if one.early else ""
    open_ones = [listed[name] for name in names if name in listed and not is_over(listed[name])]
    if not open_ones:
        return "EC2 lists it no longer"
    deadline = float(one.plan["deadline"])
    later = all(event.not_before and event.not_before - deadline >= MOVED_SECONDS for event in open_ones)
    return "EC2 has set a later date" if later and not one.early else ""


def _held(gw: Gateways, one: _Due, again: holding.Repeated, now: float) -> str:
    """What would hold it: the opt-out tag, maintenance, the breaker."""
    view = NodeView.from_row(one.row)
    for signal in parsers.parse(again.event()):
        end = judge(signal, view, known=False, policy=gw.cluster.policy, now=now)
        if end.outcome is not Outcome.OPENED:
            return end.reason
        if end.fault is not None and end.fault.kind != Kind.CAPACITY_END:
            return gw.breaker.full(now, end.fault.detector)
    return ""


def _tidy(gw: Gateways, row: Row, now: float) -> bool:
    """Forget what is over; True when something was."""
    over = NodeView.from_row(row).over
    names = [name for name, plan in row["planned"].items() if over or planned.is_over(row, plan, now)]
    if names:
        planning.forget(gw, row, names)
    return bool(names)


def _tell_of_untold(gw: Gateways, rows: list[Row]) -> None:
    """Where triage died before its mail was out."""
    told = holding.told_at(gw, planning.MAIL)
    for row in rows:
        for plan in row["planned"].values():
            if told is None or float(plan["at"]) > told + holding.TOLD_SECONDS:
                planning.tell(gw, row, str(plan["reason"]))
                return
