"""What the probes report, and what they do not."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from planaria.node.kernel_log_probe import REPEAT_SECONDS, KernelLogProbe
from planaria.node.probe import Probe
from planaria.node.rank_probe import RankProbe
from planaria.node.spot_probe import SpotProbe

XID_79 = "NVRM: Xid (PCI:0000:b3:00.0): 79, pid=12345, GPU has fallen off the bus."
XID_94 = "NVRM: Xid (PCI:0000:9b:00): 94, pid=1234, name=python3, Contained ECC error"
ME, OTHER = "i-0aaaaaaaaaaaaaaa1", "i-0aaaaaaaaaaaaaaa2"


# --- the kernel's log ------------------------------------------------------------------------------


def write(path: Path, *lines: str) -> None:
    with path.open("a") as log:
        log.writelines(line + "\n" for line in lines)


def test_a_fault_line_becomes_one_detail(tmp_path: Path) -> None:
    log = tmp_path / "kernel.log"
    write(log, XID_94)
    driver = tmp_path / "version"
    probe = KernelLogProbe(log, log.stat().st_size, driver)
    assert probe.poll(0.0) == []
    write(log, "usb 1-1: new device", XID_79)
    told = {
        "kind": "xid",
        "code": "79",
        "pci": "0000:b3:00",
        "message": XID_79,
        "injected": False,
        "count": 1,
    }
    assert probe.poll(1.0) == [{**told, "driver": ""}]
    assert probe.poll(2.0) == []
    driver.write_text("580.65.06\n")
    write(log, XID_94)
    assert [d["driver"] for d in probe.poll(3.0)] == ["580.65.06"], "read anew: a driver may be exchanged"


def test_two_places_of_one_gpu_are_two_faults(tmp_path: Path) -> None:
    """Whether an engine exception repeats on one TPC or wanders tells a bad GPU from a bad application."""
    log = tmp_path / "kernel.log"
    probe = KernelLogProbe(log)
    line = (
        "NVRM: Xid (PCI:0000:b3:00): 13, pid=1, name=x, Graphics SM Exception on (GPC 1, TPC {}, SM 0): Bad"
    )
    write(log, line.format(3), line.format(3), line.format(4))
    assert [d["count"] for d in probe.poll(0.0)] == [1, 1]


def test_repeats_are_counted_and_told_later(tmp_path: Path) -> None:
    log = tmp_path / "kernel.log"
    probe = KernelLogProbe(log)
    write(log, *[XID_79] * 1000, XID_94)
    assert [(d["code"], d["count"]) for d in probe.poll(0.0)] == [("79", 1), ("94", 1)]
    write(log, XID_79)
    assert probe.poll(REPEAT_SECONDS - 0.1) == []
    assert [(d["code"], d["count"]) for d in probe.poll(REPEAT_SECONDS)] == [("79", 1000)]
    assert probe.poll(2 * REPEAT_SECONDS) == []
    write(log, XID_79)
    assert [d["count"] for d in probe.poll(2 * REPEAT_SECONDS + 1)] == [1], "a new series is told at once"


def test_a_message_is_at_most_a_kilobyte(tmp_path: Path) -> None:
    log = tmp_path / "kernel.log"
    write(log, XID_79 + " é" * 2000)
    assert len(KernelLogProbe(log).poll(0.0)[0]["message"].encode()) <= 1024


# --- the spot notice -------------------------------------------------------------------------------


def test_a_spot_notice_is_told_once(tmp_path: Path) -> None:
    metadata = tmp_path / "imds.json"
    probe = SpotProbe(metadata)
    assert probe.poll(0.0) == []
    metadata.write_text("{}")
    assert probe.poll(0.0) == []
    notice = {"spot/instance-action": {"action": "terminate", "time": "2026-03-04T05:06:07Z"}}
    metadata.write_text(json.dumps(notice) + " ")
    [detail] = probe.poll(0.0)
    assert (detail["kind"], detail["code"], detail["count"]) == ("spot_notice", "terminate", 1)
    assert detail["deadline"] == 1772600767.0
    os.utime(metadata, (1, 1))
    assert probe.poll(0.0) == [], "the same notice in a rewritten file"


def test_metadata_that_is_half_written_is_read_again(tmp_path: Path) -> None:
    metadata = tmp_path / "imds.json"
    metadata.write_text('{"spot/inst')
    probe = SpotProbe(metadata)
    with pytest.raises(ValueError, match="Unterminated"):
        probe.poll(0.0)
    metadata.write_text('{"spot/instance-action": {"action": "stop", "time": "soon"}}')
    [detail] = probe.poll(0.0)
    assert detail["code"] == "stop"
    assert "deadline" not in detail


# --- ranks -----------------------------------------------------------------------------------------


class Job:
    """The files of one job, as the head and the rank server write them."""

    def __init__(self, jobs: Path, job_id: str, placement: list[str], attempt: int = 1) -> None:
        self.folder, self.job_id = jobs / job_id, job_id
        self.start(placement, attempt)

    def start(self, placement: list[str], attempt: int) -> None:
        self.attempt = self.folder / "attempts" / str(attempt)
        self.attempt.mkdir(parents=True)
        self._replace("job.json", {"job_id": self.job_id, "attempt": attempt, "placement": placement})

    def end(self, rank: int, code: int) -> None:
        self._replace(f"{self.attempt}/rank-{rank}.exit", {"exit_code": code, "at": 1.0})

    def step(self, attempt: int, step: int, end: str = "\n") -> None:
        line = json.dumps({"attempt": attempt, "step": step, "loss": 1.5, "at": 1.0})
        with (self.folder / "train.jsonl").open("a") as log:
            log.write(line + end)

    def _replace(self, name: str, document: dict[str, Any]) -> None:
        scratch = self.folder / "scratch"
        scratch.write_text(json.dumps(document))
        scratch.rename(self.folder / name)


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    (tmp_path / "jobs").mkdir()
    return tmp_path / "jobs"


def probe_of(jobs: Path) -> RankProbe:
    return RankProbe(jobs, ME, jobs.parent / "reported.json")


def poll(probe: RankProbe) -> list[tuple[Any, ...]]:
    """(attempt, rank, event, exit code or step) of each detail."""
    found = probe.poll(time.time())
    return [(d["attempt"], d["rank"], d["event"], d.get("exit_code", d.get("step"))) for d in found]


def test_only_own_ranks_that_failed_are_told_and_once(jobs: Path) -> None:
    probe = probe_of(jobs)
    assert poll(probe) == []
    job = Job(jobs, "gpt", [ME, OTHER, ME])
    assert poll(probe) == []
    job.end(1, 1)
    job.end(0, 0)
    assert poll(probe) == []
    job.end(2, -9)
    assert poll(probe) == [(1, 2, "exit", -9)]
    assert poll(probe) == []


def test_exits_in_one_tick_of_the_file_systems_clock_are_all_seen(jobs: Path) -> None:
    probe = probe_of(jobs)
    job = Job(jobs, "gpt", [ME] * 40)
    seen = []
    for rank in range(40):
        job.end(rank, 1)
        seen += poll(probe)
    assert [each[1] for each in seen] == list(range(40))


def test_a_stopped_attempt_is_not_told(jobs: Path) -> None:
    probe, job = probe_of(jobs), Job(jobs, "gpt", [ME])
    assert poll(probe) == []
    (job.attempt / "stopped").touch()
    job.end(0, -15)
    assert poll(probe) == []
    job.start([ME], 2)
    job.end(0, 1)
    assert poll(probe) == [(2, 0, "exit", 1)]


def test_the_first_step_of_each_attempt_is_told_by_the_node_of_rank_0(jobs: Path) -> None:
    probe, job = probe_of(jobs), Job(jobs, "gpt", [ME, OTHER])
    elsewhere = Job(jobs, "bert", [OTHER, ME])
    job.step(1, 1, end="")
    elsewhere.step(1, 1)
    assert poll(probe) == []
    with (job.folder / "train.jsonl").open("a") as log:
        log.write("\n")
    assert poll(probe) == [(1, 0, "step", 1)]
    job.step(1, 2)
    assert poll(probe) == []
    job.start([ME, OTHER], 2)
    job.step(1, 3)
    assert poll(probe) == []
    job.step(2, 3)
    assert poll(probe) == [(2, 0, "step", 3)]


def test_ranks_that_died_with_a_reboot_are_told_after_it_and_nothing_twice(jobs: Path) -> None:
    job = Job(jobs, "gpt", [ME, ME])
    before = probe_of(jobs)
    job.step(1, 1)
    job.end(0, 1)
    assert poll(before) == [(1, 0, "exit", 1), (1, 0, "step", 1)]
    job.end(1, -9)
    assert poll(probe_of(jobs)) == [(1, 1, "exit", -9)]
    assert poll(probe_of(jobs)) == []


def test_the_reason_is_how_it_ended_and_its_last_line(jobs: Path) -> None:
    probe, job = probe_of(jobs), Job(jobs, "gpt", [ME, ME])
    (job.attempt / "rank-0.log").write_text("step 1\nCUDA error: device lost\n\n")
    job.end(0, 1)
    job.end(1, -9)
    reasons = {d["rank"]: d["reason"] for d in probe.poll(time.time())}
    assert reasons == {0: "exit code 1: CUDA error: device lost", 1: "killed by signal 9"}


def test_files_that_are_no_jobs_are_passed_over(jobs: Path) -> None:
    (jobs / "README").write_text("x")
    (jobs / "empty").mkdir()
    (jobs / "broken").mkdir()
    (jobs / "broken" / "job.json").write_text("{")
    assert poll(probe_of(jobs)) == []


def test_polls_are_cheap(jobs: Path) -> None:
    """At 20 polls a second, half a millisecond is one per cent of a core."""
    Job(jobs, "gpt", [ME] * 8)
    log = jobs.parent / "kernel.log"
    log.touch()
    probes: list[Probe] = [probe_of(jobs), KernelLogProbe(log), SpotProbe(jobs.parent / "imds.json")]
    time.sleep(0.15)
    started = time.process_time()
    for _ in range(1000):
        for probe in probes:
            probe.poll(time.time())
    assert (time.process_time() - started) / 1000 < 0.0005
