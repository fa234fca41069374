"""Sweep: what got lost is made good within two minutes, and nothing healthy is disturbed."""

import dataclasses
from typing import Any

import pytest

from planaria.core import tags
from planaria.core.errors import PermanentError, PlanariaError, TransientError
from planaria.core.ports import Execution, InstanceStatus, StatusEvent
from planaria.core.table import Conflict
from planaria.core.wanted import lower
from tests.lambdas.conftest import Build
from tests.lambdas.test_node_stories import SICK, entered, fall_off
from tests.lambdas.world import NODES, World, cluster, nothing_answers, stub

STATES = ["Begin", "Isolate", "Launch", "Wait for the node", "Admit", "Tell the job", "Retire", "Close"]
FUNCTIONS = {
    "Begin": "begin_incident", "Isolate": "isolate_node", "Launch": "launch_replacement",
    "Wait for the node": "await_node", "Admit": "admit_node", "Tell the job": "tell_job",
    "Retire": "retire_node", "Close": "close_incident",
}  # fmt: skip


def abort_in(world: World, state: str, wait: float = 0.0) -> float:
    """Stop the healing execution while this Task fails and waits for its retry; the moment of that."""
    invoke, tried = world.driver.invoke, list[str]()

    def fails(function: str, payload: dict[str, Any]) -> Any:
        if function == FUNCTIONS[state] and len(tried) < 4:
            tried.append(function)
            raise RuntimeError("throttled")
        return invoke(function, payload)

    world.driver.invoke = fails
    fall_off(world)
    world.run(until=lambda: entered(world, state))
    world.driver.invoke = invoke
    world.run(wait)
    [arn] = [arn for arn in world.driver.running if "heal" in arn]
    world.abort(arn)
    return world.now


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("told", [True, False])
def test_an_execution_stopped_in_the_middle_is_restarted(world: World, state: str, told: bool) -> None:
    world.status_changes = told
    at = abort_in(world, state)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["HEALED"] and world.node(SICK)["attempt"] == 2
    assert world.incidents[0]["closed_at"] - at < 120


def test_an_execution_stopped_after_the_job_went_on_does_not_stop_the_job(world: World) -> None:
    world.status_changes = False
    abort_in(world, "Retire", wait=1.5)
    world.run(4)
    assert (world.job.get("first_step") or {}).get("attempt") == 2
    world.run()
    world.assert_healed(replaced=1, resumed=1)


def test_an_execution_that_dies_again_and_again_ends_with_a_person(build: Build) -> None:
    world = build(cluster(max_attempts=3))
    world.boots = False
    fall_off(world)
    for number in range(1, 4):
        world.run(until=lambda n=number: len(world.driver.running) == 1 and len(world.driver.records) == n)  # type: ignore[misc]
        world.run(until=lambda: bool(world.node(SICK).get("replacement_id")))
        world.abort(world.driver.running[0])
    world.run()
    assert world.ends == ["ESCALATED"] and len(world.launched) == 1
    [(_, text)] = world.notices.sent
    assert "its execution died 3 times" in text


def test_when_sweep_gives_up_the_unused_replacement_is_given_back(build: Build) -> None:
    world = build(cluster(max_attempts=1))
    world.boots = False
    fall_off(world)
    world.run(until=lambda: bool(world.node(SICK).get("replacement_id")))
    world.abort(world.driver.running[0])
    world.run()
    assert world.ends == ["ESCALATED"]
    assert world.terminated == world.launched


def test_a_fresh_claim_is_given_time_to_start(world: World) -> None:
    world.kill("triage", "workflows.start", before=True, times=9)
    fall_off(world)
    world.clock.advance(5)
    world.sweep()
    assert world.workflows.executions == {}
    world.clock.advance(20)
    world.sweep()
    assert len(world.workflows.executions) == 1


def test_two_sweeps_at_once_start_one_attempt(world: World) -> None:
    fall_off(world)
    world.run(until=lambda: entered(world, "Wait for the node"))
    world.workflows.executions = dict.fromkeys(world.workflows.executions, Execution.ABORTED)

    def meanwhile(arn: str) -> Execution:
        stub(world.workflows, "state", state)
        world.sweep()
        return Execution(state(arn))

    state = stub(world.workflows, "state", meanwhile)
    world.sweep()
    assert world.node(SICK)["attempt"] == 2
    assert [arn.rpartition("-")[2] for arn in world.workflows.executions] == ["1", "2"]


def test_a_live_execution_is_left_alone(world: World) -> None:
    world.boots = False
    fall_off(world)
    world.run(600)
    assert len(world.driver.records) == 1 and len(world.launched) == 1


def test_one_bad_row_does_not_keep_the_others_from_being_looked_at(world: World) -> None:
    for node in NODES[1:3]:
        world.kill("triage", "workflows.start", before=True)
        fall_off(world, node)
    world.clock.advance(30)

    def conflict(pk: str, *args: Any, **kwargs: Any) -> Any:
        if NODES[1] in pk:
            raise Conflict(None)
        return write(pk, *args, **kwargs)

    def refused(machine: str, name: str, document: Any) -> Any:
        if NODES[1] in name:
            raise Conflict(None)
        return start(machine, name, document)

    write = stub(world.table, "write", conflict)
    start = stub(world.workflows, "start", refused)
    world.sweep()
    assert [arn for arn in world.workflows.executions if NODES[2] in arn]


def test_new_instances_get_a_row(world: World) -> None:
    new = "i-0bbbbbbbbbbbbbbbb"
    world.fleet.add(new, tags={"planaria:cluster": "demo", "planaria:name": "demo-9"}, zone="use1-az4")
    world.sweep()
    assert (world.node(new)["name"], world.node(new)["zone"]) == ("demo-9", "use1-az4")


def test_an_instance_that_ended_is_reported_once_its_end_is_known(world: World) -> None:
    world.lose(SICK, tell=False)
    world.sweep()
    world.sweep()
    assert [e[2]["instance-id"] for e in world.bus.events] == [SICK, SICK]
    world.run()
    world.sweep()
    assert world.bus.events == []


def test_a_replacement_that_ec2_does_not_list_yet_is_not_lost(world: World) -> None:
    """DescribeInstances is eventually consistent: an instance may be missing for some seconds."""
    world.boots = False
    fall_off(world)
    world.run(until=lambda: bool(world.node(SICK).get("replacement_id")))
    everything = stub(
        world.fleet,
        "cluster",
        lambda: [i for i in everything() if i.node_id in NODES or i.launched_at < world.now - 10],
    )
    world.clock.advance(2)
    world.sweep()
    assert world.bus.events == []


def test_a_status_change_looks_at_claims_and_jobs_only(world: World) -> None:
    stub(world.fleet, "cluster", nothing_answers)
    counts = world.call("sweep", {"detail-type": "Step Functions Execution Status Change"})
    assert {"claims", "undone", "jobs"} <= set(counts) and not {"findings", "held"} & set(counts)


# --- what EC2 says of nodes that run -------------------------------------------------------------------

RETIRE = StatusEvent("instance-event-1", "instance-retirement", "degraded hardware", 1_800_000_000.0)


def check(world: World, node: str = SICK, **facts: Any) -> None:
    world.fleet.checks[node] = InstanceStatus(
        node, **{"system": "ok", "instance": "ok", "ebs": "ok", **facts}
    )


def minute(world: World) -> list[dict[str, Any]]:
    """The details that one sweep puts on the bus."""
    world.clock.advance(60)
    world.bus.events.clear()
    world.sweep()
    return [dict(detail) for _, _, detail in world.bus.events]


def codes(details: list[dict[str, Any]]) -> list[tuple[str, str, bool]]:
    return [(d["instance_id"], d["code"], d["healthy"]) for d in details]


def test_a_scheduled_event_is_put_once_per_state(world: World) -> None:
    check(world, events=(RETIRE,))
    [detail] = minute(world)
    assert (detail["kind"], detail["event_id"]) == ("scheduled_event", "instance-event-1")
    assert detail["starts_at"] == RETIRE.not_before
    assert minute(world) == minute(world) == []
    check(world, events=(dataclasses.replace(RETIRE, description="[Completed] degraded hardware"),))
    assert codes(minute(world)) == [(SICK, "instance-retirement", True)]
    assert minute(world) == []


def test_a_retirement_that_sweep_finds_drains_the_node(world: World) -> None:
    check(world, events=(dataclasses.replace(RETIRE, not_before=world.now + 3600),))
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert [(row["action"], row["rule"]) for row in world.incidents] == [("DRAIN", "scheduled-retirement")]


def test_an_impaired_check_is_put_when_a_second_sweep_sees_it_and_once_more_when_well(world: World) -> None:
    check(world, system="impaired")
    assert [codes(minute(world)) for _ in range(4)] == [
        [], [(SICK, "StatusCheckFailed_System", False)], [], [],
    ]  # fmt: skip
    check(world, system="insufficient-data")
    assert minute(world) == []
    check(world)
    assert codes(minute(world)) == [(SICK, "StatusCheckFailed_System", True)]
    assert minute(world) == []


def test_a_host_that_fails_is_replaced(world: World) -> None:
    check(world, system="impaired")
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert [row["rule"] for row in world.incidents] == ["status-check-system"]


def test_what_the_bus_did_not_take_is_found_again(world: World) -> None:
    check(world, events=(RETIRE,))
    world.kill("sweep", "bus.put", before=True)
    world.sweep()
    assert codes(minute(world)) == [(SICK, "instance-retirement", False)]


def test_a_wave_of_findings_is_spread_over_sweeps(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from lambdas import inventory

    monkeypatch.setattr(inventory, "FINDINGS", 3)
    for node in NODES:
        check(world, node, events=(RETIRE,))
    waves = [codes(minute(world)) for _ in range(3)]
    assert [len(wave) for wave in waves] == [3, 1, 0]
    assert {node for wave in waves for node, _, _ in wave} == set(NODES)


@pytest.mark.parametrize("error", [TransientError("throttled"), PermanentError("denied")])
@pytest.mark.parametrize("call", ["cluster", "statuses"])
def test_an_api_of_ec2_that_fails_does_not_stop_the_rest_of_sweep(
    world: World, error: PlanariaError, call: str
) -> None:
    def fails(*_: Any) -> Any:
        raise error

    world.kill("triage", "workflows.start", before=True)
    fall_off(world)
    check(world, events=(RETIRE,))
    real = stub(world.fleet, call, fails)
    world.clock.advance(30)
    counts = world.call("sweep", {"source": "aws.scheduler"})
    assert counts["claims"] == 1 and counts["findings"] == 0
    assert {"unapproved", "held"} <= set(counts)
    setattr(world.fleet, call, real)
    assert codes(minute(world)) == [(SICK, "instance-retirement", False)]


def test_nodes_that_do_not_run_are_not_asked_about(world: World) -> None:
    world.lose(NODES[0], tell=False)
    asked: list[list[str]] = []

    def statuses(nodes: list[str]) -> Any:
        asked.append(nodes)
        return []

    stub(world.fleet, "statuses", statuses)
    world.sweep()
    assert asked == [NODES[1:]]


# --- what a person does with instances -----------------------------------------------------------------


def tag(world: World, node: str, **marks: str) -> None:
    instance = world.fleet.instances[node]
    world.fleet.instances[node] = dataclasses.replace(instance, tags={**instance.tags, **marks})


def test_the_opt_out_tag_is_noted_when_it_comes_and_when_it_goes(world: World) -> None:
    minute(world)
    assert not world.node(SICK).get("opted_out")
    tag(world, SICK, **{tags.OPT_OUT: "true"})
    minute(world)
    assert world.node(SICK)["opted_out"] is True
    tag(world, SICK, **{tags.OPT_OUT: "false"})
    minute(world)
    assert world.node(SICK)["opted_out"] is False


def test_a_row_that_says_what_ec2_says_is_not_written(world: World) -> None:
    minute(world)
    before = {node: world.node(node) for node in NODES}
    written = len([call for _, call in world.effects if call == "table.write"])
    minute(world)
    assert len([call for _, call in world.effects if call == "table.write"]) == written
    assert {node: world.node(node) for node in NODES} == before


def end(world: World, node: str, state: str, reason: str) -> None:
    """EC2 does this, and no event tells of it."""
    instance = world.fleet.instances[node]
    world.fleet.instances[node] = dataclasses.replace(instance, state=state, state_reason=reason)
    world.scheduler.kill_node(node)


PERSON = "Client.UserInitiatedShutdown"


@pytest.mark.parametrize("size", [3, 4])
def test_the_finding_of_an_ended_node_says_why_and_whether_the_group_misses_it(
    build: Build, size: int
) -> None:
    world = build(cluster(size=size))
    end(world, SICK, "terminated", PERSON)
    assert minute(world) == [
        {"instance-id": SICK, "state": "terminated", "state_reason": PERSON, "below_size": size == 4}
    ]


def test_a_termination_that_a_person_asked_for_is_observed_while_the_group_keeps_its_size(
    build: Build,
) -> None:
    world = build(cluster(size=3), job=False)
    end(world, SICK, "terminated", PERSON)
    world.run(300)
    assert (world.incidents, world.launched) == ([], [])
    assert world.outcomes_of("state_change") == ["OBSERVED"]


def test_a_termination_that_a_person_asked_for_is_made_good_below_the_size(build: Build) -> None:
    world = build(cluster(size=4))
    end(world, SICK, "terminated", PERSON)
    world.run()
    world.assert_healed(replaced=1, resumed=1)


def test_the_size_that_people_have_lowered_counts(build: Build) -> None:
    world = build(cluster(size=4))
    lower(world.table, "workers", 4, "an-earlier-removal", world.now)
    end(world, SICK, "terminated", PERSON)
    [detail] = minute(world)
    assert detail["below_size"] is False


def test_a_node_without_a_group_of_the_cluster_file_misses_nothing(world: World) -> None:
    world.table.write(f"NODE#{SICK}", "NODE", sets={"group": "sold"})
    end(world, SICK, "terminated", PERSON)
    [detail] = minute(world)
    assert detail["below_size"] is False


def test_a_stopped_node_is_told_of_once(world: World) -> None:
    end(world, SICK, "stopping", PERSON)
    [detail] = minute(world)
    assert (detail["instance-id"], detail["state"]) == (SICK, "stopping")
    end(world, SICK, "stopped", PERSON)
    assert minute(world) == []
    assert world.node(SICK)["state"] == "stopped"
