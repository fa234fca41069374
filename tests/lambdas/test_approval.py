"""Mode `approve`: a person's word before anything is done to a node that still works."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from lambdas import approvals
from planaria.cli.approve import give
from planaria.core import approval
from planaria.core.approval import Answer
from planaria.core.errors import Fenced, InvalidInput, PermanentError
from planaria.core.plans import incident_document
from planaria.core.policy import Mode, Policy
from planaria.core.ports import Execution
from planaria.memory.workflows import MemoryWorkflows
from tests.lambdas.asl_driver import definition
from tests.lambdas.conftest import Build
from tests.lambdas.test_node_stories import SICK, ask_reboot, entered, fall_off, report_well
from tests.lambdas.world import JOB, NODES, World, cluster

HOUR = 3600.0
ALL_TRIES = 21
"""Of a Task: the first one and its retries."""


@pytest.fixture
def asking(build: Build) -> World:
    return build(cluster("approve"))


def waits(world: World, node: str = SICK) -> Callable[[], bool]:
    return lambda: approval.waits(world.node(node)) and bool(world.notices.sent)


def name_of(world: World, node: str = SICK) -> str:
    return f"{node}-{world.node(node)['session']}"


def word(world: World, answer: Answer, name: str = "", reason: str = "") -> None:
    give(world.gw, name or name_of(world), answer, "ada", reason)


def touched(world: World) -> list[Any]:
    """Everything that was done to nodes, jobs and scheduler."""
    return [*world.fleet.calls, *world.scheduler.requests, *world.commands.calls]


def slots(world: World) -> dict[str, float]:
    return dict(world.gw.breaker.status(world.now)["removals"])


# --- the three answers -----------------------------------------------------------------------------


def test_nothing_is_done_before_a_person_says_yes(asking: World) -> None:
    fall_off(asking)
    asking.run(1800)
    assert touched(asking) == [] and asking.isolated == {}
    assert asking.node(SICK)["phase"] == "RUNNING" and "isolation" not in asking.node(SICK)
    assert list(slots(asking)) == [name_of(asking)]
    assert len(asking.notices.sent) == 1
    word(asking, Answer.APPROVED)
    asking.run()
    asking.notices.sent.clear()
    asking.assert_healed(replaced=1, resumed=1)
    assert asking.ends == ["HEALED"]
    line = asking.timeline(asking.incidents[0]["incident_id"])
    assert (
        line.index("begun") < line.index("approval_asked") < line.index("approved") < line.index("isolated")
    )


def test_the_mail_names_all_that_a_person_needs_and_not_the_token(asking: World) -> None:
    fall_off(asking)
    asking.run(60, waits(asking))
    [(subject, text)] = asking.notices.sent
    name = name_of(asking)
    assert name in subject and len(subject) <= 100
    for part in (
        f"planaria approve {name}\n", f"planaria approve {name} --reject", SICK, "demo-1", "xid-79",
        "launch a replacement", f"move job {JOB}", "1 h", "ESCALATED", "docs/runbooks/held.md",
    ):  # fmt: skip
        assert part in text, part
    token = asking.node(SICK)["approval"]["token"]
    assert token and token not in subject + text


def test_a_reboot_says_that_it_reboots(asking: World) -> None:
    ask_reboot(asking)
    asking.run(60, waits(asking))
    [(_, text)] = asking.notices.sent
    assert "reboot it" in text and "replacement" not in text
    word(asking, Answer.APPROVED)
    asking.run()
    asking.notices.sent.clear()
    asking.assert_healed(replaced=0, resumed=1)


def test_rejected_ends_cancelled_and_frees_the_slot(asking: World) -> None:
    fall_off(asking)
    asking.run(60, waits(asking))
    word(asking, Answer.REJECTED, reason="we need it tonight")
    assert slots(asking) == {}
    asking.run()
    assert asking.ends == ["CANCELLED"] and touched(asking) == []
    assert "rejected by ada: we need it tonight" in asking.incidents[0]["outcome_reason"]
    asking.notices.sent.clear()
    asking.assert_healed(replaced=0, resumed=0)


def test_nobody_answers_in_time(asking: World) -> None:
    fall_off(asking)
    start = asking.now
    asking.run(2 * HOUR)
    assert asking.ends == ["ESCALATED"] and touched(asking) == [] and slots(asking) == {}
    [head] = asking.incidents
    assert head["outcome_reason"] == "nobody approved within 1 h; the node is as it was"
    assert HOUR < head["closed_at"] - start < HOUR + 70
    asked, escalated = asking.notices.sent
    assert "approve incident" in asked[0] and "needs you" in escalated[0]
    assert "is NOT isolated" in escalated[1]
    asking.notices.sent.clear()
    asking.assert_healed(replaced=0, resumed=0)  # the job went on all the time


def test_the_policy_says_how_long(build: Build) -> None:
    world = build(cluster("approve", approval_timeout_seconds=120))
    fall_off(world)
    world.run(400)
    assert world.ends == ["ESCALATED"] and "within 2 min" in world.incidents[0]["outcome_reason"]


def test_without_sweep_the_time_out_of_the_state_ends_it(asking: World) -> None:
    """12 h 15 min, which is longer than any policy's wait; then the slow look finds the time over."""
    asking.sweeps = False
    fall_off(asking)
    asking.run(13 * HOUR)
    assert asking.ends == ["ESCALATED"] and touched(asking) == []
    assert entered(asking, "Look for the answer")


# --- what is not asked -----------------------------------------------------------------------------


@pytest.mark.parametrize("begin", [lambda w: w.interrupt(SICK), lambda w: w.lose(SICK)], ids=["spot", "gone"])
def test_what_aws_takes_anyway_is_not_asked(asking: World, begin: Callable[[World], None]) -> None:
    begin(asking)
    asking.run()
    asking.assert_healed(replaced=1, resumed=1)


def test_a_persons_own_order_is_not_asked(asking: World) -> None:
    asking.start("heal_node", {"node_id": SICK, "action": "replace"})
    asking.run()
    asking.assert_healed(replaced=1, resumed=1)


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        ({}, True),
        ({"verb": "replace"}, False),
        ({"gone": True}, False),
        ({"state": "shutting-down"}, False),
        ({"fault": {"kind": "spot_interruption"}}, False),
        ({"fault": {"kind": "capacity_end"}}, False),
        ({"fault": {"kind": "lifecycle"}}, False),
        ({"fault": {"kind": "scheduled_event"}}, True),
        ({"action": "REBOOT"}, True),
    ],
)
def test_who_is_asked(change: dict[str, Any], asked: bool) -> None:
    row = {"node_id": SICK, "session": 5, "action": "REPLACE", "verb": "", "fault": {"kind": "xid"}, **change}
    assert incident_document(row, Policy(mode=Mode.APPROVE))["approval"] is asked
    assert incident_document(row, Policy())["approval"] is False


def test_in_mode_act_nobody_is_asked(world: World) -> None:
    fall_off(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert not entered(world, "Ask for approval")


# --- meanwhile -------------------------------------------------------------------------------------


def test_a_healthy_report_cancels_what_waits(asking: World) -> None:
    ask_reboot(asking)
    asking.run(60, waits(asking))
    name = name_of(asking)
    report_well(asking)
    asking.run()
    assert asking.ends == ["CANCELLED"] and slots(asking) == {} and touched(asking) == []
    with pytest.raises(PermanentError, match="has ended already, CANCELLED: the node is healthy again"):
        word(asking, Answer.APPROVED, name)
    asking.notices.sent.clear()
    asking.assert_healed(replaced=0, resumed=0)


def test_a_stronger_fault_asks_anew(asking: World) -> None:
    ask_reboot(asking)
    asking.run(60, waits(asking))
    first = name_of(asking)
    asking.clock.advance(2)
    fall_off(asking)
    asking.run(30)
    assert len(asking.notices.sent) == 2 and list(slots(asking)) == [name_of(asking)]
    with pytest.raises(PermanentError, match="ended already, SUPERSEDED"):
        word(asking, Answer.APPROVED, first)
    word(asking, Answer.APPROVED)
    asking.run()
    asking.notices.sent.clear()
    asking.assert_healed(replaced=1, resumed=1)
    assert asking.ends == ["SUPERSEDED", "HEALED"]


def test_a_node_that_ends_meanwhile_needs_no_word_any_more(asking: World) -> None:
    fall_off(asking)
    asking.run(60, waits(asking))
    asking.lose(SICK)
    asking.run()
    asking.notices.sent.clear()
    asking.assert_healed(replaced=1, resumed=1)
    assert asking.ends == ["HEALED"]


@pytest.mark.parametrize(
    ("kind", "goes_on"), [("spot_interruption", True), ("capacity_end", True), ("xid", False)]
)
def test_a_fault_that_joins_ends_the_wait_if_aws_takes_the_node(
    asking: World, kind: str, goes_on: bool
) -> None:
    fall_off(asking)
    asking.run(60, waits(asking))
    assert approvals.waive(asking.gw, asking.node(SICK), kind) is goes_on
    assert approvals.waive(asking.gw, asking.node(NODES[2]), kind) is False
    asking.run(600)
    assert asking.ends == (["HEALED"] if goes_on else ["none"])
    if goes_on:
        assert approvals.waive(asking.gw, asking.node(SICK), kind) is False


def test_the_slot_is_kept_as_long_as_the_incident_waits(build: Build) -> None:
    world = build(cluster("approve", approval_timeout_seconds=6 * HOUR))
    fall_off(world)
    world.run(3 * HOUR)
    assert list(slots(world)) == [name_of(world)]  # the breaker's window is one hour
    word(world, Answer.APPROVED)
    world.run(600)
    assert slots(world)[name_of(world, SICK)] > world.now - 700


def test_two_incidents_wait_each_for_its_own_word(asking: World) -> None:
    fall_off(asking)
    fall_off(asking, NODES[2])
    asking.run(60, lambda: waits(asking)() and waits(asking, NODES[2])())
    word(asking, Answer.REJECTED, name_of(asking, NODES[2]))
    word(asking, Answer.APPROVED)
    asking.run()
    assert sorted(asking.ends) == ["CANCELLED", "HEALED"]
    asking.notices.sent.clear()
    asking.assert_healed(replaced=1, resumed=1)


# --- what can go wrong ------------------------------------------------------------------------------


def test_wrong_names_are_refused_in_one_sentence(asking: World) -> None:
    fall_off(asking)
    asking.run(60, waits(asking))
    with pytest.raises(InvalidInput, match="is no incident id"):
        word(asking, Answer.APPROVED, "demo-1")
    with pytest.raises(InvalidInput, match="there is no incident"):
        word(asking, Answer.APPROVED, f"{SICK}-17")
    word(asking, Answer.APPROVED)
    with pytest.raises(PermanentError, match=r"was approved already \(ada, "):
        word(asking, Answer.REJECTED)
    asking.run(until=lambda: bool(asking.isolated))
    with pytest.raises(PermanentError, match="was approved already"):
        word(asking, Answer.APPROVED)


def test_an_incident_that_does_not_wait(world: World) -> None:
    fall_off(world)
    world.run(until=lambda: bool(world.isolated))
    with pytest.raises(PermanentError, match="does not wait for approval"):
        word(world, Answer.APPROVED)


def test_whoever_dies_between_the_answer_and_telling_it_sweep_tells_it(asking: World) -> None:
    fall_off(asking)
    asking.run(60, waits(asking))
    approval.answer(asking.gw.ledger, asking.node(SICK), Answer.APPROVED, "ada", "", asking.now)
    asking.run()
    asking.notices.sent.clear()
    asking.assert_healed(replaced=1, resumed=1)


def test_the_same_command_again_tells_an_answer_that_was_left_untold(asking: World) -> None:
    asking.sweeps = False
    fall_off(asking)
    asking.run(60, waits(asking))
    approval.answer(asking.gw.ledger, asking.node(SICK), Answer.APPROVED, "ada", "", asking.now)
    with pytest.raises(PermanentError, match="approved already"):
        word(asking, Answer.APPROVED)
    asking.run(600)
    assert asking.ends == ["HEALED"]


def test_an_execution_that_dies_while_it_waits_asks_again_without_a_second_mail(asking: World) -> None:
    fall_off(asking)
    asking.run(60, waits(asking))
    before = asking.node(SICK)["approval"]
    asking.abort(asking.node(SICK)["execution_arn"])
    asking.run(120)
    after = asking.node(SICK)["approval"]
    assert after["token"] != before["token"] and after["deadline"] == before["deadline"]
    assert len(asking.notices.sent) == 1 and asking.node(SICK)["attempt"] == 2
    word(asking, Answer.APPROVED)
    asking.run()
    asking.notices.sent.clear()
    asking.assert_healed(replaced=1, resumed=1)


def test_an_execution_that_dies_after_the_word_does_not_ask_again(asking: World) -> None:
    fall_off(asking)
    asking.run(60, waits(asking))
    word(asking, Answer.APPROVED)
    asking.run(until=lambda: entered(asking, "Wait for the node"))
    asking.abort(asking.node(SICK)["execution_arn"])
    asking.run()
    assert len(asking.notices.sent) == 1
    asking.notices.sent.clear()
    asking.assert_healed(replaced=1, resumed=1)


def test_the_answer_is_found_by_looking_when_the_token_is_dead(asking: World) -> None:
    fall_off(asking)
    asking.run(60, waits(asking))
    workflows = asking.workflows
    workflows.waiting.clear()  # Step Functions knows this token no more
    word(asking, Answer.APPROVED)
    assert asking.ends == ["none"]
    asking.run(13 * HOUR)
    asking.notices.sent.clear()
    asking.assert_healed(replaced=1, resumed=1)


def test_asking_that_fails_again_and_again_falls_back_to_looking(asking: World) -> None:
    asking.kill("ask_approval", "table.write", before=True, times=ALL_TRIES)
    fall_off(asking)
    asking.run(HOUR, waits(asking))
    assert entered(asking, "Look for the answer") and asking.node(SICK)["approval"]["token"] == ""
    word(asking, Answer.APPROVED)
    asking.run()
    asking.notices.sent.clear()
    asking.assert_healed(replaced=1, resumed=1)


def test_looking_in_vain_ends_with_the_policys_time(asking: World) -> None:
    asking.kill("ask_approval", "table.write", before=True, times=ALL_TRIES)
    asking.sweeps = False
    fall_off(asking)
    asking.run(2 * HOUR)
    assert (
        asking.ends == ["ESCALATED"] and "nobody approved within 1 h" in asking.incidents[0]["outcome_reason"]
    )


def test_a_session_that_is_over_lets_go_of_its_waiting_state(asking: World) -> None:
    fall_off(asking)
    asking.run(60, waits(asking))
    incident = {**incident_document(asking.node(SICK), Policy(mode=Mode.APPROVE)), "session": 5}
    asking.workflows.waiting.add("late")
    answer = asking.call("ask_approval", {"incident": incident, "token": "late"})
    assert answer["result"] == "FENCED" and asking.workflows.answers["late"]["result"] == "FENCED"


def test_an_old_sessions_word_is_not_the_new_ones(asking: World) -> None:
    fall_off(asking)
    asking.run(60, waits(asking))
    row = asking.node(SICK)
    assert approval.of({**row, "session": row["session"] + 1}) is None
    with pytest.raises(Fenced):
        approval.answer(asking.gw.ledger, {**row, "session": 5}, Answer.APPROVED, "ada", "", asking.now)


def test_the_literal_time_out_outlasts_the_longest_wait_that_a_cluster_file_may_ask_for() -> None:
    machine = definition("heal_node")
    wait = machine["States"]["Ask for approval"]["TimeoutSeconds"]
    assert 720 * 60 < wait < machine["TimeoutSeconds"] / 1.9


# --- crashes ----------------------------------------------------------------------------------------

STORIES: dict[str, tuple[Answer | None, list[str], int]] = {
    "approved": (Answer.APPROVED, ["HEALED"], 1),
    "rejected": (Answer.REJECTED, ["CANCELLED"], 0),
    "expired": (None, ["ESCALATED"], 0),
}


def play(world: World, answer: Answer | None) -> World:
    fall_off(world)
    world.run(200, waits(world))
    if answer is not None:
        word(world, answer)
    world.run(2 * HOUR)
    world.run()
    return world


def assert_ended(world: World, ends: list[str], replaced: int, mails: set[int]) -> None:
    assert world.ends == ends, world.ends
    assert len(world.notices.sent) in mails, [subject for subject, _ in world.notices.sent]
    world.notices.sent.clear()
    world.assert_healed(replaced=replaced, resumed=replaced)
    assert bool(slots(world)) is False or replaced == 1


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("story", STORIES)
def test_any_effect_of_an_approval_may_be_the_last_one(build: Build, story: str, before: bool) -> None:
    answer, ends, replaced = STORIES[story]
    mails = 2 if answer is None else 1
    calm = play(build(cluster("approve")), answer)
    effects = list(calm.effects)
    assert_ended(calm, ends, replaced, {mails})
    wrong = {}
    for number, (function, call) in enumerate(effects):
        if function == "sweep" and number > 60:
            break  # every minute the same
        world = build(cluster("approve"))
        world.kill_at(number, before=before)
        play(world, answer)
        # Killed between a mail and the note of it, it is sent once more: better than never.
        unnoted = effects[number - 1][1] == "notices.publish" if before else call == "notices.publish"
        try:
            assert_ended(world, ends, replaced, {mails, mails + unnoted})
        except AssertionError as error:
            wrong[f"{number}: {function} {call}"] = str(error).partition("\n")[0]
    assert wrong == {}


@pytest.mark.parametrize("story", STORIES)
def test_every_delivery_twice(build: Build, story: str) -> None:
    answer, ends, replaced = STORIES[story]
    world = build(cluster("approve"))
    world.twice = {"begin_incident", "ask_approval", "isolate_node", "launch_replacement", "close_incident"}
    assert_ended(play(world, answer), ends, replaced, {2 if answer is None else 1})


def test_no_token_is_logged(asking: World, caplog: pytest.LogCaptureFixture) -> None:
    fall_off(asking)
    asking.run(60, waits(asking))
    token = asking.node(SICK)["approval"]["token"]
    word(asking, Answer.APPROVED)
    asking.run(600)
    assert asking.ends == ["HEALED"]
    logged = [json.dumps(record.__dict__, default=str) for record in caplog.records]
    assert logged and not any(f'"{token}"' in line for line in logged)


def test_a_replayed_answer_is_no_second_one(asking: World) -> None:
    """Two people at once: one conditional write decides."""
    fall_off(asking)
    asking.run(60, waits(asking))
    row = asking.node(SICK)
    approval.answer(asking.gw.ledger, row, Answer.REJECTED, "bob", "", asking.now)
    with pytest.raises(PermanentError, match=r"rejected already \(bob"):
        word(asking, Answer.APPROVED)
    assert isinstance(asking.workflows, MemoryWorkflows)
    asking.run()
    assert asking.ends == ["CANCELLED"] and touched(asking) == []
    assert all(state is not Execution.RUNNING for state in asking.workflows.executions.values())
