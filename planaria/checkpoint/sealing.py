"""A manifest for a step that was written without us: what is there, checksummed, once nothing changes any
more."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from planaria.checkpoint import checksums, formats, step_files
from planaria.checkpoint.checksums import Progress, Sum
from planaria.checkpoint.formats import Look
from planaria.checkpoint.step_files import FileStat
from planaria.core import step_names
from planaria.core.errors import InvalidInput, TransientError, Waiting
from planaria.core.manifest import Lineage, Manifest, Shard
from planaria.core.saved_step import StepState, implausible

QUIET_SECONDS = 60.0
"""So long nothing may have changed where no file tells by its being there that the writer has finished."""
_SKEW_SECONDS = 3600.0


class NotSealable(InvalidInput):
    """state: PARTIAL or FOREIGN, as the step's listing says it."""

    def __init__(self, state: StepState, reason: str) -> None:
        super().__init__(reason)
        self.state = state


def seal(
    directory: Path,
    step: int,
    lineage: Lineage,
    *,
    sums: Mapping[str, Sum] | None = None,
    seen: Mapping[str, FileStat] | None = None,
    world_size: int = 0,
    framework: Mapping[str, str] | None = None,
    quiet_seconds: float = QUIET_SECONDS,
    now: float | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """The manifest of a step's directory; writes nothing. Sealed twice it is the same.

    sums: of every file, where they were computed elsewhere; seen: the files as they were before that.
    world_size and framework: what the caller knows and the step does not tell. now: epoch seconds.

    Raises NotSealable where the step is not whole or of no format that we read; Waiting while it is being
    written; TransientError where it cannot be read.
    """
    _check_number(directory, step, lineage.parent_step)
    try:
        before = dict(step_files.files(directory))
        found = formats.look(directory, before)
        if found.format is None:
            raise NotSealable(found.state, found.reason)
        _check_quiet(directory, before, found, time.time() if now is None else now, quiet_seconds)
        if sums is None:
            sizes = {name: told.size for name, told in before.items()}
            sums = checksums.of_files(directory, sizes, progress)
        after = step_files.files(directory)
    except NotSealable:
        raise
    except InvalidInput as error:
        raise NotSealable(StepState.FOREIGN, str(error)) from error
    except FileNotFoundError as error:
        if not directory.is_dir():
            raise NotSealable(StepState.FOREIGN, f"{directory} is no directory") from error
        raise Waiting(f"{directory} is being written: a file went away") from error
    except OSError as error:
        raise TransientError(f"{directory} cannot be read: {error}") from error
    _check_unchanged(directory, before if seen is None else seen, after, sums)
    return Manifest(
        step=step,
        lineage=lineage,
        world_size=world_size or found.world_size,
        format=found.format,
        shards=tuple(Shard(name, sums[name].size, sums[name].crc64nvme) for name in sorted(after)),
        saved_at=step_files.newest(after.values()) or 0.0,
        framework={**found.framework, **(framework or {})},
    )


def _check_number(directory: Path, step: int, parent: int) -> None:
    told = step_names.read(directory.name)
    if told is None or told.step != step:
        raise NotSealable(StepState.FOREIGN, f"the name {directory.name!r:.100} is not of step {step}")
    if told.unfinished:
        raise NotSealable(StepState.PARTIAL, f"{directory.name!r:.100} is a save that did not finish")
    try:
        named = [step_names.step_of(name) for name in os.listdir(directory.parent)]
    except OSError as error:
        raise TransientError(f"{directory.parent} cannot be read: {error}") from error
    if why := implausible(step, parent, [number for number in named if number is not None]):
        raise NotSealable(StepState.FOREIGN, why)


def _check_quiet(
    directory: Path, files: Mapping[str, FileStat], found: Look, now: float, quiet_seconds: float
) -> None:
    newest = step_files.newest(files.values()) or 0.0
    if found.last and files[found.last].modified / 1e9 >= newest:
        return  # what the writer writes last is there, and nothing came after it
    if newest > now + _SKEW_SECONDS:
        return  # a clock that is so wrong tells nothing
    if now - newest < quiet_seconds:
        raise Waiting(f"{directory} was changed {max(0.0, now - newest):.0f} s ago: it may be being written")


def _check_unchanged(
    directory: Path, before: Mapping[str, FileStat], after: Mapping[str, FileStat], sums: Mapping[str, Sum]
) -> None:
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    changed += sorted(name for name in sums.keys() ^ after.keys())
    changed += [name for name in sorted(sums.keys() & after.keys()) if sums[name].size != after[name].size]
    if changed:
        raise Waiting(f"{directory} is being written: {changed[0]!r:.200} changed while it was read")
