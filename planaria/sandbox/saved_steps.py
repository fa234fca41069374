"""What the sandbox's training job does with its checkpoints on disk: commit and prune. They are steps as
planaria/checkpoint/directory.py has them, with the same manifest, and nothing here needs torch."""

import re
import time
from collections.abc import Mapping

from planaria.checkpoint import checksums, step_files, writing
from planaria.checkpoint.directory import REMOVED, REPLACED, FileCheckpoints
from planaria.core.errors import PlanariaError
from planaria.core.manifest import Format, Lineage, Manifest, Shard
from planaria.core.saved_step import StepCopy, newest_first
from planaria.core.step_names import name_of
from planaria.sandbox.job_folder import JobFolder

_IN_PROGRESS = re.compile(r"step-([0-9]{1,12})\.tmp")


def store(folder: JobFolder, job_id: str) -> FileCheckpoints:
    return FileCheckpoints(folder.checkpoints, job_id)


def find(folder: JobFolder, step: int, job_id: str) -> StepCopy | None:
    """One step, every byte compared with its manifest; None when there is no directory of that name."""
    steps = store(folder, job_id)
    copy = steps.look(name_of(step))
    return None if copy is None else steps.verify(copy)


def usable(folder: JobFolder, job_id: str) -> list[StepCopy]:
    """The newest first, judged by names and sizes."""
    return newest_first(copy for copy in store(folder, job_id).steps() if copy.usable)


def commit(
    folder: JobFolder,
    step: int,
    world_size: int,
    lineage: Lineage,
    framework: Mapping[str, str] | None = None,
    form: Format = Format.DCP,
) -> StepCopy:
    """Turn the finished `step-<n>.tmp` into the checkpoint `step-<n>`.

    The data files must be on disk already (fsync). Whatever stood at `step-<n>` is replaced: the caller has
    made sure that nobody goes on from it. Raises OSError (disk full, say) or PlanariaError.
    """
    scratch = folder.step_in_progress(step)
    sizes = {name: told.size for name, told in step_files.files(scratch).items()}
    sums = checksums.of_files(scratch, sizes)
    shards = tuple(Shard(name, told.size, told.crc64nvme) for name, told in sums.items())
    manifest = Manifest(step, lineage, world_size, form, shards, time.time(), dict(framework or {}))
    steps = store(folder, lineage.job)
    steps.commit(manifest, scratch.name)
    there = steps.look(name_of(step))
    if there is not None and there.usable:
        steps.remove(there)
    return steps.publish(scratch.name, name_of(step))


def prune(folder: JobFolder, job_id: str, keep: int, protect: int) -> list[int]:
    """Remove usable steps of this job beyond the newest `keep`, never the step `protect` (the resume point)
    or a pinned one, and saves that were left unfinished before the newest. Returns the removed step numbers.

    Foreign and corrupt directories stay: they are evidence for people.
    """
    steps, kept = store(folder, job_id), usable(folder, job_id)
    surplus = [copy for copy in kept[keep:] if copy.step != protect and not copy.pinned]
    for copy in surplus:
        steps.remove(copy)
    for path in folder.checkpoints.iterdir():
        match = _IN_PROGRESS.fullmatch(path.name)
        stale = match is not None and bool(kept) and int(match[1]) < kept[0].step
        if stale or path.name.endswith((REMOVED, REPLACED)):
            try:
                writing.remove_tree(path)
            except PlanariaError:
                continue  # somebody else is at it
    return [copy.step for copy in surplus]
