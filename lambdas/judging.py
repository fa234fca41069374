"""One event: parse, judge against the ledger, act, record the outcome last."""

import dataclasses
import hashlib
from typing import Any

from lambdas import job_events, opening, replacements, resuming, undoing
from planaria.core import parsers
from planaria.core.affected import affected
from planaria.core.incident import ACTIVE, Phase, Step
from planaria.core.judge import Judgement, Outcome, judge
from planaria.core.ledger import Claim
from planaria.core.node import NodeView
from planaria.core.plans import facts
from planaria.core.policy import Mode
from planaria.core.signal import Kind, Signal
from planaria.core.table import Conflict, Row, below, differs, missing
from planaria.wiring import Gateways

TRIES = 4  # a node's row may change between reading and claiming
INLINE_BYTES = 4096


def judge_text(gw: Gateways, text: str) -> list[dict[str, Any]]:
    """The outcomes of one event, one per affected node."""
    return [
        _judge_signal(gw, one, text)
        for signal in parsers.parse_text(text)
        for one in affected(signal, _members(gw, signal))
    ]


def _members(gw: Gateways, signal: Signal) -> list[NodeView]:
    """The nodes that could belong to a reservation; read only for an event that names one and no node."""
    if signal.kind is not Kind.CAPACITY_END or signal.node_id is not None:
        return []
    return [NodeView.from_row(row) for row in gw.ledger.nodes()]


def _judge_signal(gw: Gateways, signal: Signal, text: str) -> dict[str, Any]:
    now = gw.clock.now()
    prior = gw.ledger.outcome(signal.dedupe_key, now)
    again = signal.source == parsers.SWEEP and (prior or {}).get("outcome") == Outcome.HELD
    if prior is not None and not again:
        gw.ledger.count("DUPLICATE", now)
        return {"outcome": "DUPLICATE", "node_id": signal.node_id, "reason": f"already {prior['outcome']}"}
    for _ in range(TRIES):
        row = _row(gw, signal)
        if row is not None and _ended_already(signal, row):
            gw.ledger.record_outcome(signal.dedupe_key, now, {"outcome": "OPENED", "node_id": signal.node_id})
            return {"outcome": "OPENED", "node_id": signal.node_id, "reason": "its session has ended since"}
        view = NodeView.from_row(row) if row else None
        judgement = judge(signal, view, known=False, policy=gw.cluster.policy, now=now)
        try:
            judgement = _act(gw, signal, judgement, row or {}, text)
            break
        except Conflict:
            continue
    else:
        raise Conflict(None)
    if judgement.outcome is Outcome.NOT_MANAGED:
        gw.ledger.count("NOT_MANAGED", now)
    else:
        gw.ledger.record_outcome(signal.dedupe_key, now, _outcome_facts(gw, signal, judgement, text))
    return {
        "outcome": judgement.outcome.value,
        "node_id": signal.node_id,
        "code": signal.code,
        "rule": judgement.rule,
        "reason": judgement.reason,
    }


def _ended_already(signal: Signal, row: Row) -> bool:
    """This event opened the node's last session, which is over; only the event's outcome got lost."""
    return row.get("claim_id") == signal.dedupe_key and row.get("phase") not in ACTIVE


def _row(gw: Gateways, signal: Signal) -> Row | None:
    """The node's row. An id that the ledger does not know is looked up in EC2 once an hour and Lambda
    environment; an agent's own word is worth a look each time, for EC2 may list a new node late."""
    node = signal.node_id
    if node is None:
        return None
    row = gw.ledger.node(node)
    if row is None and (signal.kind is Kind.AGENT or not gw.strangers.known(node, gw.clock.now())):
        for instance in gw.fleet.describe([node]):
            row = gw.ledger.note_node(node, facts(instance))
        if row is None:
            gw.strangers.note(node, gw.clock.now())
    return row


def _act(gw: Gateways, signal: Signal, judgement: Judgement, row: Row, text: str) -> Judgement:
    acting = judgement.mode is Mode.ACT
    if judgement.outcome in (Outcome.INVALID, Outcome.NOT_MANAGED):
        return judgement
    if signal.kind is Kind.AGENT:
        if signal.code == "node_ready":
            _node_ready(gw, signal)
        elif signal.code == "job_step":
            job_events.first_step(gw, signal)
        elif signal.code == "job_exit" and acting and judgement.job_id:
            return job_events.exited(gw, signal, judgement)
    if not acting:
        return judgement
    if judgement.cancels:
        _cancel(gw, row)
    elif judgement.outcome is Outcome.OPENED or judgement.raises:
        if replacements.lost_before_ready(gw, row, judgement.reason):
            if said := _said(signal, judgement, row):
                gw.ledger.note_node(row["node_id"], said)
            reason = f"{judgement.reason}; the incident that launched this node launches another"
            return dataclasses.replace(judgement, outcome=Outcome.JOINED, reason=reason)
        claim = _claim(gw, signal, judgement, row)
        refusal = gw.breaker.full(gw.clock.now()) if row.get("held_since") and not judgement.raises else ""
        refusal = refusal or opening.open_incident(gw, claim, row, judgement.raises)
        if refusal:
            _hold(gw, row, _body(gw, text), judgement.reason, refusal)
            return dataclasses.replace(judgement, outcome=Outcome.HELD, reason=refusal)
    elif row and (said := _said(signal, judgement, row)):
        gw.ledger.note_node(row["node_id"], said)
    return judgement


def _hold(gw: Gateways, row: Row, body: dict[str, str], reason: str, refusal: str) -> None:
    """Keep the event for sweep to repeat, and tell a person once that this node waits."""
    first = not row.get("held_since")
    held: dict[Any, Any] = {"held": body, "held_reason": refusal}
    gw.ledger.note_node(row["node_id"], {**held, "held_since": row.get("held_since") or gw.clock.now()})
    if first:
        gw.notices.publish(
            f"Planaria {gw.cluster.name}: {row['node_id']} is held",
            f"{row['node_id']} ({row.get('name', '')}) has a fault and is left alone for now.\n"
            f"Fault: {reason}\nWhy held: {refusal}\n"
            f"To heal it all the same once the window allows: planaria replace {row['node_id']}\n",
        )


def _said(signal: Signal, judgement: Judgement, row: Row) -> dict[Any, Any]:
    """EC2's own word about the instance; a state never goes back from gone."""
    if signal.kind is not Kind.STATE_CHANGE or (
        judgement.outcome is Outcome.STALE and not judgement.tells_gone
    ):
        return {}
    if row.get("gone"):
        return {}
    return {"state": signal.code, "gone": judgement.tells_gone}


def _claim(gw: Gateways, signal: Signal, judgement: Judgement, row: Row) -> Claim:
    assert signal.node_id is not None and judgement.action is not None and judgement.fault is not None
    fault = {k: v for k, v in dataclasses.asdict(judgement.fault).items() if v is not None}
    return Claim(
        node_id=signal.node_id,
        claim_id=signal.dedupe_key,
        action=judgement.action.value,
        reason=judgement.reason,
        rule=judgement.rule,
        mode=judgement.mode.value,
        detected_at=signal.time if signal.time is not None else gw.clock.now(),
        fault=fault,
        facts=_said(signal, judgement, row),
    )


def _node_ready(gw: Gateways, signal: Signal) -> None:
    """The agent is up after a boot: note it and answer whoever waits for this node."""
    assert signal.node_id is not None
    at = signal.time if signal.time is not None else gw.clock.now()
    sets: dict[Any, Any] = {
        "ready_at": at,
        "check": {"passed": signal.evidence["passed"], "reason": signal.evidence["reason"]},
        "boot_id": signal.evidence.get("boot_id"),
    }
    for name in ("name", "address"):
        if signal.evidence.get(name):
            sets[name] = signal.evidence[name]
    # An agent that only started anew tells of the same boot, which proves no reboot.
    newer = (missing("ready_at") | below("ready_at", at)) & differs("boot_id", sets["boot_id"])
    try:
        row = gw.ledger.note_node(signal.node_id, sets, when=newer)
    except Conflict as conflict:
        row = conflict.row or {}
    waiting = row.get("waiting")
    if waiting and float(row["ready_at"]) > float(waiting["since"]):
        gw.ledger.step(waiting["incident_id"], Step.READY, float(row["ready_at"]))
        gw.workflows.answer(waiting["token"], {"result": "DONE", "reason": "", "node_id": signal.node_id})


def _cancel(gw: Gateways, row: Row) -> None:
    """A healthy report ends its own session, before anything destructive was recorded.

    Stopping the execution calls sweep, which takes back what the session had begun (lambdas/undoing.py).
    """
    session = int(row["session"])
    name = f"{row['node_id']}-{session}"
    reason = "the node is healthy again"
    if not gw.ledger.close(row["node_id"], session, Phase.CANCELLED, gw.clock.now(), reason, seen=row):
        return
    if row.get("execution_arn"):
        gw.workflows.stop(row["execution_arn"], "cancelled by a healthy report")
    gw.breaker.release(name, str((row.get("fault") or {}).get("detector", "unknown")))
    if row.get("job_id") and not undoing.outstanding(gw.ledger.node(row["node_id"]) or {}):
        incident = {"job_id": row["job_id"], "node_id": row["node_id"], "incident_id": name}
        resuming.node_settled(gw, incident, "", "")


def _outcome_facts(gw: Gateways, signal: Signal, judgement: Judgement, text: str) -> dict[Any, Any]:
    found: dict[Any, Any] = {
        "event_id": signal.event_id,
        "source": signal.source,
        "detail_type": signal.detail_type,
        "node_id": signal.node_id,
        "kind": signal.kind.value,
        "code": signal.code,
        "outcome": judgement.outcome.value,
        "action": judgement.action.value if judgement.action else None,
        "rule": judgement.rule,
        "reason": judgement.reason,
        "mode": judgement.mode.value,
        "injected": signal.injected,
    }
    return {**found, **_body(gw, text)}


def _body(gw: Gateways, text: str) -> dict[str, str]:
    """The event itself, or where it lies in the bucket: a row is no place for a megabyte."""
    body = text.encode()
    if len(body) <= INLINE_BYTES:
        return {"event": text}
    key = f"events/{hashlib.sha256(body).hexdigest()[:40]}.json"
    gw.objects.put(key, body)
    return {"event_key": key}
