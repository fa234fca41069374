"""Stories of planned ends: a retirement days ahead, planned for a quiet moment, taken back, put off, held."""

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from planaria.core.ports import InstanceStatus, StatusEvent
from planaria.core.scheduling import JobsOn, Stop
from planaria.core.tags import OPT_OUT
from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.test_node_stories import SICK, ask_reboot, fall_off, report_well
from tests.lambdas.world import JOB, NODES, World, cluster

DAY, HOUR = 86_400.0, 3600.0
LEAD = DAY
ARN = "arn:aws:health:us-east-1::event/EC2/AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED/1"
OTHER = NODES[2]


def health(
    node: str, starts: float, at: float, status: str = "open", letter: str = "1", arn: str = ARN
) -> str:
    """AWS Health announces a retirement. letter: each message about one event has an id of its own."""
    start = datetime.fromtimestamp(starts, UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    detail = {
        "eventArn": arn, "service": "EC2", "eventTypeCode": "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED",
        "eventTypeCategory": "scheduledChange", "communicationId": f"c-{letter}", "startTime": start,
        "statusCode": status, "page": "1", "totalPages": "1",
        "affectedEntities": [{"entityValue": node}],
    }  # fmt: skip
    return events.event("aws.health", "AWS Health Event", detail, at)


def listed(world: World, *found: StatusEvent, node: str = SICK) -> None:
    """EC2 lists these scheduled events of the node from now on."""
    world.fleet.checks[node] = InstanceStatus(node, "ok", "ok", "ok", events=found)


def retire(starts: float, name: str = "instance-event-1", said: str = "degraded hardware") -> StatusEvent:
    return StatusEvent(name, "instance-retirement", said, starts)


def finish(world: World) -> None:
    """The job comes to its own end."""
    world.scheduler.end_ranks(JOB, 0)


def later(world: World, seconds: float) -> None:
    world.clock.advance(seconds)
    world.run()


def plans(world: World, node: str = SICK) -> dict[str, Any]:
    return dict(world.node(node).get("planned") or {})


def outcome_rows(world: World) -> int:
    return sum(pk.startswith("EVENT#") for pk, _ in world.table._rows)


TELLS: dict[str, Callable[[World, float], None]] = {
    "health": lambda world, starts: world.send(health(SICK, starts, world.now)),
    "ec2": lambda world, starts: listed(world, retire(starts)),
}


# --- a retirement in ten days ------------------------------------------------------------------------


@pytest.mark.parametrize("teller", TELLS)
def test_a_busy_node_works_on_until_the_day_before_and_then_saves_and_drains(
    build: Build, teller: str
) -> None:
    world = build()
    start, ends = world.now, world.now + 10 * DAY
    TELLS[teller](world, ends)
    world.run()
    assert world.incidents == [] and world.outcomes_of("scheduled_event") == ["HELD"]
    [plan] = plans(world).values()
    assert plan["deadline"] == pytest.approx(ends, abs=1) and plan["latest"] == plan["deadline"] - LEAD
    [(subject, text)] = world.notices.sent
    assert "the end of" in subject and "at the latest at" in text and "planaria nodes" in text
    world.notices.sent.clear()
    later(world, ends - LEAD - 300 - world.now)
    assert world.incidents == [] and world.isolated == {} and world.now < ends - LEAD
    later(world, 240)
    world.assert_healed(replaced=1, resumed=1)
    [incident] = world.incidents
    assert (incident["action"], incident["rule"]) == ("DRAIN", "scheduled-retirement")
    assert ends - LEAD <= incident["opened_at"] <= ends - LEAD + 180
    assert world.scheduler.state.jobs[JOB].resume_step == 35  # the emergency checkpoint
    assert plans(world) == {} and world.now - start > 9 * DAY - 1


@pytest.mark.parametrize("teller", TELLS)
def test_the_end_of_its_job_is_the_quiet_moment(build: Build, teller: str) -> None:
    world = build()
    TELLS[teller](world, world.now + 10 * DAY)
    world.run()
    later(world, DAY)
    assert world.incidents == []
    finish(world)
    end = world.now
    world.run()
    world.run()
    [incident] = world.incidents
    assert (incident["action"], incident["outcome"]) == ("DRAIN", "HEALED")
    assert incident["opened_at"] - end < 600 and "has no job" in incident["reason"]
    assert world.terminated == [SICK] and world.attempts == [] and world.job["state"] == "COMPLETED"
    assert plans(world) == {}


def test_an_idle_node_is_drained_at_once(build: Build) -> None:
    world = build(job=False)
    world.send(health(SICK, world.now + 10 * DAY, world.now))
    world.run()
    assert world.ends == ["HEALED"] and world.terminated == [SICK] and world.notices.sent == []


def test_a_job_that_the_ledger_does_not_know_is_let_work(build: Build) -> None:
    """Someone submitted to the scheduler alone: the node has no job by the ledger."""
    world = build(job=False)
    world.scheduler.add_job(JOB, 4)
    world.send(health(SICK, world.now + 10 * DAY, world.now))
    world.run(1500)
    assert world.incidents == [] and world.outcomes_of("scheduled_event") == ["HELD"]
    assert not [r for r in world.scheduler.requests if isinstance(r, Stop)]
    finish(world)
    world.run(900)
    world.run(900)
    assert world.ends == ["HEALED"] and world.terminated == [SICK]


def test_a_scheduler_that_cannot_tell_is_no_quiet_moment(build: Build) -> None:
    world = build(job=False)
    world.scheduler.reachable = False
    world.send(health(SICK, world.now + 10 * DAY, world.now))
    world.run(900)
    assert world.incidents == []
    world.scheduler.reachable = True
    world.scheduler.pending_polls = 30  # slow: its answers come minutes later
    world.run(1200)
    world.scheduler.pending_polls = 0
    world.run(900)
    world.run(900)
    assert world.ends == ["HEALED"]


def test_between_two_attempts_of_its_job_is_no_quiet_moment(world: World) -> None:
    """A process crash: no rank runs for a moment, and the job goes on."""
    world.send(health(SICK, world.now + 10 * DAY, world.now))
    for _ in range(3):
        world.scheduler.end_ranks(JOB, -9, 2)
        later(world, 400)
    assert world.incidents == [] and plans(world)
    assert str(world.scheduler.state.jobs[JOB].state) == "RUNNING"


def test_a_job_that_stands_still_for_another_node_is_a_quiet_moment(world: World) -> None:
    """One interruption of the job, and not two."""
    world.send(health(SICK, world.now + 10 * DAY, world.now))
    world.notices.sent.clear()
    world.boots = False
    fall_off(world, OTHER)
    world.run(900)
    assert sorted(row["node_id"] for row in world.incidents) == sorted([SICK, OTHER])
    world.boots = True
    for node in world.launched:
        world._boot(node)
    world.run()
    world.assert_healed(replaced=2, resumed=1)


def test_until_then_nothing_is_written_for_it_every_minute(world: World) -> None:
    listed(world, retire(world.now + 10 * DAY))
    world.run()
    rows, before = outcome_rows(world), len(world.effects)
    world.run(0)
    for _ in range(60):
        world.clock.advance(60)
        world.sweep()
    writes = [call for function, call in world.effects[before:] if call == "table.write"]
    asked = [request for request in world.scheduler.requests if isinstance(request, JobsOn)]
    assert outcome_rows(world) == rows and world.bus.events == []
    assert len(writes) <= 2 * 60 and len(asked) <= 13  # of which the breaker's tidying is one a minute


# --- it is taken back --------------------------------------------------------------------------------


def closed(world: World, starts: float) -> None:
    world.send(health(SICK, starts, world.now, "closed", "2"))


def canceled(world: World, starts: float) -> None:
    listed(world, retire(starts, said="[Canceled] degraded hardware"))


def unlisted(world: World, _: float) -> None:
    listed(world)


@pytest.mark.parametrize(
    ("teller", "take_back"), [("health", closed), ("ec2", canceled)], ids=["health", "ec2"]
)
def test_what_aws_takes_back_is_planned_no_more(
    build: Build, teller: str, take_back: Callable[[World, float], None]
) -> None:
    world = build()
    ends = world.now + 10 * DAY
    TELLS[teller](world, ends)
    later(world, DAY)
    take_back(world, ends)
    world.run()
    assert plans(world) == {} and sorted(world.outcomes_of("scheduled_event")) == ["HELD", "OBSERVED"]
    said = [r["reason"] for r in world.table._rows.values() if r.get("outcome") == "OBSERVED"]
    assert "is off" in said[-1]
    finish(world)
    later(world, 9 * DAY)
    later(world, DAY)
    assert world.incidents == [] and world.terminated == []


def test_what_ec2_takes_back_without_a_word_is_not_acted_on(world: World) -> None:
    ends = world.now + 10 * DAY
    listed(world, retire(ends))
    later(world, DAY)
    unlisted(world, ends)
    later(world, 8 * DAY + 600)
    assert world.incidents == []
    [plan] = plans(world).values()
    assert plan["why"] == "EC2 lists it no longer"
    listed(world, retire(ends))  # it was a slip
    world.notices.sent.clear()
    world.run()
    world.assert_healed(replaced=1, resumed=1)


def test_a_cancelling_by_ec2_counts_for_aws_health_too(world: World) -> None:
    ends = world.now + 10 * DAY
    world.send(health(SICK, ends, world.now))
    listed(world, retire(ends))
    world.run()
    assert len(plans(world)) == 2
    later(world, 60)
    canceled(world, ends)
    world.run()
    assert plans(world) == {}


def test_aws_health_closes_its_own_word_and_ec2s_list_decides(world: World) -> None:
    ends = world.now + 10 * DAY
    world.send(health(SICK, ends, world.now))
    listed(world, retire(ends))
    later(world, 60)
    closed(world, ends)
    world.run()
    assert list(plans(world)) == ["scheduled_event|instance-event-1"]
    later(world, 9 * DAY)
    world.notices.sent.clear()
    world.assert_healed(replaced=1, resumed=1)


def test_a_cancelling_during_the_drain_cancels_the_incident(world: World) -> None:
    ends = world.now + 10 * DAY
    world.send(health(SICK, ends, world.now))
    world.boots = False
    later(world, 9 * DAY - 60)
    world.run(300, until=lambda: bool(world.launched))
    assert [row["action"] for row in world.incidents] == ["DRAIN"]
    world.clock.advance(5)
    closed(world, ends)
    world.boots = True
    world.run()
    world.run()
    assert world.ends == ["CANCELLED"] and SICK in world.alive and world.isolated == {}
    assert plans(world) == {} and str(world.scheduler.state.jobs[JOB].state) == "RUNNING"
    later(world, DAY)
    assert world.ends == ["CANCELLED"]


def test_a_node_that_is_replaced_meanwhile_needs_no_plan(world: World) -> None:
    world.send(health(SICK, world.now + 10 * DAY, world.now))
    world.notices.sent.clear()
    fall_off(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    world.run()
    assert plans(world) == {}
    later(world, 10 * DAY)
    world.assert_healed(replaced=1, resumed=1)


def test_a_plan_outlives_a_reboot_of_its_node(world: World) -> None:
    """And a healthy report cancels what another source began, for the plan has its own time."""
    ends = world.now + 10 * DAY
    world.send(health(SICK, ends, world.now))
    world.clock.advance(3600)
    ask_reboot(world)
    assert world.incidents[-1]["action"] == "REBOOT"
    world.clock.advance(2)
    report_well(world)
    world.run()
    assert world.ends == ["CANCELLED"] and len(plans(world)) == 1
    later(world, DAY)
    ask_reboot(world)
    world.run()
    assert world.ends[-1] == "HEALED" and world.terminated == [] and len(plans(world)) == 1
    later(world, ends - LEAD - world.now)
    assert world.incidents[-1]["action"] == "DRAIN" and world.ends[-1] == "HEALED"
    assert world.terminated == [SICK]


def test_a_retirement_that_comes_during_a_reboot_waits_for_its_time(world: World) -> None:
    world.boots = False
    ask_reboot(world)
    world.run(300, until=lambda: ("reboot", SICK) in world.fleet.calls)
    world.clock.advance(5)
    world.send(health(SICK, world.now + 10 * DAY, world.now))
    assert world.outcomes_of("scheduled_event") == ["JOINED"] and len(plans(world)) == 1
    world.notices.sent.clear()
    world.boots = True
    world._boot(SICK)
    world.run()
    world.assert_healed(replaced=0, resumed=1)
    assert len(plans(world)) == 1
    later(world, 9 * DAY)
    world.assert_healed(replaced=1, resumed=2)


# --- it is put off, and told twice -------------------------------------------------------------------


def test_the_newest_date_counts(world: World) -> None:
    first, second = world.now + 5 * DAY, world.now + 12 * DAY
    world.send(health(SICK, first, world.now))
    later(world, DAY)
    world.send(health(SICK, second, world.now, letter="2"))
    world.notices.sent.clear()
    later(world, 4 * DAY)
    assert world.incidents == []
    later(world, second - LEAD - world.now)
    world.assert_healed(replaced=1, resumed=1)
    assert world.incidents[0]["opened_at"] >= second - LEAD


def test_a_date_that_ec2_moves_is_found_by_sweep(world: World) -> None:
    first, second = world.now + 5 * DAY, world.now + 12 * DAY
    world.send(health(SICK, first, world.now))
    listed(world, retire(first))
    later(world, DAY)
    listed(world, retire(second))
    world.run()
    assert {round(plan["deadline"]) for plan in plans(world).values()} == {round(second)}
    world.notices.sent.clear()
    later(world, 4 * DAY)
    assert world.incidents == []
    later(world, second - LEAD - world.now)
    world.assert_healed(replaced=1, resumed=1)


def test_an_older_word_that_comes_late_changes_nothing(world: World) -> None:
    old = health(SICK, world.now + 5 * DAY, world.now)
    world.clock.advance(3600)
    world.send(health(SICK, world.now + 12 * DAY, world.now, letter="2"))
    [before] = plans(world).values()
    world.clock.advance(4.5 * DAY)
    world.send(old)
    assert list(plans(world).values()) == [before] and world.incidents == []


def test_delivered_twice_it_is_planned_once(world: World) -> None:
    text = health(SICK, world.now + 10 * DAY, world.now)
    world.send(text)
    plan = plans(world)
    world.clock.advance(60)
    world.send(text)
    world.send(health(SICK, world.now + 10 * DAY - 60, world.now, letter="1"))  # from the backup region
    assert plans(world) == plan and world.counted("DUPLICATE") == 2 and len(world.notices.sent) == 1


def test_one_that_is_due_when_it_comes_is_drained_at_once(world: World) -> None:
    for starts in (world.now + 3600, world.now - 3600):
        world.send(health(SICK, starts, world.now, letter=f"{starts}", arn=f"{ARN}{starts}"))
    world.run()
    world.assert_healed(replaced=1, resumed=1)


def test_a_date_that_went_by_leaves_time_to_save(world: World) -> None:
    world.send(health(SICK, world.now - HOUR, world.now))
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.scheduler.state.jobs[JOB].resume_step == 35


def test_one_without_a_date_is_due(world: World) -> None:
    listed(world, StatusEvent("instance-event-1", "instance-retirement", "degraded hardware", None))
    world.run()
    world.assert_healed(replaced=1, resumed=1)


# --- what else may hold a node -----------------------------------------------------------------------


def opted(world: World, value: str) -> None:
    instance = world.fleet.instances[SICK]
    tags = {key: text for key, text in instance.tags.items() if key != OPT_OUT}
    world.fleet.instances[SICK] = dataclasses.replace(
        instance, tags={**tags, OPT_OUT: value} if value else tags
    )


def test_the_opt_out_tag_holds_it_also_when_it_is_due(world: World) -> None:
    ends = world.now + 3 * DAY
    world.send(health(SICK, ends, world.now))
    opted(world, "true")
    later(world, 2 * DAY + 60)
    assert world.incidents == []
    [plan] = plans(world).values()
    assert OPT_OUT in plan["why"]
    opted(world, "")
    world.notices.sent.clear()
    world.run()
    world.run()
    world.assert_healed(replaced=1, resumed=1)


def test_a_maintenance_window_holds_it_until_its_end(build: Build) -> None:
    world = build()
    start = datetime.fromtimestamp(world.now, UTC)
    window = {
        "start": (start + timedelta(days=1)).isoformat(), "end": (start + timedelta(days=2.5)).isoformat(),
    }  # fmt: skip
    world = build(cluster(maintenance=[window]))
    world.send(health(SICK, world.now + 3 * DAY, world.now))
    world.notices.sent.clear()
    later(world, 2 * DAY + 60)
    assert world.incidents == [] and "maintenance" in next(iter(plans(world).values()))["why"]
    later(world, DAY / 2)
    world.assert_healed(replaced=1, resumed=1)


def test_the_breaker_lets_them_through_one_after_the_other(world: World) -> None:
    world.limit_breaker(1)
    ends = world.now + 3 * DAY
    for number, node in enumerate((SICK, OTHER)):
        world.send(health(node, ends, world.now, arn=f"{ARN}{number}"))
    world.notices.sent.clear()
    later(world, 2 * DAY + 60)
    assert sorted(world.ends) == ["CANCELLED", "HEALED"] and len(world.launched) == 1
    assert [plan["why"] for node in (SICK, OTHER) for plan in plans(world, node).values()] != [""]
    later(world, 3700)
    world.run()
    world.assert_healed(replaced=2, resumed=2)


def test_in_mode_approve_a_person_is_asked_when_it_is_due_and_once(build: Build) -> None:
    world = build(cluster("approve", approval_timeout_seconds=600))
    world.send(health(SICK, world.now + 3 * DAY, world.now))
    later(world, DAY)
    assert [subject for subject, _ in world.notices.sent if "approv" in subject] == []
    later(world, DAY + 60)
    later(world, 900)
    world.run()
    assert world.ends == ["ESCALATED"] and SICK in world.alive and plans(world) == {}
    later(world, 3600)
    assert world.ends == ["ESCALATED"]


def test_observe_mode_says_when_it_would_and_keeps_nothing(build: Build) -> None:
    world = build(cluster("observe"))
    world.send(health(SICK, world.now + 3 * DAY, world.now))
    world.run()
    later(world, 2 * DAY + 60)
    [row] = [r for r in world.table._rows.values() if r.get("kind") == "scheduled_event" and "outcome" in r]
    assert (row["outcome"], row["mode"]) == ("HELD", "observe") and "at the latest at" in row["reason"]
    assert plans(world) == {} and world.incidents == [] and world.notices.sent == []


# --- whatever dies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("teller", TELLS)
def test_any_effect_on_the_way_to_the_drain_may_be_the_last_one(
    build: Build, teller: str, before: bool
) -> None:
    """Triage that plans it, the mail, sweep that tells of it again, triage that opens it."""

    def play(kill: int | None) -> tuple[World, int]:
        world = build()
        if kill is not None:
            world.kill_at(kill, before=before)
        ends = world.now + 2 * DAY
        TELLS[teller](world, ends)
        world.run(400)
        world.run(400)
        planned = len(world.effects)
        later(world, ends - LEAD - world.now)
        world.run(900)
        world.run(900)
        assert 1 <= len(world.notices.sent) <= 2, world.notices.sent  # twice where the note of it died
        world.notices.sent.clear()
        return world, planned

    first, _ = play(None)
    first.assert_healed(replaced=1, resumed=1)
    begun = next(n for n, (function, _) in enumerate(first.effects) if function == "begin_incident")
    wrong = {}
    for number, (function, call) in enumerate(first.effects[: begun + 1]):
        try:
            world, _ = play(number)
            world.assert_healed(replaced=1, resumed=1)
            assert world.ends == ["HEALED"] and plans(world) == {}
        except AssertionError as error:
            wrong[f"{number}: {function} {call}"] = str(error).partition("\n")[0]
    assert wrong == {}


def test_a_sweep_that_dies_between_telling_and_noting_tells_twice_and_drains_once(world: World) -> None:
    world.send(health(SICK, world.now + 2 * DAY, world.now))
    world.notices.sent.clear()
    world.clock.advance(DAY)
    world.kill("sweep", "bus.put")
    world.run()
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["HEALED"]


def test_every_event_of_it_ends_as_what_it_was(world: World) -> None:
    """AWS's own event has one outcome, though sweep tells of it again."""
    world.send(health(SICK, world.now + 2 * DAY, world.now))
    assert world.outcomes_of("scheduled_event") == ["HELD"]
    later(world, DAY)
    assert world.outcomes_of("scheduled_event") == ["OPENED"]


def test_the_policy_of_today_says_when_it_is_due(world: World) -> None:
    """A lead that was deployed after the announcement."""
    ends = world.now + 10 * DAY
    world.send(health(SICK, ends, world.now))
    world.notices.sent.clear()
    world.gw.cluster = dataclasses.replace(
        world.gw.cluster, policy=dataclasses.replace(world.gw.cluster.policy, lead_seconds=3 * DAY)
    )
    later(world, 6 * DAY)
    assert world.incidents == []
    later(world, DAY)
    world.assert_healed(replaced=1, resumed=1)


def test_a_wave_of_them_is_asked_about_a_few_at_a_time(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle nodes are left a few in each sweep, those that are due are not made to wait."""
    from lambdas import planned_due

    monkeypatch.setattr(planned_due, "EARLY_PER_SWEEP", 2)
    world = build(cluster(removals=8, size=16), nodes=8)
    for number, node in enumerate(world.nodes):
        world.send(health(node, world.now + 10 * DAY, world.now, arn=f"{ARN}{number}"))
    world.run()
    world.scheduler.requests.clear()
    world.run(0)
    world.clock.advance(300)
    world.sweep()
    assert len([r for r in world.scheduler.requests if isinstance(r, JobsOn)]) == 2
    world.bus.events.clear()
    world.clock.advance(9 * DAY)
    world.sweep()
    assert len(world.bus.events) == 8
