"""Replays of any recorded course: one line per stored event in its order, and never an exception."""

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.core.event_rows import event_key
from planaria.core.fault import Action
from planaria.core.incident import Phase
from planaria.core.judge import Outcome
from planaria.core.parsers import parse
from planaria.core.policy import Mode, Policy
from planaria.recording import Recording, load, write
from planaria.replay import replay
from tests.core.test_any_value import EVENTS, nearly_events

NODES = ("i-0aaaaaaaaaaaaaaa1", "i-0bbbbbbbbbbbbbbb2")
T = 1772600767.0
fast = settings(max_examples=60, deadline=None, database=None)

times = st.floats(T - 4000, T + 4000).map(lambda at: round(at, 3))
scalars = st.none() | st.booleans() | st.integers(-(10**37), 10**37) | st.floats() | st.text(max_size=8)
anything = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(max_size=4), scalars, max_size=3)
"""What a row may hold: DynamoDB's numbers have at most 38 digits."""
nodes = st.sampled_from(NODES)


@st.composite
def stored(draw: st.DrawFn) -> list[dict[str, Any]]:
    """The rows of one event: as triage writes them, or with anything in them."""
    event = draw(st.sampled_from(EVENTS) | nearly_events())
    at, text = draw(times), json.dumps(event)
    common = {
        "at": at,
        "outcome": draw(st.sampled_from([*map(str, Outcome), "ODD"])),
        "action": draw(st.sampled_from([*map(str, Action)]) | st.none()),
        "rule": draw(st.sampled_from(["xid-79", "spot-interruption", "console"])),
        "event": text,
    }
    found = []
    for signal in parse(event):
        row = {"pk": event_key(signal.dedupe_key)[0], "sk": "OUTCOME", "node_id": signal.node_id, **common}
        for key in draw(
            st.sets(st.sampled_from(["node_id", "outcome", "event", "rule", "looked"]), max_size=1)
        ):
            row[key] = draw(anything)
        found.append(row)
    return found


incidents = st.fixed_dictionaries(
    {
        "pk": st.just("INCIDENT#x"),
        "sk": st.just("INCIDENT"),
        "incident_id": st.sampled_from(["a", "b", "c"]),
        "node_id": nodes | anything,
        "opened_at": times | anything,
    },
    optional={
        "closed_at": times | anything,
        "outcome": st.sampled_from([*map(str, Phase)]) | anything,
        "outcome_reason": st.sampled_from(["", "breaker: full"]) | anything,
        "action": st.sampled_from([*map(str, Action)]) | anything,
        "rule": st.sampled_from(["xid-79", "spot-interruption", "console"]) | anything,
        "fault": st.just({"kind": "xid", "code": "79", "detector": "agent_xid"}) | anything,
        "replacement_id": nodes | anything,
        "detected_at": times | anything,
    },
)
steps = st.fixed_dictionaries(
    {
        "step": st.sampled_from(["rebooted", "node_retired", "node_joined", "isolated"]) | anything,
        "at": times | anything,
    }
)
members = st.fixed_dictionaries(
    {"pk": st.just("NODE#x"), "sk": st.just("NODE"), "node_id": nodes | anything},
    optional={
        "gone": anything,
        "acts": st.dictionaries(st.sampled_from(["reboot", "terminate"]), times | anything) | anything,
        "admitted_at": times | anything,
        "replaces": nodes | anything,
        "replacements": st.lists(times) | anything,
        "instance_type": st.just("p5.48xlarge") | anything,
        "launched_at": times | anything,
        "name": anything,
        "job_id": anything,
    },
)


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    rows = [row for each in draw(st.lists(stored(), max_size=6)) for row in each]
    return Recording(
        "demo",
        events=sorted(rows, key=lambda row: (row["at"], row["pk"])),
        incidents=draw(st.lists(incidents, max_size=4)),
        steps=draw(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.lists(steps, max_size=3))),
        nodes=draw(st.lists(members, max_size=3)),
        counts={"NOT_MANAGED": {T // 3600 * 3600: 5}},
    )


policies = st.builds(
    Policy,
    mode=st.sampled_from(Mode),
    gpu_reset=st.booleans(),
    confirmation_seconds=st.sampled_from([0.0, 900.0]),
)


@fast
@given(recordings(), policies, st.integers(1, 3), st.sampled_from([float("-inf"), T]))
def test_one_line_per_event_whatever_was_recorded(
    recording: Recording, policy: Policy, cap: int, since: float
) -> None:
    told: list[None] = []
    found = replay(recording, policy, cap, since, lambda: told.append(None))
    wanted = [row for row in recording.events if row["at"] >= since]
    assert [line.row for line in found.lines] == wanted
    assert len(told) == len(recording.events)
    for line in found.lines:
        assert (line.now is None) <= bool(line.note)
        assert line.now is None or set(line.now) == {"outcome", "action", "rule", "reason", "mode"}
        assert line.now is not None or not line.differs
    counts = found.outcomes().values()
    assert sum(then for then, _ in counts) == len(found.lines)
    assert sum(now for _, now in counts) == sum(line.now is not None for line in found.lines)


@settings(max_examples=20, deadline=None, database=None)
@given(recordings(), policies)
def test_the_same_recording_is_judged_alike_each_time(recording: Recording, policy: Policy) -> None:
    assert replay(recording, policy, 2) == replay(recording, policy, 2)


@settings(max_examples=25, deadline=None, database=None)
@given(recordings())
def test_an_exported_file_is_the_same_recording(recording: Recording) -> None:
    recording.steps = {"a": [{"pk": "INCIDENT#a", "sk": "STEP#rebooted", "step": "rebooted", "at": T}]}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x.jsonl"
        lines = write(recording, file)
        again = load(file)
    with_steps = sum(incident["incident_id"] == "a" for incident in recording.incidents)
    assert again.steps.get("a", []) == recording.steps["a"] * with_steps
    assert again.counts == recording.counts and again.cluster == "demo"
    for name in ("events", "nodes", "incidents"):  # as text, for no NaN is like another
        assert json.dumps(getattr(again, name)) == json.dumps(getattr(recording, name))
    rows = len(recording.events) + len(recording.nodes) + len(recording.incidents)
    assert lines == 2 + rows + with_steps
