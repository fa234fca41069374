"""`planaria submit` around an sbatch of our own that writes down what it was given."""

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from planaria.cli import target
from planaria.core.errors import TransientError
from planaria.slurm import kept_jobs, marks
from tests.cli.conftest import Answer, Bench

SBATCH = """#!/bin/sh
for word in "$@"; do printf '%s\\0' "$word"; done > "$SBATCH_SAW/words"
env -0 > "$SBATCH_SAW/environment"
cat > "$SBATCH_SAW/stdin" 2>/dev/null
[ -n "$SBATCH_REFUSES" ] && { echo "sbatch: error: $SBATCH_REFUSES" >&2; exit 1; }
echo "${SBATCH_PRINTS-1200}"
echo later > "$SBATCH_SAW/done"
"""
SCRIPT = """#!/bin/bash
#SBATCH --comment="my run" --ntasks-per-node=8
#SBATCH -J gpt # the big one
srun train
#SBATCH -N 9
"""


@dataclass
class Desk:
    """A user's shell: the command line, a script, and what sbatch saw of the last call."""

    bench: Bench
    place: Path

    def submit(self, *words: str) -> Answer:
        return self.bench.run("submit", *words)

    @property
    def words(self) -> list[str]:
        return (self.place / "saw/words").read_text().split("\0")[:-1]

    @property
    def environment(self) -> dict[str, str]:
        lines = (self.place / "saw/environment").read_text().split("\0")
        return dict(line.split("=", 1) for line in lines if "=" in line)

    @property
    def kept(self) -> Path:
        [folder] = (self.place / "kept").iterdir()
        return folder

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.kept / "job.json").read_text())
        return document

    @property
    def row(self) -> dict[str, Any]:
        return self.bench.gateways.jobs.job("1200") or {}


@pytest.fixture
def desk(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "sbatch").write_text(SBATCH)
    (programs / "sbatch").chmod(0o755)
    (tmp_path / "saw").mkdir()
    (tmp_path / "train.sh").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("SBATCH_SAW", str(tmp_path / "saw"))
    monkeypatch.setenv("PLANARIA_JOBS", str(tmp_path / "kept"))
    monkeypatch.setenv("API_TOKEN", "hunter2")
    return Desk(bench, tmp_path)


def test_sbatch_gets_its_words_and_the_ledger_the_job(desk: Desk) -> None:
    answer = desk.submit("--nodes=4", "-p", "gpu", "train.sh", "--lr", "0.1")
    assert (answer.status, answer.out) == (0, "Submitted batch job 1200\n")
    comment = next(word for word in desk.words if word.startswith("--comment="))
    assert desk.words == ["--nodes=4", "-p", "gpu", "--parsable", comment, "train.sh", "--lr", "0.1"]
    assert comment.startswith("--comment=my run planaria?")
    assert marks.read(comment.partition("=")[2]) == {"folder": str(desk.kept), "ranks_per_node": "8"}
    assert desk.environment["PLANARIA_FOLDER"] == str(desk.kept)
    row = desk.row
    assert (row["state"], row["names"], row["nodes"], row["attempt"]) == ("PENDING", [], {}, 1)
    assert (row["origin"], row["recipe"], row["ranks_per_node"], row["kept"]) == (
        "submit", "gpt", 8, str(desk.kept),
    )  # fmt: skip
    assert (row["script"], row["options"]) == ("train.sh", ["--nodes=4", "-p", "gpu"])
    assert (row["steps"], row["checkpoints"], row["own_failures"]) == (False, "own", "leave")


def test_what_is_kept_is_the_users_own_and_has_no_secrets(desk: Desk) -> None:
    os.environ["WORLD"] = "8"
    desk.submit("--keep", "WORLD", "-N4", "train.sh", "a b")
    assert stat.S_IMODE(desk.kept.stat().st_mode) == 0o700
    document = desk.document
    assert (document["options"], document["arguments"], document["script"]) == (["-N4"], ["a b"], "train.sh")
    assert (document["variables"], document["work_dir"]) == ({"WORLD": "8"}, str(desk.place))
    assert (desk.kept / "script/train.sh").read_text() == SCRIPT
    everything = "".join(path.read_text() for path in desk.kept.rglob("*") if path.is_file())
    assert "hunter2" not in everything and "hunter2" not in json.dumps(desk.row)
    assert kept_jobs.read(str(desk.kept)).script == f"{desk.kept}/script/train.sh"


def test_an_id_that_slurm_gives_out_a_second_time_is_the_new_jobs(desk: Desk) -> None:
    desk.submit("train.sh")
    jobs = desk.bench.gateways.jobs
    jobs.write("1200", {"user": "ada", "resume_number": 3, "given_up": "it fails", "ended_at": 1.0})
    jobs.write("1200", {"state": "COMPLETED"})
    desk.submit("--jobs", str(desk.place / "others"), "train.sh")
    row = desk.row
    assert (row["state"], row["attempt"], row["resume_number"]) == ("PENDING", 1, 3)
    assert "given_up" not in row and "ended_at" not in row and row["user"] != "ada"
    assert str(desk.place / "others") in row["kept"]


def test_what_may_hold_a_password_stays_in_the_users_folder(desk: Desk) -> None:
    desk.submit("--export=ALL,DB=hunter3", "--comment", "hunter3", "-N", "2", "train.sh")
    assert desk.row["options"] == ["-N", "2"] and "hunter3" not in json.dumps(desk.row)
    assert "--export=ALL,DB=hunter3" in desk.document["options"], "it is needed to submit the job again"


def test_checkpoints_are_the_jobs_lineage(desk: Desk) -> None:
    desk.submit("--checkpoints", "ck", "train.sh")
    folder = desk.place / "ck"
    assert desk.row["lineage"] == {"folder": str(folder)} and desk.row["own_failures"] == "resume"
    assert desk.document["checkpoints"] == str(folder)
    assert (folder / ".planaria").read_text() == "1200\n"


def test_a_job_that_goes_on_with_anothers_checkpoints_says_whose(desk: Desk) -> None:
    desk.submit("--checkpoints", "ck", "train.sh")
    os.environ["SBATCH_PRINTS"] = "1300;big"
    answer = desk.submit("--json", "--checkpoints", "ck", "train.sh")
    del os.environ["SBATCH_PRINTS"]
    assert answer.json["job_id"] == "1300" and answer.json["continues"] == "1200"
    assert answer.json["registered"] is True and answer.json["reason"] is None
    row = desk.bench.gateways.jobs.job("1300") or {}
    assert row["lineage"] == {"folder": str(desk.place / "ck"), "continues": "1200"}


def test_parsable_prints_the_id_alone(desk: Desk) -> None:
    assert desk.submit("--parsable", "train.sh").out == "1200\n"


def test_a_script_on_stdin_is_kept_and_passed_on(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.write(write, SCRIPT.encode())
    os.close(write)
    with open(read) as stream:  # noqa: PTH123  a file descriptor
        monkeypatch.setattr("sys.stdin", stream)
        assert desk.submit("-N", "2").status == 0
    assert (desk.place / "saw/stdin").read_text() == SCRIPT
    assert (desk.kept / "script/script.sh").read_text() == SCRIPT


def test_wrap_needs_no_script(desk: Desk) -> None:
    assert desk.submit("-N", "2", "--wrap", "sleep 9").status == 0
    assert desk.document["script"] == "" and "--wrap" in desk.document["options"]


@pytest.mark.parametrize("words", [("--array=0-3", "train.sh"), ("-a", "0-3", "train.sh")])
def test_a_job_array_is_passed_on_and_registered_later(desk: Desk, words: tuple[str, ...]) -> None:
    answer = desk.submit(*words)
    assert answer.status == 0 and desk.row == {}
    assert "each task of a job array is registered when its node fails" in answer.err


def test_a_heterogeneous_job_likewise(desk: Desk) -> None:
    (desk.place / "het.sh").write_text("#!/bin/bash\n#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N4\n")
    assert "heterogeneous" in desk.submit("het.sh").err and desk.row == {}


def test_without_a_ledger_the_job_is_submitted_all_the_same(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(name: str) -> target.Target:
        raise TransientError("DynamoDB does not answer")

    monkeypatch.setattr(target, "_aws", nothing)
    answer = desk.submit("train.sh")
    assert (answer.status, answer.out) == (0, "Submitted batch job 1200\n")
    assert "DynamoDB does not answer" in answer.err and "healed all the same" in answer.err
    assert desk.submit("--json", "train.sh").json["registered"] is False


def test_a_refusal_of_sbatch_is_its_own_and_leaves_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_REFUSES", "Batch job submission failed: Invalid account")
    answer = desk.submit("-A", "nobody", "train.sh")
    assert (answer.status, answer.out) == (1, "") and "planaria:" not in answer.err
    assert list((desk.place / "kept").iterdir()) == [] and desk.row == {}


def test_an_sbatch_that_prints_no_id_is_an_error(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_PRINTS", "queued, more or less")
    answer = desk.submit("train.sh")
    assert answer.status == 1 and "printed no job id but 'queued, more or less'" in answer.err


def test_only_a_test_submits_nothing(desk: Desk) -> None:
    assert desk.submit("--test-only", "train.sh").status == 0
    assert desk.words == ["--test-only", "train.sh"] and not (desk.place / "kept").exists()


def test_untrusted_words_reach_no_shell(desk: Desk) -> None:
    bad = ["$(touch pwned)", "`touch pwned`", "; touch pwned", "a\nb", "'", '"']
    (desk.place / "train.sh").rename(desk.place / "$(touch pwned).sh")
    assert desk.submit(f"--job-name={bad[0]}", "$(touch pwned).sh", *bad).status == 0
    assert desk.words[-len(bad) :] == bad
    assert not (desk.place / "pwned").exists() and desk.document["script"] == "-touch-pwned-.sh"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing.sh"], "The script 'nothing.sh' cannot be read: No such file or directory"),
        (["-N", "4"], "No script is given"),
        (["--nodes"], "--nodes needs a value"),
        (["plain.txt"], "is no batch script"),
        (["--keep", "NOT_THERE", "train.sh"], "no environment variable of that name"),
        (["--keep", "A=B", "train.sh"], "no environment variable of that name"),
        (["--jobs", "with a blank", "train.sh"], "use a path of letters"),
        (["--checkpoints", "train.sh", "train.sh"], "is no folder"),
        (["--jobs", "train.sh", "train.sh"], "Not a directory"),
        ([], "Missing argument"),
    ],
)
def test_bad_input_is_one_sentence(
    desk: Desk, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (desk.place / "plain.txt").write_text("srun train\n")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    answer = desk.submit(*words)
    assert answer.status == 2 and said in answer.err, answer
    assert answer.err.count("\n") == 1 and "Traceback" not in answer.err
    assert not (desk.place / "saw/words").exists()


def test_no_sbatch_is_said(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.sh").write_text(SCRIPT)
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = bench.run("submit", str(tmp_path / "train.sh"))
    assert answer.status == 2 and "There is no sbatch on PATH" in answer.err
