"""A node is lost in the middle of a job, on a real Slurm: what the job keeps, and who gets its nodes."""

import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from planaria.core import scheduling
from planaria.slurm import kept_jobs
from tests.sandbox.heads import eventually
from tests.slurm_real.bench import MARK, Bench, watched
from tests.slurm_real.conftest import NAMES, SPARE
from tests.slurm_real.jobs import RANK, RealJob, submit

pytestmark = pytest.mark.campaign

FOUR = NAMES[:4]
LOST = NAMES[1]
OTHERS = NAMES[4:]

MUCH = 60.0
"""Half of what Slurm alone waits before a requeued job (120 s): no measure, only far from it."""


def run_for_a_while(job: RealJob) -> int:
    """Until some steps are done and saved. -> the step that the next start begins after."""
    eventually(lambda: len(job.steps()) > 15, 30.0, "the job makes steps")
    return int((job.folder / "saved").read_text())


def assert_goes_on(job: RealJob, saved: int) -> None:
    """The second start goes on from the newest saved step, and makes steps."""
    eventually(lambda: job.steps()[-1]["start"] > 0, 30.0, "the job makes steps again")
    first = next(step["step"] for step in job.steps() if step["start"] > 0)
    newest = max(s["step"] for s in job.steps() if s["start"] == 0) // 10 * 10
    assert saved < first == newest + 1


def test_under_the_kept_name_all_ranks_stay_where_they_were(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any job keeps its ranks so: this one knows nothing of Planaria."""
    job = submit(bench.slurm, tmp_path, 4, "--gres=gpu:8", steps=True)
    assert job.places() == list(FOUR)
    saved = run_for_a_while(job)
    bench.slurm.kill_node(LOST)
    bench.quarantine(job, LOST, FOUR)
    bench.replace(LOST, "i-0new", "127.0.0.2")
    resumed = bench.requeue(job.job_id, FOUR, 2, saved)
    job.wait_for_start(2)
    assert job.places() == list(FOUR), "the same rank on the same name"
    assert_goes_on(job, saved)
    assert resumed.seconds < MUCH
    told = bench.job(job.job_id)
    assert (told["state"], told["nodes"], told["attempt"]) == ("RUNNING", list(FOUR), 2)
    assert "127.0.0.2" in bench.slurm.run("scontrol", "show", "node", LOST)
    with capsys.disabled():
        sys.stderr.write(f"\nkept name: requeue to running {resumed.seconds:.2f} s {resumed.words}\n")


def test_under_a_new_name_a_job_of_planaria_keeps_its_ranks(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = f"{sys.executable} -m planaria.slurm.in_job srun --kill-on-bad-exit=1"
    comment = f"--comment=planaria?folder={tmp_path}&ranks_per_node=1"
    root = Path(__file__).resolve().parents[2]
    job = submit(
        bench.slurm, tmp_path, 4, comment, f"--export=ALL,PYTHONPATH={root}", steps=True, launcher=launcher
    )
    assert job.places() == list(FOUR)
    saved = run_for_a_while(job)
    bench.slurm.kill_node(LOST)
    bench.quarantine(job, LOST, FOUR)
    bench.replace(SPARE, "i-0new", "127.0.0.9")
    order = [FOUR[0], SPARE, FOUR[2], FOUR[3]]
    resumed = bench.requeue(job.job_id, order, 2, saved)
    job.wait_for_start(2)
    assert job.places() == order, "the replacement has the rank of the lost node, though Slurm sorts it last"
    assert [rank["attempt"] for rank in job.ranks()] == ["2"] * 4
    assert_goes_on(job, saved)
    assert resumed.seconds < MUCH
    assert bench.job(job.job_id)["nodes"] == order
    with capsys.disabled():
        sys.stderr.write(f"\nnew name: requeue to running {resumed.seconds:.2f} s {resumed.words}\n")


def test_a_job_that_knows_nothing_of_planaria_keeps_its_size_under_a_new_name(
    bench: Bench, tmp_path: Path
) -> None:
    job = submit(bench.slurm, tmp_path, 2, "--exclude=demo-8")
    bench.slurm.kill_node(NAMES[0])
    bench.quarantine(job, NAMES[0], NAMES[:2])
    bench.replace(SPARE, "i-0new", "127.0.0.9")
    bench.requeue(job.job_id, (SPARE, NAMES[1]), 2)
    job.wait_for_start(2)
    assert sorted(job.places()) == [NAMES[1], SPARE]
    assert job.facts()["ExcNodeList"] == "demo-8", "the user's own --exclude is as it was"


def test_a_full_queue_takes_none_of_the_survivors(bench: Bench, tmp_path: Path) -> None:
    job = submit(bench.slurm, tmp_path, 4, steps=True)
    saved = run_for_a_while(job)
    for number in range(12):
        submit(bench.slurm, tmp_path / str(number), 1, wait=False)
    eventually(lambda: bench.slurm.run("squeue", "-h", "-t", "R").count("\n") == 5, what="the rest is taken")
    with watched(bench.slurm, job.job_id) as taken:
        bench.slurm.kill_node(LOST)
        bench.quarantine(job, LOST, FOUR)
        time.sleep(4.0)  # Slurm's scheduler runs every few seconds; the nodes are free all that time
        bench.replace(LOST, "i-0new", "127.0.0.2")
        resumed = bench.requeue(job.job_id, FOUR, 2, saved)
        job.wait_for_start(2)
    nodes = {node for _, where in taken for node in where.split(",")}
    assert nodes == set(OTHERS), taken
    assert job.places() == list(FOUR)
    assert resumed.seconds < MUCH
    pending = bench.slurm.run("squeue", "-h", "-t", "PD").count("\n")
    assert pending == 8, "the queue waits on"


def test_an_operators_drain_survives(bench: Bench) -> None:
    free = NAMES[6]
    bench.slurm.run("scontrol", "update", f"nodename={free}", "state=drain", "reason=new disks")
    assert bench.ask(scheduling.Isolate((free,), MARK)) == {free: "FOREIGN: new disks"}
    assert bench.ask(scheduling.Lost((free,), MARK)) == {free: "FOREIGN: new disks"}
    assert bench.ask(scheduling.Readmit((free,), MARK)) == {free: "FOREIGN: new disks"}
    assert bench.slurm.node_state(free) == "drained"
    assert "Reason=new disks" in bench.slurm.run("scontrol", "show", "node", free)


def test_an_operator_who_drains_what_we_isolated_keeps_it(bench: Bench) -> None:
    """Between our isolation and our readmit a person took the node over."""
    free = NAMES[6]
    assert bench.ask(scheduling.Isolate((free,), MARK)) == {free: "ISOLATED"}
    bench.slurm.run("scontrol", "update", f"nodename={free}", "state=drain", "reason=keep it for me")
    assert bench.ask(scheduling.Readmit((free,), MARK)) == {free: "FOREIGN: keep it for me"}
    assert bench.slurm.node_state(free) == "drained"


def test_a_users_failing_jobs_drain_no_node(bench: Bench, tmp_path: Path) -> None:
    for number in range(4):
        job = submit(bench.slurm, tmp_path / str(number), 2)
        job.tell(1, 3)
        eventually(lambda job=job: bench.job(job.job_id)["state"] == "FAILED", 30.0)  # type: ignore[misc]
        assert bench.job(job.job_id)["exit_code"] != 0
    states = bench.ask(scheduling.NodeQuery(NAMES))
    assert {entry["state"] for entry in states.values()} == {"IDLE"}
    assert {entry["reason"] for entry in states.values()} == {""}


def test_forty_requeues_in_a_row_end_none_as_failed(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm 22.05 ends a job as FAILED 1:0 ("Job credential revoked") when it starts too early. Five in a
    row of each of eight jobs at a time: the head node's agent runs commands beside each other, too."""
    jobs = [submit(bench.slurm, tmp_path / str(number), 1, "--gres=gpu:8") for number in range(8)]
    places = [job.places() for job in jobs]
    assert sorted(name for names in places for name in names) == sorted(NAMES)

    def five(job: RealJob, names: list[str]) -> list[float]:
        seconds = []
        for attempt in range(2, 7):
            seconds.append(bench.requeue(job.job_id, names, attempt).seconds)
            assert job.facts()["JobState"] == "RUNNING"
            job.wait_for_start(attempt)
        return seconds

    with ThreadPoolExecutor(len(jobs)) as at_once:
        seconds = sorted(one for each in at_once.map(five, jobs, places) for one in each)
    assert len(seconds) == 40 and seconds[-1] < MUCH
    for job, names in zip(jobs, places, strict=True):
        assert (job.facts()["JobState"], job.facts()["Restarts"], job.places()) == ("RUNNING", "5", names)
        job.tell(0, 0)
        eventually(lambda job=job: bench.job(job.job_id)["state"] == "COMPLETED", 30.0)  # type: ignore[misc]
    with capsys.disabled():
        middle = seconds[len(seconds) // 2]
        sys.stderr.write(f"\nforty requeues to running: median {middle:.2f} s, worst {seconds[-1]:.2f} s\n")


def test_of_a_forgotten_array_one_task_alone_starts_again(bench: Bench, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    for name in ("do", "ranks"):
        (tmp_path / name).mkdir()
    script = f"#!/bin/bash\n#SBATCH --array=1-3\nexec {sys.executable} -S {RANK} {tmp_path}\n"
    document = {
        "options": ["--array=1-3", "--exclusive", f"--output={tmp_path}/out"],
        "script": "train.sh",
        "arguments": [],
        "work_dir": str(tmp_path),
    }
    kept_jobs.write(kept, document, script.encode())
    request = scheduling.Requeue("880088_2", (NAMES[3],), 2, -1, str(kept))
    bench.until(request, {"880088_2": "RUNNING"})
    queue = bench.slurm.run("squeue", "--noheader", "--array", "--format=%i %T %N").splitlines()
    assert len(queue) == 1, queue
    assert re.fullmatch(rf"\d+_2 RUNNING {NAMES[3]}", queue[0])
    told = bench.job("880088_2")
    assert (told["state"], told["nodes"], told["attempt"]) == ("RUNNING", [NAMES[3]], 2)
    assert bench.ask(request) == {"880088_2": "RUNNING"}
    assert bench.ask(scheduling.JobsOn((NAMES[3],))) == {NAMES[3]: ["880088_2"]}
