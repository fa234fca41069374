"""`.metadata` of torch.distributed.checkpoint (DCP): which files a checkpoint has and how long they are.

The file is a pickle, and a pickle may name any function to be called. This reader admits DCP's own metadata
classes, each of them a stand-in that only keeps what it is given, so PyTorch need not be there. It works in a
process of its own with a ceiling on memory and time: a few bytes can also ask for a table of many gigabytes,
or for a hash that takes years.

The layout is that of FileSystemWriter in torch/distributed/checkpoint/filesystem.py, PyTorch 2.1 to 2.13.
"""

import contextlib
import io
import json
import os
import pickle
import re
import resource
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from planaria.core.errors import InvalidInput
from planaria.core.manifest import is_plain

LARGEST = 2 << 30
"""Bytes of a `.metadata` that is read at all: one of a thousand ranks with a thousand tensors has a tenth."""
_HOME = str(Path(__file__).resolve().parents[2])
_SECONDS = 30.0
_SECONDS_PER_BYTE = 2e-6
_MEMORY = 512 << 20
_MEMORY_PER_BYTE = 60


@dataclass(frozen=True, slots=True)
class DcpMetadata:
    """files: path below the directory -> the bytes that it has at least. version: DCP's own, "" if untold."""

    files: dict[str, int]
    version: str = ""


def read(path: Path) -> DcpMetadata:
    """Raises InvalidInput with one sentence, OSError where the file cannot be read."""
    size = path.stat().st_size
    if size > LARGEST:
        raise InvalidInput(f"{path.name} has {size} bytes, more than any DCP metadata")
    seconds = _SECONDS + size * _SECONDS_PER_BYTE
    command = [sys.executable, "-m", "planaria.checkpoint.dcp_metadata", str(path.absolute())]
    try:
        ended = subprocess.run(
            command,
            cwd="/",  # what lies in the present directory is no module of ours
            env={**os.environ, "PYTHONPATH": _HOME},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=2 * seconds,
            check=False,
        )
        told = json.loads(ended.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        raise InvalidInput(
            f"{path.name} cannot be read within the memory and time that its {size} bytes may take"
        ) from None
    if "error" in told:
        raise InvalidInput(f"{path.name} {told['error']}")
    return DcpMetadata({str(name): int(end) for name, end in told["files"].items()}, str(told["version"]))


def parse(body: bytes) -> DcpMetadata:
    """Only in a process that may be lost. Raises InvalidInput; the sentence begins with a verb."""
    try:
        found = _Reader(io.BytesIO(body)).load()
    except InvalidInput:
        raise
    except Exception as error:  # noqa: BLE001  what a broken pickle raises is not told anywhere
        raise InvalidInput(f"is no DCP metadata ({type(error).__name__})") from None
    state = _state_of(found, "Metadata")
    stored = state.get("storage_data")
    if not isinstance(stored, dict) or not stored:
        raise InvalidInput("names no files")
    files: dict[str, int] = {}
    for each in stored.values():
        info = _state_of(each, "_StorageInfo")
        name, offset, length = info.get("relative_path"), info.get("offset"), info.get("length")
        if not isinstance(name, str) or not is_plain(name):
            raise InvalidInput(f"names {name!r:.200}, which is no path below its directory")
        if type(offset) is not int or type(length) is not int or offset < 0 or length < 0:
            raise InvalidInput(f"tells no length of {name!r:.200}")
        files[name] = max(files.get(name, 0), offset + length)
    version = state.get("version")
    return DcpMetadata(files, version if isinstance(version, str) else "")


class _Closed(type):
    """A pickle cannot change a class of this kind: the next file would meet it."""

    def __setattr__(cls, name: str, value: object) -> NoReturn:
        raise AttributeError(name)


class _Record(metaclass=_Closed):
    """Keeps what a pickle gives to any of DCP's classes. Two of them are never equal, so that none is hashed
    by what it holds."""

    __slots__ = ("given", "state")
    given: tuple[object, ...]
    state: object

    def __new__(cls, *given: object) -> "_Record":
        record = super().__new__(cls)
        record.given, record.state = given, None
        return record

    def __setstate__(self, state: object) -> None:
        self.state = state


def _record(name: str) -> _Closed:
    return _Closed(name, (_Record,), {"__slots__": ()})


_METADATA = "torch.distributed.checkpoint.metadata"
_SHARDED = "torch.distributed._shard.sharded_tensor.metadata"
_CLASSES: dict[tuple[str, str], Any] = {
    (module, name): _record(name)
    for module, names in (
        (_METADATA, "Metadata MetadataIndex TensorStorageMetadata BytesStorageMetadata ChunkStorageMetadata"),
        (_METADATA, "TensorProperties _MEM_FORMAT_ENCODING StorageMeta"),
        (_SHARDED, "TensorProperties MEM_FORMAT_ENCODING"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo _StoragePrefix"),
        ("torch", "Size device"),
        ("torch.serialization", "_get_layout"),
        ("pathlib", "Path PosixPath PurePosixPath"),
        ("pathlib._local", "PosixPath PurePosixPath"),
    )
    for name in names.split()
} | {("collections", "OrderedDict"): OrderedDict}
_TYPE = re.compile(
    r"(q?u?int|bfloat|float|complex|bits)[0-9]+(x[0-9]+)?(_?e[0-9]+m[0-9]+[a-z0-9_]*)?|bool|strided"
)
"""Names of torch's element types and of its layout: constants, here their names."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _CLASSES:
            return _CLASSES[module, name]
        if module == "torch" and _TYPE.fullmatch(name):
            return name
        raise InvalidInput(
            f"asks for {module}.{name}"[:200] + ", which no DCP metadata needs: it is not read"
        )


def _state_of(found: object, name: str) -> dict[str, Any]:
    if type(found).__name__ != name or not isinstance(found, _Record) or not isinstance(found.state, dict):
        raise InvalidInput("is no DCP metadata of the file system writer")
    return found.state


def _main(name: str, say: Callable[[str], object]) -> None:
    path = Path(name)
    size = path.stat().st_size
    memory = _MEMORY + _MEMORY_PER_BYTE * size
    seconds = int(_SECONDS + size * _SECONDS_PER_BYTE) + 1
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for what, ceiling in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds)):
        with contextlib.suppress(ValueError, OSError):  # a lower one is set already
            resource.setrlimit(what, (ceiling, ceiling))
    try:
        found = parse(path.read_bytes())
    except InvalidInput as error:
        say(json.dumps({"error": str(error)}))
    else:
        say(json.dumps({"files": found.files, "version": found.version}))


if __name__ == "__main__":
    _main(sys.argv[1], sys.stdout.write)
