"""Ends that wait for their time: kept on the node's row, told to a person, taken back.

core/planned.py has the rules; sweep tells triage again of what is due (planned_due.py).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lambdas import holding
from lambdas.boundary import ask_scheduler
from planaria.core import planned
from planaria.core.errors import PlanariaError, Waiting
from planaria.core.judge import Judgement
from planaria.core.node import NodeView
from planaria.core.scheduling import JobsOn
from planaria.core.signal import Signal
from planaria.core.table import Row, equals, exists, missing
from planaria.wiring import Gateways

AGAIN_SECONDS = 300.0
"""Until a plan that triage was told of is told of again, and a scheduler asked again that knew of a job."""

SURE_SECONDS = 45.0
"""Between two answers that nothing runs on the node: a job may just be between two of its attempts."""

MAIL = "planned"


def keep(gw: Gateways, row: Row, signal: Signal, judgement: Judgement, body: Mapping[str, str]) -> None:
    """Keep the end on the node's row until its time, and tell a person. Raises Conflict when the row has
    changed."""
    assert judgement.plan is not None and judgement.fault is not None
    new = planned.entry(signal, judgement.fault, judgement.plan, gw.clock.now()) | dict(body)
    found = planned.kept(NodeView.from_row(row).planned, planned.key(signal), new)
    if not found:
        return
    if isinstance(row.get("planned"), dict):
        sets: dict[Any, Any] = {("planned", name): plan for name, plan in found.items()}
        gw.ledger.note_node(row["node_id"], sets, when=exists("planned"))
    else:
        gw.ledger.note_node(row["node_id"], {"planned": found}, when=missing("planned"))
    tell(gw, row, judgement.plan.reason)


def take_back(gw: Gateways, row: Row, signal: Signal) -> None:
    """What this healthy report ends is planned no more. Raises Conflict when the row changed."""
    if names := planned.taken_back(signal, NodeView.from_row(row).planned):
        forget(gw, row, names)


def put_off(gw: Gateways, row: Row, signal: Signal, why: str) -> bool:
    """A plan that sweep told of in its time stays planned, with the reason that holds it. False when the
    signal is about none."""
    name = signal.evidence.get(planned.PLAN)
    if name is not None and name in (row.get("planned") or {}):
        note(gw, row, name, {"why": why})
    return name is not None


def confirmed(gw: Gateways, signal: Signal, judgement: Judgement, row: Row) -> Signal:
    """Before an early drain of a node that has no job by the ledger, the scheduler is asked too."""
    if judgement.plan is None or judgement.plan.holds or planned.PLAN in signal.evidence or free(gw, row):
        return signal
    return dataclasses.replace(signal, evidence={**signal.evidence, planned.BUSY: True})


def tell(gw: Gateways, row: Row, reason: str) -> None:
    node = row["node_id"]
    holding.tell_hourly(
        gw,
        MAIL,
        f"Planaria {gw.cluster.name}: the end of {node} is planned",
        f"{node} ({row.get('name', '')}) is taken by AWS: {reason}.\n"
        "Others may be as well; no more mail about it within the hour. See all: planaria nodes\n"
        f"To replace it now: planaria replace {node}\n"
        "Runbook: docs/runbooks/held.md\n",
    )


def free_for_long(gw: Gateways, row: Row) -> bool:
    """The scheduler has said so in two sweeps, one after the other."""
    now, before = gw.clock.now(), float((row.get("asked_idle") or {}).get("free_at") or 0.0)
    if not free(gw, row):
        return False
    if SURE_SECONDS <= now - before < AGAIN_SECONDS:
        return True
    if now - before >= AGAIN_SECONDS:
        gw.ledger.note_node(row["node_id"], {"asked_idle": {"free_at": now}})
    return False


def free(gw: Gateways, row: Row) -> bool:
    """The scheduler says that nothing runs on the node. What it cannot tell now, the next sweep may hear."""
    asked, now = row.get("asked_idle") or {}, gw.clock.now()
    carry = dict(asked.get("carry") or {}) if now - float(asked.get("at") or 0.0) < AGAIN_SECONDS else {}
    name = row.get("name") or row["node_id"]
    try:
        jobs = ask_scheduler(gw, {"carry": carry}, "jobs_on", JobsOn((name,))).get(name)
    except Waiting as wait:
        if dict(wait.carry) != carry:
            kept = {"carry": dict(wait.carry), "at": now, "free_at": asked.get("free_at") or 0.0}
            gw.ledger.note_node(row["node_id"], {"asked_idle": kept})
        return False
    except PlanariaError:
        return False
    if jobs != []:
        gw.ledger.note_node(row["node_id"], {"asked_idle": {"busy_at": now}})
    return jobs == []


def forget(gw: Gateways, row: Row, names: list[str]) -> None:
    when = exists("planned")
    for name in names:
        when = when & equals(("planned", name), row["planned"][name])
    gw.table.write(row["pk"], row["sk"], removes=[("planned", name) for name in names], when=when)


def note(gw: Gateways, row: Row, name: str, facts: Mapping[str, Any]) -> None:
    plan = row["planned"][name]
    if any(plan.get(key, "") != value for key, value in facts.items()):
        same = equals(("planned", name), plan)
        gw.table.write(row["pk"], row["sk"], sets={("planned", name): {**plan, **facts}}, when=same)
