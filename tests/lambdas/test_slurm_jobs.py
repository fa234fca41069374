"""Stories of jobs that Slurm's users submit: no agent tells of their steps or exits, the ledger may not know
them, and the scheduler alone says where they run and how they ended. On the twin with the real ASL files."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from planaria.core.cluster import Cluster
from planaria.core.ports import Answer, AnswerState
from planaria.core.scheduling import Hold, Isolate, JobQuery, JobsOn, Lost, NodeQuery, Requeue, Stop
from planaria.core.table import Row
from planaria.memory.cluster_state import Job, JobState
from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.test_job_failures import starve, wait
from tests.lambdas.test_node_stories import SICK, fall_off
from tests.lambdas.world import World, cluster, stub

ID = "1200"
KEPT = "/home/ada/.planaria/jobs/20261130-train-a1b2c3"


def slurm(**policy: Any) -> Cluster:
    return dataclasses.replace(cluster(**policy), scheduler="slurm")


def submitted(world: World, **facts: Any) -> None:
    """What `planaria submit` writes: the job has no nodes yet."""
    known = {
        "attempt": 1, "state": "PENDING", "recipe": "train.sh", "user": "ada", "origin": "submit",
        "steps": False, "checkpoints": "own", "own_failures": "leave", "ranks_per_node": 1, "kept": KEPT,
    }  # fmt: skip
    world.gw.jobs.register(ID, [], [], known | facts)


@pytest.fixture
def bare(build: Build) -> World:
    """Four nodes of a Slurm cluster, and no job."""
    return build(slurm(), job=False)


@pytest.fixture
def unaware(bare: World) -> World:
    """A job on all four nodes that knows nothing of Planaria."""
    bare.scheduler.add_job(ID, 4)
    bare.scheduler.state.jobs[ID].user = "ada"
    return bare


@pytest.fixture
def known(bare: World) -> World:
    """The same, submitted by `planaria submit`, and looked at by sweep."""
    submitted(bare)
    bare.scheduler.add_job(ID, 4)
    bare.run(130)
    return bare


def job(world: World) -> Job:
    return world.scheduler.state.jobs[ID]


def row(world: World) -> Row:
    return world.gw.jobs.job(ID) or {}


def asked(world: World, kind: type) -> list[Any]:
    return [request for request in world.scheduler.requests if isinstance(request, kind)]


def fails(world: World, code: int = 1) -> None:
    world.scheduler.end_ranks(ID, code)


def assert_goes_on(world: World, attempt: int = 2, replaced: int = 1) -> None:
    """The job runs its next attempt, on the same names and the present instances; nothing is left over."""
    assert not world.driver.running and not world.dead_letters
    assert (str(job(world).state), job(world).attempt, job(world).nodes) == ("RUNNING", attempt, world.names)
    assert len(world.launched) == replaced and len(world.alive) == 4
    known = row(world)
    assert (known["state"], known["attempt"], known["pending"], known["unresolved"]) == (
        "RUNNING", attempt, {}, {},
    )  # fmt: skip
    assert known["names"] == world.names
    assert [known["nodes"][str(rank)] for rank in range(4)] == job(world).placement
    assert known["resume_phase"] == "HEALED" and "owed" not in known
    assert world.isolated == {} and world.notices.sent == []
    assert {request.attempt for request in asked(world, Requeue)} == set(range(2, attempt + 1))
    assert [r["incident_id"] for r in world.gw.ledger.incidents() if "outcome" not in r] == []


# --- a job that knows nothing of us -------------------------------------------------------------------


def test_a_job_that_nobody_registered_is_found_held_and_requeued(unaware: World) -> None:
    other = unaware.scheduler.state.submit_job("other", 2, 1, {})
    fall_off(unaware)
    unaware.run()
    assert_goes_on(unaware)
    assert (row(unaware)["origin"], row(unaware)["user"]) == ("found", "ada")
    [hold] = asked(unaware, Hold)
    assert (hold.job, hold.nodes) == (ID, tuple(unaware.names))
    assert other.state is JobState.PENDING, "it would have taken the survivors"
    assert row(unaware)["resume_step"] == -1
    assert "the job finds what checkpoints it has by itself" in row(unaware)["resume_step_reason"]


def test_it_resumes_without_any_list_of_checkpoints(unaware: World) -> None:
    fall_off(unaware)
    unaware.run()
    assert [call[0] for call in unaware.commands.calls if "checkpoint" in call[0]] == []


def test_two_of_its_nodes_at_once_are_one_resume(unaware: World) -> None:
    fall_off(unaware)
    fall_off(unaware, unaware.nodes[2])
    unaware.run()
    assert_goes_on(unaware, replaced=2)


def test_two_jobs_that_share_a_node_are_both_found_and_started_again(bare: World) -> None:
    state = bare.scheduler.state
    for name, nodes in ((ID, bare.names), ("1201", ["demo-1"])):
        state._start(state.submit_job(name, len(nodes), 1, {}), list(nodes), 1, -1)
    bare.scheduler.submit(JobsOn(()))
    fall_off(bare)
    bare.run(until=lambda: len({request.job for request in asked(bare, Requeue)}) == 2)
    assert {request.job for request in asked(bare, Requeue)} == {ID, "1201"}
    assert bare.node(SICK)["stopped_jobs"] == [ID, "1201"]
    holds = {request.job: request.nodes for request in asked(bare, Hold)}
    assert holds == {ID: tuple(bare.names), "1201": ()}, "two jobs must not keep each other off a node"


def test_an_old_job_leaves_the_list_that_every_sweep_reads(bare: World) -> None:
    submitted(bare)
    bare.scheduler.add_job(ID, 4)
    bare.run(130)
    fails(bare, 0)
    bare.run(130)
    assert [one["job_id"] for one in bare.gw.jobs.jobs()] == [ID]
    bare.clock.advance(8 * 86_400)
    bare.sweep()
    assert bare.gw.jobs.jobs() == [] and row(bare)["state"] == "COMPLETED"


def test_sweep_asks_nobody_about_jobs_where_there_are_none(bare: World) -> None:
    bare.run(300)
    assert asked(bare, JobQuery) == []


# --- jobs of `planaria submit` ------------------------------------------------------------------------


def test_sweep_learns_where_a_submitted_job_runs(known: World) -> None:
    assert (row(known)["state"], row(known)["names"]) == ("RUNNING", known.names)
    assert list(row(known)["nodes"].values()) == known.nodes
    assert {known.node(node).get("job_id") for node in known.nodes} == {ID}
    assert len(asked(known, JobQuery)) <= 3


def test_it_goes_on_from_what_was_reported_as_saved(known: World) -> None:
    known.gw.jobs.saved(ID, 40)
    fall_off(known)
    known.run()
    assert_goes_on(known)
    [request] = {(r.nodes, r.resume_step, r.kept) for r in asked(known, Requeue)}
    assert request == (tuple(known.names), 40, KEPT)


def test_a_node_fails_before_sweep_has_looked(bare: World) -> None:
    submitted(bare)
    bare.scheduler.add_job(ID, 4)
    fall_off(bare)
    bare.run()
    assert_goes_on(bare)
    assert row(bare)["origin"] == "submit"


def test_a_completed_job_frees_its_nodes_and_is_not_looked_at_again(known: World) -> None:
    fails(known, 0)
    known.run(130)
    assert (row(known)["state"], row(known)["ended_at"] > 0) == ("COMPLETED", True)
    assert {known.node(node).get("job_id") for node in known.nodes} == {None}
    before = len(asked(known, JobQuery))
    known.run(600)
    wait(known, 600)
    assert len(asked(known, JobQuery)) == before


def test_where_slurm_started_it_anew_by_itself_is_learned(known: World) -> None:
    state = known.scheduler.state
    fails(known)
    spare = "demo-9"
    known.add_node(spare, "i-0bbbbbbbbbbbbbbb9", "10.0.1.9")
    state._start(job(known), ["demo-0", "demo-2", "demo-3", spare], 1, -1)
    known.run(130)
    assert row(known)["names"] == ["demo-0", "demo-2", "demo-3", spare]
    assert row(known)["nodes"]["3"] == "i-0bbbbbbbbbbbbbbb9"
    assert known.node(SICK).get("job_id") is None
    fall_off(known)
    known.run()
    assert job(known).attempt == 1 and asked(known, Stop) == [], "the node that fails is not its own any more"


def test_a_node_that_the_job_has_left_does_not_stop_it(known: World) -> None:
    """Sweep has not looked yet: the ledger still believes that it runs there."""
    fails(known)
    known.add_node("demo-9", "i-0bbbbbbbbbbbbbbb9", "10.0.1.9")
    known.scheduler.state._start(job(known), ["demo-0", "demo-2", "demo-3", "demo-9"], 1, -1)
    fall_off(known)
    known.run()
    assert (job(known).attempt, str(job(known).state)) == (1, "RUNNING")
    assert asked(known, Stop) == [] and asked(known, Requeue) == []
    assert (row(known)["pending"], row(known).get("owed")) == ({}, None)
    assert known.ends == ["HEALED"]


# --- the survivors raise first ------------------------------------------------------------------------


@pytest.mark.parametrize("whose", ["unaware", "known"])
@pytest.mark.parametrize("seconds", [1, 45, 80])
def test_a_job_that_failed_shortly_before_its_node_is_the_nodes(
    request: pytest.FixtureRequest, whose: str, seconds: float
) -> None:
    world: World = request.getfixturevalue(whose)
    fails(world)
    wait(world, seconds)
    fall_off(world)
    world.run()
    assert_goes_on(world)
    [attempt] = [entry for number, entry in row(world)["attempts"].items() if number == "1"]
    assert attempt["failure"]["what"] == "node", "it counts as the node's failure, not as its own"


@pytest.mark.parametrize("whose", ["unaware", "known"])
def test_a_job_that_failed_long_before_is_its_users(request: pytest.FixtureRequest, whose: str) -> None:
    world: World = request.getfixturevalue(whose)
    fails(world)
    wait(world, 150)
    fall_off(world)
    world.run()
    assert world.ends == ["HEALED"] and asked(world, Requeue) == [] and asked(world, Hold) == []
    assert job(world).state is JobState.FAILED
    assert row(world).get("state", "FAILED") == "FAILED"


@pytest.mark.parametrize("seconds", [150, 280, 330])
def test_ec2_needs_minutes_to_see_what_the_ranks_felt_at_once(unaware: World, seconds: float) -> None:
    fails(unaware)
    wait(unaware, seconds)
    unaware.lose(SICK)
    unaware.run()
    if seconds > 300:
        assert asked(unaware, Requeue) == []
    else:
        assert_goes_on(unaware)


def test_whoever_has_got_the_nodes_meanwhile_keeps_them_and_the_other_goes_elsewhere(build: Build) -> None:
    world = build(slurm(), job=False, nodes=8)
    state = world.scheduler.state
    for name in (ID, "1300", "1250"):
        world.scheduler.add_job(name, 4)
    assert state.jobs["1300"].nodes == world.names[4:] and state.jobs["1250"].state is JobState.PENDING
    fails(world)
    world.scheduler.submit(JobsOn(()))
    assert state.jobs["1250"].nodes == world.names[:4], "it was given the nodes of the job that failed"
    fall_off(world)
    world.run(until=lambda: state.jobs["1250"].attempt == 2)
    assert state.jobs["1250"].nodes == world.names[:4]
    world.scheduler.end_ranks("1300", 0)
    world.run()
    assert (job(world).state, job(world).nodes) == (JobState.RUNNING, world.names[4:])
    assert row(world)["names"] == world.names[4:] and row(world)["resume_phase"] == "HEALED"
    assert (world.gw.jobs.job("1250") or {})["resume_phase"] == "HEALED"
    other = state.jobs["1250"]
    assert (other.state, other.attempt) == (JobState.RUNNING, 2)


def test_without_room_elsewhere_it_waits_and_is_tried_again(bare: World) -> None:
    state = bare.scheduler.state
    for name in (ID, "1250"):
        bare.scheduler.add_job(name, 4)
    fails(bare)
    bare.scheduler.submit(JobsOn(()))
    fall_off(bare)
    bare.run(300)
    assert state.jobs["1250"].state is JobState.RUNNING and job(bare).state is not JobState.RUNNING
    [(subject, text)] = bare.notices.sent
    assert ID in subject and "demo-0 runs 1250" in text and "tried again every ten minutes" in text
    bare.scheduler.end_ranks("1250", 0)
    wait(bare, 1300)
    bare.notices.sent.clear()
    assert_goes_on(bare, attempt=3)


def test_what_slurm_has_forgotten_is_submitted_again_from_what_was_kept(known: World) -> None:
    fails(known)
    wait(known, 200)
    assert (row(known)["state"], "ended_at" in row(known)) == ("FAILED", True)
    known.scheduler.state.forget(ID)
    known.lose(SICK)
    known.run()
    assert_goes_on(known)
    assert {request.kept for request in asked(known, Requeue)} == {KEPT}


def test_slurm_forgets_it_while_its_node_is_replaced(known: World) -> None:
    fails(known)
    fall_off(known)
    known.run(until=lambda: bool(asked(known, Stop)))
    known.scheduler.state.forget(ID)
    known.run()
    assert_goes_on(known)


def test_what_nobody_kept_cannot_be_submitted_again_and_a_person_is_told(unaware: World) -> None:
    fall_off(unaware)
    unaware.run(until=lambda: bool(asked(unaware, Stop)))
    unaware.scheduler.state.forget(ID)
    unaware.run(3600)
    assert row(unaware)["resume_phase"] == "ESCALATED"
    [(subject, text)] = unaware.notices.sent
    assert ID in subject and f"no job {ID}" in text and "docs/runbooks/requeue-refused.md" in text


# --- a job that fails by itself -----------------------------------------------------------------------


def test_a_failing_job_of_a_user_touches_no_node_and_is_left(known: World) -> None:
    fails(known, 2)
    wait(known, 1200)
    assert (row(known)["state"], job(known).state) == ("FAILED", JobState.FAILED)
    assert row(known)["attempts"]["1"]["failure"]["what"] == "exit code 2"
    assert asked(known, Requeue) == [] and asked(known, Isolate) == [] and known.gw.ledger.incidents() == []
    assert known.isolated == {} and known.notices.sent == []


def test_one_that_nobody_registered_is_nobodys_business(unaware: World) -> None:
    fails(unaware, 2)
    wait(unaware, 1200)
    assert row(unaware) == {} and unaware.gw.ledger.incidents() == [] and asked(unaware, Requeue) == []


def resuming(world: World) -> None:
    world.gw.jobs.write(ID, {"own_failures": "resume", "lineage": {"folder": "/fsx/ada/gpt"}})


def test_one_with_checkpoints_is_started_again(known: World) -> None:
    resuming(known)
    fails(known)
    known.run()
    assert_goes_on(known, replaced=0)
    assert known.incidents == [] and "in /fsx/ada/gpt by itself" in row(known)["resume_step_reason"]


def test_one_that_its_user_puts_back_into_the_queue_is_known_as_running(known: World) -> None:
    fails(known)
    wait(known, 200)
    assert row(known)["state"] == "FAILED"
    known.scheduler.state._start(job(known), known.names, 1, -1)
    known.run(130)
    assert (row(known)["state"], row(known).get("ended_at")) == ("RUNNING", None)
    fall_off(known)
    known.run()
    assert_goes_on(known)


def test_one_that_fails_before_sweep_has_seen_it_run_is_started_again_too(bare: World) -> None:
    submitted(bare)
    resuming(bare)
    bare.scheduler.add_job(ID, 4)
    fails(bare)
    bare.run()
    assert_goes_on(bare, replaced=0)


def test_and_with_its_node(bare: World) -> None:
    submitted(bare)
    bare.scheduler.add_job(ID, 4)
    fails(bare)
    fall_off(bare)
    bare.run()
    assert_goes_on(bare)


def test_but_not_without_end(known: World) -> None:
    resuming(known)
    begin = known.scheduler.state._start

    def start(job: Job, names: list[str], attempt: int, resume_step: int) -> None:
        begin(job, names, attempt, resume_step)
        known.at(2.0, lambda: fails(known, 3))

    known.scheduler.state._start = start  # type: ignore[method-assign]
    fails(known, 3)
    wait(known, 7200)
    known.run()
    assert row(known)["resume_phase"] == "ESCALATED"
    assert sorted({request.attempt for request in asked(known, Requeue)}) == [2]
    [(_, text)] = known.notices.sent
    assert f"attempt 2 of job {ID} was started and is FAILED after 2 s (exit code 3)" in text
    assert known.isolated == {} and known.incidents == []


def test_slurms_own_word_that_a_node_failed_is_not_held_against_the_job(known: World) -> None:
    answer = known.scheduler.state.answer

    def blames(request: Any, now: float) -> dict[str, Any]:
        value = answer(request, now)
        for entry in value.values() if isinstance(request, JobQuery) else ():
            if entry and entry["state"] == "FAILED":
                entry["state"] = "NODE_FAIL"
        return value

    known.scheduler.state.answer = blames  # type: ignore[method-assign]
    fails(known)
    known.run()
    assert_goes_on(known, replaced=0)
    assert row(known)["attempts"]["1"]["failure"]["what"] == "node"


# --- jobs that nobody may start again -----------------------------------------------------------------


@pytest.mark.parametrize(("fact", "said"), [("may_requeue", "--no-requeue"), ("has_script", "salloc")])
@pytest.mark.parametrize("whose", ["unaware", "known"])
def test_it_ends_with_its_node_and_its_user_is_told_why(
    request: pytest.FixtureRequest, whose: str, fact: str, said: str
) -> None:
    world: World = request.getfixturevalue(whose)
    setattr(job(world), fact, False)
    fall_off(world)
    world.run()
    wait(world, 900)
    assert world.ends == ["HEALED"] and asked(world, Requeue) == [] and asked(world, Hold) == []
    assert said in row(world)["given_up"]
    [(subject, text)] = world.notices.sent
    assert ID in subject and said in text and "docs/runbooks/job-not-restarted.md" in text and "ada" in text
    [incident] = world.incidents
    assert said in incident["not_restarted"][ID]


def test_one_that_failed_before_its_node_is_left_as_it_is(unaware: World) -> None:
    job(unaware).may_requeue = False
    fails(unaware)
    wait(unaware, 30)
    fall_off(unaware)
    unaware.run()
    assert unaware.ends == ["HEALED"] and asked(unaware, Requeue) == [] and unaware.notices.sent == []


def test_of_one_that_the_ledger_knows_its_user_is_told(known: World) -> None:
    job(known).may_requeue = False
    fails(known)
    wait(known, 30)
    fall_off(known)
    known.run()
    assert known.ends == ["HEALED"] and asked(known, Requeue) == []
    [(subject, text)] = known.notices.sent
    assert ID in subject and "--no-requeue" in text and "--no-requeue" in row(known)["given_up"]


# --- what its user does meanwhile ---------------------------------------------------------------------


def test_a_job_that_its_user_cancels_while_it_is_healed_is_not_started_again(known: World) -> None:
    fall_off(known)
    known.run(until=lambda: bool(known.launched))
    known.scheduler.state.cancel(ID, known.now)
    known.run()
    assert asked(known, Requeue) == [] and job(known).state is JobState.CANCELLED
    assert row(known)["state"] == "CANCELLED" and known.ends == ["HEALED"] and known.notices.sent == []


def test_a_cancelled_job_is_not_looked_at_again(known: World) -> None:
    known.scheduler.state.cancel(ID, known.now)
    known.scheduler.submit(JobsOn(()))
    known.run(130)
    assert row(known)["state"] == "CANCELLED"
    fall_off(known)
    known.run()
    assert asked(known, Requeue) == [] and asked(known, Hold) == []


def test_nobody_else_may_start_it_again(known: World) -> None:
    known.scheduler.state.cancel(ID, known.now)
    known.scheduler.submit(JobsOn(()))
    known.run(130)
    arn = known.start("resume_job", {"job_id": ID, "reason": "it was a mistake"})
    known.run()
    assert "there is nothing to resume" in known.driver.records[arn].cause
    assert asked(known, Requeue) == []


def test_one_that_was_cancelled_behind_sweeps_back_is_not_started_by_a_person_either(known: World) -> None:
    known.scheduler.state.cancel(ID, known.now)
    known.scheduler.submit(JobsOn(()))
    known.start("resume_job", {"job_id": ID, "reason": "it was a mistake"})
    known.run()
    assert asked(known, Requeue) == [] and row(known)["state"] == "CANCELLED"
    assert row(known)["resume_phase"] == "CANCELLED" and known.notices.sent == []


# --- a node that somebody else drains meanwhile ----------------------------------------------------------


def test_a_survivor_that_an_operator_drains_is_done_without_where_another_is_free(build: Build) -> None:
    world = build(slurm(), job=False, nodes=5)
    world.scheduler.add_job(ID, 4)
    fall_off(world)
    world.run(until=lambda: bool(world.launched))
    world.scheduler.state.foreign_isolate("demo-2", "ada: new disks", by="ada")
    world.run()
    assert job(world).nodes == ["demo-0", "demo-1", "demo-3", "demo-4"] and str(job(world).state) == "RUNNING"
    assert row(world)["names"] == job(world).nodes and world.isolated == {"demo-2": "ada: new disks"}
    assert row(world)["resume_phase"] == "HEALED" and world.notices.sent == []


def test_without_another_one_it_waits_until_the_operator_gives_it_back(known: World) -> None:
    fall_off(known)
    known.run(until=lambda: bool(known.launched))
    known.scheduler.state.foreign_isolate("demo-2", "ada: new disks", by="ada")
    wait(known, 900)
    [(_, text)] = known.notices.sent
    assert "demo-2 is isolated: ada: new disks" in text and "tried again every ten minutes" in text
    known.scheduler.state.nodes["demo-2"].isolated = None
    wait(known, 1500)
    known.notices.sent.clear()
    assert (str(job(known).state), row(known)["resume_phase"]) == ("RUNNING", "HEALED")


# --- rows that are wrong about a job --------------------------------------------------------------------


def ended_by_the_ledger(world: World, state: str = "COMPLETED") -> None:
    """An older job of this id, a year ago: its row is not looked at any more."""
    submitted(world, user="ada", kept="/home/ada/old")
    facts = {"state": state, "ended_at": world.now - 86_400 * 365, "attempt": 3, "resume_number": 3}
    world.gw.jobs.write(ID, {**facts, "given_up": "it failed then"}, ("listing",))


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "TIMEOUT", "UNKNOWN", "FAILED"])
def test_a_job_whose_id_is_another_ones_by_now_is_healed_as_itself(bare: World, state: str) -> None:
    ended_by_the_ledger(bare, state)
    bare.scheduler.add_job(ID, 4)
    job(bare).user = "bob"
    fall_off(bare)
    bare.run()
    assert (row(bare)["user"], row(bare)["origin"], row(bare).get("given_up")) == ("bob", "found", None)
    assert str(job(bare).state) == "RUNNING" and job(bare).attempt == 4, "executions are named by number"
    assert row(bare)["resume_phase"] == "HEALED" and bare.notices.sent == []


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "TIMEOUT"])
def test_an_ended_job_that_its_user_has_put_back_is_healed(known: World, state: str) -> None:
    known.gw.jobs.write(ID, {"state": state, "ended_at": known.now})
    known.scheduler.state._start(job(known), known.names, 1, -1)
    fall_off(known)
    known.run()
    assert_goes_on(known)
    assert row(known)["origin"] == "submit" and "ended_at" not in row(known)


def test_sweep_learns_that_a_running_jobs_id_is_another_ones(known: World) -> None:
    job(known).user = "bob"
    known.run(130)
    assert (row(known)["user"], row(known)["names"], row(known)["state"]) == ("bob", known.names, "RUNNING")


def queue_up(world: World) -> None:
    """The job is in the queue again, and another one has its nodes."""
    first, state = job(world), world.scheduler.state
    first.state, first.attempt = JobState.PENDING, 0
    first.placement, first.nodes, first.exits = [], [], {}
    state._start(state.submit_job("77", 4, 1, {}), list(world.names), 1, -1)
    world.scheduler.submit(JobsOn(()))


@pytest.mark.parametrize("looked", [False, True])
def test_a_job_that_waits_in_the_queue_is_not_seized_for_a_node_that_it_had(
    known: World, looked: bool
) -> None:
    queue_up(known)
    if looked:
        known.run(130)
        assert row(known)["state"] == "RUNNING" or row(known)["state"] == "PENDING"
    fall_off(known)
    known.run()
    assert {name for request in asked(known, Stop) for name in request.jobs} == {"77"}
    assert {request.job for request in asked(known, Requeue)} == {"77"}
    assert job(known).state is JobState.PENDING and known.notices.sent == []
    assert row(known)["pending"] == {} and "owed" not in row(known)


def test_a_cancelled_job_keeps_no_nodes_from_others(known: World) -> None:
    fall_off(known)
    known.run(until=lambda: bool(known.launched))
    assert job(known).hold is not None
    known.scheduler.state.cancel(ID, known.now)
    known.run(until=lambda: row(known)["state"] == "CANCELLED")
    known.run()
    assert asked(known, Hold)[-1] == Hold(ID, (), 0.0) and known.notices.sent == []


def test_a_job_that_is_cancelled_while_it_is_started_is_not_given_to_a_person(known: World) -> None:
    fall_off(known)
    known.run(until=lambda: bool(asked(known, Requeue)))
    known.scheduler.state.cancel(ID, known.now)
    known.run()
    assert row(known)["state"] == "CANCELLED" and row(known)["resume_phase"] == "CANCELLED"
    assert known.notices.sent == []


# --- ends that are announced ----------------------------------------------------------------------------


@pytest.mark.parametrize("whose", ["unaware", "known"])
def test_a_planned_end_does_not_stop_a_job_while_there_is_no_capacity(
    request: pytest.FixtureRequest, whose: str
) -> None:
    world: World = request.getfixturevalue(whose)
    starve(world, 8 * 3600)
    world.send(events.retirement(SICK, world.now))
    wait(world, 4 * 3600)
    assert asked(world, Stop) == [] and world.isolated == {}
    assert (job(world).attempt, str(job(world).state)) == (1, "RUNNING")


@pytest.mark.parametrize("whose", ["unaware", "known"])
def test_a_failing_job_is_not_started_again_for_an_end_that_was_only_announced(
    request: pytest.FixtureRequest, whose: str
) -> None:
    world: World = request.getfixturevalue(whose)
    fails(world)
    wait(world, 200)
    world.send(events.retirement(SICK, world.now))
    world.run(7200)
    assert asked(world, Requeue) == [] and asked(world, Hold) == []


def test_nor_for_a_persons_order(known: World) -> None:
    fails(known)
    wait(known, 30)
    known.commands.documents.clear()  # there is no emergency checkpoint on Slurm's nodes yet
    known.commands.documents["planaria-check"] = lambda node, parameters: {"passed": True, "reason": ""}
    known.start("heal_node", {"node_id": SICK, "action": "replace", "reason": "new disks"})
    known.run()
    assert known.ends == ["HEALED"] and asked(known, Requeue) == []


def without_save_document(world: World) -> None:
    """There is no emergency checkpoint on Slurm's nodes yet."""
    del world.commands.documents["planaria-checkpoint-now"]


@pytest.mark.parametrize("whose", ["unaware", "known"])
def test_a_job_on_a_node_that_works_has_time_to_save(request: pytest.FixtureRequest, whose: str) -> None:
    world: World = request.getfixturevalue(whose)
    without_save_document(world)
    world.start("heal_node", {"node_id": SICK, "action": "replace", "reason": "new disks"})
    world.run()
    assert_goes_on(world)
    assert {request.grace_seconds for request in asked(world, Stop)} == {30.0}


def test_on_a_broken_node_it_has_none(known: World) -> None:
    fall_off(known)
    known.run()
    assert {request.grace_seconds for request in asked(known, Stop)} == {2.0}


def test_before_an_end_that_comes_soon_it_has_what_is_left(known: World) -> None:
    without_save_document(known)
    known.interrupt(SICK)
    known.run()
    assert all(2.0 <= request.grace_seconds <= 30.0 for request in asked(known, Stop)) and asked(known, Stop)
    assert_goes_on(known)


def test_a_node_that_any_job_needs_is_not_removed(unaware: World) -> None:
    arn = unaware.start("heal_node", {"node_id": SICK, "action": "remove", "reason": "too many"})
    unaware.run()
    assert asked(unaware, Stop) == [] and unaware.terminated == [] and unaware.isolated == {}
    assert (job(unaware).attempt, str(job(unaware).state)) == (1, "RUNNING")
    assert unaware.ends == ["ESCALATED"] and unaware.driver.records[arn].cause
    [(_, text)] = unaware.notices.sent
    assert f"demo-1 runs job {ID}, which needs it" in text and "docs/runbooks/not-retired.md" in text


def test_an_idle_one_is(bare: World) -> None:
    bare.start("heal_node", {"node_id": SICK, "action": "remove", "reason": "too many"})
    bare.run()
    assert bare.ends == ["RETIRED"] and bare.terminated == [SICK]


# --- modes in which Planaria does not act ---------------------------------------------------------------


@pytest.mark.parametrize("mode", ["observe", "approve"])
@pytest.mark.parametrize("state", ["FAILED", "NODE_FAIL"])
def test_nothing_is_started_again_where_nobody_may_act(build: Build, mode: str, state: str) -> None:
    world = build(slurm(mode=mode), job=False)
    make_known(world)
    resuming(world)
    answer = world.scheduler.state.answer

    def tells(request: Any, now: float) -> dict[str, Any]:
        value = answer(request, now)
        for entry in value.values() if isinstance(request, JobQuery) else ():
            if entry and entry["state"] == "FAILED":
                entry["state"] = state
        return value

    world.scheduler.state.answer = tells  # type: ignore[method-assign]
    fails(world)
    wait(world, 600)
    told = row(world)
    assert (told["state"], told.get("owed"), told.get("resume_phase")) == ("FAILED", None, None)
    assert f"mode {mode}: it would have been started again" in told["ended_reason"]
    assert {type(request) for request in world.scheduler.requests} <= {JobQuery, JobsOn, NodeQuery}
    assert world.notices.sent == [] and world.gw.ledger.incidents() == []


def test_observing_a_cancelled_job_frees_nothing(build: Build) -> None:
    world = build(slurm(mode="observe"), job=False)
    make_known(world)
    world.gw.jobs.write(ID, {"hold": {"by": "x", "asked_at": world.now, "until": world.now + 3600}})
    world.scheduler.state.cancel(ID, world.now)
    world.run(130)
    assert row(world)["state"] == "CANCELLED" and asked(world, Hold) == []


# --- a node that is gone ------------------------------------------------------------------------------


@pytest.mark.parametrize("whose", ["unaware", "known"])
def test_the_survivors_are_held_before_the_scheduler_gives_the_dead_node_up(
    request: pytest.FixtureRequest, whose: str
) -> None:
    """Slurm requeues the jobs of a node that is set down at once, and their other nodes are free."""
    world: World = request.getfixturevalue(whose)
    other = world.scheduler.state.submit_job("other", 2, 1, {})
    world.scheduler.stubborn = True  # the survivors go on until they are ended
    world.fleet.instances[SICK] = dataclasses.replace(world.fleet.instances[SICK], state="terminated")
    world.scheduler.state.node_down(SICK)
    world.send(events.state(SICK, "terminated", world.now))
    world.run(until=lambda: bool(asked(world, Stop)))
    world.scheduler.stubborn = False
    world.scheduler.end_ranks(ID, -9)
    world.run()
    assert_goes_on(world)
    kinds = [type(r) for r in world.scheduler.requests if isinstance(r, Isolate | Hold | Lost | Stop)]
    assert list(dict.fromkeys(kinds)) == [Isolate, Hold, Lost, Stop]
    assert other.state is JobState.PENDING


# --- a scheduler that takes its time ------------------------------------------------------------------


@pytest.mark.parametrize("polls", [9, 30, 60])
@pytest.mark.parametrize("whose", ["unaware", "known"])
def test_answers_that_take_longer_than_a_task_waits_still_come_to_an_end(
    request: pytest.FixtureRequest, whose: str, polls: int
) -> None:
    world: World = request.getfixturevalue(whose)
    world.scheduler.pending_polls = polls
    fall_off(world)
    world.run(3600)
    assert_goes_on(world)


def test_sweep_reads_an_answer_that_came_late(bare: World) -> None:
    submitted(bare)
    bare.scheduler.add_job(ID, 4)
    bare.scheduler.pending_polls = 35
    wait(bare, 250)
    assert row(bare)["names"] == bare.names


def test_a_job_that_the_scheduler_says_nothing_of_is_waited_for_a_little(unaware: World) -> None:
    """It runs there, so it has to end; without a row it would never be started again."""
    submit = unaware.scheduler.submit

    def silent(request: Any) -> str:
        ticket = submit(request)
        if isinstance(request, JobQuery) and not told:
            unaware.scheduler._tickets[ticket] = (request, {}, [0])
        return ticket

    told: list[bool] = []
    stub(unaware.scheduler, "submit", silent)
    unaware.at(30.0, lambda: told.append(True))
    fall_off(unaware)
    unaware.run()
    assert_goes_on(unaware)
    assert asked(unaware, Stop)


def test_a_job_that_is_just_ending_is_registered_with_all_its_nodes(unaware: World) -> None:
    """Of a job that completes Slurm lists only the nodes on which something of it still ends."""
    describe = unaware.scheduler.state._describe_job

    def completing(job_id: str) -> Any:
        told = describe(job_id)
        if told and until > unaware.now and told["state"] in ("RUNNING", "FAILED"):
            told |= {"state": "COMPLETING", "nodes": ["demo-1"]}
        return told

    until = unaware.now + 20.0
    unaware.scheduler.state._describe_job = completing  # type: ignore[method-assign]
    fall_off(unaware)
    unaware.run()
    assert_goes_on(unaware)


def test_a_scheduler_out_of_reach_costs_sweep_nothing_but_the_news(known: World) -> None:
    known.scheduler.reachable = False
    known.run(200)
    assert row(known)["state"] == "RUNNING"
    known.scheduler.reachable = True
    fails(known, 0)
    known.run(200)
    assert row(known)["state"] == "COMPLETED"


def test_an_unknown_answer_ends_no_job(known: World) -> None:
    poll = stub(known.scheduler, "poll", lambda ticket: Answer(AnswerState.UNKNOWN, reason="cut"))
    known.run(200)
    known.scheduler.poll = poll  # type: ignore[method-assign]
    assert row(known)["state"] == "RUNNING"


@pytest.mark.campaign
def test_hundreds_of_jobs_are_looked_at_in_turn(bare: World) -> None:
    for number in range(450):
        facts = {"attempt": 1, "state": "PENDING", "origin": "submit", "steps": False}
        bare.gw.jobs.register(f"{2000 + number}", [], [], facts)
        bare.scheduler.state.submit_job(f"{2000 + number}", 9, 1, {})
    bare.sweep()
    assert [len(request.jobs) for request in asked(bare, JobQuery)] == [40] * 5
    bare.sweep()
    bare.sweep()
    seen = {one for request in asked(bare, JobQuery) for one in request.jobs}
    assert len(seen) == 450


# --- Lambdas that die ---------------------------------------------------------------------------------


def story(world: World) -> None:
    """Survivors raise, half a minute later the node's fault is seen."""
    fails(world)
    wait(world, 30)
    fall_off(world)
    world.run(3600)
    world.run()


def number_of_effects(build: Build, make: Callable[[World], None]) -> int:
    world = build(slurm(), job=False)
    make(world)
    before = len(world.effects)
    story(world)
    assert_goes_on(world)
    return len(world.effects) - before


def make_unaware(world: World) -> None:
    world.scheduler.add_job(ID, 4)


def make_known(world: World) -> None:
    submitted(world)
    world.scheduler.add_job(ID, 4)
    world.run(130)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("make", [make_unaware, make_known])
def test_wherever_a_lambda_dies_the_job_goes_on_once(
    build: Build, make: Callable[[World], None], before: bool
) -> None:
    count = number_of_effects(build, make)
    assert count > 30
    for number in range(count):
        world = build(slurm(), job=False)
        make(world)
        world.kill_at(len(world.effects) + number, before=before)
        story(world)
        where = world.effects[len(world.effects) - 1] if world.effects else ""
        try:
            assert_goes_on(world)
        except AssertionError as error:
            raise AssertionError(f"killed {before=} at effect {number} ({where}): {error}") from error


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_wherever_a_lambda_dies_a_job_with_checkpoints_is_started_again_once(
    build: Build, before: bool
) -> None:
    def failing(number: int | None) -> World:
        world = build(slurm(), job=False)
        make_known(world)
        resuming(world)
        if number is not None:
            world.kill_at(len(world.effects) + number, before=before)
        fails(world)
        world.run(1800)
        world.run()
        assert_goes_on(world, replaced=0)
        return world

    effects = failing(None).effects
    assert len(effects) > 20
    for number in range(len(effects)):
        failing(number)


@pytest.mark.parametrize("whose", ["unaware", "known"])
def test_every_task_twice_is_once(request: pytest.FixtureRequest, whose: str) -> None:
    world: World = request.getfixturevalue(whose)
    world.twice = {
        "begin_incident", "isolate_node", "admit_node", "tell_job", "begin_resume", "choose_checkpoint",
        "requeue_job", "await_steps", "close_resume", "close_incident",
    }  # fmt: skip
    story(world)
    assert_goes_on(world)
