"""A manifest for what was written without us: only of what is whole, ours alone to write, and at rest."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from planaria.checkpoint import checksums, step_files
from planaria.checkpoint.directory import FileCheckpoints
from planaria.checkpoint.sealing import NotSealable, seal
from planaria.core.errors import Waiting
from planaria.core.manifest import FILE_NAME, PIN_NAME, Format, Lineage, Manifest, digest
from planaria.core.saved_step import StepState
from tests.checkpoint import foreign
from tests.checkpoint.steps import JOB, write

LINEAGE = Lineage(JOB, 2, 400)
LONG_AGO = 1_700_000_000.0


def old(directory: Path, at: float = LONG_AGO) -> Path:
    """Nothing of it was changed since."""
    for path in directory.rglob("*"):
        os.utime(path, (at, at))
    return directory


@pytest.fixture
def step(tmp_path: Path) -> Path:
    return old(write(tmp_path / "checkpoint-500", foreign.dcp()))


def sealed(directory: Path, **facts: Any) -> Manifest:
    return seal(directory, 500, LINEAGE, **facts)


def test_a_sealed_step_is_complete(step: Path) -> None:
    write(step, {"trainer state ü.json": b"{}", PIN_NAME: b"{}"})
    old(step)
    store = FileCheckpoints(step.parent, JOB)
    (before,) = store.steps()
    assert before.sealable
    manifest = sealed(step)
    assert store.commit(manifest, step.name)
    (copy,) = store.steps()
    assert copy.usable and store.verify(copy).usable
    assert (copy.step, copy.lineage, copy.saved_at) == (500, LINEAGE, LONG_AGO)
    assert (manifest.format, manifest.world_size) == (Format.DCP, 2)
    assert [shard.name for shard in manifest.shards] == [
        ".metadata",
        "__0_0.distcp",
        "__1_0.distcp",
        "trainer state ü.json",
    ]


@pytest.mark.parametrize("files", [foreign.safetensors(), {"model.pt": foreign.torch_file()}])
def test_other_formats(tmp_path: Path, files: dict[str, bytes]) -> None:
    directory = old(write(tmp_path / "checkpoint-500", files))
    assert {shard.name for shard in sealed(directory).shards} == set(files)


def test_sealed_twice_it_is_the_same_and_one_committer_writes_it(step: Path) -> None:
    def committed(number: int) -> tuple[bool, str]:
        manifest = sealed(step)
        return FileCheckpoints(step.parent, JOB).commit(manifest, step.name), digest(manifest.to_json())

    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(committed, range(8)))
    assert sorted(won for won, _ in told) == [False] * 7 + [True]
    assert len({digest for _, digest in told}) == 1
    assert [name for name in os.listdir(step) if "manifest" in name] == [FILE_NAME]


def test_checksums_from_elsewhere_are_taken(step: Path) -> None:
    sizes = {name: told.size for name, told in step_files.files(step).items()}
    sums = checksums.of_files(step, sizes)
    assert sealed(step, sums=sums) == sealed(step)


@pytest.mark.parametrize("change", ["grown", "gone", "new", "rewritten"])
def test_one_that_changes_meanwhile_is_being_written(step: Path, change: str) -> None:
    seen = step_files.files(step)
    sums = checksums.of_files(step, {name: told.size for name, told in seen.items()})
    data = step / "__0_0.distcp"
    if change == "gone":
        write(step, {"extra": b"1"})
        seen, sums = seen | {"gone": seen[".metadata"]}, sums | {"gone": sums[".metadata"]}
    elif change == "new":
        write(step, {"extra": b"1"})
    elif change == "grown":
        data.write_bytes(data.read_bytes() + b"x")
    else:
        data.write_bytes(b"u" * 500)
    with pytest.raises(Waiting, match="being written"):
        sealed(step, sums=sums, seen=seen, quiet_seconds=0)


def test_one_that_changes_while_it_is_read_is_being_written(
    step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = checksums.of_files

    def meanwhile(root: Path, sizes: Any, progress: Any = None) -> Any:
        found = read(root, sizes, progress)
        (root / "__0_0.distcp").write_bytes(b"u" * 500)
        return found

    monkeypatch.setattr(checksums, "of_files", meanwhile)
    with pytest.raises(Waiting, match="being written"):
        sealed(step, quiet_seconds=0)


def test_where_no_file_is_written_last_it_must_rest(tmp_path: Path) -> None:
    directory = old(write(tmp_path / "checkpoint-500", foreign.safetensors()))
    with pytest.raises(Waiting, match="30 s ago"):
        sealed(directory, now=LONG_AGO + 30)
    assert sealed(directory, now=LONG_AGO + 61)
    assert sealed(directory, now=LONG_AGO - 1e6), "a clock that is far ahead tells nothing"


def test_dcp_is_at_rest_once_its_metadata_is_there(step: Path) -> None:
    assert sealed(step, now=LONG_AGO)
    os.utime(step / "__0_0.distcp", (LONG_AGO + 5, LONG_AGO + 5))
    with pytest.raises(Waiting):
        sealed(step, now=LONG_AGO + 6)
    assert sealed(step, now=LONG_AGO + 66)


@pytest.mark.parametrize(
    ("name", "number", "state"),
    [
        ("checkpoint-500.tmp", 500, StepState.PARTIAL),
        ("checkpoint-501", 500, StepState.FOREIGN),
        ("latest", 500, StepState.FOREIGN),
        (f"checkpoint-{10**15}", 10**15, StepState.FOREIGN),
    ],
)
def test_the_name_must_be_the_steps(step: Path, name: str, number: int, state: StepState) -> None:
    moved = step.rename(step.with_name(name))
    with pytest.raises(NotSealable) as raised:
        seal(moved, number, LINEAGE)
    assert raised.value.state is state


def test_a_number_far_above_the_others_needs_a_parent(step: Path) -> None:
    far = old(write(step.with_name("checkpoint-700000000"), foreign.dcp()))
    with pytest.raises(NotSealable, match="far above the job's step 500"):
        seal(far, 700_000_000, Lineage(JOB))
    assert seal(far, 700_000_000, Lineage(JOB, 1, 699_000_000))
    assert sealed(step)


def test_what_is_not_whole_is_not_sealed(step: Path) -> None:
    (step / "__1_0.distcp").unlink()
    with pytest.raises(NotSealable, match=r"__1_0\.distcp") as raised:
        sealed(step)
    assert raised.value.state is StepState.PARTIAL
    with pytest.raises(NotSealable, match="no directory"):
        sealed(step.with_name("step-500"))


@pytest.mark.needs("torch")
def test_a_step_that_pytorch_wrote_is_sealed_and_loaded(tmp_path: Path) -> None:
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save

    directory = tmp_path / "step-500"
    state: dict[str, Any] = {"weights ü": torch.arange(1000.0), "step": 500, "text": ["a", {"b": None}]}
    with pytest.warns(UserWarning, match="single process"):
        save(state, storage_writer=FileSystemWriter(directory, thread_count=2), no_dist=True)
    store = FileCheckpoints(tmp_path, JOB)
    (copy,) = store.steps()
    assert copy.sealable and copy.format is Format.DCP
    assert store.commit(sealed(directory))
    (copy,) = store.steps()
    assert store.verify(copy).usable
    loaded: dict[str, Any] = {"weights ü": torch.zeros(1000), "step": 0}
    with pytest.warns(UserWarning, match="single process"):
        load(loaded, storage_reader=FileSystemReader(directory), no_dist=True)
    assert loaded["step"] == 500 and torch.equal(loaded["weights ü"], state["weights ü"])

    (directory / FILE_NAME).unlink()
    data = directory / "__0_0.distcp"
    data.write_bytes(data.read_bytes()[:-1])
    (copy,) = store.steps()
    assert copy.state is StepState.PARTIAL and "__0_0.distcp" in copy.reason


@pytest.mark.needs("torch")
def test_a_torch_save_file_is_sealed_unread(tmp_path: Path) -> None:
    import torch

    directory = tmp_path / "step-500"
    directory.mkdir()
    torch.save({"weights": torch.arange(1000.0)}, directory / "model.pt")
    old(directory)
    manifest = sealed(directory)
    assert (manifest.format, [shard.name for shard in manifest.shards]) == (Format.TORCH, ["model.pt"])
    body = (directory / "model.pt").read_bytes()
    for length in (1, 100, len(body) // 2, len(body) - 1):
        (directory / "model.pt").write_bytes(body[:length])
        with pytest.raises(NotSealable):
            sealed(directory, quiet_seconds=0)


def test_nothing_leads_out_of_the_step(step: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (step / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(NotSealable, match="no regular file"):
        sealed(step)
    (step / "link").unlink()
    os.mkfifo(step / "pipe")
    with pytest.raises(NotSealable, match="no regular file"):
        sealed(step)
    (step / "pipe").unlink()
    with open(os.fsencode(step) + b"/\xff", "w"):  # noqa: PTH123  a name that no str has
        pass
    with pytest.raises(NotSealable, match="a name that S3 cannot hold"):
        sealed(step)
