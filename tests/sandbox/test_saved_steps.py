"""Steps on disk and what is said about them: no torch needed."""

import json
import shutil
import time
from pathlib import Path

import pytest

from planaria.sandbox.job_folder import JobFolder
from planaria.sandbox.saved_steps import (
    MARKER,
    Lineage,
    SavedState,
    SavedStep,
    check_step,
    commit,
    list_steps,
    prune,
    read_marker,
)

JOB = "job-1"


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    return JobFolder(tmp_path)


def begin(folder: JobFolder, step: int) -> Path:
    scratch = folder.step_in_progress(step)
    scratch.mkdir(parents=True)
    (scratch / ".metadata").write_bytes(b"index")
    (scratch / "__0_0.distcp").write_bytes(bytes(range(256)) * 4)
    return scratch


def save(folder: JobFolder, step: int, job: str = JOB) -> Path:
    begin(folder, step)
    commit(folder, step, world_size=4, lineage=Lineage(job, attempt=2, parent_step=step - 10), request=None)
    return folder.step(step)


def only(folder: JobFolder) -> tuple[SavedState, str]:
    (saved,) = list_steps(folder, JOB)
    return saved.state, saved.reason


def test_nothing_was_ever_saved(folder: JobFolder) -> None:
    assert list_steps(folder, JOB) == []
    folder.checkpoints.mkdir()
    assert list_steps(folder, JOB) == []
    assert check_step(folder, 10, JOB) is None


def test_a_committed_step_is_complete(folder: JobFolder) -> None:
    save(folder, 10)
    assert list_steps(folder, JOB) == [SavedStep(10, SavedState.COMPLETE)]
    assert not folder.step_in_progress(10).exists()
    marker = read_marker(folder, 10)
    assert marker["lineage"] == {"job": JOB, "attempt": 2, "parent_step": 0}
    assert (marker["step"], marker["world_size"], marker["request"]) == (10, 4, None)
    assert {name: each["size"] for name, each in marker["files"].items()} == {
        ".metadata": 5,
        "__0_0.distcp": 1024,
    }


def test_newest_first_by_number(folder: JobFolder) -> None:
    for step in (9, 100, 20):
        save(folder, step)
    assert [each.step for each in list_steps(folder, JOB)] == [100, 20, 9]
    document = list_steps(folder, JOB)[0].document()
    assert 0 <= time.time() - document.pop("at") < 60
    assert document == {"step": 100, "state": "complete", "reason": ""}


def test_a_save_that_did_not_finish_is_partial(folder: JobFolder) -> None:
    begin(folder, 10)
    assert only(folder) == (SavedState.PARTIAL, "the save did not finish")


def test_a_marker_in_a_tmp_directory_does_not_count(folder: JobFolder) -> None:
    save(folder, 10).rename(folder.step_in_progress(10))
    assert only(folder) == (SavedState.PARTIAL, "the save did not finish")


def test_an_empty_directory_is_partial(folder: JobFolder) -> None:
    folder.step(10).mkdir(parents=True)
    assert only(folder) == (SavedState.PARTIAL, "the directory is empty")


def test_a_step_without_marker_is_partial(folder: JobFolder) -> None:
    (save(folder, 10) / MARKER).unlink()
    assert only(folder) == (SavedState.PARTIAL, "there is no commit marker")


def test_a_flipped_bit_is_corrupt(folder: JobFolder) -> None:
    data = save(folder, 10) / "__0_0.distcp"
    content = bytearray(data.read_bytes())
    content[500] ^= 1
    data.write_bytes(content)
    assert only(folder) == (SavedState.CORRUPT, "the checksum of __0_0.distcp is wrong")


def test_a_truncated_file_is_corrupt(folder: JobFolder) -> None:
    (save(folder, 10) / "__0_0.distcp").write_bytes(b"short")
    assert only(folder) == (
        SavedState.CORRUPT,
        "the file __0_0.distcp has 5 bytes, the commit marker says 1024",
    )


def test_a_missing_file_is_corrupt(folder: JobFolder) -> None:
    (save(folder, 10) / ".metadata").unlink()
    assert only(folder) == (SavedState.CORRUPT, "the file .metadata is missing")


@pytest.mark.parametrize(
    "marker",
    [b"", b"{", b"[]", b"{}", b'{"step": 10, "lineage": {"job": "job-1"}, "files": {"a": 1}}', b"\xff\xfe"],
)
def test_a_marker_that_cannot_be_read_is_corrupt(folder: JobFolder, marker: bytes) -> None:
    (save(folder, 10) / MARKER).write_bytes(marker)
    assert only(folder) == (SavedState.CORRUPT, "the commit marker cannot be read")


@pytest.mark.parametrize("name", ["../other", "/etc/passwd", "..", "a/b", ""])
def test_a_marker_cannot_lead_out_of_its_directory(folder: JobFolder, name: str) -> None:
    path = save(folder, 10) / MARKER
    marker = json.loads(path.read_text())
    marker["files"] = {name: {"size": 1, "sha256": ""}}
    path.write_text(json.dumps(marker))
    assert only(folder) == (
        SavedState.CORRUPT,
        f"the commit marker names {name!r}, which is no plain file name",
    )


def test_another_jobs_step_is_foreign(folder: JobFolder) -> None:
    save(folder, 10, job="job-2")
    assert only(folder) == (SavedState.FOREIGN, "it belongs to the job 'job-2'")


def test_a_renamed_step_is_corrupt(folder: JobFolder) -> None:
    save(folder, 10).rename(folder.step(500))
    assert only(folder) == (SavedState.CORRUPT, "the commit marker in step-500 is of step 10")


def test_a_second_spelling_of_a_number_does_not_hide_the_step(folder: JobFolder) -> None:
    shutil.copytree(save(folder, 10), folder.checkpoints / "step-0010")
    begin(folder, 10)
    assert only(folder) == (SavedState.COMPLETE, "")


def test_other_things_in_the_folder_are_no_steps(folder: JobFolder) -> None:
    save(folder, 10)
    for name in (
        "step-",
        "step-x",
        "step--1",
        "latest",
        "step-10.removed.tmp",
        "step-٣",
        f"step-{'9' * 5000}"[:200],
    ):
        (folder.checkpoints / name).mkdir()
    assert [each.step for each in list_steps(folder, JOB)] == [10]


def test_a_file_in_place_of_a_step_is_corrupt(folder: JobFolder) -> None:
    folder.checkpoints.mkdir()
    folder.step(10).write_text("")
    assert only(folder) == (SavedState.CORRUPT, "step-10 is no directory")


def test_commit_replaces_what_is_no_good(folder: JobFolder) -> None:
    (save(folder, 10) / ".metadata").unlink()
    save(folder, 10)
    assert only(folder) == (SavedState.COMPLETE, "")
    assert [each.name for each in folder.checkpoints.iterdir()] == ["step-10"]


def test_prune_keeps_the_newest_and_the_resume_point(folder: JobFolder) -> None:
    for step in (10, 20, 30, 40, 50):
        save(folder, step)
    assert prune(folder, JOB, keep=2, protect=20) == [30, 10]
    assert [each.step for each in list_steps(folder, JOB)] == [50, 40, 20]


def test_prune_counts_complete_steps_of_this_job_alone(folder: JobFolder) -> None:
    for step in (10, 20, 30):
        save(folder, step)
    (folder.step(30) / ".metadata").write_bytes(b"wrong")
    save(folder, 40, job="job-2")
    begin(folder, 50)
    begin(folder, 5)
    assert prune(folder, JOB, keep=2, protect=-1) == []
    assert [(each.step, each.state.value) for each in list_steps(folder, JOB)] == [
        (50, "partial"),
        (40, "foreign"),
        (30, "corrupt"),
        (20, "complete"),
        (10, "complete"),
    ]
