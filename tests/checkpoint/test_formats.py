"""What is whole by its own index, and what is not, of steps that were written without a manifest."""

import json
from pathlib import Path

import pytest

from planaria.checkpoint import formats, safetensors_index, step_files
from planaria.checkpoint.formats import Look
from planaria.core.errors import InvalidInput
from planaria.core.manifest import Format
from planaria.core.saved_step import StepState
from tests.checkpoint import foreign
from tests.checkpoint.steps import write


def look(path: Path) -> Look:
    return formats.look(path, step_files.files(path))


def cut(path: Path, by: int = 1) -> None:
    path.write_bytes(path.read_bytes()[:-by])


def test_dcp(tmp_path: Path) -> None:
    found = look(write(tmp_path, foreign.dcp(ranks=3)))
    assert (found.state, found.format, found.world_size) == (StepState.FOREIGN, Format.DCP, 3)
    assert found.framework == {"dcp": "1.0.0"}
    assert found.last == ".metadata"


def test_dcp_in_folders_of_its_own(tmp_path: Path) -> None:
    """As Accelerate saves model and optimizer."""
    for part in ("pytorch_model_fsdp_0", "optimizer_0"):
        write(tmp_path / part, foreign.dcp())
    assert look(tmp_path).format is Format.DCP
    (tmp_path / "optimizer_0" / "__1_0.distcp").unlink()
    found = look(tmp_path)
    assert found.state is StepState.PARTIAL and "optimizer_0/__1_0.distcp" in found.reason


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (".metadata", "its .metadata"),
        ("__1_0.distcp", "the file __1_0.distcp, which .metadata names, is missing"),
    ],
)
def test_dcp_that_lacks_a_file(tmp_path: Path, name: str, words: str) -> None:
    (write(tmp_path, foreign.dcp()) / name).unlink()
    found = look(tmp_path)
    assert (found.state, found.format) == (StepState.PARTIAL, None) and words in found.reason


def test_dcp_that_is_cut_off(tmp_path: Path) -> None:
    cut(write(tmp_path, foreign.dcp()) / "__1_0.distcp")
    found = look(tmp_path)
    assert found.state is StepState.PARTIAL
    assert found.reason == "the file __1_0.distcp has 499 bytes, .metadata needs 500"


def test_dcp_whose_index_cannot_be_read(tmp_path: Path) -> None:
    cut(write(tmp_path, foreign.dcp()) / ".metadata", 20)
    found = look(tmp_path)
    assert (found.state, found.format) == (StepState.FOREIGN, None)
    assert "is no DCP metadata" in found.reason


def test_safetensors_with_an_index(tmp_path: Path) -> None:
    found = look(write(tmp_path, foreign.safetensors()))
    assert (found.state, found.format) == (StepState.FOREIGN, Format.SAFETENSORS)
    assert found.framework == {"transformers": "4.57.0"}


def test_one_safetensors_file(tmp_path: Path) -> None:
    assert (
        look(write(tmp_path, {"model.safetensors": foreign.tensors({"a": 5})})).format is Format.SAFETENSORS
    )


@pytest.mark.parametrize("by", [1, 100, 150, 250])
def test_safetensors_that_are_cut_off(tmp_path: Path, by: int) -> None:
    cut(write(tmp_path, foreign.safetensors()) / "model-00002-of-00002.safetensors", by)
    found = look(tmp_path)
    assert (found.state, found.format) == (StepState.PARTIAL, None) and "model-00002" in found.reason


def test_safetensors_that_lack_a_part(tmp_path: Path) -> None:
    write(tmp_path, foreign.safetensors(3))
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    assert "2 of the 3 files" in look(tmp_path).reason
    (tmp_path / "model.safetensors.index.json").unlink()
    assert look(tmp_path).state is StepState.PARTIAL


def test_an_index_that_names_what_is_not_held(tmp_path: Path) -> None:
    write(tmp_path, {"a.safetensors": foreign.tensors({"x": 3})})
    index = tmp_path / "a.safetensors.index.json"
    for held, words in (
        ({"x": "b.safetensors"}, "b.safetensors, which"),
        ({"x": "a.safetensors", "y": "a.safetensors"}, "lacks the tensor 'y'"),
        ({"x": "../a.safetensors"}, "no file beside it"),
        ({}, "has no weight_map"),
    ):
        index.write_text(json.dumps({"weight_map": held}))
        found = look(tmp_path)
        assert (found.state, found.format) == (StepState.PARTIAL, None) and words in found.reason


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\1",
        (1 << 63).to_bytes(8, "little") + b"{}",
        (100_000_001).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"{}" + b"more",
        (4).to_bytes(8, "little") + b"nope",
        foreign.tensors({}, a={"data_offsets": [0]}),
        foreign.tensors({}, a={"data_offsets": [-4, 0]}),
        foreign.tensors({}, a={"data_offsets": ["0", 0]}),
        foreign.tensors({}, a=7),
        foreign.tensors({"a": 4}, b={"data_offsets": [2, 4]}),
        (100_000).to_bytes(8, "little") + b"[" * 100_000,
    ],
)
def test_a_header_is_not_trusted(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(body)
    with pytest.raises(InvalidInput, match=r"a\.safetensors"):
        safetensors_index.tensors(path, len(body))


@pytest.mark.parametrize("body", [foreign.torch_file(), b"\x80\x02legacy pickle"])
def test_one_torch_file(tmp_path: Path, body: bytes) -> None:
    found = look(write(tmp_path, {"model.pt": body, "args.json": b"{}"}))
    assert (found.state, found.format, found.last) == (StepState.FOREIGN, Format.TORCH, "")


def test_a_torch_file_that_is_cut_off(tmp_path: Path) -> None:
    cut(write(tmp_path, {"model.pt": foreign.torch_file()}) / "model.pt", 40)
    found = look(tmp_path)
    assert found.state is StepState.PARTIAL and "cut off" in found.reason


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"a.pt": foreign.torch_file(), "b.pt": foreign.torch_file()}, "2 torch.save files"),
        ({"notes.txt": b"hello"}, "nothing that we can read"),
        ({"model.pt": b"hello"}, "nothing that we can read"),
    ],
)
def test_what_nothing_says_is_whole(tmp_path: Path, files: dict[str, bytes], words: str) -> None:
    found = look(write(tmp_path, files))
    assert (found.state, found.format) == (StepState.FOREIGN, None) and words in found.reason


@pytest.mark.parametrize("name", [".metadata.tmp", "model.pt.incomplete"])
def test_a_file_under_way_makes_it_partial(tmp_path: Path, name: str) -> None:
    found = look(write(tmp_path, foreign.dcp() | {name: b""}))
    assert (found.state, found.format) == (StepState.PARTIAL, None) and name in found.reason
