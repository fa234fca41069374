"""The small Slurm of the sandbox: it starts, runs jobs, loses nodes, and nothing of it is ever left."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from planaria.sandbox import environments, slurm_cluster, slurm_files
from planaria.sandbox.errors import SandboxError
from planaria.sandbox.slurm_cluster import MARK, SlurmCluster
from planaria.sandbox.slurm_files import SlurmSettings
from tests.sandbox.heads import eventually
from tests.slurm_real.jobs import submit

A, B, SPARE = "demo-1", "demo-2", "demo-9"
ROOT = Path(__file__).resolve().parents[2]


def left(folder: Path) -> set[int]:
    return environments.find(lambda environment: environment.get(MARK) == str(folder.resolve()))


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    if lack := slurm_cluster.missing():
        pytest.skip(f"slurm: {lack}")
    folder = tmp_path_factory.mktemp("slurm")
    with SlurmCluster(SlurmSettings(folder, (A, B), (SPARE,))) as running:
        yield running
    assert left(folder) == set()


def test_ranks_of_a_job_run_on_their_nodes_with_their_gpus(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = submit(slurm, tmp_path, 2, "--gres=gpu:8")
    assert job.places() == [A, B]
    assert slurm.node_state(A) == "allocated"
    facts = slurm.run("scontrol", "--oneliner", "--details", "show", "job", job.job_id)
    assert "GRES=gpu:8(IDX:0-7)" in facts
    job.tell(0, 0)
    job.tell(1, 0)
    eventually(lambda: job.facts()["JobState"] == "COMPLETED", what="the job has ended")


def test_a_node_that_is_killed_takes_its_ranks_along_and_comes_back(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    job = submit(slurm, tmp_path, 2, launcher="srun --kill-on-bad-exit=0")
    slurm.kill_node(B)
    assert not slurm.runs(B)
    assert job.live_ranks() == [0]
    assert slurm.runs(A)
    slurm.run("scancel", job.job_id)
    slurm.boot(B)
    eventually(lambda: slurm.node_state(B) == "idle", 60.0, f"{B} works again")
    again = submit(slurm, tmp_path / "again", 2)
    assert again.places() == [A, B]
    slurm.run("scancel", again.job_id)


def test_a_spare_name_comes_up_at_another_address(slurm: SlurmCluster, tmp_path: Path) -> None:
    assert slurm.node_state(SPARE) == ""
    slurm.boot(SPARE)
    slurm.run("scontrol", "update", f"nodename={SPARE}", "nodeaddr=127.0.0.7")
    eventually(lambda: slurm.node_state(SPARE) == "idle", 30.0, f"{SPARE} works")
    job = submit(slurm, tmp_path, 1, f"--nodelist={SPARE}")
    assert job.places() == [SPARE]
    slurm.run("scancel", job.job_id)


def test_the_controller_comes_back_with_its_jobs(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = submit(slurm, tmp_path, 1)
    slurm.stop_controller()
    slurm.start_controller()
    assert job.facts()["JobState"] == "RUNNING"
    assert job.live_ranks() == [0]
    slurm.run("scancel", job.job_id)


def test_what_a_program_says_is_the_error(slurm: SlurmCluster) -> None:
    with pytest.raises(SandboxError, match=r"scontrol show job 424242 ended with 1: .*Invalid job id"):
        slurm.run("scontrol", "show", "job", "424242")
    with pytest.raises(SandboxError, match=r"runs from .* already"):
        SlurmCluster(slurm.settings).start()


@pytest.mark.needs("slurm")
def test_it_outlives_its_starter_and_is_ended_all_the_same(short_folder: Path) -> None:
    """A starter that is killed can end nothing; whoever comes later can."""
    folder = short_folder / "s"
    program = (
        "import sys, time; from pathlib import Path\n"
        "from planaria.sandbox.slurm_cluster import SlurmCluster; "
        "from planaria.sandbox.slurm_files import SlurmSettings\n"
        f"SlurmCluster(SlurmSettings(Path({str(folder)!r}), ('demo-1',))).start()\n"
        "print('up', flush=True); time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    ) as starter:
        try:
            assert starter.stdout is not None
            assert starter.stdout.readline() == "up\n"
            slurm = SlurmCluster(SlurmSettings(folder, ("demo-1",)))
            job = submit(slurm, short_folder / "job", 1)
        finally:
            starter.send_signal(signal.SIGKILL)
            starter.wait()
    assert job.live_ranks() == [0]
    assert len(left(folder)) >= 4, "munged, slurmctld, slurmd and the job's step"
    slurm_cluster.stop(folder)
    assert left(folder) == set()
    assert job.live_ranks() == []
    slurm_cluster.stop(folder)


def test_without_slurm_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_cluster, "PROGRAMS", ("slurmctld-of-nobody", "sbatch-of-nobody"))
    with pytest.raises(SandboxError, match=r"apt install slurm-wlm"):
        SlurmCluster(SlurmSettings(tmp_path / "s")).start()
    assert not (tmp_path / "s").exists()


def test_a_folder_with_a_long_name_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    with pytest.raises(SandboxError, match="too long for Slurm's sockets"):
        slurm_files.write(SlurmSettings(folder), (22, 5))


@pytest.mark.parametrize(
    ("said", "version"),
    [("slurm-wlm 22.05.8\n", (22, 5)), ("slurm 23.11.4", (23, 11)), ("slurm 25.05.0-0rc1", (25, 5))],
)
def test_versions_are_read(said: str, version: tuple[int, int]) -> None:
    assert slurm_files.parse_version(said) == version


def test_newer_versions_are_told_that_there_are_no_cgroups(short_folder: Path) -> None:
    for version, text in (((22, 5), ""), ((24, 11), "CgroupPlugin=disabled\n")):
        folder = short_folder / str(version[0])
        slurm_files.write(SlurmSettings(folder, ("demo-1",)), version)
        assert (folder / "cgroup.conf").read_text() == text
        assert (folder / "run/munge.key").stat().st_mode & 0o077 == 0
