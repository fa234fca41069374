"""The arithmetic of the benchmarks; nothing is deployed here."""

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from benchmarks import control_plane, costs, decisions, observed, storms, timelines, transitions, triage
from benchmarks.costs import Usage
from benchmarks.recoveries import Recovery
from benchmarks.report import Aim, Machine, Reached, Spread, line
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
