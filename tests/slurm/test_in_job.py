"""What `planaria-run` sets for the steps of a job."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planaria.core.errors import InvalidInput, PermanentError
from planaria.slurm import in_job

ROOT = Path(__file__).resolve().parents[2]


class Desk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            "PATH": os.environ["PATH"],
            "PLANARIA_FOLDER": str(folder),
            "SLURM_JOB_ID": "1200",
            "SLURM_JOB_NODELIST": "demo-[1-3]",
            "SLURM_TASKS_PER_NODE": "2(x3)",
        }

    def tell(self, **facts: Any) -> None:
        told = {
            "version": 1, "job": "1200", "slurm_job": "1200", "attempt": 2, "resume_step": 40, "restart": 1,
            "nodes": ["demo-3", "demo-1", "demo-2"],
        }  # fmt: skip
        (self.folder / "resume.json").write_text(json.dumps(told | facts))
        self.environment["SLURM_RESTART_COUNT"] = "1"

    def variables(self) -> dict[str, str]:
        return in_job.look(self.environment).variables

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "planaria.slurm.in_job", *words],
            env={**self.environment, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    (tmp_path / "job.json").write_text(json.dumps({"checkpoints": ""}))
    return Desk(tmp_path)


def test_the_first_attempt_keeps_slurms_own_order(desk: Desk) -> None:
    assert desk.variables() == {
        "PLANARIA_JOB_ID": "1200", "PLANARIA_ATTEMPT": "1", "PLANARIA_RESUME_STEP": "-1",
        "PLANARIA_CHECKPOINTS": "", "PLANARIA_MASTER": "demo-1", "PLANARIA_FOLDER": str(desk.folder),
    }  # fmt: skip
    done = desk.run("env")
    assert done.returncode == 0 and "SLURM_HOSTFILE" not in done.stdout


def test_a_later_attempt_keeps_its_ranks(desk: Desk) -> None:
    desk.tell()
    done = desk.run("env")
    found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert (found["PLANARIA_ATTEMPT"], found["PLANARIA_RESUME_STEP"]) == ("2", "40")
    assert (found["SLURM_DISTRIBUTION"], found["PLANARIA_MASTER"]) == ("arbitrary", "demo-3")
    assert Path(found["SLURM_HOSTFILE"]).read_text().split() == [
        "demo-3", "demo-3", "demo-1", "demo-1", "demo-2", "demo-2",
    ]  # fmt: skip


def test_nodes_in_slurms_order_need_no_host_file(desk: Desk) -> None:
    desk.tell(nodes=["demo-1", "demo-2", "demo-3"])
    assert desk.variables()["PLANARIA_ATTEMPT"] == "2"
    assert in_job.look(desk.environment).nodes == ()


@pytest.mark.parametrize(
    "facts",
    [
        {"restart": 0}, {"restart": 2}, {"slurm_job": "1100"}, {"version": 2},
        {"nodes": ["demo-1", "demo-2", "demo-9"]}, {"nodes": ["demo-1"]}, {"nodes": None},
    ],
)  # fmt: skip
def test_what_was_told_to_another_start_is_not_believed(desk: Desk, facts: dict[str, Any]) -> None:
    """Slurm has started the job by itself since, perhaps elsewhere."""
    desk.tell(**facts)
    found = in_job.look(desk.environment)
    assert (found.variables["PLANARIA_RESUME_STEP"], found.nodes) == ("-1", ())


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_a_torn_file_is_not_believed(desk: Desk, text: str) -> None:
    desk.tell()
    (desk.folder / "resume.json").write_text(text)
    assert desk.variables()["PLANARIA_RESUME_STEP"] == "-1"


def test_a_job_that_was_submitted_again_keeps_its_first_id(desk: Desk) -> None:
    desk.tell(slurm_job="1300", restart=0)
    desk.environment |= {"SLURM_JOB_ID": "1300", "SLURM_RESTART_COUNT": "0"}
    assert (desk.variables()["PLANARIA_JOB_ID"], desk.variables()["PLANARIA_ATTEMPT"]) == ("1200", "2")


def test_no_attempt_but_the_first_starts_where_the_checkpoints_cannot_be_seen(desk: Desk) -> None:
    checkpoints = desk.folder / "ck"
    checkpoints.mkdir()
    (desk.folder / "job.json").write_text(json.dumps({"checkpoints": str(checkpoints)}))
    assert desk.variables()["PLANARIA_CHECKPOINTS"] == str(checkpoints)
    desk.tell()
    with pytest.raises(PermanentError, match="not started from step 0"):
        desk.variables()
    done = desk.run("touch", str(desk.folder / "started"))
    assert done.returncode == 1 and "not started from step 0" in done.stderr
    assert not (desk.folder / "started").exists()
    (checkpoints / ".planaria").write_text("1200\n")
    assert desk.variables()["PLANARIA_ATTEMPT"] == "2"
    desk.environment["SLURM_RESTART_COUNT"] = "3"  # Slurm's own restart is a later attempt too
    (checkpoints / ".planaria").unlink()
    with pytest.raises(PermanentError):
        desk.variables()


@pytest.mark.parametrize(
    ("text", "nodes", "counts"),
    [("1", 1, [1]), ("8(x4)", 4, [8] * 4), ("2(x2),1", 3, [2, 2, 1]), ("3,1(x2)", 3, [3, 1, 1])],
)
def test_tasks_per_node_are_read_as_slurm_writes_them(text: str, nodes: int, counts: list[int]) -> None:
    assert in_job.tasks(text, nodes) == counts


@pytest.mark.parametrize(("text", "nodes"), [("", 1), ("x", 1), ("2(x3)", 4), ("1,", 1)])
def test_what_cannot_be_read_is_said(text: str, nodes: int) -> None:
    with pytest.raises(InvalidInput, match="SLURM_TASKS_PER_NODE"):
        in_job.tasks(text, nodes)


def test_export_is_safe_for_a_shell(desk: Desk) -> None:
    (desk.folder / "job.json").write_text(json.dumps({"checkpoints": "/fsx/$(touch pwned)/'a b'"}))
    done = desk.run("--export")
    shown = subprocess.run(
        ["sh", "-c", f'{done.stdout}\nprintf %s "$PLANARIA_CHECKPOINTS"'],
        cwd=desk.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == "/fsx/$(touch pwned)/'a b'" and not (desk.folder / "pwned").exists()


def test_the_exit_status_is_the_commands(desk: Desk) -> None:
    assert desk.run("sh", "-c", "exit 7").returncode == 7
    assert desk.run("--", "sh", "-c", "exit 6").returncode == 6
    missing = desk.run("no-such-program")
    assert missing.returncode == 1 and missing.stderr == (
        "planaria-run: no-such-program: No such file or directory.\n"
    )


def test_sruns_own_distribution_is_warned_of(desk: Desk, tmp_path: Path) -> None:
    desk.tell()
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\nexit 0\n")
    srun.chmod(0o755)
    assert "leave it out" in desk.run(str(srun), "-m", "cyclic", "train").stderr
    assert desk.run(str(srun), "train").stderr == ""


def test_outside_of_a_job_it_says_so(desk: Desk) -> None:
    del desk.environment["SLURM_JOB_ID"]
    done = desk.run("true")
    assert done.returncode == 1 and "this is no batch job" in done.stderr


def test_a_job_of_sbatch_alone_runs_as_it_is(desk: Desk, tmp_path: Path) -> None:
    """Its Comment says nothing of a folder; without scontrol nobody can be asked."""
    del desk.environment["PLANARIA_FOLDER"]
    scontrol = tmp_path / "bin/scontrol"
    scontrol.parent.mkdir()
    desk.environment["PATH"] = f"{scontrol.parent}:{desk.environment['PATH']}"
    for comment in ("(null)", "mine"):
        scontrol.write_text(f"#!/bin/sh\necho 'JobId=1200 Comment={comment} Requeue=1'\n")
        scontrol.chmod(0o755)
        done = desk.run("env")
        assert done.returncode == 0 and "PLANARIA_ATTEMPT" not in done.stdout
    scontrol.write_text(
        "#!/bin/sh\necho 'JobId=1200 Comment=my x=1 run planaria?folder="
        f"{desk.folder}&ranks_per_node=2 StdErr=/dev/null'\n"
    )
    assert f"PLANARIA_FOLDER={desk.folder}" in desk.run("env").stdout
