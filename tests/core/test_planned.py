"""Ends that are announced: when they are due, what of them the node's row keeps, what takes them back."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planaria.core import planned
from planaria.core.classify import classify
from planaria.core.fault import Action
from planaria.core.judge import Judgement, Outcome, judge
from planaria.core.maintenance import Window
from planaria.core.node import NodeView
from planaria.core.parsers import PLANNED, REPEATS, SWEEP, parse
from planaria.core.policy import Mode, Policy
from planaria.core.signal import Kind, Signal

NODE, OTHER = "i-0aaaaaaaaaaaaaaa1", "i-0bbbbbbbbbbbbbbb2"
NOW = 1_793_610_845.0
HOUR, DAY = 3600.0, 86_400.0
CALM = Policy()
BUSY = NodeView(NODE, name="demo-1", group="workers", job_id="gpt")
IDLE = replace(BUSY, job_id=None)
BLOCK_DRAIN = CALM.drain_deadline_seconds + planned.MARGIN_SECONDS


def health(ends: float | None, at: float = NOW, arn: str = "arn:1", healthy: bool = False) -> Signal:
    evidence: dict[str, Any] = {"starts_at": ends, "event_arn": arn}
    code = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED"
    return Signal(
        "event", f"{arn}|{at}", "aws.health", "AWS Health Event", Kind.SCHEDULED_EVENT, NODE, code, at,
        healthy, evidence=evidence,
    )  # fmt: skip


def of_ec2(ends: float | None, at: float = NOW, name: str = "event-1", healthy: bool = False) -> Signal:
    evidence: dict[str, Any] = {"starts_at": ends, "event_id": name, "description": ""}
    return Signal(
        "event", f"{name}|{at}", SWEEP, "Planaria Sweep Finding", Kind.SCHEDULED_EVENT, NODE,
        "instance-retirement", at, healthy, evidence=evidence,
    )  # fmt: skip


def block(taken: float | None, at: float = NOW) -> Signal:
    evidence: dict[str, Any] = {"reservation": "cr-1", "deadline": taken}
    return Signal(
        "event", f"cr-1|{at}", "aws.ec2", "Capacity Block Expiration Warning", Kind.CAPACITY_END, NODE,
        "expiration", at, evidence=evidence,
    )  # fmt: skip


def judged(signal: Signal, node: NodeView = BUSY, policy: Policy = CALM, now: float = NOW) -> Judgement:
    return judge(signal, node, known=False, policy=policy, now=now)


# --- when it is due --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signal", "node", "outcome", "latest"),
    [
        (health(NOW + 10 * DAY), BUSY, "HELD", NOW + 9 * DAY),
        (of_ec2(NOW + 10 * DAY), BUSY, "HELD", NOW + 9 * DAY),
        (health(NOW + DAY + 1), BUSY, "HELD", NOW + 1),
        (health(NOW + DAY), BUSY, "OPENED", None),
        (health(NOW + HOUR), BUSY, "OPENED", None),
        (health(NOW - HOUR), BUSY, "OPENED", None),
        (health(None), BUSY, "OPENED", None),  # no date may be any moment
        (health(NOW + 10 * DAY), IDLE, "OPENED", NOW + 9 * DAY),
        (block(NOW + 6 * HOUR), BUSY, "HELD", NOW + 6 * HOUR - BLOCK_DRAIN),
        (block(NOW + 6 * HOUR), IDLE, "HELD", NOW + 6 * HOUR - BLOCK_DRAIN),  # it is paid for
        (block(NOW + 600), BUSY, "OPENED", None),
        (block(None), BUSY, "OPENED", None),
    ],
)
def test_when_a_node_is_drained(signal: Signal, node: NodeView, outcome: str, latest: float | None) -> None:
    end = judged(signal, node)
    assert (end.outcome, end.action) == (outcome, Action.DRAIN)
    assert (end.plan.latest if end.plan else None) == latest
    assert end.plan is None or end.plan.holds == (outcome == "HELD")
    assert end.rule in ("scheduled-retirement", "capacity-block-end")


def test_the_words_name_the_date_and_the_latest_moment() -> None:
    held = judged(health(NOW + 10 * DAY)).reason
    assert held == (
        "planned for 2026-11-12 09:14 UTC: demo-1 is drained when it has no job, at the latest at "
        "2026-11-11 09:14 UTC"
    )
    early = judged(health(NOW + 10 * DAY), IDLE).reason
    assert "demo-1 has no job, so it is drained now" in early and early.startswith("AWS retires the instance")
    assert "when its Capacity Block is taken" in judged(block(NOW + 6 * HOUR)).reason


def test_the_lead_is_never_shorter_than_the_drain_needs() -> None:
    hasty = Policy(lead_seconds=60.0, drain_deadline_seconds=3600.0)
    end = judged(health(NOW + DAY), policy=hasty)
    assert end.plan is not None and end.plan.latest == NOW + DAY - 3600 - planned.MARGIN_SECONDS
    assert judged(health(NOW + 3600 + planned.MARGIN_SECONDS), policy=hasty).outcome is Outcome.OPENED


@pytest.mark.parametrize(
    ("evidence", "node", "outcome"),
    [
        ({planned.QUIET: True}, BUSY, "OPENED"),
        ({planned.QUIET: False}, BUSY, "HELD"),
        ({planned.QUIET: True}, IDLE, "OPENED"),
        ({planned.BUSY: True}, IDLE, "HELD"),
        ({planned.BUSY: True, planned.QUIET: True}, IDLE, "OPENED"),
    ],
)
def test_whether_it_has_a_job_may_be_known_better(
    evidence: dict[str, Any], node: NodeView, outcome: str
) -> None:
    signal = health(NOW + 10 * DAY)
    assert judged(replace(signal, evidence={**signal.evidence, **evidence}), node).outcome == outcome


@pytest.mark.parametrize("ends", [1e15, -1e15, 0.0, 253_402_300_800.0])
def test_a_date_that_no_calendar_has_is_no_exception(ends: float) -> None:
    end = judged(health(ends))
    assert end.outcome is (Outcome.HELD if ends > NOW else Outcome.OPENED) and end.reason


def test_a_persons_own_answer_decides_what_waits() -> None:
    def policy(kind: str, code: str, action: str) -> Policy:
        answer = {"kind": kind, "code": code, "action": action, "reason": "as we do it"}
        return Policy.from_document({"catalog": [answer]})

    now = policy("scheduled_event", "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED", "REPLACE")
    assert judged(health(NOW + 10 * DAY), policy=now).outcome is Outcome.OPENED
    reboot = replace(of_ec2(NOW + 10 * DAY), code="system-reboot")
    assert judged(reboot).outcome is Outcome.OBSERVED
    leave = policy("scheduled_event", "system-reboot", "DRAIN")
    assert judged(reboot, policy=leave).outcome is Outcome.HELD


def test_a_degraded_drive_has_no_date_and_does_not_wait() -> None:
    """AWS Health says since when it is so, which is no time at which anything ends."""
    code = "AWS_EC2_INSTANCE_STORE_DRIVE_PERFORMANCE_DEGRADED"
    drive = replace(health(NOW + 9 * DAY), kind=Kind.NODE_HEALTH, code=code)
    end = judged(drive)
    assert (end.outcome, end.action, end.plan) == (Outcome.OPENED, Action.DRAIN, None)
    assert end.fault is not None and end.fault.deadline is None


def test_a_fault_names_its_deadline_and_its_reservation() -> None:
    fault = classify(block(NOW + 600), BUSY, CALM)
    assert (fault.deadline, fault.reservation) == (NOW + 600, "cr-1")
    assert classify(health(NOW + DAY), BUSY, CALM).reservation == ""


# --- beside what else holds a node -----------------------------------------------------------------


def test_other_holds_are_asked_about_when_it_is_due() -> None:
    opted = replace(BUSY, opted_out=True)
    work = Policy(maintenance=(Window(NOW - HOUR, NOW + HOUR, reason="new cables"),))
    assert judged(health(NOW + 10 * DAY), opted).plan is not None
    assert "planaria:opt-out" in judged(health(NOW + HOUR), opted).reason
    assert judged(health(NOW + 10 * DAY), BUSY, work).plan is not None
    assert "new cables" in judged(health(NOW + 5 * HOUR), BUSY, work).reason
    assert judged(health(NOW + 0.5 * HOUR), BUSY, work).outcome is Outcome.OPENED  # it ends within the window
    assert "new cables" in judged(health(NOW + 10 * DAY), IDLE, work).reason


@pytest.mark.parametrize("mode", list(Mode))
def test_every_mode_plans_alike(mode: Mode) -> None:
    end = judged(health(NOW + 10 * DAY), policy=Policy(mode=mode))
    assert (end.outcome, end.mode) == (Outcome.HELD, mode)


@pytest.mark.parametrize(
    ("action", "ends", "raises", "plans"),
    [
        ("REBOOT", NOW + 10 * DAY, False, True),
        ("RESET", NOW + 10 * DAY, False, True),
        ("REBOOT", NOW + HOUR, True, False),
        ("DRAIN", NOW + 10 * DAY, False, False),
        ("REPLACE", NOW + 10 * DAY, False, False),
    ],
)
def test_a_session_that_does_not_take_the_node_away_leaves_the_plan(
    action: str, ends: float, raises: bool, plans: bool
) -> None:
    node = replace(BUSY, session=7, claim_id="x", phase="RUNNING", action=action, fault_kind="xid",
                   fault_code="48", detected_at=NOW - 11, opened_at=NOW - 10)  # fmt: skip
    end = judged(health(ends), node)
    assert (end.outcome, end.raises, end.plan is not None) == (Outcome.JOINED, raises, plans)


# --- what the row keeps ----------------------------------------------------------------------------


def keep(plans: dict[str, dict[str, Any]], signal: Signal, now: float = NOW) -> dict[str, dict[str, Any]]:
    """The plans after the signal, as the lambda writes them."""
    node = replace(BUSY, planned=plans)
    fault = classify(signal, node, CALM)
    plan = planned.plan_of(signal, fault, node, CALM, now)
    if plan is None or not plan.holds:
        return plans
    return {**plans, **planned.kept(plans, planned.key(signal), planned.entry(signal, fault, plan, now))}


def dates(plans: dict[str, dict[str, Any]]) -> dict[str, float]:
    return {name.partition("|")[2]: (plan["deadline"] - NOW) / DAY for name, plan in plans.items()}


def test_told_twice_it_is_one_plan() -> None:
    once = keep({}, health(NOW + 10 * DAY))
    assert dates(once) == {"arn:1": 10.0} and keep(once, health(NOW + 10 * DAY, NOW + 60)) == once


@pytest.mark.parametrize("second", [5.0, 20.0])
def test_the_newest_date_counts_whatever_the_order(second: float) -> None:
    old, new = health(NOW + 10 * DAY, NOW), health(NOW + second * DAY, NOW + 60)
    assert dates(keep(keep({}, old), new)) == {"arn:1": second}
    assert dates(keep(keep({}, new), old)) == {"arn:1": second}


def test_the_date_that_one_source_moves_is_moved_for_the_other() -> None:
    both = keep(keep({}, health(NOW + 10 * DAY)), of_ec2(NOW + 10 * DAY + HOUR, NOW + 5))
    assert dates(both).keys() == {"arn:1", "event-1"}
    assert dates(keep(both, of_ec2(NOW + 20 * DAY, NOW + 60))) == {"arn:1": 20.0, "event-1": 20.0}
    assert dates(keep(both, health(NOW + 20 * DAY, NOW + 60))) == {"arn:1": 20.0, "event-1": 20.0}
    far = keep(keep({}, health(NOW + 30 * DAY)), of_ec2(NOW + 10 * DAY))
    assert dates(keep(far, of_ec2(NOW + 12 * DAY, NOW + 60))) == {"arn:1": 30.0, "event-1": 12.0}


def test_an_older_word_does_not_hurry_what_was_put_off() -> None:
    plans = keep({}, health(NOW + 20 * DAY, NOW + 60))
    late = judged(health(NOW + 5 * DAY, NOW), replace(BUSY, planned=plans), now=NOW + 4.5 * DAY)
    assert late.outcome is Outcome.HELD and late.plan is not None and late.plan.deadline == NOW + 20 * DAY


def test_what_was_held_and_is_told_again_brings_back_no_older_date() -> None:
    """Of an opted-out node, say: the event's time is then that of the telling."""
    plans = keep({}, health(NOW + 20 * DAY, NOW + 60))
    signal = health(NOW + 5 * DAY, NOW + 600)
    told = replace(signal, evidence={**signal.evidence, REPEATS: True})
    assert keep(plans, told, NOW + 600) == plans
    assert judged(told, replace(BUSY, planned=plans), now=NOW + 4.5 * DAY).outcome is Outcome.HELD


def test_the_plans_of_a_node_are_few_and_the_soonest_is_kept() -> None:
    plans: dict[str, dict[str, Any]] = {}
    for number in range(30):
        plans = keep(plans, of_ec2(NOW + (40 - number) * DAY, name=f"event-{number}"))
    assert min(plan["deadline"] for plan in plans.values()) == NOW + 11 * DAY
    later: dict[str, dict[str, Any]] = {}
    for number in range(30):
        later = keep(later, of_ec2(NOW + (10 + number) * DAY, name=f"event-{number}"))
    assert len(later) == planned.ENTRIES and dates(later)["event-0"] == 10.0


# --- what takes it back ----------------------------------------------------------------------------


def back(plans: dict[str, dict[str, Any]], signal: Signal) -> set[str]:
    return {name.partition("|")[2] for name in planned.taken_back(signal, plans)}


BOTH = keep(keep({}, health(NOW + 10 * DAY)), of_ec2(NOW + 10 * DAY + HOUR, NOW + 5))


@pytest.mark.parametrize(
    ("signal", "taken"),
    [
        (health(NOW + 10 * DAY, NOW + 60, healthy=True), {"arn:1"}),
        (health(NOW + 10 * DAY, NOW + 60, "arn:2", healthy=True), set()),
        (health(NOW + 10 * DAY, NOW - 60, healthy=True), set()),  # older than what is planned
        (of_ec2(NOW + 10 * DAY, NOW + 60, healthy=True), {"arn:1", "event-1"}),
        (of_ec2(None, NOW + 60, healthy=True), {"arn:1", "event-1"}),
        (of_ec2(NOW + 10 * DAY, NOW + 2, healthy=True), {"arn:1"}),
        (of_ec2(NOW + 10 * DAY, NOW + 60, "event-2", healthy=True), set()),
        (health(NOW + 10 * DAY, NOW + 60), set()),
    ],
)
def test_what_a_healthy_report_ends(signal: Signal, taken: set[str]) -> None:
    assert back(BOTH, signal) == taken
    said = judged(signal, replace(BUSY, planned=BOTH), now=NOW + 61).reason
    assert ("is off" in said) == bool(taken)


def test_an_event_that_ec2_puts_in_the_place_of_another_is_not_taken_back_with_it() -> None:
    """One sweep tells of both, in any order."""
    old, new = of_ec2(NOW + 10 * DAY), of_ec2(NOW + 12 * DAY, NOW + 60, "event-2")
    over = of_ec2(NOW + 10 * DAY, NOW + 60, healthy=True)
    first = keep({}, old)
    after = keep(first, new)
    assert back(after, over) == {"event-1"} == back(first, over)


def test_ec2s_cancelling_does_not_end_another_end() -> None:
    far = keep(keep({}, health(NOW + 30 * DAY)), of_ec2(NOW + 10 * DAY))
    assert back(far, of_ec2(NOW + 10 * DAY, NOW + 60, healthy=True)) == {"event-1"}


# --- told of again by sweep ------------------------------------------------------------------------


def again(name: str, quiet: bool, **more: Any) -> dict[str, Any]:
    """As sweep puts it on the bus: an event of AWS Health about two nodes."""
    detail = {
        "eventArn": "arn:1", "service": "EC2", "eventTypeCode": "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED",
        "eventTypeCategory": "scheduledChange", "communicationId": "c-1", "statusCode": "open",
        "startTime": "Thu, 12 Nov 2026 09:14:05 GMT",
        "affectedEntities": [{"entityValue": OTHER}, {"entityValue": NODE}],
        REPEATS: True, PLANNED: {"node_id": NODE, "plan": name, "quiet": quiet, "deadline": NOW + 20 * DAY},
    }  # fmt: skip
    at = "2026-11-03T09:14:05Z"
    return {
        "source": SWEEP,
        "detail-type": "AWS Health Event",
        "detail": detail,
        "time": at,
        "id": "b",
        **more,
    }


def test_it_is_about_one_node_and_its_newest_date() -> None:
    [signal] = parse(again("scheduled_event|arn:1", True))
    assert (signal.node_id, signal.time, signal.evidence["deadline"]) == (NODE, NOW + DAY, NOW + 20 * DAY)
    assert signal.evidence[planned.QUIET] is True and signal.evidence[planned.PLAN] == "scheduled_event|arn:1"
    assert signal.dedupe_key == "arn:1|c-1|1|" + NODE  # the event's own


def test_the_event_of_a_reservation_gets_its_node() -> None:
    event = again("capacity_end|cr-1", False, **{"detail-type": "Capacity Block Expiration Warning"})
    event["detail"] |= {"capacity-reservation-id": "cr-0ddddddddddddddd4"}
    [signal] = parse(event)
    assert (signal.kind, signal.node_id) == (Kind.CAPACITY_END, NODE)


@pytest.mark.parametrize("source", ["aws.health", "planaria.gameday", f"planaria.node/AROA:{NODE}"])
def test_nobody_but_sweep_says_so(source: str) -> None:
    for signal in parse(again("scheduled_event|arn:1", True, source=source)):
        assert not {planned.PLAN, planned.QUIET, REPEATS} & set(signal.evidence)


@pytest.mark.parametrize(
    "told", [None, 5, [], {}, {"node_id": 5}, {"node_id": "i-1"}, {"node_id": "i-0ccccc"}]
)
def test_a_broken_one_is_read_as_the_event_itself(told: Any) -> None:
    event = again("x", True)
    event["detail"][PLANNED] = told
    assert [signal.node_id for signal in parse(event)] == [OTHER, NODE]


def test_what_was_taken_back_meanwhile_opens_nothing() -> None:
    [signal] = parse(again("scheduled_event|arn:1", True))
    plans = keep({}, health(NOW + 20 * DAY))
    assert judged(signal, replace(BUSY, planned=plans), now=NOW + DAY).outcome is Outcome.OPENED
    end = judged(signal, BUSY, now=NOW + DAY)
    assert (end.outcome, end.action) == (Outcome.STALE, None) and "taken back" in end.reason


# --- what sweep asks -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "after", "over"),
    [
        ({}, 0, False),
        ({"ended_at": NOW + 60, "action": "DRAIN"}, 120, True),
        ({"ended_at": NOW + 60, "action": "REPLACE"}, 120, True),
        ({"ended_at": NOW + 60, "action": "REBOOT"}, 120, False),
        ({"ended_at": NOW + 60, "action": "DRAIN", "phase": "CANCELLED"}, 120, True),  # a person's no
        ({"ended_at": NOW - 60, "action": "DRAIN"}, 120, False),
        # The end is that of a session before.
        ({"ended_at": NOW + 60, "opened_at": NOW + 70, "action": "DRAIN", "phase": "RUNNING"}, 120, False),
        ({"ended_at": NOW + 60, "opened_at": NOW + 70, "action": "DRAIN", "phase": "CANCELLED"}, 120, False),
        ({"action": "DRAIN"}, 120, False),  # cancelled: it leaves no end
        ({}, 10 * DAY, False),
        ({}, 11 * DAY + 1, True),
    ],
)
def test_when_a_plan_is_over(row: dict[str, Any], after: float, over: bool) -> None:
    [plan] = keep({}, health(NOW + 10 * DAY)).values()
    assert planned.is_over(row, plan, NOW + after) is over


@pytest.mark.parametrize(
    ("job", "may"),
    [
        (None, True),
        ({"state": "RUNNING"}, True),  # the scheduler knows whether it still does
        ({"state": "COMPLETED"}, True),
        ({"state": "FAILED", "resume_phase": "ESCALATED"}, True),
        ({"state": "RUNNING", "resume_phase": "HEALED"}, True),
        ({"state": "RUNNING", "resume_phase": "CLAIMED"}, False),
        ({"state": "STOPPED", "resume_phase": "RUNNING"}, False),
        ({"state": "STOPPED", "pending": {}}, False),
        ({"state": "STOPPED", "pending": {OTHER: "incident"}}, True),
        ({"state": "STOPPED", "unresolved": {OTHER: "no capacity"}}, True),
    ],
)
def test_a_job_that_is_about_to_go_on_is_no_quiet_moment(job: dict[str, Any] | None, may: bool) -> None:
    assert planned.may_rest(job) is may


@pytest.mark.parametrize(
    ("row", "until"),
    [
        ({"action": "DRAIN", "fault": {"kind": "scheduled_event", "deadline": NOW}}, NOW - BLOCK_DRAIN),
        ({"action": "DRAIN", "fault": {"kind": "scheduled_event"}}, 0.0),
        ({"action": "DRAIN", "fault": {"kind": "capacity_end", "deadline": NOW}}, 0.0),
        ({"action": "DRAIN", "fault": {"kind": "rebalance"}, "opened_at": NOW}, NOW + CALM.cooldown_seconds),
        ({"action": "REPLACE", "fault": {"kind": "scheduled_event", "deadline": NOW}}, 0.0),
        ({"action": "DRAIN"}, 0.0),
        ({}, 0.0),
    ],
)
def test_how_long_a_drain_may_wait_for_its_replacement(row: dict[str, Any], until: float) -> None:
    assert planned.isolate_by(row, CALM) == until


# --- for any course of words -----------------------------------------------------------------------

WORDS = st.tuples(
    st.sampled_from(["health", "ec2"]),
    st.sampled_from(["1", "2"]),
    st.integers(0, 40).map(lambda days: days * DAY / 2),  # the date, from NOW on
    st.integers(0, 20).map(lambda days: days * DAY / 2),  # when it is said
    st.booleans(),
)


def _signal(word: tuple[str, str, float, float, bool]) -> Signal:
    teller, name, date, said, over = word
    told = health if teller == "health" else of_ec2
    return told(NOW + date, NOW + said, f"arn:{name}" if teller == "health" else f"event-{name}", over)


@given(st.lists(WORDS, max_size=12))
def test_any_course_of_words_leaves_few_plans_that_all_wait(words: list[Any]) -> None:
    plans: dict[str, dict[str, Any]] = {}
    now = NOW
    for word in words:
        signal = _signal(word)
        now = max(now, signal.time or now)
        for name in planned.taken_back(signal, plans):
            plans = {other: plan for other, plan in plans.items() if other != name}
        if not signal.healthy:
            known = plans
            plans = keep(plans, signal, now)
            # What one source says of its own event is never older than what was known of it.
            own = planned.key(signal)
            if own in known and own in plans:
                assert plans[own]["said_at"] >= known[own]["said_at"]
        assert len(plans) <= planned.ENTRIES + 1
        for plan in plans.values():
            assert plan["latest"] < plan["deadline"] and plan["said_at"] <= now
        node = replace(BUSY, planned=plans)
        end = judged(signal, node, now=now)
        assert end.outcome in (Outcome.HELD, Outcome.OPENED, Outcome.OBSERVED)


@given(st.lists(WORDS.map(lambda word: (*word[:4], False)), max_size=6), st.randoms(use_true_random=False))
def test_of_one_source_the_order_of_deliveries_does_not_matter(words: list[Any], random: Any) -> None:
    mine = {word[3]: word for word in words if word[:2] == ("health", "1")}  # at one time it says one thing
    shuffled = list(mine.values())
    random.shuffle(shuffled)

    def course(told: list[Any]) -> float | None:
        plans: dict[str, dict[str, Any]] = {}
        for word in told:
            plans = keep(plans, _signal(word), NOW - 60 * DAY)  # long before: all of them wait
        return plans["scheduled_event|arn:1"]["deadline"] if plans else None

    assert course(list(mine.values())) == course(shuffled)


@given(st.floats(allow_nan=False), st.booleans(), st.floats(0, 2e9))
def test_any_date_is_planned_or_due(date: float, busy: bool, now: float) -> None:
    end = judged(health(date), BUSY if busy else IDLE, now=now)
    assert end.outcome in (Outcome.HELD, Outcome.OPENED)
    if end.plan is not None:
        assert now < end.plan.latest <= date and end.plan.holds == (end.outcome is Outcome.HELD) == busy
