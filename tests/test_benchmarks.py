"""The arithmetic of the benchmarks. Nothing is deployed here but one fleet of six records."""

import io
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import (
    bursts,
    control_plane,
    costs,
    decisions,
    healed,
    healing,
    lambda_probe,
    networks,
    observed,
    placement,
    storms,
    timelines,
    transitions,
    triage,
)
from benchmarks.bursts import Share
from benchmarks.costs import Usage
from benchmarks.fleet_world import Burst, HeldBurst
from benchmarks.processor import Metronome, Used
from benchmarks.recoveries import Recovery
from benchmarks.report import Aim, Machine, Reached, Spread, line
from benchmarks.screen import Screen
from benchmarks.storms import Plan, Weathered
from benchmarks.timelines import Beside, Marks
from planaria.core import parsers
from planaria.core.errors import PermanentError
from planaria.core.signal import Kind
from planaria.sandbox.errors import SandboxError

MARKS = Marks(
    fault=100.0, detected=100.1, triaged=100.3, begun=100.6, launched=101.0, ready=104.0, joined=104.2,
    resume_started=104.3, resume_begun=104.6, checkpoint_chosen=104.8, forked=105.0, met=105.4,
    first_step=105.7,
)  # fmt: skip
USAGE = Usage(state_transitions=32, lambda_requests=20, lambda_gb_seconds=0.5, dynamodb_write_units=70)


def recovery(**changes: float) -> Recovery:
    beside = Beside(isolated=0.1, job_stopped=0.2, node_retired=None, closed=5.0)
    return Recovery(
        "xid79", replace(MARKS, **changes), beside, USAGE, {"triage": 6, "isolate_node": 1}, 0.3, 4.5
    )


# --- seconds ------------------------------------------------------------------------------------------


def test_the_segments_add_up_to_the_whole_and_boot_and_rank_start_stand_apart() -> None:
    segments = timelines.split(MARKS)
    assert list(segments) == list(timelines.SEGMENTS)
    assert len(segments) == len(fields(Marks)) - 1
    assert sum(segments.values()) == pytest.approx(5.7)
    assert segments["boot"] == pytest.approx(3.0)
    assert segments["rank_start"] == pytest.approx(0.4)
    assert timelines.control_seconds(segments) == pytest.approx(2.3)


def test_a_mark_before_an_earlier_one_is_no_negative_time() -> None:
    segments = timelines.split(replace(MARKS, detected=99.0, joined=103.0))
    assert min(segments.values()) == 0
    assert sum(segments.values()) == pytest.approx(5.7)
    assert segments["triage"] == pytest.approx(0.3)


def test_what_goes_on_beside_counts_from_the_begin_and_may_be_missing() -> None:
    found = timelines.beside({"begun": 10.0, "isolated": 10.5, "closed": 12.0})
    assert found == Beside(0.5, None, None, 2.0)


def entered(name: str, at: float, kind: str = "Task") -> dict[str, Any]:
    when = datetime.fromtimestamp(at, UTC)
    return {"type": f"{kind}StateEntered", "timestamp": when, "stateEnteredEventDetails": {"name": name}}


def exited(name: str, at: float, kind: str = "Task") -> dict[str, Any]:
    when = datetime.fromtimestamp(at, UTC)
    return {"type": f"{kind}StateExited", "timestamp": when, "stateExitedEventDetails": {"name": name}}


def test_the_times_of_a_state_are_those_of_its_first_visit() -> None:
    events = [
        entered("A", 1),
        exited("A", 2),
        entered("B", 2),
        exited("B", 3),
        entered("A", 3),
        exited("A", 4),
    ]
    assert timelines.state_times(events, "A") == (1, 2)
    assert timelines.state_times(events, "B") == (2, 3)
    with pytest.raises(KeyError, match="never went through"):
        timelines.state_times(events[:3], "B")


# --- state transitions ----------------------------------------------------------------------------------


def task(function: str, following: str) -> dict[str, Any]:
    return {
        "Type": "Task",
        "Arguments": {"FunctionName": f"${{{function}}}"},
        "Next": following,
        "Catch": [{"ErrorEquals": ["States.ALL"], "Next": "Failed"}],
    }


POLLED = {
    "StartAt": "Wanted?",
    "States": {
        "Wanted?": {"Type": "Choice", "Choices": [{"Next": "Ask"}], "Default": "Not wanted"},
        "Ask": task("ask", "Answered?"),
        "Answered?": {"Type": "Choice", "Choices": [{"Next": "Wait"}], "Default": "Done"},
        "Wait": {"Type": "Wait", "Seconds": 2, "Next": "Ask"},
        "Done": {"Type": "Pass", "End": True},
        "Not wanted": {"Type": "Pass", "End": True},
        "Failed": {"Type": "Pass", "End": True},
    },
}
ALONE = {"StartAt": "Do", "States": {"Do": {**task("do", "Over"), "Catch": []}, "Over": {"Type": "Succeed"}}}
MACHINE = {
    "States": {
        "Begin": task("begin", "Both"),
        "Both": {"Type": "Parallel", "Branches": [POLLED, ALONE], "Next": "End"},
        "End": {"Type": "Succeed"},
    }
}


@pytest.mark.parametrize(("calls", "states"), [(0, 2), (1, 4), (2, 7), (5, 16)])
def test_the_way_through_a_branch_follows_from_the_calls(calls: int, states: int) -> None:
    assert transitions.shortest(POLLED, {"ask": calls, "other": 9}) == states


def test_a_branch_that_cannot_have_made_the_calls_is_refused() -> None:
    with pytest.raises(ValueError, match="no way through 'Do'"):
        transitions.shortest(ALONE, {"do": 2})


def scheduled() -> dict[str, Any]:
    return {"type": "TaskScheduled"}


def left() -> dict[str, Any]:
    return {"type": "ParallelStateExited"}


def test_states_of_branches_are_put_back_and_retries_count() -> None:
    events = [
        entered("Begin", 1), scheduled(), scheduled(),
        entered("Both", 2, "Parallel"), scheduled(), scheduled(), scheduled(), left(),
        entered("End", 3, "Succeed"),
    ]  # fmt: skip
    # 3 states, one retry of Begin, 7 states where `ask` was called twice, 2 in the other branch
    assert transitions.count(events, MACHINE, {"begin": 2, "ask": 2, "do": 1}) == 3 + 1 + 7 + 2


def test_a_whole_history_is_only_counted() -> None:
    events = [
        entered("Begin", 1), scheduled(),
        entered("Both", 2, "Parallel"), entered("Wanted?", 2, "Choice"), entered("Not wanted", 2, "Pass"),
        entered("Do", 2), scheduled(), scheduled(), entered("Over", 2, "Succeed"), left(),
        entered("End", 3, "Succeed"),
    ]  # fmt: skip
    assert transitions.count(events, MACHINE, {"begin": 1, "ask": 0, "do": 2}) == 7 + 1


def test_a_parallel_state_that_was_not_reached_adds_nothing() -> None:
    assert transitions.count([entered("Begin", 1), scheduled()], MACHINE, {"begin": 1}) == 1


@pytest.mark.parametrize("machine", observed.MACHINES)
def test_the_branches_of_our_machines_can_be_walked(machine: str) -> None:
    for state in observed.definition(machine)["States"].values():
        for branch in state.get("Branches", []):
            functions = {
                name for inner in branch["States"].values() if (name := transitions.function_of(inner))
            }
            once = transitions.shortest(branch, dict.fromkeys(functions, 1))
            assert once < transitions.shortest(branch, dict.fromkeys(functions, 2))


# --- dollars --------------------------------------------------------------------------------------------


def test_every_quantity_has_a_price_with_a_source_and_the_list_has_a_date() -> None:
    document = json.loads(costs.PRICES.read_text(encoding="utf-8"))
    assert datetime.strptime(document["date"], "%Y-%m-%d").replace(tzinfo=UTC).year >= 2026
    assert document["region"] == "us-east-1"
    assert {field.name for field in fields(Usage)} == set(document["units"])
    assert all(unit["source"].startswith("https://aws.amazon.com/") for unit in document["units"].values())


def test_a_bill_is_quantities_times_prices() -> None:
    bill = costs.bill(
        Usage(state_transitions=1000, lambda_requests=1_000_000, kms_requests=10_000), costs.price_list()
    )
    assert bill["state_transitions"] == {"quantity": 1000, "unit_usd": pytest.approx(0.000025), "usd": 0.025}
    assert bill["total"] == pytest.approx(0.025 + 0.20 + 0.03)
    assert sum(bill[field.name]["usd"] for field in fields(Usage)) == pytest.approx(bill["total"])


def test_slower_lambdas_cost_more_seconds_and_nothing_else() -> None:
    slow = USAGE.slower(10)
    assert slow.lambda_gb_seconds == 5.0
    assert {**asdict(slow), "lambda_gb_seconds": 0.5} == asdict(USAGE)


@pytest.mark.parametrize(("size", "write", "read"), [(0, 1, 1), (1024, 1, 1), (1025, 2, 1), (4097, 5, 2)])
def test_dynamodb_counts_in_blocks(size: int, write: int, read: int) -> None:
    assert (costs.write_units(size), costs.read_units(size)) == (write, read)


@pytest.mark.parametrize(
    ("item", "size"),
    [
        ({"pk": {"S": "NODE#i-1"}}, 10),
        ({"ü": {"BOOL": True}}, 3),
        ({"n": {"N": "1234"}}, 4),
        ({"n": {"N": "-1.5"}}, 4),
        ({"m": {"M": {"a": {"S": "x"}, "b": {"NULL": True}}}}, 1 + 3 + 3 + 3),
        ({"l": {"L": [{"S": "ab"}, {"N": "0"}]}}, 1 + 3 + 3 + 2),
    ],
)
def test_item_sizes_follow_dynamodbs_rules(item: Mapping[str, Any], size: int) -> None:
    assert costs.item_bytes(item) == size


def test_invocations_are_read_from_the_platforms_lines() -> None:
    report = "REPORT RequestId: 1\tDuration: 151 ms\tBilled Duration: 151 ms\tMemory Size: 256 MB\tMax Memory"
    lines = {
        "triage": [(1.0, "START RequestId: 1 Version: $LATEST"), (2.0, report), (2.0, '{"message":"judged"}')]
    }
    assert list(observed._invocations(lines)) == [observed.Invocation("triage", 2.0, 0.151, 256)]


def called(name: str, parameters: Mapping[str, Any], key: str = observed.ACCOUNT) -> dict[str, Any]:
    asked = json.dumps({"requestParameters": parameters})
    return {"EventName": name, "AccessKeyId": key, "CloudTrailEvent": asked}


def key(pk: str) -> dict[str, Any]:
    return {"pk": {"S": pk}, "sk": {"S": "x"}}


class FakeObserver(observed.Observer):
    """Of a trail that is given, and a table of small rows and a large one."""

    def __init__(self, *trail: dict[str, Any]) -> None:
        self._given = trail

    def _trail(self, since: float) -> Iterator[dict[str, Any]]:
        return iter(self._given)

    def _row(self, key: tuple[str, str]) -> dict[str, Any]:
        return {"a": {"S": "x" * 5000}} if key[0] == "large" else {"a": {"S": "x"}, "listing": {"S": "NODE"}}


def test_requests_to_the_table_are_read_from_the_trail() -> None:
    batch = {"RequestItems": {"t": {"Keys": [key("small"), key("large")], "ConsistentRead": True}}}
    trail = (
        called("UpdateItem", {"Key": key("small")}),
        called("UpdateItem", {"Key": key("small")}),
        called("UpdateItem", {"Key": key("large")}),
        called("GetItem", {"Key": key("large")}),
        called("BatchGetItem", batch),
        called("GetItem", {"Key": key("small")}, key="test"),
        called("PutEvents", {"Entries": [{}, {}]}),
        called("PutEvents", {"Entries": [{}]}, key="test"),
    )
    # Two writes of a small row and its place in the index, one of five KB; reads of 4 KB each.
    assert FakeObserver(*trail)._api_calls(0.0) == (2, 2 + 1 + 5, 2 + 1 + 2)


def test_a_trail_that_has_forgotten_requests_gives_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed, "TRAIL", 2)
    with pytest.raises(PermanentError, match="remembers 2 requests"):
        FakeObserver(*[called("GetItem", {"Key": key("small")})] * 2)._api_calls(0.0)


# --- the JSON line --------------------------------------------------------------------------------------


def test_an_aim_is_met_up_to_its_value_or_below_it() -> None:
    assert Aim(5.0, 5.0).met
    assert not Aim(5.001, 5.0).met
    assert not Aim(0.01, 0.01, below=True).met
    assert not Aim(None, 5.0).met


def test_the_details_of_a_recovery_are_json() -> None:
    document = json.loads(json.dumps(recovery().document()))
    assert document["segments"]["boot"] == 3.0
    assert document["calls"] == {"triage": 6, "isolate_node": 1}


def test_a_spread_is_median_and_range() -> None:
    assert Spread.of([3.0, 1.0, 2.0, 10.0]).document() == {"median": 2.5, "min": 1.0, "max": 10.0, "n": 4}


def test_the_last_line_is_one_json_object_with_the_agreed_keys() -> None:
    measured = control_plane.Measured(first=[recovery(), recovery(first_step=110.0)])
    measured.warm["xid79"] = [recovery(), recovery(first_step=106.0), recovery(met=105.5)]
    measured.long_boot = recovery()
    figures = control_plane.figures(measured, control_plane.Options())
    text = line("control_plane", Machine.here(), figures, control_plane.aims(measured))
    assert "\n" not in text
    document = json.loads(text)
    assert list(document) == ["benchmark", "date", "machine", "figures", "aims"]
    assert document["benchmark"] == "control_plane"
    assert datetime.fromisoformat(document["date"]).tzinfo is not None
    assert {"processor", "cores", "load_before"} <= set(document["machine"])
    assert document["figures"]["warm_xid79"]["total_seconds"] == {
        "median": 5.7,
        "min": 5.7,
        "max": 6.0,
        "n": 3,
    }
    assert all(rival["why"] for rival in document["figures"]["rivals"].values())
    aims = document["aims"]
    assert all(set(aim) == {"value", "aim", "met"} for aim in aims.values())
    assert aims["warm_median_seconds"] == {"value": 2.3, "aim": 5.0, "met": True}
    assert aims["first_after_deploy_worst_seconds"] == {"value": 6.6, "aim": 10.0, "met": True}
    assert aims["state_transitions_more_with_15_minute_boot"] == {"value": 0, "aim": 0, "met": True}
    assert aims["usd_most"]["met"]


# --- options --------------------------------------------------------------------------------------------


def test_each_deploy_begins_with_the_main_fault_and_all_series_are_run() -> None:
    assert control_plane.Options(runs=2, deploys=3, others=1).series == [
        ["xid79", "xid79", "xid79"],
        ["xid79", "spot"],
        ["xid79", "terminate"],
    ]
    assert control_plane.Options(runs=1, deploys=1, others=1).series == [
        ["xid79", "xid79", "spot", "terminate"]
    ]


@pytest.mark.parametrize("text", ["0", "-1", "ten", "1.5"])
def test_a_bad_number_of_runs_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        control_plane.parse([f"--runs={text}"])
    assert ended.value.code == 2
    assert "must be a whole number of at least 1" in capsys.readouterr().err


def test_the_defaults_are_those_of_the_published_figures() -> None:
    assert control_plane.parse([]) == (control_plane.Options(), None)


# --- triage: the core alone -------------------------------------------------------------------------------


def test_the_core_is_measured_on_recorded_events_of_every_source() -> None:
    work = decisions.workload()
    assert decisions.to_decision(work) == decisions.to_outcome(work) == len(work.signals) >= len(work.texts)
    assert {signal.kind for signal in work.signals} == set(Kind)
    parts = decisions.by_source(work)
    assert set(decisions.SOURCES) <= set(parts)
    assert sum(len(part.texts) for part in parts.values()) == len(work.texts)


def test_the_nodes_of_the_workload_are_quiet_known_and_being_healed() -> None:
    quiet, known, healing = decisions.workload().nodes
    assert not quiet.recent and not quiet.active
    assert known.recent and known.tried and not known.active
    assert healing.recent and healing.active
    assert quiet.managed and known.managed and healing.managed


def test_every_stage_of_the_core_can_be_run_by_itself() -> None:
    work = decisions.workload()
    for name, (function, calls) in decisions.stages(work).items():
        assert calls, name
        for arguments in calls[:5]:
            function(*arguments)


def test_the_loop_around_a_stage_is_not_counted_as_its_time() -> None:
    assert decisions.microseconds(lambda *_: None, [(1,)] * 100, 100, 0.01) < 1.0


def test_single_events_are_sorted_microseconds() -> None:
    found = decisions.single_events(decisions.workload(), 0.05)
    assert found == sorted(found) and found[0] > 0


# --- triage: storms ---------------------------------------------------------------------------------------

PLAN = Plan(
    "i-0aaaaaaaaaaaaaaa1", "i-0aaaaaaaaaaaaaaa2", ("i-0aaaaaaaaaaaaaaa3", "i-0aaaaaaaaaaaaaaa4"), 2_000
)


def test_a_storm_repeats_every_new_event_a_hundred_times() -> None:
    put, sent = storms.make(PLAN, 1772600767.0, random.Random(1))
    assert len(put) + len(sent) == PLAN.events
    signals = [parsers.parse_text(storms.delivered(entry, "an-id"))[0] for entry in put]
    signals += [parsers.parse_text(body)[0] for body in sent]
    assert {(s.kind, s.invalid) for s in signals} == {(Kind.AGENT, "")}
    repeats = Counter((s.node_id, s.code) for s in signals)
    assert len(repeats) == PLAN.distinct and set(repeats.values()) == {PLAN.repeats}
    assert repeats[PLAN.sick, "79"] == PLAN.repeats
    assert {node for node, _ in repeats} == {PLAN.sick, *PLAN.noisy}
    assert len({json.loads(body)["id"] for body in sent}) == PLAN.distinct


def test_two_storms_have_no_event_in_common() -> None:
    first, second = (
        {json.loads(body)["id"] for body in storms.make(PLAN, 0.0, random.Random(seed))[1]} for seed in (0, 1)
    )
    assert not first & second


class FakeLanes:
    """Lanes whose Lambda takes everything at once and records `lost` events too few. dead: left behind."""

    def __init__(self, lost: int = 0, dead: Mapping[str, int] | None = None) -> None:
        self.waiting, self.taken, self.held = 0, -lost, False
        self._dead = dict(dead or {})

    def put(self, entries: Sequence[storms.Entry]) -> list[str]:
        self.waiting += len(entries)
        return [f"put-{number}" for number in range(len(entries))]

    def send(self, bodies: Sequence[str]) -> None:
        self.waiting += len(bodies)

    def hold(self, lane: str, held: bool) -> None:
        self.held = held

    def depth(self, queue: str) -> int:
        found = self.waiting if queue == "normal" else 0
        if not self.held:
            self.taken, self.waiting = self.taken + self.waiting, 0
        return found

    def counted(self, since: float) -> Counter[str]:
        return Counter({"OBSERVED": 7 + max(0, self.taken - 2)})

    def rows(self, identities: Sequence[str]) -> dict[str, dict[str, str]]:
        return {
            identity: {"outcome": "OPENED"} for identity in list(identities)[: 2 if self.taken > 0 else 0]
        }

    def claimed(self, node: str) -> float | None:
        return 1.0

    def dead(self) -> dict[str, int]:
        return self._dead


def weather(lanes: FakeLanes) -> Weathered:
    return storms.weather(lanes, PLAN, 5.0, lambda _: None, seed=1)  # type: ignore[arg-type]


def test_a_storm_whose_events_all_have_an_outcome_is_weathered() -> None:
    found = weather(FakeLanes())
    assert (found.events, found.outcomes, found.rows) == (2_001, {"OPENED": 2, "OBSERVED": 1_999}, 2)


def test_a_lost_event_ends_the_run() -> None:
    with pytest.raises(SandboxError, match="2,001 events were sent, but 2,000 have an outcome"):
        weather(FakeLanes(lost=1))


def test_an_event_in_a_dead_letter_queue_ends_the_run() -> None:
    with pytest.raises(SandboxError, match="normal-dlq"):
        weather(FakeLanes(dead={"normal-dlq": 3}))


class FakeLedger:
    def __init__(self, *rows: Mapping[str, Any]) -> None:
        self.ledger = self
        self._rows = list(rows)

    def incidents(self) -> list[Mapping[str, Any]]:
        return self._rows


def incident(node: str, kind: str, outcome: str = "HEALED") -> dict[str, Any]:
    return {"node_id": node, "fault": {"kind": kind}, "outcome": outcome}


RIGHT = incident(PLAN.sick, "xid"), incident(PLAN.doomed, "spot_interruption")


def test_exactly_the_right_incidents_pass() -> None:
    other = incident("i-0aaaaaaaaaaaaaaa9", "xid")  # of an earlier storm
    triage.check_incidents(FakeLedger(*RIGHT, other), PLAN)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "rows",
    [
        (*RIGHT, incident(PLAN.sick, "xid", "CANCELLED")),
        (*RIGHT, incident(PLAN.noisy[0], "xid")),
        (RIGHT[0], incident(PLAN.doomed, "spot_interruption", "ESCALATED")),
    ],
)
def test_one_incident_too_many_or_another_end_ends_the_run(rows: Sequence[Mapping[str, Any]]) -> None:
    with pytest.raises(SandboxError, match="The storm's incidents are"):
        triage.check_incidents(FakeLedger(*rows), PLAN)  # type: ignore[arg-type]


def test_an_aim_is_reached_from_its_value_on() -> None:
    assert Reached(50_000, 50_000).met
    assert not Reached(49_999, 50_000).met


def test_a_bill_for_a_million_events_is_that_of_the_storm_times_as_many() -> None:
    usage = triage.per_million(Usage(sqs_requests=14_000, dynamodb_write_units=2_000), 10_000)
    assert (usage.sqs_requests, usage.dynamodb_write_units) == (1_400_000, 200_000)
    bill = costs.bill(usage, costs.price_list())
    assert bill["total"] == pytest.approx(1.4 * 0.40 + 0.2 * 0.625)


def test_the_line_of_triage_has_the_agreed_keys() -> None:
    storm = Weathered(10_001, 100.0, 150.0, 0.1, 4_000, {"OPENED": 2, "OBSERVED": 9_999}, 60)
    measured = triage.Storms([storm], [Usage(sqs_requests=14_000)], [1_000], [2.0])
    core = {"signals_per_second_to_decision": Spread.of([60_000.0, 61_000.0, 62_000.0], 0).document()}
    text = line("triage", Machine.here(), triage.figures(core, measured), triage.aims(core, measured))
    document = json.loads(text)
    assert list(document) == ["benchmark", "date", "machine", "figures", "aims"]
    assert document["figures"]["storm"]["events_per_second"]["median"] == 200
    assert document["figures"]["storm"]["usd_per_million_events"]["median"] > 0
    assert all(rival["why"] for rival in document["figures"]["rivals"].values())
    assert all(set(aim) == {"value", "aim", "met"} for aim in document["aims"].values())
    assert document["aims"]["signals_per_second_to_decision"] == {
        "value": 61_000.0,
        "aim": 50_000,
        "met": True,
    }


def test_without_a_sandbox_only_the_core_has_an_aim() -> None:
    core = {"signals_per_second_to_decision": Spread.of([60_000.0], 0).document()}
    assert list(triage.aims(core, triage.Storms())) == ["signals_per_second_to_decision"]
    assert "storm" not in triage.figures(core, triage.Storms())


@pytest.mark.parametrize("text", ["--runs=0", "--storms=-1", "--events=10", "--events=many"])
def test_bad_options_of_triage_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        triage.parse([text])
    assert ended.value.code == 2
    assert "must be a whole number from" in capsys.readouterr().err


def test_the_defaults_of_triage_are_those_of_the_published_figures() -> None:
    assert triage.parse([]) == triage.Options()


# --- healing --------------------------------------------------------------------------------------------

A, B, NEW = "i-0aaaaaaaaaaaaaaaa", "i-0bbbbbbbbbbbbbbbb", "i-0cccccccccccccccc"


def probed(function: str, at: float, nodes: Sequence[str], **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "f": function, "at": at, "wall": 0.02, "cpu": 0.01, "error": "", "nodes": list(nodes), "memory": 1024,
        "log": 100, "logs": 1, "calls": {}, "writes": [], "reads": [],
    }  # fmt: skip
    return found | more


def opened(at: float, *nodes: str) -> dict[str, Any]:
    """A batch of triage that opened the incidents of these nodes."""
    writes = [["FLEET", "FLEET", 3_000]] + [[f"NODE#{node}", "NODE", 900] for node in nodes]
    return probed(
        "triage", at, nodes, records=len(nodes), wall=0.1, cpu=0.04, calls={bursts.OPENS: 2}, writes=writes
    )


def healed_by(node: str, at: float) -> list[dict[str, Any]]:
    writes = [[f"NODE#{node}", "NODE", 1_200], [f"INCIDENT#{node}-1", "STEP#begun", 90]]
    return [
        probed("begin_incident", at, [node], writes=writes, reads=[[f"NODE#{node}", "NODE", 900]]),
        probed("isolate_node", at + 0.1, [node], wall=0.03),
    ]


STEPS = {
    "States": {
        "Begin": task("begin_incident", "Isolate"),
        "Isolate": task("isolate_node", "Healed"),
        "Healed": {"Type": "Succeed"},
    }
}


def course(at: float) -> list[dict[str, Any]]:
    return [
        entered("Begin", at), scheduled(), exited("Begin", at), entered("Isolate", at), scheduled(),
        entered("Healed", at, "Succeed"),
    ]  # fmt: skip


def of_two_nodes(**changes: Any) -> Burst:
    row = {"phase": "HEALED", "execution_arn": "arn"}
    return replace(
        Burst(
            put={A: 100.0, B: 100.1},
            isolated={A: 100.5, B: 101.1},
            ended=105.0,
            rows={A: {**row, "replacement_id": NEW}, B: row},
            lines=[
                opened(100.2, A, B),
                *healed_by(A, 100.3),
                *healed_by(B, 100.8),
                probed("triage", 103.0, [NEW], records=1),
                probed("sweep", 103.5, [], writes=[["FLEET", "FLEET", 3_000]], cpu=5.0),
                probed("close_incident", 104.0, [B], cpu=0.3, cold={"cpu": 0.4, "wall": 0.5}),
            ],
            histories={A: course(100.3), B: course(100.8)},
            isolating=Used(1.0, 0.5, 0.1),
            healing=Used(2.0, 1.0, 0.2),
            agent_events=1,
            slowdown=1.25,
            load=2.0,
        ),
        **changes,
    )


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed, "definition", lambda _: STEPS)


def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed() -> None:
    values = [float(number) for number in range(1, 201)]
    assert [bursts.percentile(values, percent) for percent in (0, 50, 99, 100)] == [1, 100, 198, 200]
    assert bursts.percentile([7.0], 99) == 7.0


def test_a_batch_is_shared_by_its_nodes_and_a_replacement_counts_for_the_node_it_replaced() -> None:
    parts = bursts.shares(of_two_nodes().lines, {NEW: A})
    assert set(parts) == {A, B}
    assert [part.function for part in parts[A]] == ["triage", "begin_incident", "isolate_node", "triage"]
    assert parts[A][0] == Share("triage", 100.2, 0.05, 0.02, opens=True)


def test_handling_is_lambda_without_what_lies_between_and_arrival_is_all_of_it() -> None:
    parts = bursts.shares(of_two_nodes().lines, {NEW: A})
    assert bursts.handling(parts[A], 100.5) == pytest.approx((0.05 + 0.02 + 0.03, 0.3))
    with pytest.raises(ValueError, match="not among"):
        bursts.handling(parts[A], 100.35)


@pytest.mark.parametrize("throttled", [0, 3])
def test_a_task_of_a_branch_that_no_lambda_took_is_a_transition_too(throttled: int) -> None:
    events = [
        entered("Begin", 1), scheduled(),
        entered("Both", 2, "Parallel"), *[scheduled() for _ in range(3 + throttled)], left(),
        entered("End", 3, "Succeed"),
    ]  # fmt: skip
    parts = [Share(name, 1.0, 0.1, 0.1, opens=False) for name in ("begin", "ask", "ask", "do")]
    assert bursts.entered(events, MACHINE, parts) == 3 + 7 + 2 + throttled


def test_a_row_is_shared_when_no_node_is_among_those_of_every_write() -> None:
    burst = of_two_nodes()
    again = probed("triage", 102.0, [B], records=1, writes=[["FLEET", "FLEET", 1], ["COUNT#1", "HELD", 1]])
    once = probed("triage", 102.0, [A], records=1, writes=[["COUNT#1", "HELD", 1], ["FLEET", "FLEET", 1]])
    found = bursts.rows([*burst.lines, again, once], burst.originals)
    assert found.shared == ["COUNT#1/HELD", "FLEET/FLEET"]
    assert bursts.beside_the_breaker(found.shared) == ["COUNT#1/HELD"]
    assert found.kinds["NODE"] == {"rows": 2, "writes": 4, "most_writes_to_one_row": 2}
    assert found.kinds["INCIDENT/STEP"]["rows"] == 2
    assert found.kinds["FLEET"]["writes"] == 3  # sweep's is not counted


def test_the_summary_of_a_burst(small_machine: None) -> None:
    found = healed.summary([of_two_nodes()])
    assert found["isolated_seconds"] == {"p50": 0.5, "p99": 1.0, "max": 1.0, "n": 2}
    assert found["last_isolated_seconds"]["max"] == 1.1
    assert found["state_transitions"] == {"min": 3, "median": 3, "max": 3, "unknown": 0}
    assert found["lambda_cpu_seconds_per_node"] == pytest.approx((0.04 + 5 * 0.01 + 0.3) / 2)
    assert found["step_cpu_seconds"]["n"] == 7
    assert found["cold_start_cpu_seconds"] == {"p50": 0.7, "p99": 0.7, "max": 0.7, "n": 1}
    assert found["sweep_cpu_seconds"]["max"] == 5.0
    assert found["cpu_seconds_per_node_until_isolated"] == {
        "workers": 0.25, "emulator": 0.5, "benchmark": 0.05,
    }  # fmt: skip
    assert found["steps"]["triage"]["per_node"] == 1.5
    assert found["outcomes"] == {"HEALED": 2}
    # three messages sent, two batches received and deleted; two faults and a ready node
    bill = found["usd_arithmetic"]
    assert bill["sqs_requests"]["quantity"] == (3 + 4) / 2
    assert bill["eventbridge_custom_events"]["quantity"] == 1.5
    # FLEET 3, NODE 1 + 1 of triage, NODE 2 and STEP 1 of each begin, and 2 rows in the index
    assert bill["dynamodb_write_units"]["quantity"] == (3 + 2 + 2 * 3 + 2) / 2
    assert found["usd_per_recovery"] == bill["total"] > 0


def test_transitions_of_a_node_that_was_not_healed_are_unknown(small_machine: None) -> None:
    burst = of_two_nodes()
    burst.rows[B] = {**burst.rows[B], "phase": "ESCALATED"}
    assert healed.summary([burst])["state_transitions"]["unknown"] == 1


def test_the_line_of_healing_has_the_agreed_keys(small_machine: None) -> None:
    held = HeldBurst({"HELD": 2}, 0.5, 0, [opened(100.0, A, B)])
    measured = healing.Measured({1: [of_two_nodes()], 150: [of_two_nodes()]}, of_two_nodes(), held)
    found = healing.figures(measured, healing.Options())
    document = json.loads(line("healing", Machine.here(), found, healing.aims(found)))
    assert list(document["figures"]["breaker_off"]) == ["1", "150"]
    assert document["figures"]["breaker_on"]["beyond"]["outcomes"] == {"HELD": 2}
    assert document["figures"]["breaker_on"]["beyond"]["writes_of_the_breakers_row"] == 1
    assert all(rival["why"] and rival["source"] for rival in document["figures"]["rivals"].values())
    assert {name: aim["met"] for name, aim in document["aims"].items()} == {
        "last_of_150_isolated_seconds": True,
        "state_transitions_difference": True,
        "lambda_cpu_per_node_difference_from_the_smallest": True,
        "lambda_cpu_seconds_per_step_p99": True,
        "handling_seconds_p99_of_1": True,
        "shared_rows_beside_the_breakers": True,
    }


def test_the_defaults_of_healing_are_those_of_the_published_figures() -> None:
    options = healing.parse([])
    assert options == healing.Options()
    assert options.nodes <= options.fleet == 1_503
    assert healing.parse(["--sizes", "10,1,10", "--no-breaker"]).bursts == [1] * 8 + [10] * 3


@pytest.mark.parametrize("text", ["--sizes=0", "--sizes=1,x", "--fleet=100", "--time-scale=0"])
def test_bad_options_of_healing_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        healing.parse([text])
    assert ended.value.code == 2
    assert "must be" in capsys.readouterr().err


def test_the_probe_tells_of_rows_instances_and_nodes() -> None:
    body = json.dumps({"detail": {"instance_id": A}})
    state = json.dumps({"detail": {"instance-id": B}})
    batch = {"Records": [{"body": body}, {"body": state}, {"body": "{}"}]}
    assert lambda_probe.about(batch) == {"records": 3, "nodes": [A, B]}
    assert lambda_probe.about({"incident": {"node_id": A}}) == {"nodes": [A]}
    assert lambda_probe.about({"document": {"node_id": A, "session": 1}}) == {"nodes": [A]}
    assert lambda_probe.about({}) == {"nodes": []}
    key = {"pk": {"S": "FLEET"}, "sk": {"S": "FLEET"}}
    row = {**key, "at": {"N": "1"}}
    tagged = {"TagSpecifications": [{"Tags": [{"Key": "planaria:name", "Value": "fleet-1"}]}]}
    found = lambda_probe.told(
        [
            ("dynamodb", "UpdateItem", {"Key": key}, {"Attributes": row}, 0.25),
            ("dynamodb", "GetItem", {"Key": key}, {}, 0.5),
            ("dynamodb", "BatchGetItem", {}, {"Responses": {"table": [row]}}, 0.1),
            ("ec2", "CreateFleet", tagged, {"Instances": [{"InstanceIds": [NEW]}]}, 0.1),
            ("ec2", "TerminateInstances", {"InstanceIds": [A]}, {}, 0.1),
            ("ec2", "TerminateInstances", {"InstanceIds": [B]}, {"Error": {}}, 0.1),
        ]
    )
    assert found["writes"] == [["FLEET", "FLEET", costs.item_bytes(row)]]
    assert found["reads"] == [["FLEET", "FLEET", 0], ["FLEET", "FLEET", costs.item_bytes(row)]]
    assert found["breaker"] == [0.25, 0.5]
    assert found["launched"] == [[NEW, {"planaria:name": "fleet-1"}]]
    assert found["terminated"] == [A]
    assert found["calls"]["ec2.TerminateInstances"] == 2


def test_the_probe_stands_before_every_handler_of_the_assembly(tmp_path: Path) -> None:
    code = {"S3Bucket": "bucket", "S3Key": "abc.zip"}
    ours = {"Handler": "lambdas.triage.handler", "Code": code}
    resources = {
        "Triage": {"Type": "AWS::Lambda::Function", "Properties": ours},
        "Other": {"Type": "AWS::Lambda::Function", "Properties": {"Handler": "index.handler", "Code": code}},
        "Queue": {"Type": "AWS::SQS::Queue"},
    }
    (tmp_path / "One.template.json").write_text(json.dumps({"Resources": resources}))
    (tmp_path / "asset.abc").mkdir()
    assert lambda_probe.install(tmp_path, tmp_path / "probe.jsonl") == 1
    found = json.loads((tmp_path / "One.template.json").read_text())["Resources"]
    assert found["Triage"]["Properties"]["Handler"] == "benchmarks.lambda_probe.triage"
    assert found["Other"]["Properties"]["Handler"] == "index.handler"
    assert (tmp_path / "asset.abc/benchmarks/costs.py").exists()
    with pytest.raises(AttributeError):
        lambda_probe.triage  # noqa: B018  only a deployed asset has handlers


def test_the_probe_writes_one_line_per_invocation_and_hides_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lambda_probe.Probe, "_listen", lambda _: None)
    monkeypatch.setattr("sys.stdout", io.StringIO())  # the probe puts itself in its place
    probe = lambda_probe.Probe("triage", tmp_path / "lines")
    probe.ready()
    context = SimpleNamespace(memory_limit_in_mb=1024)

    def fails(event: Any, context: Any) -> Any:
        sys.stdout.write("two\nlines\n")
        raise ValueError("no")

    assert probe.run(lambda event, context: {"result": "DONE"}, {}, context) == {"result": "DONE"}
    with pytest.raises(ValueError, match="no"):
        probe.run(fails, {"incident": {"node_id": A}}, context)
    first, second = (json.loads(text) for text in (tmp_path / "lines").read_text().splitlines())
    assert first["result"] == "DONE" and first["cold"]["wall"] >= 0 and first["memory"] == 1024
    assert second["error"] == "ValueError" and second["nodes"] == [A] and second["logs"] == 2
    assert "cold" not in second


def test_the_metronome_compares_with_rest() -> None:
    assert Metronome().slowdown == 1.0
    Metronome.rest()
    with Metronome() as metronome:
        pass
    assert 0.1 < metronome.slowdown < 50


@pytest.mark.needs("emulator")
def test_three_nodes_of_a_small_fleet_are_healed_at_once() -> None:
    options = healing.Options((3,), fleet=6, boot_seconds=0.5, warm=(), breaker=False)
    with Screen(2) as screen:
        measured = healing.measure(options, screen)
    found = healing.figures(measured, options)["breaker_off"]["3"]
    assert found["outcomes"] == {"HEALED": 3}
    assert found["lambda_errors"] == 0
    assert found["state_transitions"]["unknown"] == 0
    assert found["rows"]["shared_beside_the_breakers"] == []
    # The first call of each process is left out, so with three nodes a step may have none.
    assert sum(step["per_node"] for step in found["steps"].values()) > 1
    assert found["usd_per_recovery"] < 0.01


# --- placement ------------------------------------------------------------------------------------------


def test_a_cluster_is_the_same_one_each_time_and_as_large_as_it_may_be() -> None:
    for number in (0, 1, 7):
        found = networks.network(number)
        assert found == networks.network(number)
        assert 32 <= found.nodes <= networks.MOST_NODES
        assert 1 <= found.count <= len(found.spares) <= len(found.idle)
        assert {len(path) for path in found.job} <= {0, 3}
    assert networks.network(5, large=True).nodes == networks.MOST_NODES
    assert any(not candidate.path for candidate in networks.network(3).idle), "some places are unknown"


def test_the_optimum_by_trying_all_is_what_the_tree_gives_and_no_way_is_better() -> None:
    for number in range(20):
        of = networks.network(number)
        if of.ways > 500:
            continue
        best = networks.optimum(of)
        assert networks.added(networks.planaria, of) == best
        assert all(networks.added(choice, of) >= best for choice in placement.WAYS.values())
        for choice in placement.WAYS.values():
            assert len(set(choice(of))) == of.count


def test_a_way_that_misses_the_optimum_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "planaria", networks.first_fit)
    found = placement.Measured()
    for number in range(30):
        found.look(networks.network(number))
    met = placement.aims(with_times(found, 1.0))
    assert not met["share_of_two_to_eight_at_the_optimum"].met
    assert not met["share_of_single_replacements_at_the_optimum"].met
    assert not met["cases_worse_than_one_after_the_other"].met


def with_times(found: placement.Measured, milliseconds: float) -> placement.Measured:
    for values in found.decisions.values():
        values.append(milliseconds)
        found.processor.append(milliseconds)
    return found


def test_the_line_of_placement_has_the_agreed_keys() -> None:
    found = placement.Measured()
    for number in range(6):
        found.look(networks.network(number))
    with_times(found, 12.0)
    document = json.loads(line("placement", Machine.here(), placement.figures(found), placement.aims(found)))
    assert list(document) == ["benchmark", "date", "machine", "figures", "aims"]
    assert all(aim["met"] for aim in document["aims"].values()), document["aims"]
    assert set(document["figures"]["hops_added_over_the_optimum"]) == set(placement.WAYS)
    assert document["figures"]["hops_added_over_the_optimum"]["planaria"]["mean"] == 1.0
    assert all(rival["why"] for rival in document["figures"]["rivals"].values())
    slow = placement.aims(with_times(found, 50.0))
    assert not slow["milliseconds_per_decision_at_4096_nodes_p99"].met


@pytest.mark.parametrize("text", ["--clusters=0", "--large=0", "--clusters=many"])
def test_bad_options_of_placement_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        placement.parse([text])
    assert ended.value.code == 2
    assert "must be a whole number from" in capsys.readouterr().err


def test_the_defaults_of_placement_are_those_of_the_published_figures() -> None:
    assert placement.parse([]) == placement.Options(1000, 100) == placement.Options()
