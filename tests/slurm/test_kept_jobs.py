"""A job that Slurm has forgotten is submitted again from what was kept, once, and as its owner."""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from planaria.core.errors import InvalidInput
from planaria.slurm import kept_jobs, marks
from planaria.slurm.programs import Done, Slurm, SlurmError

SCRIPT = b"#!/bin/sh\nsrun train\n"
SBATCH = """#!/bin/sh
for word in "$@"; do printf '%s\\0' "$word"; done > {saw}/words
env -0 > {saw}/environment
id -u > {saw}/uid
pwd > {saw}/cwd
[ -e {saw}/refuse ] && {{ echo "sbatch: error: Invalid partition" >&2; exit 1; }}
cat {saw}/prints
"""


class Desk:
    """A kept folder, an sbatch that writes down what it got, and what squeue lists."""

    def __init__(self, place: Path) -> None:
        self.place, self.folder = place, place / "jobs/one"
        self.listed = ""
        (place / "saw").mkdir()
        (place / "saw/prints").write_text("1300\n")
        sbatch = place / "bin/sbatch"
        sbatch.parent.mkdir()
        sbatch.write_text(SBATCH.format(saw=place / "saw"))
        sbatch.chmod(0o755)

    def keep(self, **facts: Any) -> None:
        document = {
            "options": ["-N", "4", "--dependency=afterok:7", "-b", "now+1hour", "-p", "gpu"],
            "script": "train.sh",
            "arguments": ["--lr", "0.1; true"],
            "variables": {"WORLD": "8"},
            "work_dir": "/fsx/ada",
            "checkpoints": "",
            "ranks_per_node": 8,
            "comment": "my run",
            "submitted_at": 1.0,
        }
        document |= facts
        kept_jobs.write(self.folder, document, SCRIPT if document["script"] else None)

    def run(self, arguments: Sequence[str], seconds: float) -> Done:
        assert arguments[0] == "squeue" and seconds > 0
        return Done(0, self.listed, "")

    def resubmit(self, attempt: int = 3) -> str:
        return kept_jobs.resubmit(str(self.folder), "1200", attempt, Slurm(run=self.run))

    def saw(self, what: str) -> list[str]:
        return (self.place / "saw" / what).read_text().split("\0")[:-1]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("ROOTS_SECRET", "hunter2")
    return Desk(tmp_path)


def test_it_is_submitted_held_with_what_was_kept_and_nothing_else(desk: Desk) -> None:
    desk.keep()
    assert desk.resubmit() == "1300"
    words = desk.saw("words")
    comment = next(word for word in words if word.startswith("--comment="))
    assert words == [
        "-N", "4", "-p", "gpu", "--parsable", "--hold", "--chdir=/fsx/ada", comment,
        f"{desk.folder}/script/train.sh", "--lr", "0.1; true",
    ]  # fmt: skip
    assert comment.startswith("--comment=my run planaria?")
    assert marks.read(comment.partition("=")[2]) == {
        "folder": str(desk.folder), "job": "1200", "again": "3", "ranks_per_node": "8",
    }  # fmt: skip
    names = {line.partition("=")[0] for line in desk.saw("environment")}
    assert "WORLD" in names and not {"ROOTS_SECRET", "SLURM_JOB_ID"} & names


def test_asked_twice_it_is_one_job(desk: Desk) -> None:
    desk.keep()
    mark = {"folder": str(desk.folder), "job": "1200", "again": "3", "ranks_per_node": "8"}
    mine, others = os.getuid(), os.getuid() + 1
    theirs, ours = marks.write("", mark), marks.write("my run", mark)
    desk.listed = f"7 0 \n8 0 (null)\n1299 {others} {theirs}\n1301 {mine} {ours}\n"
    assert desk.resubmit() == "1301" and not (desk.place / "saw/words").exists()
    assert desk.resubmit(attempt=4) == "1300", "another attempt is another job"


def test_a_refusal_is_said_in_slurms_words(desk: Desk) -> None:
    desk.keep()
    (desk.place / "saw/refuse").touch()
    with pytest.raises(SlurmError, match="Invalid partition"):
        desk.resubmit()


def test_an_answer_that_is_no_id_is_an_error(desk: Desk) -> None:
    desk.keep()
    (desk.place / "saw/prints").write_text("Submitted batch job 1300\n")
    with pytest.raises(SlurmError, match="printed no job id"):
        desk.resubmit()


def test_a_wrapped_command_has_no_script(desk: Desk) -> None:
    desk.keep(script="", arguments=[], options=["--wrap=date"])
    desk.resubmit()
    assert desk.saw("words")[0] == "--wrap=date" and "script" not in " ".join(desk.saw("words")[5:])


def test_a_folder_that_is_not_there(desk: Desk) -> None:
    with pytest.raises(InvalidInput, match="is not there"):
        desk.resubmit()


@pytest.mark.parametrize("what", ["", "job.json"])
def test_what_others_could_have_written_is_not_used(desk: Desk, what: str) -> None:
    desk.keep()
    (desk.folder / what).chmod(0o777)
    with pytest.raises(InvalidInput, match="can be written by others"):
        desk.resubmit()


@pytest.mark.parametrize("what", ["", "job.json"])
def test_a_link_is_not_followed(desk: Desk, what: str) -> None:
    desk.keep()
    real = desk.folder / what
    moved = desk.place / "moved"
    real.rename(moved)
    real.symlink_to(moved)
    with pytest.raises(InvalidInput):
        desk.resubmit()
    assert not (desk.place / "saw/words").exists()


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "{}", '{"version": 2}',
        json.dumps({"version": 1, "options": [1], "arguments": [], "script": "", "work_dir": "/"}),
        json.dumps({"version": 1, "options": [], "arguments": [], "script": "../x", "work_dir": "/"}),
    ],
)  # fmt: skip
def test_a_document_that_is_not_ours(desk: Desk, text: str) -> None:
    desk.keep()
    (desk.folder / "job.json").write_text(text)
    with pytest.raises(InvalidInput, match="is not what `planaria submit`"):
        desk.resubmit()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be asked for another user's job")
def test_it_is_the_owners_job_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = 65534
    with tempfile.TemporaryDirectory() as made:  # pytest's own folders let no other user in
        place = Path(made)
        place.chmod(0o755)
        monkeypatch.setenv("PATH", f"{place}/bin:{os.environ['PATH']}")
        desk = Desk(place)
        desk.keep()
        for path in (desk.folder, *desk.folder.rglob("*")):
            os.chown(path, nobody, nobody)
        (place / "saw").chmod(0o777)
        assert desk.resubmit() == "1300"
        assert (place / "saw/uid").read_text().strip() == str(nobody)


@pytest.mark.parametrize(
    "options", [["--array=1-3"], ["-a", "1-3%2"], ["-a1-3"], ["--array", "1-3", "-p", "gpu"]]
)
def test_of_an_array_one_task_alone_is_submitted_again(desk: Desk, options: list[str]) -> None:
    desk.keep(options=["-N", "2", *options])
    assert kept_jobs.resubmit(str(desk.folder), "1200_2", 3, Slurm(run=desk.run)) == "1300_2"
    words = desk.saw("words")
    assert [word for word in words if word.startswith(("--array", "-a")) or "1-3" in word] == ["--array=2"]
    assert words[:2] == ["-N", "2"]


def test_an_array_of_the_script_is_overridden_too(desk: Desk) -> None:
    desk.keep(options=[])
    (desk.folder / "script/train.sh").write_bytes(b"#!/bin/sh\n#SBATCH --array=1-1000\nsrun train\n")
    assert kept_jobs.resubmit(str(desk.folder), "1200_17", 2, Slurm(run=desk.run)) == "1300_17"
    assert desk.saw("words")[0] == "--array=17", "what sbatch is told goes before what the script says"
    (desk.place / "saw/words").unlink()
    with pytest.raises(InvalidInput, match="job 1200 was submitted as a job array"):
        desk.resubmit()
    assert not (desk.place / "saw/words").exists()


def test_asked_twice_a_task_is_one_job(desk: Desk) -> None:
    desk.keep(options=["--array=1-3"])
    mark = {"folder": str(desk.folder), "job": "1200_2", "again": "3", "ranks_per_node": "8"}
    desk.listed = f"1301_2 {os.getuid()} {marks.write('my run', mark)}\n"
    assert kept_jobs.resubmit(str(desk.folder), "1200_2", 3, Slurm(run=desk.run)) == "1301_2"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look with another user's rights")
def test_root_looks_with_the_owners_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS with root_squash, where root may not enter a user's folder; seen by who asks the kernel."""
    nobody = 65534
    with tempfile.TemporaryDirectory(prefix="planaria-", dir="/tmp") as place:
        Path(place).chmod(0o755)
        folder = Path(place) / "home/jobs/one"
        kept_jobs.write(folder, {"options": [], "script": "", "arguments": [], "work_dir": "/"}, None)
        for path in (folder.parent.parent, folder.parent, folder, folder / kept_jobs.DOCUMENT):
            os.chown(path, nobody, nobody)
        folder.parent.parent.chmod(0o700)
        asked: list[int] = []
        real, lstat = os.open, os.lstat

        def watched(*words: Any, **more: Any) -> int:
            asked.append(os.geteuid())
            return real(*words, **more)

        def squashed(path: Any) -> os.stat_result:
            if os.geteuid() == 0 and Path(path).is_relative_to(folder.parent):
                raise PermissionError(13, "Permission denied", str(path))
            return lstat(path)

        monkeypatch.setattr(kept_jobs.os, "open", watched)
        monkeypatch.setattr(kept_jobs.os, "lstat", squashed)
        kept = kept_jobs.read(str(folder))
        monkeypatch.undo()
    assert kept.uid == nobody
    assert set(asked) == {nobody}
    assert os.geteuid() == 0
