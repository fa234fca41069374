"""Properties of the judge and its memory: total, one answer each, the same for any order of the same facts.

A delivery is judged here as triage does it: judge, note what is to be remembered on the row, judge again.
"""

import itertools
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lambdas.judging import FORGETTABLE
from planaria.core import history
from planaria.core.classify import classify
from planaria.core.correlate import correlate
from planaria.core.decision import decide
from planaria.core.fault import Action, Fault, Severity
from planaria.core.history import ENTRIES, FORGOTTEN_SECONDS, FRESH_SECONDS, MINUTES, Note
from planaria.core.judge import Judgement, Outcome, judge, memory_of
from planaria.core.node import NodeView
from planaria.core.parsers import parse, parse_text
from planaria.core.policy import Policy
from planaria.core.signal import Kind, Signal
from planaria.core.table import holds
from planaria.memory.table import MemoryTable
from tests.core.test_any_value import EVENTS, A, T, nearly_events, rows, sound, typed_events, values

Row = dict[str, Any]
POLICY = Policy.default()
fast = settings(max_examples=150, deadline=None, database=None)


def fault_of(word: str) -> Fault:
    """A fault from `kind|code|pci|place|detector|confidence`."""
    kind, code, pci, place, detector, confidence = word.split("|")
    return Fault(kind, code, Severity.FATAL, detector, float(confidence), pci=pci, place=place)


FAULTS = [
    "xid|13|0000:b3:00|gpc1/tpc3|agent_xid|1", "xid|13|0000:b3:00|gpc2/tpc0|agent_xid|1",
    "xid|31|0000:b3:00||agent_xid|1", "xid|45|0000:b3:00||agent_xid|1", "xid|48|0000:b3:00||agent_xid|1",
    "xid|63|0000:b3:00||agent_xid|1", "xid|74|0000:b4:00||agent_xid|1", "xid|79|0000:b4:00||agent_xid|1",
    "xid|94|0000:b3:00||agent_xid|1", "sxid|12028|||agent_sxid|1",
    "gpu_ecc|sram_uncorrectable|||agent_gpu_ecc|0.5", "gpu_remap|failure|||agent_gpu_remap|0.5",
    "efa|missing|||agent_efa|0.5", "nvlink|down|||agent_nvlink|0.5",
    "status_check|StatusCheckFailed_System|||ec2_status|1", "node_health|NvidiaErrorReboot|||hyperpod|1",
    "node_condition|NetworkingReady/IPAMDNotReady|||eks|0.5",
    "node_condition|Ready/KubeletNotReady|||eks|0.5", "node_health|silent|||sweep|0.5",
]  # fmt: skip
REPORTERS = [
    "status_check|StatusCheckFailed_System|||ec2_status|1", "node_health|NvidiaErrorReboot|||hyperpod|1",
    "node_condition|NetworkingReady/IPAMDNotReady|||eks|0.5",
    "node_condition|NetworkingReady/InterfaceNotUp|||eks|0.5",
    "node_condition|AcceleratedHardwareReady/NvidiaXID79Error|||eks|1",
]  # fmt: skip
"""Sources that report a subject well again."""

moments = st.integers(0, 6000).map(lambda tenths: T - 600 + tenths / 10)


def note_of(signal: Signal, view: NodeView, now: float) -> Note | None:
    return memory_of(signal, view, classify(signal, view, POLICY), now)


# --- total ---------------------------------------------------------------------------------------

seen = st.fixed_dictionaries(
    {"kind": st.sampled_from(["xid", "status_check", "odd"]), "code": st.text(max_size=4), "last": moments},
    optional={
        "pci": st.just("0000:b3:00"), "place": st.just("gpc1/tpc3"), "detector": st.just("agent_xid"),
        "minutes": st.lists(st.integers(0, int(T)), max_size=4),
    },
)  # fmt: skip
standing = st.fixed_dictionaries(
    {}, optional={"kind": st.just("xid"), "code": st.text(max_size=4), "since": moments, "last": moments,
                  "well": moments},
)  # fmt: skip
histories = st.fixed_dictionaries(
    {},
    optional={
        "recent": st.dictionaries(st.text(max_size=6) | st.sampled_from(["xid|48||"]), seen, max_size=40),
        "subjects": st.dictionaries(st.text(max_size=6) | st.sampled_from(["xid"]), standing, max_size=40),
        "tried": st.dictionaries(
            st.sampled_from(["reboot", "reset"]),
            st.fixed_dictionaries({"at": moments, "kind": st.just("xid")}),
        ),
        "openings": st.lists(moments, max_size=4),
        "replacements": st.lists(moments, max_size=4),
        "opted_out": st.booleans(),
        "launched_at": st.none() | moments,
        "job_id": st.none() | st.just("gpt"),
    },
)  # fmt: skip
any_row = st.builds(lambda row, more: {**row, **more}, rows, histories).map(
    # A row has both maps or neither: the first note makes both.
    lambda row: {**row, "subjects": row.get("subjects", {})} if "recent" in row else without(row, "subjects")
)


def without(row: Row, *names: str) -> Row:
    return {name: value for name, value in row.items() if name not in names}


def timeless(event: Any) -> Any:
    """The event without any word of when it was."""
    if isinstance(event, list):
        return [timeless(value) for value in event]
    if not isinstance(event, dict):
        return event
    return {name: timeless(value) for name, value in event.items() if "time" not in str(name).lower()}


recorded = st.sampled_from(EVENTS)


@fast
@given(nearly_events() | typed_events() | values | recorded | recorded.map(timeless), any_row, moments)
def test_any_event_against_any_row_has_one_judgement_and_a_note_that_can_be_written(
    event: Any, row: Row, now: float
) -> None:
    for signal in parse(event):
        judged(replace(signal, node_id=None if signal.node_id is None else A), row, now)


@fast
@given(st.binary(max_size=300) | st.text(max_size=300), any_row, moments)
def test_any_bytes_have_one_judgement(content: bytes | str, row: Row, now: float) -> None:
    (signal,) = parse_text(content)
    assert judged(signal, row, now).outcome is Outcome.INVALID


@fast
@given(
    nearly_events(), st.dictionaries(st.text(max_size=10) | st.sampled_from([*NodeView.__slots__]), values)
)
def test_any_row_at_all_is_judged(event: Any, row: Row) -> None:
    """Attributes of any type, as a defect may have left them; the maps are left out: nobody else
    writes them."""
    view = NodeView.from_row({**without(row, "recent", "subjects", "tried"), "node_id": A, "managed": True})
    for signal in parse(event):
        sound(signal, judge(signal, view, known=False, policy=POLICY, now=T))
        note_of(signal, view, T)


def judged(signal: Signal, row: Row, now: float) -> Judgement:
    """The judgement, after checking that it is one and that its note writes what it says it would."""
    view = NodeView.from_row(row)
    end = judge(signal, view, known=False, policy=POLICY, now=now)
    assert type(end) is Judgement
    sound(signal, end)
    assert judge(signal, view, known=False, policy=POLICY, now=now) == end
    note = note_of(signal, view, now)
    if note is not None:
        table = MemoryTable()
        before = table.write("NODE", "NODE", sets=row)
        assert holds(note.when, before)
        after = table.write("NODE", "NODE", sets=note.sets, removes=note.removes, when=note.when)
        assert after == note.onto(before)
        sound(signal, judge(signal, NodeView.from_row(after), known=False, policy=POLICY, now=now))
        json.dumps(after)
    return end


# --- the memory ----------------------------------------------------------------------------------


def told(deliveries: Iterable[tuple[Signal, float]], row: Row | None = None) -> Row:
    """The row after triage has noted these signals, each delivered at its own moment."""
    row = row or {"node_id": A, "managed": True}
    for signal, now in deliveries:
        view = NodeView.from_row(row)
        if judge(signal, view, known=False, policy=POLICY, now=now).outcome in FORGETTABLE:
            continue
        note = note_of(signal, view, now)
        if note is not None:
            row = note.onto(row)
    return row


def remembered(deliveries: Iterable[tuple[str, float, bool]]) -> tuple[Any, Any]:
    """recent and subjects after faults and healthy reports, by the notes alone."""
    row: Row = {"node_id": A, "managed": True}
    for word, at, healthy in deliveries:
        what = fault_of(word)
        view = NodeView.from_row(row)
        well = history.well_since(view, what)
        if not healthy and well is not None and at < well:
            continue  # STALE to the judge, and not remembered
        note = history.remember(view, what, at, healthy)
        row = row if note is None else note.onto(row)
    return row.get("recent", {}), row.get("subjects", {})


@st.composite
def orders(draw: st.DrawFn, words: list[str], well: bool, gap: int = 1) -> tuple[list[Any], list[Any]]:
    """A set of reports with distinct times, `gap` tenths of a second apart or more, and another order of it
    with duplicates."""
    times = draw(
        st.lists(st.integers(0, 6000 // gap), unique=True, min_size=1, max_size=7).map(
            lambda found: [T - 600 + tenths * gap / 10 for tenths in found]
        )
    )
    healthy = st.booleans() if well else st.just(False)
    facts = [(draw(st.sampled_from(words)), at, draw(healthy)) for at in times]
    again = draw(st.lists(st.sampled_from(facts), max_size=4))
    return sorted(facts, key=lambda fact: fact[1]), draw(st.permutations([*facts, *again]))


@fast
@given(orders(FAULTS, well=False, gap=601))
def test_faults_in_any_order_and_number_leave_the_same_memory(both: tuple[list[Any], list[Any]]) -> None:
    """Of different minutes, within FORGOTTEN_SECONDS and ENTRIES; beyond them what is oldest in the order of
    arrival is let go."""
    facts, delivered = both
    assert remembered(delivered) == remembered(facts)


@fast
@given(orders(FAULTS, well=False))
def test_faults_of_the_same_minute_leave_a_memory_that_is_alike(both: tuple[list[Any], list[Any]]) -> None:
    """A storm writes a row a few times a minute: `last` is exact to FRESH_SECONDS, `since` to the minute."""
    facts, delivered = both
    (recent, subjects), others = remembered(facts), remembered(delivered)
    assert (recent.keys(), subjects.keys()) == (others[0].keys(), others[1].keys())
    for name, entry in recent.items():
        assert {**entry, "last": 0} == {**others[0][name], "last": 0}
        assert abs(entry["last"] - others[0][name]["last"]) <= FRESH_SECONDS
    for name, entry in subjects.items():
        assert abs(entry["last"] - others[1][name]["last"]) <= FRESH_SECONDS
        assert abs(entry["since"] - others[1][name]["since"]) < 60


@fast
@given(orders(REPORTERS, well=True, gap=601))
def test_healthy_reports_among_them_leave_the_same_memory_in_any_order(
    both: tuple[list[Any], list[Any]],
) -> None:
    """Of different minutes. Of what was bad after the newest healthy report, its beginning may be the newest
    bad report where that healthy one came late: no session is judged by it, only how long it has lasted."""
    facts, delivered = both
    (recent, subjects), (expected_recent, expected) = remembered(delivered), remembered(facts)
    assert recent == expected_recent
    assert subjects.keys() == expected.keys()
    for name, entry in subjects.items():
        assert {**entry, "since": 0} == {**expected[name], "since": 0}
        assert expected[name].get("since", 0) <= entry.get("since", 0) <= entry.get("last", 0)


@fast
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["xid", "efa", "status_check"]), st.integers(0, 60), st.integers(-(10**7), 10**7)
        ),
        max_size=80,
    ),
    st.booleans(),
)
def test_the_memory_is_bounded(reports: list[tuple[str, int, int]], healthy: bool) -> None:
    row: Row = {"node_id": A, "managed": True}
    for kind, code, seconds in reports:
        fault = Fault(kind, f"{code}", Severity.FATAL, "agent", pci="p" * 300)
        note = history.remember(NodeView.from_row(row), fault, T + seconds, healthy and code % 3 == 0)
        row = row if note is None else note.onto(row)
        assert len(row.get("recent", {})) <= ENTRIES and len(row.get("subjects", {})) <= ENTRIES
        for name, entry in row.get("recent", {}).items():
            assert len(entry["minutes"]) <= MINUTES and len(name) <= 200
            assert entry["minutes"] == sorted(set(entry["minutes"]))
            assert entry["last"] // 60 == entry["minutes"][-1]


@fast
@given(
    st.sampled_from(FAULTS),
    st.lists(st.integers(0, 1600).map(lambda minute: 60 * minute), min_size=40, max_size=60),
)
def test_of_many_repeats_the_newest_minutes_stay_in_whatever_order(word: str, seconds: list[int]) -> None:
    facts = [(word, T + at, False) for at in seconds]
    (entry,) = remembered(facts)[0].values()
    newest = sorted({int((T + at) // 60) for at in seconds})
    kept = [minute for minute in newest if minute * 60 > T + max(seconds) - history.KEPT_SECONDS]
    assert entry["minutes"] == kept[-MINUTES:]
    assert remembered(reversed(facts))[0] == remembered(facts)[0]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_source_that_was_silent_for_long_begins_anew_in_any_order(order: tuple[int, ...]) -> None:
    """Reports further apart than FORGOTTEN_SECONDS with nothing between them."""
    word = REPORTERS[0]
    facts = [
        (word, T, False),
        (word, T + 2 * FORGOTTEN_SECONDS, False),
        (word, T + 2 * FORGOTTEN_SECONDS + 90, False),
    ]
    (entry,) = remembered(facts[number] for number in order)[1].values()
    assert (entry["since"], entry["last"]) == (facts[1][1], facts[2][1])


# --- meaning ---------------------------------------------------------------------------------------


def meanings(facts: Iterable[tuple[str, float, bool]]) -> tuple[Any, Any]:
    """What correlate and decide say of every fact once all are known, and the strongest action on the way."""
    row: Row = {"node_id": A, "managed": True, "instance_type": "p5.48xlarge"}
    strongest, listed = Action.MONITOR, list(facts)
    for word, at, _ in listed:
        fault = fault_of(word)
        note = history.remember(NodeView.from_row(row), fault, at, False)
        row = row if note is None else note.onto(row)
        strongest = max(strongest, decide(fault, NodeView.from_row(row), POLICY, at).action, key=strength)
    view = NodeView.from_row(row)
    ends = {(word, at): (correlate(fault_of(word), view, at), decide(fault_of(word), view, POLICY, at).action)
            for word, at, _ in listed}  # fmt: skip
    return ends, max([strongest, *(action for _, action in ends.values())], key=strength)


def strength(action: Action) -> int:
    return action.strength


@fast
@given(orders(FAULTS, well=False))
def test_once_all_is_known_every_order_means_the_same(both: tuple[list[Any], list[Any]]) -> None:
    facts, delivered = both
    assert meanings(delivered)[0] == meanings(facts)[0]


CORRELATED = [
    ("xid|48|0000:b3:00||agent_xid|1", "xid|63|0000:b3:00||agent_xid|1"),
    ("xid|63|0000:b3:00||agent_xid|1", "xid|48|0000:b3:00||agent_xid|1"),
    ("xid|74|0000:b4:00||agent_xid|1", "sxid|12028|||agent_sxid|1"),
    ("sxid|12028|||agent_sxid|1", "xid|74|0000:b4:00||agent_xid|1"),
    ("xid|45|0000:b3:00||agent_xid|1", "xid|79|0000:b3:00||agent_xid|1"),
]


@fast
@given(st.sampled_from(CORRELATED), st.integers(0, 2990), st.booleans())
def test_what_belongs_together_does_so_whichever_was_seen_first(
    pair: tuple[str, str], tenths: int, other_first: bool
) -> None:
    """Up to five minutes apart, whichever was told of first: the one that is judged last knows both."""
    at, other_at = (T + tenths / 10, T) if other_first else (T, T + tenths / 10)
    note = history.remember(NodeView(A), fault_of(pair[1]), other_at, False)
    assert note is not None
    view = NodeView.from_row(note.onto({"node_id": A, "managed": True}))
    assert correlate(fault_of(pair[0]), view, at) is not None
    assert correlate(fault_of(pair[0]), view, at + 900) is None


def final(facts: Iterable[tuple[str, float]]) -> Action:
    """The strongest action that triage takes while it is told of these faults one after the other."""
    row: Row = {"node_id": A, "managed": True, "instance_type": "p5.48xlarge"}
    strongest = Action.MONITOR
    for word, at in facts:
        fault = fault_of(word)
        note = history.remember(NodeView.from_row(row), fault, at, False)
        row = row if note is None else note.onto(row)
        strongest = max(strongest, decide(fault, NodeView.from_row(row), POLICY, at).action, key=strength)
    return strongest


@pytest.mark.parametrize("pair", list(itertools.combinations(FAULTS, 2)), ids=lambda pair: " + ".join(pair))
def test_of_two_faults_at_once_the_order_of_arrival_decides_nothing(pair: tuple[str, str]) -> None:
    first, second = (pair[0], T), (pair[1], T + 20)
    assert final([first, second]) is final([second, first])


# --- one source, bad and well ----------------------------------------------------------------------


def alarm(metric: str, state: str, at: float, identity: str) -> Signal:
    evidence = {"state": state, "instances": 1}
    return Signal(identity, identity, "aws.cloudwatch", "CloudWatch Alarm State Change", Kind.STATUS_CHECK, A,
                  metric, at, healthy=state == "OK", evidence=evidence)  # fmt: skip


def hyperpod(word: str, at: float, identity: str) -> Signal:
    evidence = {"status": word, "repair": "reboot"}
    return Signal(identity, identity, "aws.sagemaker", "SageMaker HyperPod Cluster Node Health Event",
                  Kind.NODE_HEALTH, A, "NvidiaErrorReboot", at, healthy=word == "Schedulable",
                  evidence=evidence)  # fmt: skip


def eks(word: str, at: float, identity: str) -> Signal:
    code = "AcceleratedHardwareReady/NvidiaXID79Error" if word == "False" else "AcceleratedHardwareReady/Fine"
    return Signal(identity, identity, "planaria.sweep", "EKS Node Monitoring Condition", Kind.NODE_CONDITION,
                  A, code, at, healthy=word == "True", evidence={"status": word})  # fmt: skip


SOURCES = {
    "system": lambda bad, at, name: alarm("StatusCheckFailed_System", "ALARM" if bad else "OK", at, name),
    "instance": lambda bad, at, name: alarm("StatusCheckFailed_Instance", "ALARM" if bad else "OK", at, name),
    "hyperpod": lambda bad, at, name: hyperpod("Unhealthy" if bad else "Schedulable", at, name),
    "eks": lambda bad, at, name: eks("False" if bad else "True", at, name),
}


class Desk:
    """What triage does with a judgement, as far as the node's row shows it: claim, supersede, cancel."""

    def __init__(self) -> None:
        self.row: Row = {"node_id": A, "managed": True, "instance_type": "p5.48xlarge"}

    def take(self, signal: Signal, now: float) -> Judgement:
        self.row = told([(signal, now)], self.row)
        view = NodeView.from_row(self.row)
        end = judge(signal, view, known=False, policy=POLICY, now=now)
        if end.outcome is Outcome.OPENED or end.raises:
            assert end.fault is not None and end.action is not None
            self.row |= {
                "session": int(self.row.get("session", 0)) + 1, "phase": "RUNNING",
                "action": end.action.value,
                "claim_id": signal.dedupe_key, "fault_kind": end.fault.kind, "fault_code": end.fault.code,
                "detected_at": signal.time, "opened_at": now,
            }  # fmt: skip
        elif end.cancels:
            self.row |= {"phase": "CANCELLED"}
        return end

    @property
    def active(self) -> bool:
        return NodeView.from_row(self.row).active


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("bad_is_newer", [True, False])
@pytest.mark.parametrize("apart", [0.5, 20.0, 70.0, 3000.0])
def test_a_fault_and_a_healthy_report_end_alike_in_both_orders(
    source: str, bad_is_newer: bool, apart: float
) -> None:
    """Both have come soon after they were sent, or the second one late."""
    bad_at, well_at = (T + apart, T) if bad_is_newer else (T, T + apart)
    bad, well = SOURCES[source](True, bad_at, "bad"), SOURCES[source](False, well_at, "well")
    desks = []
    for order in ((bad, well), (well, bad)):
        desk = Desk()
        for number, signal in enumerate(order):
            desk.take(signal, T + apart + 1 + number)
        desks.append((desk.active, desk.row.get("recent", {}), desk.row.get("subjects", {})))
    assert desks[0] == desks[1]
    assert desks[0][0] is bad_is_newer


@fast
@given(st.sampled_from(sorted(SOURCES)), st.data())
def test_the_newest_word_of_one_source_decides_whatever_the_order(source: str, data: st.DataObject) -> None:
    """Bad or well, several times, told in any order with duplicates: at the end a session is open exactly if
    the newest report is a bad one."""
    times = data.draw(st.lists(st.integers(0, 20), unique=True, min_size=1, max_size=5))
    reports = [(T + 60 * at, data.draw(st.booleans())) for at in times]
    signals = [SOURCES[source](bad, at, f"{number}") for number, (at, bad) in enumerate(reports)]
    desk = Desk()
    for number, signal in enumerate(data.draw(st.permutations(signals))):
        desk.take(signal, T + 1300 + number)
    assert desk.active is max(reports)[1]


@fast
@given(st.permutations(["bad", "well", "other"]), st.sampled_from(sorted(SOURCES)))
def test_a_healthy_report_takes_back_nothing_that_another_source_has_said(
    order: list[str], source: str
) -> None:
    """The other's fault asks for an act of its own, so at the end there is a session, whoever opened it."""
    other = Signal("other", "other", f"planaria.node/AROA:{A}", "Planaria Node Signal", Kind.AGENT, A, "48",
                   T + 10,
                   evidence={"kind": "xid", "message": "NVRM: Xid (PCI:0000:b3:00): 48, pid=1"})  # fmt: skip
    signals = {
        "bad": SOURCES[source](True, T, "bad"),
        "well": SOURCES[source](False, T + 20, "well"),
        "other": other,
    }
    desk = Desk()
    for number, name in enumerate(order):
        desk.take(signals[name], T + 30 + number)
    assert desk.active


@fast
@given(st.sampled_from(sorted(SOURCES)), st.sampled_from(sorted(SOURCES)), st.booleans())
def test_a_healthy_report_of_another_source_cancels_nothing(mine: str, other: str, late: bool) -> None:
    assume(mine != other)
    desk = Desk()
    desk.take(SOURCES[mine](True, T, "bad"), T + 1)
    end = desk.take(SOURCES[other](False, T + (5 if late else -5), "well"), T + 6)
    assert not end.cancels and desk.active
