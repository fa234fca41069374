"""Files to objects and back, with CRC64NVME from the first read to the last write.

An object up to one part goes up in one request. A larger one is a multipart upload whose checksum is that of
the whole object (ChecksumType FULL_OBJECT): the checksums of its parts, as they were read from the file, are
combined and S3 compares the result with its own. A copier that was killed leaves an upload behind; the next
one finds it by ListMultipartUploads and sends only the parts whose bytes S3 has not: a part is taken over
when the file's own bytes have the checksum (or MD5) that S3 tells of it.

A range comes down in one request, which the runtime fetches in parts, and is written as it comes.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from awscrt import s3
from awscrt.checksums import combine_crc64nvme, crc64nvme

from planaria.aws import answers
from planaria.aws.crt import Call, Connect, Crt, Refused, Reply, Stopped, Throttle, Unreached
from planaria.aws.small_objects import LONGEST, SmallObjects
from planaria.core.errors import PermanentError, TransientError
from planaria.core.manifest import encoded
from planaria.core.transfers import MIB, PART, Cause, File, part_size, parts_of

PARTS_AT_ONCE = 16
"""Parts that are read and on their way, over all files: 256 MiB of memory."""
RANGE = 128 * MIB
"""One request down, and what is fetched again after a copier was killed."""
TRIES = 3
"""How often a file that changes while it is read is begun anew."""
READ = 8 * MIB
NO_UPLOAD = "NoSuchUpload"


class NotRight(PermanentError):
    """One file was not carried. cause: what kind of reason it was."""

    def __init__(self, reason: str, cause: Cause) -> None:
        super().__init__(reason)
        self.cause = cause


class _EndedByAnother(TransientError):
    def __init__(self, key: str) -> None:
        super().__init__(f"the upload of {key} was ended by another copier; start it again")


class Source(Protocol):
    """Where files are read. open: a descriptor of a plain file, which the caller closes; stat: as it is now,
    by its name. Both raise OSError, or NotRight where the name is no plain file below the source."""

    def open(self, name: str) -> int: ...
    def stat(self, name: str) -> os.stat_result: ...


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells a file from the same name with other bytes."""

    size: int
    mtime_ns: int
    inode: int

    @staticmethod
    def of(stat: os.stat_result) -> "Identity":
        return Identity(stat.st_size, stat.st_mtime_ns, stat.st_ino)


@dataclass(frozen=True, slots=True)
class Sent:
    """An object that is there. skipped: it was there before."""

    identity: Identity
    crc: int
    etag: str
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a multipart upload, as S3 has it. crc: of what was read from the file."""

    number: int
    etag: str
    crc: int
    length: int


class Range:
    """A range of an open file, as the runtime reads a body: straight into its own memory. crc: of what it has
    read. error: why it could not go on."""

    def __init__(self, descriptor: int, start: int, length: int) -> None:
        self._descriptor = descriptor
        self._start = start
        self._length = length
        self._at = 0
        self.crc = 0
        self.error: OSError | None = None

    def readinto(self, view: memoryview) -> int:
        wanted = min(len(view), self._length - self._at)
        if wanted <= 0:
            return 0
        piece = view[:wanted]
        try:
            got = os.preadv(self._descriptor, [piece], self._start + self._at)
        except OSError as error:
            self.error = error
            return 0
        self.crc = crc64nvme(piece[:got] if got < wanted else piece, self.crc)
        self._at += got
        return got

    @property
    def whole(self) -> bool:
        return self._at >= self._length

    def read(self, size: int) -> bytes:
        kept = bytearray(size)
        return bytes(kept[: self.readinto(memoryview(kept))])

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Only to the beginning (to send it again) or to the end (to learn the length)."""
        self._at = offset if whence == os.SEEK_SET else self._length + offset
        if self._at == 0:
            self.crc = 0
        return self._at


class Engine:
    """Moves the objects of one bucket. Safe for many threads. stop: when it is set, every call ends with
    Stopped within a second. moved: told of bytes as they are moved, from any thread."""

    def __init__(
        self,
        bucket: str,
        connect: Connect | None = None,
        stop: threading.Event | None = None,
        moved: Callable[[int], None] | None = None,
    ) -> None:
        connect = connect or Connect()
        self.bucket = bucket
        self.stop = stop or threading.Event()
        self._crt = Crt(bucket, connect)
        self._small = SmallObjects(self._crt.host, self._crt.region, self._crt.credentials)
        self._throttle = Throttle(connect.bytes_per_second)
        self._unit = PART if connect.bytes_per_second else RANGE
        self._own_endpoint = bool(connect.known_endpoint)
        self._room = threading.BoundedSemaphore(PARTS_AT_ONCE)
        self._moved = moved or (lambda _: None)

    def abort(self) -> None:
        """End what is waited for, after `stop` was set."""
        self._small.abort()

    def close(self) -> None:
        """Its idle connections; it may be used again."""
        self._small.close()

    # --- single requests -----------------------------------------------------------------------------

    def listed(self, prefix: str) -> dict[str, answers.Listed]:
        """Every object whose key begins so."""
        found: dict[str, answers.Listed] = {}
        token = ""
        while True:
            query = f"list-type=2&encoding-type=url&prefix={quote(prefix, safe='-_.~')}"
            query += f"&continuation-token={quote(token, safe='-_.~')}" if token else ""
            page = answers.listing(self._crt.ask_bucket("ListObjectsV2", query).reply(self.stop).body)
            found.update(page.objects)
            if not page.more:
                return found
            token = page.more

    def any(self, prefix: str) -> bool:
        """Whether there is an object whose key begins so; False where we may not look."""
        query = f"list-type=2&max-keys=1&prefix={quote(prefix, safe='-_.~')}"
        try:
            return bool(
                answers.listing(self._crt.ask_bucket("ListObjectsV2", query).reply(self.stop).body).objects
            )
        except Refused:
            return False

    def note(self, size: int) -> None:
        """So many bytes are there already."""
        self._moved(size)

    def stored(self, key: str) -> answers.Stored | None:
        """What S3 tells of an object, None where there is none."""
        headers = [("x-amz-checksum-mode", "ENABLED")]
        if reply := self._small.ask("HEAD", key, headers):
            return answers.stored(reply)
        try:
            return answers.stored(self._ask("HEAD", key, "HeadObject", headers=headers))
        except Refused as error:
            if error.status == 404:
                return None
            raise

    def get(self, key: str) -> bytes:
        """A small object. Raises Refused (status 404) where there is none."""
        return self._ask("GET", key, "GetObject").body

    def put(self, key: str, body: bytes) -> str:
        """A small object -> its ETag."""
        sums = [("x-amz-checksum-crc64nvme", encoded(crc64nvme(body)))]
        if reply := self._small.ask("PUT", key, sums, body):
            return reply.headers.get("etag", "")
        return self._ask("PUT", key, "PutObject", headers=sums, body=body).headers.get("etag", "")

    def delete(self, key: str) -> None:
        self._ask("DELETE", key, "DeleteObject")

    def _ask(self, method: str, key: str, operation: str, query: str = "", **more: Any) -> Reply:
        if self.stop.is_set():
            raise Stopped
        return self._crt.ask(method, key, operation, query, **more).reply(self.stop)

    # --- up ------------------------------------------------------------------------------------------

    def send(self, source: Source, file: File, key: str, present: answers.Listed | None = None) -> Sent:
        """One file as one object. present: what a listing tells of the key. An object that is there with the
        right size and checksum is not sent again. Raises NotRight, OSError, Refused, Unreached, Stopped."""
        for turn in range(TRIES):
            descriptor = source.open(file.name)
            try:
                before = Identity.of(os.fstat(descriptor))
                sent = self._send_once(descriptor, before, file, key, present)
                after = Identity.of(os.fstat(descriptor))
                if sent is not None and before == after == Identity.of(source.stat(file.name)):
                    return sent
            except FileNotFoundError:
                pass
            finally:
                os.close(descriptor)
            present = present or answers.Listed(-1, "")
            if self.stop.wait(0.05 * 4**turn):
                raise Stopped
        raise NotRight(
            f"{file.name} is still being written: it changed each of the {TRIES} times that it was read",
            Cause.CHANGED,
        )

    def _send_once(
        self, descriptor: int, was: Identity, file: File, key: str, present: answers.Listed | None
    ) -> Sent | None:
        """None: it changed while it was read."""
        if present is not None and present.size == was.size:
            there = self._there(descriptor, was, file, key)
            if there is not None:
                return there
        if was.size > part_size(was.size):
            return self._send_parts_of(descriptor, was, file, key)
        return self._send_whole(descriptor, was, file, key)

    def _send_whole(self, descriptor: int, was: Identity, file: File, key: str) -> Sent | None:
        self._throttle.take(was.size, self.stop)
        if was.size <= LONGEST:
            body = os.pread(descriptor, was.size + 1, 0)
            if len(body) != was.size:
                return None
            crc = crc64nvme(body)
            _expect(file, encoded(crc))
            etag = self.put(key, body)
            self._moved(was.size)
            return Sent(was, crc, etag)
        with _Room(self):
            stream = Range(descriptor, 0, was.size)
            reply = self._finished(self._crt.ask(
                "PUT", key, "PutObject", body=stream, length=was.size, checksum=True
            ), stream)  # fmt: skip
        if reply is None:
            return None
        self._moved(was.size)
        _expect(file, encoded(stream.crc))
        return Sent(was, stream.crc, reply.headers.get("etag", ""))

    def _send_parts_of(self, descriptor: int, was: Identity, file: File, key: str) -> Sent | None:
        for _ in range(TRIES):
            upload = self.begin_upload(key)
            try:
                parts = self.send_parts(descriptor, key, upload, was.size, 0, was.size)
                if parts is None or Identity.of(os.fstat(descriptor)) != was:
                    self.abort_upload(key, upload)
                    return None
                crc = combined(parts)
                _expect(file, encoded(crc))
                return Sent(was, crc, self.finish_upload(key, upload, parts, was.size))
            except NotRight:
                self.abort_upload(key, upload)
                raise
            except Refused as error:
                if error.code != NO_UPLOAD:
                    raise
            except _EndedByAnother:
                pass
            # Another copier has ended the upload that both found, most likely with the same bytes.
            if there := self._there(descriptor, was, file, key):
                return there
        raise _EndedByAnother(key)

    def _there(self, descriptor: int, was: Identity, file: File, key: str) -> Sent | None:
        """The object, if it has the file's size and checksum."""
        stored = self.stored(key)
        if stored is None or stored.size != was.size or not stored.crc64nvme:
            return None
        known = file.crc64nvme
        if not known:
            crc = self.checksum(descriptor, 0, was.size)
            known = "" if crc is None else encoded(crc)
        if stored.crc64nvme != known:
            return None
        self._moved(was.size)
        return Sent(was, answers.number(known), stored.etag, skipped=True)

    def begin_upload(self, key: str) -> str:
        """The id of this key's newest unfinished multipart upload, or of a new one."""
        query = f"uploads&encoding-type=url&prefix={quote(key, safe='-_.~')}"
        try:
            body = self._crt.ask_bucket("ListMultipartUploads", query).reply(self.stop).body
            found = [each for each in answers.uploads(body) if each.key == key]
        except Refused:
            found = []  # it may not be allowed; a new upload is as good
        fits = ("CRC64NVME", "") if self._own_endpoint else ("CRC64NVME",)
        ours = [each for each in found if each.algorithm in fits]
        if ours:
            return max(ours, key=lambda each: each.initiated).upload
        headers = [("x-amz-checksum-algorithm", "CRC64NVME"), ("x-amz-checksum-type", "FULL_OBJECT")]
        reply = self._ask("POST", key, "CreateMultipartUpload", "uploads", headers=headers)
        return answers.created(reply.body)

    def send_parts(
        self, descriptor: int, key: str, upload: str, size: int, start: int, length: int
    ) -> list[Part] | None:
        """A range of a file of `size` bytes as parts of an upload; those that S3 has already stay. None: the
        file became shorter meanwhile."""
        have = self._parts_there(key, upload) if length else {}
        under_way: list[tuple[int, int, Range, Call]] = []
        parts: list[Part] = []
        try:
            for number, at, size_of_part in parts_of(size, start, length):
                there = have.get(number)
                if there and (part := self._same(descriptor, number, at, size_of_part, there)):
                    parts.append(part)
                    self._moved(size_of_part)
                    continue
                self._throttle.take(size_of_part, self.stop)
                stream = Range(descriptor, at, size_of_part)
                call = self._send_part(key, upload, number, size_of_part, stream)
                under_way.append((number, size_of_part, stream, call))
            for number, size_of_part, stream, call in under_way:
                reply = self._finished(call, stream)
                if reply is None:
                    return None
                parts.append(Part(number, reply.headers.get("etag", ""), stream.crc, size_of_part))
        finally:
            for _, _, _, call in under_way:
                if not call.future.done():
                    call.cancel()
        return sorted(parts, key=lambda part: part.number)

    def _send_part(self, key: str, upload: str, number: int, length: int, stream: Range) -> Call:
        room = _Room(self).__enter__()
        try:
            query = f"partNumber={number}&uploadId={quote(upload, safe='-_.~')}"
            call = self._crt.ask("PUT", key, "UploadPart", query, body=stream, length=length, checksum=True)
        except BaseException:
            room.__exit__()
            raise

        def ended(future: Any) -> None:
            room.__exit__()
            if not future.exception():
                self._moved(length)

        call.future.add_done_callback(ended)
        return call

    def _finished(self, call: Call, stream: Range) -> Reply | None:
        """None: the file had fewer bytes than it was said to have."""
        try:
            return call.reply(self.stop)
        except Unreached:
            if stream.error is not None:
                raise stream.error from None
            if not stream.whole:
                return None
            raise

    def _parts_there(self, key: str, upload: str) -> dict[int, answers.ListedPart]:
        found: dict[int, answers.ListedPart] = {}
        marker = 0
        while True:
            query = f"part-number-marker={marker}&uploadId={quote(upload, safe='-_.~')}"
            try:
                page = answers.parts(self._ask("GET", key, "ListParts", query).body)
            except Refused:
                return found  # it may not be allowed: then every part is sent
            found.update(page.parts)
            if not page.more:
                return found
            marker = page.more

    def _same(
        self, descriptor: int, number: int, start: int, length: int, there: answers.ListedPart
    ) -> Part | None:
        """The part that S3 has, if the file's bytes are the same."""
        if there.size != length:
            return None
        digest = hashlib.md5(usedforsecurity=False)
        crc, at = 0, start
        while at < start + length:
            body = os.pread(descriptor, min(READ, start + length - at), at)
            if not body:
                return None
            crc, at = crc64nvme(body, crc), at + len(body)
            if not there.crc64nvme:
                digest.update(body)
        same = (
            there.crc64nvme == encoded(crc)
            if there.crc64nvme
            else there.etag.strip('"') == digest.hexdigest()
        )
        return Part(number, there.etag, crc, length) if same else None

    def finish_upload(self, key: str, upload: str, parts: Sequence[Part], size: int) -> str:
        """Make the parts one object -> its ETag. Done already, by whomever, with the same bytes: the same."""
        crc = encoded(combined(parts))
        headers = [
            ("x-amz-checksum-crc64nvme", crc),
            ("x-amz-checksum-type", "FULL_OBJECT"),
            ("x-amz-mp-object-size", str(size)),
        ]
        body = answers.completion([(part.number, part.etag, encoded(part.crc)) for part in parts])
        query = f"uploadId={quote(upload, safe='-_.~')}"
        try:
            reply = self._ask("POST", key, "CompleteMultipartUpload", query, headers=headers, body=body)
        except Refused as error:
            stored = self.stored(key) if error.status == 404 else None
            if stored is not None and stored.size == size and stored.crc64nvme == crc:
                return stored.etag
            if error.status == 404:
                raise _EndedByAnother(key) from None
            raise
        return answers.etag_of(reply.body)

    def abort_upload(self, key: str, upload: str) -> None:
        """Quiet where it cannot be done: the bucket's lifecycle and the sweep end what is left."""
        try:
            self._ask("DELETE", key, "AbortMultipartUpload", f"uploadId={quote(upload, safe='-_.~')}")
        except (PermanentError, TransientError):
            return

    def checksum(self, descriptor: int, start: int, length: int) -> int | None:
        """Of a range of a file; None where it ends before."""
        crc, at = 0, start
        while at < start + length:
            if self.stop.is_set():
                raise Stopped
            body = os.pread(descriptor, min(READ, start + length - at), at)
            if not body:
                return None
            crc, at = crc64nvme(body, crc), at + len(body)
        return crc

    # --- down ----------------------------------------------------------------------------------------

    def fetch(self, key: str, descriptor: int, start: int, length: int, whole: bool) -> int:
        """A range of an object into the same range of an open file -> its CRC64NVME. whole: the range is all
        of the object. Raises NotRight where the object is shorter, OSError of the file, Refused..."""
        if whole and length <= LONGEST:
            return self._fetch_small(key, descriptor, length)
        crc, at = 0, start
        while at < start + length:
            size = min(self._unit, start + length - at)
            self._throttle.take(size, self.stop)
            crc = self._fetch_unit(key, descriptor, at, size, crc)
            at += size
        return crc

    def _fetch_small(self, key: str, descriptor: int, length: int) -> int:
        self._throttle.take(length, self.stop)
        body = self._body_of(key)
        if len(body) != length:
            raise NotRight(f"the object has {len(body)} bytes instead of {length}", Cause.BAD)
        write_all(descriptor, body, 0)
        self._moved(length)
        return crc64nvme(body)

    def _body_of(self, key: str) -> bytes:
        if reply := self._small.ask("GET", key):
            return reply.body
        return self._ask("GET", key, "GetObject").body

    def _fetch_unit(self, key: str, descriptor: int, start: int, length: int, crc: int) -> int:
        state = [crc, 0]

        def wrote(chunk: bytes, offset: int) -> None:
            at = offset if offset >= start else start + offset
            write_all(descriptor, chunk, at)
            state[0] = crc64nvme(chunk, state[0])
            state[1] += len(chunk)
            self._moved(len(chunk))

        headers = [("Range", f"bytes={start}-{start + length - 1}")]
        with _Room(self):
            self._ask(
                "GET", key, "GetObject", headers=headers, on_body=wrote, kind=s3.S3RequestType.GET_OBJECT
            )
        if state[1] != length:
            raise NotRight(f"the object ends {length - state[1]} bytes too early", Cause.BAD)
        return state[0]


class _Room:
    """One of the places for a part on its way. Raises Stopped."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> "_Room":
        while not self._engine._room.acquire(timeout=0.2):
            if self._engine.stop.is_set():
                raise Stopped
        return self

    def __exit__(self, *_: object) -> None:
        self._engine._room.release()


def write_all(descriptor: int, body: bytes, at: int) -> None:
    """Every byte, or OSError."""
    rest = memoryview(body)
    while rest:
        wrote = os.pwrite(descriptor, rest, at)
        rest, at = rest[wrote:], at + wrote


def combined(parts: Sequence[Part]) -> int:
    """The CRC64NVME of what the parts make together, in their order."""
    crc = 0
    for part in parts:
        crc = combine_crc64nvme(crc, part.crc, part.length)
    return crc


def _expect(file: File, crc64nvme_text: str) -> None:
    if file.crc64nvme and file.crc64nvme != crc64nvme_text:
        raise NotRight(
            f"{file.name} is not what its manifest says: its checksum is {crc64nvme_text}, "
            f"not {file.crc64nvme}",
            Cause.BAD,
        )
