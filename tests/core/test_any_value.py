"""Properties: for any JSON value and any bytes there is no exception and one outcome per affected node."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.core.affected import affected
from planaria.core.fault import Action
from planaria.core.judge import Judgement, Outcome, judge
from planaria.core.kernel_log import KernelLog, pci, read
from planaria.core.node import NodeView
from planaria.core.parsers import AGENT, REGISTRY, parse, parse_text
from planaria.core.policy import Policy
from planaria.core.signal import Kind, Signal

EVENTS = [
    json.loads(path.read_text()) for path in sorted((Path(__file__).parents[1] / "events").glob("*.json"))
]
A = "i-0aaaaaaaaaaaaaaa1"
T = 1772600767.0

fast = settings(max_examples=150, deadline=None, database=None)

WORDS = [A, f"arn:aws:ec2:us-west-2:1:instance/{A}", "2026-03-04T05:06:07Z", "cr-0ddd", "Healthy", 10**400]
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(WORDS)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
sources = st.sampled_from(
    [f"planaria.node/AROA:{A}", "planaria.node/x", "planaria.gameday", "planaria.sweep", "aws.ec2", "", 3]
)
rows = st.fixed_dictionaries(
    {"node_id": st.just(A), "managed": st.booleans() | st.none()},
    optional={
        "phase": st.sampled_from(["CLAIMED", "RUNNING", "HEALED", "RETIRED", "CANCELLED", "odd"]) | st.none(),
        "action": st.sampled_from([*Action, "odd"]) | st.none(),
        "fault_kind": st.sampled_from([*Kind, "xid", "health_issue"]),
        "fault_code": st.text(max_size=5) | st.just("StatusCheckFailed_System"),
        "instance_type": st.sampled_from(["p4d.24xlarge", "p5.48xlarge", ""]),
        "opened_at": st.none() | st.floats(T - 1000, T + 1000),
        "ended_at": st.none() | st.floats(T - 1000, T + 1000),
        "acts": st.dictionaries(
            st.sampled_from(["reboot", "terminate", "launch", "stop"]), st.floats(T - 99, T + 99)
        ),
        "gone": st.booleans(),
        "session": st.integers(0, 10**13),
        "claim_id": st.sampled_from([event.get("id", "") for event in EVENTS]),
    },
)


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield prefix
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inner:
        yield from paths(child, (*prefix, key))


@st.composite
def nearly_events(draw: st.DrawFn) -> Any:
    """A recorded event with up to three values replaced or removed."""
    event = json.loads(json.dumps(draw(st.sampled_from(EVENTS))))
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.sampled_from([path for path in paths(event) if path] or [()]))
        if not path:
            break
        target = event
        for key in path[:-1]:
            target = target[key]
        if draw(st.booleans()):
            target[path[-1]] = draw(values)
        else:
            del target[path[-1]]
    return event


@st.composite
def typed_events(draw: st.DrawFn) -> Any:
    """Any detail under a known source and detail-type."""
    source, detail_type = draw(st.sampled_from(sorted(REGISTRY)))
    return {
        "detail-type": detail_type,
        "source": f"planaria.node/AROA:{A}" if source == AGENT else draw(st.just(source) | sources),
        **draw(
            st.dictionaries(st.sampled_from(["id", "time", "resources", "detail", "replay-name"]), values)
        ),
    }


def check(signals: list[Signal], node: NodeView | None, known: bool) -> None:
    assert signals
    named = [signal.node_id for signal in signals if signal.node_id is not None]
    assert len(named) == len(set(named))
    assert len({signal.dedupe_key for signal in signals}) == len(signals)
    for signal in signals:
        for one in affected(signal, [node] if node else []):
            end = judge(one, node, known=known, policy=Policy.default(), now=T)
            sound(one, end)


def sound(signal: Signal, end: Judgement) -> None:
    assert end.reason
    assert end.rule
    weighed = end.outcome in (Outcome.JOINED, Outcome.OBSERVED, Outcome.HELD, Outcome.OPENED)
    assert (end.action is not None) == weighed
    # What is stale has a meaning as well; it is only too late for it.
    assert (end.fault is not None) == weighed or end.outcome is Outcome.STALE
    assert (end.outcome is Outcome.INVALID) == bool(signal.invalid)
    assert not (end.raises and end.cancels)
    assert not (end.raises or end.cancels) or end.outcome is Outcome.JOINED
    if signal.node_id is None:
        assert end.outcome in (Outcome.INVALID, Outcome.DUPLICATE, Outcome.OBSERVED)
    if end.outcome is Outcome.OPENED and end.action is Action.MONITOR:
        assert end.job_id
    json.dumps(signal.evidence)


@fast
@given(values, st.booleans())
def test_any_json_value(value: Any, known: bool) -> None:
    check(parse(value), NodeView(A), known)


@fast
@given(st.binary(max_size=200) | st.text(max_size=200))
def test_any_bytes_and_any_text(content: bytes | str) -> None:
    check(parse_text(content), None, False)


@fast
@given(nearly_events() | typed_events(), rows, st.booleans())
def test_any_event_against_any_row(event: Any, row: dict[str, Any], known: bool) -> None:
    check(parse(event), NodeView.from_row(row), known)


@fast
@given(nearly_events())
def test_what_is_parsed_survives_the_wire(event: Any) -> None:
    again = parse_text(json.dumps(event))
    assert [signal.dedupe_key for signal in again] == [signal.dedupe_key for signal in parse(event)]


@fast
@given(
    st.lists(
        st.text(max_size=80) | st.sampled_from(["NVRM: Xid (PCI:", "SXid (", "fallen off the bus"]),
        max_size=20,
    )
)
def test_any_kernel_log(lines: list[str]) -> None:
    log = KernelLog()
    for line in lines:
        read(line)
        pci(line)
        log.feed(line)
