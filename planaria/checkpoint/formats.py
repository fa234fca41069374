"""Which format a step's directory has, and whether it is whole by what its own index says."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from planaria.checkpoint import dcp_metadata, safetensors_index, torch_file
from planaria.checkpoint.step_files import FileStat
from planaria.core.errors import InvalidInput
from planaria.core.manifest import Format
from planaria.core.saved_step import StepState

_METADATA = ".metadata"
_MOST_INDEXES = 100
_OF_A_RANK = re.compile(r"(?:.*/)?__[0-9]{1,9}\.metadata")
_PART = re.compile(r"(?:.*/)?__([0-9]{1,9})_[0-9]+\.distcp")
_NUMBERED = re.compile(r"(.*-)([0-9]{5})-of-([0-9]{5})\.safetensors")
_UNFINISHED = (".tmp", ".partial", ".incomplete")
_LARGEST_CONFIG = 1 << 20


@dataclass(frozen=True, slots=True)
class Look:
    """state: FOREIGN where the step is whole (then it has a format) or nothing that we can read; PARTIAL
    where its own index names what is not there. reason: one sentence. last: the file that its writer writes
    last, "" where that is not known. world_size: 0 where nothing tells."""

    state: StepState
    reason: str
    format: Format | None = None
    last: str = ""
    world_size: int = 0
    framework: Mapping[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        return self.format is not None


def look(directory: Path, files: Mapping[str, FileStat]) -> Look:
    """files: those of step_files.files. Raises OSError where one cannot be read."""
    unfinished = next((name for name in files if name.endswith(_UNFINISHED)), "")
    if unfinished:
        return Look(StepState.PARTIAL, f"{unfinished!r:.200} is still being written, or was left unfinished")
    indexes = [name for name in files if name == _METADATA or name.endswith(f"/{_METADATA}")]
    try:
        if indexes:
            return _dcp(directory, files, indexes)
        if any(_OF_A_RANK.fullmatch(name) for name in files):
            why = "each rank wrote a .metadata of its own, and nothing says how many there must be"
            return Look(StepState.FOREIGN, why)
        if any(name.endswith(".distcp") for name in files):
            return Look(StepState.PARTIAL, "its .metadata, which is written last, is not there")
        if any(name.endswith(safetensors_index.SUFFIX) for name in files):
            return _safetensors(directory, files)
        return _torch(directory, files)
    except safetensors_index.TooLarge as error:
        return Look(StepState.FOREIGN, str(error))
    except InvalidInput as error:
        return Look(StepState.PARTIAL, str(error))


def _dcp(directory: Path, files: Mapping[str, FileStat], indexes: list[str]) -> Look:
    if len(indexes) > _MOST_INDEXES:
        return Look(StepState.FOREIGN, f"it has {len(indexes)} files {_METADATA}, more than any step")
    versions: dict[str, str] = {}
    for index in indexes:
        below = index[: -len(_METADATA)]
        try:
            told = dcp_metadata.read(directory / index)
        except InvalidInput as error:
            return Look(StepState.FOREIGN, str(error))
        for name, length in told.files.items():
            _check_length(below + name, length, files, index)
        if told.version:
            versions["dcp"] = told.version
    ranks = [int(match[1]) for name in files if (match := _PART.fullmatch(name))]
    last = max(indexes, key=lambda index: files[index].modified)
    return _whole(directory, files, Format.DCP, last, max(ranks, default=-1) + 1, versions)


def _check_length(name: str, length: int, files: Mapping[str, FileStat], index: str) -> None:
    if name not in files:
        raise InvalidInput(f"the file {name}, which {index} names, is missing")
    if files[name].size < length:
        raise InvalidInput(f"the file {name} has {files[name].size} bytes, {index} needs {length}")


def _safetensors(directory: Path, files: Mapping[str, FileStat]) -> Look:
    held: dict[str, frozenset[str]] = {}
    numbers: dict[tuple[str, int], set[int]] = {}
    for name, told in files.items():
        if name.endswith(safetensors_index.SUFFIX):
            held[name] = safetensors_index.tensors(directory / name, told.size)
            if match := _NUMBERED.fullmatch(name):
                numbers.setdefault((match[1], int(match[3])), set()).add(int(match[2]))
        elif name.endswith(torch_file.SUFFIXES):
            torch_file.is_one(directory / name)
    for (stem, count), there in numbers.items():
        if len(there) != count:
            raise InvalidInput(
                f"{len(there)} of the {count} files {stem}*{safetensors_index.SUFFIX} are there"
            )
    for index, told in files.items():
        if not index.endswith(safetensors_index.INDEX_SUFFIX):
            continue
        below = index[: index.rfind("/") + 1]
        for name, wanted in safetensors_index.weight_map(directory / index, told.size).items():
            _check_length(below + name, 0, files, index)
            lacking = wanted - held.get(below + name, frozenset())
            if lacking:
                raise InvalidInput(
                    f"{name} lacks the tensor {min(lacking)!r:.100}, which {index} says it has"
                )
    return _whole(directory, files, Format.SAFETENSORS)


def _torch(directory: Path, files: Mapping[str, FileStat]) -> Look:
    saved = [name for name in files if name.endswith(torch_file.SUFFIXES)]
    if len(saved) == 1 and torch_file.is_one(directory / saved[0]):
        return _whole(directory, files, Format.TORCH)
    if len(saved) > 1:
        for name in saved:
            torch_file.is_one(directory / name)
        why = f"it has {len(saved)} torch.save files and nothing that says how many there must be"
    else:
        why = "it holds nothing that we can read"
    return Look(StepState.FOREIGN, why)


def _whole(
    directory: Path,
    files: Mapping[str, FileStat],
    form: Format,
    last: str = "",
    world_size: int = 0,
    framework: Mapping[str, str] | None = None,
) -> Look:
    named = {**(framework or {}), **_versions(directory, files)}
    why = f"it has no manifest yet: a whole {form.value} checkpoint that was written without Planaria"
    return Look(StepState.FOREIGN, why, form, last, world_size, named)


def _versions(directory: Path, files: Mapping[str, FileStat]) -> dict[str, str]:
    """What a Hugging Face config tells; whatever else is in it, it is not used."""
    told = files.get("config.json")
    if told is None or told.size > _LARGEST_CONFIG:
        return {}
    try:
        version = json.loads((directory / "config.json").read_bytes())["transformers_version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return {"transformers": version} if isinstance(version, str) and version else {}
