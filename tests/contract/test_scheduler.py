"""The Scheduler port: one suite for the memory twin and for the process adapter over a real head."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from planaria.core import ports, scheduling
from planaria.core.errors import TransientError
from planaria.memory.clock import MemoryClock
from planaria.memory.cluster_state import BAD_EXIT_GRACE_SECONDS, ClusterState, JobState
from planaria.memory.scheduler import MemoryScheduler
from planaria.sandbox.head import Head
from planaria.schedulers.process import ProcessScheduler
from tests.sandbox.heads import config, done, eventually, launch

A, B, C = "demo-1", "demo-2", "demo-3"
MARK = "planaria s-1"


class World(Protocol):
    """A cluster of three idle nodes and what happens to it."""

    node_ids: dict[str, str]

    @property
    def scheduler(self) -> ports.Scheduler: ...

    def add_job(self, job_id: str, nodes: int, stubborn: bool = False) -> None:
        """Submit a job that ignores SIGTERM or not, and wait until its ranks run."""

    def end_rank(self, job_id: str, rank: int, code: int) -> None: ...
    def isolate_by_someone_else(self, name: str, reason: str) -> None: ...
    def bring_up(self, node_id: str) -> None: ...
    def let_pass(self, seconds: float) -> None: ...
    def live_ranks(self, job_id: str) -> list[int]: ...
    def job_state(self, job_id: str) -> str: ...


class MemoryWorld:
    def __init__(self) -> None:
        self.clock = MemoryClock()
        self.scheduler = MemoryScheduler(self.clock.now)
        self.node_ids = {name: f"i-{name}" for name in (A, B, C)}
        for name, node_id in self.node_ids.items():
            self.scheduler.add_node(name, node_id)

    def add_job(self, job_id: str, nodes: int, stubborn: bool = False) -> None:
        self.scheduler.stubborn = stubborn
        self.scheduler.add_job(job_id, nodes)

    def end_rank(self, job_id: str, rank: int, code: int) -> None:
        self.scheduler.end_ranks(job_id, code, rank)

    def isolate_by_someone_else(self, name: str, reason: str) -> None:
        self.scheduler.state.foreign_isolate(name, reason, by="operator")

    def bring_up(self, node_id: str) -> None:
        self.scheduler.state.node_up(node_id)

    def let_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def live_ranks(self, job_id: str) -> list[int]:
        self.scheduler.submit(scheduling.JobsOn(()))
        return self.scheduler.state.jobs[job_id].live_ranks

    def job_state(self, job_id: str) -> str:
        return str(self.scheduler.state.jobs[job_id].state)


class HeadWorld:
    def __init__(self, head: Head, node_ids: dict[str, str]) -> None:
        self.head = head
        self.scheduler = ProcessScheduler(head.url, head.token)
        self.node_ids = node_ids

    def add_job(self, job_id: str, nodes: int, stubborn: bool = False) -> None:
        do = self.head.jobs.folder(job_id).root / "do"
        do.mkdir(parents=True)
        if stubborn:
            (do / "stubborn").touch()
        self.head.jobs.submit(job_id, {"name": job_id, "nodes": nodes, "training": {"steps": 9}})
        # Rank 0's first line: from then on it has set up its signals.
        eventually((self.head.jobs.folder(job_id).root / "train.jsonl").exists)
        if stubborn:
            time.sleep(0.2)

    def end_rank(self, job_id: str, rank: int, code: int) -> None:
        (self.head.jobs.folder(job_id).root / "do" / str(rank)).write_text(str(code))
        eventually(lambda: rank not in self.live_ranks(job_id))

    def isolate_by_someone_else(self, name: str, reason: str) -> None:
        with self.head.lock:
            self.head.state.foreign_isolate(name, reason, by="operator")

    def bring_up(self, node_id: str) -> None:
        with self.head.lock:
            self.head.state.node_up(node_id)

    def let_pass(self, seconds: float) -> None:
        time.sleep(seconds + 0.2)

    def live_ranks(self, job_id: str) -> list[int]:
        with self.head.lock:
            return self.head.state.jobs[job_id].live_ranks

    def job_state(self, job_id: str) -> str:
        with self.head.lock:
            return str(self.head.state.jobs[job_id].state)

    def reset(self) -> None:
        """Idle nodes, no jobs: as after the boot."""
        with self.head.lock:
            live = list(self.head.state.jobs)
        for job_id in live:
            self.scheduler.submit(scheduling.Stop((job_id,), "KILL", 0.0))
        eventually(lambda: not any(self.live_ranks(job_id) for job_id in live))
        with self.head.lock:
            state: ClusterState = self.head.state
            state.jobs.clear()
            state.nodes.clear()
            for name, node_id in self.node_ids.items():
                state.register(name, node_id)


@pytest.fixture(scope="module")
def head_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadWorld]:
    emulators = pytest.importorskip("planaria.sandbox.emulator")
    pytest.importorskip("ministack", reason="emulator is not installed")
    folder: Path = tmp_path_factory.mktemp("head")
    with emulators.start(folder / "emulator") as emulator, Head(config(folder, emulator.url)) as head:
        node_ids = {name: launch(emulator, name) for name in (A, B, C)}
        eventually(lambda: set(node_ids.values()) <= head.state.up, what="three nodes are up")
        yield HeadWorld(head, node_ids)


@pytest.fixture(params=["memory", "process"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "memory":
        yield MemoryWorld()
        return
    shared: HeadWorld = request.getfixturevalue("head_world")
    yield shared
    shared.reset()


_numbers = itertools.count(1)


@pytest.fixture
def job() -> str:
    """A job id that no other test uses: folders stay."""
    return f"gpt-{next(_numbers)}"


def ask(world: World, request: scheduling.SchedulerRequest) -> dict[str, Any]:
    return done(world.scheduler.poll, world.scheduler.submit(request))


def until(world: World, request: scheduling.SchedulerRequest, wanted: dict[str, Any]) -> None:
    """Ask again until the answer is this."""
    eventually(lambda: ask(world, request) == wanted, what=f"{request} -> {wanted}")


def state(world: World, name: str) -> str:
    return str(ask(world, scheduling.NodeQuery((name,)))[name]["state"])


def test_a_node_says_what_it_is(world: World, job: str) -> None:
    world.add_job(job, 1)
    found = ask(world, scheduling.NodeQuery((A, B, "demo-9")))
    assert found[A] == {"state": "ALLOCATED", "node_id": world.node_ids[A], "reason": "", "jobs": [job]}
    assert found[B] == {"state": "IDLE", "node_id": world.node_ids[B], "reason": "", "jobs": []}
    assert found["demo-9"]["state"] == "UNKNOWN"


def test_isolate_is_a_set_and_the_newest_reason_counts(world: World) -> None:
    assert ask(world, scheduling.Isolate((A, "demo-9"), MARK)) == {
        A: "ISOLATED",
        "demo-9": "UNKNOWN: no node demo-9",
    }
    assert ask(world, scheduling.Isolate((A,), MARK)) == {A: "ISOLATED"}
    assert state(world, A) == "DRAINED"
    assert ask(world, scheduling.Isolate((A,), "planaria s-2")) == {A: "ISOLATED"}
    assert ask(world, scheduling.Readmit((A,), MARK)) == {A: "FOREIGN: planaria s-2"}
    assert ask(world, scheduling.Readmit((A,), "planaria s-2")) == {A: "READMITTED"}
    assert ask(world, scheduling.Readmit((A,), "planaria s-2")) == {A: "READMITTED"}
    assert state(world, A) == "IDLE"


def test_someone_elses_isolation_is_never_touched(world: World) -> None:
    world.isolate_by_someone_else(A, "new disks")
    for request in (
        scheduling.Isolate((A,), MARK),
        scheduling.Lost((A,), MARK),
        scheduling.Readmit((A,), MARK),
    ):
        assert ask(world, request) == {A: "FOREIGN: new disks"}
    assert ask(world, scheduling.Readmit((A,), "new disks")) == {A: "FOREIGN: new disks"}
    assert ask(world, scheduling.NodeQuery((A,)))[A]["reason"] == "new disks"


def test_isolation_leaves_running_work_alone(world: World, job: str) -> None:
    world.add_job(job, 1)
    ask(world, scheduling.Isolate((A,), MARK))
    assert state(world, A) == "DRAINING"
    assert ask(world, scheduling.JobsOn((A, B))) == {A: [job], B: []}
    until(world, scheduling.Stop((job,), "TERM", 1.0), {job: "STOPPED"})
    assert state(world, A) == "DRAINED"
    assert ask(world, scheduling.JobsOn((A,))) == {A: []}


def test_a_lost_node_loses_its_processes_and_is_down(world: World, job: str) -> None:
    world.add_job(job, 1)
    assert ask(world, scheduling.Lost((A,), MARK)) == {A: "ISOLATED"}
    eventually(lambda: not world.live_ranks(job))
    assert world.job_state(job) == JobState.FAILED
    assert state(world, A) == "DOWN"


def test_an_instance_joins_under_a_name(world: World) -> None:
    join = scheduling.Join(A, "i-new", "10.0.0.9", MARK)
    world.bring_up("i-new")
    assert ask(world, join) == {A: "JOINED"}
    found = ask(world, scheduling.NodeQuery((A,)))[A]
    assert (found["node_id"], found["state"], found["reason"]) == ("i-new", "DRAINED", MARK)
    assert ask(world, scheduling.Readmit((A,), MARK)) == {A: "READMITTED"}
    assert ask(world, join) == {A: "JOINED"}
    assert state(world, A) == "IDLE", "the same join again does not isolate anew"
    other = scheduling.Join(B, "i-new", "10.0.0.9", MARK)
    assert ask(world, other) == {B: f"BUSY: i-new is {A} already"}


def test_a_new_name_may_join(world: World) -> None:
    world.bring_up("i-new")
    assert ask(world, scheduling.Join("demo-7", "i-new", "", MARK)) == {"demo-7": "JOINED"}
    assert state(world, "demo-7") == "DRAINED"


def test_a_name_is_busy_while_ranks_of_its_old_instance_run(world: World, job: str) -> None:
    world.add_job(job, 1)
    join = scheduling.Join(A, "i-new", "", MARK)
    old = world.node_ids[A]
    assert ask(world, join) == {A: f"BUSY: ranks of {job} still run on {old}"}
    assert ask(world, scheduling.NodeQuery((A,)))[A]["node_id"] == old
    until(world, scheduling.Stop((job,), "TERM", 1.0), {job: "STOPPED"})
    assert ask(world, join) == {A: "JOINED"}


def test_someone_elses_isolation_outlives_the_instance(world: World) -> None:
    world.isolate_by_someone_else(A, "new disks")
    assert ask(world, scheduling.Join(A, "i-new", "", MARK)) == {A: "JOINED"}
    assert ask(world, scheduling.Readmit((A,), MARK)) == {A: "FOREIGN: new disks"}


def test_stop_ends_every_rank_and_the_job_stays_known(world: World, job: str) -> None:
    world.add_job(job, 3)
    stop = scheduling.Stop((job, "nothing"), "TERM", 1.0)
    until(world, stop, {job: "STOPPED", "nothing": "UNKNOWN: no job nothing"})
    assert world.live_ranks(job) == []
    assert world.job_state(job) == JobState.STOPPED
    assert ask(world, stop)[job] == "STOPPED"


def test_a_rank_that_ignores_the_signal_is_completing(world: World, job: str) -> None:
    world.add_job(job, 1, stubborn=True)
    ticket = world.scheduler.submit(scheduling.Stop((job,), "TERM", 30.0))
    assert world.scheduler.poll(ticket).value == {job: "COMPLETING"}
    assert ask(world, scheduling.JobsOn((A,))) == {A: [job]}
    world.end_rank(job, 0, 0)
    assert world.scheduler.poll(ticket).value == {job: "STOPPED"}, "the ticket tells the present state"
    assert world.job_state(job) == JobState.STOPPED


def test_requeue_starts_the_ranks_in_the_asked_order(world: World, job: str) -> None:
    world.add_job(job, 2)
    until(world, scheduling.Stop((job,), "TERM", 1.0), {job: "STOPPED"})
    requeue = scheduling.Requeue(job, (C, A), 2, 40)
    assert ask(world, requeue) == {job: "RUNNING"}
    assert ask(world, scheduling.JobsOn((A, B, C))) == {A: [job], B: [], C: [job]}
    assert ask(world, requeue) == {job: "RUNNING"}
    again = scheduling.Requeue(job, (B, C), 2, 60)
    assert ask(world, again) == {job: "RUNNING"}, "the same attempt again changes nothing"
    assert ask(world, scheduling.JobsOn((B,))) == {B: []}
    lower = ask(world, scheduling.Requeue(job, (A, B), 1, 0))[job]
    assert lower == f"REFUSED: attempt 2 of {job} was started already"


def test_requeue_of_a_running_job_ends_its_old_ranks_first(world: World, job: str) -> None:
    world.add_job(job, 2)
    ticket = world.scheduler.submit(scheduling.Requeue(job, (A, B), 2, -1))
    eventually(lambda: world.scheduler.poll(ticket).value == {job: "RUNNING"})
    assert world.live_ranks(job) == [0, 1]
    assert world.job_state(job) == JobState.RUNNING


def test_requeue_is_refused_with_the_reason(world: World, job: str) -> None:
    world.add_job(job, 1)
    until(world, scheduling.Stop((job,), "TERM", 1.0), {job: "STOPPED"})
    other = f"{job}-other"
    world.add_job(other, 1)

    def refusal(*nodes: str) -> str:
        return str(ask(world, scheduling.Requeue(job, nodes, 2, -1))[job])

    assert refusal(A) == f"REFUSED: {A} runs {other}"
    assert refusal("demo-9") == "REFUSED: no node demo-9"
    assert refusal(B, B) == refusal() == "REFUSED: the list of nodes is empty or names one twice"
    ask(world, scheduling.Isolate((B,), MARK))
    assert refusal(C, B) == f"REFUSED: {B} is isolated: {MARK}"
    ask(world, scheduling.Readmit((B,), MARK))
    ask(world, scheduling.Hold(other, (B,), 60.0))
    assert refusal(C, B) == f"REFUSED: {B} is held for {other}"
    world.isolate_by_someone_else(C, "new disks")
    assert refusal(C) == f"REFUSED: {C} is isolated: new disks"
    ask(world, scheduling.Hold(other, (), 60.0))
    ask(world, scheduling.Join(B, "i-not-booted", "", MARK))
    ask(world, scheduling.Readmit((B,), MARK))
    assert refusal(B) == f"REFUSED: {B} is down"
    assert ask(world, scheduling.Requeue("nothing", (A,), 2, -1)) == {"nothing": "REFUSED: no job nothing"}


def test_held_nodes_are_placed_for_their_job_alone_until_the_time(world: World, job: str) -> None:
    world.add_job(job, 2)
    until(world, scheduling.Stop((job,), "TERM", 1.0), {job: "STOPPED"})
    assert ask(world, scheduling.Hold(job, (A, B), 1.0)) == {job: "HELD"}
    assert ask(world, scheduling.Hold("nothing", (A,), 1.0)) == {"nothing": "UNKNOWN: no job nothing"}
    assert ask(world, scheduling.Place("later", 3)) == {"later": [C]}
    assert ask(world, scheduling.Place(job, 3)) == {job: [A, B, C]}
    world.let_pass(1.0)
    assert ask(world, scheduling.Place("later", 2)) == {"later": [A, B]}


def test_a_hold_ends_when_its_job_is_requeued_or_holds_nothing_more(world: World, job: str) -> None:
    world.add_job(job, 2)
    until(world, scheduling.Stop((job,), "TERM", 1.0), {job: "STOPPED"})
    ask(world, scheduling.Hold(job, (A, B), 600.0))
    assert ask(world, scheduling.Hold(job, (A, B, C), 600.0)) == {job: "HELD"}, "the newer hold counts"
    assert ask(world, scheduling.Place("later", 3)) == {"later": []}
    assert ask(world, scheduling.Hold(job, (), 0.0)) == {job: "HELD"}
    assert ask(world, scheduling.Place("later", 3)) == {"later": [A, B, C]}
    ask(world, scheduling.Hold(job, (A, B, C), 600.0))
    assert ask(world, scheduling.Requeue(job, (A, B), 2, -1)) == {job: "RUNNING"}
    assert ask(world, scheduling.Place("later", 3)) == {"later": [C]}


def test_a_held_name_is_held_for_the_instance_that_takes_it(world: World, job: str) -> None:
    """The replacement of a failed node joins while the survivors of its job are held."""
    world.add_job(job, 2)
    until(world, scheduling.Stop((job,), "TERM", 1.0), {job: "STOPPED"})
    ask(world, scheduling.Isolate((B,), MARK))
    ask(world, scheduling.Hold(job, (A, B), 600.0))
    world.bring_up("i-new")
    assert ask(world, scheduling.Join(B, "i-new", "", MARK)) == {B: "JOINED"}
    assert ask(world, scheduling.Readmit((B,), MARK)) == {B: "READMITTED"}
    assert ask(world, scheduling.Place("later", 3)) == {"later": [C]}
    assert ask(world, scheduling.Place(job, 2)) == {job: [A, B]}


def test_only_free_nodes_are_placed_and_old_ones_in_rank_order(world: World, job: str) -> None:
    world.add_job(job, 2)
    assert ask(world, scheduling.Place("later", 3)) == {"later": [C]}
    until(world, scheduling.Stop((job,), "TERM", 1.0), {job: "STOPPED"})
    ask(world, scheduling.Requeue(job, (B, A), 2, -1))
    assert ask(world, scheduling.Place(job, 3)) == {job: [B, A, C]}
    ask(world, scheduling.Isolate((A,), MARK))
    assert ask(world, scheduling.Place(job, 3)) == {job: [B, C]}


def test_a_job_whose_ranks_all_end_well_is_completed(world: World, job: str) -> None:
    world.add_job(job, 2)
    world.end_rank(job, 0, 0)
    assert world.job_state(job) == JobState.RUNNING
    world.end_rank(job, 1, 0)
    assert world.job_state(job) == JobState.COMPLETED
    assert ask(world, scheduling.Stop((job,), "TERM", 0.0)) == {job: "COMPLETED"}
    assert ask(world, scheduling.Requeue(job, (A, B), 2, -1)) == {job: f"REFUSED: {job} is completed"}


def test_ranks_that_survive_a_failed_one_are_ended_after_a_grace(world: World, job: str) -> None:
    world.add_job(job, 2)
    world.end_rank(job, 1, 1)
    assert world.job_state(job) == JobState.FAILED
    assert world.live_ranks(job) == [0]
    world.let_pass(BAD_EXIT_GRACE_SECONDS)
    eventually(lambda: not world.live_ranks(job))
    assert ask(world, scheduling.Requeue(job, (A, B), 2, -1)) == {job: "RUNNING"}


def test_a_ticket_that_nobody_knows_is_unknown(world: World) -> None:
    assert world.scheduler.poll("no such ticket").state is ports.AnswerState.UNKNOWN


def test_the_twin_can_be_slow_and_out_of_reach() -> None:
    scheduler = MemoryScheduler(pending_polls=1)
    ticket = scheduler.submit(scheduling.JobsOn(()))
    assert [scheduler.poll(ticket).state for _ in range(2)] == ["PENDING", "DONE"]
    scheduler.reachable = False
    with pytest.raises(TransientError):
        scheduler.poll(ticket)
