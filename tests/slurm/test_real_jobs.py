"""stop and requeue on a real Slurm."""

import json
import statistics
import threading
import time
from pathlib import Path

import pytest

from planaria.slurm import jobs, kept_jobs, placing, remembering, starting, telling
from planaria.slurm.holding import held, hold
from planaria.slurm.requeueing import requeue
from planaria.slurm.stopping import stop
from tests.sandbox.heads import eventually
from tests.slurm.conftest import NAMES, Real

pytestmark = pytest.mark.campaign

A, B, C, D = NAMES[:4]
STEADY = "srun bash -c 'while true; do sleep 0.1; done'"
ENDS_WELL = "trap 'exit 0' TERM\nsrun bash -c 'trap \"exit 0\" TERM; while true; do sleep 0.1; done'\nexit 0"


def told(real: Real, job: str) -> dict[str, object]:
    found = telling.tell_jobs(real.slurm, [job], [])[job]
    assert found is not None
    return found


def until_running(real: Real, job: str, nodes: list[str], attempt: int) -> None:
    """Asked again it goes on, which a busy machine may need."""
    asked = lambda: requeue(real.slurm, job, nodes, attempt, -1) == {job: "RUNNING"}  # noqa: E731
    eventually(asked, 90.0, f"attempt {attempt} of {job} runs")


def until_stopped(real: Real, job: str, grace: float = 1.0) -> None:
    eventually(lambda: stop(real.slurm, [job], "TERM", grace) == {job: "STOPPED"}, 60.0, f"{job} is stopped")


def test_a_job_that_ends_well_at_our_signal_has_not_come_to_its_end(real: Real) -> None:
    job = real.submit(ENDS_WELL, "-N2")
    assert stop(real.slurm, [job], "TERM", 10.0) == {job: "STOPPED"}
    assert (told(real, job)["state"], real.facts(job)["Priority"]) == ("PENDING", "0")
    until_running(real, job, [C, D], 2)
    assert told(real, job)["nodes"] == [C, D]


def test_a_job_that_ended_before_our_signal_is_completed(real: Real) -> None:
    job = real.submit("true", "-N1", wait=False)
    eventually(lambda: real.state(job) == "COMPLETED", 40.0)
    assert stop(real.slurm, [job], "TERM", 1.0) == {job: "COMPLETED"}
    assert requeue(real.slurm, job, [A], 2, -1) == {job: f"REFUSED: {job} is completed"}
    cancelled = real.submit(STEADY, "-N1")
    real.cluster.run("scancel", cancelled)
    eventually(lambda: real.state(cancelled) == "CANCELLED", 40.0)
    assert stop(real.slurm, [cancelled], "TERM", 1.0) == {cancelled: "STOPPED"}
    assert requeue(real.slurm, cancelled, [A], 2, -1) == {
        cancelled: f"REFUSED: {cancelled} was cancelled by a person"
    }


def test_a_job_that_its_user_cancels_after_our_stop_stays_cancelled(real: Real) -> None:
    job = real.submit(STEADY, "-N1")
    until_stopped(real, job)
    real.cluster.run("scancel", job)
    eventually(lambda: real.state(job) == "CANCELLED", 40.0)
    refused = {job: f"REFUSED: {job} was cancelled by a person"}
    assert requeue(real.slurm, job, [A], 2, -1) == refused
    assert stop(real.slurm, [job], "TERM", 1.0) == {job: "STOPPED"}
    assert requeue(real.slurm, job, [A], 2, -1) == refused
    assert real.state(job) == "CANCELLED"


def test_a_job_that_is_cancelled_while_its_attempt_waits_stays_cancelled(real: Real) -> None:
    job = real.submit(STEADY, "-N1")
    until_stopped(real, job)
    found = jobs.one(real.slurm, job)
    assert found is not None
    remembering.remember(real.slurm, found, {"attempt": "2", "nodes": A, "step": "-1", "from": "1"})
    real.cluster.run("scancel", job)
    eventually(lambda: real.state(job) == "CANCELLED", 40.0)
    assert requeue(real.slurm, job, [A], 2, -1) == {job: f"REFUSED: {job} was cancelled by a person"}


def test_a_job_that_somebody_let_start_elsewhere_runs_on(real: Real) -> None:
    job = real.submit(STEADY, "-N2")
    until_stopped(real, job)
    time.sleep(1.1)  # Slurm counts whole seconds
    real.cluster.run("scontrol", "release", job)
    time.sleep(2.5)
    real.update(f"JobId={job}", "StartTime=now")
    eventually(lambda: real.state(job) == "RUNNING", 40.0)
    place = told(real, job)["nodes"]
    others = [name for name in NAMES if name not in place][:2]  # type: ignore[operator]
    assert requeue(real.slurm, job, others, 2, -1) == {job: "RUNNING"}
    found = told(real, job)
    assert (found["nodes"], found["restarts"], found["attempt"]) == (place, 1, 2), "nothing was thrown away"


def test_jobs_that_shared_a_node_share_it_again(real: Real) -> None:
    half = ("-N1", "-n4", "--gres=gpu:4", f"--nodelist={A}")
    first, second = real.submit(STEADY, *half), real.submit(STEADY, *half)
    for job in (first, second):
        assert hold(real.slurm, job, [A], 300.0) == {job: "HELD"}
    eventually(
        lambda: set(stop(real.slurm, [first, second], "TERM", 1.0).values()) == {"STOPPED"}, 60.0, "both stop"
    )
    other = real.submit("sleep 100", "-N1", "-n1", f"--nodelist={A}", wait=False)
    for job in (first, second):
        until_running(real, job, [A], 2)
    assert telling.tell_jobs_on(real.slurm, [A]) == {A: sorted([first, second], key=int)}
    real.cluster.run("scancel", other)
    whole = real.submit(STEADY, "-N1", "--exclusive")
    until_stopped(real, whole)
    assert requeue(real.slurm, whole, [A], 2, -1) == {
        whole: f"REFUSED: {A} runs {min(first, second, key=int)}"
    }


def test_a_job_that_somebody_else_requeues_waits_for_no_node_of_ours(real: Real) -> None:
    job = real.submit(STEADY, "-N1", f"--exclude={D}")
    until_stopped(real, job)
    until_running(real, job, [B], 2)
    assert real.facts(job)["ReqNodeList"] == B
    real.cluster.run("scontrol", "requeue", job)
    eventually(lambda: real.state(job) == "PENDING", 40.0)
    told(real, job)
    facts = real.facts(job)
    assert (facts["ReqNodeList"], facts["ExcNodeList"]) == ("(null)", D)


def test_a_job_that_failed_is_kept_in_the_queue(real: Real) -> None:
    job = real.submit("exit 3", "-N1", wait=False)
    eventually(lambda: real.state(job) == "FAILED", 40.0)
    assert stop(real.slurm, [job], "TERM", 1.0) == {job: "STOPPED"}
    assert told(real, job)["state"] == "PENDING"


def test_ranks_that_ignore_the_signal_are_killed_after_the_grace(real: Real) -> None:
    job = real.submit("srun bash -c 'trap \"\" TERM; while true; do sleep 0.1; done'", "-N2")
    eventually(lambda: f"{job}.0" in real.cluster.run("squeue", "--noheader", "--steps", "--format=%i"))
    time.sleep(0.5)
    began = time.monotonic()
    assert stop(real.slurm, [job], "TERM", 2.0) == {job: "STOPPED"}
    assert 1.5 < time.monotonic() - began < 9.0, "not Slurm's own KillWait of 30 s"


def test_what_slurm_cannot_start_again_is_cancelled(real: Real) -> None:
    job = real.submit(STEADY, "-N1", "--no-requeue")
    until_stopped(real, job)
    word = requeue(real.slurm, job, [A], 2, -1)[job]
    assert word == f"REFUSED: {job} was submitted with --no-requeue, so Slurm does not start it again"


def test_one_task_of_an_array_is_stopped_and_the_others_run_on(real: Real) -> None:
    array = real.submit(STEADY, "-N1", "--array=1-3", wait=False)
    tasks = [f"{array}_{number}" for number in (1, 2, 3)]
    eventually(lambda: all(real.state(task) == "RUNNING" for task in tasks), 40.0)
    assert jobs.read(real.slurm, tasks)[tasks[2]].head.raw == array, "its number is the array's"
    until_stopped(real, tasks[2])
    assert [real.state(task) for task in tasks] == ["RUNNING", "RUNNING", "PENDING"]
    until_running(real, tasks[2], [D], 2)
    assert told(real, tasks[2])["nodes"] == [D]
    assert [told(real, task)["restarts"] for task in tasks] == [0, 0, 1]


def test_a_heterogeneous_job_goes_on_as_one(real: Real) -> None:
    path = real.folder / "het.sh"
    path.write_text(f"#!/bin/bash\n{STEADY}\n")
    job = real.cluster.run("sbatch", "--parsable", "-N1", "-o", "/dev/null", ":", "-N2", str(path)).strip()
    eventually(lambda: told(real, job)["state"] == "RUNNING", 90.0, "all components run")
    until_stopped(real, job)
    word = requeue(real.slurm, job, [D, B, C], 2, -1)[job]
    assert word == "RUNNING" or word.startswith("PENDING"), "Slurm starts these in its backfill cycle"
    eventually(lambda: requeue(real.slurm, job, [D, B, C], 2, -1) == {job: "RUNNING"}, 90.0)
    found = jobs.one(real.slurm, job)
    assert found is not None
    assert [record.nodes for record in found.records] == [(D,), (B, C)]


def test_an_attempt_is_told_its_ranks_and_where_to_resume(real: Real) -> None:
    folder = real.folder / "kept"
    folder.mkdir()
    job = real.submit(STEADY, "-N2", "--gres=gpu:8", f"--comment=planaria?folder={folder}&ranks_per_node=2")
    until_stopped(real, job)
    assert requeue(real.slurm, job, [C, A], 2, 40) == {job: "RUNNING"}
    assert (folder / "hostfile").read_text().split() == [C, C, A, A]
    resume = json.loads((folder / "resume.json").read_text())
    assert resume == {
        "version": 1, "job": job, "slurm_job": job, "attempt": 2, "resume_step": 40, "nodes": [C, A],
        "ranks_per_node": 2, "restart": 1,
    }  # fmt: skip
    assert told(real, job)["nodes"] == [C, A], "rank order, not Slurm's own"
    used = {name: real.node(name).partition("GresUsed=")[2].split()[0] for name in NAMES}
    assert [used[name].partition("(")[0] for name in (C, A, B)] == ["gpu:8", "gpu:8", "gpu:0"]


def test_the_users_own_lists_are_merged_and_come_back(real: Real) -> None:
    job = real.submit(STEADY, "-N2", f"--nodelist={A}", f"--exclude={D}")
    until_stopped(real, job)
    until_running(real, job, [C, B], 2)
    facts = real.facts(job)
    assert facts["ReqNodeList"] == f"{C},{B}"
    assert D in facts["ExcNodeList"], "what the user excluded stays excluded"
    until_stopped(real, job)
    facts = real.facts(job)
    assert (facts["ReqNodeList"], facts["ExcNodeList"]) == (A, D)
    until_running(real, job, [D, B], 3)
    assert told(real, job)["nodes"] == [D, B]


def test_an_attempt_is_started_once(real: Real) -> None:
    job, began = real.submit(STEADY, "-N2"), time.time()
    words: list[dict[str, str]] = []
    calls = [
        threading.Thread(target=lambda: words.append(requeue(real.slurm, job, [C, D], 2, 7)))
        for _ in range(3)
    ]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    assert words == [{job: "RUNNING"}] * 3
    assert (told(real, job)["restarts"], told(real, job)["attempt"]) == (1, 2)
    assert requeue(real.slurm, job, [A, B], 2, 7) == {job: "RUNNING"}
    assert told(real, job)["nodes"] == [C, D], "the same attempt again changes nothing"
    assert requeue(real.slurm, job, [A, B], 1, 7) == {job: f"REFUSED: attempt 2 of {job} was started already"}
    assert stop(real.slurm, [job], "TERM", 1.0, int(began) - 9) == {job: "COMPLETING"}
    assert told(real, job)["state"] == "RUNNING", "an order from before its start came late"
    until_stopped(real, job)
    assert requeue(real.slurm, job, [C, D], 2, 7) == {job: "RUNNING"}
    assert told(real, job)["state"] == "PENDING", "what was started and stopped since is not started again"
    assert held(real.slurm) == {}


def test_a_launch_that_slurm_refuses_is_repeated(real: Real) -> None:
    """Slurm 22.05 ends such a job as FAILED 1:0 in the second of its start. So does this script."""
    job = real.submit(f'[ "$SLURM_RESTART_COUNT" = 1 ] && exit 1\n{STEADY}', "-N2")
    until_running(real, job, [A, B], 2)
    found = jobs.one(real.slurm, job)
    assert found is not None
    assert (remembering.number(found, "launches"), found.head.restarts) == (2, 2)
    assert found.running and found.nodes == (A, B)


def test_what_fails_at_every_start_is_the_jobs_own_doing(real: Real) -> None:
    job = real.submit(f'[ -n "$SLURM_RESTART_COUNT" ] && exit 1\n{STEADY}', "-N1")
    until_running(real, job, [A], 2)
    found = told(real, job)
    assert (found["state"], found["exit_code"], found["restarts"]) == ("FAILED", 1, starting.LAUNCHES)
    assert requeue(real.slurm, job, [A], 2, -1) == {job: "RUNNING"}, "it was started"
    assert told(real, job)["restarts"] == starting.LAUNCHES


def test_requeues_in_a_row_start_fast_and_leak_no_gpu(real: Real) -> None:
    job = real.submit(STEADY, "-N2", "--gres=gpu:8")
    took = []
    for attempt in range(2, 6):
        pair = [NAMES[attempt % 4], NAMES[4 + attempt % 2]]
        began = time.time()
        until_running(real, job, pair, attempt)
        found = told(real, job)
        assert (found["nodes"], found["state"]) == (pair, "RUNNING")
        took.append(float(str(found["start"])) - began)
    assert statistics.median(took) < 5.0, f"from the order to RUNNING: {took}"
    real.cluster.run("scancel", job)
    eventually(lambda: not real.cluster.run("squeue", "--noheader").strip(), 40.0)
    assert not any("gpu:8" in real.node(name).partition("GresUsed=")[2].split()[0] for name in NAMES)


def test_a_note_that_a_site_writes_over_is_put_back(real: Real) -> None:
    job = real.submit(STEADY, "-N1")
    until_running(real, job, [B], 2)
    real.update(f"JobId={job}", "AdminComment=site:jobstats")
    assert requeue(real.slurm, job, [B], 2, -1) == {job: "RUNNING"}
    found = told(real, job)
    assert (found["attempt"], found["restarts"], found["state"]) == (2, 1, "RUNNING")
    assert real.facts(job)["AdminComment"].startswith("site:jobstats")


def test_a_job_keeps_the_reservation_that_it_came_with(real: Real) -> None:
    real.cluster.run(
        "scontrol", "create", "reservation", "ReservationName=project", "StartTime=now", "Duration=60",
        f"Nodes={A},{B},{C}", "Users=root",
    )  # fmt: skip
    job = real.submit(STEADY, "-N2", "--exclusive", "--reservation=project", "--time=10")
    assert hold(real.slurm, job, [A, B], 300.0) == {job: "HELD"}
    until_stopped(real, job)
    assert placing.place(real.slurm, job, 9)[job] == [A, B, C]
    assert requeue(real.slurm, job, [A, D], 2, -1) == {
        job: f"REFUSED: {D} is not in reservation project of the job"
    }
    until_running(real, job, [C, B], 2)
    assert real.facts(job)["Reservation"] == "project"
    assert set(held(real.slurm)) == {"project"}


def test_a_job_is_placed_in_its_partition_alone(real: Real) -> None:
    job = real.submit(STEADY, "-N1", "--exclusive", f"--nodelist={A}")
    until_stopped(real, job)
    real.cluster.run("scontrol", "create", "PartitionName=cpu", f"Nodes={B}")
    real.cluster.run("scontrol", "update", "PartitionName=main", f"Nodes={A},{C}")
    try:
        assert placing.place(real.slurm, job, 9)[job] == [A, C]
        assert requeue(real.slurm, job, [B], 2, -1) == {job: f"REFUSED: {B} is not in partition main"}
    finally:
        real.cluster.run("scontrol", "update", "PartitionName=main", "Nodes=ALL")
        real.cluster.run("scontrol", "delete", "PartitionName=cpu")


def test_a_folder_that_cannot_be_written_is_told_each_time(real: Real) -> None:
    job = real.submit(STEADY, "-N1", "--comment=planaria?folder=/no/such/folder")
    until_stopped(real, job)
    for _ in range(2):
        word = requeue(real.slurm, job, [A], 2, -1)[job]
        assert word.startswith("REFUSED: the job's folder /no/such/folder cannot be written as root")


def test_a_job_that_is_held_is_released(real: Real) -> None:
    job = real.submit(STEADY, "-N1", "--hold", wait=False)
    until_running(real, job, [B], 1)
    assert told(real, job)["nodes"] == [B]


def test_a_job_that_slurm_has_forgotten_goes_on_under_its_id(real: Real) -> None:
    folder = real.folder / "kept"
    kept_jobs.write(
        folder,
        {
            "options": ["-N2", f"--output={real.folder}/again"], "script": "train.sh", "arguments": [],
            "variables": {}, "work_dir": str(real.folder), "checkpoints": "", "ranks_per_node": 1,
        },
        f"#!/bin/bash\n{STEADY}\n".encode(),
    )  # fmt: skip
    gone = "424242"
    assert requeue(real.slurm, gone, [A, B], 3, 40) == {gone: f"REFUSED: no job {gone}"}
    assert requeue(real.slurm, gone, [C, A], 3, 40, str(folder)) == {gone: "RUNNING"}
    found = told(real, gone)
    assert (found["nodes"], found["attempt"], found["state"]) == ([C, A], 3, "RUNNING")
    assert telling.tell_jobs_on(real.slurm, [A]) == {A: [gone]}
    assert requeue(real.slurm, gone, [C, A], 3, 40, str(folder)) == {gone: "RUNNING"}
    until_stopped(real, gone)
    assert len(real.cluster.run("squeue", "--noheader").splitlines()) == 1
    assert Path(folder / "resume.json").exists()
