"""Which steps the agent tells of, and which not."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from planaria.core.manifest import FILE_NAME, Format, Lineage, Manifest, Shard
from planaria.node.checkpoint_probe import LOOK_SECONDS, QUIET_SECONDS, CheckpointProbe

ME, OTHER = "i-0aaaaaaaaaaaaaaa1", "i-0aaaaaaaaaaaaaaa2"


class Watch:
    """A probe that is polled once in a while. jobs: the folder that it looks at."""

    def __init__(self, jobs: Path, node: str = ME) -> None:
        self.jobs, self.now = jobs, 1000.0
        self.probe = CheckpointProbe(jobs, node)

    def told(self, seconds: float = LOOK_SECONDS) -> list[tuple[str, int, int]]:
        self.now += seconds
        return [(d["job_id"], d["attempt"], d["step"]) for d in self.probe.poll(self.now)]


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    job(tmp_path)
    return Watch(tmp_path)


def job(jobs: Path, name: str = "gpt", first: str = ME, **more: Any) -> Path:
    folder = jobs / name
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    document = {"job_id": name, "attempt": 2, "placement": [first, OTHER], **more}
    (folder / "job.json").write_text(json.dumps(document))
    return folder / "checkpoints"


def save(folder: Path, step: int, attempt: int = 2, of: str = "gpt", name: str = "", size: int = 1) -> Path:
    made = Manifest(
        step, Lineage(of, attempt), 1, Format.PLANARIA, (Shard("weights", size, "AAAAAAAAAAA="),), 1.0
    )
    path = folder / (name or f"step-{step}")
    path.mkdir(exist_ok=True)
    (path / "weights").write_bytes(b"x" * size)
    (path / FILE_NAME).write_bytes(made.to_json())
    return path


def test_a_new_step_is_told_once(watch: Watch) -> None:
    assert watch.told() == []
    save(watch.jobs / "gpt/checkpoints", 20)
    assert watch.told() == [("gpt", 2, 20)]
    assert watch.told() == []
    save(watch.jobs / "gpt/checkpoints", 40)
    save(watch.jobs / "gpt/checkpoints", 60)
    assert watch.told() == [("gpt", 2, 40), ("gpt", 2, 60)]


def test_it_looks_once_a_second(watch: Watch) -> None:
    watch.told()
    save(watch.jobs / "gpt/checkpoints", 20)
    assert watch.told(LOOK_SECONDS / 2) == []
    assert watch.told(LOOK_SECONDS / 2) == [("gpt", 2, 20)]


def test_of_what_was_there_the_newest_alone_is_told(watch: Watch) -> None:
    for step, attempt in ((20, 1), (900, 1), (40, 2)):
        save(watch.jobs / "gpt/checkpoints", step, attempt)
    assert watch.told() == [("gpt", 2, 40)]
    assert watch.told() == []


def test_a_step_that_is_saved_anew_is_told_anew(watch: Watch) -> None:
    watch.told()
    path = save(watch.jobs / "gpt/checkpoints", 20, attempt=1)
    assert watch.told() == [("gpt", 1, 20)]
    (path / FILE_NAME).unlink()
    save(watch.jobs / "gpt/checkpoints", 20, size=77)
    assert watch.told() == [("gpt", 2, 20)]


def test_unfinished_foreign_and_broken_ones_are_not_told(watch: Watch) -> None:
    folder = watch.jobs / "gpt/checkpoints"
    watch.told()
    save(folder, 20, name="step-20.tmp")
    save(folder, 40, of="another")
    save(folder, 60, name="notes")
    broken = save(folder, 80)
    (broken / FILE_NAME).write_text("{")
    (folder / "step-100").write_text("no directory")
    (folder / "step-120").mkdir()
    assert watch.told() == []
    assert watch.told(QUIET_SECONDS * 3) == []


def test_the_node_of_rank_0_tells(tmp_path: Path) -> None:
    save(job(tmp_path), 20)
    assert Watch(tmp_path, OTHER).told() == []
    assert Watch(tmp_path, ME).told() == [("gpt", 2, 20)]


def test_a_step_without_a_manifest_is_told_once_it_is_quiet(watch: Watch) -> None:
    folder = watch.jobs / "gpt/checkpoints"
    watch.told()
    path = folder / "checkpoint-500"
    path.mkdir()
    (path / "model.safetensors").write_bytes(b"x")
    assert watch.told() == []
    assert watch.told(QUIET_SECONDS - 1) == []
    (path / "optimizer.pt").write_bytes(b"x")
    os.utime(path / "optimizer.pt", (5e9, 5e9))
    assert watch.told(2) == []
    assert watch.told(QUIET_SECONDS + 1) == [("gpt", 2, 500)]
    assert watch.told(QUIET_SECONDS + 1) == []


def test_the_folder_that_the_job_names_counts(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    jobs = tmp_path / "jobs"
    job(jobs, checkpoints=str(elsewhere))
    save(elsewhere, 20)
    assert Watch(jobs).told() == [("gpt", 2, 20)]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"job_id": "gpt"}', '{"job_id": "a", "attempt": "x"}'])
def test_a_job_that_cannot_be_read_is_passed_over(tmp_path: Path, text: str) -> None:
    save(job(tmp_path), 20)
    (tmp_path / "gpt/job.json").write_text(text)
    assert Watch(tmp_path).told() == []


def test_without_any_folder_nothing_is_told(tmp_path: Path) -> None:
    assert Watch(tmp_path / "none").told() == []
