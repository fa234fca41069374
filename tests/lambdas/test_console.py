"""Starts from the console: the same claim, breaker and ledger; wrong documents end with one sentence."""

from typing import Any

import pytest

from planaria.core.ports import Execution
from planaria.core.scheduling import Lost, Stop
from tests.lambdas.test_node_stories import SICK, entered, fall_off
from tests.lambdas.world import JOB, NODES, World

HEAL = {"node_id": SICK, "reason": "GPU 3 is slow"}


def cause(world: World, machine: str, document: Any) -> str:
    """Why the execution failed."""
    arn = world.start(machine, document)
    world.run()
    assert world.workflows.executions[arn] is Execution.FAILED
    assert len([call for call in world.driver.records[arn].states if call == "Begin"]) == 1
    return world.driver.records[arn].cause


def test_replace(world: World) -> None:
    world.start("heal_node", {**HEAL, "action": "replace"})
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert (world.incidents[0]["rule"], world.incidents[0]["reason"]) == ("console", "GPU 3 is slow")
    assert world.scheduler.state.jobs[JOB].resume_step == 35  # the node still worked, so it saved first


def test_reboot(world: World) -> None:
    world.start("heal_node", {**HEAL, "action": "reboot"})
    world.run()
    world.assert_healed(replaced=0, resumed=1)
    assert world.fleet.calls == [("reboot", SICK)]


def test_remove_of_a_node_that_a_job_needs_is_refused(world: World) -> None:
    assert "runs job gpt, which needs it" in cause(world, "heal_node", {**HEAL, "action": "remove"})
    assert world.incidents == [] and world.isolated == {}


def test_remove_of_a_spare_node_terminates_it_and_launches_nothing(world: World) -> None:
    spare = "i-0bbbbbbbbbbbbbbbb"
    world.add_node("demo-9", spare, "10.0.1.9")
    world.start("heal_node", {"node_id": spare, "action": "remove"})
    world.run()
    assert (world.ends, world.terminated, world.launched) == (["RETIRED"], [spare], [spare])
    assert spare not in world.alive


def test_isolate_empties_the_node_and_does_nothing_else(world: World) -> None:
    world.start("isolate_node", {"node_id": SICK, "reason": "inspect the cables"})
    world.run(until=lambda: world.ends == ["RETIRED"])
    assert list(world.isolated) == ["demo-1"] and world.fleet.calls == []
    assert world.scheduler.state.jobs[JOB].live_ranks == []


def test_the_job_of_an_isolated_node_waits_for_a_replacement(world: World) -> None:
    world.start("isolate_node", {"node_id": SICK, "reason": "inspect the cables"}, "isolate")
    world.run()
    assert world.attempts == [] and world.notices.sent == []
    assert SICK in {**world.job["pending"], **world.job["unresolved"]}
    world.start("launch_replacement", {"node_id": SICK, "reason": "go on"}, "launch")
    world.run()
    assert world.ends == ["RETIRED", "HEALED"] and SICK in world.alive  # kept for the inspection
    assert str(world.scheduler.state.jobs[JOB].state) == "RUNNING"


def test_an_isolated_node_that_is_readmitted_by_hand_is_watched_again(world: World) -> None:
    world.start("isolate_node", {"node_id": SICK, "reason": "inspect the cables"})
    world.run(until=lambda: world.ends == ["RETIRED"])
    world.scheduler.state.nodes["demo-1"].isolated = None
    world.clock.advance(600)
    fall_off(world)
    world.run()
    assert world.ends == ["RETIRED", "HEALED"]


@pytest.mark.parametrize("machine", ["isolate_node", "launch_replacement"])
def test_an_order_whose_execution_dies_goes_on_as_the_same_order(world: World, machine: str) -> None:
    """The person wanted the node isolated, or its place filled: nothing may terminate it."""
    order = {"node_id": SICK, "reason": "inspect the cables"}
    arn = world.start("isolate_node", order, "isolate")
    if machine == "isolate_node":
        world.commands.documents["planaria-checkpoint-now"] = lambda node, parameters: None
        world.run(until=lambda: entered(world, "Wait to isolate", machine))
        world.commands.documents["planaria-checkpoint-now"] = lambda node, parameters: {"step": 35}
    else:
        world.run(until=lambda: world.ends == ["RETIRED"])
        arn = world.start(machine, order, "launch")
        world.run(until=lambda: entered(world, "Wait for the node", machine))
    world.abort(arn)
    world.run()
    assert SICK in world.alive and world.terminated == []
    assert len(world.launched) == (0 if machine == "isolate_node" else 1)


def test_launch_for_a_node_in_service_is_refused(world: World) -> None:
    assert "still in service; isolate it first" in cause(world, "launch_replacement", HEAL)


@pytest.mark.parametrize("machine", ["heal_node", "launch_replacement"])
def test_a_node_that_was_replaced_already_is_refused(world: World, machine: str) -> None:
    fall_off(world)
    world.run()
    asked = len(world.scheduler.requests)
    arn = world.start(machine, {**HEAL, "action": "replace"} if machine == "heal_node" else HEAL)
    world.run(2000)
    assert not any(isinstance(r, Lost | Stop) for r in world.scheduler.requests[asked:])
    assert world.workflows.executions[arn] is Execution.FAILED
    world.assert_healed(replaced=1, resumed=1)


def test_an_order_for_a_node_under_repair_is_refused(world: World) -> None:
    fall_off(world)
    world.run(until=lambda: entered(world, "Wait for the node"))
    arn = world.start("heal_node", {**HEAL, "action": "reboot"})
    world.run()
    assert "has an active incident already" in world.driver.records[arn].cause
    world.assert_healed(replaced=1, resumed=1)


def test_an_order_beyond_the_breaker_is_refused_and_nothing_stays_claimed(world: World) -> None:
    world.limit_breaker(1)
    fall_off(world)
    assert "breaker: 1 of 1" in cause(world, "heal_node", {"node_id": NODES[2], "action": "replace"})
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["HEALED", "CANCELLED"]


def test_an_order_whose_first_try_died_after_the_claim_meets_the_breaker(world: World) -> None:
    world.limit_breaker(1)
    world.gw.breaker.admit("another", "console", world.now)
    world.kill("begin_incident", "table.write")
    world.start("heal_node", {**HEAL, "action": "replace"})
    world.run()
    assert world.launched == [] and world.ends == ["CANCELLED"]


def touched(world: World) -> list[tuple[str, str]]:
    """What was changed outside, but for sweep's own notes of what it has seen."""
    return [effect for effect in world.effects if effect[0] != "sweep"]


@pytest.mark.parametrize(
    ("machine", "document", "words"),
    [
        ("heal_node", "replace it", ["must be a JSON object"]),
        ("heal_node", [], ["must be a JSON object"]),
        ("heal_node", {}, ["node_id must be an EC2 instance id", "got None"]),
        ("heal_node", {"node_id": 5, "action": "replace"}, ["node_id must be"]),
        ("heal_node", {"node_id": "demo-1", "action": "replace"}, ["node_id must be", "'demo-1'"]),
        ("heal_node", {"node_id": SICK}, ["action must be one of reboot, remove, replace"]),
        ("heal_node", {"node_id": SICK, "action": "explode"}, ["action must be one of", "'explode'"]),
        ("heal_node", {"node_id": SICK, "action": "replace", "reasn": ""}, ["'reasn' is not known"]),
        ("heal_node", {"node_id": SICK, "action": "replace", "reason": 5}, ["reason must be a text"]),
        ("heal_node", {"node_id": SICK, "action": "replace", "reason": "x" * 300}, ["at most 256"]),
        ("isolate_node", {"node_id": SICK, "action": "replace"}, ["action must be one of isolate"]),
        ("launch_replacement", {"node_id": SICK, "action": "reboot"}, ["action must be one of launch"]),
        ("resume_job", {}, ["job_id must be", "got None"]),
        ("resume_job", {"job_id": 5}, ["job_id must be"]),
        ("resume_job", {"job_id": JOB, "step": 5}, ["'step' is not known"]),
    ],
)
def test_a_wrong_document_ends_with_one_sentence(
    world: World, machine: str, document: Any, words: list[str]
) -> None:
    said = cause(world, machine, document)
    assert said.startswith("NotBegun: ") and "\n" not in said
    assert all(word in said for word in [*words, 'a right document is {"']), said
    assert touched(world) == []


@pytest.mark.parametrize(
    ("machine", "document", "words"),
    [
        ("heal_node", {"session": 1}, "node_id"),
        ("heal_node", {"node_id": SICK, "session": "x"}, "session"),
        ("resume_job", {"number": 1}, "job_id"),
        ("resume_job", {"job_id": JOB, "number": "x"}, "number"),
    ],
)
def test_a_document_that_imitates_triages_is_checked_too(
    world: World, machine: str, document: Any, words: str
) -> None:
    said = cause(world, machine, document)
    assert words in said and "a right document is" in said and "Error" not in said


@pytest.mark.parametrize(
    ("machine", "document"),
    [
        ("heal_node", {"node_id": "i-0fffffffffffffff0", "action": "replace"}),
        ("resume_job", {"job_id": "nope"}),
    ],
)
def test_an_unknown_id_ends_with_one_sentence_that_says_where_to_look(
    world: World, machine: str, document: Any
) -> None:
    said = cause(world, machine, document)
    assert "`planaria " in said and str(next(iter(document.values()))) in said
    assert touched(world) == []
