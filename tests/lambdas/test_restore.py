"""A job whose steps are in S3 and not on its file system: brought back, checked, and resumed from.

On the twins with the real ASL files; nodes carry as tests/lambdas/shelves.py plays them.
"""

import dataclasses
from typing import Any

import pytest

from lambdas import carrying
from planaria.core import restores
from planaria.core.checkpoint_ledger import CheckpointLedger
from planaria.core.checkpoint_policy import Checkpoints
from planaria.core.checkpoint_ports import TaskState
from planaria.core.errors import PermanentError, TransientError
from planaria.core.manifest import Format, Lineage, Manifest, Shard, encoded
from planaria.core.ports import Execution
from planaria.core.scheduling import Requeue
from planaria.core.table import Row
from planaria.memory.data_repository import MemoryDataRepository
from tests.lambdas.conftest import Build
from tests.lambdas.shelves import Shelves
from tests.lambdas.test_console import cause
from tests.lambdas.test_node_stories import SICK, fall_off
from tests.lambdas.test_slurm_jobs import ID, assert_goes_on, slurm, submitted
from tests.lambdas.world import JOB, NODES, World, cluster, stub

ORDER = {"job_id": JOB, "reason": "the file system is new"}


@pytest.fixture
def shelves(world: World) -> Shelves:
    return Shelves(world)


def end_a_rank(world: World) -> None:
    world.scheduler.end_ranks(JOB, -9, 2)


def crash(world: World) -> None:
    """One rank dies; the story goes on until it is quiet."""
    end_a_rank(world)
    world.run(3600)


def row(world: World) -> Row:
    return restores.read(world.gw.table, JOB)


def assert_resumed_from(world: World, step: int, attempt: int = 2) -> None:
    job = world.scheduler.state.jobs[JOB]
    assert (str(job.state), job.attempt, job.resume_step) == ("RUNNING", attempt, step), world.job
    assert world.job["resume_phase"] == "HEALED" and not world.driver.running and not world.dead_letters
    assert world.notices.sent == []


def assert_escalated(world: World, says: str) -> None:
    """The job is not started from anywhere, and one mail says why."""
    assert world.attempts == [] and world.job["resume_phase"] == "ESCALATED"
    [(_, text)] = world.notices.sent
    assert says in text, text
    assert "docs/runbooks/checkpoint-restore.md" in text or "docs/runbooks/no-checkpoint.md" in text


# --- what is in S3 comes back -------------------------------------------------------------------------


@pytest.mark.parametrize("why", ["process", "node"])
def test_a_wiped_folder_is_filled_and_the_job_goes_on_from_s3s_newest(shelves: Shelves, why: str) -> None:
    world = shelves.world
    shelves.stored(20)
    shelves.stored(30, state="durable")
    if why == "node":
        fall_off(world)
        world.run(3600)
    else:
        crash(world)
    assert_resumed_from(world, 30)
    assert shelves.steps() == [30] and shelves.scratch == {}
    ended = row(world)
    assert (ended["phase"], ended["step"], ended["place"]) == ("RESTORED", 30, "/fsx/gpt/step-30")
    assert ended["work"]["done_bytes"] == 300


def test_an_older_copy_on_the_file_system_does_not_do(shelves: Shelves) -> None:
    shelves.here(20)
    shelves.stored(20)
    shelves.stored(30)
    crash(shelves.world)
    assert_resumed_from(shelves.world, 30)
    assert shelves.steps() == [30, 20]


def test_what_is_good_on_the_file_system_is_not_brought(shelves: Shelves) -> None:
    shelves.here(30)
    shelves.here(20)
    shelves.stored(20)
    crash(shelves.world)
    assert_resumed_from(shelves.world, 30)
    assert row(shelves.world) == {} and shelves.settled == []


@pytest.mark.parametrize("state", ["corrupt", "partial"])
def test_a_broken_copy_on_the_file_system_is_replaced_by_s3s(shelves: Shelves, state: str) -> None:
    shelves.here(30, state=state)
    shelves.here(20)
    shelves.stored(30)
    crash(shelves.world)
    assert_resumed_from(shelves.world, 30)


def test_a_higher_step_of_an_older_attempt_is_not_newer(shelves: Shelves) -> None:
    """Attempt 2 went back to 20 and saved 25; what attempt 1 saved at 40 is left behind."""
    shelves.here(20, attempt=1)
    shelves.stored(40, attempt=1)
    shelves.stored(25, attempt=2)
    crash(shelves.world)
    assert_resumed_from(shelves.world, 25)


def test_another_jobs_step_is_never_taken(shelves: Shelves) -> None:
    shelves.stored(90, lineage=Lineage("other", 5))
    shelves.stored(20)
    crash(shelves.world)
    assert_resumed_from(shelves.world, 20)


def test_the_record_says_what_was_done(shelves: Shelves) -> None:
    shelves.stored(30)
    crash(shelves.world)
    [incident] = [r for r in shelves.world.gw.ledger.incidents() if r["incident_id"].startswith("resume-")]
    assert incident["resume_step"] == 30 and incident["outcome"] == "HEALED"
    assert "which is in S3 alone" in row(shelves.world)["reason"]


# --- past bad copies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["rotten", "denied"])
def test_a_bad_copy_is_passed_over_and_said(shelves: Shelves, how: str) -> None:
    shelves.stored(40)
    shelves.stored(30)
    getattr(shelves, how).add("step-40")
    crash(shelves.world)
    assert_resumed_from(shelves.world, 30)
    assert shelves.steps() == [30] and shelves.scratch == {}
    [told] = row(shelves.world)["passed_over"]
    assert told.startswith("step 40 of attempt 1 in S3 was not taken: shard-")
    assert "step 40 is corrupt" in shelves.world.job["resume_step_reason"]


def test_a_durable_step_that_turned_out_bad_counts_as_durable_no_more(shelves: Shelves) -> None:
    gw = shelves.world.gw
    shelves.stored(40, state="durable")
    shelves.stored(30, state="durable")
    shelves.rotten.add("step-40")
    for copy in shelves.world.stored[JOB]:
        assert copy.lineage is not None
        shard = Shard("a", 1, encoded(7))
        manifest = Manifest(copy.step, copy.lineage, 1, "dcp", (shard,), 1.0)  # type: ignore[arg-type]
        CheckpointLedger(gw.table).durable(JOB, manifest, copy.name, copy.place, copy.digest, 1.0)
    crash(shelves.world)
    assert_resumed_from(shelves.world, 30)
    states = {r["step"]: r["state"] for r in CheckpointLedger(gw.table).steps(JOB)}
    assert states[40] != "durable" and states[30] == "durable"


def test_all_copies_bad_is_no_step_0(shelves: Shelves) -> None:
    for step in (20, 30, 40):
        shelves.stored(step)
        shelves.rotten.add(f"step-{step}")
    crash(shelves.world)
    assert_escalated(shelves.world, "step 40 is corrupt (it could not be restored: shard-1")
    assert [told[:7] for told in row(shelves.world)["passed_over"]] == ["step 40", "step 30", "step 20"]
    assert shelves.steps() == [] and shelves.scratch == {}


def test_a_trouble_that_nobody_knows_is_tried_again_before_an_older_copy(shelves: Shelves) -> None:
    shelves.stored(40)
    shelves.stored(30)
    shelves.unlucky["step-40"] = 1
    crash(shelves.world)
    assert_resumed_from(shelves.world, 40)
    assert row(shelves.world)["passed_over"] == []


def test_a_bad_copy_is_not_brought_again_by_the_next_resume(shelves: Shelves) -> None:
    shelves.stored(40)
    shelves.stored(30)
    shelves.rotten.add("step-40")
    crash(shelves.world)
    shelves.folder.clear()
    settled = len(shelves.settled)
    crash(shelves.world)
    assert_resumed_from(shelves.world, 30, attempt=3)
    assert shelves.settled[settled:] == ["step-30"]


def test_a_copy_that_was_written_anew_is_good_again(shelves: Shelves) -> None:
    shelves.stored(40)
    shelves.stored(30)
    shelves.rotten.add("step-40")
    crash(shelves.world)
    shelves.rotten.clear()
    shelves.folder.clear()
    shelves.world.stored[JOB].clear()
    shelves.stored(40, touched_at=shelves.world.now)
    crash(shelves.world)
    assert_resumed_from(shelves.world, 40, attempt=3)


# --- what stops it ------------------------------------------------------------------------------------


def test_a_full_file_system_is_told_in_one_sentence_and_nothing_stays(shelves: Shelves) -> None:
    shelves.stored(40)
    shelves.stored(30)
    shelves.full = True
    crash(shelves.world)
    assert_escalated(shelves.world, "step 40 has no room: 1 GiB is free and it has 3 GiB")
    assert shelves.folder == {} and shelves.scratch == {}
    assert row(shelves.world)["phase"] == "FAILED"
    shelves.full = False
    shelves.world.notices.sent.clear()
    shelves.world.start("resume_job", {"job_id": JOB, "reason": "there is room now"})
    shelves.world.run(3600)
    assert shelves.world.scheduler.state.jobs[JOB].resume_step == 40


def test_nothing_anywhere_and_nothing_ever_saved_is_step_0(shelves: Shelves) -> None:
    crash(shelves.world)
    assert_resumed_from(shelves.world, -1)


def test_nothing_anywhere_though_it_was_saved_is_not(shelves: Shelves) -> None:
    shelves.world.gw.jobs.saved(JOB, 30)
    crash(shelves.world)
    assert_escalated(shelves.world, "it is not started from step 0")


def test_a_bucket_that_cannot_be_asked_stops_no_job_with_its_newest_step(shelves: Shelves) -> None:
    shelves.here(30)
    shelves.world.gw.jobs.saved(JOB, 30)
    shelves.world.refuses = lambda call: call == "objects.list"
    crash(shelves.world)
    assert_resumed_from(shelves.world, 30)
    assert "S3 could not be asked" in shelves.world.job["resume_step_reason"]


def test_a_bucket_that_cannot_be_asked_stops_one_that_lost_its_newest(shelves: Shelves) -> None:
    shelves.here(20)
    shelves.world.gw.jobs.saved(JOB, 30)
    shelves.world.refuses = lambda call: call == "objects.list"
    end_a_rank(shelves.world)
    shelves.world.run(60)
    assert shelves.world.attempts == []
    shelves.world.refuses = lambda call: False
    shelves.stored(30)
    shelves.world.run(3600)
    assert_resumed_from(shelves.world, 30)


def test_what_the_nodes_do_not_list_after_two_restores_is_left_to_a_person(shelves: Shelves) -> None:
    shelves.stored(30)
    shelves.unseen = True
    crash(shelves.world)
    assert_escalated(shelves.world, "the job's nodes do not list it as a good one")
    assert shelves.settled == ["step-30", "step-30"]


# --- nodes that die while they carry ------------------------------------------------------------------


def test_a_node_that_dies_while_it_carries_is_replaced_by_the_others(shelves: Shelves) -> None:
    shelves.stored(30)
    shelves.seconds = 40.0
    shelves.dead.add(NODES[1])
    crash(shelves.world)
    assert_resumed_from(shelves.world, 30)


def test_a_node_that_cannot_plan_is_passed_over(shelves: Shelves) -> None:
    shelves.stored(30)
    documents = shelves.world.commands.documents
    plan = documents["planaria-plan-transfer"]
    first: list[str] = []

    def fails_once(node: str, parameters: Any) -> Any:
        if not first or node == first[0]:
            first.append(node)
            return RuntimeError("no such file system")
        return plan(node, parameters)

    documents["planaria-plan-transfer"] = fails_once
    crash(shelves.world)
    assert_resumed_from(shelves.world, 30)


def test_a_document_that_no_node_has_ends_with_its_reason(shelves: Shelves) -> None:
    shelves.stored(30)
    del shelves.world.commands.documents["planaria-run-transfer"]
    crash(shelves.world)
    assert_escalated(shelves.world, "planaria-run-transfer was sent 6 times")


def test_a_node_fault_while_the_restore_runs_makes_one_resume(shelves: Shelves) -> None:
    shelves.stored(30)
    shelves.seconds = 60.0
    world = shelves.world
    end_a_rank(world)
    world.run(until=lambda: bool(row(world).get("work", {}).get("planned")))
    fall_off(world)
    world.run(3600)
    assert world.ends == ["HEALED"] and shelves.steps() == [30]
    assert world.scheduler.state.jobs[JOB].resume_step == 30
    assert len(world.attempts) == 1 and row(world)["number"] == 1


# --- crashes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_any_effect_may_be_the_last_one(build: Build, before: bool) -> None:
    def tell(kill: int | None) -> Shelves:
        shelves = Shelves(build())
        shelves.stored(40)
        shelves.stored(30)
        shelves.rotten.add("step-40")
        if kill is not None:
            shelves.world.kill_at(kill, before=before)
        crash(shelves.world)
        return shelves

    for number, effect in enumerate(tell(None).world.effects):
        shelves = tell(number)
        try:
            assert_resumed_from(shelves.world, 30)
            assert shelves.steps() == [30] and shelves.scratch == {} and shelves.world.attempts == [2]
            assert row(shelves.world)["phase"] == "RESTORED"
        except AssertionError as error:
            pytest.fail(f"{number}: {effect}: {error}")


def test_everything_delivered_twice_is_done_once(shelves: Shelves) -> None:
    shelves.stored(40)
    shelves.stored(30)
    shelves.rotten.add("step-40")
    names = "begin_restore choose_restore bring_checkpoint settle_restore close_restore await_restore"
    shelves.world.twice = {*names.split(), "choose_checkpoint", "begin_resume", "requeue_job"}
    crash(shelves.world)
    assert_resumed_from(shelves.world, 30)
    assert len([arn for arn in shelves.world.driver.records if ":restore_checkpoint:" in arn]) == 1


@pytest.mark.parametrize("sweeps", [True, False])
def test_an_execution_that_dies_is_followed_by_another(shelves: Shelves, sweeps: bool) -> None:
    """By sweep, or by the resume that looks."""
    world = shelves.world
    shelves.stored(30)
    shelves.seconds = 30.0
    end_a_rank(world)
    world.run(until=lambda: bool(row(world).get("work", {}).get("asked")))
    world.sweeps = world.status_changes = sweeps
    world.abort(row(world)["execution_arn"])
    world.run(6000)
    assert_resumed_from(world, 30)
    assert (row(world)["attempt"], row(world)["deaths"]) == (2, 1)


def test_executions_that_die_one_after_the_other_end_with_a_person(shelves: Shelves) -> None:
    world = shelves.world
    shelves.stored(30)
    shelves.seconds = 1e9
    end_a_rank(world)
    for _ in range(world.gw.cluster.policy.max_attempts):
        world.run(
            until=lambda: world.workflows.state(row(world).get("execution_arn", "")) is Execution.RUNNING
        )
        world.abort(row(world)["execution_arn"])
        world.run(30)
    world.run(3600)
    assert_escalated(world, "its execution died")


# --- orders by hand -----------------------------------------------------------------------------------


def test_a_person_fills_the_folder_while_the_job_runs(shelves: Shelves) -> None:
    shelves.stored(20)
    shelves.stored(30)
    arn = shelves.world.start("restore_checkpoint", ORDER)
    shelves.world.run(3600)
    assert shelves.world.driver.records[arn].output["place"] == "/fsx/gpt/step-30"
    assert shelves.steps() == [30] and shelves.world.attempts == []
    assert row(shelves.world)["phase"] == "RESTORED"


def test_a_person_asks_for_one_step(shelves: Shelves) -> None:
    shelves.here(30)
    shelves.stored(20)
    shelves.stored(30)
    shelves.world.start("restore_checkpoint", {**ORDER, "step": 20})
    shelves.world.run(3600)
    assert shelves.steps() == [30, 20]


def test_a_step_by_number_that_is_bad_is_not_replaced_by_another(shelves: Shelves) -> None:
    shelves.stored(20)
    shelves.stored(30)
    shelves.rotten.add("step-30")
    told = cause(shelves.world, "restore_checkpoint", {**ORDER, "step": 30})
    assert "step 30" in told and shelves.steps() == []
    [(_, text)] = shelves.world.notices.sent
    assert "docs/runbooks/checkpoint-restore.md" in text


def test_into_another_folder(shelves: Shelves) -> None:
    shelves.stored(30)
    shelves.world.start("restore_checkpoint", {**ORDER, "directory": "/fsx2/gpt"})
    shelves.world.run(3600)
    plans = [p for name, _, p in shelves.world.commands.calls if name == "planaria-plan-transfer"]
    assert {p["Directory"] for p in plans} == {"/fsx2/gpt"}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"job_id": "nobody"}, "is not known"),
        ({"job_id": JOB, "step": "30"}, "step must be"),
        ({"job_id": JOB, "step": True}, "step must be"),
        ({"job_id": JOB, "directory": "fsx; rm -rf /"}, "directory must be an absolute path"),
        ({"job": JOB}, "the field 'job' is not known"),
        ([JOB], "must be a JSON object"),
        ({"job_id": JOB, "number": "1"}, "Planaria's own"),
        (ORDER, "there is no checkpoint of it in /fsx/gpt nor in S3"),
        ({**ORDER, "step": 7}, "step 7: there is no copy of it"),
    ],
)
def test_what_cannot_be_done_ends_in_one_sentence(shelves: Shelves, document: Any, says: str) -> None:
    told = cause(shelves.world, "restore_checkpoint", document)
    assert says in told and "\n" not in told


def test_two_at_once_are_one(shelves: Shelves) -> None:
    world = shelves.world
    shelves.stored(30)
    shelves.seconds = 30.0
    first = world.start("restore_checkpoint", ORDER, "first")
    second = world.start("restore_checkpoint", ORDER, "second")
    end_a_rank(world)
    world.run(3600)
    assert_resumed_from(world, 30)
    assert row(world)["number"] == 1
    assert [world.workflows.executions[arn] for arn in (first, second)] == [Execution.SUCCEEDED] * 2
    assert shelves.settled == ["step-30"]


def test_another_order_meanwhile_is_refused(shelves: Shelves) -> None:
    shelves.stored(30)
    shelves.stored(20)
    shelves.seconds = 30.0
    shelves.world.start("restore_checkpoint", ORDER, "first")
    shelves.world.run(until=lambda: bool(row(shelves.world)))
    assert "is under way" in cause(shelves.world, "restore_checkpoint", {**ORDER, "step": 20})
    assert shelves.steps() == [30]


def test_a_resume_waits_for_a_persons_restore_of_an_older_step_and_then_brings_its_own(
    shelves: Shelves,
) -> None:
    world = shelves.world
    shelves.stored(30)
    shelves.stored(20)
    shelves.seconds = 60.0
    world.start("restore_checkpoint", {**ORDER, "step": 20})
    world.run(until=lambda: bool(row(world)))
    end_a_rank(world)
    world.run(3600)
    assert_resumed_from(world, 30)
    assert shelves.steps() == [30, 20] and row(world)["number"] == 2


def test_a_commands_port_that_is_out_is_waited_for(shelves: Shelves) -> None:
    shelves.stored(30)
    world = shelves.world
    submit = stub(world.commands, "submit", lambda *_: (_ for _ in ()).throw(TransientError("out")))

    def answers_again() -> None:
        stub(world.commands, "submit", submit)

    world.at(120, answers_again)
    crash(world)
    assert_resumed_from(world, 30)
    assert SICK in world.alive


# --- over FSx's own link to the bucket ----------------------------------------------------------------

LINKED = {
    "sync_seconds": 1e9,
    "file_systems": [
        {
            "name": "fsx", "id": "fs-0123456789abcdef0", "mount": "/fsx", "zone": "use1-az1",
            "associations": [
                {"file_system_path": "/gpt/", "data_repository_path": f"s3://bucket/checkpoints/{JOB}/"}
            ],
        }
    ]
}  # fmt: skip


@pytest.fixture
def linked(build: Build) -> Shelves:
    """The job's folder is linked to its prefix of the bucket."""
    policy = Checkpoints.from_document(LINKED)
    shelves = Shelves(build(dataclasses.replace(cluster(), checkpoints=policy)))
    shelves.world.gw.data_repository = MemoryDataRepository(policy)
    return shelves


def import_ends(shelves: Shelves, state: TaskState, known: bool = True) -> None:
    """The only task of FSx ends so half a minute from now; `known`: the files are there then."""
    repository = shelves.world.gw.data_repository
    assert isinstance(repository, MemoryDataRepository)

    def end() -> None:
        [(name, _)] = list(repository.started.items())
        repository.becomes(repository.start(*repository.started[name], name), state)
        if known:
            shelves.here(30)

    shelves.world.at(60, end)


def modes(shelves: Shelves) -> list[str]:
    calls = shelves.world.commands.calls
    return [p["Mode"] for name, _, p in calls if name == "planaria-plan-transfer"]


def test_fsx_imports_and_nodes_read_it_through(linked: Shelves) -> None:
    linked.stored(30)
    import_ends(linked, TaskState.SUCCEEDED)
    crash(linked.world)
    assert_resumed_from(linked.world, 30)
    assert modes(linked) == ["HASH"] and row(linked.world)["work"]["via"] == "import"
    assert list(linked.world.gw.data_repository.started.values()) == [  # type: ignore[attr-defined]
        (
            "fs-0123456789abcdef0",
            "IMPORT_METADATA_FROM_REPOSITORY",
            (f"s3://bucket/checkpoints/{JOB}/step-30",),
        )
    ]


@pytest.mark.parametrize(
    ("state", "known"), [(TaskState.FAILED, False), (TaskState.CANCELED, False), (TaskState.SUCCEEDED, False)]
)
def test_what_fsx_does_not_bring_is_fetched(linked: Shelves, state: TaskState, known: bool) -> None:
    linked.stored(30)
    import_ends(linked, state, known)
    crash(linked.world)
    assert_resumed_from(linked.world, 30)
    assert modes(linked)[-1] == "FETCH" and row(linked.world)["work"]["via"] == "fetch"


@pytest.mark.parametrize("trouble", ["pending", "stalled", "busy", "no cancel"])
def test_an_import_that_does_not_get_on_is_left_for_the_nodes(linked: Shelves, trouble: str) -> None:
    linked.stored(30)
    repository, cancelled = linked.world.gw.data_repository, []

    def cancel(task_id: str) -> None:
        cancelled.append(task_id)
        if trouble == "no cancel":
            raise PermanentError("AccessDenied")

    repository.cancel = cancel  # type: ignore[method-assign]
    assert isinstance(repository, MemoryDataRepository)
    if trouble == "busy":
        other = f"s3://bucket/checkpoints/{JOB}/step-1"
        repository.start("fs-0123456789abcdef0", carrying.IMPORT, [other], "a-persons")
    if trouble == "stalled":

        def execute() -> None:
            repository.becomes(next(iter(repository._tasks)), TaskState.EXECUTING, succeeded=2, total=4)

        linked.world.at(60, execute)
    crash(linked.world)
    assert_resumed_from(linked.world, 30)
    work = row(linked.world)["work"]
    assert modes(linked) == ["FETCH"] and "got on no more for" in work["instead"]
    assert cancelled == ([] if trouble == "busy" else [work["task_id"]])


@pytest.mark.parametrize("refused", [False, True])
def test_a_restore_that_is_stopped_cancels_its_import(linked: Shelves, refused: bool) -> None:
    linked.stored(30)
    end_a_rank(linked.world)
    linked.world.run(
        until=lambda: bool((restores.read(linked.world.table, JOB).get("work") or {}).get("task_id"))
    )
    repository = linked.world.gw.data_repository
    repository.reachable = not refused  # type: ignore[attr-defined]
    carrying.stop(linked.world.gw, row(linked.world), "a person ended it")
    repository.reachable = True  # type: ignore[attr-defined]
    state = repository.task(row(linked.world)["work"]["task_id"]).state
    assert state is (TaskState.PENDING if refused else TaskState.CANCELING)


def test_what_is_read_through_and_bad_is_passed_over(linked: Shelves) -> None:
    linked.stored(30)
    linked.stored(20)
    linked.rotten.add("step-30")
    import_ends(linked, TaskState.SUCCEEDED)
    end_a_rank(linked.world)
    linked.world.run(until=lambda: bool(row(linked.world).get("passed_over")))
    assert 30 not in linked.steps(), "nothing half usable stays"
    linked.world.gw.data_repository = MemoryDataRepository(Checkpoints())
    linked.world.run(3600)
    assert_resumed_from(linked.world, 20)


def test_over_what_is_left_of_the_step_it_is_fetched(linked: Shelves) -> None:
    """An import does not touch files that are there."""
    linked.here(30, state="corrupt")
    linked.stored(30)
    crash(linked.world)
    assert_resumed_from(linked.world, 30)
    assert modes(linked) == ["FETCH"]


# --- jobs that find their checkpoints by themselves ---------------------------------------------------


@pytest.fixture
def slurm_shelves(build: Build) -> Shelves:
    """A job on four nodes of a Slurm cluster that was submitted with --checkpoints."""
    world = build(slurm(), job=False)
    shelves = Shelves(world)
    submitted(world, lineage={"folder": "/fsx/gpt"})
    world.scheduler.add_job(ID, 4)
    world.run(130)
    return shelves


def test_its_folder_is_filled_before_it_starts(slurm_shelves: Shelves) -> None:
    world = slurm_shelves.world
    slurm_shelves.stored(20, job=ID, lineage=Lineage(ID, 1))
    slurm_shelves.stored(30, job=ID, lineage=Lineage(ID, 1))
    fall_off(world)
    world.run(3600)
    assert_goes_on(world)
    assert slurm_shelves.steps() == [30]
    asked = [r.resume_step for r in world.scheduler.requests if isinstance(r, Requeue)]
    assert set(asked) == {30}


def test_a_folder_with_newer_steps_is_left_alone(slurm_shelves: Shelves) -> None:
    slurm_shelves.stored(20, job=ID, lineage=Lineage(ID, 1))
    slurm_shelves.here(25, lineage=Lineage(ID, 1))
    fall_off(slurm_shelves.world)
    slurm_shelves.world.run(3600)
    assert_goes_on(slurm_shelves.world)
    assert slurm_shelves.steps() == [25] and slurm_shelves.settled == []


def test_what_we_cannot_read_may_be_its_newest(slurm_shelves: Shelves) -> None:
    slurm_shelves.stored(20, job=ID, lineage=Lineage(ID, 1))
    slurm_shelves.here(40, state="foreign", lineage=None, digest="", format=Format.TORCH)
    fall_off(slurm_shelves.world)
    slurm_shelves.world.run(3600)
    assert_goes_on(slurm_shelves.world)
    assert slurm_shelves.settled == []


def test_without_any_step_in_s3_nobody_lists_its_folder(slurm_shelves: Shelves) -> None:
    fall_off(slurm_shelves.world)
    slurm_shelves.world.run(3600)
    assert_goes_on(slurm_shelves.world)
    listed = [name for name, _, _ in slurm_shelves.world.commands.calls if "list-checkpoints" in name]
    assert listed == []


def test_it_does_not_start_where_its_folder_cannot_be_filled(slurm_shelves: Shelves) -> None:
    slurm_shelves.stored(30, job=ID, lineage=Lineage(ID, 1))
    slurm_shelves.full = True
    fall_off(slurm_shelves.world)
    slurm_shelves.world.run(3600)
    assert not [r for r in slurm_shelves.world.scheduler.requests if isinstance(r, Requeue)]
    [(_, text)] = slurm_shelves.world.notices.sent
    assert "has no room" in text
