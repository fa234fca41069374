"""safetensors: which files a checkpoint has and how long each must be, from its headers and its index.

A file is eight bytes with the header's length (little endian), the header (JSON: tensor -> dtype, shape,
data_offsets) and the tensors, one after the other to the very end. An index is JSON with `weight_map`: tensor
-> file. https://huggingface.co/docs/safetensors/index#format
"""

import json
from pathlib import Path
from typing import Any

from planaria.core.errors import InvalidInput
from planaria.core.manifest import is_plain

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
LONGEST_HEADER = 16 << 20
"""Bytes: some 150,000 tensors in one file. The library takes 100 MB, which as lists of lists would fill
gigabytes here."""
LARGEST_INDEX = 32 << 20
"""Bytes: some 300,000 tensors."""
_LENGTH = 8


class TooLarge(InvalidInput):
    """It may be whole: it is more than is read."""


def tensors(path: Path, size: int) -> frozenset[str]:
    """The names of a file's tensors. size: bytes that the file has. Raises InvalidInput where it is not
    whole, OSError where it cannot be read."""
    with path.open("rb") as stream:
        told = stream.read(_LENGTH)
        length = int.from_bytes(told, "little")
        if len(told) < _LENGTH or not 2 <= length <= size - _LENGTH:
            raise InvalidInput(f"{path.name} is cut off in its header, or is no safetensors file")
        if length > LONGEST_HEADER:
            raise TooLarge(f"the header of {path.name} has {length} bytes, at most {LONGEST_HEADER} are read")
        header = _object(stream.read(length), f"the header of {path.name}")
    header.pop("__metadata__", None)
    spans = sorted(_span(path.name, name, told) for name, told in header.items())
    end = 0
    for start, stop in spans:
        if start != end:
            raise InvalidInput(f"the tensors in {path.name} do not follow one another")
        end = stop
    if _LENGTH + length + end != size:
        raise InvalidInput(f"{path.name} has {size} bytes, its header says {_LENGTH + length + end}")
    return frozenset(header)


def weight_map(path: Path, size: int) -> dict[str, set[str]]:
    """file beside the index -> the tensors that it must hold. Raises InvalidInput and OSError as
    `tensors`."""
    if size > LARGEST_INDEX:
        raise TooLarge(f"{path.name} has {size} bytes, at most {LARGEST_INDEX} are read")
    named = _object(path.read_bytes(), path.name).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise InvalidInput(f"{path.name} has no weight_map")
    files: dict[str, set[str]] = {}
    for tensor, name in named.items():
        if not isinstance(name, str) or not is_plain(name):
            raise InvalidInput(f"{path.name} names {name!r:.200}, which is no file beside it")
        files.setdefault(name, set()).add(tensor)
    return files


def _object(body: bytes, what: str) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidInput(f"{what} is no JSON") from None
    if not isinstance(document, dict):
        raise InvalidInput(f"{what} is no JSON object")
    return document


def _span(file: str, tensor: str, told: object) -> tuple[int, int]:
    match told:
        case {"data_offsets": [int(start), int(stop)]} if 0 <= start <= stop:
            return start, stop
    raise InvalidInput(f"the header of {file} tells no offsets of {tensor!r:.100}")
