"""Who commits, removes and sweeps one step of a bucket at the same time: every order of their calls to S3.

The bucket is in memory and answers as S3 does; a call is one moment. Whatever the order, no manifest is left
without all of its objects, and what was told to be committed is there.
"""

# ruff: noqa: N803  arguments have boto3's names

import hashlib
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from planaria.aws.checkpoint_bucket import S3Checkpoints
from planaria.aws.step_judging import TOMBSTONE
from planaria.core.errors import PlanariaError
from planaria.core.manifest import FILE_NAME, Format, Lineage, Manifest, Shard
from planaria.core.saved_step import StepCopy

ROOT = "checkpoints/job-1/step-5/"
SHARDS = ("a", "b")
LATER = 4e9


def manifest(attempt: int = 1) -> Manifest:
    shards = tuple(Shard(name, 1, "AAAAAAAAAAA=") for name in SHARDS)
    return Manifest(5, Lineage("job-1", attempt), 1, Format.DCP, shards, 1.0)


def _refused(code: str, status: int) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "call")


class MemoryS3:
    """What S3Checkpoints asks of boto3's client. turn: called before each call, and may wait."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.turn: Callable[[], None] = lambda: None

    def _etag(self, key: str) -> str:
        return f'"{hashlib.md5(self.objects[key], usedforsecurity=False).hexdigest()}"'

    def _met(self, key: str, IfMatch: str = "", IfNoneMatch: str = "") -> None:
        if IfMatch and key not in self.objects:
            raise _refused("NoSuchKey", 404)
        if (IfNoneMatch and key in self.objects) or (IfMatch and IfMatch != self._etag(key)):
            raise _refused("PreconditionFailed", 412)

    def put_object(self, Bucket: str, Key: str, Body: bytes, **condition: str) -> dict[str, Any]:
        self.turn()
        self._met(Key, **condition)
        self.objects[Key] = Body
        return {"ETag": self._etag(Key)}

    def get_object(self, Bucket: str, Key: str) -> dict[str, Any]:
        self.turn()
        if Key not in self.objects:
            raise _refused("NoSuchKey", 404)
        body = self.objects[Key]

        class Stream:
            def read(self) -> bytes:
                return body

        return {"Body": Stream(), "ContentLength": len(body), "ETag": self._etag(Key)}

    def delete_object(self, Bucket: str, Key: str, IfMatch: str) -> dict[str, Any]:
        self.turn()
        self._met(Key, IfMatch=IfMatch)
        del self.objects[Key]
        return {}

    def delete_objects(self, Bucket: str, Delete: dict[str, Any]) -> dict[str, Any]:
        self.turn()
        for each in Delete["Objects"]:
            self.objects.pop(each["Key"], None)
        return {}

    def list_objects_v2(self, Bucket: str, Prefix: str, MaxKeys: int, Delimiter: str = "") -> dict[str, Any]:
        self.turn()
        keys = sorted(key for key in self.objects if key.startswith(Prefix))
        if Delimiter:
            found = dict.fromkeys(Prefix + key[len(Prefix) :].partition("/")[0] + "/" for key in keys)
            return {"CommonPrefixes": [{"Prefix": each} for each in found]}
        at = datetime(2026, 1, 1, tzinfo=UTC)
        return {"Contents": [{"Key": k, "Size": len(self.objects[k]), "LastModified": at} for k in keys]}

    def list_multipart_uploads(self, Bucket: str, Prefix: str) -> dict[str, Any]:
        self.turn()
        return {}


@dataclass(slots=True)
class Act:
    """One that works on the step, in a thread of its own that makes a call only when it is let. outcome: what
    it returned, or the error of ours that it raised."""

    do: Callable[[], object]
    outcome: object = None
    over: bool = False


class Orders:
    """Two at work; `let` says whose turn the next call is."""

    def __init__(self, s3: MemoryS3, acts: list[Act]) -> None:
        self._s3, self._acts = s3, acts
        self._go = [threading.Semaphore(0) for _ in acts]
        self._stopped = threading.Semaphore(0)
        self._own = threading.local()
        s3.turn = self._wait
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(len(acts))]
        for thread in self._threads:
            thread.start()
            self._stopped.acquire()

    def let(self, number: int) -> None:
        """Its next call, or nothing where it is over."""
        if not self._acts[number].over:
            self._go[number].release()
            self._stopped.acquire()

    def end(self) -> None:
        for number, act in enumerate(self._acts):
            while not act.over:
                self.let(number)
        for thread in self._threads:
            thread.join()
        self._s3.turn = lambda: None

    def _wait(self) -> None:
        self._stopped.release()
        self._go[self._own.number].acquire()

    def _run(self, number: int) -> None:
        self._own.number = number
        act = self._acts[number]
        try:
            act.outcome = act.do()
        except PlanariaError as error:
            act.outcome = error
        finally:
            act.over = True
            self._stopped.release()


class Place:
    def __init__(self, committed: bool) -> None:
        self.s3 = MemoryS3()
        self.store = S3Checkpoints(self.s3, "bucket", "checkpoints/job-1", "job-1")
        self.upload()
        if committed:
            self.s3.objects[ROOT + FILE_NAME] = manifest().to_json()

    def upload(self) -> None:
        for name in SHARDS:
            self.s3.put_object("bucket", ROOT + name, b"x")

    def save_anew(self) -> bool:
        self.upload()
        return self.store.commit(manifest(2))

    def copy(self) -> StepCopy:
        return self.store.steps()[0]

    def has_manifest(self) -> bool:
        return self.s3.objects.get(ROOT + FILE_NAME, TOMBSTONE) != TOMBSTONE

    def is_whole(self) -> bool:
        return self.has_manifest() and all(ROOT + name in self.s3.objects for name in SHARDS)


def commit(place: Place) -> Act:
    return Act(lambda: place.store.commit(manifest()))


def commit_another(place: Place) -> Act:
    return Act(lambda: place.store.commit(manifest(2)))


def save_anew(place: Place) -> Act:
    return Act(place.save_anew)


def remove(place: Place) -> Act:
    copy = place.copy()
    return Act(lambda: place.store.remove(copy))


def sweep(place: Place) -> Act:
    return Act(lambda: place.store.sweep(LATER))


Maker = Callable[[Place], Act]
PAIRS: dict[str, tuple[bool, Maker, Maker]] = {
    "a commit meets a sweep": (False, commit, sweep),
    "two commit": (False, commit, commit),
    "two commit what is not the same": (False, commit, commit_another),
    "a late commit meets a removal": (True, commit, remove),
    "it is saved anew while it is removed": (True, save_anew, remove),
    "it is saved anew while it is swept": (False, save_anew, sweep),
    "a removal meets a sweep": (True, remove, sweep),
    "two remove": (True, remove, remove),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_every_order_of_two(pair: str) -> None:
    committed, first, second = PAIRS[pair]
    outcomes: set[str] = set()
    for order in itertools.product((0, 1), repeat=9):
        place = Place(committed)
        acts = [first(place), second(place)]
        orders = Orders(place.s3, acts)
        for number in order:
            orders.let(number)
        orders.end()
        made = [act.outcome for act in acts]
        assert not place.has_manifest() or place.is_whole(), f"{order}: {made}"
        # What is removed is what was there before: a commit that has said True stays.
        assert place.is_whole() or True not in made, f"{order}: {made}"
        outcomes.add(" ".join(type(o).__name__ if isinstance(o, Exception) else str(o) for o in made))
    assert len(outcomes) > 1, "the order must make a difference, or it was not tried"
