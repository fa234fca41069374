"""Whole stories of one node: event in, triage, the real state machine, everything as before."""

import pytest

from planaria.core.errors import CapacityError, PermanentError
from planaria.core.ports import Execution, LaunchRequest
from planaria.core.scheduling import Isolate, Lost, Stop
from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.world import JOB, NODES, World, cluster, stub

SICK = NODES[1]
REBOOT = "Unhealthy", "HMA has detected fault type NvidiaErrorReboot on this node.", "None"
REPLACE = "Unhealthy", "HMA has detected fault type NvidiaErrorTerminate on this node.", "Replace"


def ask_reboot(world: World, node: str = SICK) -> None:
    world.send(events.hyperpod(node, *REBOOT, world.now - 1))


def report_well(world: World, node: str = SICK) -> None:
    world.send(events.hyperpod(node, "Healthy", "The node is healthy.", "None", world.now))


def fall_off(world: World, node: str = SICK) -> None:
    """Xid 79, seen by the agent a second before the event arrives."""
    world.send(events.xid(node, 79, world.now - 1))


def entered(world: World, state: str, machine: str = "heal_node") -> bool:
    return any(state in r.states for r in world.driver.records.values() if r.machine == machine)


def test_a_gpu_that_fell_off_the_bus_is_replaced_and_its_job_resumed(world: World) -> None:
    fall_off(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["HEALED"] and world.terminated == [SICK]
    assert world.scheduler.state.jobs[JOB].resume_step == 30
    steps = set(world.timeline(world.incidents[0]["incident_id"]))
    assert steps >= {"detected", "triaged", "begun", "isolated", "job_stopped", "replacement_launched"}
    assert steps >= {"node_ready", "node_joined", "job_resumed", "first_new_step", "node_retired", "closed"}
    # The other ranks' exits, and EC2's word about the old instance, are known as our own doing.
    assert set(world.outcomes_of("state_change")) == {"COVERED"}
    assert world.outcomes_of("agent").count("OPENED") == 1


def test_a_sick_node_that_needs_a_reboot_keeps_its_instance(world: World) -> None:
    ask_reboot(world)
    world.run()
    world.assert_healed(replaced=0, resumed=1)
    assert world.ends == ["HEALED"]
    assert [call for call in world.fleet.calls if call[0] == "reboot"] == [("reboot", SICK)]


def test_a_spot_interruption_saves_a_checkpoint_within_the_two_minutes(world: World) -> None:
    world.interrupt(SICK)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.commands.calls[0][:2] == ("planaria-checkpoint-now", (SICK,))
    assert float(world.commands.calls[0][2]["deadline"]) <= world.incidents[0]["opened_at"] + 121
    assert world.scheduler.state.jobs[JOB].resume_step == 35  # the emergency checkpoint
    assert "checkpoint_saved" in world.timeline(world.incidents[0]["incident_id"])


def test_an_instance_that_was_terminated_is_declared_lost_and_replaced(world: World) -> None:
    world.lose(SICK)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert any(isinstance(request, Lost) for request in world.scheduler.requests)
    assert world.terminated == [SICK]  # shutting-down is no end yet, so retiring it is right


def test_an_instance_that_vanished_without_an_event_is_found_by_sweep(world: World) -> None:
    world.lose(SICK, tell=False)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.incidents[0]["rule"] == "instance-terminated"


def test_a_node_with_no_job_is_replaced_without_a_resume(build: Build) -> None:
    world = build(job=False)
    fall_off(world)
    world.run()
    assert (world.ends, len(world.launched), world.terminated) == (["HEALED"], 1, [SICK])
    assert not any(isinstance(request, Stop) for request in world.scheduler.requests)


def test_the_same_event_five_times_is_one_incident(world: World) -> None:
    text = events.xid(SICK, 79, world.now - 1)
    for _ in range(4):
        world.send(text)
    world.run(until=lambda: bool(world.launched))
    world.send(text)
    world.run()
    world.send(text)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.counted("DUPLICATE") == 5


def test_other_evidence_joins_the_active_session(world: World) -> None:
    fall_off(world)
    fall_off(world)
    world.send(events.spot(SICK, world.now))
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["HEALED"]


def test_a_stronger_action_supersedes_a_weaker_one(world: World) -> None:
    ask_reboot(world)
    world.run(until=lambda: entered(world, "Wait for the node"))
    world.clock.advance(2)
    fall_off(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["SUPERSEDED", "HEALED"]
    first = next(iter(world.driver.records))
    assert world.workflows.executions[first] is Execution.ABORTED


def test_a_stronger_action_needs_no_second_slot_of_the_breaker(world: World) -> None:
    world.limit_breaker(1)
    ask_reboot(world)
    world.run(until=lambda: entered(world, "Wait for the node"))
    world.clock.advance(2)
    fall_off(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)


@pytest.mark.parametrize("nth", [2, 3, 6])
def test_triage_killed_while_it_supersedes_leaves_no_open_predecessor(world: World, nth: int) -> None:
    ask_reboot(world)
    world.run(until=lambda: entered(world, "Wait for the node"))
    world.clock.advance(2)
    world.kill("triage", "table.write", nth=nth)
    fall_off(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["SUPERSEDED", "HEALED"]


def test_a_superseding_session_takes_over_the_launch(world: World) -> None:
    world.boots = False
    world.send(events.retirement(SICK, world.now))
    world.run(until=lambda: bool(world.node(SICK).get("replacement_id")))
    world.boots = True
    fall_off(world)
    world._boot(world.launched[0])
    world.run()
    world.assert_healed(replaced=1, resumed=1)


def test_a_superseding_session_takes_over_a_launch_that_was_not_recorded_yet(world: World) -> None:
    world.send(events.retirement(SICK, world.now))
    world.kill("launch_replacement", "fleet.launch")
    world.run(until=lambda: bool(world.launched))
    fall_off(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)


def test_someone_elses_drain_is_left_alone_and_the_replacement_given_back(world: World) -> None:
    world.scheduler.state.foreign_isolate("demo-1", "maintenance", by="bob")
    fall_off(world)
    world.run()
    assert world.ends == ["ESCALATED"]
    assert world.isolated == {"demo-1": "maintenance"}
    assert world.terminated == world.launched and SICK in world.alive
    assert world.scheduler.state.jobs[JOB].live_ranks == [0, 1, 2, 3]
    assert (world.job["pending"], world.job["unresolved"]) == ({}, {})
    [(subject, text)] = world.notices.sent
    assert "needs you" in subject and "maintenance" in text and "is NOT isolated by Planaria" in text


def test_a_refused_isolation_does_not_wait_for_capacity(world: World) -> None:
    world.scheduler.state.foreign_isolate("demo-1", "maintenance", by="bob")
    world.fleet.refuse = lambda request: CapacityError("none")
    fall_off(world)
    world.run(600, until=lambda: world.ends == ["ESCALATED"])
    assert world.ends == ["ESCALATED"]


def test_without_capacity_the_next_offering_is_taken(world: World) -> None:
    asked: list[str] = []

    def refuse(request: LaunchRequest) -> CapacityError | None:
        asked.append(request.capacity)
        return CapacityError("none") if request.capacity == "on-demand" else None

    world.fleet.refuse = refuse
    fall_off(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert asked == ["on-demand", "spot"]


def test_capacity_that_comes_an_hour_later_still_heals(build: Build) -> None:
    world = build(cluster(hold_seconds=7200))
    start = world.now
    world.fleet.refuse = lambda request: CapacityError("none") if world.now < start + 3600 else None
    fall_off(world)
    world.run(9000)
    world.assert_healed(replaced=1, resumed=1)
    assert world.terminated == [SICK]


def test_a_launch_that_is_not_allowed_ends_with_a_person_and_an_isolated_node(world: World) -> None:
    world.fleet.refuse = lambda request: PermanentError("UnauthorizedOperation: no")
    fall_off(world)
    world.run()
    assert world.ends == ["ESCALATED"] and world.terminated == []
    assert list(world.isolated) == ["demo-1"] and list(world.job["unresolved"]) == [SICK]
    assert "UnauthorizedOperation" in world.notices.sent[0][1]


def test_a_replacement_that_fails_its_check_is_given_back(world: World) -> None:
    world.check_passes = lambda node: node == SICK
    fall_off(world)
    world.run()
    assert world.ends == ["ESCALATED"]
    assert world.terminated == world.launched
    assert "GPU 3 is missing" in world.notices.sent[0][1]


def test_a_replacement_that_never_reports_is_given_back(world: World) -> None:
    world.boots = False
    fall_off(world)
    world.run(40_000)
    assert world.ends == ["ESCALATED"]
    assert world.terminated == world.launched
    assert "did not come up" in world.notices.sent[-1][1]


def test_a_report_that_the_token_missed_is_seen_by_looking(world: World) -> None:
    """The agent reported, and the answer to the token got lost: the slow fallback finds it."""
    world.kill("triage", "workflows.answer", before=True, times=9)
    fall_off(world)
    world.run(3000)
    assert world.ends == ["HEALED"] and len(world.launched) == 1


def test_when_the_admission_fails_for_good_the_replacement_is_given_back(world: World) -> None:
    world.kill("admit_node", "scheduler.submit", before=True, times=99)
    fall_off(world)
    world.run(2000)
    assert world.ends == ["ESCALATED"]
    assert world.terminated == world.launched


@pytest.mark.parametrize("state", ["Admitted?", "Retire?"])
def test_a_session_that_supersedes_late_does_not_touch_the_replacement(world: World, state: str) -> None:
    """A DRAIN has already put its replacement in the node's place when EC2 ends the old instance."""
    world.send(events.retirement(SICK, world.now))
    world.kill("retire_node", "table.write", before=True, times=3)
    world.run(until=lambda: entered(world, state) and (state == "Admitted?" or world.attempts == [2]))
    world.clock.advance(2)
    world.lose(SICK)
    world.run()
    world.assert_healed(replaced=1, resumed=1)


def test_a_late_fault_of_the_terminated_instance_does_not_touch_its_replacement(world: World) -> None:
    """The old instance logs on until EC2 has really ended it; its name belongs to another one by then."""
    fall_off(world)
    world.run(until=lambda: world.ends == ["HEALED"])
    world.clock.advance(2)
    world.send(events.xid(SICK, 79, world.now))
    world.run()
    world.assert_healed(replaced=1, resumed=1)


def test_a_healthy_report_cancels_before_anything_was_done(world: World) -> None:
    ask_reboot(world)
    report_well(world)
    world.run()
    world.assert_healed(replaced=0, resumed=0)
    assert world.ends == ["CANCELLED"] and world.fleet.calls == []
    assert world.gw.breaker.status(world.now)["removals"] == {}


def test_a_healthy_report_after_the_reboot_changes_nothing(world: World) -> None:
    ask_reboot(world)
    world.run(until=lambda: entered(world, "Wait for the node"))
    report_well(world)
    world.run()
    world.assert_healed(replaced=0, resumed=1)
    assert world.ends == ["HEALED"]


def test_a_healthy_report_of_another_source_cancels_nothing(world: World) -> None:
    fall_off(world)
    report_well(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)


def test_a_cancelled_incident_gives_back_the_replacement_it_has_launched(world: World) -> None:
    world.send(events.hyperpod(SICK, *REPLACE, world.now - 1))
    world.scheduler.reachable = False
    world.run(until=lambda: bool(world.launched))
    world.scheduler.reachable = True
    report_well(world)
    world.run()
    assert len(world.alive) == len(NODES)


def test_an_incident_that_is_cancelled_while_it_isolates_leaves_nothing_isolated(world: World) -> None:
    def and_then_well(request: object) -> str:
        ticket = str(submit(request))
        if isinstance(request, Isolate):
            report_well(world)
        return ticket

    submit = stub(world.scheduler, "submit", and_then_well)
    ask_reboot(world)
    world.run()
    assert world.ends in (["CANCELLED"], ["HEALED"])
    assert world.isolated == {}


def test_a_hung_job_is_stopped_when_its_checkpoint_is_overdue(world: World) -> None:
    world.commands.documents["planaria-checkpoint-now"] = lambda node, parameters: None
    world.send(events.retirement(SICK, world.now))
    world.run(3000)
    world.assert_healed(replaced=1, resumed=1)


def test_a_node_that_ends_while_it_saves_is_not_waited_for(world: World) -> None:
    world.commands.documents["planaria-checkpoint-now"] = lambda node, parameters: None
    world.send(events.retirement(SICK, world.now))
    world.at(10, lambda: world.lose(SICK))
    world.run(100, until=lambda: world.job.get("stopped_attempt") == 1)
    assert world.job.get("stopped_attempt") == 1


def test_a_failed_checkpoint_does_not_hold_up_the_rest(world: World) -> None:
    world.commands.documents["planaria-checkpoint-now"] = lambda node, parameters: OSError("disk full")
    world.interrupt(SICK)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.scheduler.state.jobs[JOB].resume_step == 30


def test_a_node_that_cannot_be_asked_is_isolated_all_the_same(world: World) -> None:
    world.commands.reachable = False
    world.interrupt(SICK)
    world.run(until=lambda: bool(world.launched) and "demo-1" in world.isolated)
    world.commands.reachable = True
    world.run()
    world.assert_healed(replaced=1, resumed=1)


def test_observe_mode_judges_everything_and_touches_nothing(build: Build) -> None:
    world = build(cluster(mode="observe"))
    fall_off(world)
    world.interrupt(NODES[2])
    world.send(events.job_exit(NODES[0], JOB, 1, 0, -9, world.now))
    world.run(100)
    assert world.outcomes_of("agent") + world.outcomes_of("spot_interruption") == ["OPENED"] * 3
    assert world.incidents == [] and world.driver.records == {} and world.fleet.calls == []
    assert world.scheduler.requests == [] and world.commands.calls == [] and world.notices.sent == []
    modes = {row["mode"] for (pk, _), row in world.table._rows.items() if pk.startswith("EVENT#")}
    assert modes == {"observe"}


def test_a_reboot_after_an_escalated_one_can_readmit_its_own_isolation(build: Build) -> None:
    world = build(cluster(escalate_to="REBOOT"))
    world.check_passes = lambda node: False
    ask_reboot(world)
    world.run()
    world.notices.sent.clear()
    world.check_passes = lambda node: True
    world.start("heal_node", {"node_id": SICK, "action": "reboot", "reason": "the GPU is back"})
    world.run()
    world.assert_healed(replaced=0, resumed=1)


def test_a_node_that_a_person_readmitted_is_isolated_again_before_it_is_terminated(build: Build) -> None:
    world = build(cluster(escalate_to="REBOOT"))
    world.check_passes = lambda node: False
    ask_reboot(world)
    world.run()
    world.scheduler.state.nodes["demo-1"].isolated = None  # as our own mail says one may
    world.check_passes = lambda node: True
    asked = len(world.scheduler.requests)
    fall_off(world)
    world.run()
    assert any(isinstance(request, Isolate) for request in world.scheduler.requests[asked:])


def test_a_node_of_a_job_that_the_ledger_does_not_know_heals_too(build: Build) -> None:
    world = build(job=False)
    world.gw.ledger.note_node(SICK, {"job_id": "ghost"})
    fall_off(world)
    world.run(2000)
    assert (world.ends, world.dead_letters) == (["HEALED"], [])
