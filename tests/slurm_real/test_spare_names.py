"""Names that nobody runs, as docs/slurm.md recommends them: plain lines of slurm.conf, drained by hand."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from planaria.core import scheduling
from planaria.sandbox import environments, slurm_cluster
from planaria.sandbox.slurm_cluster import MARK as MARK_OF_CLUSTER
from planaria.sandbox.slurm_cluster import NODE_MARK, SlurmCluster
from planaria.sandbox.slurm_files import SlurmSettings
from tests.sandbox.heads import eventually
from tests.slurm_real.bench import MARK, Bench
from tests.slurm_real.jobs import submit

pytestmark = pytest.mark.campaign

WORKER, SPARE = "demo-1", "demo-2"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(short_folder: Path) -> Iterator[Bench]:
    """A controller that has never heard of the spare name's node."""
    if lack := slurm_cluster.missing():
        pytest.skip(f"slurm: {lack}")
    with SlurmCluster(SlurmSettings(short_folder, (WORKER, SPARE))) as slurm:
        slurm.stop_controller()
        slurm.kill_node(SPARE)
        for path in (short_folder / "state").glob("node_state*"):
            path.unlink()
        slurm.start_controller()
        assert slurm.node_state(SPARE).startswith("unk")
        running = Bench(slurm)
        yield running
        running.commands.close()


def test_a_spare_name_works_from_its_readmission_on_and_stays_so(bench: Bench, tmp_path: Path) -> None:
    slurm = bench.slurm
    slurm.run("scontrol", "update", f"nodename={SPARE}", "state=drain", "reason=planaria:spare")
    waiting = submit(slurm, tmp_path / "job", 2, wait=False)
    slurm.boot(SPARE)
    time.sleep(4.0)  # Slurm's scheduler has looked at it meanwhile
    assert slurm.node_state(SPARE) == "drained", "it takes no work before anybody has looked at it"
    assert bench.ask(scheduling.Join(SPARE, "i-0new", "127.0.0.9", MARK)) == {SPARE: "JOINED"}
    assert waiting.ranks() == []
    assert bench.ask(scheduling.Readmit((SPARE,), MARK)) == {SPARE: "READMITTED"}
    waiting.wait_for_start(1)
    assert waiting.places() == [WORKER, SPARE]
    slurm.run("scontrol", "reconfigure")
    time.sleep(1.0)
    assert slurm.node_state(SPARE) == "allocated"
    slurm.stop_controller()
    slurm.start_controller()
    eventually(lambda: slurm.node_state(SPARE) == "allocated", 30.0, "it works after a restart too")
    assert bench.node(SPARE)["node_id"] == "i-0new"
    assert waiting.live_ranks() == [0, 1]


@pytest.fixture
def two(short_folder: Path) -> Iterator[Bench]:
    if lack := slurm_cluster.missing():
        pytest.skip(f"slurm: {lack}")
    with SlurmCluster(SlurmSettings(short_folder, (WORKER, SPARE))) as slurm:
        running = Bench(slurm)
        yield running
        running.commands.close()


def test_a_replacement_starts_slurmd_once_it_has_joined_and_disturbs_nobody_before(
    two: Bench, tmp_path: Path
) -> None:
    """As recipes/slurm/planaria-slurmd.service does it. The old instance works on until then."""
    slurm = two.slurm
    job = submit(slurm, tmp_path / "job", 2)
    log = (tmp_path / "boot.log").open("w")
    words = ["--instance-id=i-0new", "--wait=120", "--", "-f", str(slurm.places.conf)]
    boot = subprocess.Popen(
        [sys.executable, "-m", "planaria.slurm.start_slurmd", *words],
        env={**slurm.environment, NODE_MARK: SPARE, "PYTHONPATH": str(ROOT)},
        stderr=log,
        start_new_session=True,
    )
    try:
        eventually(lambda: "no node of Slurm is i-0new yet" in (tmp_path / "boot.log").read_text(), 30.0)
        time.sleep(4.0)
        assert (job.facts()["JobState"], job.facts()["Restarts"]) == ("RUNNING", "0")
        assert job.live_ranks() == [0, 1]
        assert two.ask(scheduling.Isolate((SPARE,), MARK)) == {SPARE: "ISOLATED"}
        two.until(scheduling.Stop((job.job_id,), "TERM", 1.0), {job.job_id: "STOPPED"})
        # One port for each name on this machine: the old slurmd has to go first.
        old = environments.find(
            lambda e: e.get(NODE_MARK) == SPARE and e.get(MARK_OF_CLUSTER) == str(slurm.places.folder)
        )
        for pid in old - {boot.pid}:
            environments.send(pid, signal.SIGKILL)
        assert two.ask(scheduling.Join(SPARE, "i-0new", "127.0.0.9", MARK)) == {SPARE: "JOINED"}
        eventually(lambda: f"i-0new is {SPARE}" in (tmp_path / "boot.log").read_text(), 30.0, "it starts")
        two.until(scheduling.Readmit((SPARE,), MARK), {SPARE: "READMITTED"})
        two.requeue(job.job_id, (WORKER, SPARE), 2)
        job.wait_for_start(2)
        assert job.places() == [WORKER, SPARE]
    finally:
        environments.send(boot.pid, signal.SIGKILL)
        boot.wait()
        log.close()
