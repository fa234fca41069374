"""Steps from S3 to a directory, one after the other, without a cluster."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from planaria.checkpoint.directory import FileCheckpoints
from planaria.cli import checkpoint_steps as steps
from planaria.cli.bars import Bars
from planaria.cli.checkpoint_copying import failed, flaws_of, interruptible, key_of_step, timed
from planaria.cli.checkpoint_outcome import Ended, Outcome
from planaria.cli.checkpoint_places import Bucket, Directory, Opened, meant
from planaria.core import checkpoints, lineage
from planaria.core.errors import PermanentError
from planaria.core.saved_step import StepCopy, StepState
from planaria.core.transfers import Cause
from planaria.node.carry import download_step

SCRATCH = ".restore.tmp"
DAMAGED = ".damaged.tmp"
"""What a directory is called that looked whole and was not, once a good copy is there."""


def restore_newest(opened: Opened, into: Directory, _wanted: Sequence[int], bars: Bars) -> Iterator[Outcome]:
    """The step that a resume would take; where it turns out bad, the next older one."""
    copies = meant(opened, opened.store.steps(), ())
    while True:
        try:
            choice = checkpoints.choose_copy(copies, opened.job)
        except PermanentError:
            return
        if choice.copy is None:
            return
        outcome = _bring(opened, into, choice.copy, bars)
        yield outcome
        if outcome.good or outcome.stops:
            return
        bad = replace(choice.copy, state=StepState.CORRUPT, reason=outcome.reason)
        copies = [bad if copy == choice.copy else copy for copy in copies]


def restore_steps(opened: Opened, into: Directory, wanted: Sequence[int], bars: Bars) -> Iterator[Outcome]:
    """These steps, whatever else there is."""
    for copy in sorted(meant(opened, opened.store.steps(), wanted), key=lineage.key_of):
        outcome = (
            _bring(opened, into, copy, bars)
            if copy.usable
            else failed(copy, f"it is {copy.state.value}: {copy.reason}")
        )
        yield outcome
        if outcome.stops:
            return


def _bring(opened: Opened, into: Directory, copy: StepCopy, bars: Bars) -> Outcome:
    bars.begin(f"step {steps.name_of(copy)}", copy.size)
    return timed(copy, lambda one: _restore(opened, into, one, bars))


def _restore(opened: Opened, into: Directory, copy: StepCopy, bars: Bars) -> Outcome:
    manifest = opened.store.manifest(copy)
    assert isinstance(opened.place, Bucket)
    into.path.mkdir(parents=True, exist_ok=True)
    target = FileCheckpoints(into.path, opened.job)
    place, scratch = into.path / copy.name, into.path / f"{copy.name}{SCRATCH}"
    bad, there = False, next((one for one in target.steps() if one.name == copy.name), None)
    if there is not None and there.usable:
        if there.digest != copy.digest:
            return failed(
                copy,
                f"another step {copy.step} is in {place}: remove that one, or restore elsewhere",
                stops=True,
            )
        if target.verify(there).usable:
            return Outcome(copy, Ended.UNCHANGED, place=str(place))
        bad = True
    with interruptible() as stop:
        carried = download_step(
            manifest.shards,
            opened.place.bucket,
            key_of_step(opened.place, copy.name),
            scratch,
            progress=bars.moved,
            stop=stop,
        )
    if carried.failed:
        stops = any(failure.cause in (Cause.FULL, Cause.OTHER) for failure in carried.failed)
        return failed(copy, flaws_of(carried.failed), moved=carried.bytes, stops=stops)
    target.commit(manifest, scratch.name)
    if bad:
        os.rename(place, f"{place}.{time.time_ns()}{DAMAGED}")
    target.publish(scratch.name, copy.name)
    return Outcome(copy, Ended.DONE, "", str(place), carried.bytes)
