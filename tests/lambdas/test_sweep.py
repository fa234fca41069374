"""Sweep: what got lost is made good within two minutes, and nothing healthy is disturbed."""

from typing import Any

import pytest

from planaria.core.ports import Execution
from planaria.core.table import Conflict
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
