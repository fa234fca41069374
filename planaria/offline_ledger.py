"""A cluster's ledger in memory, for events that are judged away from the cluster.

What triage would do about a judgement is noted as done (a session is claimed, cancelled, superseded, held by
the breaker), by the ledger's own code; nothing outside is touched and no act of ours is ever recorded here by
a judgement. Whoever has more to tell of the course of events (recorded ends, acts) writes it into `ledger`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from planaria.core import claiming, gates, planned
from planaria.core.breaker import Breaker
from planaria.core.claim import Claim
from planaria.core.fault import Action
from planaria.core.incident import ACTIVE, Phase, incident_id
from planaria.core.judge import Judgement, Outcome, judge, memory_of
from planaria.core.ledger import Ledger
from planaria.core.node import NodeView
from planaria.core.policy import Mode, Policy
from planaria.core.signal import Kind, Signal
from planaria.core.table import Conflict, Row, below, differs, missing
from planaria.memory.table import MemoryTable

_FORGETTABLE = frozenset({Outcome.NOT_MANAGED, Outcome.DUPLICATE, Outcome.COVERED, Outcome.STALE})
_UNRECORDED = frozenset({Outcome.INVALID, Outcome.NOT_MANAGED})


class OfflineLedger:
    """cap: removals that the breaker allows; None judges without a breaker."""

    def __init__(self, policy: Policy, cap: int | None = None) -> None:
        self.policy = policy
        self.table = MemoryTable()
        self.ledger = Ledger(self.table)
        self.breaker: Breaker | None = None
        if cap is not None:
            self.breaker = Breaker(self.table, cap, policy.breaker.window_seconds)
        self._known: set[str] = set()
        self._plans: set[tuple[str, str]] = set()

    def views(self) -> list[NodeView]:
        return [NodeView.from_row(row) for row in self.ledger.nodes()]

    def judge(self, signal: Signal, now: float) -> tuple[Judgement, NodeView | None]:
        """The judgement, and the node as the judge saw it. now: epoch seconds of the judgement."""
        row = self.ledger.node(signal.node_id) if signal.node_id is not None else None
        if row is not None:
            row = self._with_plan(signal, row, now)
        known = signal.dedupe_key in self._known
        judgement, row = self._judge(signal, row, known, now)
        view = NodeView.from_row(row) if row is not None else None
        if judgement.outcome not in _UNRECORDED:
            self._known.add(signal.dedupe_key)
        if row is not None and judgement.outcome is not Outcome.DUPLICATE:
            judgement = self._note(signal, judgement, row, now)
        return judgement, view

    def _judge(
        self, signal: Signal, row: Row | None, known: bool, now: float
    ) -> tuple[Judgement, Row | None]:
        """On the row that remembers this signal too (core/history.py), unless it is no news of the node."""
        view = NodeView.from_row(row) if row is not None else None
        judgement = judge(signal, view, known=known, policy=self.policy, now=now)
        fault = judgement.fault
        if row is None or view is None or fault is None or judgement.outcome in _FORGETTABLE:
            return judgement, row
        note = memory_of(signal, view, fault, now)
        if note is None:
            return judgement, row
        row = self.table.write(row["pk"], row["sk"], note.sets, note.removes, when=note.when)
        view = NodeView.from_row(row)
        return judge(signal, view, known=known, policy=self.policy, now=now, fault=fault), row

    def _note(self, signal: Signal, judgement: Judgement, row: Row, now: float) -> Judgement:
        """What triage would have done about it, as far as the ledger goes."""
        if signal.replay or judgement.outcome in _UNRECORDED:
            return judgement
        if signal.kind is Kind.AGENT and signal.code == "node_ready":
            self._ready(signal, now)
        if judgement.mode is Mode.OBSERVE:
            return judgement
        if gone := planned.taken_back(signal, NodeView.from_row(row).planned):
            row = self.table.write(row["pk"], row["sk"], removes=[("planned", name) for name in gone])
        if judgement.plan is not None and judgement.plan.holds:
            self._keep(signal, judgement, row, now)
            return judgement
        opened = judgement.outcome is Outcome.OPENED and judgement.action is not Action.MONITOR
        if judgement.cancels:
            self._cancel(row, now)
        elif opened or judgement.raises:
            return self._open(signal, judgement, row, now)
        elif judgement.outcome is Outcome.HELD:
            return self._held(signal, judgement, row, now)
        elif said := claiming.said(signal, judgement, row):
            self.ledger.note_node(row["node_id"], said)
        return judgement

    def _open(self, signal: Signal, judgement: Judgement, row: Row, now: float) -> Judgement:
        if self._lost_before_ready(row):
            return self._lost(signal, judgement, row)
        claim = claiming.claim_of(signal, judgement, row, now)
        refusal = claiming.still_held(self.breaker, judgement, row, now) if self.breaker is not None else ""
        refusal = refusal or self.claim(claim, row, now, judgement.raises)
        if refusal:
            self._hold(row, now)
            return dataclasses.replace(judgement, outcome=Outcome.HELD, reason=refusal)
        return claiming.to_be_approved(judgement, self.ledger.node(row["node_id"]) or {})

    def _lost(self, signal: Signal, judgement: Judgement, row: Row) -> Judgement:
        facts = {**claiming.said(signal, judgement, row), "lost": judgement.reason}
        self.ledger.note_node(row["node_id"], facts)
        parent = (self.ledger.node(str(row["replaces"])) if row.get("replaces") else None) or {}
        if parent.get("phase") in ACTIVE:
            outcome, what = Outcome.JOINED, "the incident that launched this node launches another"
        else:
            outcome, what = Outcome.OBSERVED, "it was launched for an incident that is over"
        reason = f"{judgement.reason}; {what}"
        return dataclasses.replace(judgement, outcome=outcome, raises=False, reason=reason)

    def _held(self, signal: Signal, judgement: Judgement, row: Row, now: float) -> Judgement:
        if not row.get("opted_out") and self._lost_before_ready(row):
            return self._lost(signal, judgement, row)
        fault, action = judgement.fault, judgement.action
        assert fault is not None and action is not None
        if not gates.left_to_a_person(fault, action, NodeView.from_row(row)):
            self._hold(row, now)
        elif said := claiming.said(signal, judgement, row):
            self.ledger.note_node(row["node_id"], said)
        return judgement

    def _hold(self, row: Row, now: float) -> None:
        self.ledger.note_node(row["node_id"], {"held_since": row.get("held_since") or now})

    def _keep(self, signal: Signal, judgement: Judgement, row: Row, now: float) -> None:
        assert judgement.plan is not None and judgement.fault is not None
        plans, own = NodeView.from_row(row).planned, planned.key(signal)
        found = planned.kept(plans, own, planned.entry(signal, judgement.fault, judgement.plan, now))
        self._plans.add((row["node_id"], own))
        if found:
            self.ledger.note_node(row["node_id"], {"planned": {**plans, **found}})

    def _with_plan(self, signal: Signal, row: Row, now: float) -> Row:
        """The row with the plan that this signal tells of again, where the events here begin after it."""
        name = signal.evidence.get(planned.PLAN)
        if name is None or (row["node_id"], name) in self._plans:
            return row
        self._plans.add((row["node_id"], name))
        plan: dict[str, Any] = {"kind": signal.kind.value, "code": signal.code}
        plan |= dict.fromkeys(("deadline", "latest", "said_at", "at"), now)
        plans = {**(row.get("planned") or {}), name: plan}
        return self.ledger.note_node(row["node_id"], {"planned": plans})

    def _lost_before_ready(self, row: Row) -> bool:
        """A replacement that was not admitted yet belongs to the incident that launched it."""
        if row.get("lost"):
            return True
        parent = self.ledger.node(str(row["replaces"])) if row.get("replaces") else None
        return parent is not None and parent.get("phase") in ACTIVE and not row.get("admitted_at")

    def claim(self, claim: Claim, row: Row, now: float, raises: bool = False) -> str:
        """Open a session; why the breaker holds it, "" when it is open."""
        claimed = self.ledger.claim(claim, row, now, raises)
        refusal = ""
        if self.breaker is not None:
            refusal = claiming.admit(self.ledger, self.breaker, claimed, now)
        if refusal:
            self.ledger.close(claim.node_id, claimed["session"], Phase.CANCELLED, now, refusal, held=claimed)
        else:
            self.ledger.end_superseded(claimed, now)
        return refusal

    def _cancel(self, row: Row, now: float) -> None:
        session = int(row["session"])
        reason = "the node is healthy again"
        self.ledger.close(row["node_id"], session, Phase.CANCELLED, now, reason, well=True)
        if self.breaker is not None:
            self.breaker.release(incident_id(row["node_id"], session), _detector(row))

    def _ready(self, signal: Signal, now: float) -> None:
        assert signal.node_id is not None
        at = signal.time if signal.time is not None else now
        boot = signal.evidence.get("boot_id")
        newer = (missing("ready_at") | below("ready_at", at)) & differs("boot_id", boot)
        try:
            self.ledger.note_node(signal.node_id, {"ready_at": at, "boot_id": boot}, when=newer)
        except Conflict:
            return


def _detector(row: Mapping[str, Any]) -> str:
    return str((row.get("fault") or {}).get("detector", "unknown"))
