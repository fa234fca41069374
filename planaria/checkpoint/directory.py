"""A job's checkpoint steps in a directory of a file system: FSx for Lustre, or any other that nodes share."""

import os
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from planaria.checkpoint import checksums, judging, step_files, writing
from planaria.checkpoint.checksums import Progress, Sum
from planaria.checkpoint.judging import Judged
from planaria.core import step_names
from planaria.core.errors import InvalidInput, PermanentError, PlanariaError, TransientError
from planaria.core.manifest import FILE_NAME, PIN_NAME, Manifest
from planaria.core.pins import Pin
from planaria.core.saved_step import StepCopy, StepState, Tier, without_implausible

REMOVED = ".removed.tmp"
REPLACED = ".replaced.tmp"


class FileCheckpoints:
    """The CheckpointStore of `root`, whose directories are steps. A root that does not exist has none.

    progress: told the bytes that verify has read, from any thread.
    """

    def __init__(self, root: Path, job: str, tier: Tier = Tier.FSX, progress: Progress | None = None) -> None:
        self._root, self._job, self._tier, self._progress = root, job, tier, progress

    def place(self, name: str) -> str:
        return os.fspath(self._root / name)

    def steps(self) -> list[StepCopy]:
        """Sorted by name."""
        names = [name for name in self._names() if not name.endswith(REMOVED)]
        with ThreadPoolExecutor(checksums.threads(), thread_name_prefix="step") as pool:
            return without_implausible(copy for copy in pool.map(self.look, names) if copy is not None)

    def look(self, name: str) -> StepCopy | None:
        """One directory, as `steps` tells it but for what is implausible; None: it is gone or no step's."""
        judged = self._judge(name)
        return None if judged is None else judged.copy

    def verify(self, copy: StepCopy) -> StepCopy:
        """Reads every byte. A step without a manifest, or that is not usable, is only looked at again."""
        judged = self._judge(self._own(copy))
        if judged is None:
            return replace(copy, state=StepState.PARTIAL, reason="it is gone")
        now = judged.copy
        flaw = self.flaw_of(now.name) if now.usable else ""
        return replace(now, state=StepState.CORRUPT, reason=flaw) if flaw else now

    def flaw_of(self, name: str) -> str:
        """What is wrong with the bytes of a directory that has a manifest, whatever it is called; "" of a
        whole one. Raises InvalidInput without a manifest that can be read, TransientError."""
        path = self._root / self._plain(name)
        try:
            shards = judging.read_manifest(path)[0].shards
            sums = checksums.of_files(path, {shard.name: shard.size for shard in shards}, self._progress)
        except OSError as error:
            if judging.is_away(error):
                raise judging.unreadable(error, path) from error
            return judging.said(error, path)
        for shard in shards:
            if sums[shard.name] != Sum(shard.size, shard.crc64nvme):
                return f"the checksum of {shard.name!r:.200} is wrong"
        return ""

    def manifest(self, copy: StepCopy) -> Manifest:
        try:
            return judging.read_manifest(self._root / self._own(copy))[0]
        except FileNotFoundError:
            raise InvalidInput(f"{copy.place} has no manifest") from None
        except OSError as error:
            raise judging.unreadable(error, self._root) from error

    def commit(self, manifest: Manifest, name: str = "") -> bool:
        """Raises PermanentError also where the directory is not there or tells another step than its name."""
        name = name or step_names.name_of(manifest.step)
        told = step_names.read(self._plain(name))
        if told is None or told.step != manifest.step:
            raise PermanentError(f"the directory {name!r} is not of step {manifest.step}")
        if manifest.lineage.job != self._job:
            raise PermanentError(f"the manifest is of job {manifest.lineage.job}, the folder of {self._job}")
        return writing.write_once(self._root / name, manifest.to_json())

    def publish(self, scratch: str, name: str) -> StepCopy:
        """The directory `scratch`, a `.tmp` that has its manifest and all its files, becomes `name`.

        What stands there is set aside if it is not usable; the very same step there is left, and `scratch`
        goes. Repeated it changes nothing. Raises PermanentError where another usable step is there, or
        `scratch` is not whole.
        """
        there, moving = self._judge(name), self._judge(scratch)
        if moving is None:
            if there is not None and there.copy.usable:
                return there.copy
            raise PermanentError(f"{self.place(scratch)} is not there")
        if there is not None and there.copy.usable:
            if there.copy.digest != moving.copy.digest:
                raise PermanentError(f"{self.place(name)} is another usable copy of that step; it stays")
            writing.remove_tree(self._root / scratch)
            return there.copy
        whole = judging.as_named(moving, name, self._job, self._root)
        if not whole.usable:
            raise PermanentError(f"{self.place(scratch)} is {whole.state}: {whole.reason}")
        try:
            if there is not None:
                os.rename(self._root / name, self._root / f"{name}.{time.time_ns()}{REPLACED}")
            writing.fsync_directory(self._root / scratch)
            os.rename(self._root / scratch, self._root / name)
            writing.fsync_directory(self._root)
        except OSError as error:
            raise writing.unwritable(error, self._root) from error
        return whole

    def remove(self, copy: StepCopy) -> None:
        """In one step it is no step's directory any more. Raises PermanentError where it is not the copy that
        was listed: it has been saved anew since."""
        name = self._own(copy)
        path = self._root / name
        now = self._judge(name)
        if now is None:
            return
        if now.copy.digest != copy.digest:
            raise PermanentError(f"{path} has changed since it was listed; it is not removed")
        doomed = path.with_name(f"{name}.{time.time_ns()}{REMOVED}")
        try:
            os.rename(path, doomed)
        except FileNotFoundError:
            return
        except OSError as error:
            raise writing.unwritable(error, path) from error
        if doomed.is_symlink() or not doomed.is_dir():
            doomed.unlink()
        else:
            writing.remove_tree(doomed)

    def sweep(self, before: float, active: Collection[str] = ()) -> list[str]:
        """Removes what was on its way out, and, untouched since `before`: `.tmp` directories, empty ones and
        such without the index that is written last. What belongs to a name in `active` stays."""
        gone = []
        for name in self._names():
            path = self._root / name
            if any(name == each or name.startswith(f"{each}.") for each in active):
                continue
            try:
                if name.endswith(REMOVED) or (self._unfinished(name) and _touched(path) < before):
                    writing.remove_tree(path)
                    gone.append(name)
                else:
                    _sweep_scratch(path, before)
            except (FileNotFoundError, NotADirectoryError, TransientError):
                continue  # somebody is at it: the next sweep looks again
            except OSError as error:
                raise writing.unwritable(error, path) from error
        return gone

    def pin(self, copy: StepCopy, pin: Pin) -> None:
        """Raises PermanentError where the step's directory is not there."""
        writing.replace(self._root / self._own(copy) / PIN_NAME, pin.to_json())

    def unpin(self, copy: StepCopy) -> None:
        try:
            (self._root / self._own(copy) / PIN_NAME).unlink(missing_ok=True)
        except OSError as error:
            raise writing.unwritable(error, self._root) from error

    def _unfinished(self, name: str) -> bool:
        path = self._root / name
        if path.is_symlink() or not path.is_dir():
            return False
        told = step_names.read(name)
        judged = self._judge(name)
        if told is None or judged is None or judged.copy.pinned:
            return False
        return told.unfinished or (judged.copy.state is StepState.PARTIAL and not _has_index(path))

    def _judge(self, name: str) -> Judged | None:
        return judging.judge(self._root / self._plain(name), self._job, self._tier)

    def _names(self) -> list[str]:
        return _names(self._root)

    def _own(self, copy: StepCopy) -> str:
        if copy.place != self.place(copy.name):
            raise InvalidInput(f"{copy.place} does not lie in {self._root}")
        return self._plain(copy.name)

    def _plain(self, name: str) -> str:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise InvalidInput(f"{name!r:.100} is no name of a step's directory")
        return name


def jobs_in(root: Path) -> dict[str, int]:
    """job -> how many manifests below `root` name it. Raises TransientError and PermanentError."""
    jobs: dict[str, int] = {}
    for name in _names(root):
        try:
            job = judging.read_manifest(root / name)[0].lineage.job
        except (OSError, PlanariaError):
            continue
        jobs[job] = jobs.get(job, 0) + 1
    return jobs


def _names(root: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(root) if step_names.read(name) is not None)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise judging.unreadable(error, root) from error


def _has_index(path: Path) -> bool:
    try:
        return (path / FILE_NAME).exists() or any(
            name.endswith((".metadata", ".json", ".safetensors", ".pt", ".pth", ".bin"))
            for name in step_files.files(path)
        )
    except InvalidInput:
        return True


def _touched(path: Path) -> float:
    """When anything of it was changed last, its directories included."""
    newest = path.stat().st_mtime
    for folder, _, names in os.walk(path):
        newest = max(
            newest, os.lstat(folder).st_mtime, *(os.lstat(f"{folder}/{n}").st_mtime for n in names), 0.0
        )
    return newest


def _sweep_scratch(path: Path, before: float) -> None:
    for name in os.listdir(path):
        if step_files.SCRATCH.fullmatch(name) and os.lstat(path / name).st_mtime < before:
            (path / name).unlink(missing_ok=True)
