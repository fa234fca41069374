"""The demo: what it refuses at once, what it shows, and one whole run with the real CDK CLI."""

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from planaria.cli.demo import FAULTS, SCHEDULERS, show
from planaria.core.errors import PlanariaError
from planaria.core.incident import Phase, Step
from planaria.sandbox import demo, slurm_cluster
from planaria.sandbox.demo import DemoConfig, Summary, Watcher
from planaria.sandbox.errors import SandboxError
from planaria.sandbox.plots import TrainingPoint
from planaria.sandbox.world import ROOT
from tests.cli.conftest import NODES, NOW, Bench


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--scheduler", "pbs"), "cannot run on 'pbs'; it runs on process, slurm"),
        (("--fault", "flood"), "cannot show 'flood'"),
        (("--node", "demo-5"), "has no node 'demo-5'"),
        (("--png", "/no/such/folder/x.png"), "choose another file with --png"),
    ],
)
def test_what_cannot_be_is_refused_at_once(bench: Bench, words: tuple[str, ...], said: str) -> None:
    answer = bench.run("demo", *words)
    assert answer.status == 2
    assert said in answer.err.replace("Scheduler", "scheduler")
    assert answer.err.count("\n") == 1


def test_the_command_offers_what_the_demo_can_show() -> None:
    assert set(FAULTS) == set(demo.FAULTS)
    assert set(SCHEDULERS) == set(demo.CLUSTERS)


def test_without_slurm_the_demo_says_what_to_install(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(slurm_cluster, "PROGRAMS", ("slurmctld-of-nobody",))
    answer = bench.run("demo", "--scheduler", "slurm", "--png", str(tmp_path / "x.png"))
    assert answer.status != 0
    assert answer.err.count("\n") == 1, answer.err
    assert "`apt install slurm-wlm` installs it" in answer.err


def _summary(**changes: Any) -> Summary:
    head = {
        "incident_id": f"{NODES[2]}-1",
        "node_id": NODES[2],
        "outcome": "HEALED",
        "detected_at": NOW,
        "opened_at": NOW,
        "resume_step": 40,
    }
    rows: list[dict[str, Any]] = [
        {"step": step.value, "at": NOW + seconds}
        for step, seconds in (
            (Step.DETECTED, 0.0),
            (Step.LAUNCHED, 1.0),
            (Step.READY, 4.0),
            (Step.FIRST_STEP, 6.0),
        )
    ]
    points = [TrainingPoint(1, step, 4 - step / 50, NOW - 5 + step / 10) for step in range(1, 47)]
    points += [TrainingPoint(2, step, 4 - step / 50, NOW + 6 + step / 10) for step in range(41, 90)]
    whole = Summary(
        incident=head,
        steps=rows,
        fault="xid79",
        node="demo-3",
        injected_at=NOW - 0.2,
        lost_id=NODES[2],
        replacement_id="i-00000000000000009",
        broke_at=46,
        resume_step=40,
        first_step=41,
        last_step=89,
        back_seconds=6.2,
        boot_seconds=3.0,
        rank_seconds=0.5,
        transitions=25,
        points=points,
        picture="planaria-demo.png",
    )
    return dataclasses.replace(whole, **changes)


def test_a_summary_splits_the_recovery_and_counts_the_lost_steps() -> None:
    document = _summary().document()
    assert document["seconds"] == {
        "fault_to_first_new_step": 6.2,
        "node_boot": 3.0,
        "rank_start": 0.5,
        "control_plane": 2.7,
    }
    assert (document["steps_lost"], document["state_transitions_usd"]) == (6, 0.000625)
    assert _summary(resume_step=-1).steps_lost == 46
    assert json.loads(json.dumps(document)) == document


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize(
    "summary", [_summary(), _summary(replacement_id="", boot_seconds=0.0, transitions=0)]
)
def test_the_summary_fits_the_terminal(summary: Summary, width: int) -> None:
    file = io.StringIO()
    show(summary, Console(file=file, width=width, color_system=None))
    text = file.getvalue()
    assert max(len(line) for line in text.splitlines()) <= width
    for part in ("first new step", "HEALED", "resumed from step 40", "6.20 s", "planaria-demo.png"):
        assert part in text


class _World:
    """As much of a World as the demo asks for; its job never trains."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self._bench, self.folder = bench, folder

    def gateways(self) -> Any:
        return self._bench.gateways

    def job_folder(self, job: str) -> Path:
        return self.folder / "jobs" / job

    def submit(self, job: str, recipe: dict[str, Any]) -> str:
        (self.job_folder(job) / "checkpoints").mkdir(parents=True)
        self._bench.add_nodes(job=job)
        return job

    def head(self) -> "_World":
        return self

    def post(self, path: str, document: dict[str, Any]) -> dict[str, str]:
        return {"injected": "broken."}


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short one: a Unix socket's path has 108 bytes at most, and pytest's own grows with every run."""
    with tempfile.TemporaryDirectory(prefix="p-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def run(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Summary]:
    for name in ("TRAINING_SECONDS", "INCIDENT_SECONDS", "HEALING_SECONDS"):
        monkeypatch.setattr(demo, name, 0.2)
    silent = Watcher(lambda text: None, lambda text: None, lambda head, row: None)
    world: Any = _World(bench, tmp_path)
    return lambda: demo._Demo(DemoConfig(picture=tmp_path / "x.png"), silent, world).run()


def test_a_job_that_does_not_train_ends_the_demo(run: Callable[[], Summary]) -> None:
    with pytest.raises(SandboxError, match="The job did not train: step 0 after"):
        run()


def test_a_fault_that_nobody_notices_ends_the_demo(
    run: Callable[[], Summary], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo._Demo, "_train", lambda self, save_every: None)
    with pytest.raises(SandboxError, match="Nothing noticed the fault xid79 on demo-3"):
        run()


@pytest.mark.parametrize(
    ("outcome", "said"), [(None, "did not end within"), (Phase.ESCALATED, "ended ESCALATED: no capacity")]
)
def test_an_incident_that_does_not_heal_fails_the_demo(
    run: Callable[[], Summary],
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    outcome: Phase | None,
    said: str,
) -> None:
    def incident(self: Any, since: float) -> str:
        name = bench.add_incident(closed=False)
        node, _, session = name.rpartition("-")
        if outcome is not None:
            bench.gateways.ledger.close(node, int(session), outcome, NOW + 20, "no capacity")
        return name

    monkeypatch.setattr(demo._Demo, "_train", lambda self, save_every: None)
    monkeypatch.setattr(demo._Demo, "_find_incident", incident)
    with pytest.raises(PlanariaError, match=said):
        run()


def _start(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    (tmp_path / "tmp").mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "planaria.cli", "demo", "--png", str(tmp_path / "curve.png"), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "tmp")},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _left(tmp_path: Path) -> list[str]:
    """Processes that work in the folder or carry it in their command, and files in it."""
    found = [str(path) for path in (tmp_path / "tmp").iterdir()]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
                if str(tmp_path) in words or str(tmp_path) in str((entry / "cwd").readlink()):
                    found.append(words)
            except OSError:
                continue
    return found


@pytest.mark.needs("torch", "emulator", "cdk")
def test_the_whole_demo(tmp_path: Path) -> None:
    _whole_demo(tmp_path)


@pytest.mark.campaign
@pytest.mark.needs("torch", "emulator", "cdk", "slurm")
def test_the_whole_demo_on_slurm(tmp_path: Path) -> None:
    # Slurm's sockets want a short folder, which pytest's are not.
    with tempfile.TemporaryDirectory(prefix="planaria-", dir="/tmp") as folder:
        _whole_demo(tmp_path, "--scheduler", "slurm", "--dir", f"{folder}/s")
        assert list(Path(folder).iterdir()) == []


def _whole_demo(tmp_path: Path, *words: str) -> None:
    process = _start(tmp_path, "--json", "--boot-seconds", "1", *words)
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    document = json.loads(out)
    assert document["incident"]["outcome"] == "HEALED"
    assert document["replacement_id"] not in (None, document["lost_id"])
    assert 0 <= document["resumed_from_step"] < document["broke_at_step"] < document["last_step"]
    assert document["first_new_step"] == document["resumed_from_step"] + 1
    steps = [each["step"] for each in document["incident"]["timeline"]]
    for step in (
        "detected",
        "isolated",
        "replacement_launched",
        "node_joined",
        "job_resumed",
        "first_new_step",
    ):
        assert step in steps
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    assert _left(tmp_path) == []


@pytest.mark.needs("torch", "emulator", "cdk")
def test_ctrl_c_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    process = _start(tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        if "synthesising" in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "Stopped.\n")
    assert _left(tmp_path) == []
    assert not (tmp_path / "curve.png").exists()
