"""What sweep tells of EC2's checks and scheduled events: each once, and again only when it is news."""

import json
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.core.parsers import parse
from planaria.core.ports import InstanceStatus, StatusEvent
from planaria.core.status_watch import DAY, EVENTS, KEPT_SECONDS, METRICS, watch

NODE = "i-0aaaaaaaaaaaaaaa1"
NOW = 1_793_610_845.0
WELL = InstanceStatus(NODE, "ok", "ok", "ok")
RETIRE = StatusEvent("instance-event-1", "instance-retirement", "degraded hardware", NOW + 9 * DAY)


class Sweeps:
    """Remembers between sweeps as the node's row does."""

    def __init__(self) -> None:
        self.watched: dict[str, Any] = {}
        self.now = NOW

    def __call__(self, status: InstanceStatus, news_at: float | None = None) -> list[tuple[str, bool]]:
        self.now += 60
        told, after = watch(status, self.watched, self.now, news_at)
        self.watched = json.loads(json.dumps(after))
        return [(detail["code"], detail["healthy"]) for detail in told]


def events(*found: StatusEvent) -> InstanceStatus:
    return replace(WELL, events=found)


def _impaired(check: str) -> InstanceStatus:
    words = {name: "impaired" if name == check else "ok" for name in METRICS}
    return InstanceStatus(NODE, words["system"], words["instance"], words["ebs"])


def test_nothing_is_told_of_a_node_that_is_well() -> None:
    assert watch(WELL, {}, NOW) == ([], {"events": {}, "checks": {}})


def test_a_scheduled_event_is_told_once_and_once_more_when_it_is_over() -> None:
    sweep = Sweeps()
    assert sweep(events(RETIRE)) == [("instance-retirement", False)]
    assert [sweep(events(RETIRE)) for _ in range(5)] == [[]] * 5
    over = replace(RETIRE, description="[Completed] degraded hardware")
    assert sweep(events(over)) == [("instance-retirement", True)]
    assert sweep(events(over)) == []


def test_a_cancelled_event_is_over_and_a_new_id_is_a_new_event() -> None:
    sweep = Sweeps()
    sweep(events(RETIRE))
    cancelled = replace(RETIRE, description="[Canceled] degraded hardware")
    another = replace(RETIRE, event_id="instance-event-2")
    assert sweep(events(cancelled, another)) == [
        ("instance-retirement", True), ("instance-retirement", False),
    ]  # fmt: skip


def test_an_event_that_was_over_before_it_was_seen_is_not_told() -> None:
    assert Sweeps()(events(replace(RETIRE, description="[Completed] x"))) == []


def test_an_event_that_is_not_listed_for_a_while_is_not_told_again() -> None:
    sweep = Sweeps()
    sweep(events(RETIRE))
    assert sweep(WELL) == []
    assert sweep(events(RETIRE)) == []
    sweep.now += KEPT_SECONDS
    sweep(WELL)
    assert sweep.watched["events"] == {}


def test_an_event_whose_date_is_moved_is_told_again() -> None:
    sweep = Sweeps()
    sweep(events(RETIRE))
    later = replace(RETIRE, not_before=NOW + 20 * DAY)
    assert sweep(events(replace(RETIRE, not_before=NOW + 9 * DAY + 30))) == []  # that is no other date
    assert sweep(events(later)) == [("instance-retirement", False)]
    assert [sweep(events(later)) for _ in range(3)] == [[]] * 3
    assert sweep(events(replace(later, not_before=None))) == []
    assert sweep(events(replace(later, description="[Canceled] x", not_before=NOW))) == [
        ("instance-retirement", True)
    ]
    assert sweep(WELL) == []
    assert sweep(events(replace(later, not_before=NOW + 30 * DAY))) == [("instance-retirement", False)]


def test_a_row_of_an_older_release_learns_the_date_without_a_word() -> None:
    known = {"events": {"instance-event-1": {"state": "open", "at": NOW}}, "checks": {}}
    told, after = watch(events(RETIRE), known, NOW + 60)
    assert told == [] and after["events"]["instance-event-1"]["starts_at"] == RETIRE.not_before
    moved = replace(RETIRE, not_before=NOW + 20 * DAY)
    assert [detail["starts_at"] for detail in watch(events(moved), after, NOW + 120)[0]] == [NOW + 20 * DAY]


def test_an_event_without_id_is_known_by_code_and_time() -> None:
    sweep = Sweeps()
    first = StatusEvent("", "system-reboot", "reboot", NOW + DAY)
    assert sweep(events(first)) == [("system-reboot", False)]
    assert sweep(events(first)) == []
    assert sweep(events(replace(first, not_before=NOW + 2 * DAY))) == [("system-reboot", False)]


def test_a_row_is_written_once_a_day_while_an_event_is_listed() -> None:
    _, first = watch(events(RETIRE), {}, NOW)
    assert watch(events(RETIRE), first, NOW + 60)[1] == first
    assert watch(events(RETIRE), first, NOW + DAY)[1] != first


def test_a_check_is_told_when_two_sweeps_saw_it_impaired() -> None:
    for check, metric in METRICS.items():
        sweep, sick = Sweeps(), _impaired(check)
        assert [sweep(sick) for _ in range(4)] == [[], [(metric, False)], [], []]
        assert sweep(WELL) == [(metric, True)]
        assert sweep(WELL) == []
        assert sweep.watched["checks"] == {}


def test_one_sweep_that_sees_it_well_starts_the_count_anew() -> None:
    sweep, sick = Sweeps(), replace(WELL, system="impaired")
    assert [sweep(status) for status in (sick, WELL, sick, WELL, sick)] == [[]] * 5


def test_a_check_that_cannot_see_is_neither_a_fault_nor_well() -> None:
    for word in ("initializing", "insufficient-data", "not-applicable", ""):
        blind = replace(WELL, instance=word)
        assert Sweeps()(blind) == []
        sweep, sick = Sweeps(), replace(WELL, instance="impaired")
        assert [sweep(status) for status in (sick, blind, sick, sick)] == [
            [], [], [], [("StatusCheckFailed_Instance", False)],
        ]  # fmt: skip
        assert sweep(blind) == []
        assert sweep(WELL) == [("StatusCheckFailed_Instance", True)]


def test_a_check_that_an_act_of_ours_did_not_cure_is_told_once_more() -> None:
    sweep, sick = Sweeps(), replace(WELL, instance="impaired")
    sweep(sick)
    sweep(sick)
    told = sweep.now
    assert sweep(sick, news_at=told - 30) == []
    assert sweep(sick, news_at=sweep.now + 1000) == []
    due = sweep.now + 1
    assert sweep(sick, news_at=due) == [("StatusCheckFailed_Instance", False)]
    assert sweep(sick, news_at=due) == []


def test_a_finding_says_since_when_and_from_when() -> None:
    _, after = watch(replace(WELL, system="impaired", since={"system": NOW - 90}), {}, NOW)
    status = replace(WELL, system="impaired", since={"system": NOW - 90}, events=(RETIRE,))
    told, _ = watch(status, after, NOW + 60)
    signals = [
        parse(
            {"id": str(n), "source": "planaria.sweep", "detail-type": "Planaria Sweep Finding", "detail": d}
        )
        for n, d in enumerate(told)
    ]
    retire, check = (signal for found in signals for signal in found)
    assert (retire.kind, retire.code, retire.evidence["starts_at"]) == (
        "scheduled_event", "instance-retirement", NOW + 9 * DAY,
    )  # fmt: skip
    assert retire.evidence["event_id"] == "instance-event-1"
    assert (check.kind, check.code, check.evidence["since"]) == (
        "status_check", "StatusCheckFailed_System", NOW - 90,
    )  # fmt: skip
    assert {retire.node_id, check.node_id} == {NODE}
    assert {retire.time, check.time} == {NOW + 60}


words = st.sampled_from(["ok", "impaired", "initializing", "insufficient-data", "not-applicable", ""])
descriptions = st.sampled_from(["", "x", "[Completed] x", "[Canceled] x"])
found = st.builds(
    StatusEvent,
    st.sampled_from(["", "a", "b", "c"]) | st.text(max_size=3),
    st.sampled_from(["instance-retirement", "system-reboot"]),
    descriptions,
    st.none() | st.floats(NOW, NOW + DAY),
)
statuses = st.builds(
    InstanceStatus,
    st.just(NODE),
    words,
    words,
    words,
    events=st.lists(found, max_size=30, unique_by=lambda e: (e.event_id, e.not_before)).map(tuple),
)


@settings(max_examples=100, deadline=None, database=None)
@given(st.lists(statuses, max_size=8))
def test_what_is_remembered_is_bounded_and_no_state_is_told_twice(seen: list[InstanceStatus]) -> None:
    sweep, told = Sweeps(), []
    for status in seen:
        now = sweep.now + 60
        details = watch(status, sweep.watched, now)[0]
        told += [(detail["code"], detail["healthy"]) for detail in details]
        sweep(status)
        assert len(sweep.watched["events"]) <= EVENTS
        assert set(sweep.watched["checks"]) <= set(METRICS.values())
    for metric in METRICS.values():
        ends = [healthy for code, healthy in told if code == metric]
        assert ends == [bool(number % 2) for number in range(len(ends))]
