"""The Scheduler port: one suite for the memory twin and for every adapter."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from planaria.core import ports, scheduling
from planaria.core.errors import InvalidInput, TransientError
from planaria.memory.clock import MemoryClock
from planaria.memory.cluster_state import BAD_EXIT_GRACE_SECONDS, ClusterState, JobState
from planaria.memory.scheduler import MemoryScheduler
from planaria.memory.table import MemoryTable
from planaria.sandbox import slurm_cluster
from planaria.sandbox.head import Head
from planaria.schedulers.process import ProcessScheduler
from planaria.schedulers.slurm import SlurmScheduler
from planaria.wiring import SystemClock
from tests.contract import eks_world
from tests.contract import slurm_world as slurm_worlds
from tests.sandbox.heads import config, done, eventually, launch
from tests.schedulers.head_node import HEAD, HeadNode

A, B, C = "demo-1", "demo-2", "demo-3"
MARK = "planaria:s-1"
PATIENCE_SECONDS = 60.0
UNKILLABLE = "Kill task failed", ["Slurm/KillTaskFailed"]


class World(Protocol):
    """A cluster of three idle nodes and what happens to it."""

    node_ids: dict[str, str]

    @property
    def scheduler(self) -> ports.Scheduler: ...

    def job_id(self, number: int) -> str:
        """What the job that will be added as the first (0) or second (1) of this test is called."""

    def add_job(self, job_id: str, nodes: int, stubborn: bool = False) -> None:
        """Submit a job that ignores SIGTERM or not, and wait until its ranks run."""

    def end_rank(self, job_id: str, rank: int, code: int) -> None: ...
    def cancel(self, job_id: str) -> None:
        """Its user ends it for good."""

    def isolate_by_someone_else(self, name: str, reason: str) -> None: ...
    def isolate_by_itself(self, name: str) -> None:
        """The scheduler takes it out of work: processes there outlived SIGKILL."""

    def bring_up(self, node_id: str, name: str) -> None:
        """An instance that is to take this name has booted."""

    def launch(self, node_id: str, name: str) -> None:
        """An instance that is to take this name is there, has not booted yet, and never does."""

    def lose(self, name: str) -> None:
        """The instance behind this name is gone, with all its processes."""

    def let_pass(self, seconds: float) -> None: ...
    def live_ranks(self, job_id: str) -> list[int]: ...
    def job_state(self, job_id: str) -> str: ...


_numbers = itertools.count(5001)


class MemoryWorld:
    def __init__(self) -> None:
        self.clock = MemoryClock()
        self.twin = MemoryScheduler(self.clock.now)
        self.scheduler: ports.Scheduler = self.twin
        self.node_ids = {name: f"i-{name}" for name in (A, B, C)}
        for name, node_id in self.node_ids.items():
            self.twin.add_node(name, node_id)

    def job_id(self, number: int) -> str:
        return str(next(_numbers))

    def add_job(self, job_id: str, nodes: int, stubborn: bool = False) -> None:
        self.twin.stubborn = stubborn
        self.twin.add_job(job_id, nodes)

    def end_rank(self, job_id: str, rank: int, code: int) -> None:
        self.twin.end_ranks(job_id, code, rank)

    def cancel(self, job_id: str) -> None:
        self.twin.state.cancel(job_id, self.clock.now())
        self.twin.submit(scheduling.JobsOn(()))

    def isolate_by_someone_else(self, name: str, reason: str) -> None:
        self.twin.state.foreign_isolate(name, reason, by="operator")

    def isolate_by_itself(self, name: str) -> None:
        self.twin.state.isolate_by_itself(name, *UNKILLABLE, self.clock.now())

    def bring_up(self, node_id: str, name: str) -> None:
        self.twin.state.node_up(node_id)

    def launch(self, node_id: str, name: str) -> None:
        pass  # what has not booted is nowhere

    def lose(self, name: str) -> None:
        self.twin.kill_node(self.node_ids[name])

    def let_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def live_ranks(self, job_id: str) -> list[int]:
        self.twin.submit(scheduling.JobsOn(()))
        return self.twin.state.jobs[job_id].live_ranks

    def job_state(self, job_id: str) -> str:
        return str(self.twin.state.jobs[job_id].state)


class DocumentsWorld(MemoryWorld):
    """Slurm's adapter, whose head node has the twin instead of Slurm: what the documents carry is enough."""

    def __init__(self) -> None:
        super().__init__()
        commands = HeadNode(self.twin).commands
        clock = SystemClock()
        self.scheduler = SlurmScheduler(commands, HEAD, MemoryTable(), clock, window=0.01, poll_seconds=0.0)


class HeadWorld:
    def __init__(self, head: Head, node_ids: dict[str, str]) -> None:
        self.head = head
        self.scheduler = ProcessScheduler(head.url, head.token)
        self.node_ids = node_ids

    def job_id(self, number: int) -> str:
        return str(next(_numbers))  # folders stay: never one that an earlier test had

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

    def cancel(self, job_id: str) -> None:
        with self.head.lock:
            self.head.state.cancel(job_id, time.time())

    def isolate_by_someone_else(self, name: str, reason: str) -> None:
        with self.head.lock:
            self.head.state.foreign_isolate(name, reason, by="operator")

    def isolate_by_itself(self, name: str) -> None:
        with self.head.lock:
            self.head.state.isolate_by_itself(name, *UNKILLABLE, time.time())

    def bring_up(self, node_id: str, name: str) -> None:
        with self.head.lock:
            self.head.state.node_up(node_id)

    def launch(self, node_id: str, name: str) -> None:
        pass  # what has not booted is nowhere

    def lose(self, name: str) -> None:
        with self.head.lock:
            self.head.state.node_down(self.node_ids[name])

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
                state.node_up(node_id)


@pytest.fixture(scope="module")
def head_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadWorld]:
    emulators = pytest.importorskip("planaria.sandbox.emulator")
    pytest.importorskip("ministack", reason="emulator is not installed")
    folder: Path = tmp_path_factory.mktemp("head")
    with emulators.start(folder / "emulator") as emulator, Head(config(folder, emulator.url)) as head:
        node_ids = {name: launch(emulator, name) for name in (A, B, C)}
        eventually(lambda: set(node_ids.values()) <= head.state.up, what="three nodes are up")
        yield HeadWorld(head, node_ids)


@pytest.fixture(scope="module")
def slurm_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if lack := slurm_cluster.missing():
        pytest.skip(f"slurm: {lack}")
    with slurm_worlds.slurm_world(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture(
    params=["memory", "documents", "process", "eks", pytest.param("slurm", marks=pytest.mark.campaign)]
)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "memory":
        yield MemoryWorld()
        return
    if request.param == "documents":
        yield DocumentsWorld()
        return
    if request.param == "eks":
        if (why := eks_world.DIFFERS.get(request.node.originalname)) is not None:
            pytest.skip(f"on Kubernetes: {why}")
        with eks_world.eks_world() as on_eks:
            yield on_eks
        return
    if request.param == "slurm":
        on_slurm: slurm_worlds.SlurmWorld = request.getfixturevalue("slurm_world")
        yield on_slurm
        on_slurm.reset()
        return
    shared: HeadWorld = request.getfixturevalue("head_world")
    yield shared
    shared.reset()


@pytest.fixture
def job(world: World) -> str:
    return world.job_id(0)


@pytest.fixture
def other(world: World) -> str:
    """The id of a second job."""
    return world.job_id(1)


def ask(world: World, request: scheduling.SchedulerRequest) -> dict[str, Any]:
    return done(world.scheduler.poll, world.scheduler.submit(request), PATIENCE_SECONDS)


def until(world: World, request: scheduling.SchedulerRequest, wanted: dict[str, Any]) -> None:
    """Ask again until the answer is this."""
    eventually(lambda: ask(world, request) == wanted, PATIENCE_SECONDS, f"{request} -> {wanted}")


def readmitted(world: World, name: str) -> None:
    """Slurm hears a node once more before it gives it work again."""
    assert ask(world, scheduling.Readmit((name,), MARK)) == {name: "READMITTED"}
    eventually(lambda: state(world, name) == "IDLE", PATIENCE_SECONDS, f"{name} may work")


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
    assert ask(world, scheduling.Isolate((A,), "planaria:s-2")) == {A: "ISOLATED"}
    assert ask(world, scheduling.Readmit((A,), MARK)) == {A: "FOREIGN: planaria:s-2"}
    assert ask(world, scheduling.Readmit((A,), "planaria:s-2")) == {A: "READMITTED"}
    assert ask(world, scheduling.Readmit((A,), "planaria:s-2")) == {A: "READMITTED"}
    assert state(world, A) == "IDLE"


def test_someone_elses_isolation_is_never_touched(world: World) -> None:
    world.isolate_by_someone_else(A, "new disks")
    for request in (
        scheduling.Isolate((A,), MARK),
        scheduling.Lost((A,), MARK),
        scheduling.Readmit((A,), MARK),
        scheduling.Readmit((A,), "planaria:s-9"),
    ):
        assert ask(world, request) == {A: "FOREIGN: new disks"}
    assert ask(world, scheduling.NodeQuery((A,)))[A]["reason"] == "new disks"


def test_what_the_scheduler_itself_keeps_out_is_told_of_and_taken_over(world: World) -> None:
    """It is ours to readmit only once an isolation of ours has taken it over."""
    assert ask(world, scheduling.NodeQuery(())) == {}
    world.isolate_by_someone_else(C, "new-disks")
    world.isolate_by_itself(A)
    found = ask(world, scheduling.NodeQuery(()))
    assert set(found) == {A}, "an operator's hold is no fault"
    assert (found[A]["reason"], found[A]["codes"]) == UNKILLABLE
    assert (found[A]["state"], found[A]["node_id"], found[A]["jobs"]) == ("DRAINED", world.node_ids[A], [])
    now = time.time() if not isinstance(world, MemoryWorld) else world.clock.now()
    assert now - 60 < found[A]["since"] <= now + 1
    assert ask(world, scheduling.Readmit((A,), MARK)) == {A: "FOREIGN: Kill task failed"}
    assert ask(world, scheduling.Isolate((A,), MARK)) == {A: "ISOLATED"}
    assert ask(world, scheduling.NodeQuery(())) == {}
    readmitted(world, A)


def test_to_the_twin_the_same_words_of_someone_else_are_no_reason_of_ours() -> None:
    world = MemoryWorld()
    world.isolate_by_someone_else(A, MARK)
    assert ask(world, scheduling.Readmit((A,), MARK)) == {A: f"FOREIGN: {MARK}"}


def test_isolation_leaves_running_work_alone(world: World, job: str) -> None:
    world.add_job(job, 1)
    ask(world, scheduling.Isolate((A,), MARK))
    assert state(world, A) == "DRAINING"
    assert ask(world, scheduling.JobsOn((A, B))) == {A: [job], B: []}
    until(world, scheduling.Stop((job,), "TERM", 1.0), {job: "STOPPED"})
    assert state(world, A) == "DRAINED"
    assert ask(world, scheduling.JobsOn((A,))) == {A: []}


def test_a_lost_node_loses_its_processes_and_takes_no_work(world: World, job: str) -> None:
    """Also one that still answers, which Slurm then does not call down."""
    world.add_job(job, 1)
    until(world, scheduling.Lost((A,), MARK), {A: "ISOLATED"})
    eventually(lambda: not world.live_ranks(job))
    eventually(lambda: world.job_state(job) != JobState.RUNNING, what="the job has lost its node")
    assert state(world, A) in ("DOWN", "DRAINED")
    assert ask(world, scheduling.JobsOn((A,))) == {A: []}


def test_a_lost_node_that_is_gone_is_down(world: World, job: str) -> None:
    world.add_job(job, 2)
    world.lose(B)
    until(world, scheduling.Lost((B,), MARK), {B: "ISOLATED"})
    assert state(world, B) == "DOWN"
    until(world, scheduling.Stop((job,), "TERM", 1.0), {job: "STOPPED"})
    eventually(lambda: not world.live_ranks(job), what="the survivors have ended")


def test_an_instance_joins_under_a_name(world: World) -> None:
    join = scheduling.Join(A, "i-new", "127.0.0.9", MARK)
    world.bring_up("i-new", A)
    assert ask(world, join) == {A: "JOINED"}
    found = ask(world, scheduling.NodeQuery((A,)))[A]
    assert (found["node_id"], found["state"], found["reason"]) == ("i-new", "DRAINED", MARK)
    assert ask(world, scheduling.Readmit((A,), MARK)) == {A: "READMITTED"}
    assert ask(world, join) == {A: "JOINED"}
    assert state(world, A) == "IDLE", "the same join again does not isolate anew"
    other = scheduling.Join(B, "i-new", "127.0.0.9", MARK)
    assert ask(world, other) == {B: f"BUSY: i-new is {A} already"}


def test_a_new_name_may_join(world: World) -> None:
    world.bring_up("i-new", "demo-7")
    assert ask(world, scheduling.Join("demo-7", "i-new", "", MARK)) == {"demo-7": "JOINED"}
    assert state(world, "demo-7") == "DRAINED"


def test_a_name_is_busy_while_ranks_of_its_old_instance_run(world: World, job: str) -> None:
    world.add_job(job, 1)
    join = scheduling.Join(A, "i-new", "", MARK)
    old = world.node_ids[A]
    world.launch("i-new", A)
    assert ask(world, join) == {A: f"BUSY: ranks of {job} still run on {old}"}
    assert ask(world, scheduling.NodeQuery((A,)))[A]["node_id"] == old
    until(world, scheduling.Stop((job,), "TERM", 1.0), {job: "STOPPED"})
    assert ask(world, join) == {A: "JOINED"}


def test_someone_elses_isolation_outlives_the_instance(world: World) -> None:
    world.isolate_by_someone_else(A, "new-disks")
    world.launch("i-new", A)
    assert ask(world, scheduling.Join(A, "i-new", "", MARK)) == {A: "JOINED"}
    assert ask(world, scheduling.Readmit((A,), MARK)) == {A: "FOREIGN: new-disks"}


def test_stop_ends_every_rank_and_the_job_stays_known(world: World, job: str) -> None:
    world.add_job(job, 3)
    stop = scheduling.Stop((job, "nothing"), "TERM", 1.0)
    until(world, stop, {job: "STOPPED", "nothing": "UNKNOWN: no job nothing"})
    assert world.live_ranks(job) == []
    assert world.job_state(job) == JobState.STOPPED
    assert ask(world, stop)[job] == "STOPPED"


def test_a_rank_that_ignores_the_signal_is_completing(world: World, job: str) -> None:
    world.add_job(job, 1, stubborn=True)
    stop = scheduling.Stop((job,), "TERM", 60.0)
    assert ask(world, stop) == {job: "COMPLETING"}
    assert ask(world, scheduling.JobsOn((A,))) == {A: [job]}
    world.end_rank(job, 0, 0)
    until(world, stop, {job: "STOPPED"})
    assert world.job_state(job) == JobState.STOPPED


def test_the_twins_ticket_tells_the_present_state() -> None:
    world = MemoryWorld()
    world.add_job("gpt", 1, stubborn=True)
    ticket = world.scheduler.submit(scheduling.Stop(("gpt",), "TERM", 30.0))
    assert world.scheduler.poll(ticket).value == {"gpt": "COMPLETING"}
    world.end_rank("gpt", 0, 0)
    assert world.scheduler.poll(ticket).value == {"gpt": "STOPPED"}


def test_requeue_starts_the_ranks_in_the_asked_order(world: World, job: str) -> None:
    world.add_job(job, 2)
    until(world, scheduling.Stop((job,), "TERM", 1.0), {job: "STOPPED"})
    requeue = scheduling.Requeue(job, (C, A), 2, 40)
    until(world, requeue, {job: "RUNNING"})
    assert ask(world, scheduling.JobsOn((A, B, C))) == {A: [job], B: [], C: [job]}
    assert ask(world, requeue) == {job: "RUNNING"}
    again = scheduling.Requeue(job, (B, C), 2, 60)
    assert ask(world, again) == {job: "RUNNING"}, "the same attempt again changes nothing"
    assert ask(world, scheduling.JobsOn((B,))) == {B: []}
    lower = ask(world, scheduling.Requeue(job, (A, B), 1, 0))[job]
    assert lower == f"REFUSED: attempt 2 of {job} was started already"


def test_requeue_of_a_running_job_ends_its_old_ranks_first(world: World, job: str) -> None:
    world.add_job(job, 2)
    until(world, scheduling.Requeue(job, (A, B), 2, -1), {job: "RUNNING"})
    eventually(lambda: world.live_ranks(job) == [0, 1], what="two new ranks live")
    assert world.job_state(job) == JobState.RUNNING


def test_a_job_that_its_user_cancels_after_our_stop_stays_cancelled(world: World, job: str) -> None:
    world.add_job(job, 2)
    until(world, scheduling.Stop((job,), "TERM", 1.0), {job: "STOPPED"})
    world.cancel(job)
    over = lambda: (query(world, job)[job] or {"state": "CANCELLED"})["state"] == "CANCELLED"  # noqa: E731
    eventually(over, PATIENCE_SECONDS, f"{job} is cancelled, or not known any more")
    assert ask(world, scheduling.Requeue(job, (A, B), 2, -1))[job] in (
        f"REFUSED: {job} was cancelled by a person", f"REFUSED: no job {job}",
    )  # fmt: skip
    ask(world, scheduling.Stop((job,), "TERM", 1.0))
    assert ask(world, scheduling.Requeue(job, (A, B), 3, -1))[job].startswith("REFUSED: ")
    assert over() and world.live_ranks(job) == []


def test_requeue_is_refused_with_the_reason(world: World, job: str, other: str) -> None:
    world.add_job(job, 1)
    until(world, scheduling.Stop((job,), "TERM", 1.0), {job: "STOPPED"})
    world.add_job(other, 1)

    def refusal(*nodes: str) -> str:
        return str(ask(world, scheduling.Requeue(job, nodes, 2, -1))[job])

    assert refusal(A) == f"REFUSED: {A} runs {other}"
    assert refusal("demo-9") == "REFUSED: no node demo-9"
    assert refusal(B, B) == refusal() == "REFUSED: the list of nodes is empty or names one twice"
    ask(world, scheduling.Isolate((B,), MARK))
    assert refusal(C, B) == f"REFUSED: {B} is isolated: {MARK}"
    readmitted(world, B)
    ask(world, scheduling.Hold(other, (B,), 60.0))
    assert refusal(C, B) == f"REFUSED: {B} is held for {other}"
    world.isolate_by_someone_else(C, "new-disks")
    assert refusal(C) == f"REFUSED: {C} is isolated: new-disks"
    ask(world, scheduling.Hold(other, (), 60.0))
    world.lose(B)
    ask(world, scheduling.Lost((B,), MARK))
    world.launch("i-not-booted", B)
    ask(world, scheduling.Join(B, "i-not-booted", "", MARK))
    ask(world, scheduling.Readmit((B,), MARK))
    assert refusal(B) == f"REFUSED: {B} is down"
    assert ask(world, scheduling.Requeue("nothing", (A,), 2, -1)) == {"nothing": "REFUSED: no job nothing"}


def test_held_nodes_are_placed_for_their_job_alone_until_the_time(world: World, job: str) -> None:
    seconds = getattr(world, "short_hold_seconds", 1.0)
    world.add_job(job, 2)
    until(world, scheduling.Stop((job,), "TERM", 1.0), {job: "STOPPED"})
    assert ask(world, scheduling.Hold(job, (A, B), seconds)) == {job: "HELD"}
    assert ask(world, scheduling.Hold("nothing", (A,), 1.0)) == {"nothing": "UNKNOWN: no job nothing"}
    assert ask(world, scheduling.Place("later", 3)) == {"later": [C]}
    assert ask(world, scheduling.Place(job, 3)) == {job: [A, B, C]}
    world.let_pass(seconds)
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
    until(world, scheduling.Requeue(job, (A, B), 2, -1), {job: "RUNNING"})
    assert ask(world, scheduling.Place("later", 3)) == {"later": [C]}


def test_a_held_name_is_held_for_the_instance_that_takes_it(world: World, job: str) -> None:
    """The replacement of a failed node joins while the survivors of its job are held."""
    world.add_job(job, 2)
    until(world, scheduling.Stop((job,), "TERM", 1.0), {job: "STOPPED"})
    ask(world, scheduling.Isolate((B,), MARK))
    ask(world, scheduling.Hold(job, (A, B), 600.0))
    world.bring_up("i-new", B)
    assert ask(world, scheduling.Join(B, "i-new", "", MARK)) == {B: "JOINED"}
    readmitted(world, B)
    assert ask(world, scheduling.Place("later", 3)) == {"later": [C]}
    assert ask(world, scheduling.Place(job, 2)) == {job: [A, B]}


def test_only_free_nodes_are_placed_and_old_ones_in_rank_order(world: World, job: str) -> None:
    world.add_job(job, 2)
    assert ask(world, scheduling.Place("later", 3)) == {"later": [C]}
    until(world, scheduling.Stop((job,), "TERM", 1.0), {job: "STOPPED"})
    until(world, scheduling.Requeue(job, (B, A), 2, -1), {job: "RUNNING"})
    assert ask(world, scheduling.Place(job, 3)) == {job: [B, A, C]}
    ask(world, scheduling.Isolate((A,), MARK))
    assert ask(world, scheduling.Place(job, 3)) == {job: [B, C]}


def test_a_job_whose_ranks_all_end_well_is_completed(world: World, job: str) -> None:
    world.add_job(job, 2)
    world.end_rank(job, 0, 0)
    assert world.job_state(job) == JobState.RUNNING
    world.end_rank(job, 1, 0)
    eventually(lambda: world.job_state(job) == JobState.COMPLETED, what=f"{job} has ended")
    assert ask(world, scheduling.Stop((job,), "TERM", 0.0)) == {job: "COMPLETED"}
    assert ask(world, scheduling.Requeue(job, (A, B), 2, -1)) == {job: f"REFUSED: {job} is completed"}


def test_ranks_that_survive_a_failed_one_are_ended_after_a_grace(world: World, job: str) -> None:
    world.add_job(job, 2)
    world.end_rank(job, 1, 1)
    world.let_pass(BAD_EXIT_GRACE_SECONDS)
    eventually(lambda: not world.live_ranks(job))
    eventually(lambda: world.job_state(job) == JobState.FAILED, what=f"{job} has failed")
    until(world, scheduling.Requeue(job, (A, B), 2, -1), {job: "RUNNING"})


def test_the_twin_leaves_the_survivors_that_grace() -> None:
    world = MemoryWorld()
    world.add_job("gpt", 2)
    world.end_rank("gpt", 1, 1)
    assert (world.job_state("gpt"), world.live_ranks("gpt")) == (JobState.FAILED, [0])


def query(world: World, *jobs: str) -> dict[str, Any]:
    return ask(world, scheduling.JobQuery(jobs))


def test_a_job_says_how_it_stands(world: World, job: str) -> None:
    before = time.time() if not isinstance(world, MemoryWorld) else world.clock.now()
    world.add_job(job, 2)
    found = query(world, job, "nothing")
    assert found["nothing"] is None, "it is not known, which is no state"
    told = found[job]
    assert set(told) >= {
        "state", "nodes", "ranks_per_node", "attempt", "restarts", "exit_code", "user", "name", "requeue",
        "batch", "reason", "submit", "start", "end",
    }  # fmt: skip
    assert (told["state"], told["nodes"], told["ranks_per_node"]) == ("RUNNING", [A, B], 1)
    assert (told["attempt"], told["restarts"], told["exit_code"], told["end"]) == (1, 0, 0, 0.0)
    assert told["requeue"] is True and told["batch"] is True
    assert before - 2 <= told["submit"] <= told["start"]


def test_many_jobs_are_looked_at_in_one_call(world: World, job: str, other: str) -> None:
    world.add_job(job, 1)
    world.add_job(other, 1)
    found = query(world, job, other)
    assert [found[each]["nodes"] for each in (job, other)] == [[A], [B]]
    assert query(world) == {}


def test_after_a_requeue_the_nodes_are_the_present_ones(world: World, job: str) -> None:
    world.add_job(job, 2)
    until(world, scheduling.Stop((job,), "TERM", 1.0), {job: "STOPPED"})
    assert query(world, job)[job]["state"] == "PENDING", "what we stop can be started again"
    until(world, scheduling.Requeue(job, (C, A), 2, 40), {job: "RUNNING"})
    told = query(world, job)[job]
    assert (told["state"], told["nodes"], told["attempt"]) == ("RUNNING", [C, A], 2)
    assert told["restarts"] == 1 and told["end"] == 0.0


def test_a_job_that_fails_tells_when_and_how(world: World, job: str) -> None:
    world.add_job(job, 1)
    world.end_rank(job, 0, 3)
    eventually(lambda: query(world, job)[job]["state"] == "FAILED", what=f"{job} has failed")
    told = query(world, job)[job]
    assert told["exit_code"] == 3 and told["start"] <= told["end"]
    assert told["nodes"] == [A], "where it ran is still known"
    assert ask(world, scheduling.JobsOn((A,))) == {A: []}


def test_jobs_are_found_by_their_nodes_also_those_that_failed(world: World, job: str, other: str) -> None:
    """The survivors of a failing node often end before anybody sees its fault."""
    world.add_job(job, 2)
    world.end_rank(job, 0, 3)
    world.end_rank(job, 1, 3)
    eventually(lambda: query(world, job)[job]["state"] == "FAILED", what=f"{job} has failed")
    world.add_job(other, 1)
    known = {job, other}  # of earlier jobs there Slurm knows too
    assert known & set(ask(world, scheduling.JobQuery((), (A, B)))) == known
    assert known & set(ask(world, scheduling.JobQuery((), (B,)))) == {job}
    assert known & set(ask(world, scheduling.JobQuery((), (C,)))) == set()


def test_a_job_that_ends_well_is_completed_for_the_query_too(world: World, job: str) -> None:
    world.add_job(job, 1)
    world.end_rank(job, 0, 0)
    eventually(lambda: query(world, job)[job]["state"] == "COMPLETED", what=f"{job} has ended")
    assert query(world, job)[job]["exit_code"] == 0


def test_a_ticket_that_nobody_knows_is_unknown(world: World) -> None:
    assert world.scheduler.poll("no such ticket").state is ports.AnswerState.UNKNOWN


def test_the_twin_can_be_slow_and_out_of_reach() -> None:
    scheduler = MemoryScheduler(pending_polls=1)
    ticket = scheduler.submit(scheduling.JobsOn(()))
    assert [scheduler.poll(ticket).state for _ in range(2)] == ["PENDING", "DONE"]
    scheduler.reachable = False
    with pytest.raises(TransientError):
        scheduler.poll(ticket)


def test_the_twin_submits_a_forgotten_job_again_from_what_was_kept() -> None:
    world = MemoryWorld()
    world.add_job("gpt", 2)
    with pytest.raises(InvalidInput, match="has not ended"):
        world.twin.state.forget("gpt")
    ask(world, scheduling.Stop(("gpt",), "KILL", 0.0))
    world.twin.state.forget("gpt")
    again = scheduling.Requeue("gpt", (C, A), 4, 40, "/home/ada/.planaria/jobs/gpt")
    ask(world, scheduling.Isolate((C,), MARK))
    assert ask(world, again) == {"gpt": f"REFUSED: {C} is isolated: {MARK}"}
    ask(world, scheduling.Readmit((C,), MARK))
    assert ask(world, again) == {"gpt": "RUNNING"}
    told = query(world, "gpt")["gpt"]
    assert (told["nodes"], told["attempt"]) == ([C, A], 4)


def test_the_twin_forgets_an_ended_job_and_refuses_one_that_must_not_start_again() -> None:
    world = MemoryWorld()
    for name, facts in (("gpt-once", {"may_requeue": False}), ("gpt-shell", {"has_script": False})):
        world.add_job(name, 1)
        for fact, value in facts.items():
            setattr(world.twin.state.jobs[name], fact, value)
        told = query(world, name)[name]
        assert (told["requeue"], told["batch"]) == (name != "gpt-once", name != "gpt-shell")
        ask(world, scheduling.Stop((name,), "KILL", 0.0))
        assert ask(world, scheduling.Requeue(name, (A,), 2, -1))[name].startswith(f"REFUSED: {name} ")
        world.twin.state.forget(name)
        assert query(world, name) == {name: None}
        assert ask(world, scheduling.Requeue(name, (A,), 2, -1)) == {name: f"REFUSED: no job {name}"}
