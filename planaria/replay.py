"""`planaria replay`: the events that triage stored, judged again by today's code and policy.

The events come in the order in which they were judged then, each at its own time, against a ledger in
memory (offline_ledger.py). What else happened is taken from the record as it was and not judged again: when
incidents ended and how, what was done to a node and when, what a person ordered, what became of a job. A
session that the replay opens ends when the recorded one of that node ended; one that never was stays open.
Nothing is acted on, nothing is written.
"""

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from planaria.core.affected import affected
from planaria.core.claim import Claim
from planaria.core.event_rows import event_key
from planaria.core.fault import Action
from planaria.core.incident import ACTIVE, Phase, Step
from planaria.core.judge import Outcome
from planaria.core.node import NodeView
from planaria.core.parsers import parse_text
from planaria.core.policy import Mode, Policy
from planaria.core.signal import Signal
from planaria.core.table import Row
from planaria.offline_ledger import OfflineLedger
from planaria.recording import Recording

COMPARED = ("outcome", "action", "rule")
# What of a node's row is no matter of the time at which it is looked at.
_LASTING = ("name", "group", "instance_type", "zone", "lifecycle", "launched_at", "reservation", "job_id",
            "replaces", "replacements", "moves", "opted_out")  # fmt: skip
_OF_JOBS = frozenset({"OBSERVED", "STALE", "COVERED", "JOINED", "OPENED"})
_ACTS = {"rebooted": "reboot", "node_retired": "terminate"}


@dataclass(frozen=True, slots=True)
class Line:
    """One stored event. then, now: `outcome`, `action`, `rule`, `reason`, `mode`; now is None where it cannot
    be judged again, and note says why. differs: the compared keys that are not what they were."""

    row: Row
    then: Mapping[str, Any]
    now: Mapping[str, Any] | None
    differs: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Replay:
    """incidents_then, incidents_now: opened within the window, those included that no event opened."""

    lines: list[Line]
    incidents_then: int
    incidents_now: int

    def outcomes(self) -> dict[str, tuple[int, int]]:
        """outcome -> how often then and now, in the order in which outcomes are tried."""
        then = Counter(str(line.then.get("outcome")) for line in self.lines)
        now = Counter(str(line.now["outcome"]) for line in self.lines if line.now is not None)
        words = [str(word) for word in Outcome]
        words += sorted((set(then) | set(now)) - set(words))
        return {word: (then[word], now[word]) for word in words if then[word] or now[word]}


def replay(
    recording: Recording,
    policy: Policy,
    cap: int,
    since: float = float("-inf"),
    told: Callable[[], None] = lambda: None,
) -> Replay:
    """Exactly one line per event of the recording that was judged at or after `since`, in their order.

    Earlier events are judged for what they leave in the ledger's memory. cap: removals that the breaker
    allows. told: called once per event.
    """
    course = _Course(recording, policy, cap, since)
    # A crash between claim and outcome leaves a row of the redelivery; the claim says when it was judged.
    judged = [min(float(row["at"]), course.claimed_at(row)) for row in recording.events]
    lines: dict[int, Line] = {}
    for number in sorted(range(len(judged)), key=lambda number: judged[number]):
        course.advance(judged[number])
        lines[number] = course.judge(recording.events[number], judged[number])
        told()
    course.advance(float("inf"))
    shown = [lines[number] for number, row in enumerate(recording.events) if float(row["at"]) >= since]
    return Replay(shown, course.incidents_then, course.incidents_now)


@dataclass(slots=True)
class _Incident:
    """event: key of the event row that claimed it; "" when no stored event did (a person, most often), so
    that it is given and not judged."""

    node: str
    opened_at: float
    closed_at: float | None
    outcome: str
    row: Row
    event: str


@dataclass(slots=True)
class _Spell:
    """One quarantine of a node as it was: an incident and those that superseded it."""

    incidents: list[_Incident]

    @property
    def start(self) -> float:
        return self.incidents[0].opened_at

    @property
    def end(self) -> float | None:
        return self.incidents[-1].closed_at


class _Course:
    """The ledger as it was at any time, but for the sessions, which the replay opens by itself."""

    def __init__(self, recording: Recording, policy: Policy, cap: int, since: float) -> None:
        self._offline = OfflineLedger(policy, cap)
        self._ledger = self._offline.ledger
        self._since = since
        self._timed: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()
        self._bound: dict[str, tuple[int, _Spell | None]] = {}
        self._spells: dict[str, list[_Spell]] = {}
        self.incidents_then = self.incidents_now = 0
        self._claimed: dict[str, float] = {}
        first: dict[str, Row] = {}
        for row in recording.events:
            first.setdefault(_text(row.get("node_id")), row)
        incidents = _incidents(recording.incidents, {row["pk"] for row in recording.events})
        lost = {incident.node for incident in incidents if incident.opened_at >= since}
        for row in recording.nodes:
            node = _text(row.get("node_id"))
            stale = first.get(node, {}).get("outcome") == Outcome.STALE
            self._place(node, row, stale and node not in lost)
        for incident in incidents:
            self._claimed.setdefault(incident.event, incident.opened_at)
            self._plan(incident, recording.steps.get(_text(incident.row.get("incident_id")), []))

    def claimed_at(self, row: Row) -> float:
        """When this event claimed an incident; infinity when it did not."""
        return self._claimed.get(row["pk"], float("inf"))

    # --- what was ----------------------------------------------------------------------------------

    def _place(self, node: str, row: Row, stale: bool) -> None:
        """A node with what lasts; what it became in time happens in the course of the replay. stale: what is
        recorded of it begins with a stale event, so if it is gone, it was gone before."""
        if not node:
            return
        facts: dict[Any, Any] = {name: row[name] for name in _LASTING if name in row}
        if stale and row.get("gone") is True:
            facts["gone"] = True
        self._ledger.note_node(node, facts)
        acts = row.get("acts")
        for act, at in (acts if isinstance(acts, Mapping) else {}).items():
            self._at(at, lambda now, act=act: self._act(node, str(act), now))  # type: ignore[misc]
        if "admitted_at" in row:
            self._at(row["admitted_at"], lambda now: self._note(node, {"admitted_at": now}))

    def _plan(self, incident: _Incident, steps: list[Row]) -> None:
        """Put one recorded incident into the course of time."""
        spells = self._spells.setdefault(incident.node, [])
        follows = bool(spells) and spells[-1].incidents[-1].outcome == Phase.SUPERSEDED
        if follows:
            spell = spells[-1]
            spell.incidents.append(incident)
        else:
            spell = _Spell([incident])
            spells.append(spell)
        if incident.opened_at >= self._since:
            self.incidents_then += 1
        self._at(incident.opened_at, lambda now: self._begin(spell, incident, now))
        for step in steps:
            if act := _ACTS.get(_text(step.get("step"))):
                self._at(step.get("at"), lambda now, act=act: self._act(incident.node, act, now))  # type: ignore[misc]
            if step.get("step") == Step.ISOLATED:
                self._at(step.get("at"), lambda now: self._note(incident.node, {"isolation": {"at": now}}))
        new = incident.row.get("replacement_id")
        if incident.outcome == Phase.HEALED and isinstance(new, str) and new:
            joined = next((step.get("at") for step in steps if step.get("step") == "node_joined"), None)
            at = joined if _number(joined) is not None else incident.closed_at
            self._at(at, lambda _: self._note(incident.node, {"replaced_by": new}))
        self._at(incident.closed_at, lambda now: self._end(spell, incident, now))

    def _at(self, at: object, happens: Callable[[float], None]) -> None:
        moment = _number(at)
        if moment is not None:
            heapq.heappush(self._timed, (moment, next(self._numbers), happens))

    def advance(self, now: float) -> None:
        """Let happen what happened before then: an incident is opened and cancelled by its event."""
        while self._timed and self._timed[0][0] < now:
            at, _, happens = heapq.heappop(self._timed)
            happens(at)

    def _begin(self, spell: _Spell, incident: _Incident, now: float) -> None:
        row = self._ledger.node(incident.node) or {"node_id": incident.node}
        active = row.get("phase") in ACTIVE
        if active and self._spell_of(row) is None:
            self._bound[incident.node] = int(row["session"]), spell
        if incident.event:
            return
        action = _action(incident.row.get("action"))
        stronger = active and action.strength > _action(row.get("action")).strength
        if active and not stronger:
            return
        fault = incident.row.get("fault")
        claim = Claim(
            node_id=incident.node,
            claim_id=f"recorded/{incident.row.get('incident_id')}",
            action=action.value,
            reason=_text(incident.row.get("reason")),
            rule=_text(incident.row.get("rule")),
            mode=Mode.ACT.value,
            detected_at=_number(incident.row.get("detected_at")) or now,
            fault=fault if isinstance(fault, Mapping) else {},
        )
        if not self._offline.claim(claim, row, now, stronger):
            self._opened(incident.node, spell, now)

    def _end(self, spell: _Spell, incident: _Incident, now: float) -> None:
        row = self._ledger.node(incident.node) or {}
        last = spell.incidents[-1] is incident  # what superseded it goes on
        if last and row.get("phase") in ACTIVE and self._spell_of(row) is spell:
            reason = _text(incident.row.get("outcome_reason"))
            outcome = Phase(incident.outcome)
            self._ledger.close(incident.node, int(row["session"]), outcome, now, reason)
            if outcome in (Phase.HEALED, Phase.CANCELLED):
                self._note(incident.node, {"isolation": {}})

    def _act(self, node: str, act: str, now: float) -> None:
        """An act is a fact, whether or not the replay has a session for it: its effects are our own."""
        row = self._ledger.node(node) or {}
        if row.get("phase") in ACTIVE:
            self._ledger.act(node, int(row["session"]), row, act, now)
        else:
            self._note(node, {"acts": {**(row.get("acts") or {}), act: now}})

    def _note(self, node: str, facts: Mapping[Any, Any]) -> None:
        self._ledger.note_node(node, facts)

    # --- what is judged ------------------------------------------------------------------------------

    def judge(self, row: Row, at: float) -> Line:
        then = {key: row.get(key) for key in (*COMPARED, "reason", "mode")}
        text = row.get("event")
        if not isinstance(text, str):
            return Line(row, then, None, note=_text(row.get("unread")) or "its text was not stored")
        signal = signal_of(row, text)
        if signal is None:
            return Line(row, then, None, note="today its text gives no signal about this node")
        looked = row.get("looked")
        if isinstance(looked, Mapping):  # what EC2 added to the event then
            signal = replace(signal, evidence={**signal.evidence, **looked})
        if signal.node_id is not None and self._ledger.node(signal.node_id) is None:
            self._note(signal.node_id, {})  # what is not managed is counted and has no row
        before = self._session(signal.node_id)
        judgement, _ = self._offline.judge(signal, at)
        if signal.node_id is not None and self._session(signal.node_id) != before:
            self._opened(signal.node_id, self._spell_at(signal.node_id, row["pk"], at), at)
        now = {
            "outcome": judgement.outcome.value,
            "action": judgement.action.value if judgement.action is not None else None,
            "rule": judgement.rule,
            "reason": judgement.reason,
            "mode": judgement.mode.value,
        }
        note = ""
        acting = judgement.mode is not Mode.OBSERVE
        if acting and signal.code == "job_exit" and judgement.job_id and _text(then["outcome"]) in _OF_JOBS:
            now |= {"outcome": then["outcome"], "action": then["action"], "reason": _text(then["reason"])}
            note = "what became of the job is taken as it was"
        # A row without the key (it was written after a crash) says nothing that could differ.
        differs = tuple(key for key in COMPARED if key in row and row[key] != now[key])
        return Line(row, then, now, differs, note)

    def _opened(self, node: str, spell: _Spell | None, now: float) -> None:
        row = self._ledger.node(node) or {}
        if row.get("phase") in ACTIVE:
            self._bound[node] = int(row["session"]), spell
            self.incidents_now += now >= self._since

    def _session(self, node: str | None) -> tuple[object, bool]:
        row = (self._ledger.node(node) if node is not None else None) or {}
        return row.get("session"), row.get("phase") in ACTIVE

    def _spell_of(self, row: Row) -> _Spell | None:
        """The recorded quarantine that the node's present session stands for."""
        session, spell = self._bound.get(_text(row.get("node_id")), (None, None))
        return spell if session == row.get("session") else None

    def _spell_at(self, node: str, event: str, now: float) -> _Spell | None:
        """The recorded quarantine that a session opened by this event stands for: the event's own, or the one
        under way. One that begins later takes over a session that it finds."""
        for spell in self._spells.get(node, []):
            own = any(incident.event == event for incident in spell.incidents)
            if own or (spell.start <= now and (spell.end is None or now < spell.end)):
                return spell
        return None


def _incidents(rows: Iterable[Row], events: Collection[str]) -> list[_Incident]:
    """The nodes' incidents in the order of their opening, without those that the breaker never let begin."""
    found = []
    for row in rows:
        node, opened = row.get("node_id"), _number(row.get("opened_at"))
        outcome, reason = _text(row.get("outcome")), _text(row.get("outcome_reason"))
        if not isinstance(node, str) or not node or opened is None:
            continue  # a job's resume stands in no node's way
        if outcome and outcome not in {str(phase) for phase in Phase}:
            continue
        if outcome == Phase.CANCELLED and reason.startswith("breaker:"):
            continue
        event = event_key(_text(row.get("claim_id")))[0]
        closed = _number(row.get("closed_at")) if outcome else None
        found.append(_Incident(node, opened, closed, outcome, row, event if event in events else ""))
    return sorted(found, key=lambda incident: (incident.opened_at, _text(incident.row.get("incident_id"))))


def signal_of(row: Row, text: str) -> Signal | None:
    """The signal of the text that this row is about: one event may tell of several nodes."""
    node = row.get("node_id")
    mine = NodeView(node) if isinstance(node, str) and node else None
    found: list[Signal] = []
    for signal in parse_text(text):
        reservation = signal.evidence.get("reservation")
        member = [replace(mine, reservation=str(reservation))] if mine is not None and reservation else []
        found += affected(signal, member)
    for signal in found:
        if event_key(signal.dedupe_key)[0] == row.get("pk"):
            return signal
    same = [signal for signal in found if signal.node_id == node]
    return same[0] if len(same) == 1 else None


def _action(value: object) -> Action:
    return Action(value) if isinstance(value, str) and value in Action.__members__ else Action.MONITOR


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e12 < value < 1e12:
        return None
    return float(value)
