"""Claims and sessions, one promise after the other: fences, successions, order of arrival, redrive, names."""

import importlib
import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from lambdas import opening
from planaria.aws.stepfunctions import StepFunctions
from planaria.cli import redrive
from planaria.core.claim import Claim
from planaria.core.errors import Fenced
from planaria.core.incident import ACTIVE, Phase
from planaria.core.ports import Execution
from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.test_crashes import STORIES
from tests.lambdas.test_node_stories import REBOOT, SICK, ask_reboot, entered, fall_off
from tests.lambdas.world import JOB, NODES, RECEIVES, Kill, World, _Port, cluster

DAY = 86_400.0

# --- fences ----------------------------------------------------------------------------------------

NODE_TASKS: dict[str, dict[str, Any]] = {
    "ask_approval": {"token": "t"}, "handle_spot_interruption": {}, "isolate_node": {"carry": {}},
    "launch_replacement": {}, "await_node": {"node_id": SICK, "since": 0, "token": "t"}, "reboot_node": {},
    "reset_gpu": {"carry": {}}, "verify_node": {"node_id": SICK, "carry": {}},
    "climb_ladder": {"reason": "r"}, "continue_incident": {"execution": "arn:mine"},
    "admit_node": {"node_id": SICK, "carry": {}}, "retire_node": {}, "tell_job": {"replacement": NODES[2]},
    "close_incident": {"outcome": "HEALED"},
}  # fmt: skip
RESUME_TASKS: dict[str, dict[str, Any]] = {
    "choose_checkpoint": {"carry": {}}, "requeue_job": {"carry": {}}, "await_steps": {"token": "t"},
    "close_resume": {"outcome": "HEALED"},
}  # fmt: skip


def test_every_task_is_among_those_that_are_fenced() -> None:
    lambdas = Path(importlib.import_module("lambdas").__path__[0])
    tasks = {path.stem for path in lambdas.glob("*.py") if re.search(r"(?m)^@task$", path.read_text())}
    # Those of a refill are fenced by their slot's generation: tests/lambdas/test_spare_pool.py.
    refill = {"begin_refill", "launch_spare", "close_refill"}
    # Those of checkpoints by their claim's number: tests/lambdas/test_sync*.py, test_restore.py.
    words = ("begin", "plan", "start", "follow", "verify", "record", "retain", "close", "continue")
    sync = {f"{word}_sync" for word in words}
    restore = {"begin_restore", "choose_restore", "bring_checkpoint", "settle_restore", "close_restore"}
    checkpoints = {*sync, *restore, "await_restore"}
    assert tasks == {*NODE_TASKS, *RESUME_TASKS, *refill, *checkpoints, "begin_incident", "begin_resume"}


def begun(world: World) -> dict[str, Any]:
    """The `incident` of a DRAIN whose first state has run; no state machine walks on from here."""
    world.send(events.retirement(SICK, world.now - 1))
    row = world.node(SICK)
    document = {"incident_id": "x", "node_id": SICK, "session": row["session"]}
    answer = world.call(
        "begin_incident", {"document": document, "execution": "arn:mine", "machine": "heal_node"}
    )
    assert (answer["result"], answer["incident"]["action"]) == ("DONE", "DRAIN")
    incident: dict[str, Any] = answer["incident"]
    return incident


def end(world: World, how: str) -> None:
    """End the session of `begun` in this way."""
    session = world.node(SICK)["session"]
    if how in set(Phase):
        world.gw.ledger.close(SICK, session, Phase(how), world.now, "over")
    elif how == "superseded":
        fall_off(world)
        assert world.node(SICK)["supersedes"]["session"] == session
    elif how == "followed":
        world.gw.ledger.close(SICK, session, Phase.HEALED, world.now, "over")
        world.clock.advance(5)
        fall_off(world)
    if how in ("superseded", "followed"):
        assert world.node(SICK)["session"] > session and world.node(SICK)["phase"] in ACTIVE


def untouched(world: World) -> tuple[Any, ...]:
    """All rows, and all calls that change something outside."""
    rows = {key: json.dumps(row, sort_keys=True) for key, row in world.table._rows.items()}
    calls = (world.fleet.calls, world.scheduler.requests, world.commands.calls, world.notices.sent)
    return rows, [list(made) for made in calls], dict(world.workflows.executions), list(world.bus.events)


ENDS = ["CANCELLED", "HEALED", "ESCALATED", "RETIRED", "superseded", "followed"]


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("function", [*NODE_TASKS, "begin_incident"])
def test_a_session_that_is_over_writes_nothing_more(world: World, function: str, how: str) -> None:
    incident = begun(world)
    end(world, how)
    before = untouched(world)
    event = {"incident": incident, **NODE_TASKS.get(function, {})}
    if function == "begin_incident":
        document = {"incident_id": incident["incident_id"], "node_id": SICK, "session": incident["session"]}
        event = {"document": document, "execution": "arn:mine", "machine": "heal_node"}
    answer = world.call(function, event)
    assert (answer["result"], "is over" in answer["reason"]) == ("FENCED", True)
    assert untouched(world) == before


@pytest.mark.parametrize("how", ENDS)
def test_an_escalation_of_a_session_that_is_over_mails_nobody(world: World, how: str) -> None:
    incident = begun(world)
    end(world, how)
    before = untouched(world)
    event = {"incident": incident, "outcome": "ESCALATED", "reason": "no capacity"}
    answer = world.call("close_incident", event)
    if how == "ESCALATED":  # the end it asks for: the mail was not sent yet
        assert answer["result"] == "DONE" and len(world.notices.sent) == 1
    else:
        assert answer["result"] == "FENCED" and untouched(world) == before


@pytest.mark.parametrize("step", ["isolate_node", "launch_replacement", "handle_spot_interruption"])
def test_a_session_that_ends_inside_a_task_writes_nothing_from_then_on(world: World, step: str) -> None:
    """Superseded between the Task's first look and its first write."""
    incident = begun(world)
    enter, taken = world.gw.ledger.enter, list[dict[str, Any]]()

    def late(node: str, session: int) -> Any:
        row = enter(node, session)
        if not taken:
            end(world, "superseded")
            taken.append(world.node(SICK))
        return row

    world.gw.ledger.enter = late  # type: ignore[method-assign]
    answer = world.call(step, {"incident": incident, **NODE_TASKS[step]})
    assert answer["result"] == "FENCED"
    assert world.node(SICK) == taken[0] and world.launched == [] and world.scheduler.requests == []


@pytest.mark.parametrize("how", ["CANCELLED", "HEALED", "ESCALATED", "superseded"])
@pytest.mark.parametrize("function", [*RESUME_TASKS, "begin_resume"])
def test_a_resume_that_is_over_writes_nothing_more(world: World, function: str, how: str) -> None:
    world.scheduler.end_ranks(JOB, -9, 2)
    world.run(1)
    document = {"job_id": JOB, "number": 2}
    resume = world.call("begin_resume", {"document": document, "execution": "arn:mine"})["resume"]
    if how == "superseded":
        claimed = world.gw.jobs.claim_resume(
            world.job, "heal", "a node was healed", world.now, supersede=True
        )
        assert claimed["resume_number"] == 3
    else:
        world.gw.jobs.close_resume(JOB, 2, Phase(how), "over", world.now)
    before = untouched(world)
    event = {"resume": resume, **RESUME_TASKS.get(function, {})}
    if function == "begin_resume":
        event = {"document": document, "execution": "arn:mine"}
    answer = world.call(function, event)
    if function == "close_resume" and how == "HEALED":
        return  # the same end asked for twice
    assert (answer["result"], "is over" in answer["reason"]) == ("FENCED", True)
    after = untouched(world)
    if function == "close_resume":  # the incident's row of the resume is closed in any case
        for rows in (before[0], after[0]):
            for key in [key for key in rows if key[0].startswith("INCIDENT#")]:
                del rows[key]
    assert after == before


def test_a_write_after_the_end_raises_whatever_it_writes(world: World) -> None:
    incident = begun(world)
    session = incident["session"]
    end(world, "followed")
    before = untouched(world)
    ledger = world.gw.ledger
    for write in (
        lambda: ledger.write(SICK, session, sets={"x": 1}),
        lambda: ledger.write(SICK, session, removes=("launch",)),
        lambda: ledger.act(SICK, session, {"acts": {}}, "terminate", world.now),
        lambda: ledger.enter(SICK, session),
    ):
        with pytest.raises(Fenced):
            write()
    assert not ledger.close(SICK, session, Phase.ESCALATED, world.now, "late")
    assert untouched(world) == before


# --- successions -------------------------------------------------------------------------------------


def test_a_superseding_session_takes_over_isolation_launch_and_job(world: World) -> None:
    """The drain has isolated, stopped the job and launched; the Xid that follows uses all of it once."""
    world.send(events.retirement(SICK, world.now - 86_390))  # AWS ends it in a moment
    world.boots = False
    world.run(until=lambda: entered(world, "Wait for the node"))
    old = world.node(SICK)
    assert "isolation" in old and old["launch"]["instance_id"]
    fall_off(world)
    new = world.node(SICK)
    assert (new["supersedes"]["session"], new["launch"]) == (old["session"], old["launch"])
    assert (new["isolation"], new["stopped_jobs"]) == (old["isolation"], old["stopped_jobs"])
    assert world.workflows.state(old["execution_arn"]) is Execution.ABORTED
    world.boots = True
    world._boot(world.launched[0])
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["SUPERSEDED", "HEALED"]
    assert len([call for call in world.fleet.calls if call[0] == "launch"]) == 1


def test_the_slot_of_the_breaker_passes_on_with_the_session(world: World) -> None:
    world.limit_breaker(1)
    world.send(events.alarm(SICK, "StatusCheckFailed_Instance", "ALARM", world.now - 1))
    first = world.node(SICK)["session"]
    fall_off(world)
    second = world.node(SICK)["session"]
    assert first != second
    row = world.table.get("FLEET", "FLEET") or {}
    assert set(row["removals"]) == {f"{SICK}-{second}"}


def test_a_successor_of_a_session_that_was_never_admitted_asks_the_breaker(world: World) -> None:
    """Triage died between claim and breaker; what supersedes it is a removal like any other."""
    world.limit_breaker(1)
    world.sweeps = False
    fall_off(world, NODES[2])
    session = Claim(SICK, "first", "REBOOT", "why", "rule", "act", world.now, {"kind": "status_check"})
    world.gw.ledger.claim(session, world.node(SICK), world.now)
    fall_off(world)
    assert [arn for arn in world.workflows.executions if SICK in arn] == []
    assert world.node(SICK)["phase"] == "CANCELLED" and world.node(SICK)["held"]
    row = world.table.get("FLEET", "FLEET") or {}
    assert all(name.startswith(NODES[2]) for name in row["removals"])


def test_a_claimant_who_is_superseded_before_its_admission_leaves_no_slot(world: World) -> None:
    """Two Lambdas at once: one claims, the other supersedes it and is admitted, then the first goes on."""
    world.sweeps = False
    first = Claim(SICK, "first", "REBOOT", "why", "rule", "act", world.now - 2, {"kind": "status_check"})
    row = world.gw.ledger.claim(first, world.node(SICK), world.now)
    fall_off(world)
    with pytest.raises(Fenced):
        opening.go_on(world.gw, row)
    slots = (world.table.get("FLEET", "FLEET") or {})["removals"]
    assert set(slots) == {f"{SICK}-{world.node(SICK)['session']}"}


def test_a_fault_that_supersedes_a_drain_by_aws_goes_on_though_the_breaker_is_full(world: World) -> None:
    """Auto Scaling takes the node in any case, so its drain asked nobody; what supersedes it has a node that
    is out already, and must not leave it isolated with its job stopped."""
    fill_the_breaker(world)
    world.send(events.lifecycle(SICK, world.now - 1))
    world.run(5)
    drain = world.node(SICK)
    assert (drain["action"], drain["phase"]) == ("DRAIN", "RUNNING")
    fall_off(world)
    assert (world.node(SICK)["action"], world.node(SICK)["phase"]) == ("REPLACE", "CLAIMED")
    world.run()
    world.assert_healed(replaced=2, resumed=2)
    assert world.ends == ["HEALED", "SUPERSEDED", "HEALED"]


def test_a_fault_that_supersedes_a_drain_by_aws_leaves_no_instance_behind_in_approve_mode(
    build: Build,
) -> None:
    """The drain needed no word of a person and has launched; nobody gives one to what supersedes it."""
    world = build(cluster("approve"))
    world.send(events.lifecycle(SICK, world.now - 1))
    world.run(5)
    assert world.launched
    fall_off(world)
    world.run(3 * 3600)
    admitted = [node for node in world.launched if world.node(node).get("admitted_at")]
    assert [node for node in world.launched if node in world.alive] == admitted


def test_an_end_that_was_half_written_is_written_though_the_node_is_claimed_anew(build: Build) -> None:
    """close_incident dies between its two writes, and the next fault is faster than sweep and retry."""
    world = build(cluster(boot_timeout_seconds=300.0))
    world.kill("close_incident", "table.write")
    ask_reboot(world)
    world.run(until=lambda: world.node(SICK).get("phase") == "HEALED")
    old = world.node(SICK)["session"]
    assert "outcome" not in (world.gw.ledger.incident(f"{SICK}-{old}")[0] or {})
    world.send(events.xid(SICK, 79, world.now - 0.5))
    assert world.node(SICK)["session"] > old and world.node(SICK)["phase"] in ACTIVE
    world.run()
    assert world.ends == ["HEALED", "HEALED"]


# --- order of arrival ----------------------------------------------------------------------------------


def rebooted(build: Build) -> tuple[World, float]:
    """A node that was healed by a reboot, and when that was done."""
    world = build(cluster(boot_timeout_seconds=300.0))
    ask_reboot(world)
    world.run()
    world.assert_healed(replaced=0, resumed=1)
    return world, float(world.node(SICK)["acts"]["reboot"])


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [(-3600.0, "STALE"), (-0.5, "STALE"), (5.0, "STALE"), (15.0, "OPENED"), (3000.0, "OPENED")],
)
def test_a_fault_is_judged_afresh_exactly_if_it_is_newer_than_the_reboot(
    build: Build, seen: float, outcome: str
) -> None:
    """Seen so many seconds after the reboot. What comes in the first seconds is an echo of what it cured;
    what comes later was not cured by it, even if it is told after the session's end."""
    world, reboot = rebooted(build)
    world.clock.advance(max(0.0, reboot + seen + 1 - world.now))
    [end] = world.judge(events.xid(SICK, 48, reboot + seen))
    assert end["outcome"] == outcome
    if outcome == "OPENED":
        assert (world.node(SICK)["action"], world.node(SICK)["session"] > reboot * 1000) == ("REBOOT", True)


def test_what_was_seen_before_the_reboot_supersedes_nothing_while_the_node_boots(world: World) -> None:
    ask_reboot(world)
    world.boots = False
    world.run(until=lambda: entered(world, "Wait for the node"))
    reboot = float(world.node(SICK)["acts"]["reboot"])
    world.clock.advance(30)
    [end] = world.judge(events.xid(SICK, 79, reboot - 1))
    assert (end["outcome"], world.node(SICK)["action"]) == ("STALE", "REBOOT")
    world.clock.advance(60)
    [end] = world.judge(events.xid(SICK, 79, world.now - 1))
    assert (end["outcome"], world.node(SICK)["action"]) == ("JOINED", "REPLACE")


def test_the_same_fault_after_its_reboot_is_replaced(build: Build) -> None:
    world, _ = rebooted(build)
    world.clock.advance(600)
    ask_reboot(world)
    assert (world.node(SICK)["action"], world.node(SICK)["rule"]) == ("REPLACE", "tried-before")
    world.run()
    world.assert_healed(replaced=1, resumed=2)


Send = Callable[[World, float], str]
BAD: dict[str, Send] = {
    "system": lambda w, at: events.alarm(SICK, "StatusCheckFailed_System", "ALARM", at),
    "instance": lambda w, at: events.alarm(SICK, "StatusCheckFailed_Instance", "ALARM", at),
    "hyperpod": lambda w, at: events.hyperpod(SICK, *REBOOT, at),
    "gpu": lambda w, at: events.condition(SICK, "AcceleratedHardwareReady", "False", "NvidiaXID79Error", at),
    "kernel": lambda w, at: events.condition(SICK, "KernelReady", "False", "ForkFailedOutOfPIDs", at),
    "xid": lambda w, at: events.xid(SICK, 48, at),
    "spot": lambda w, at: events.spot(SICK, at),
    "retirement": lambda w, at: events.retirement(SICK, at),
}
WELL: dict[str, Send] = {
    "system": lambda w, at: events.alarm(SICK, "StatusCheckFailed_System", "OK", at),
    "instance": lambda w, at: events.alarm(SICK, "StatusCheckFailed_Instance", "OK", at),
    "hyperpod": lambda w, at: events.hyperpod(SICK, "Healthy", "", "None", at),
    "gpu": lambda w, at: events.condition(SICK, "AcceleratedHardwareReady", "True", "Fine", at),
    "kernel": lambda w, at: events.condition(SICK, "KernelReady", "True", "Fine", at),
    "ready": lambda w, at: events.ready(SICK, at, "demo-1", "10.0.1.1"),
}


def opened(world: World, source: str, at: float) -> None:
    """A session that this source opened. A kernel condition has to last before one is."""
    world.send(BAD[source](world, at))
    if world.node(SICK).get("phase") is None:
        world.clock.advance(1900)
        world.send(BAD[source](world, world.now - 1))
    assert world.node(SICK)["phase"] in ACTIVE


@pytest.mark.parametrize("well", WELL)
@pytest.mark.parametrize("bad", BAD)
def test_a_healthy_report_cancels_the_session_of_its_own_source_only(
    world: World, bad: str, well: str
) -> None:
    opened(world, bad, world.now - 1)
    world.clock.advance(2)
    world.send(WELL[well](world, world.now))
    mine = bad == well
    assert world.node(SICK)["phase"] == ("CANCELLED" if mine else "CLAIMED")
    if mine:
        assert (world.table.get("FLEET", "FLEET") or {})["removals"] == {}, "the slot is free again"


@pytest.mark.parametrize("source", [name for name in WELL if name != "ready"])
@pytest.mark.parametrize("late", [3 * DAY, 600.0, 2.0])
def test_a_late_healthy_report_cancels_nothing_newer(world: World, source: str, late: float) -> None:
    opened(world, source, world.now - 1)
    world.send(WELL[source](world, float(world.node(SICK)["detected_at"]) - late))
    assert world.node(SICK)["phase"] == "CLAIMED"
    world.run()
    assert world.ends == ["HEALED"]


@pytest.mark.parametrize("source", [name for name in WELL if name != "ready"])
def test_a_healthy_report_older_than_the_newest_bad_one_cancels_nothing(world: World, source: str) -> None:
    """Bad, well, bad again; the healthy report comes last."""
    opened(world, source, world.now - 300)
    first = float(world.node(SICK)["detected_at"])
    world.clock.advance(200)
    world.send(BAD[source](world, first + 150))
    world.send(WELL[source](world, first + 70))
    assert world.node(SICK)["phase"] == "CLAIMED"


@pytest.mark.parametrize("source", [name for name in BAD if name in WELL])
@pytest.mark.parametrize("late", [3 * DAY, 60.0])
def test_a_late_fault_of_a_node_that_is_well_again_opens_nothing(
    world: World, source: str, late: float
) -> None:
    world.send(WELL[source](world, world.now - 10))
    world.send(BAD[source](world, world.now - 10 - late))
    row = next(row for row in world.table._rows.values() if row.get("outcome") == "STALE")
    assert row["node_id"] == SICK and world.incidents == []


@pytest.mark.parametrize("bad", [name for name in BAD if name != "retirement"])
def test_a_days_late_fault_of_a_healed_node_is_stale(world: World, bad: str) -> None:
    """But for a retirement, which no reboot takes back."""
    ask_reboot(world)
    world.run()
    world.assert_healed(resumed=1)
    [end] = world.judge(BAD[bad](world, world.now - 3 * DAY))
    assert end["outcome"] == "STALE"
    world.run()
    assert world.ends == ["HEALED"]


def test_a_days_late_event_of_a_replaced_node_is_stale_and_its_name_is_left_alone(world: World) -> None:
    fall_off(world)
    world.run()
    world.clock.advance(2 * DAY)
    for text in (
        events.xid(SICK, 48, world.now - 2.5 * DAY), events.spot(SICK, world.now - 2.5 * DAY),
        events.xid(SICK, 79, world.now - 1), events.hyperpod(SICK, "Healthy", "", "None", world.now),
    ):  # fmt: skip
        assert [end["outcome"] for end in world.judge(text)] == ["STALE"]
    world.run()
    world.assert_healed(replaced=1, resumed=1)


def test_a_fault_after_the_report_that_cancelled_opens_again_though_it_came_before_that_was_handled(
    world: World,
) -> None:
    """Bad, well, bad: each is told some seconds after it was seen."""
    opened(world, "system", world.now - 100)
    world.send(WELL["system"](world, world.now - 50))
    assert world.node(SICK)["phase"] == "CANCELLED"
    world.clock.advance(5)
    world.send(BAD["system"](world, world.now - 20))
    assert world.node(SICK)["phase"] == "CLAIMED"


@pytest.mark.parametrize("mode", ["act", "approve"])
def test_a_condition_that_was_told_of_once_opens_no_incidents_for_ever(build: Build, mode: str) -> None:
    """Its source is silent from then on, and no person answers: sweep's own word is no news of the node."""
    world = build(cluster(mode))
    world.send(BAD["kernel"](world, world.now - 1))
    for _ in range(10):
        world.clock.advance(3600)
        world.run(1800)
    opened_at = [float(row["opened_at"]) for row in world.incidents]
    assert 1 <= len(opened_at) <= 3
    assert max(opened_at) < world.now - 4 * 3600


# --- held ------------------------------------------------------------------------------------------------


def fill_the_breaker(world: World) -> None:
    """The fleet's only removal is used by another node."""
    world.limit_breaker(1)
    fall_off(world, NODES[2])
    world.run()


def hold(world: World, text: str) -> None:
    assert [end["outcome"] for end in world.judge(text)] == ["HELD"]


def window_moves_on(world: World) -> None:
    for _ in range(3):
        world.clock.advance(3700)
        world.run()


def test_a_held_fault_is_not_lost_to_a_weaker_one_that_is_faster_than_sweep(world: World) -> None:
    fill_the_breaker(world)
    hold(world, events.xid(SICK, 79, world.now - 1))
    world.clock.advance(3700)
    world.send(events.alarm(SICK, "StatusCheckFailed_Instance", "ALARM", world.now - 1))
    window_moves_on(world)
    assert SICK in world.terminated and world.ends[-1] == "HEALED"


def test_of_many_held_faults_the_strongest_is_not_the_one_that_is_let_go(world: World) -> None:
    fill_the_breaker(world)
    for code in (46, 48, 62, 64, 95, 109, 119, 120, 140):
        hold(world, events.xid(SICK, code, world.now - 1))
    world.clock.advance(1800)
    hold(world, events.xid(SICK, 79, world.now - 1))
    window_moves_on(world)
    assert SICK in world.terminated and world.ends[-1] == "HEALED"


def test_what_was_taken_back_while_it_was_held_opens_nothing(world: World) -> None:
    fill_the_breaker(world)
    hold(world, events.alarm(SICK, "StatusCheckFailed_System", "ALARM", world.now - 1))
    world.clock.advance(200)
    world.send(events.alarm(SICK, "StatusCheckFailed_System", "OK", world.now))
    window_moves_on(world)
    assert [row["node_id"] for row in world.incidents if row["outcome"] == "HEALED"] == [NODES[2]]
    assert "held" not in world.node(SICK) and SICK in world.alive


# --- dead letters ----------------------------------------------------------------------------------------

QUEUES = ("urgent", "normal", "urgent-dlq", "normal-dlq", "rules-dlq")


@pytest.fixture
def sqs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(redrive, "WAIT_SECONDS", 0)
    with mock_aws():
        client = boto3.client("sqs", region_name="us-east-1")
        for name in QUEUES:
            client.create_queue(QueueName=f"planaria-demo-{name}")
        yield client


def url(sqs: Any, queue: str) -> str:
    return str(sqs.get_queue_url(QueueName=f"planaria-demo-{queue}")["QueueUrl"])


def drain(sqs: Any, world: World, queue: str) -> int:
    """All that lies in the queue through triage, as Lambda's poller does it; how many there were."""
    handled = 0
    while messages := sqs.receive_message(QueueUrl=url(sqs, queue), MaxNumberOfMessages=10).get("Messages"):
        records = [
            {"messageId": m["MessageId"], "receiptHandle": m["ReceiptHandle"], "body": m["Body"],
             "attributes": {"ApproximateReceiveCount": "1"}, "eventSourceARN": f"arn:planaria-demo-{queue}"}
            for m in messages
        ]  # fmt: skip
        assert world.call("triage", {"Records": records}) == {"batchItemFailures": []}
        for message in messages:
            sqs.delete_message(QueueUrl=url(sqs, queue), ReceiptHandle=message["ReceiptHandle"])
        handled += len(messages)
    return handled


@pytest.mark.parametrize(
    ("call", "before", "sweeps"),
    [
        ("table.write", True, True), ("table.write", True, False), ("table.write", False, True),
        ("table.write", False, False), ("workflows.start", True, False),
    ],
)  # fmt: skip
def test_what_became_a_dead_letter_has_its_outcome_after_the_redrive(
    world: World, sqs: Any, call: str, before: bool, sweeps: bool
) -> None:
    """Triage dies at every one of its tries; sweep may have gone on with the claim meanwhile."""
    world.sweeps = sweeps
    text = events.xid(SICK, 79, world.now - 1)
    judging = dies_over(world, text, call, before)
    world.send(text)
    world.run(RECEIVES * 90.0)
    world.run()
    assert world.dead_letters == [text] and judging.times < 99
    assert text not in [row.get("event") for row in outcomes(world)]
    judging.times, counted = 0, world.counted("STALE")
    sqs.send_message(QueueUrl=url(sqs, "urgent-dlq"), MessageBody=text)
    sqs.send_message(QueueUrl=url(sqs, "normal-dlq"), MessageBody=events.alarm(SICK, "x", "OK", world.now))
    moved = redrive.move_all(sqs, "planaria-demo", list(redrive.Lane), 100, lambda *told: None)
    assert [(count.moved, count.failed) for count in moved] == [(1, 0), (1, 0), (0, 0)]
    assert [drain(sqs, world, queue) for queue in ("urgent", "normal")] == [1, 1]
    world.sweeps = True
    world.run()
    # Where sweep went on with its claim, the node is gone by now and the event repeats what is known of it.
    ends = [row["outcome"] for row in outcomes(world) if row["event"] == text]
    assert ends == ["OPENED"] or (
        sweeps and not before and ends == [] and world.counted("STALE") == counted + 1
    )
    world.dead_letters.clear()
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["HEALED"]


def test_a_redrive_days_later_reopens_nothing(world: World, sqs: Any) -> None:
    texts = [events.xid(SICK, 48, world.now - 1), events.hyperpod(SICK, *REBOOT, world.now - 1)]
    fall_off(world)
    world.run()
    world.clock.advance(3 * DAY)
    for text in texts:
        sqs.send_message(QueueUrl=url(sqs, "normal-dlq"), MessageBody=text)
    redrive.move_all(sqs, "planaria-demo", list(redrive.Lane), 100, lambda *told: None)
    assert drain(sqs, world, "normal") == 2
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert [row["outcome"] for row in outcomes(world) if row.get("event") in texts] == ["STALE", "STALE"]


def test_a_redriven_message_that_was_judged_after_all_is_a_duplicate(world: World, sqs: Any) -> None:
    text = events.xid(SICK, 79, world.now - 1)
    world.send(text)
    sqs.send_message(QueueUrl=url(sqs, "urgent-dlq"), MessageBody=text)
    redrive.move_all(sqs, "planaria-demo", list(redrive.Lane), 100, lambda *told: None)
    assert drain(sqs, world, "urgent") == 1
    assert world.counted("DUPLICATE") == 1 and len(world.incidents) == 1


def dies_over(world: World, text: str, call: str, before: bool) -> Kill:
    """Triage dies whenever it makes this call about this event."""
    receive, now = world._receive, [""]

    def receiving(body: str, count: int) -> None:
        now[0] = body
        receive(body, count)

    world._receive = receiving  # type: ignore[assignment, method-assign]
    kill = Kill(lambda f, c, _: (f, c, now[0]) == ("triage", call, text), before, 99)
    world.kills.append(kill)
    return kill


def outcomes(world: World) -> list[dict[str, Any]]:
    return [row for (pk, _), row in world.table._rows.items() if pk.startswith("EVENT#")]


# --- names of executions -----------------------------------------------------------------------------------


class States:
    """StartExecution as Step Functions answers it: an equal running one is success, any other is refused."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.taken: list[str] = []

    def start_execution(self, *, stateMachineArn: str, name: str, input: str) -> dict[str, Any]:  # noqa: A002, N803
        machine = stateMachineArn.rpartition(":")[2]
        arn = f"arn:aws:states:us-east-1:111122223333:execution:{machine}:{name}"
        workflows = self.world.workflows
        if arn in workflows.executions:
            running = workflows.executions[arn] is Execution.RUNNING
            if not running or workflows.inputs[arn] != json.loads(input):
                self.taken.append(name)
                error = {"Error": {"Code": "ExecutionAlreadyExists", "Message": name}}
                raise ClientError(error, "StartExecution")
        return {"executionArn": workflows.start(machine, name, json.loads(input))[0]}

    def describe_execution(self, *, executionArn: str) -> dict[str, Any]:  # noqa: N803
        return {"status": self.world.workflows.executions[executionArn].value}

    def stop_execution(self, *, executionArn: str, cause: str) -> None:  # noqa: N803
        self.world.workflows.stop(executionArn, cause)

    def send_task_success(self, *, taskToken: str, output: str) -> None:  # noqa: N803
        if not self.world.workflows.answer(taskToken, json.loads(output)):
            error = {"Error": {"Code": "TaskTimedOut", "Message": ""}}
            raise ClientError(error, "SendTaskSuccess")


@pytest.fixture
def states(world: World) -> States:
    """The world's state machines behind the real adapter."""
    machines = ("heal_node", "resume_job", "isolate_node", "launch_replacement")
    arns = {name: f"arn:aws:states:us-east-1:111122223333:stateMachine:{name}" for name in machines}
    states = States(world)
    world.gw.workflows = _Port(world, "workflows", StepFunctions(states, arns))
    return states


def executions(world: World) -> list[str]:
    return [arn.rpartition(":")[2] for arn in world.workflows.executions if ":heal_node:" in arn]


def test_a_name_that_is_taken_by_a_running_execution_is_handled(world: World, states: States) -> None:
    """Triage died after StartExecution, which had another input (of an older release): it runs, that is
    enough."""
    world.kill("triage", "workflows.start")
    text = events.xid(SICK, 79, world.now - 1)
    world.send(text)
    [arn] = world.workflows.executions
    world.workflows.inputs[arn] = {**world.workflows.inputs[arn], "note": "other"}
    world.send(text)
    assert states.taken == [world.node(SICK)["execution"]]
    assert (executions(world), world.node(SICK)["attempt"]) == (states.taken, 1)
    assert [row["outcome"] for row in outcomes(world)] == ["OPENED"]
    world.run()
    world.assert_healed(replaced=1, resumed=1)


@pytest.mark.parametrize(
    "word", [Execution.FAILED, Execution.ABORTED, Execution.TIMED_OUT, Execution.SUCCEEDED]
)
def test_a_name_of_an_execution_that_has_ended_while_the_claim_is_active_is_followed_by_the_next(
    world: World, states: States, word: Execution
) -> None:
    """It ended before its first state could note itself: the name is used up, the claim is not."""
    world.status_changes = False
    world.kill("triage", "workflows.start")
    text = events.xid(SICK, 79, world.now - 1)
    world.send(text)
    [arn] = world.workflows.executions
    world.workflows.executions[arn] = word
    world.driver._over.add(arn)
    world.clock.advance(30)
    world.sweep()
    row = world.node(SICK)
    assert set(states.taken) == {f"heal-{SICK}-{row['session']}-1"}
    assert (row["attempt"], row["phase"], row["execution"]) == (
        2,
        "CLAIMED",
        f"heal-{SICK}-{row['session']}-2",
    )
    assert executions(world) == [f"heal-{SICK}-{row['session']}-{attempt}" for attempt in (1, 2)]
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["HEALED"] and world.incidents[0]["session"] == row["session"]


def test_names_are_legal_and_each_is_used_once_whatever_dies(world: World, states: States) -> None:
    fall_off(world)
    for _ in range(3):
        world.run(until=lambda: bool(world.driver.running))
        for arn in world.driver.running:
            world.abort(arn)
        world.run(5)
    world.run()
    names = [arn.rpartition(":")[2] for arn in world.workflows.executions]
    assert len(names) == len(set(names)) >= 4
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,80}", name) for name in names)
    world.assert_healed(replaced=1, resumed=1)


def test_another_session_never_has_the_name_of_one_before_it(build: Build) -> None:
    """Also where the clock goes back: a name is refused by Step Functions for 90 days."""
    world = build(cluster(size=8, removals=4))
    for turn in range(4):
        world.send(events.alarm(SICK, "StatusCheckFailed_System", "ALARM", world.now + turn))
        world.send(events.alarm(SICK, "StatusCheckFailed_System", "OK", world.now + turn + 0.5))
        world.clock.advance(-0.5)
    sessions = [row["session"] for row in world.incidents]
    assert len(sessions) >= 2 and sessions == sorted(set(sessions))
    assert len(executions(world)) == len(sessions)


# --- large events ------------------------------------------------------------------------------------------

MEGABYTE = 2**20


def padded(text: str, size: int = MEGABYTE) -> str:
    event = json.loads(text)
    event["detail"]["padding"] = ""
    event["detail"]["padding"] = "x" * (size - len(json.dumps(event)))
    return json.dumps(event)


def test_an_event_of_a_megabyte_is_healed_like_any_other_with_small_rows_and_inputs(world: World) -> None:
    text = padded(events.xid(SICK, 79, world.now - 1))
    assert len(text) == MEGABYTE
    world.send(text)
    [row] = [row for row in outcomes(world) if row["outcome"] == "OPENED"]
    assert world.objects.get(row["event_key"]).decode() == text
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert max(len(json.dumps(row)) for row in world.table._rows.values()) < 16 * 1024
    assert max(len(json.dumps(document)) for document in world.workflows.inputs.values()) < 1024


def test_a_held_event_of_a_megabyte_waits_as_a_pointer_and_comes_back_whole(world: World) -> None:
    world.limit_breaker(1)
    fall_off(world, NODES[2])
    world.run()
    text = padded(events.xid(SICK, 79, world.now - 1))
    world.send(text)
    assert world.node(SICK)["held"] and "padding" not in json.dumps(world.node(SICK))
    world.clock.advance(3700)
    world.run()
    world.run()
    assert world.ends[-1] == "HEALED" and world.terminated == [NODES[2], SICK]
    assert max(len(json.dumps(row)) for row in world.table._rows.values()) < 16 * 1024


def test_a_megabyte_that_is_no_event_is_recorded_too(world: World) -> None:
    world.send("x" * MEGABYTE)
    [row] = outcomes(world)
    assert row["outcome"] == "INVALID" and len(world.objects.get(row["event_key"])) == MEGABYTE


def test_a_large_event_whose_triage_died_after_the_bucket_has_one_copy_there(world: World) -> None:
    world.kill("triage", "objects.put")
    world.send(padded(events.xid(SICK, 79, world.now - 1)))
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert len(world.objects.bodies) == 1


# --- the SDK's own retry ---------------------------------------------------------------------


def lose_answer(world: World, number: int) -> None:
    """The answer to the write of this number is lost: it was done, and the SDK asks the same again."""
    effect, writes = world.effect, itertools.count()

    def twice(call: str, real: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if call == "table.write" and next(writes) == number:
            real(*args, **kwargs)
        return effect(call, real, args, kwargs)

    world.effect = twice  # type: ignore[method-assign]


@pytest.mark.parametrize("story", ["xid", "reboot", "spot"])
def test_a_story_ends_alike_whichever_answer_of_the_ledger_gets_lost(build: Build, story: str) -> None:
    begin, replaced = STORIES[story]
    world = build()
    begin(world)
    world.run()
    wrong = {}
    for number, function in enumerate(f for f, call in world.effects if call == "table.write"):
        other = build()
        lose_answer(other, number)
        begin(other)
        other.run()
        try:
            other.assert_healed(replaced=replaced, resumed=1)
            assert other.ends == ["HEALED"], other.ends
            assert [row["attempt"] for row in other.gw.ledger.nodes() if "attempt" in row] == [1]
        except AssertionError as error:
            wrong[f"{number}: {function}"] = str(error).partition("\n")[0]
    assert wrong == {}


@pytest.mark.parametrize("number", range(6))
def test_a_cancelling_report_whose_write_was_answered_late_still_gives_everything_back(
    build: Build, number: int
) -> None:
    """The session is closed, its execution ended, its slot free, its job not waited for."""
    world = build()
    world.sweeps = False
    opened(world, "system", world.now - 1)
    lose_answer(world, number)
    world.clock.advance(2)
    world.send(WELL["system"](world, world.now))
    assert world.node(SICK)["phase"] == "CANCELLED"
    assert (world.table.get("FLEET", "FLEET") or {})["removals"] == {}
    world.sweeps = True
    world.run()
    world.assert_healed()
    assert world.ends == ["CANCELLED"]
