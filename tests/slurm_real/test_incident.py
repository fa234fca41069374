"""Whole incidents on a real Slurm: an event comes in, and in the end the job makes steps on healthy nodes."""

import sys
import time
from pathlib import Path

import pytest

from planaria.core import scheduling
from tests.lambdas import events
from tests.sandbox.heads import eventually
from tests.slurm_real.bench import Bench
from tests.slurm_real.conftest import NAMES
from tests.slurm_real.control import RealWorld, real_world
from tests.slurm_real.jobs import RealJob, submit

pytestmark = pytest.mark.campaign

FOUR = NAMES[:4]
BROKEN = NAMES[2]


def training(bench: Bench, world: RealWorld, folder: Path) -> RealJob:
    job = submit(bench.slurm, folder, 4, steps=True)
    assert job.places() == list(FOUR)
    world.register(job, FOUR)
    eventually(lambda: len(job.steps()) > 15, 30.0, "the job makes steps")
    return job


def assert_healed(world: RealWorld, job: RealJob, capsys: pytest.CaptureFixture[str], began: float) -> None:
    """One incident, HEALED; the job goes on with the same ranks, and nothing of ours is left in Slurm."""
    assert [row.get("outcome") for row in world.incidents] == ["HEALED"], world.incidents
    incident = world.incidents[0]
    timeline = world.timeline(str(incident["incident_id"]))
    for step in ("isolated", "replacement_launched", "node_ready", "job_resumed"):
        assert step in timeline, timeline
    row = world.job
    assert (row["state"], row["attempt"], row["pending"], row["unresolved"]) == ("RUNNING", 2, {}, {})
    assert BROKEN in row["names"] and world.holders[BROKEN] in row["nodes"].values()
    job.wait_for_start(2)
    assert job.places() == list(FOUR)
    assert job.steps()[-1]["start"] == 1
    resumed_at = next(step for step in job.steps() if step["start"] == 1)
    assert resumed_at["step"] > 1, "not from the beginning"
    states = world.bench.ask(scheduling.NodeQuery(NAMES))
    assert {name: entry["state"] for name, entry in states.items()} == {
        name: "ALLOCATED" if name in FOUR else "IDLE" for name in NAMES
    }
    assert {entry["reason"] for entry in states.values()} == {""}
    eventually(
        lambda: "No reservations" in world.bench.slurm.run("scontrol", "show", "reservation"),
        90.0,
        "the hold has ended",
    )
    assert world.notices.sent == []
    assert not world.dead_letters
    with capsys.disabled():
        seconds = resumed_at["at"] - began
        sys.stderr.write(f"\nwhole incident: event to first new step {seconds:.1f} s, {timeline}\n")


def test_an_instance_that_ec2_ends_is_replaced_and_its_job_goes_on(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with real_world(bench, NAMES) as world:
        job = training(bench, world, tmp_path)
        began = time.time()
        world.lose(world.node_ids[BROKEN])
        world.run(150.0, until=world.has_ended)
        assert_healed(world, job, capsys, began)


def test_a_gpu_that_falls_off_the_bus_is_replaced_while_its_node_still_answers(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its ranks die at once, so the job fails by itself before anybody has judged the fault."""
    with real_world(bench, NAMES) as world:
        job = training(bench, world, tmp_path)
        began, node = time.time(), world.node_ids[BROKEN]
        job.tell(2, 1)
        world.at(0.5, lambda: world.send(events.xid(node, 79, world.now)))
        world.run(150.0, until=world.has_ended)
        assert_healed(world, job, capsys, began)


def test_a_node_that_slurm_itself_has_drained_is_rebooted_and_works_again(bench: Bench) -> None:
    """From Slurm's own words, which sweep asks for, to the readmission; an operator's drain stays."""
    with real_world(bench, NAMES) as world:
        for name, reason in ((BROKEN, "Kill task failed"), (NAMES[0], "Kill task failed, says ada")):
            bench.slurm.run("scontrol", "update", f"nodename={name}", "state=drain", f"reason={reason}")
        for second in range(6):  # in place of one sweep in a minute
            world.at(float(second), lambda: setattr(world, "_next_sweep", world.now))
        world.run(150.0, until=world.has_ended)
        [incident] = world.incidents
        assert (incident["outcome"], incident["rule"]) == ("HEALED", "slurm-kill-task-failed")
        assert ("reboot", world.node_ids[BROKEN]) in world.fleet.calls and world.launched == []
        states = bench.ask(scheduling.NodeQuery(NAMES))
        assert (states[BROKEN]["state"], states[BROKEN]["reason"]) == ("IDLE", "")
        assert states[NAMES[0]]["reason"] == "Kill task failed, says ada"
        assert bench.ask(scheduling.NodeQuery(())) == {}


def test_a_job_that_fails_by_itself_touches_no_node(bench: Bench, tmp_path: Path) -> None:
    """What its agents report of its ranks blames the job alone, however the job goes on."""
    with real_world(bench, NAMES) as world:
        job = training(bench, world, tmp_path)
        job.tell(1, 3)
        eventually(lambda: job.facts()["JobState"] == "FAILED", 30.0, "the job has failed")
        for rank, code in ((1, 3), (0, -9), (2, -9), (3, -9)):
            node = world.node_ids[FOUR[rank]]
            world.send(events.job_exit(node, job.job_id, 1, rank, code, world.now))
        world.run(60.0, until=lambda: bool(world.driver.records) and not world.driver.running)
        assert world.driver.records, "the failure was heard"
        assert world.incidents == []
        assert world.launched == []
        states = bench.ask(scheduling.NodeQuery(NAMES))
        assert {entry["state"] for entry in states.values()} <= {"IDLE", "ALLOCATED"}
        assert {entry["reason"] for entry in states.values()} == {""}
