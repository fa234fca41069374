"""The CheckpointStore port on S3: `<prefix>/<step directory's name>/<shard's name>`, manifest last.

A step that is removed first gets a tombstone in its manifest's place, by a conditional write, and loses it
last. So a committer and a remover of the same step exclude each other, whoever of them is late: one of the
two writes fails. A tombstone is no manifest that anything reads, so what is half removed is never usable.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from planaria.aws.bucket_objects import BucketObjects, denied
from planaria.aws.step_judging import TOMBSTONE, flaw_of, judged, pin_of, unread, worst
from planaria.core import retention, step_names
from planaria.core.checkpoint_ports import Flaw
from planaria.core.errors import InvalidInput, PermanentError, PlanariaError, TransientError
from planaria.core.manifest import FILE_NAME, NO_STEP, PIN_NAME, Manifest, Shard, digest
from planaria.core.pins import Pin
from planaria.core.saved_step import StepCopy, StepState, Tier, without_implausible

THREADS = 16
LOOK_PAGES = 5
"""Calls that `steps` spends on one step: of one with more shards only the first 5000 are looked at."""
TRIES = 3


class S3Checkpoints:
    """client: a boto3 s3 client whose connection pool holds `threads`. prefix: of the job, without a slash at
    its end. progress: told of every object that verify has looked at, from any thread."""

    def __init__(
        self,
        client: Any,
        bucket: str,
        prefix: str,
        job: str,
        threads: int = THREADS,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._objects = BucketObjects(client, bucket)
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._job = job
        self._threads = threads
        self._progress = progress

    def place(self, name: str) -> str:
        return f"s3://{self._objects.bucket}/{self._prefix}{name}"

    def steps(self) -> list[StepCopy]:
        """One listing of the job, and per step its manifest and at most LOOK_PAGES listings. State COMPLETE:
        the manifest is there and nothing of it is seen to be missing; only `verify` says DURABLE."""
        names = [name for name in self._objects.folders(self._prefix) if step_names.read(name)]
        with self._pool() as pool:
            found = list(pool.map(lambda name: self._judge(name, LOOK_PAGES), names))
        return without_implausible(copy for copy in found if copy is not None)

    def verify(self, copy: StepCopy) -> StepCopy:
        """DURABLE when S3 has every object of the manifest with its length and its CRC64NVME. COMPLETE, with
        a reason, where S3 has no such checksum to tell of some."""
        root = self._key_of(copy.place)
        found = self._judge(root[len(self._prefix) : -1], LOOK_PAGES)
        if found is None:
            return replace(copy, state=StepState.PARTIAL, reason="nothing of it is in S3 any more")
        if not found.usable:
            return found
        flaws = self.prove(found.place, self.manifest(found).shards)
        if not flaws:
            return replace(found, state=StepState.DURABLE, reason="")
        state, reason = worst(flaws)
        return replace(found, state=state, reason=reason)

    def prove(self, place: str, shards: Sequence[Shard]) -> list[Flaw]:
        """One HeadObject for each of these shards of the step at `place`; what is wrong with any of them."""
        root = self._key_of(place)
        stop = threading.Event()

        def look(shard: Shard) -> Flaw | None:
            if stop.is_set():
                return None
            found = flaw_of(shard, lambda: self._objects.head(root + shard.name))
            if self._progress is not None:
                self._progress(1)
            return found

        with self._pool(stop) as pool:
            return [flaw for flaw in pool.map(look, shards) if flaw is not None]

    def manifest(self, copy: StepCopy) -> Manifest:
        found = self._objects.get(self._key_of(copy.place) + FILE_NAME)
        if found is None:
            raise InvalidInput(f"{copy.place} has no manifest")
        return Manifest.from_json(found[0])

    def commit(self, manifest: Manifest, name: str = "") -> bool:
        """Also raises PermanentError, with the manifest withdrawn, where a shard is not there by then."""
        name = name or step_names.name_of(manifest.step)
        if step_names.step_of(name) != manifest.step:
            raise InvalidInput(f"{name!r} is no name for the directory of step {manifest.step}")
        if manifest.lineage.job != self._job:
            raise InvalidInput(f"the manifest is of the job {manifest.lineage.job!r}, not of {self._job!r}")
        body, root = manifest.to_json(), f"{self._prefix}{name}/"
        for left in reversed(range(TRIES)):
            etag = self._put_unless_busy(root + FILE_NAME, body)
            if etag is not None:
                self._withdraw_unless_whole(manifest, root, etag)
                return True
            known = self._objects.get(root + FILE_NAME)
            if known is not None and known[0] == body:
                return False
            if known is not None and known[0] != TOMBSTONE:
                raise PermanentError(f"{self.place(name)} has another manifest already")
            if known is not None or not left:
                raise TransientError(f"{self.place(name)} is being removed or written by another one")
        raise AssertionError("the last try returns or raises")

    def remove(self, copy: StepCopy) -> None:
        """Raises PermanentError, with nothing removed, when another copy than this one is there by now or it
        has been pinned; and when an object cannot be deleted: then the step is not usable any more, and
        removing it again goes on."""
        root = self._key_of(copy.place)
        if not copy.pinned and self._objects.get(root + PIN_NAME) is not None:
            raise PermanentError(f"{copy.place} has been pinned")
        found = self._objects.get(root + FILE_NAME)
        if found is None:
            if not self._objects.listing(root, 1).objects:
                return
            etag = self._objects.put(root + FILE_NAME, TOMBSTONE, IfNoneMatch="*")
        elif found[0] == TOMBSTONE:
            etag = found[1]
        elif digest(found[0]) != copy.digest:
            raise PermanentError(f"{copy.place} is another copy of step {copy.step} by now")
        else:
            etag = self._objects.put(root + FILE_NAME, TOMBSTONE, IfMatch=found[1])
        if etag is None:
            raise PermanentError(f"{copy.place} has changed while it was to be removed")
        for _ in range(TRIES):
            listing = self._objects.listing(root)
            self._objects.delete(root + name for name in listing.objects if name != FILE_NAME)
            if listing.whole:
                self._objects.delete_if(root + FILE_NAME, etag)
                return
        raise TransientError(f"{copy.place} has more objects than one call removes: remove it again")

    def sweep(self, before: float, active: Collection[str] = ()) -> list[str]:
        """Multipart uploads without a new part since `before`, and steps without a manifest (or half removed)
        in which no object and no upload is newer. Of what cannot be removed it tells once all is tried."""
        removed: list[str] = []
        failed: list[PlanariaError] = []
        live = set(active)
        for upload in self._objects.uploads(self._prefix):
            name = upload.key[len(self._prefix) :].partition("/")[0]
            if upload.touched >= before:
                live.add(name)
            elif name not in active:
                with _collected(failed):
                    self._objects.abort(upload)
                    removed.append(f"the upload of s3://{self._objects.bucket}/{upload.key}")
        names = [name for name in self._objects.folders(self._prefix) if step_names.read(name)]
        for name in names:
            with _collected(failed):
                copy = None if name in live else self._judge(name)
                if copy is not None and retention.abandoned([copy], before):
                    self.remove(copy)
                    removed.append(copy.place)
        if failed:
            kind = TransientError if all(isinstance(e, TransientError) for e in failed) else PermanentError
            done = f"; removed: {', '.join(removed)}" if removed else ""
            raise kind(f"not all that is abandoned was removed: {'; '.join(map(str, failed[:3]))}{done}")
        return removed

    def pin(self, copy: StepCopy, pin: Pin) -> None:
        root = self._key_of(copy.place)
        if not self._objects.listing(root, 1).objects:
            raise PermanentError(f"{copy.place} is not there")
        self._objects.put(root + PIN_NAME, pin.to_json())

    def unpin(self, copy: StepCopy) -> None:
        self._objects.delete([self._key_of(copy.place) + PIN_NAME])

    def _judge(self, name: str, pages: int | None = None) -> StepCopy | None:
        """By names and sizes. None when nothing is there."""
        root = f"{self._prefix}{name}/"
        listing = self._objects.listing(root, pages) if pages else self._objects.listing(root)
        if not listing.objects:
            return None
        told = step_names.read(name)
        copy = StepCopy(
            step=told.step if told else NO_STEP,
            tier=Tier.S3,
            state=StepState.PARTIAL,
            place=self.place(name),
            size=sum(each.size for each in listing.objects.values()),
            touched_at=listing.touched,
        )
        if PIN_NAME in listing.objects or not listing.whole:
            copy = replace(copy, pinned=pin_of(self._objects, root))
        try:
            found = self._objects.get(root + FILE_NAME)
        except PermanentError as error:
            if not isinstance(error, InvalidInput) and not denied(error):
                raise
            return unread(copy, error)
        return judged(copy, listing, found and found[0], self._job)

    def _put_unless_busy(self, key: str, body: bytes) -> str | None:
        try:
            return self._objects.put(key, body, IfNoneMatch="*")
        except TransientError as error:
            if "ConditionalRequestConflict" in str(error):
                return None
            raise

    def _withdraw_unless_whole(self, manifest: Manifest, root: str, etag: str) -> None:
        """A sweep or a removal that began before the commit may have ended after the shards were proven."""
        there = self._objects.listing(root).objects
        lost = [s for s in manifest.shards if s.name not in there or there[s.name].size != s.size]
        if lost:
            self._objects.delete_if(root + FILE_NAME, etag)
            raise PermanentError(
                f"step {manifest.step} is not committed: {len(lost)} of its objects are not there, "
                f"the first is {lost[0].name!r}"
            )

    def _key_of(self, place: str) -> str:
        root, name = self.place(""), place.rstrip("/").rpartition("/")[2]
        if not name or place.rstrip("/") != root + name:
            raise InvalidInput(f"{place} is no step below {root}")
        return f"{self._prefix}{name}/"

    @contextmanager
    def _pool(self, stop: threading.Event | None = None) -> Iterator[ThreadPoolExecutor]:
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="checkpoint")
        try:
            yield pool
        finally:
            if stop is not None:
                stop.set()
            pool.shutdown(cancel_futures=True)


@contextmanager
def _collected(failed: list[PlanariaError]) -> Iterator[None]:
    try:
        yield
    except PlanariaError as error:
        failed.append(error)
