"""Where two sessions, or two tries of one, meet on a node: the next one can go on with what the one before it
leaves behind, and no instance is forgotten."""

from collections.abc import Callable
from typing import Any

import pytest

from lambdas import node_events
from planaria.core.errors import TransientError
from planaria.core.scheduling import Hold, Isolate, JobsOn, Join, Readmit, Stop
from planaria.memory.cluster_state import Job, JobState
from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.test_job_failures import wait
from tests.lambdas.test_ladder import silent_after_reboot
from tests.lambdas.test_node_stories import REPLACE, SICK, ask_reboot, entered, fall_off, report_well
from tests.lambdas.test_planned import opted
from tests.lambdas.world import JOB, NODES, World, cluster, stub

OTHER = "bert"
AGAIN = {"node_id": SICK, "action": "replace", "reason": "as the mail says"}


def ask_replacement(world: World) -> None:
    world.send(events.hyperpod(SICK, *REPLACE, world.now - 1))


def meanwhile(world: World, kind: type, act: Callable[[], object]) -> None:
    """`act` happens just before the scheduler gets the first request of this kind."""
    left = [act]

    def and_submit(request: Any) -> Any:
        if isinstance(request, kind) and left:
            left.pop()()
        return submit(request)

    submit = stub(world.scheduler, "submit", and_submit)


def busy(world: World, *kinds: type) -> Callable[[], None]:
    """The scheduler answers no such request until what comes back is called."""

    def refuse(request: Any) -> Any:
        if isinstance(request, kinds):
            raise TransientError("the scheduler is busy")
        return submit(request)

    submit = stub(world.scheduler, "submit", refuse)
    return lambda: setattr(world.scheduler, "submit", submit)


def second_job(world: World) -> None:
    """A job of one rank, on the node that will fail."""
    job = Job(OTHER, 1, 1, {}, state=JobState.RUNNING, attempt=1, nodes=["demo-1"], placement=[SICK])
    world.scheduler.state.jobs[OTHER] = job
    world.gw.jobs.register(OTHER, ["demo-1"], [SICK], {"attempt": 1, "recipe": OTHER})


def admitted(world: World, number: int = 0) -> str:
    """Time passes until this replacement is in service."""
    world.run(300, until=lambda: len(world.launched) > number and is_admitted(world, number))
    assert is_admitted(world, number)
    return world.launched[number]


def is_admitted(world: World, number: int) -> bool:
    return "admitted_at" in world.node(world.launched[number])


def come_up(world: World, node: str) -> None:
    world.scheduler.state.node_up(node)
    world.send(events.ready(node, world.now, "demo-1", world.fleet.instances[node].address))


# --- an incident that ends while the name changes hands -----------------------------------------------


def refused_admission(build: Build) -> World:
    """Someone drains the name between Join and Readmit: the replacement is given back."""
    world = build()
    drain = world.scheduler.state.foreign_isolate
    meanwhile(world, Readmit, lambda: drain("demo-1", "cables", "root"))
    fall_off(world)
    world.run()
    assert world.ends == ["ESCALATED"] and world.terminated == world.launched and SICK in world.alive
    return world


def test_a_node_whose_replacement_was_given_back_at_admission_can_be_replaced_again(build: Build) -> None:
    world = refused_admission(build)
    assert "replaced_by" not in world.node(SICK)
    world.scheduler.state.nodes["demo-1"].isolated = None  # the person is done
    world.start("heal_node", AGAIN)
    world.run(3000)
    world.notices.sent.clear()
    world.assert_healed(replaced=2, resumed=1)
    assert world.ends == ["ESCALATED", "HEALED"] and SICK in world.terminated


def test_a_fault_of_such_a_node_is_heard(build: Build) -> None:
    world = refused_admission(build)
    world.scheduler.state.nodes["demo-1"].isolated = None
    wait(world, 900)
    ask_replacement(world)
    world.run(3000)
    assert world.ends == ["ESCALATED", "HEALED"] and SICK not in world.alive


def test_a_healthy_report_that_comes_as_the_name_changes_hands_is_too_late(build: Build) -> None:
    """Triage has read the row before, and closes after it was written that the name is the replacement's."""
    world = build()
    ask_replacement(world)
    world.run(300, until=lambda: bool(world.launched) and "ready_at" in world.node(world.launched[0]))
    row = dict(world.node(SICK))
    assert "replaced_by" not in row
    meanwhile(world, Join, lambda: node_events.cancel(world.gw, row))
    world.run(3000)
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["HEALED"]


def test_when_the_job_cannot_be_told_it_is_settled_with_the_replacement_all_the_same(build: Build) -> None:
    world = build()
    world.kill("tell_job", "table.write", before=True, times=999)
    fall_off(world)
    world.run(3 * 3600, until=lambda: world.ends == ["ESCALATED"])
    world.kills.clear()
    world.run(2000)
    [new] = world.launched
    assert world.ends == ["ESCALATED"] and world.terminated == []
    assert (world.job["state"], world.job["unresolved"]) == ("RUNNING", {})
    assert world.job["nodes"]["1"] == new and f"{new} has its place and works" in world.notices.sent[0][1]


# --- an execution that died after the admission -------------------------------------------------------


def dies_after_admission(world: World) -> str:
    """Nobody can tell a job of its new node for the time being, and nobody begins the incident anew."""
    world.sweeps = world.status_changes = False
    world.kill("tell_job", "table.write", before=True, times=999)
    fall_off(world)
    new = admitted(world)
    world.abort(world.node(SICK)["execution_arn"])
    return new


def begun_again(world: World) -> None:
    world.sweeps = True
    world.run(60)
    world.kills.clear()
    world.run(8000)
    assert world.node(SICK)["attempt"] == 2


def test_begun_again_it_does_not_give_the_name_to_a_replacement_that_was_replaced(build: Build) -> None:
    world = build()
    first = dies_after_admission(world)
    world.clock.advance(1)
    fall_off(world, first)
    second = admitted(world, 1)
    begun_again(world)
    world.assert_healed(replaced=2, resumed=1)
    assert world.ends == ["HEALED"] * 2
    assert world.scheduler.state.nodes["demo-1"].node_id == second


def test_begun_again_it_does_not_check_a_replacement_that_works(build: Build) -> None:
    world = build()
    new = dies_after_admission(world)
    world.suites = lambda node, suite: {"passed": node != new, "reason": "a link is slow"}
    begun_again(world)
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["HEALED"]


# --- a session that goes on where another one was -----------------------------------------------------


def test_a_launch_that_the_next_session_has_no_use_for_is_given_back(build: Build) -> None:
    """A replacement is cancelled, and a reboot claimed before sweep has taken the launch back."""
    world = build()
    ask_replacement(world)
    world.run(until=lambda: bool(world.launched))
    world.clock.advance(2)
    report_well(world)
    assert world.ends == ["CANCELLED"] and world.terminated == []
    world.clock.advance(0.3)
    world.send(events.xid(SICK, 48, world.now + 1))
    world.run(3000)
    assert world.ends == ["CANCELLED", "HEALED"] and world.node(SICK)["action"] == "REBOOT"
    assert world.terminated == world.launched and world.alive == NODES


def test_a_fatal_fault_does_not_wait_for_the_checkpoint_of_the_drain_that_it_supersedes(build: Build) -> None:
    """The ranks compute nothing any more, so they save nothing."""
    world = build(cluster(drain="checkpoint", drain_deadline_seconds=600.0))
    world.commands.documents["planaria-checkpoint-now"] = lambda node, parameters: None
    world.start("isolate_node", {"node_id": SICK, "reason": "a loose cable"})
    world.run(until=lambda: entered(world, "Wait to isolate", "isolate_node"))
    begun = world.now
    fall_off(world)
    world.run(1500, until=lambda: world.job.get("stopped_attempt") == 1)
    assert world.job["stopped_attempt"] == 1 and world.now - begun < 60


def superseded_then_cancelled(world: World, *held_up: type) -> None:
    """A reboot waits for ranks that do not end; a replacement supersedes it, and before the scheduler has
    answered such a request of that one, the source of both reports the node well."""
    world.scheduler.stubborn = True
    world.status_changes = False  # no sweep in between
    ask_reboot(world)
    world.run(until=lambda: "stop_at" in (world.node(SICK).get("isolation") or {}))
    world.clock.advance(1)
    go_on = busy(world, *held_up)
    ask_replacement(world)
    world.run(5)
    assert world.ends == ["SUPERSEDED", "none"]
    report_well(world)
    go_on()
    world.scheduler.stubborn = False
    for job in world.scheduler.state.jobs:
        world.scheduler.end_ranks(job, -15)
    world.run(2000)


def test_what_a_superseded_session_has_isolated_is_readmitted_by_a_cancelled_one(build: Build) -> None:
    world = build()
    superseded_then_cancelled(world, Isolate)
    world.assert_healed(replaced=len(world.launched), resumed=1)
    assert world.ends == ["SUPERSEDED", "CANCELLED"] and SICK in world.alive


def test_all_jobs_that_a_superseded_session_has_stopped_are_freed_by_a_cancelled_one(build: Build) -> None:
    """The second job waits for the session that it was stopped by, which is not the one that is cancelled."""
    world = build()
    second_job(world)
    superseded_then_cancelled(world, Hold, Stop, JobsOn)
    other = world.gw.jobs.job(OTHER) or {}
    assert world.ends == ["SUPERSEDED", "CANCELLED"] and world.isolated == {}
    assert (other["state"], other["pending"], other["unresolved"]) == ("RUNNING", {}, {})
    assert (world.job["pending"], world.job["unresolved"]) == ({}, {})


def test_a_drain_forgives_only_the_failures_that_came_with_it(build: Build) -> None:
    """What the job has failed by itself an hour before is its own, and counts against it."""
    world = build(cluster(max_resumes=10, drain="stop"))
    for _ in range(2):
        world.scheduler.end_ranks(JOB, 1, 0)
        world.run()
        world.clock.advance(1200)
    own = {attempt: row["failure"] for attempt, row in world.job["attempts"].items() if "failure" in row}
    assert len(own) == 2
    world.clock.advance(2000)
    fall_off(world)
    world.run()
    assert world.ends == ["HEALED"]
    assert {attempt: world.job["attempts"][attempt]["failure"] for attempt in own} == own


# --- a person's brakes --------------------------------------------------------------------------------


def test_a_node_that_somebody_else_has_drained_costs_one_mail_and_no_removal(build: Build) -> None:
    world = build(cluster(removals=4))
    world.scheduler.state.foreign_isolate("demo-1", "cables", "root")
    for _ in range(8):
        fall_off(world)
        wait(world, 300)
    assert set(world.ends) == {"ESCALATED"} and len(world.notices.sent) == 1
    assert world.gw.breaker.status(world.now)["removals"] == {}
    fall_off(world, NODES[2])
    world.run()
    assert NODES[2] in world.terminated and len(world.alive) == len(NODES)


def test_the_opt_out_tag_stops_the_climb_too(build: Build) -> None:
    """Set while the node reboots. It never comes back, but it is not replaced."""
    world = build()
    silent_after_reboot(world)
    world.send(events.xid(SICK, 48, world.now - 1))
    world.run(until=lambda: entered(world, "Wait for the node"))
    opted(world, "true")
    world.run(9000)
    assert world.ends == ["ESCALATED"] and SICK in world.alive and world.launched == []
    assert "planaria:opt-out" in world.notices.sent[-1][1]


# --- the second replacement has the same time as the first --------------------------------------------


def test_a_replacement_may_take_as_long_to_boot_as_the_one_before_it(build: Build) -> None:
    """25 of 30 minutes, after one that never came up."""
    world = build(cluster(hold_seconds=7200))
    world.boots = False
    fall_off(world)
    world.run(5000, until=lambda: len(world.launched) == 2)
    world.at(1500, lambda: come_up(world, world.launched[1]))
    world.run(30_000)
    world.assert_healed(replaced=2, resumed=1)
    assert world.terminated == [world.launched[0], SICK]


@pytest.mark.parametrize("bad", [1, 2])
def test_the_check_of_a_replacement_may_take_as_long_as_the_one_before_it(build: Build, bad: int) -> None:
    world = build(cluster(deep_check="always", deep_check_timeout_seconds=9000))
    begun: dict[str, float] = {}

    def suites(node: str, suite: str) -> Any:
        if world.now < begun.setdefault(node, world.now) + 8000:
            return None
        return {"passed": node not in world.launched[:bad], "reason": "a link is slow"}

    world.suites = suites
    fall_off(world)
    world.run(60_000)
    assert world.ends == ["HEALED"] and len(world.launched) == bad + 1


def test_a_cancelled_isolation_is_taken_back_by_a_scheduler_that_answers_late(build: Build) -> None:
    """Slurm's answers come by SSM, seconds after the question: sweep keeps the ticket for its next look."""
    world = build()
    world.scheduler.pending_polls = 20
    ask_reboot(world)
    world.run(600, until=lambda: bool(world.isolated))
    world.clock.advance(2)
    report_well(world)
    assert world.isolated
    world.run(1500)
    assert world.ends == ["CANCELLED"] and world.isolated == {} and "readmitting" not in world.node(SICK)
