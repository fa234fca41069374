"""What the training job does with its steps on disk: no torch needed."""

import os
from pathlib import Path

import pytest

from planaria.core.errors import PermanentError
from planaria.core.manifest import FILE_NAME, Lineage, Manifest
from planaria.core.pins import Pin
from planaria.core.saved_step import StepState
from planaria.sandbox import saved_steps
from planaria.sandbox.job_folder import JobFolder

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


def save(folder: JobFolder, step: int, attempt: int = 2, job: str = JOB) -> Path:
    begin(folder, step)
    saved_steps.commit(folder, step, 4, Lineage(job, attempt, max(step - 10, -1)), {"torch": "2.13.0"})
    return folder.step(step)


def kept(folder: JobFolder) -> list[int]:
    return [copy.step for copy in saved_steps.usable(folder, JOB)]


def test_nothing_was_ever_saved(folder: JobFolder) -> None:
    assert saved_steps.usable(folder, JOB) == []
    assert saved_steps.find(folder, 10, JOB) is None


def test_a_committed_step_is_complete(folder: JobFolder) -> None:
    save(folder, 10)
    found = saved_steps.find(folder, 10, JOB)
    assert found and found.state is StepState.COMPLETE and found.size == 1029
    assert not folder.step_in_progress(10).exists()
    manifest = Manifest.from_json((folder.step(10) / FILE_NAME).read_bytes())
    assert manifest.lineage == Lineage(JOB, 2, 0)
    assert (manifest.step, manifest.world_size, manifest.framework) == (10, 4, {"torch": "2.13.0"})


def test_a_flipped_bit_is_found(folder: JobFolder) -> None:
    data = save(folder, 10) / "__0_0.distcp"
    content = bytearray(data.read_bytes())
    content[500] ^= 1
    data.write_bytes(content)
    found = saved_steps.find(folder, 10, JOB)
    assert found and (found.state, found.reason) == (
        StepState.CORRUPT,
        "the checksum of '__0_0.distcp' is wrong",
    )


def test_a_later_attempts_step_is_newer(folder: JobFolder) -> None:
    for step, attempt in ((100, 1), (9, 2), (20, 2)):
        save(folder, step, attempt)
    assert kept(folder) == [20, 9, 100]


def test_commit_replaces_what_is_there(folder: JobFolder) -> None:
    (save(folder, 10) / ".metadata").unlink()
    save(folder, 10)
    assert kept(folder) == [10]
    save(folder, 10, attempt=3)
    assert kept(folder) == [10]
    found = saved_steps.find(folder, 10, JOB)
    assert found and found.lineage == Lineage(JOB, 3, 0)


def test_a_commit_that_was_killed_is_done_again(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(folder, 10)

    def killed(source: object, target: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            saved_steps.commit(folder, 10, 4, Lineage(JOB, 1), None)
    assert kept(folder) == []
    copy = saved_steps.store(folder, JOB).publish("step-10.tmp", "step-10")
    assert copy.usable and kept(folder) == [10]


def test_a_step_of_another_job_is_not_replaced(folder: JobFolder) -> None:
    save(folder, 10, job="job-2")
    begin(folder, 10)
    saved_steps.commit(folder, 10, 4, Lineage(JOB, 1))
    assert kept(folder) == [10]
    (aside,) = (name for name in os.listdir(folder.checkpoints) if name != "step-10")
    assert (folder.checkpoints / aside / FILE_NAME).exists()


def test_prune_keeps_the_newest_the_resume_point_and_what_is_pinned(folder: JobFolder) -> None:
    for step in (10, 20, 30, 40, 50, 60):
        save(folder, step)
    steps = saved_steps.store(folder, JOB)
    pinned = next(copy for copy in steps.steps() if copy.step == 30)
    steps.pin(pinned, Pin("look at this", "kim", 1.0))
    assert saved_steps.prune(folder, JOB, keep=2, protect=20) == [40, 10]
    assert kept(folder) == [60, 50, 30, 20]


def test_prune_counts_usable_steps_of_this_job_alone(folder: JobFolder) -> None:
    for step in (10, 20, 30):
        save(folder, step)
    (folder.step(30) / ".metadata").write_bytes(b"wrong size")
    save(folder, 40, job="job-2")
    begin(folder, 50)
    begin(folder, 5)
    assert saved_steps.prune(folder, JOB, keep=2, protect=-1) == []
    told = {copy.name: copy.state.value for copy in saved_steps.store(folder, JOB).steps()}
    assert told == {
        "step-10": "complete",
        "step-20": "complete",
        "step-30": "corrupt",
        "step-40": "foreign",
        "step-50.tmp": "partial",
    }


def test_publish_refuses_what_is_not_whole(folder: JobFolder) -> None:
    begin(folder, 10)
    with pytest.raises(PermanentError):
        saved_steps.store(folder, JOB).publish("step-10.tmp", "step-10")
    assert not folder.step(10).exists()
