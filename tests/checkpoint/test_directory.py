"""FileCheckpoints beyond the port's contract: what only a file system can do to it."""

import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planaria.checkpoint import checksums, step_files, writing
from planaria.checkpoint.directory import FileCheckpoints, jobs_in
from planaria.core.errors import InvalidInput, PermanentError, TransientError
from planaria.core.manifest import FILE_NAME, PIN_NAME, Format, Lineage, Manifest, Shard
from planaria.core.pins import Pin
from planaria.core.saved_step import StepCopy, StepState, Tier
from tests.checkpoint import foreign
from tests.checkpoint.steps import FILES, JOB, flip, manifest, write

LATER = 4e9


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoints of 'job 1' ü"
    folder.mkdir()
    return folder


@pytest.fixture
def store(root: Path) -> FileCheckpoints:
    return FileCheckpoints(root, JOB)


def save(store: FileCheckpoints, step: int, name: str = "", **facts: Any) -> Path:
    name = name or f"step-{step}"
    path = write(Path(store.place(name)))
    store.commit(manifest(step, **facts), name)
    return path


def only(store: FileCheckpoints) -> StepCopy:
    (copy,) = store.steps()
    return copy


def failing(code: int, when: Callable[..., bool] = lambda *_: True) -> Callable[..., Any]:
    """A system call that fails so."""

    def call(*arguments: Any, **_: Any) -> Any:
        raise OSError(code, os.strerror(code), str(arguments[0]))

    return call


# --- listing -------------------------------------------------------------------------------------------


def test_every_odd_step_is_listed_with_its_reason(root: Path, store: FileCheckpoints) -> None:
    save(store, 10)
    (root / "step-20").mkdir()
    (root / "step-30").write_text("a file")
    (root / "step-40").symlink_to(root / "step-10")
    write(root / "step-50", foreign.dcp())
    (write(root / "step-60", foreign.dcp()) / "__0_0.distcp").unlink()
    write(root / "step-70", {"notes": b"1"})
    write(root / "step-x", foreign.dcp())
    write(root / f"step-{10**15}", foreign.dcp())
    shutil.copytree(root / "step-10", root / "step-80")
    shutil.copytree(root / "step-10", root / "step-90.tmp")
    told = {copy.name: (copy.step, copy.state.value, copy.sealable) for copy in store.steps()}
    assert told == {
        "step-10": (10, "complete", False),
        "step-20": (20, "partial", False),
        "step-30": (30, "foreign", False),
        "step-40": (40, "foreign", False),
        "step-50": (50, "foreign", True),
        "step-60": (60, "partial", False),
        "step-70": (70, "foreign", False),
        "step-x": (-1, "foreign", False),
        f"step-{10**15}": (10**15, "foreign", False),
        "step-80": (80, "corrupt", False),
        "step-90.tmp": (90, "partial", False),
    }
    assert all(copy.reason for copy in store.steps() if not copy.usable)


def test_what_was_added_to_a_step_does_not_matter(store: FileCheckpoints) -> None:
    path = save(store, 10)
    write(path, {"README ü.md": b"mine", "logs/a": b"1"})
    assert only(store).usable
    assert set(step_files.files(path)) == {*FILES, "README ü.md", "logs/a"}


def test_a_root_that_is_not_there_has_no_steps(tmp_path: Path) -> None:
    store = FileCheckpoints(tmp_path / "none", JOB)
    assert store.steps() == []
    assert store.sweep(LATER) == []
    assert jobs_in(tmp_path / "none") == {}
    with pytest.raises(PermanentError, match="cannot be written"):
        store.commit(manifest(10))


def test_a_file_system_that_is_away_says_nothing_about_its_steps(
    store: FileCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, 10)
    copy = only(store)
    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", failing(errno.ESTALE))
        with pytest.raises(TransientError, match="cannot be read"):
            store.steps()
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", failing(errno.ENOTCONN))
        with pytest.raises(TransientError, match="cannot be read"):
            store.verify(copy)
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", failing(errno.EIO))
        assert store.verify(copy).state is StepState.CORRUPT
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", failing(errno.EACCES))
        with pytest.raises(PermanentError, match="cannot be read"):
            store.steps()


def test_one_directory_that_may_not_be_read_hides_no_other(
    root: Path, store: FileCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, 10)
    save(store, 20)
    scan = os.scandir

    def denied(path: Any) -> Any:
        return failing(errno.EACCES)(path) if "step-20" in str(path) else scan(path)

    monkeypatch.setattr(os, "scandir", denied)
    told = {copy.step: copy for copy in store.steps()}
    assert told[10].usable
    assert told[20].state is StepState.FOREIGN and "Permission denied" in told[20].reason


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../step-10", "a\0"])
def test_a_name_leads_nowhere_else(store: FileCheckpoints, name: str) -> None:
    with pytest.raises(InvalidInput):
        store.look(name)


def test_verify_tells_the_bytes_it_has_read(root: Path) -> None:
    told: list[int] = []
    store = FileCheckpoints(root, JOB, Tier.FSX, told.append)
    save(store, 10)
    assert store.verify(only(store)).usable
    assert sum(told) == sum(map(len, FILES.values()))


def test_jobs_are_told_by_their_manifests(root: Path, store: FileCheckpoints) -> None:
    save(store, 10)
    save(store, 20)
    save(FileCheckpoints(root, "job-2"), 30, job="job-2")
    write(root / "step-40", {FILE_NAME: b"{"})
    assert jobs_in(root) == {JOB: 2, "job-2": 1}


def test_a_hundred_thousand_shards_are_listed_in_seconds(root: Path, store: FileCheckpoints) -> None:
    """One second of CPU; the limit leaves room for slower machines."""
    names = [f"part {number // 1000}/shard-{number:06}" for number in range(100_000)]
    for folder in {name.partition("/")[0] for name in names}:
        (root / "step-10" / folder).mkdir(parents=True)
    for name in names:
        os.mknod(f"{root}/step-10/{name}")
    shards = tuple(Shard(name, 0, "AAAAAAAAAAA=") for name in names)
    store.commit(Manifest(10, Lineage(JOB), 1, Format.PLANARIA, shards, 1.0))
    began = time.process_time()
    assert only(store).usable
    assert time.process_time() - began < 10
    (root / "step-10" / names[77_777]).unlink()
    assert only(store).reason == f"the file {names[77_777]!r} is missing"


# --- committing ----------------------------------------------------------------------------------------


def test_a_file_system_without_links_has_one_committer_too(
    root: Path, store: FileCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    path = write(root / "step-10")
    assert store.commit(manifest(10)) is True
    assert store.commit(manifest(10)) is False
    with pytest.raises(PermanentError, match="not overwritten"):
        store.commit(manifest(10, attempt=2))
    (path / FILE_NAME).write_bytes(manifest(10).to_json()[:40])  # a committer that died
    assert only(store).state is StepState.CORRUPT
    assert store.commit(manifest(10)) is True
    assert only(store).usable


@pytest.mark.parametrize("call", ["fsync", "link"])
def test_a_full_disk_leaves_no_manifest(
    root: Path, store: FileCheckpoints, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = write(root / "step-10")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(errno.ENOSPC))
        with pytest.raises(TransientError, match="No space left"):
            store.commit(manifest(10))
    assert sorted(os.listdir(path)) == ["model.bin", "parts"]
    assert store.commit(manifest(10))


def test_a_committer_that_was_killed_leaves_only_scratch(
    root: Path, store: FileCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(root / "step-10")
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", failing(errno.EIO))
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        with pytest.raises(TransientError):
            store.commit(manifest(10))
    (scratch,) = (name for name in os.listdir(path) if name.endswith(".tmp"))
    assert not only(store).usable
    assert store.commit(manifest(10)) and only(store).usable
    assert set(step_files.files(path)) == set(FILES)
    assert store.sweep(before=1.0) == [] and scratch in os.listdir(path)
    assert store.sweep(before=LATER) == [] and scratch not in os.listdir(path)
    assert only(store).usable


# --- publishing ----------------------------------------------------------------------------------------


def begin(store: FileCheckpoints, step: int, scratch: str = "", **facts: Any) -> str:
    scratch = scratch or f"step-{step}.tmp"
    save(store, step, scratch, **facts)
    return scratch


def test_a_whole_scratch_directory_gets_its_name(root: Path, store: FileCheckpoints) -> None:
    scratch = begin(store, 10)
    copy = store.publish(scratch, "step-10")
    assert copy.usable and copy == only(store)
    assert store.publish(scratch, "step-10") == copy
    assert os.listdir(root) == ["step-10"]


def test_what_stood_there_and_is_no_good_is_set_aside(root: Path, store: FileCheckpoints) -> None:
    (save(store, 10) / "model.bin").unlink()
    copy = store.publish(begin(store, 10), "step-10")
    assert copy.usable
    told = {each.name: each.state for each in store.steps()}
    (aside,) = told.keys() - {"step-10"}
    assert told == {"step-10": StepState.COMPLETE, aside: StepState.PARTIAL}
    assert store.sweep(LATER) == [aside]


def test_the_same_step_that_is_there_stays_and_the_scratch_goes(root: Path, store: FileCheckpoints) -> None:
    path = save(store, 10)
    inode = path.stat().st_ino
    store.publish(begin(store, 10, "step-10.restore.tmp"), "step-10")
    assert os.listdir(root) == ["step-10"] and path.stat().st_ino == inode


def test_another_good_step_is_never_replaced(root: Path, store: FileCheckpoints) -> None:
    save(store, 10)
    scratch = begin(store, 10, attempt=2)
    with pytest.raises(PermanentError, match="another usable copy"):
        store.publish(scratch, "step-10")
    assert sorted(os.listdir(root)) == ["step-10", "step-10.tmp"]


@pytest.mark.parametrize("damage", ["no manifest", "no shard", "other name", "other job", "gone"])
def test_what_is_not_whole_gets_no_name(root: Path, store: FileCheckpoints, damage: str) -> None:
    scratch, name = begin(store, 10), "step-10"
    match damage:
        case "no manifest":
            (root / scratch / FILE_NAME).unlink()
        case "no shard":
            (root / scratch / "model.bin").unlink()
        case "other name":
            name = "step-20"
        case "other job":
            store = FileCheckpoints(root, "job-2")
        case "gone":
            shutil.rmtree(root / scratch)
    with pytest.raises(PermanentError):
        store.publish(scratch, name)
    assert not (root / name).exists()


@pytest.mark.parametrize("at", range(6))
def test_a_publisher_that_is_killed_anywhere_is_repeated(
    root: Path, store: FileCheckpoints, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    (save(store, 10) / "model.bin").unlink()
    scratch = begin(store, 10)
    left = [at]

    class Killed(BaseException):
        pass

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            if left[0] == 0:
                left[0] = -1
                raise Killed
            left[0] -= 1
            return call(*arguments, **options)

        return run

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", dying(os.rename))
        patch.setattr(writing, "fsync_directory", dying(writing.fsync_directory))
        try:
            store.publish(scratch, "step-10")
        except Killed:
            pass
        assert all(copy.name == "step-10" for copy in store.steps() if copy.usable)
    assert store.publish(scratch, "step-10").usable
    assert [copy.name for copy in store.steps() if copy.usable] == ["step-10"]


# --- removing ------------------------------------------------------------------------------------------


def test_what_is_half_removed_is_no_step_and_is_swept(
    root: Path, store: FileCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, 10)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", failing(errno.EIO))
        with pytest.raises(TransientError):
            store.remove(only(store))
    assert store.steps() == []
    (left,) = os.listdir(root)
    assert store.sweep(before=1.0) == [left]
    assert os.listdir(root) == []


def test_a_link_is_removed_and_not_what_it_leads_to(
    root: Path, store: FileCheckpoints, tmp_path: Path
) -> None:
    elsewhere = write(tmp_path / "elsewhere")
    (root / "step-10").symlink_to(elsewhere)
    store.remove(only(store))
    assert os.listdir(root) == [] and (elsewhere / "model.bin").exists()


def test_sweep_leaves_what_may_be_somebodys(root: Path, store: FileCheckpoints) -> None:
    save(store, 10)
    (root / "step-20").mkdir()
    (write(root / "step-30", foreign.dcp()) / ".metadata").unlink()
    write(root / "step-40", foreign.dcp())
    (write(root / "step-50", foreign.dcp()) / "__0_0.distcp").unlink()
    (write(root / "step-60", foreign.safetensors()) / "config.json").unlink()
    write(root / "step-70.tmp")
    store.pin(only_named(store, "step-70.tmp"), Pin("evidence", "kim", 1.0))
    write(root / "notes.tmp")
    write(root / "step-80.restore.tmp")
    assert store.sweep(LATER, active=["step-80"]) == ["step-20", "step-30"]
    assert store.sweep(LATER) == ["step-80.restore.tmp"]
    assert (root / "step-70.tmp" / PIN_NAME).exists() and (root / "notes.tmp").exists()


def only_named(store: FileCheckpoints, name: str) -> StepCopy:
    copy = store.look(name)
    assert copy is not None
    return copy


def test_one_that_is_still_written_is_not_swept(root: Path, store: FileCheckpoints) -> None:
    path = write(root / "step-10.tmp", {"parts/deep/a": b"1"})
    for each in (path, *path.rglob("*")):
        os.utime(each, (100, 100))
    os.utime(path / "parts" / "deep" / "a", (300, 300))
    assert store.sweep(before=200) == []
    assert store.sweep(before=301) == ["step-10.tmp"]


def test_a_pin_that_cannot_be_read_still_pins(store: FileCheckpoints) -> None:
    path = save(store, 10)
    (path / PIN_NAME).write_bytes(b"\xff")
    assert only(store).pinned
    store.pin(only(store), Pin("why", "kim", 5.0))
    assert json.loads((path / PIN_NAME).read_bytes()) == {
        "version": 1,
        "reason": "why",
        "by": "kim",
        "at": 5.0,
    }
    flip(path / "model.bin")
    assert store.verify(only(store)).pinned == "why"


def test_of_files_is_what_verify_reads(store: FileCheckpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that shrinks between the look and the reading is corrupt as well."""
    path = save(store, 10)
    copy, read = only(store), checksums.of_files

    def meanwhile(root: Path, sizes: Any, progress: Any = None) -> Any:
        (path / "model.bin").write_bytes(b"short")
        return read(root, sizes, progress)

    monkeypatch.setattr(checksums, "of_files", meanwhile)
    assert store.verify(copy).state is StepState.CORRUPT
