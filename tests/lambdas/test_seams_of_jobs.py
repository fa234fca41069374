"""Where nodes and jobs meet: for what a job waits, for whom nodes are kept, which checkpoint is believed."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from planaria.core.errors import PermanentError
from planaria.core.scheduling import Requeue
from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.test_job_failures import crash, wait
from tests.lambdas.test_node_stories import SICK, ask_reboot, fall_off
from tests.lambdas.test_seams_of_healing import OTHER, meanwhile, second_job
from tests.lambdas.world import JOB, NODES, World, cluster, stub

LIST = "planaria-list-checkpoints"


def running(world: World) -> list[str]:
    return [job for job, row in world.scheduler.state.jobs.items() if str(row.state) == "RUNNING"]


def kept_free(world: World) -> list[str]:
    """The names that the scheduler keeps for the job."""
    hold = world.scheduler.state.jobs[JOB].hold
    return list(hold["nodes"]) if hold else []


def unmounted(world: World, there: Callable[[str], bool]) -> None:
    """These nodes see no checkpoint."""
    real = world.commands.documents[LIST]

    def listed(node: str, parameters: Mapping[str, str]) -> Any:
        return {"steps": []} if there(node) else real(node, parameters)

    world.commands.documents[LIST] = listed


# --- for what a job waits -----------------------------------------------------------------------------


def mended_by_hand(build: Build) -> World:
    """An incident that ended ESCALATED with the node isolated; a person readmits it and starts the job."""

    def refused(*_: object) -> None:
        raise PermanentError("not allowed")

    world = build()
    stub(world.fleet, "reboot", refused)
    ask_reboot(world)
    world.run()
    assert world.ends == ["ESCALATED"] and list(world.job["unresolved"]) == [SICK]
    world.scheduler.state.nodes["demo-1"].isolated = None
    world.start("resume_job", {"job_id": JOB, "reason": "mended"})
    world.run()
    assert (world.job["state"], world.job["unresolved"]) == ("RUNNING", {})
    return world


def test_a_job_waits_for_no_incident_that_has_taken_nothing_from_it(build: Build) -> None:
    """An isolation of weeks ago, which a person has lifted since, is none of the present incident's."""
    world = mended_by_hand(build)
    world.clock.advance(90_000)
    world.scheduler.state.foreign_isolate("demo-1", "cables", "root")
    fall_off(world)
    world.run()
    assert world.ends == ["ESCALATED"] * 2
    assert (world.job["pending"], world.job["unresolved"]) == ({}, {})
    world.scheduler.state.nodes["demo-1"].isolated = None
    crash(world)
    assert world.job["state"] == "RUNNING" and str(world.scheduler.state.jobs[JOB].state) == "RUNNING"


# --- whom the nodes are kept for ----------------------------------------------------------------------


def test_two_jobs_of_one_node_do_not_keep_each_other_off_it(build: Build) -> None:
    """Here a node has room for one of them: it goes on at once, the other one when that has ended."""
    world = build()
    second_job(world)
    fall_off(world)
    world.run(200)
    assert world.ends == ["HEALED"] and running(world) == [OTHER]
    assert not any("is held for" in text for _, text in world.notices.sent)
    world.scheduler.end_ranks(OTHER, 0)
    wait(world, 1200)
    assert running(world) == [JOB] and world.job["state"] == "RUNNING"


def test_what_a_refused_job_kept_free_is_let_go(build: Build) -> None:
    """Somebody drains another node of the job as it is about to start: it waits for a person now."""
    world = build()
    drain = world.scheduler.state.foreign_isolate
    meanwhile(world, Requeue, lambda: drain("demo-3", "cables", "root"))
    fall_off(world)
    world.run(2000)
    assert world.job["resume_phase"] == "ESCALATED" and kept_free(world) == []
    assert "not kept free" in world.notices.sent[0][1]


def test_a_job_that_ends_by_itself_during_a_drain_keeps_nobody_off(build: Build) -> None:
    world = build(cluster(drain="wait", drain_deadline_seconds=600.0))
    world.start("heal_node", {"node_id": SICK, "action": "replace", "reason": "slow"})
    world.run(60)
    world.scheduler.end_ranks(JOB, 0)
    world.run(2000)
    assert world.ends == ["HEALED"] and world.job["state"] == "COMPLETED" and kept_free(world) == []


# --- which checkpoint is believed ---------------------------------------------------------------------


def test_replacements_without_their_file_system_are_not_believed(build: Build) -> None:
    """They have the lowest ranks, but the nodes that ran the job see step 30."""
    world = build()
    unmounted(world, lambda node: node in world.launched)
    for node in NODES[:2]:
        fall_off(world, node)
    world.run(3000)
    world.assert_healed(replaced=2, resumed=1)
    assert world.scheduler.state.jobs[JOB].resume_step == 30


def test_one_nodes_empty_list_is_not_believed(build: Build) -> None:
    world = build()
    unmounted(world, lambda node: node == NODES[0])
    fall_off(world)
    world.run(3000)
    world.assert_healed(replaced=1, resumed=1)
    assert world.scheduler.state.jobs[JOB].resume_step == 30


def told_by_the_incident(world: World) -> None:
    world.interrupt(SICK)


def told_by_the_agent(world: World) -> None:
    detail = {"job_id": JOB, "attempt": 1, "rank": 0, "step": 30}
    world.send(events.agent(NODES[0], "Planaria Checkpoint Saved", world.now - 1, **detail))
    fall_off(world)


@pytest.mark.parametrize("told", [told_by_the_incident, told_by_the_agent])
def test_a_job_that_has_saved_is_not_begun_anew(build: Build, told: Callable[[World], None]) -> None:
    """No node sees any checkpoint, but it is known that there was one: a person is asked."""
    world = build()
    unmounted(world, lambda node: True)
    told(world)
    world.run(3000)
    assert world.attempts == [] and world.ends == ["HEALED"]
    assert "is not started from step 0" in world.notices.sent[0][1]


def test_a_job_that_has_never_saved_begins_at_step_0(build: Build) -> None:
    world = build()
    world.saved = []
    fall_off(world)
    world.run(3000)
    world.assert_healed(replaced=1, resumed=1)
    assert world.scheduler.state.jobs[JOB].resume_step == -1
