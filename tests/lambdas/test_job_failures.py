"""Jobs that fail: by many nodes at once, by themselves, from a bad copy, or while their nodes stay away."""

import random
from typing import Any

import pytest

from lambdas import survivors
from planaria.core import attempts
from planaria.core.errors import CapacityError, PermanentError
from planaria.core.ports import Answer, AnswerState, Execution
from planaria.core.scheduling import Hold, Requeue
from planaria.memory.cluster_state import JobState
from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.test_job_stories import hold_the_list
from tests.lambdas.test_node_stories import SICK, fall_off
from tests.lambdas.world import JOB, NODES, World, cluster, stub

OTHER = NODES[2]
TEN = 10


def ten(build: Build, **policy: Any) -> World:
    return build(cluster(size=20, removals=20, **policy), nodes=TEN)


def crash(world: World, code: int = 1, rank: int = 0, reason: str = "") -> None:
    """One rank ends by itself; the story goes on until it is quiet."""
    world.scheduler.end_ranks(JOB, code, rank)
    world.run()


def no_more_steps(world: World, code: int = 1) -> None:
    """From now on every attempt ends with this code before its first step."""
    world.steps = False

    def die(attempt: int) -> None:
        if world.scheduler.state.jobs[JOB].attempt == attempt:
            world.scheduler.end_ranks(JOB, code, 0)

    begin = world.scheduler.state._start

    def start(job: Any, names: list[str], attempt: int, resume_step: int) -> None:
        begin(job, names, attempt, resume_step)
        world.at(2.0, lambda: die(attempt))

    world.scheduler.state._start = start  # type: ignore[method-assign]


def wait(world: World, seconds: float) -> None:
    """Time passes, also while nothing happens but sweeps."""
    world.at(seconds, lambda: None)
    world.run(seconds + 1)


def resume_steps(world: World) -> list[int]:
    """From which step each attempt was started, in order."""
    asked = {r.attempt: r.resume_step for r in world.scheduler.requests if isinstance(r, Requeue)}
    return [asked[attempt] for attempt in sorted(asked)]


def save(world: World, step: int) -> None:
    world.saved.insert(0, {"step": step, "state": "complete", "reason": ""})


# --- many nodes at once ------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", [2, 3, 5, 10])
def test_nodes_that_fail_within_a_second_are_resumed_once(build: Build, failing: int) -> None:
    world = ten(build)
    for number, node in enumerate(world.nodes[:failing]):
        world.at(number / failing, lambda node=node: fall_off(world, node))  # type: ignore[misc]
    world.run()
    world.assert_healed(replaced=failing, resumed=1)
    assert world.ends == ["HEALED"] * failing


SEEDS = [pytest.param(seed, marks=[pytest.mark.campaign] if seed >= 6 else []) for seed in range(100)]


@pytest.mark.parametrize("seed", SEEDS)
def test_nodes_in_any_order_with_crashes_lose_no_job(build: Build, seed: int) -> None:
    """Faults, exits and deaths of Lambdas at random. Nodes that fail at once are resumed once, but for one
    resume more for each triage that died."""
    dice = random.Random(seed)
    world, spread = ten(build), dice.choice([0.0, 1.0, 40.0])
    failing = dice.sample(world.nodes, dice.randint(2, TEN))
    for node in failing:
        at, rank = dice.uniform(0, spread), world.nodes.index(node)
        if dice.random() < 0.5:
            world.at(max(0.0, at + dice.uniform(-0.5, 0.5)), lambda r=rank: end(world, r))  # type: ignore[misc]
        world.at(at, lambda node=node: fall_off(world, node))  # type: ignore[misc]
    numbers = dice.sample(range(400), dice.randint(0, 3))
    for number in numbers:
        world.kill_at(number, before=dice.random() < 0.5)
    world.run(3600)
    world.run(600)
    died = [world.effects[number][0] for number in numbers if number < len(world.effects)]
    world.assert_healed(replaced=len(world.launched), resumed=len(world.attempts))
    assert set(world.ends) == {"HEALED"} and len(world.launched) >= len(failing)
    most = len(failing) if spread > 1 else 1
    assert 1 <= len(world.attempts) <= most + died.count("triage"), died


def end(world: World, rank: int) -> None:
    if rank in world.scheduler.state.jobs[JOB].live_ranks:
        world.scheduler.end_ranks(JOB, -6, rank)


def test_a_replacement_takes_the_rank_of_the_node_that_failed(build: Build) -> None:
    world = ten(build)
    for node in (world.nodes[7], world.nodes[2]):
        fall_off(world, node)
    world.run()
    world.assert_healed(replaced=2, resumed=1)
    job = world.scheduler.state.jobs[JOB]
    assert job.nodes == world.names
    members = [world.job["nodes"][str(rank)] for rank in range(TEN)]
    assert job.placement == members
    kept = [node for rank, node in enumerate(world.nodes) if rank not in (2, 7)]
    assert [node for rank, node in enumerate(members) if rank not in (2, 7)] == kept


def test_a_replacement_that_fails_before_its_job_was_told_of_it_is_followed_up(world: World) -> None:
    """The job hears of the first replacement when that has been replaced itself."""
    invoke, late = world.driver.invoke, list[Any]()

    def slow(function: str, payload: dict[str, Any]) -> Any:
        if (
            function == "tell_job"
            and payload["incident"]["node_id"] == SICK
            and world.ends.count("HEALED") < 1
        ):
            late.append(payload)
            raise TimeoutError("throttled")
        return invoke(function, payload)

    world.driver.invoke = slow
    fall_off(world)
    world.run(until=lambda: bool(late))
    fall_off(world, world.launched[0])
    world.run(4000)
    assert late and world.ends == ["HEALED", "HEALED"]
    world.assert_healed(replaced=2, resumed=1)
    assert world.job["nodes"]["1"] == world.launched[1]


# --- survivors are held ------------------------------------------------------------------------------


def queue_another(world: World, nodes: int = 2) -> Any:
    """Another job waits for free nodes of the same cluster."""
    return world.scheduler.state.submit_job("other", nodes, 1, {})


def test_nobody_else_gets_the_survivors_while_a_node_is_replaced(world: World) -> None:
    other = queue_another(world)
    fall_off(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert other.state is JobState.PENDING
    [hold] = [request for request in world.scheduler.requests if isinstance(request, Hold)]
    assert (hold.job, hold.nodes, hold.seconds) == (JOB, tuple(world.names), 3600.0)
    assert world.scheduler.state.jobs[JOB].hold is None


def test_the_hold_is_renewed_by_every_further_node_and_by_nothing_else(world: World) -> None:
    world.twice = {"isolate_node"}
    fall_off(world)
    world.at(10, lambda: fall_off(world, OTHER))
    world.run()
    world.assert_healed(replaced=2, resumed=1)
    holds = [request for request in world.scheduler.requests if isinstance(request, Hold)]
    assert len(holds) == 2 and "hold" not in world.job


def test_a_scheduler_that_does_not_answer_about_the_hold_keeps_no_broken_node_in_work(world: World) -> None:
    poll, submit, silent = world.scheduler.poll, world.scheduler.submit, set[str]()

    def submitted(request: Any) -> str:
        ticket = submit(request)
        if isinstance(request, Hold):
            silent.add(ticket)
        return ticket

    stub(world.scheduler, "submit", submitted)
    stub(
        world.scheduler,
        "poll",
        lambda ticket: Answer(AnswerState.PENDING) if ticket in silent else poll(ticket),
    )
    fall_off(world)
    world.run(until=lambda: bool((world.job.get("hold") or {}).get("until")))
    assert "did not answer in time" in world.job["hold"]["word"]
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert len(silent) == 1, "the ticket is asked again, not the request"


@pytest.mark.parametrize("error", [PermanentError("Hold: not allowed")])
def test_a_scheduler_that_cannot_hold_is_no_reason_to_keep_a_broken_node(
    world: World, error: Exception
) -> None:
    submit = world.scheduler.submit

    def submitted(request: Any) -> str:
        if isinstance(request, Hold):
            raise error
        return submit(request)

    stub(world.scheduler, "submit", submitted)
    fall_off(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)


def test_a_resume_that_is_given_up_lets_the_nodes_go(world: World) -> None:
    world.saved = [{"step": 30, "state": "corrupt", "reason": "a hash differs"}]
    other = queue_another(world)
    fall_off(world)
    world.run()
    assert world.job["resume_phase"] == "ESCALATED"
    world.scheduler.state.tick(world.now)
    assert other.state is JobState.RUNNING


# --- past the hold's deadline ------------------------------------------------------------------------


def starve(world: World, seconds: float) -> None:
    """EC2 has no capacity for so long, from now on."""
    end = world.now + seconds
    world.fleet.refuse = lambda request: CapacityError("none") if world.now < end else None


def test_a_job_that_waits_too_long_is_told_of_once_and_goes_on_all_the_same(world: World) -> None:
    starve(world, 3 * 3600)
    fall_off(world)
    wait(world, 2 * 3600)
    [(subject, text)] = world.notices.sent
    assert "job gpt waits too long" in subject
    assert "demo-1 (incident " in text and "docs/runbooks/job-waits.md" in text
    assert world.job["overdue"]["reason"] in text
    world.run(4 * 3600)
    assert len(world.notices.sent) == 1
    world.notices.sent.clear()
    world.assert_healed(replaced=1, resumed=1)
    assert "overdue" not in world.job


def test_what_another_job_took_past_the_deadline_is_waited_for(world: World) -> None:
    """The job is resumed when its node is healed and the others are free again, and nobody is told twice."""
    other = queue_another(world)
    starve(world, 3 * 3600)
    fall_off(world)
    world.run(4 * 3600)
    assert other.state is JobState.RUNNING
    assert (world.job["resume_phase"], world.ends) == ("ESCALATED", ["HEALED"])
    assert "demo-0 runs other" in world.notices.sent[1][1]
    assert "docs/runbooks/requeue-refused.md" in world.notices.sent[1][1]
    wait(world, 2 * 3600)
    assert len(world.notices.sent) == 2
    for rank in other.live_ranks:
        world.scheduler.state.rank_exited("other", other.attempt, rank, 0, world.now)
    wait(world, 700)
    assert (world.job["resume_phase"], str(world.scheduler.state.jobs[JOB].state)) == ("HEALED", "RUNNING")
    assert "no_room" not in world.job


@pytest.mark.parametrize("call", ["table.write", "notices.publish"])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_whoever_tells_of_a_job_that_waits_may_die(world: World, call: str, before: bool) -> None:
    starve(world, 2 * 3600)
    fall_off(world)
    world.run(3500)
    world.kill("sweep", call, before=before)
    world.run(3 * 3600)
    assert all("waits too long" in subject for subject, _ in world.notices.sent)
    assert len(world.notices.sent) == (2 if call == "notices.publish" and not before else 1)
    world.notices.sent.clear()
    world.assert_healed(replaced=1, resumed=1)


# --- nodes that do not come back ---------------------------------------------------------------------


def test_a_node_isolated_by_hand_is_waited_for_until_somebody_gives_it_a_successor(world: World) -> None:
    world.start("isolate_node", {"node_id": SICK, "reason": "inspect the cables"})
    wait(world, 2 * 3600)
    assert world.attempts == [] and "taken out of work" in world.job["unresolved"][SICK]
    [(_, text)] = world.notices.sent
    assert "taken out of work" in text and "demo-1" in text
    world.start("launch_replacement", {"node_id": SICK, "reason": "go on"}, "go-on")
    world.run()
    assert world.attempts == [2] and str(world.scheduler.state.jobs[JOB].state) == "RUNNING"


def test_an_end_without_a_successor_resumes_the_job_on_no_node_that_is_gone(world: World) -> None:
    """As an Auto Scaling group that shrinks: the incident launches nothing."""
    invoke = world.driver.invoke

    def shrinks(function: str, payload: dict[str, Any]) -> Any:
        answer = invoke(function, payload)
        if function == "begin_incident":
            answer["incident"] |= {"replacement": False, "reset": False, "reboot": False}
        return answer

    world.driver.invoke = shrinks
    fall_off(world)
    world.run()
    assert world.ends == ["RETIRED"] and world.attempts == []
    assert "nobody has its place" in world.job["unresolved"][SICK]


def test_an_instance_that_a_person_terminates_is_said_and_its_job_waits(world: World) -> None:
    """The group is large enough without it, so nothing replaces it; its job cannot go on."""
    world.gw.ledger.note_node(SICK, {"gone": True, "state": "terminated"})
    world.lose(SICK, tell=False)
    world.scheduler.end_ranks(JOB, -6, 0)
    world.run(3600)
    assert world.attempts == [] and world.job["resume_phase"] == "ESCALATED"
    assert "demo-1" in world.job["unresolved"][SICK]
    [(_, text)] = world.notices.sent
    assert f"planaria replace {SICK}" in text and "docs/runbooks/job-waits.md" in text
    world.notices.sent.clear()
    world.start("heal_node", {"node_id": SICK, "action": "replace", "reason": "the job needs it"}, "again")
    world.run()
    world.assert_healed(replaced=1, resumed=1)


# --- jobs that fail by themselves --------------------------------------------------------------------


def test_a_job_that_fails_at_every_start_ends_with_a_person_and_no_node_is_touched(world: World) -> None:
    save(world, 40)
    no_more_steps(world)
    crash(world)
    assert (world.job["resume_phase"], world.attempts) == ("ESCALATED", [2, 3, 4])
    [(_, text)] = world.notices.sent
    assert "fails by itself: attempts 2, 3, 4 ended with exit code 1 before their first step" in text
    assert "docs/runbooks/job-fails.md" in text
    assert resume_steps(world) == [40, 40, 30], "the third starts from an older copy"
    assert world.incidents == [] and world.fleet.calls == [] and world.isolated == {}


def test_other_failures_are_bounded_by_the_policy(build: Build) -> None:
    world = build(cluster(max_resumes=3))
    for code in (1, 2, 3, 4):
        crash(world, code)
    assert (world.job["resume_phase"], world.attempts) == ("ESCALATED", [2, 3, 4])
    assert "policy.max_resumes is 3" in world.notices.sent[0][1]


def test_failures_of_long_ago_do_not_count(build: Build) -> None:
    world = build(cluster(max_resumes=2))
    for code in range(1, 8):
        crash(world, code)
        world.clock.advance(1900)
    world.run()
    assert world.attempts == list(range(2, 9)) and world.notices.sent == []


def test_nodes_do_not_use_up_the_jobs_retries(build: Build) -> None:
    world = build(cluster(size=40, removals=20, max_resumes=2, max_replacements=9))
    for number in range(6):
        fall_off(world, world.job["nodes"]["1"])
        world.scheduler.end_ranks(JOB, -6, 0)  # the others feel it, before or after
        world.run()
        assert len(world.attempts) == number + 1
    crash(world, 1)
    crash(world, 2)
    assert world.notices.sent == [] and len(world.attempts) == 8


def test_what_failed_before_the_node_was_seen_counts_as_the_nodes(world: World) -> None:
    world.scheduler.end_ranks(JOB, -6, 0)
    world.run(60, until=lambda: world.attempts == [2])
    assert world.job["attempts"]["1"]["failure"]["what"] == "signal 6"
    fall_off(world)
    world.run()
    failures = [attempt.failure for attempt in attempts.of(world.job) if attempt.number < 3]
    assert failures == [attempts.NODE, attempts.NODE]


def test_a_person_who_resumes_a_job_gives_it_another_chance(world: World) -> None:
    no_more_steps(world)
    crash(world)
    assert world.job["given_up"]
    world.steps = True
    del world.scheduler.state._start
    world.start("resume_job", {"job_id": JOB, "reason": "the import is mended"})
    world.run()
    world.notices.sent.clear()
    world.assert_healed(replaced=0, resumed=4)
    assert "given_up" not in world.job and world.job["aside"] == {}
    assert resume_steps(world)[-1] == 30, "what was set aside is tried again"


def test_a_job_that_is_given_up_is_not_resumed_by_a_node(world: World) -> None:
    no_more_steps(world)
    crash(world)
    world.notices.sent.clear()
    fall_off(world)
    world.run()
    assert world.ends == ["HEALED"] and world.attempts == [2, 3, 4] and world.notices.sent == []
    assert sorted(world.job["nodes"].values()) == sorted(world.alive)


def test_a_rank_that_is_killed_while_its_node_is_well_is_its_own_failure(world: World) -> None:
    crash(world, -9)
    assert world.job["attempts"]["1"]["failure"]["what"] == "signal 9"
    assert world.incidents == []


# --- which copy --------------------------------------------------------------------------------------


def test_the_same_failure_twice_from_one_copy_falls_back_to_an_older_one(world: World) -> None:
    crash(world, 1, reason="")
    crash(world, 1)
    assert resume_steps(world) == [30, 30]
    crash(world, 1)
    assert resume_steps(world) == [30, 30, 20]
    why = world.job["resume_step_reason"]
    assert why.startswith("newest complete step; passed over: step 30 is set aside (attempts 2 and 3 from it")
    [own] = [r for r in world.gw.ledger.incidents() if r["incident_id"] == "resume-gpt-4"]
    assert own["resume_step"] == 20 and own["resume_step_reason"] == why


def test_another_failure_or_a_newer_copy_sets_nothing_aside(world: World) -> None:
    crash(world, 1)
    crash(world, 2)
    crash(world, 1)
    assert resume_steps(world) == [30, 30, 30]
    save(world, 40)
    crash(world, 1)
    assert resume_steps(world) == [30, 30, 30, 40] and world.job["aside"] == {}


def test_nodes_that_fail_say_nothing_of_a_copy(build: Build) -> None:
    world = build(cluster(removals=8))
    for number in range(3):
        fall_off(world, world.job["nodes"][str(number)])
        world.run()
    assert resume_steps(world) == [30, 30, 30] and world.job["aside"] == {}


def test_below_the_oldest_copy_there_is_a_person_and_not_step_0(build: Build) -> None:
    world = build(cluster(max_resumes=20))
    for _ in range(5):
        crash(world, 1)
    assert resume_steps(world) == [30, 30, 20, 20]
    assert world.job["resume_phase"] == "ESCALATED"
    [(_, text)] = world.notices.sent
    assert "fails from every checkpoint that is kept (step 30 is set aside" in text
    assert "it is not started from step 0" in text and "docs/runbooks/no-checkpoint.md" in text


def test_a_step_that_was_saved_anew_is_another_copy(world: World) -> None:
    world.saved[0]["at"] = 1.0
    for _ in range(3):
        crash(world, 1)
    assert resume_steps(world) == [30, 30, 20]
    world.saved[0]["at"] = 2.0
    crash(world, 2)
    assert resume_steps(world) == [30, 30, 20, 30]


# --- the scheduler takes its time --------------------------------------------------------------------


def test_a_requeue_that_waits_two_minutes_is_no_failure(world: World) -> None:
    """Slurm lets a requeued job wait for about two minutes: PENDING, reason BeginTime."""
    submit, poll, held = world.scheduler.submit, world.scheduler.poll, dict[str, float]()
    until = world.now + 120

    def submitted(request: Any) -> str:
        if isinstance(request, Requeue) and world.now < until:
            held[f"slurm-{len(held)}"] = world.now
            return f"slurm-{len(held) - 1}"
        return submit(request)

    def polled(ticket: str) -> Answer:
        return Answer(AnswerState.DONE, {JOB: "PENDING: BeginTime"}) if ticket in held else poll(ticket)

    stub(world.scheduler, "submit", submitted)
    stub(world.scheduler, "poll", polled)
    crash(world, -9, 2)
    world.assert_healed(replaced=0, resumed=1)
    assert len(held) > 10
    assert [attempt.failure for attempt in attempts.of(world.job)] == ["signal 9", ""]


def test_a_job_that_its_scheduler_starts_hours_later_runs(world: World) -> None:
    poll, mine = world.scheduler.poll, list[str]()

    def submitted(request: Any) -> str:
        ticket = submit(request) if not isinstance(request, Requeue) else f"queued-{len(mine)}"
        if isinstance(request, Requeue):
            mine.append(ticket)
        return ticket

    submit = stub(world.scheduler, "submit", submitted)
    stub(
        world.scheduler,
        "poll",
        lambda ticket: (
            Answer(AnswerState.DONE, {JOB: "PENDING: Resources"}) if ticket in mine else poll(ticket)
        ),
    )
    crash(world, -9, 2)
    assert (world.job["resume_phase"], world.job["state"]) == ("ESCALATED", "FAILED")
    assert "does not start attempt 2 of job gpt yet: PENDING: Resources" in world.notices.sent[0][1]
    world.send(events.job_step(NODES[0], JOB, 2, 31, world.now))
    world.run()
    assert world.job["state"] == "RUNNING"


# --- resumes whose executions die, and people --------------------------------------------------------


def test_a_resume_whose_executions_die_again_and_again_ends_with_a_person(build: Build) -> None:
    world = build(cluster(max_attempts=3))
    hold_the_list(world)
    world.scheduler.end_ranks(JOB, -9, 2)
    for _ in range(5):
        world.run(300, until=lambda: any("resume" in arn for arn in world.driver.running))
        for arn in list(world.driver.running):
            world.abort(arn)
        world.run(90)
    assert world.job["resume_phase"] == "ESCALATED" and world.driver.running == []
    [(_, text)] = world.notices.sent
    assert "its execution died 3 times, last resume-gpt-4" in text
    assert "docs/runbooks/execution-died.md" in text


def resume_by_hand(world: World, name: str = "by-hand") -> tuple[Execution, str]:
    arn = world.start("resume_job", {"job_id": JOB, "reason": "again"}, name)
    world.run()
    return world.workflows.executions[arn], world.driver.records[arn].cause


def test_a_person_is_told_what_a_job_waits_for(world: World) -> None:
    world.boots = False
    fall_off(world)
    world.run(60)
    arn = world.start("resume_job", {"job_id": JOB, "reason": "now"})
    world.run(30)
    name = world.incidents[0]["incident_id"]
    assert f"waits for {SICK} (incident {name})" in world.driver.records[arn].cause


def test_a_person_cannot_resume_a_job_on_a_node_that_is_gone(world: World) -> None:
    world.fleet.refuse = lambda request: PermanentError("VcpuLimitExceeded: no")
    world.lose(SICK)
    world.run()
    assert set(world.ends) == {"ESCALATED"} and world.job["unresolved"]
    state, cause = resume_by_hand(world)
    assert (state, f"`planaria replace {SICK}` gives it another one" in cause) == (Execution.FAILED, True)
    assert world.job["unresolved"] and world.attempts == []


def test_a_person_may_resume_a_job_whose_node_was_mended_by_hand(world: World) -> None:
    world.start("isolate_node", {"node_id": SICK, "reason": "inspect the cables"}, "isolate")
    world.run()
    assert world.job["unresolved"]
    world.scheduler.state.nodes["demo-1"].isolated = None
    assert resume_by_hand(world)[0] is Execution.SUCCEEDED
    world.assert_healed(replaced=0, resumed=1)


def test_a_job_that_has_come_to_its_end_is_not_resumed(world: World) -> None:
    world.gw.jobs.completed(JOB)
    assert "come to its own end" in resume_by_hand(world)[1]


# --- any effect may be the last one, and everything comes twice --------------------------------------


def starved(world: World) -> None:
    queue_another(world)
    starve(world, 5400)
    fall_off(world)
    world.run(6 * 3600)


def by_itself(world: World) -> None:
    no_more_steps(world)
    crash(world)


def falls_back(world: World) -> None:
    for _ in range(3):
        crash(world, 1)
        world.run()


def gone_for_good(world: World) -> None:
    world.gw.ledger.note_node(SICK, {"gone": True, "state": "terminated"})
    world.lose(SICK, tell=False)
    crash(world, -6)
    world.start("heal_node", {"node_id": SICK, "action": "replace", "reason": "the job needs it"}, "again")
    world.run()


def by_hand(world: World) -> None:
    world.start("isolate_node", {"node_id": SICK, "reason": "inspect the cables"}, "isolate")
    world.run()
    world.scheduler.state.nodes["demo-1"].isolated = None
    resume_by_hand(world)


STORIES: dict[str, Any] = {
    "by itself": by_itself,
    "falls back": falls_back,
    "gone for good": gone_for_good,
    "by hand": by_hand,
}


def told(world: World) -> list[str]:
    """The subjects of the mails, each once: who dies right after a mail sends it again."""
    return sorted({subject for subject, _ in world.notices.sent})


def end_of(world: World) -> tuple[Any, ...]:
    job = world.job
    running = str(world.scheduler.state.jobs[JOB].state)
    still = (job["pending"], job["unresolved"], job["resume_phase"], bool(job.get("given_up")))
    open_rows = [row["incident_id"] for row in world.gw.ledger.incidents() if "outcome" not in row]
    return still, running, world.isolated, len(world.alive), told(world), open_rows, world.dead_letters


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("story", STORIES)
def test_any_effect_may_be_the_last_one(build: Build, story: str, before: bool) -> None:
    tell = STORIES[story]
    world = build()
    tell(world)
    right, steps, wrong = end_of(world), resume_steps(world), {}
    for number, (function, call) in enumerate(world.effects):
        other = build()
        other.kill_at(number, before=before)
        tell(other)
        other.run()
        if (end_of(other), resume_steps(other)) != (right, steps):
            wrong[f"{number}: {function} {call}"] = (end_of(other), resume_steps(other))
    assert wrong == {}, (right, steps)


@pytest.mark.parametrize("story", STORIES)
def test_every_task_delivered_twice_ends_the_same(build: Build, story: str) -> None:
    world = build()
    STORIES[story](world)
    right = end_of(world), resume_steps(world), len(world.notices.sent)
    other = build()
    other.twice = {
        "isolate_node", "tell_job", "begin_resume", "choose_checkpoint", "requeue_job", "await_steps",
        "close_resume", "close_incident",
    }  # fmt: skip
    STORIES[story](other)
    assert (end_of(other), resume_steps(other), len(other.notices.sent)) == right


# --- an empty list is no proof -----------------------------------------------------------------------


def test_a_replacement_without_the_file_system_is_no_witness(world: World) -> None:
    documents = world.commands.documents
    documents["planaria-list-checkpoints"] = lambda node, parameters: {
        "steps": world.saved if node in NODES else []
    }
    fall_off(world, NODES[0])
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert resume_steps(world) == [30]


def test_one_node_that_sees_nothing_is_not_believed(world: World) -> None:
    documents = world.commands.documents
    documents["planaria-list-checkpoints"] = lambda node, parameters: {
        "steps": [] if node == NODES[0] else world.saved
    }
    crash(world)
    assert resume_steps(world) == [30]


def test_a_job_that_has_saved_a_step_is_not_started_from_step_0(world: World) -> None:
    saved = {"job_id": JOB, "step": 35}
    world.send(events.agent(NODES[0], "Planaria Checkpoint Saved", world.now, **saved))
    world.saved = []
    crash(world)
    assert world.attempts == [] and world.job["saved_step"] == 35
    assert "saved step 35 before, and now no checkpoint is there" in world.notices.sent[0][1]
    assert "docs/runbooks/no-checkpoint.md" in world.notices.sent[0][1]


# --- what waits for a node that nobody heals ---------------------------------------------------------


def test_a_job_that_fails_while_a_node_of_it_is_not_healed_is_told_of(world: World) -> None:
    world.gw.jobs.write(JOB, {("unresolved", SICK): "its incident ended"})
    world.scheduler.end_ranks(JOB, 1, 0)
    wait(world, 130)
    assert world.attempts == []
    [(subject, text)] = world.notices.sent
    assert "waits too long" in subject and f"{SICK}: its incident ended" in text
    assert resume_by_hand(world)[0] is Execution.SUCCEEDED


def test_a_refused_requeue_lets_the_nodes_go(world: World) -> None:
    other = queue_another(world)
    fall_off(world)
    world.run(until=lambda: bool(world.launched))
    world.scheduler.state.foreign_isolate("demo-3", "maintenance", by="bob")
    world.run()
    world.scheduler.state.tick(world.now)
    assert world.job["resume_phase"] == "ESCALATED" and other.state is JobState.RUNNING


def test_two_jobs_that_are_stopped_together_do_not_hold_a_node_against_each_other(world: World) -> None:
    world.gw.jobs.register("bert", ["demo-1", "demo-9"], [SICK, "i-0ffffffffffffffff"], {"attempt": 1})
    world.scheduler.state.submit_job("bert", 1, 1, {})
    world.gw.ledger.note_node(SICK, {"stopped_jobs": ["bert", JOB]})
    incident = {"incident_id": f"{SICK}-1", "node_id": SICK, "session": 1}
    for job in ("bert", JOB):
        survivors.hold_survivors(world.gw, {"incident": incident}, job)
    held = {r.job: r.nodes for r in world.scheduler.requests if isinstance(r, Hold)}
    assert held == {"bert": ("demo-1", "demo-9"), JOB: ("demo-0", "demo-2", "demo-3")}


def test_a_superseded_incident_is_settled_by_what_its_successor_came_to(world: World) -> None:
    """The job waits for the predecessor still; the successor was cancelled, and nothing was taken."""
    ledger, jobs = world.gw.ledger, world.gw.jobs
    first, second = f"{SICK}-1000", f"{SICK}-2000"
    jobs.wait_for(JOB, SICK, first)
    ledger.note_node(SICK, {"session": 2000, "phase": "CANCELLED", "isolation": {"mark": "old", "at": 1.0}})
    ledger.note_incident(
        first, {"incident_id": first, "outcome": "SUPERSEDED", "node_id": SICK, "session": 1000}
    )
    ledger.note_incident(
        second, {"incident_id": second, "outcome": "CANCELLED", "node_id": SICK, "session": 2000}
    )
    world.sweep()
    assert (world.job["pending"], world.job["unresolved"]) == ({}, {})
