"""Every fault at every Task state, and a redrive of each, on the twins and the real ASL files.

Made from the ASL files and the stories of tests/e2e/fault_cases.py; the campaign there tries the same on the
emulator, with processes that die and time that passes.
"""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from planaria.cli.approve import give
from planaria.core import approval, restores
from planaria.core.approval import Answer
from planaria.core.checkpoint_ledger import CheckpointLedger
from planaria.core.errors import TransientError
from planaria.core.table import Row
from tests.e2e import fault_cases
from tests.e2e.fault_cases import Fault, Lead, Story, Task
from tests.lambdas import events
from tests.lambdas.asl_driver import Call, Lost, TooLong
from tests.lambdas.conftest import Build
from tests.lambdas.copying import Copying
from tests.lambdas.shelves import Shelves
from tests.lambdas.test_spare_pool import pooled, states, wait_for
from tests.lambdas.world import JOB, NODES, LambdaCrashed, World, cluster

SICK = NODES[1]
TASKS = fault_cases.tasks()
POLICY = {"gpu_reset": True}
LATE_SECONDS = 1.0


# --- telling a story -------------------------------------------------------------------------------


def begin(world: World, what: str) -> None:
    """The names of Story.begin, as the twins play them."""
    order = {"node_id": SICK, "reason": "by hand"}
    match what:
        case "xid":
            world.send(events.xid(SICK, 79, world.now - 1))
        case "replace it":
            world.start("heal_node", {**order, "action": "replace"})
        case "retire it":
            world.send(events.retirement(SICK, world.now - 1))
        case "reboot it":
            world.start("heal_node", {**order, "action": "reboot"})
        case "reset it":
            world.start("heal_node", {**order, "action": "reset"})
        case "process exit":
            world.scheduler.end_ranks(JOB, -9, 2)
        case "wipe its folder":
            Shelves(world).stored(30)
            world.scheduler.end_ranks(JOB, -9, 2)
        case "save a step":
            Copying(world).save(100)
        case "fill the pool":
            world.start("refill_spares", {"node_group": "workers", "reason": "by hand"})
        case "isolate it":
            world.start("isolate_node", order)
        case "launch for it":
            world.start("isolate_node", order, "before")
            world.run(600, until=lambda: world.ends == ["RETIRED"])
            world.start("launch_replacement", order)
        case _:
            pytest.fail(f"the twins do not know how {what!r} begins")


class Stage:
    """Stands around every call of a Task state: leads the story and lets the fault befall one call.

    met: how many calls the fault has befallen.
    """

    def __init__(
        self, world: World, story: Story, task: Task | None = None, fault: Fault | None = None
    ) -> None:
        self.world, self.task, self.fault = world, task, fault
        self.met = 0
        self._tries = itertools.count(1)
        self._leads: list[list[Any]] = [[lead, lead.times] for lead in story.leads]
        world.driver.around = self

    def __call__(self, call: Call, go: Callable[[], Any]) -> Any:
        for entry in self._leads:
            lead: Lead = entry[0]
            if entry[1] and (lead.machine, lead.state) == (call.machine, call.state):
                entry[1] -= 1
                if lead.answer is None:
                    raise Lost
                return dict(lead.answer)
        if self.task is None or (call.machine, call.state) != (self.task.machine, self.task.state):
            return go()
        if self.fault is Fault.THROTTLED:
            return self._throttled(go)
        if self.met:
            return go()
        self.met += 1
        return self._befall(call, go)

    def _befall(self, call: Call, go: Callable[[], Any]) -> Any:
        match self.fault:
            case Fault.BEFORE:
                raise LambdaCrashed("before it did anything")
            case Fault.AFTER:
                go()
                raise LambdaCrashed("after its work")
            case Fault.TWICE:
                go()
            case Fault.SLOW:
                go()
                raise TooLong
            case Fault.LATE:
                self.world.at(call.timeout + LATE_SECONDS, lambda: _quietly(go))
                raise TooLong
        return go()

    def _throttled(self, go: Callable[[], Any]) -> Any:
        """Two tries without any AWS call; in the third every second call is refused."""
        number = next(self._tries)
        self.met = min(number, 3)
        calls = itertools.count(1)
        refuses = (lambda call: True) if number <= 2 else lambda call: next(calls) % 2 == 0
        self.world.refuses = refuses if number <= 3 else lambda call: False
        try:
            return go()
        finally:
            self.world.refuses = lambda call: False


def _quietly(go: Callable[[], Any]) -> None:
    """Nobody waits for this answer any more."""
    try:
        go()
    except (TransientError, LambdaCrashed):
        return


def tell(
    build: Build,
    story: Story,
    task: Task | None = None,
    fault: Fault | None = None,
    prepare: Callable[[World], None] = lambda world: None,
) -> Stage:
    """The whole story in simulated time, to its end."""
    mode = "approve" if story.approve else "act"
    of = cluster(mode, **POLICY)
    if story.spares:
        of = pooled(story.spares, mode, **{**POLICY, "spare_check_seconds": 1e6})
    world = build(of)
    stage = Stage(world, story, task, fault)
    prepare(world)
    begin(world, story.begin)
    if story.answer:
        # With a lead the waiting state has lost its token: the answer is found by looking.
        world.run(60_000, until=lambda: approval.waits(world.node(SICK)) and bool(world.notices.sent))
        word = Answer.APPROVED if story.answer == "yes" else Answer.REJECTED
        give(world.gw, f"{SICK}-{world.node(SICK)['session']}", word, "ada", "said so")
    world.run(60_000)
    if story.durable:
        wait_for(
            world,
            7200,
            lambda: "durable" in {r["state"] for r in CheckpointLedger(world.gw.table).steps(JOB)},
        )
        world.run()
    if story.spares:
        wait_for(world, 7200, lambda: states(world) == ["FREE"] * story.spares)
        world.run()
    return stage


# --- how it must end -------------------------------------------------------------------------------


def check(world: World, story: Story) -> None:
    """One outcome, one resume, at most one replacement, no job lost, nothing isolated but on purpose."""
    assert not world.driver.running and not world.dead_letters
    before = ["RETIRED"] if story.begin == "launch for it" else []
    assert world.ends == before + [story.outcome] * bool(story.outcome), world.ends
    assert len(world.launched) == story.launched, world.launched
    acts = [what for what, _ in world.fleet.calls]
    assert acts.count("reboot") <= 1 and acts.count("launch") <= story.launched, acts
    gone = [node for node in (*world.nodes, *world.launched) if node not in world.alive]
    kept = len(world.nodes) + (story.served and story.old_stays) + story.spares
    assert len(world.alive) == kept and SICK in (world.alive if story.old_stays or not story.served else gone)
    assert list(world.isolated) == (["demo-1"] if story.isolated else []), world.isolated
    _check_job(world, story)
    mails = (story.outcome == "ESCALATED") + (story.resume == "ESCALATED") + story.approve
    assert len(world.notices.sent) == mails, world.notices.sent
    assert [row["incident_id"] for row in world.gw.ledger.incidents() if "outcome" not in row] == []
    steps = CheckpointLedger(world.gw.table).steps(JOB)
    assert [row["state"] for row in steps] == ["durable"] * story.durable


def _check_job(world: World, story: Story) -> None:
    job, scheduled = world.job, world.scheduler.state.jobs[JOB]
    assert job["pending"] == {}
    assert list(job["unresolved"]) == ([SICK] if story.isolated else [])
    assert world.attempts == ([2] if story.resume == "HEALED" else []), world.attempts
    if story.resume == "ESCALATED":
        assert (job["state"], job["resume_phase"]) == ("FAILED", "ESCALATED")
    elif not story.isolated:
        assert (job["state"], str(scheduled.state)) == ("RUNNING", "RUNNING")
        assert job["attempt"] == scheduled.attempt
        assert set(job["nodes"].values()) == set(scheduled.placement) <= set(world.alive)
    if story.resume:
        assert job["resume_phase"] == story.resume


# --- the tests -------------------------------------------------------------------------------------


def test_every_task_has_a_story_and_every_story_a_task() -> None:
    for task in TASKS:
        fault_cases.story_of(task)
    assert fault_cases.left_over() == []


@pytest.mark.parametrize("name", fault_cases.STORIES)
def test_a_story_without_a_fault(build: Build, name: str) -> None:
    world = tell(build, fault_cases.STORIES[name]).world
    check(world, fault_cases.STORIES[name])
    visited = {(r.machine, state) for r in world.driver.records.values() for state in r.states}
    meant = {(t.machine, t.state) for t in TASKS if fault_cases.story_name(t) == name}
    assert meant <= visited, f"the story {name!r} does not lead through {sorted(meant - visited)}"


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("task", TASKS, ids=str)
def test_a_fault_at_a_task_changes_no_end(build: Build, task: Task, fault: Fault) -> None:
    story = fault_cases.story_of(task)
    stage = tell(build, story, task, fault)
    assert stage.met, f"the story {fault_cases.story_name(task)!r} does not lead through {task}"
    check(stage.world, story)


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_a_redrive_after_the_end_changes_nothing(build: Build, task: Task) -> None:
    story = fault_cases.story_of(task)
    world = tell(build, story).world
    arn, record = next(
        (arn, r)
        for arn, r in world.driver.records.items()
        if r.machine == task.machine and task.state in r.states
    )
    before = picture(world)
    machine = fault_cases.definition(task.machine)
    world.driver.generated["redrive"] = fault_cases.starting_at(machine, task, arn)
    world.start("redrive", record.inputs[task.state])
    world.run(60_000)
    assert picture(world) == before
    check(world, story)


def picture(world: World) -> dict[str, Any]:
    """What a redrive could change: instances, scheduler, rows, mails, and what was asked for."""
    return {
        "calls": list(world.fleet.calls),
        "states": {i.node_id: i.state for i in world.fleet.instances.values()},
        "isolated": world.isolated,
        "job": {k: v for k, v in world.job.items() if k != "resumes_pruned_at"},
        "attempt": world.scheduler.state.jobs[JOB].attempt,
        "rows": [_lasting(world.node(node)) for node in (*world.nodes, *world.launched)],
        "incidents": world.gw.ledger.incidents(),
        "restore": restores.read(world.gw.table, JOB),
        "steps": CheckpointLedger(world.gw.table).steps(JOB),
        "mails": list(world.notices.sent),
    }


def _lasting(row: Row) -> Row:
    """Without what sweep writes anew from time to time."""
    return {k: v for k, v in row.items() if k != "located"}
