"""Jobs as users of a real Slurm submit them: with sbatch alone, and with `planaria submit`."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planaria.cli import main, target
from planaria.core import scheduling
from planaria.sandbox.slurm_cluster import SlurmCluster
from planaria.sandbox.slurm_files import SlurmSettings
from tests.lambdas import events
from tests.sandbox.heads import eventually
from tests.slurm_real.bench import Bench
from tests.slurm_real.conftest import NAMES
from tests.slurm_real.control import RealWorld, real_world
from tests.slurm_real.jobs import RANK, RealJob, submit

pytestmark = pytest.mark.campaign

ROOT = Path(__file__).resolve().parents[2]
FOUR = NAMES[:4]
BROKEN = NAMES[2]
Submit = Callable[..., dict[str, Any]]


def row(world: RealWorld, job: RealJob) -> dict[str, Any]:
    return world.gw.jobs.job(job.job_id) or {}


def made(bench: Bench, folder: Path, name: str = "train.sh", launcher: str = "") -> Path:
    """A user's script, whose ranks are those of tests/slurm_real/rank.py."""
    for each in ("do", "ranks"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    (folder / "do/steps").touch()
    script = folder / name
    launcher = launcher or f"{sys.executable} -m planaria.slurm.in_job srun --kill-on-bad-exit=1"
    script.write_text(
        "#!/bin/bash\n#SBATCH --exclusive --ntasks-per-node=1 --requeue --open-mode=append\n"
        f"export PYTHONPATH={ROOT}\n{launcher} {sys.executable} -S {RANK} {folder}\n"
    )
    return script


@pytest.fixture
def planaria_submit(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Submit:
    """(world, bench, *words) -> what `planaria submit --json *words` printed."""

    def run(world: RealWorld, where: Bench, *words: str) -> dict[str, Any]:
        for name, value in where.slurm.environment.items():
            monkeypatch.setenv(name, value)
        for name in [name for name in os.environ if name.startswith("PLANARIA_JOBS")]:
            monkeypatch.delenv(name)
        there = target.Target("demo", world.gw, lambda service: None)
        monkeypatch.setattr(target, "_aws", lambda name: there)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        status = main(["submit", "--json", "--jobs", str(tmp_path / "kept"), *words])
        printed = capsys.readouterr()
        assert status == 0, printed.err
        told: dict[str, Any] = json.loads(printed.out)
        return told

    return run


def breaks(world: RealWorld, job: RealJob, after: float = 1.0) -> None:
    """Rank 2 dies, the whole job with it, and a moment later its node says why."""
    job.tell(2, 1)
    node = world.holders[BROKEN]
    world.at(after, lambda: world.send(events.xid(node, 79, world.now)))


def assert_goes_on(world: RealWorld, job: RealJob) -> None:
    assert [incident.get("outcome") for incident in world.incidents] == ["HEALED"], world.incidents
    known = row(world, job)
    assert (known["state"], known["attempt"], known["pending"], known["resume_phase"]) == (
        "RUNNING", 2, {}, "HEALED",
    )  # fmt: skip
    assert known["names"] == list(FOUR) and world.holders[BROKEN] in known["nodes"].values()
    assert job.places() == list(FOUR), "the same rank on the same name"
    assert world.notices.sent == []


def test_a_job_that_nobody_registered_is_found_on_its_failing_node(bench: Bench, tmp_path: Path) -> None:
    with real_world(bench, NAMES) as world:
        job = submit(bench.slurm, tmp_path / "mine", 4, steps=True)
        others = [submit(bench.slurm, tmp_path / f"queued-{n}", 8, wait=False) for n in range(2)]
        eventually(lambda: len(job.steps()) > 15, 30.0, "the job makes steps")
        breaks(world, job)
        world.run(150.0, until=world.has_ended)
        job.wait_for_start(2)
        assert_goes_on(world, job)
        assert row(world, job)["origin"] == "found"
        assert [other.starts() for other in others] == [0, 0]


def test_a_submitted_job_is_in_the_ledger_from_its_submission_to_its_end(
    bench: Bench, tmp_path: Path, planaria_submit: Submit
) -> None:
    with real_world(bench, NAMES) as world:
        script = made(bench, tmp_path / "run")
        told = planaria_submit(
            world, bench, "--checkpoints", str(tmp_path / "ck"), "--comment=mine", "-N", "4", "-o",
            str(tmp_path / "out-%j"), str(script),
        )  # fmt: skip
        job = RealJob(bench.slurm, told["job_id"], tmp_path / "run", 4)
        assert told["registered"] is True
        assert (row(world, job)["state"], row(world, job)["names"]) == ("PENDING", [])
        job.wait_for_start()
        world.sweep()
        known = row(world, job)
        assert (known["state"], known["names"], known["ranks_per_node"]) == ("RUNNING", list(FOUR), 1)
        assert known["nodes"] == {str(rank): world.node_ids[name] for rank, name in enumerate(FOUR)}
        assert known["lineage"] == {"folder": str(tmp_path / "ck")} and known["kept"] == told["folder"]
        assert "mine planaria?folder=" in bench.slurm.run("scontrol", "show", "job", job.job_id)
        breaks(world, job)
        world.run(150.0, until=world.has_ended)
        job.wait_for_start(2)
        assert_goes_on(world, job)
        assert [rank["attempt"] for rank in job.ranks()] == ["2"] * 4
        for rank in range(4):
            job.tell(rank, 0)
        eventually(lambda: bench.job(job.job_id)["state"] == "COMPLETED", 30.0, "the job has ended")
        world.sweep()
        assert row(world, job)["state"] == "COMPLETED"


def test_a_users_failing_job_drains_no_node(bench: Bench, tmp_path: Path, planaria_submit: Submit) -> None:
    with real_world(bench, NAMES) as world:
        script = made(bench, tmp_path / "run")
        told = planaria_submit(world, bench, "-N", "4", "-o", str(tmp_path / "out-%j"), str(script))
        job = RealJob(bench.slurm, told["job_id"], tmp_path / "run", 4)
        job.wait_for_start()
        job.tell(1, 3)
        eventually(lambda: bench.job(job.job_id)["state"] == "FAILED", 30.0, "the job has failed")
        world.sweep()
        world.sweep()
        assert (row(world, job)["state"], world.incidents) == ("FAILED", [])
        # srun tells of the highest status, and --kill-on-bad-exit ends the others by a signal.
        assert row(world, job)["attempts"]["1"]["failure"]["what"].startswith("exit code ")
        states = bench.ask(scheduling.NodeQuery(NAMES))
        assert {entry["state"] for entry in states.values()} <= {"IDLE", "ALLOCATED"}
        assert job.starts() == 1


@pytest.mark.parametrize("option", ["--no-requeue"])
def test_a_job_that_must_not_start_again_ends_with_its_node(
    bench: Bench, tmp_path: Path, option: str
) -> None:
    with real_world(bench, NAMES) as world:
        job = submit(bench.slurm, tmp_path, 4, option, steps=True)
        world.send(events.xid(world.node_ids[BROKEN], 79, time.time()))
        world.run(150.0, until=world.has_ended)
        assert [incident.get("outcome") for incident in world.incidents] == ["HEALED"]
        [(subject, text)] = world.notices.sent
        assert job.job_id in subject and "--no-requeue" in text
        assert job.live_ranks() == [] and job.starts() == 1
        assert "--no-requeue" in row(world, job)["given_up"]


def test_of_a_job_array_the_task_on_the_failing_node_goes_on(
    bench: Bench, tmp_path: Path, planaria_submit: Submit
) -> None:
    with real_world(bench, NAMES) as world:
        folders = [tmp_path / f"task-{task}" for task in range(2)]
        for folder in folders:
            script = made(bench, folder)
        script.write_text(script.read_text().replace(str(folder), f"{tmp_path}/task-$SLURM_ARRAY_TASK_ID"))
        told = planaria_submit(
            world, bench, "--array=0-1", "-N", "4", "-o", str(tmp_path / "out-%A-%a"), str(script)
        )
        assert told["registered"] is False and "array" in told["reason"]
        tasks = [RealJob(bench.slurm, f"{told['job_id']}_{n}", folder, 4) for n, folder in enumerate(folders)]
        for task in tasks:
            task.wait_for_start()
        [mine] = [task for task in tasks if BROKEN in task.places()]
        [other] = [task for task in tasks if task is not mine]
        places = mine.places()
        world.send(events.xid(world.node_ids[BROKEN], 79, time.time()))
        world.run(150.0, until=world.has_ended)
        mine.wait_for_start(2)
        assert (mine.places(), other.starts()) == (places, 1)
        assert [incident.get("outcome") for incident in world.incidents] == ["HEALED"]
        assert (row(world, mine)["attempt"], row(world, other)) == (2, {})
        # An earlier test's job that failed on this node a moment ago is blamed on it, too, and has no room.
        assert [subject for subject, _ in world.notices.sent if mine.job_id in subject] == []


def test_what_slurm_has_forgotten_is_submitted_again(
    tmp_path: Path, short_folder: Path, planaria_submit: Submit
) -> None:
    settings = SlurmSettings(short_folder, FOUR, options={"MinJobAge": "2"})
    with SlurmCluster(settings) as slurm:
        bench = Bench(slurm)
        try:
            with real_world(bench, FOUR) as world:
                script = made(bench, tmp_path / "run")
                told = planaria_submit(
                    world, bench, "-N", "4", "-o", str(tmp_path / "out-%j"), str(script), "x"
                )
                job = RealJob(slurm, told["job_id"], tmp_path / "run", 4)
                job.wait_for_start()
                world.sweep()
                eventually(lambda: len(job.steps()) > 15, 30.0, "the job makes steps")
                job.tell(2, 1)
                eventually(lambda: bench.job(job.job_id)["state"] == "FAILED", 30.0, "the job has failed")
                world.sweep()
                assert row(world, job)["state"] == "FAILED"
                gone = scheduling.JobQuery((job.job_id,))
                eventually(lambda: bench.ask(gone) == {job.job_id: None}, 150.0, "Slurm has forgotten it")
                world.lose(world.holders[BROKEN])
                world.run(150.0, until=world.has_ended)
                again = bench.job(job.job_id)
                assert (again["state"], again["attempt"], again["nodes"]) == ("RUNNING", 2, list(FOUR))
                assert again["slurm_id"] != job.job_id
                assert [incident.get("outcome") for incident in world.incidents] == ["HEALED"]
                assert row(world, job)["resume_phase"] == "HEALED" and world.notices.sent == []
                newest = RealJob(slurm, again["slurm_id"], tmp_path / "run", 4)
                eventually(lambda: len(newest.live_ranks()) == 4, 30.0, "its ranks live")
                assert [rank["attempt"] for rank in newest.ranks()] == ["2"] * 4
        finally:
            # What was submitted again has an environment of its own, without the mark of this Slurm.
            slurm.run("scancel", "--full", "--signal=KILL", "--user", str(os.getuid()))
            slurm.run("scancel", "--user", str(os.getuid()))
            eventually(lambda: not slurm.run("squeue", "--noheader").split(), 60.0, "no job is left")
            bench.commands.close()
