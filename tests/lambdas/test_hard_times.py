"""Trouble that lasts, comes twice or hits many at once, in simulated time: AWS's API answers 500 for ten
minutes, several nodes of one job fail within a second, something else fails while a node is healed."""

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import fault_cases
from tests.e2e.fault_cases import HEAL, RESUME, Task
from tests.lambdas import events
from tests.lambdas.asl_driver import Call
from tests.lambdas.conftest import Build
from tests.lambdas.test_every_task import SICK, begin, check, tell
from tests.lambdas.world import JOB, NODES, World, cluster

ROOT = Path(__file__).resolve().parents[2]
OTHER = NODES[2]
OUTAGE_SECONDS = 600.0
TASKS = fault_cases.tasks()
ON_THE_WAY = [t for t in TASKS if t.machine == HEAL and fault_cases.story_name(t) in ("replaced", "moved")]
RESUMING = [t for t in TASKS if t.machine == RESUME and fault_cases.story_name(t) == "process died"]


class Meanwhile:
    """Stands around the calls of Task states and does something once, when this state is first entered."""

    def __init__(self, world: World, task: Task, act: Callable[[Call], None]) -> None:
        self.task, self.act, self.done = task, act, False
        self._before = world.driver.around
        world.driver.around = self

    def __call__(self, call: Call, go: Callable[[], Any]) -> Any:
        if not self.done and (call.machine, call.state) == (self.task.machine, self.task.state):
            self.done = True
            self.act(call)
        return self._before(call, go)


def fail(world: World, node: str, how: str = "xid") -> None:
    """One node fails, with what its ranks and AWS say of it. A node that is gone already says nothing."""
    if world.fleet.instances[node].state != "running":
        return
    if how == "lost":
        world.lose(node)
        return
    if how == "spot":
        world.interrupt(node)
        return
    job = world.scheduler.state.jobs.get(JOB)
    ranks = [] if job is None else [rank for rank in job.live_ranks if job.placement[rank] == node]
    world.send(events.xid(node, 79, world.now))
    if ranks:
        world.scheduler.end_ranks(JOB, -9, *ranks)


def whole(world: World, *, resumes: range, launched: int) -> None:
    """The job trains on live nodes, every incident has ended well, and nothing is left over."""
    assert not world.driver.running and not world.dead_letters
    assert set(world.ends) <= {"HEALED", "SUPERSEDED", "CANCELLED"}, world.ends
    assert [row["incident_id"] for row in world.gw.ledger.incidents() if "outcome" not in row] == []
    assert world.isolated == {}
    assert [subject for subject, _ in world.notices.sent if not subject.endswith("is held")] == []
    assert len(world.alive) == len(world.nodes), world.alive
    assert len(world.launched) == launched, world.launched
    job, scheduled = world.job, world.scheduler.state.jobs[JOB]
    assert (job["pending"], job["unresolved"], job["state"]) == ({}, {}, "RUNNING")
    assert str(scheduled.state) == "RUNNING" and job["attempt"] == scheduled.attempt
    assert set(job["nodes"].values()) == set(scheduled.placement) == set(world.alive)
    assert len(world.attempts) in resumes, world.attempts


# --- the region's API answers 500 for ten minutes --------------------------------------------------


def receives() -> int:
    """How often SQS hands out a message before it is a dead letter, as the stack has it."""
    found = re.search(r"^RECEIVES = (\d+)$", (ROOT / "infra/event_path.py").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_ten_minutes_without_aws_at_any_state_change_no_end(build: Build, task: Task) -> None:
    story = fault_cases.story_of(task)
    seen: list[Meanwhile] = []

    def prepare(world: World) -> None:
        world.receives = receives()
        seen.append(Meanwhile(world, task, lambda call: world.outage(OUTAGE_SECONDS)))

    stage = tell(build, story, prepare=prepare)
    assert seen[0].done
    check(stage.world, story)


@pytest.mark.parametrize("how", ["xid", "lost", "spot"])
def test_a_fault_that_is_seen_as_the_ten_minutes_begin_is_healed_without_a_person(
    build: Build, how: str
) -> None:
    """Its message is received again and again meanwhile, and must be no dead letter by the end."""
    world = build()
    world.receives, start = receives(), world.now
    world.refuses = lambda call: world.now < start + OUTAGE_SECONDS
    fail(world, SICK, how)
    world.run(7200)
    whole(world, resumes=range(1, 2), launched=1)


# --- several nodes of one job ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("number", range(2, 11))
def test_nodes_of_one_job_that_fail_within_a_second_are_healed_and_the_job_resumed_once(
    build: Build, number: int, seed: int
) -> None:
    chance = random.Random(100 * number + seed)
    world = build(cluster(size=24, removals=12), nodes=12)
    sick = chance.sample(world.nodes, number)
    for node in sick:
        how = chance.choice(["xid", "xid", "lost", "spot"])
        world.at(chance.random(), lambda node=node, how=how: fail(world, node, how))  # type: ignore[misc]
    world.run(7200)
    whole(world, resumes=range(1, 2), launched=number)
    assert world.ends == ["HEALED"] * number
    assert not set(sick) & set(world.alive)


@pytest.mark.parametrize("number", [3, 6, 10])
def test_more_failing_nodes_than_the_breaker_allows_wait_their_turn_and_the_job_is_not_lost(
    build: Build, number: int
) -> None:
    world = build(cluster(size=24, removals=2), nodes=12)
    start = world.now
    for node in world.nodes[:number]:
        fail(world, node)
    while set(world.nodes[:number]) & set(world.alive) and world.now < start + 24 * 3600:
        world.run()  # it comes back when nothing happens: what the breaker holds waits for its window
    assert not set(world.nodes[:number]) & set(world.alive)
    whole(world, resumes=range(1, number + 1), launched=number)


# --- something else fails while a node is healed ---------------------------------------------------


@pytest.mark.parametrize("how", ["xid", "lost", "spot"])
@pytest.mark.parametrize("task", ON_THE_WAY, ids=str)
def test_a_second_node_that_fails_while_the_first_is_healed(build: Build, task: Task, how: str) -> None:
    world = build()
    meanwhile = Meanwhile(world, task, lambda call: fail(world, OTHER, how))
    begin(world, fault_cases.story_of(task).begin)
    world.run(7200)
    assert meanwhile.done
    whole(world, resumes=range(1, 3), launched=2)
    assert world.ends == ["HEALED", "HEALED"]


@pytest.mark.parametrize("how", ["xid", "lost", "spot"])
@pytest.mark.parametrize("task", RESUMING, ids=str)
def test_a_node_that_fails_while_its_job_is_resumed(build: Build, task: Task, how: str) -> None:
    world = build()
    meanwhile = Meanwhile(world, task, lambda call: fail(world, OTHER, how))
    begin(world, "process exit")
    world.run(7200)
    assert meanwhile.done
    whole(world, resumes=range(1, 3), launched=1)


@pytest.mark.parametrize("how", ["xid", "lost", "spot"])
@pytest.mark.parametrize("task", ON_THE_WAY, ids=str)
def test_another_fault_of_the_same_node_while_it_is_healed(build: Build, task: Task, how: str) -> None:
    world = build()
    meanwhile = Meanwhile(world, task, lambda call: fail(world, SICK, how))
    begin(world, fault_cases.story_of(task).begin)
    world.run(7200)
    assert meanwhile.done
    whole(world, resumes=range(1, 3), launched=1)


# --- the replacement fails -------------------------------------------------------------------------

AFTER_THE_LAUNCH = [
    t for t in ON_THE_WAY
    if t.state in ("Wait for the node", "Verify", "Admit", "Tell the job", "Retire", "Close")
]  # fmt: skip


@pytest.mark.parametrize("how", ["xid", "lost"])
@pytest.mark.parametrize("task", AFTER_THE_LAUNCH, ids=str)
def test_a_replacement_that_fails_is_replaced_too(build: Build, task: Task, how: str) -> None:
    world = build()
    meanwhile = Meanwhile(world, task, lambda call: fail(world, world.launched[0], how))
    begin(world, "xid")
    world.run(7200)
    assert meanwhile.done
    whole(world, resumes=range(1, 3), launched=2)
    assert world.launched[0] not in world.alive


def test_three_replacements_that_fail_one_after_the_other_end_with_a_person(build: Build) -> None:
    """What always fails is no hardware: nothing is launched without end, and nothing that was is left."""
    world = build()
    world.check_passes = lambda node: False
    begin(world, "xid")
    world.run(7200)
    assert world.ends == ["ESCALATED"]
    assert 1 <= len(world.launched) <= 4 and set(world.alive) == set(world.nodes)
    assert len(world.notices.sent) == 1 and list(world.isolated) == ["demo-1"]
