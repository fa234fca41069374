"""How fast one core turns events into decisions: the recorded events of every source, over and over."""

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from aws_lambda_powertools.utilities.parser.models import EventBridgeModel
from pydantic import ValidationError

from benchmarks.report import Spread
from planaria.core import parsers
from planaria.core.classify import classify
from planaria.core.decision import decide
from planaria.core.fault import Fault
from planaria.core.judge import judge, memory_of
from planaria.core.node import NodeView
from planaria.core.policy import Policy
from planaria.core.signal import Signal

ROOT = Path(__file__).resolve().parents[1]
EVENTS = ROOT / "tests/events"
TOLD_AT = 1772600767.0  # the time of all recorded events
NOW = TOLD_AT + 1.0
NODE = "i-0aaaaaaaaaaaaaaa1"

SOURCES = ("aws.ec2", "aws.health", "aws.autoscaling", "aws.cloudwatch", "aws.sagemaker", "planaria.node",
           "planaria.sweep", "planaria.gameday")  # fmt: skip

# What the ledger knows of a node: nothing bad, a good deal, a session under way.
QUIET: dict[str, Any] = {
    "node_id": NODE, "managed": True, "listing": "NODE", "name": "demo-1", "group": "workers",
    "instance_type": "p5.48xlarge", "state": "running", "lifecycle": "on-demand", "gone": False,
    "launched_at": TOLD_AT - 90_000.0, "ready_at": TOLD_AT - 89_000.0, "job_id": "gpt", "address": "10.0.1.1",
}  # fmt: skip
KNOWN = QUIET | {
    "recent": {
        f"xid|{code}|0000:b3:00|": {
            "kind": "xid", "code": code, "pci": "0000:b3:00", "place": "", "detector": "agent_xid",
            "last": TOLD_AT - 3600.0, "minutes": [int(TOLD_AT // 60) - 60 * n for n in range(8, 0, -1)],
        }
        for code in ("13", "31", "43", "45", "48", "63", "74", "94")
    },
    "subjects": {"xid": {"kind": "xid", "code": "94", "since": TOLD_AT - 3600.0, "last": TOLD_AT - 3600.0}},
    "tried": {"reboot": {"at": TOLD_AT - 7200.0, "kind": "xid", "code": "48"}},
    "openings": [TOLD_AT - 7300.0], "session": 1772593467000, "phase": "HEALED", "action": "REBOOT",
    "claim_id": "earlier", "fault_kind": "xid", "fault_code": "48", "acts": {"reboot": TOLD_AT - 7200.0},
    "opened_at": TOLD_AT - 7300.0, "detected_at": TOLD_AT - 7301.0, "ended_at": TOLD_AT - 6900.0,
}  # fmt: skip
HEALING = KNOWN | {
    "session": 1772600757000, "phase": "RUNNING", "action": "REBOOT", "claim_id": "another",
    "opened_at": TOLD_AT - 10.0, "detected_at": TOLD_AT - 11.0, "ended_at": None, "acts": {},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Workload:
    """texts: events as SQS hands them over. nodes: what the ledger knows; the events take them in turn."""

    texts: tuple[str, ...]
    nodes: tuple[NodeView, ...]
    policy: Policy

    @property
    def signals(self) -> list[Signal]:
        return [signal for text in self.texts for signal in parsers.parse_text(text)]


def workload() -> Workload:
    """Every recorded event once, without the spaces that people read it with."""
    events = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(EVENTS.glob("*.json"))]
    texts = tuple(json.dumps(event, separators=(",", ":")) for event in events)
    nodes = tuple(NodeView.from_row(row) for row in (QUIET, KNOWN, HEALING))
    return Workload(texts, nodes, Policy.default())


def by_source(work: Workload) -> dict[str, Workload]:
    """The events of each source apart; `other` are broken ones and those of services that nobody reads."""
    found: dict[str, list[str]] = {}
    for text in work.texts:
        source = parsers.parse_text(text)[0].source
        name = "planaria.node" if source.startswith("planaria.node/") else source
        found.setdefault(name if name in SOURCES else "other", []).append(text)
    return {name: Workload(tuple(texts), work.nodes, work.policy) for name, texts in sorted(found.items())}


# --- ways through the core ------------------------------------------------------------------------------


def to_decision(work: Workload) -> int:
    """Text, signal, fault, decision in the light of what is known of the node; the number of signals."""
    number, nodes, policy, many = 0, work.nodes, work.policy, len(work.nodes)
    for text in work.texts:
        for signal in parsers.parse_text(text):
            node = nodes[number % many] if signal.node_id is not None else None
            decide(classify(signal, node, policy), node, policy, NOW if signal.time is None else signal.time)
            number += 1
    return number


def to_outcome(work: Workload) -> int:
    """As `to_decision`, and what the node's row would remember of it, and the outcome of the event."""
    number, nodes, policy, many = 0, work.nodes, work.policy, len(work.nodes)
    for text in work.texts:
        for signal in parsers.parse_text(text):
            node = nodes[number % many] if signal.node_id is not None else None
            fault = classify(signal, node, policy)
            if node is not None:
                memory_of(signal, node, fault, NOW)
            judge(signal, node, known=False, policy=policy, now=NOW, fault=fault)
            number += 1
    return number


def stages(work: Workload) -> dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]]:
    """Name of a stage -> (function, arguments of each call); those of a whole pass over the events."""
    policy, many = work.policy, len(work.nodes)
    signals = work.signals
    nodes = [
        work.nodes[number % many] if signal.node_id is not None else None
        for number, signal in enumerate(signals)
    ]
    faults: list[Fault] = [classify(s, node, policy) for s, node in zip(signals, nodes, strict=True)]
    triples = list(zip(signals, nodes, faults, strict=True))

    def decided(signal: Signal, node: NodeView | None, fault: Fault) -> None:
        decide(fault, node, policy, NOW if signal.time is None else signal.time)

    def remembered(signal: Signal, node: NodeView | None, fault: Fault) -> None:
        if node is not None:
            memory_of(signal, node, fault, NOW)

    def judged(signal: Signal, node: NodeView | None, fault: Fault) -> None:
        judge(signal, node, known=False, policy=policy, now=NOW, fault=fault)

    rows = [(row,) for row, _ in zip((QUIET, KNOWN, HEALING) * len(signals), signals, strict=False)]
    return {
        "json": (json.loads, [(text,) for text in work.texts if _is_json(text)]),
        "parse": (parsers.parse_text, [(text,) for text in work.texts]),
        "classify": (lambda s, node, _: classify(s, node, policy), triples),
        "decide": (decided, triples),
        "remember": (remembered, triples),
        "judge_with_decide": (judged, triples),
        "node_row": (NodeView.from_row, rows),
    }


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


# --- measuring ------------------------------------------------------------------------------------------


def per_second(through: Callable[[Workload], int], work: Workload, seconds: float) -> float:
    """Signals per second of processor time, over whole passes that take at least `seconds`."""
    number, start = 0, time.process_time()
    while (elapsed := time.process_time() - start) < seconds:
        number += through(work)
    return number / elapsed


def microseconds(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], per: int, seconds: float
) -> float:
    """Of one pass over the calls, divided by `per` signals; the loop around them taken off."""

    def passes(run: Callable[..., Any]) -> float:
        number, start = 0, time.process_time()
        while (elapsed := time.process_time() - start) < seconds:
            for arguments in calls:
                run(*arguments)
            number += 1
        return elapsed / number

    empty = passes(lambda *_: None)
    return max(0.0, passes(function) - empty) / per * 1e6


def single_events(work: Workload, seconds: float) -> list[float]:
    """Microseconds from an event's text to its outcomes, one value per event, sorted."""
    found: list[int] = []
    alone = [Workload((text,), work.nodes, work.policy) for text in work.texts]
    end = time.process_time() + seconds
    while time.process_time() < end:
        for one in alone:
            start = time.process_time_ns()
            to_outcome(one)
            found.append(time.process_time_ns() - start)
    return [nanoseconds / 1000 for nanoseconds in sorted(found)]


@dataclass(slots=True)
class Rival:
    """AWS's own reader of EventBridge events in Python, in turn with ours on the events that both take."""

    texts: list[str]
    theirs: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, work: Workload) -> "Rival":
        return cls([text for text in work.texts if _reads(text)])

    def run(self, seconds: float) -> None:
        calls = [(text,) for text in self.texts]
        self.theirs.append(microseconds(EventBridgeModel.model_validate_json, calls, len(calls), seconds))
        self.ours.append(microseconds(parsers.parse_text, calls, len(calls), seconds))

    def document(self) -> dict[str, Any]:
        """The first run is not counted."""
        ratios = [ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True)]
        return {
            "what": "text to the validated envelope alone, without the meaning of its detail",
            "events": len(self.texts),
            "microseconds_per_event": Spread.of(self.theirs[1:], 2).document(),
            "microseconds_per_event_of_parse_text": Spread.of(self.ours[1:], 2).document(),
            "ratio_parse_text_to_it": Spread.of(ratios[1:], 2).document(),
        }


def _reads(text: str) -> bool:
    try:
        EventBridgeModel.model_validate_json(text)
    except ValidationError:
        return False
    return True


@contextmanager
def one_core() -> Iterator[None]:
    """This process may use one processor only."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def measure(runs: int, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """`runs` runs of about `seconds` each per figure, in turn, after one that is not counted."""
    work = workload()
    number = len(work.signals)
    rates: dict[str, list[float]] = {"to_decision": [], "to_outcome": []}
    sources = by_source(work)
    each_source: dict[str, list[float]] = {}
    costs: dict[str, list[float]] = {}
    rival = Rival.of(work)
    middles: list[float] = []
    tails: list[float] = []
    with one_core():
        for run in range(runs + 1):
            say(f"decisions: run {run} of {runs}" if run else "decisions: warming up")
            for name, through in (("to_decision", to_decision), ("to_outcome", to_outcome)):
                rates[name].append(per_second(through, work, seconds))
            for name, part in sources.items():
                each_source.setdefault(name, []).append(per_second(to_decision, part, seconds / 5))
            for name, (function, calls) in stages(work).items():
                costs.setdefault(name, []).append(microseconds(function, calls, number, seconds / 5))
            rival.run(seconds / 5)
            each = single_events(work, seconds)
            middles.append(statistics.median(each))
            tails.append(each[int(len(each) * 0.99)])
    return {
        "recorded_events": len(work.texts),
        "signals_in_them": number,
        "mean_bytes": round(statistics.mean(len(text) for text in work.texts)),
        "signals_per_second_to_decision": Spread.of(rates["to_decision"][1:], 0).document(),
        "signals_per_second_to_outcome": Spread.of(rates["to_outcome"][1:], 0).document(),
        "signals_per_second_to_decision_by_source": {
            name: {"events": len(sources[name].texts), **Spread.of(found[1:], 0).document()}
            for name, found in each_source.items()
        },
        "microseconds_per_signal": {
            name: Spread.of(found[1:], 2).document() for name, found in costs.items()
        },
        "microseconds_per_event_to_outcome": {
            "median": Spread.of(middles[1:], 1).document(),
            "p99": Spread.of(tails[1:], 1).document(),
        },
        f"aws-lambda-powertools {version('aws-lambda-powertools')} EventBridgeModel": rival.document(),
    }
