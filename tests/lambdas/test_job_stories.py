"""Whole stories of a job: it is resumed once, from the right step, and never lost."""

from typing import Any

import pytest

from planaria.core.incident import Phase
from planaria.core.ports import Execution
from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.test_node_stories import SICK, ask_reboot, entered, fall_off, report_well
from tests.lambdas.world import JOB, NODES, World, cluster, stub

OTHER = NODES[2]


def hold_the_list(world: World) -> Any:
    """The list of checkpoints stays out; call the result to let it answer."""
    documents = world.commands.documents
    listed = documents["planaria-list-checkpoints"]
    documents["planaria-list-checkpoints"] = lambda node, parameters: None
    return lambda: documents.update({"planaria-list-checkpoints": listed})


def test_a_crashed_process_resumes_the_job_and_touches_no_node(world: World) -> None:
    world.scheduler.end_ranks(JOB, -9, 2)
    world.run()
    world.assert_healed(replaced=0, resumed=1)
    assert world.incidents == [] and world.fleet.calls == []
    [own] = world.gw.ledger.incidents()
    assert (own["incident_id"], own["outcome"], own["action"]) == ("resume-gpt-2", "HEALED", "MONITOR")
    assert set(world.timeline("resume-gpt-2")) >= {"detected", "triaged", "job_resumed", "first_new_step"}


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_triage_killed_while_it_opens_a_resume_still_gives_it_an_incident(world: World, nth: int) -> None:
    world.kill("triage", "table.write", nth=nth)
    world.scheduler.end_ranks(JOB, -9, 2)
    world.run()
    world.assert_healed(replaced=0, resumed=1)
    assert [row["outcome"] for row in world.gw.ledger.incidents()] == ["HEALED"]


def test_exits_of_the_survivors_before_the_node_fault_become_the_nodes_incident(world: World) -> None:
    world.scheduler.end_ranks(JOB, -6, 0)
    world.run(1)
    assert world.job["resume_phase"] == "CLAIMED"  # it settles first: a node fault may be behind it
    fall_off(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    outcomes = {row["incident_id"]: row["outcome"] for row in world.gw.ledger.incidents()}
    assert outcomes.pop("resume-gpt-2") in ("CANCELLED", "SUPERSEDED")
    assert list(outcomes.values()) == ["HEALED"]


@pytest.mark.parametrize("nth", range(1, 9))
@pytest.mark.parametrize("function", ["begin_resume", "close_resume"])
def test_a_resume_that_stands_down_leaves_no_incident_open(world: World, function: str, nth: int) -> None:
    """It dies on its way; once its row is closed nobody would come back for its incident."""
    world.scheduler.end_ranks(JOB, -6, 0)
    world.run(1)
    world.kill(function, "table.write", nth=nth)
    fall_off(world)
    world.run()
    world.run()
    assert len(world.launched) == 1 and str(world.scheduler.state.jobs[JOB].state) == "RUNNING"
    assert [row["incident_id"] for row in world.gw.ledger.incidents() if not row.get("outcome")] == []


def test_exits_after_the_node_fault_open_nothing(world: World) -> None:
    fall_off(world)
    world.scheduler.end_ranks(JOB, -6, 0, 2)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert len(world.gw.ledger.incidents()) == 1


def test_exits_that_arrive_after_the_resume_are_stale(world: World) -> None:
    fall_off(world)
    world.run()
    [outcome] = world.judge(events.job_exit(NODES[0], JOB, 1, 0, -15, world.now - 20))
    assert outcome["outcome"] == "STALE"
    world.run()
    world.assert_healed(replaced=1, resumed=1)


def test_a_resume_that_fails_before_its_first_step_is_followed_by_the_next(world: World) -> None:
    world.steps = False
    world.scheduler.end_ranks(JOB, -9, 2)
    world.run(until=lambda: world.attempts == [2])
    world.steps = True
    world.scheduler.end_ranks(JOB, -9, 3)
    world.run()
    world.assert_healed(replaced=0, resumed=2)


def test_two_nodes_of_one_job_at_once_are_resumed_once(world: World) -> None:
    fall_off(world)
    fall_off(world, OTHER)
    world.run()
    world.assert_healed(replaced=2, resumed=1)
    assert world.ends == ["HEALED", "HEALED"]


@pytest.mark.parametrize("nth", range(2, 9))
def test_triage_killed_before_the_job_hears_of_its_second_node(world: World, nth: int) -> None:
    """The claim stands and the note in the job's `pending` is missing: the job must wait for it too."""
    fall_off(world)
    world.run(until=lambda: bool(world.launched))
    world.kill("triage", "table.write", nth=nth)
    fall_off(world, OTHER)
    world.run()
    world.run()
    world.assert_healed(replaced=2, resumed=1)


def test_two_nodes_one_after_the_other_are_resumed_once(world: World) -> None:
    fall_off(world)
    world.at(10, lambda: fall_off(world, OTHER))
    world.run()
    world.assert_healed(replaced=2, resumed=1)


def test_the_first_of_two_told_again_late_does_not_resume_the_job_again(world: World) -> None:
    """Step Functions lost the answer and asks again, when the other node has resumed the job."""
    invoke, lost = world.driver.invoke, list[Any]()

    def forgetful(function: str, payload: dict[str, Any]) -> Any:
        answer = invoke(function, payload)
        if function == "tell_job" and not lost:
            lost.append(answer)
            raise TimeoutError("the answer got lost")
        return answer

    world.driver.invoke = forgetful
    fall_off(world)
    fall_off(world, OTHER)
    world.run()
    world.assert_healed(replaced=2, resumed=1)


def test_a_second_node_that_fails_during_the_resume_calls_no_person(world: World) -> None:
    answer = hold_the_list(world)
    fall_off(world, OTHER)
    world.run(until=lambda: entered(world, "Wait to choose", "resume_job"))
    fall_off(world)
    world.run(until=lambda: len(world.launched) == 2)
    answer()
    world.run()
    assert world.notices.sent == []
    assert world.job["state"] == "RUNNING" and world.ends == ["HEALED", "HEALED"]


def test_a_node_rebooted_during_the_resume_does_not_lose_the_job(world: World) -> None:
    answer = hold_the_list(world)
    fall_off(world, OTHER)
    world.run(until=lambda: entered(world, "Wait to choose", "resume_job"))
    ask_reboot(world)
    world.run(until=lambda: entered(world, "Reboot"))
    answer()
    world.run(2000)
    assert str(world.scheduler.state.jobs[JOB].state) == "RUNNING"


def test_a_job_that_died_while_its_node_was_suspected_is_resumed_after_the_all_clear(world: World) -> None:
    world.scheduler.reachable = False
    ask_reboot(world)
    world.scheduler.end_ranks(JOB, -9, 0)
    world.run(1)
    world.scheduler.reachable = True
    report_well(world)
    world.run()
    assert world.ends == ["CANCELLED"]
    assert str(world.scheduler.state.jobs[JOB].state) == "RUNNING"


def test_an_execution_of_the_resume_that_dies_is_followed_by_another(world: World) -> None:
    hold = hold_the_list(world)
    fall_off(world)
    world.run(until=lambda: entered(world, "Wait to choose", "resume_job"))
    world.abort(next(arn for arn in world.driver.records if "resume" in arn))
    hold()
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.job["resume_number"] == 3


def test_sweep_does_not_restart_a_resume_that_ends_while_it_looks(world: World) -> None:
    fall_off(world)
    world.run(until=lambda: world.attempts == [2] and bool(world.job.get("waiting")))

    def ends_now(arn: str) -> Execution:
        if "resume" in arn:
            world.gw.jobs.close_resume(JOB, 2, Phase.HEALED, "", world.now)
            return Execution.SUCCEEDED
        return Execution(state(arn))

    state = stub(world.workflows, "state", ends_now)
    world.sweep()
    stub(world.workflows, "state", state)
    world.run()
    assert world.attempts == [2]


def test_a_resume_that_was_claimed_and_never_started_is_started_by_sweep(world: World) -> None:
    world.kill("triage", "workflows.start", before=True)
    world.scheduler.end_ranks(JOB, -9, 2)
    world.run(100, until=lambda: world.attempts == [2])
    assert world.attempts == [2]


def test_a_job_whose_last_settle_opened_no_resume_is_resumed_by_sweep(world: World) -> None:
    """One node is replaced; the other, the last one pending, turns out to be well."""
    invoke = world.driver.invoke

    def slow(function: str, payload: dict[str, Any]) -> Any:
        if function == "isolate_node" and payload["incident"]["node_id"] == OTHER:
            return {"result": "WAIT", "reason": "", "carry": {}}
        return invoke(function, payload)

    world.driver.invoke = slow
    fall_off(world)
    ask_reboot(world, OTHER)
    world.run(until=lambda: "HEALED" in world.ends)
    assert world.attempts == [] and list(world.job["pending"]) == [OTHER]
    report_well(world, OTHER)
    world.run()
    world.assert_healed(replaced=1, resumed=1)


def test_a_job_that_crashes_again_and_again_ends_with_a_person(build: Build) -> None:
    world = build(cluster(max_resumes=3))
    for _ in range(4):
        assert world.job.get("resume_phase") != "ESCALATED"
        world.scheduler.end_ranks(JOB, 1, 0)
        world.run()
    assert (world.job["resume_phase"], world.attempts) == ("ESCALATED", [2, 3, 4])
    [(subject, text)] = world.notices.sent
    assert "job gpt needs you" in subject and "policy.max_resumes is 3" in text


def test_a_refused_requeue_ends_with_a_person(world: World) -> None:
    world.scheduler.end_ranks(JOB, -9, 2)
    world.scheduler.state.foreign_isolate("demo-3", "maintenance", by="bob")
    world.run()
    assert world.job["resume_phase"] == "ESCALATED"
    assert "demo-3 is isolated: maintenance" in world.notices.sent[0][1]


def test_without_any_checkpoint_the_job_starts_from_step_0_and_says_so(world: World) -> None:
    world.saved = []
    fall_off(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.scheduler.state.jobs[JOB].resume_step == -1
    assert "no checkpoint was completed yet" in world.incidents[0]["resume_step_reason"]


@pytest.mark.parametrize("state", ["corrupt", "foreign"])
def test_with_damaged_checkpoints_alone_a_person_decides(world: World, state: str) -> None:
    world.saved = [{"step": 30, "state": state, "reason": "a hash differs"}]
    fall_off(world)
    world.run(30)
    assert world.attempts == [] and world.job["resume_phase"] == "ESCALATED"
    [(_, text)] = world.notices.sent
    assert "a hash differs" in text


def test_a_partial_checkpoint_is_passed_over(world: World) -> None:
    world.saved.insert(0, {"step": 40, "state": "partial", "reason": "no commit marker"})
    fall_off(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.scheduler.state.jobs[JOB].resume_step == 30


def test_a_job_that_once_had_checkpoints_is_not_restarted_from_step_0(world: World) -> None:
    fall_off(world)
    world.run()
    world.saved = []
    world.scheduler.end_ranks(JOB, -9, 0)
    world.run()
    assert world.attempts == [2] and "not started from step 0" in world.notices.sent[0][1]


def test_a_resume_that_makes_no_step_ends_with_a_person(world: World) -> None:
    world.steps = False
    world.scheduler.end_ranks(JOB, -9, 2)
    world.run(4000)
    assert world.job["resume_phase"] == "ESCALATED"
    assert "made no step" in world.notices.sent[0][1]


def test_a_person_resumes_a_job_in_the_console(world: World) -> None:
    world.scheduler.state.foreign_isolate("demo-3", "maintenance", by="bob")
    world.scheduler.end_ranks(JOB, -9, 2)
    world.run()
    world.scheduler.state.nodes["demo-3"].isolated = None
    world.notices.sent.clear()
    arn = world.start("resume_job", {"job_id": JOB, "reason": "the maintenance is over"})
    world.run()
    assert world.workflows.executions[arn] is Execution.SUCCEEDED
    world.assert_healed(replaced=0, resumed=2)


def test_a_job_that_the_nodes_row_does_not_name_keeps_its_membership(world: World) -> None:
    world.gw.ledger.note_node(SICK, {"job_id": ""})
    fall_off(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
