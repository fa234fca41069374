"""`.metadata` read without PyTorch: what is DCP's is read, and whatever else a pickle asks for is not
done."""

import collections
import os
import pickle
import pickletools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planaria.checkpoint import dcp_metadata
from planaria.checkpoint.dcp_metadata import DcpMetadata, parse, read
from planaria.core.errors import InvalidInput

METADATA = "torch.distributed.checkpoint.metadata"
STORAGE = "torch.distributed.checkpoint.filesystem"


class Named:
    """Pickled as an object of a class that need not be there."""

    def __init__(self, module: str, name: str, state: Any) -> None:
        self.module, self.name, self.state = module, name, state


def pickled(value: Any) -> bytes:
    """Protocol 2, of plain values and Named ones, written opcode by opcode."""
    return b"\x80\x02" + _opcodes(value) + b"."


def _opcodes(value: Any) -> bytes:
    if isinstance(value, Named):
        begin = f"c{value.module}\n{value.name}\n".encode() + b")\x81"
        return begin + _opcodes(value.state) + b"b"
    if isinstance(value, dict):
        return b"}" + b"".join(_opcodes(k) + _opcodes(v) + b"s" for k, v in value.items())
    body = pickle.dumps(value, protocol=2)
    return body[2:-1]


def metadata(*stored: tuple[Any, Any, Any], **facts: Any) -> bytes:
    """stored: (path, offset, length) of each item."""
    infos = {
        Named(METADATA, "MetadataIndex", {"fqn": f"w{at}"}): Named(
            STORAGE, "_StorageInfo", {"relative_path": path, "offset": offset, "length": length}
        )
        for at, (path, offset, length) in enumerate(stored)
    }
    return pickled(Named(METADATA, "Metadata", {"state_dict_metadata": {}, "storage_data": infos, **facts}))


def test_the_files_and_their_ends() -> None:
    body = metadata(("__0_0.distcp", 0, 10), ("__0_0.distcp", 10, 5), ("__1_0.distcp", 0, 0), version="1.0.0")
    assert parse(body) == DcpMetadata({"__0_0.distcp": 15, "__1_0.distcp": 0}, "1.0.0")


class Evil:
    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (os.system, ("touch {}",), "posix.system"),
        (eval, ("open('{}', 'w')",), "builtins.eval"),
        (exec, ("open('{}', 'w')",), "builtins.exec"),
        (getattr, ("", "join"), "builtins.getattr"),
        (subprocess.Popen, (["touch", "{}"],), "subprocess.Popen"),
        (Path, ("a",), ""),
        (open, ("{}", "w"), "io.open"),
        (__import__, ("os",), "builtins.__import__"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_no_function_is_called(
    tmp_path: Path, function: Any, arguments: tuple[Any, ...], name: str, protocol: int
) -> None:
    mark = tmp_path / "mark"
    filled = tuple(a.format(mark) if isinstance(a, str) else a for a in arguments)
    path = tmp_path / ".metadata"
    path.write_bytes(pickle.dumps(Evil(function, *filled), protocol=protocol))
    with pytest.raises(InvalidInput, match="metadata") as raised:
        read(path)
    assert not mark.exists()
    if name and protocol == 4:
        assert f"asks for {name}" in str(raised.value)


@pytest.mark.parametrize(
    "asked",
    [
        ("torch", "load"),
        ("torch", "hub.load"),
        ("torch", "int8\nos"),
        ("torch.serialization", "load"),
        ("torch.distributed.checkpoint.metadata", "os.system"),
        ("pathlib", "os"),
        ("builtins", "type"),
        ("collections", "namedtuple"),
    ],
)
def test_only_the_metadatas_own_classes_are_admitted(asked: tuple[str, str]) -> None:
    body = b"\x80\x04" + b"".join(b"\x8c" + bytes([len(t)]) + t.encode() for t in asked) + b"\x93."
    with pytest.raises(InvalidInput):
        parse(body)


def test_a_pickle_cannot_change_what_the_next_one_meets() -> None:
    """BUILD with a pair sets attributes: on a class they would stay."""
    on_class = f"c{METADATA}\nMetadata\n".encode()
    for target in (on_class, f"c{STORAGE}\n_StorageInfo\n".encode()):
        body = (
            b"\x80\x02" + target + b"N" + pickle.dumps({"state": {"storage_data": {}}}, 2)[2:-1] + b"\x86b."
        )
        with pytest.raises(InvalidInput):
            parse(body)
    assert parse(metadata(("a", 0, 1))).files == {"a": 1}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "is no DCP metadata"),
        (b"garbage", "is no DCP metadata"),
        (pickle.dumps({"storage_data": {}}), "is no DCP metadata"),
        (pickle.dumps([1] * 100), "is no DCP metadata"),
        (metadata(), "names no files"),
        (metadata(("../model.bin", 0, 1)), "no path below"),
        (metadata(("/etc/passwd", 0, 1)), "no path below"),
        (metadata((7, 0, 1)), "no path below"),
        (metadata(("a", -1, 1)), "no length"),
        (metadata(("a", 0, True)), "no length"),
        (metadata(("a", 0, None)), "no length"),
        (metadata(("a", 0, 1))[:-20], "is no DCP metadata"),
    ],
)
def test_what_is_no_metadata_is_said(body: bytes, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        parse(body)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_error_of_ours(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        parse(b"\x80\x02" + body)


def nested(levels: int) -> bytes:
    """A tuple of two of the next, shared: to hash it takes 2 ** levels steps. It is a key of a dictionary."""
    value = b"(K\x01K\x02tq\x00" + b"".join(
        b"0h" + bytes([n]) + b"h" + bytes([n]) + b"\x86q" + bytes([n + 1]) for n in range(levels)
    )
    return b"\x80\x02}" + value + b"Ns."


BOMBS = {
    "a table of 64 GB": b"\x80\x02Nr\xff\xff\xff\xff.",
    "a byte array of 1 TB": b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",
    "a hash that takes years": nested(60),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_ends_in_a_process_of_its_own(
    tmp_path: Path, bomb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dcp_metadata, "_SECONDS", 0.5)
    path = tmp_path / ".metadata"
    path.write_bytes(BOMBS[bomb])
    with pytest.raises(InvalidInput, match=r"\.metadata"):
        read(path)


def test_the_shape_of_the_bombs() -> None:
    """They are what they say: well-formed pickles."""
    assert [op.name for op, _, _ in pickletools.genops(BOMBS["a table of 64 GB"])][2] == "LONG_BINPUT"
    assert list(pickletools.genops(nested(3)))
    assert pickle.loads(nested(3))  # noqa: S301  our own, and small


def test_one_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / ".metadata"
    with path.open("wb") as stream:
        stream.truncate(dcp_metadata.LARGEST + 1)
    with pytest.raises(InvalidInput, match="more than any"):
        read(path)


def test_reading_needs_no_torch_and_nothing_of_the_present_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('a module of the checkpoint')")
    (tmp_path / ".metadata").write_bytes(metadata(("a", 0, 1)))
    monkeypatch.chdir(tmp_path)
    assert read(Path(".metadata")).files == {"a": 1}
    code = "import sys; import planaria.checkpoint.command_line; sys.exit('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode
        == 0
    )


@pytest.mark.needs("torch")
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_what_pytorch_writes_is_read(tmp_path: Path, protocol: int) -> None:
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    types = (torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn)
    state = {
        "model": {
            f"w {number} ü": torch.zeros(number + 1, 3).to(dtype) for number, dtype in enumerate(types)
        },
        "optimizer": {"lr": 0.1, "nested": [{"a": collections.OrderedDict(b=(1, 2))}, None, "text"]},
    }
    with pytest.warns(UserWarning, match="single process"):
        save(state, storage_writer=FileSystemWriter(tmp_path, thread_count=2), no_dist=True)
    path = tmp_path / ".metadata"
    theirs = FileSystemReader(tmp_path).read_metadata()
    path.write_bytes(pickle.dumps(theirs, protocol=protocol))
    found = read(path)
    there = {each.name: each.stat().st_size for each in tmp_path.glob("*.distcp")}
    assert len(there) == 2
    assert found.files == there
    assert found.version == "1.0.0"
