"""Steps from a directory to S3, one after the other, without a cluster."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from planaria.checkpoint import step_files
from planaria.checkpoint.checksums import Sum
from planaria.checkpoint.sealing import seal
from planaria.checkpoint.step_files import FileStat
from planaria.cli import checkpoint_steps as steps
from planaria.cli import screen
from planaria.cli.bars import Bars
from planaria.cli.checkpoint_outcome import Ended, Outcome
from planaria.cli.checkpoint_places import Bucket, Opened, bucket_store, meant
from planaria.core import lineage
from planaria.core.errors import PermanentError, PlanariaError, TransientError, Waiting
from planaria.core.manifest import NO_STEP, Lineage, Manifest, Shard
from planaria.core.saved_step import StepCopy, StepState
from planaria.core.transfers import Cause
from planaria.node.carry import Carried, upload_step

MOST_NAMED = 3
TRIES = 2


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Ctrl-C sets the event, which ends the copying within a second; KeyboardInterrupt follows. A second
    Ctrl-C does not wait."""
    stop = threading.Event()
    before = signal.getsignal(signal.SIGINT)

    def handler(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    in_main = threading.current_thread() is threading.main_thread()
    if in_main:
        signal.signal(signal.SIGINT, handler)
    try:
        yield stop
    except PlanariaError:
        if stop.is_set():
            raise KeyboardInterrupt from None
        raise
    finally:
        if in_main:
            signal.signal(signal.SIGINT, before)
    if stop.is_set():
        raise KeyboardInterrupt


def sync_steps(opened: Opened, into: Bucket, wanted: Sequence[int], bars: Bars) -> Iterator[Outcome]:
    """The oldest first, as one after the other ends. wanted: step numbers; all where there are none."""
    source: Any = opened.store
    target = bucket_store(into, opened.job)
    copies = meant(opened, source.steps(), wanted)
    there = {copy.name: copy for copy in target.steps()}
    order = lineage.line(copies)
    for copy in sorted(copies, key=lineage.key_of):
        if not copy.usable and not copy.sealable:
            yield Outcome(copy, Ended.PASSED_OVER, copy.reason)
        elif copy.usable and lineage.key_of(copy) not in order and not wanted:
            attempt = lineage.key_of(copy)[0]
            yield Outcome(
                copy, Ended.PASSED_OVER, f"it is of attempt {attempt}, from where no later one went on"
            )
        else:
            bars.begin(f"step {steps.name_of(copy)}", copy.size)
            outcome = timed(
                copy, lambda one: _sync(source, target, into, opened.job, one, there.get(one.name), bars)
            )
            yield outcome
            if outcome.stops:
                return


def _sync(
    source: Any, target: Any, into: Bucket, job: str, copy: StepCopy, there: StepCopy | None, bars: Bars
) -> Outcome:
    manifest: Manifest | None = source.manifest(copy) if copy.digest else None
    place = target.place(copy.name)
    if there is not None and there.digest:
        if manifest is None or there.digest != copy.digest:
            return failed(
                copy, f"another step {copy.step} is at {place}: remove that one, or copy to another place"
            )
        if target.verify(there).state is StepState.DURABLE:
            return Outcome(copy, Ended.UNCHANGED, place=place)
    directory = Path(copy.place)
    seen = dict(step_files.files(directory))
    if manifest is None:
        _may_be_sealed(copy, job, seen)
    names = list(seen) if manifest is None else [shard.name for shard in manifest.shards]
    carried = _send(directory, into, copy.name, names, bars)
    if carried.failed:
        return failed(copy, flaws_of(carried.failed), moved=carried.bytes)
    if manifest is None:
        manifest = _sealed(copy, job, carried.shards, seen)
        _keep(source, manifest, copy.name)
    elif wrong := _different(manifest, carried.shards):
        return failed(
            copy, f"{wrong} is not what the manifest says: the step is corrupt", moved=carried.bytes
        )
    if flaws := target.prove(place, manifest.shards):
        return failed(copy, f"S3 does not prove it: {flaws_of(flaws)}", moved=carried.bytes)
    target.commit(manifest, copy.name)
    return Outcome(
        replace(copy, lineage=manifest.lineage, size=manifest.size), Ended.DONE, "", place, carried.bytes
    )


def _send(directory: Path, into: Bucket, name: str, names: Sequence[str], bars: Bars) -> Carried:
    """Once more where some did not get there: another sync of the same step may have come between, and what
    is there by then is not sent again."""
    for _ in range(TRIES):
        with interruptible() as stop:
            carried = upload_step(
                directory, into.bucket, key_of_step(into, name), names, progress=bars.moved, stop=stop
            )
        if all(failure.cause in (Cause.FULL, Cause.DENIED) for failure in carried.failed):
            break
    return carried


def _may_be_sealed(copy: StepCopy, job: str, seen: Mapping[str, FileStat]) -> None:
    """Before anything is sent. Raises as seal does: what is still being written is not taken."""
    _sealed(copy, job, [Shard(name, told.size, "") for name, told in seen.items()], seen)


def _sealed(copy: StepCopy, job: str, shards: Sequence[Shard], seen: Mapping[str, FileStat]) -> Manifest:
    """The manifest of a step that has none, from the sums of what was just sent."""
    sums = {shard.name: Sum(shard.size, shard.crc64nvme) for shard in shards}
    return seal(Path(copy.place), copy.step, Lineage(job, 0, NO_STEP), sums=sums, seen=seen)


def _keep(source: Any, manifest: Manifest, name: str) -> None:
    """Both tiers are to hold the same bytes; where the directory is read only, S3 alone has the manifest."""
    try:
        source.commit(manifest, name)
    except (PermanentError, OSError) as error:
        screen.say(f"the manifest of step {manifest.step} could not be written to {name}: {error}")


def _different(manifest: Manifest, shards: Sequence[Shard]) -> str:
    """Name of a shard that is another than the manifest's; "" where all are the same."""
    sent = {shard.name: shard for shard in shards}
    return next((shard.name for shard in manifest.shards if sent.get(shard.name) != shard), "")


def timed(copy: StepCopy, work: Callable[[StepCopy], Outcome]) -> Outcome:
    """What is wrong with one step does not stop the others; what is wrong with the place does."""
    began = time.monotonic()
    try:
        outcome = work(copy)
    except Waiting as error:
        outcome = failed(copy, f"{error}; try again in a minute")
    except TransientError as error:
        outcome = failed(copy, str(error), stops=True)
    except (PlanariaError, OSError) as error:
        outcome = failed(copy, str(error))
    return replace(outcome, seconds=time.monotonic() - began)


def failed(copy: StepCopy, reason: str, moved: int = 0, stops: bool = False) -> Outcome:
    return Outcome(copy, Ended.FAILED, reason, "", moved, 0.0, stops)


def flaws_of(flaws: Sequence[Any]) -> str:
    full = next((flaw.reason for flaw in flaws if getattr(flaw, "cause", None) is Cause.FULL), "")
    if full:
        return str(full)
    told = [f"{flaw.name}: {flaw.reason}" for flaw in flaws[:MOST_NAMED]]
    more = len(flaws) - MOST_NAMED
    return "; ".join([*told, *([f"and {more} more"] if more > 0 else [])])


def key_of_step(place: Bucket, name: str) -> str:
    return f"{place.prefix}/{name}" if place.prefix else name
