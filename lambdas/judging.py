"""One event: parse, judge against the ledger, act, record the outcome last."""

import dataclasses
import hashlib
from typing import Any

from lambdas import (
    advice,
    approvals,
    holding,
    job_events,
    looking,
    node_events,
    opening,
    planning,
    replacements,
    spares,
)
from planaria.core import claiming, parsers, pool
from planaria.core.fault import Action
from planaria.core.incident import ACTIVE
from planaria.core.judge import Judgement, Outcome, judge, memory_of
from planaria.core.node import NodeView
from planaria.core.planned import PLAN
from planaria.core.plans import facts
from planaria.core.policy import Mode
from planaria.core.pool import SpareState
from planaria.core.signal import Kind, Signal
from planaria.core.table import Conflict, Row
from planaria.wiring import Gateways

TRIES = 8  # a node's row may change between reading, noting and claiming
INLINE_BYTES = 4096

FORGETTABLE = (Outcome.NOT_MANAGED, Outcome.COVERED, Outcome.STALE)
"""What is no news of the node is not remembered of it either."""


def members(gw: Gateways, signal: Signal) -> list[NodeView]:
    """The nodes that could belong to a reservation; read only for an event that names one and no node."""
    if signal.kind is not Kind.CAPACITY_END or signal.node_id is not None:
        return []
    return [NodeView.from_row(row) for row in gw.ledger.nodes()]


def judge_signal(
    gw: Gateways, signal: Signal, text: str, answers: looking.Answers
) -> dict[str, Any] | Outcome:
    """What was done and recorded, or the outcome alone where it is only counted. answers: what EC2 says of
    the nodes of the same delivery."""
    now = gw.clock.now()
    prior = gw.ledger.outcome(signal.dedupe_key, now)
    waited = (Outcome.HELD, Outcome.JOINED) if PLAN in signal.evidence else (Outcome.HELD,)
    again = signal.source == parsers.SWEEP and (prior or {}).get("outcome") in waited
    if prior is not None and not again:
        return Outcome.DUPLICATE
    looked = False
    for _ in range(TRIES):
        row = row_of(gw, signal)
        if row is not None and _ended_already(signal, row):
            judgement = _opened_before(gw, signal, row, now)
            break
        try:
            judgement, row = _judge(gw, signal, row, now)
            if not looked and row is not None and looking.needed(signal, judgement, row):
                # EC2 may know more than the event: who asked for this end, or a person's opt-out tag.
                signal, looked = looking.look(gw, signal, row, answers), True
                signal = planning.confirmed(gw, signal, judgement, row)
                judgement, row = _judge(gw, signal, row_of(gw, signal), now)
            judgement = _act(gw, signal, judgement, row or {}, text)
            break
        except Conflict:
            continue
    else:
        raise Conflict(None)
    if judgement.outcome is Outcome.NOT_MANAGED:
        return judgement.outcome
    gw.ledger.record_outcome(signal.dedupe_key, now, _outcome_facts(gw, signal, judgement, text))
    return {
        "outcome": judgement.outcome.value,
        "node_id": signal.node_id,
        "code": signal.code,
        "rule": judgement.rule,
        "reason": judgement.reason,
    }


def _judge(gw: Gateways, signal: Signal, row: Row | None, now: float) -> tuple[Judgement, Row | None]:
    """Judge on the row that holds this signal too: of two signals that mean something together, the later
    one sees both, whoever came first. Raises Conflict when the row changes meanwhile."""
    policy = gw.cluster.policy
    view = NodeView.from_row(row) if row else None
    judgement = judge(signal, view, known=False, policy=policy, now=now)
    fault = judgement.fault
    if view is None or row is None or fault is None or judgement.outcome in FORGETTABLE:
        return judgement, row
    note = memory_of(signal, view, fault, now)
    if note is None:
        return judgement, row
    row = gw.table.write(row["pk"], row["sk"], sets=note.sets, removes=note.removes, when=note.when)
    return judge(signal, NodeView.from_row(row), known=False, policy=policy, now=now, fault=fault), row


def _opened_before(gw: Gateways, signal: Signal, row: Row, now: float) -> Judgement:
    judgement = judge(signal, NodeView.from_row(row), known=False, policy=gw.cluster.policy, now=now)
    return dataclasses.replace(
        judgement,
        outcome=Outcome.OPENED,
        action=Action(row["action"]),
        rule=str(row.get("rule", "")),
        reason="it opened the node's last session, which has ended since",
    )


def _ended_already(signal: Signal, row: Row) -> bool:
    """This event opened the node's last session, which is over; only the event's outcome got lost."""
    return row.get("claim_id") == signal.dedupe_key and row.get("phase") not in ACTIVE


def row_of(gw: Gateways, signal: Signal) -> Row | None:
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
    acting = judgement.mode is not Mode.OBSERVE
    if signal.replay or judgement.outcome in (Outcome.INVALID, Outcome.NOT_MANAGED):
        return judgement
    if signal.kind is Kind.AGENT:
        if signal.code == "node_ready":
            node_events.ready(gw, signal, row)
        elif signal.code == "job_step":
            job_events.first_step(gw, signal)
        elif signal.code == "checkpoint_saved":
            job_events.saved(gw, signal)
        elif signal.code == "job_exit" and acting and judgement.job_id:
            return job_events.exited(gw, signal, judgement)
    if not acting:
        return judgement
    if signal.healthy and row.get("planned"):
        planning.take_back(gw, row, signal)
    judgement = advice.weighed(gw, row, judgement)
    if judgement.plan is not None and judgement.plan.holds:
        planning.keep(gw, row, signal, judgement, _body(gw, text))
    elif judgement.cancels:
        node_events.cancel(gw, row)
    elif judgement.outcome is Outcome.OPENED or judgement.raises:
        if (theirs := _not_its_own(gw, signal, row, judgement)) is not None:
            return theirs
        now, judgement = gw.clock.now(), holding.strongest(row, judgement)
        claim = claiming.claim_of(signal, judgement, row, now)
        refusal = claiming.still_held(gw.breaker, judgement, row, now)
        refusal = refusal or opening.open_incident(gw, claim, row, judgement.raises)
        if refusal:
            if not planning.put_off(gw, row, signal, refusal):
                holding.hold(gw, row, judgement, _body(gw, text), judgement.reason, refusal)
            return dataclasses.replace(judgement, outcome=Outcome.HELD, reason=refusal)
        if judgement.mode is Mode.APPROVE:
            judgement = claiming.to_be_approved(judgement, gw.ledger.node(row["node_id"]) or {})
    elif judgement.outcome is Outcome.HELD:
        if (theirs := _not_its_own(gw, signal, row, judgement)) is not None:
            return theirs
        if planning.put_off(gw, row, signal, judgement.reason):
            return judgement
        if not holding.left_to_a_person(row, judgement):
            holding.hold(gw, row, judgement, _body(gw, text), _what(judgement), judgement.reason)
        elif said := claiming.said(signal, judgement, row):
            gw.ledger.note_node(row["node_id"], said)
    elif row and (said := claiming.said(signal, judgement, row)):
        row = gw.ledger.note_node(row["node_id"], said)
    if judgement.outcome in (Outcome.OBSERVED, Outcome.OPENED) and row:
        judgement = advice.heed(gw, row, signal, judgement)
    if judgement.outcome is Outcome.JOINED and judgement.fault is not None:
        approvals.waive(gw, row, judgement.fault.kind)
    return judgement


def _not_its_own(gw: Gateways, signal: Signal, row: Row, judgement: Judgement) -> Judgement | None:
    """The judgement of a spare's fault, which is its pool's, and of an unadmitted replacement's, which is
    that of the incident that launched it; None for all others. Also where it would be held, but not for a
    spare without a place to take, nor against the opt-out tag."""
    idle = pool.state_of(row) not in (None, SpareState.TAKEN)
    if judgement.outcome is Outcome.HELD and (idle or row.get("opted_out")):
        return None
    theirs = spares.judged(gw, row, judgement) or replacements.judged(gw, row, judgement)
    if theirs is not None and (said := claiming.said(signal, judgement, row)):
        gw.ledger.note_node(row["node_id"], said)
    return theirs


def _what(judgement: Judgement) -> str:
    fault = judgement.fault
    return f"{judgement.action} ({judgement.rule})" + (f" for {fault.kind} {fault.code}" if fault else "")


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
        "sources": judgement.sources,
        "mode": judgement.mode.value,
        "injected": signal.injected,
    }
    # What EC2 added to the event: whoever reads the row later must judge on the same facts.
    looked = {name: signal.evidence[name] for name in looking.ADDED if name in signal.evidence}
    return {**found, **({"looked": looked} if looked else {}), **_body(gw, text)}


def _body(gw: Gateways, text: str) -> dict[str, str]:
    """The event itself, or where it lies in the bucket: a row is no place for a megabyte."""
    body = text.encode()
    if len(body) <= INLINE_BYTES:
        return {"event": text}
    key = f"events/{hashlib.sha256(body).hexdigest()[:40]}.json"
    gw.objects.put(key, body)
    return {"event_key": key}
