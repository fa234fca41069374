"""Many files up or down at once. What becomes of one of them never stops the others.

Small files go by many threads, each with one file at a time, since a parallel file system and S3 both take
their time to answer; large files go by few, each with many parts at once.
"""

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from awscrt.checksums import combine_crc64nvme

from planaria.aws.answers import Listed
from planaria.aws.crt import Connect, Refused, Stopped, Unreached
from planaria.aws.transfer import RANGE, Engine, Identity, NotRight, Sent
from planaria.core.errors import PermanentError, PlanariaError, TransientError
from planaria.core.manifest import Shard, encoded
from planaria.core.transfers import Cause, Failure, File, Piece
from planaria.node.fetched import Fetched
from planaria.node.tree import Tree

SMALL_AT_ONCE = 32
LARGE_AT_ONCE = 4
SMALL = 1 << 20
GIB = 1 << 30
UNREACHED_IN_A_ROW = 8
"""So many objects in a row that could not be reached mean that the store cannot."""
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Carried:
    """shards: what is there now, as it was read or checked; failed: the rest, by name. bytes: moved over the
    network; skipped: files that were there already."""

    shards: tuple[Shard, ...]
    failed: tuple[Failure, ...]
    bytes: int
    skipped: int
    known: Mapping[str, tuple[Identity, str, str]] = field(default_factory=dict)
    """name -> (identity, crc64nvme, ETag) of everything that was sent or was there."""


class Crew:
    """Works through tasks by many threads. Failures are kept by name, in order of the names."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.stop = engine.stop
        self.failed: list[Failure] = []
        self._lock = threading.Lock()
        self._halt = threading.Event()
        self._unreached = 0
        self._broken: BaseException | None = None

    def carry(self, small: Iterable[Callable[[], None]], large: Iterable[Callable[[], None]]) -> None:
        """Raises Stopped when `stop` is set, TransientError when the store cannot be reached at all."""
        threads = []
        for tasks, number in ((small, SMALL_AT_ONCE), (large, LARGE_AT_ONCE)):
            one_by_one = _Shared(tasks)
            for _ in range(number):
                worker = threading.Thread(target=self._work, args=(one_by_one,), daemon=True, name="carry")
                threads.append(worker)
                worker.start()
        try:
            for worker in threads:
                while worker.is_alive():
                    worker.join(0.2)
                    if self.stop.is_set():
                        self._engine.abort()
        except BaseException:  # Ctrl-C in this thread
            self.stop.set()
            for worker in threads:
                while worker.is_alive():
                    self._engine.abort()
                    worker.join(0.2)
            raise
        if self._broken is not None:
            raise self._broken
        if self.stop.is_set():
            raise Stopped
        self.failed.sort(key=lambda failure: failure.name)

    def _work(self, tasks: "_Shared") -> None:
        while not self._halt.is_set() and not self.stop.is_set():
            task = tasks.next()
            if task is None:
                return
            try:
                task()
            except Stopped:
                return
            except BaseException as error:  # noqa: BLE001  told by the thread that waits
                self._end(error)

    def _end(self, error: BaseException) -> None:
        with self._lock:
            self._broken = self._broken or error
        self._halt.set()

    def one(self, name: str, do: Callable[[], None]) -> None:
        """Do it for one file; what goes wrong is its failure alone."""
        try:
            do()
        except Stopped:
            raise
        except Unreached as error:
            with self._lock:
                self._unreached += 1
                enough = self._unreached >= UNREACHED_IN_A_ROW
            if enough:
                self._end(TransientError(f"the store does not answer: {error}"))
            self.fail(name, error)
        except (PlanariaError, OSError) as error:
            self.fail(name, error)
        else:
            self._unreached = 0

    def fail(self, name: str, error: Exception) -> None:
        cause, reason = why(error)
        with self._lock:
            self.failed.append(Failure(name, reason, cause))
        if cause is Cause.FULL:
            self._halt.set()


class _Shared:
    """An iterator that threads share."""

    def __init__(self, tasks: Iterable[Callable[[], None]]) -> None:
        self._tasks: Iterator[Callable[[], None]] = iter(tasks)
        self._lock = threading.Lock()

    def next(self) -> Callable[[], None] | None:
        with self._lock:
            return next(self._tasks, None)


def why(error: Exception) -> tuple[Cause, str]:
    """What kind of reason it was, and one sentence."""
    if isinstance(error, NotRight | Refused):
        return error.cause, str(error)
    if isinstance(error, OSError):
        said = error.strerror or str(error)
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                return Cause.FULL, f"the file system is full ({said}); make room and start it again"
            case errno.EACCES | errno.EPERM:
                return Cause.DENIED, f"it cannot be opened ({said}); check its owner and mode"
            case errno.ENOENT:
                return Cause.BAD, "it is not there any more"
        return Cause.OTHER, f"the file system answered: {said}"
    return Cause.OTHER, str(error)


# --- up --------------------------------------------------------------------------------------------------


def upload_step(
    directory: Path,
    bucket: str,
    prefix: str,
    names: Iterable[str] | None = None,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    connect: Connect | None = None,
    known: Mapping[str, tuple[Identity, str, str]] | None = None,
) -> Carried:
    """The files below a directory as `s3://bucket/prefix/<name>`, but our own (manifest, pin).

    names: those alone. known: what an earlier call told; a file with the same size, mtime and inode whose
    object still has that size and ETag is neither read nor asked for. Raises PermanentError where the
    directory cannot be read or there are no credentials, TransientError where S3 cannot be reached, and when
    it is stopped.
    """
    prefix = prefix.strip("/")
    with _opened(directory) as tree, contextlib.closing(Engine(bucket, connect, stop, progress)) as engine:
        listing = _Later(lambda: listed(engine, f"{prefix}/"))
        found = tree.walk()
        chosen = (
            found.files
            if names is None
            else {each: found.files[each] for each in names if each in found.files}
        )
        crew = Crew(engine)
        crew.failed.extend(found.refused)
        if names is not None:
            crew.failed.extend(
                Failure(each, "it is not there", Cause.BAD) for each in names if each not in chosen
            )
        there = listing.result()
        sent: dict[str, Sent] = {}
        todo = []
        for name, (size, mtime_ns, inode) in chosen.items():
            here, object_there = Identity(size, mtime_ns, inode), there.get(f"{prefix}/{name}")
            before = (known or {}).get(name)
            if before and object_there and before[0] == here and object_there == Listed(size, before[2]):
                sent[name] = Sent(here, _number(before[1]), before[2], skipped=True)
                engine.note(size)
            else:
                todo.append(File(name, size))

        def send(file: File) -> Callable[[], None]:
            def do() -> None:
                key = f"{prefix}/{file.name}"
                sent[file.name] = engine.send(tree, file, key, there.get(key))

            return lambda: crew.one(file.name, do)

        if todo:
            crew.carry(
                (send(file) for file in todo if file.size <= SMALL),
                (send(file) for file in sorted(todo, key=lambda file: -file.size) if file.size > SMALL),
            )
    shards = tuple(Shard(name, sent[name].identity.size, encoded(sent[name].crc)) for name in sorted(sent))
    return Carried(
        shards,
        tuple(crew.failed),
        sum(each.identity.size for each in sent.values() if not each.skipped),
        sum(each.skipped for each in sent.values()),
        {name: (each.identity, encoded(each.crc), each.etag) for name, each in sent.items()},
    )


def listed(engine: Engine, prefix: str) -> dict[str, Listed]:
    try:
        return engine.listed(prefix)
    except Refused as error:
        if error.status == 404:
            raise PermanentError(f"there is no bucket {engine.bucket}: {error}") from None
        return {}  # listing may be denied where writing is not; each object is then sent


def _number(crc64nvme: str) -> int:
    from planaria.aws.answers import number

    return number(crc64nvme)


class _Later:
    """Something that is computed by a thread of its own meanwhile."""

    def __init__(self, compute: Callable[[], dict[str, Listed]]) -> None:
        self._found: dict[str, Listed] = {}
        self._error: BaseException | None = None
        self._compute = compute
        self._thread = threading.Thread(target=self._run, daemon=True, name="list")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found = self._compute()
        except BaseException as error:  # noqa: BLE001  told by the thread that waits
            self._error = error

    def result(self) -> dict[str, Listed]:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found


def _opened(directory: Path, make: bool = False) -> Tree:
    try:
        return Tree(directory, make)
    except OSError as error:
        raise PermanentError(f"{directory} cannot be opened: {error.strerror}") from None


# --- down ------------------------------------------------------------------------------------------------


def download_step(
    shards: Sequence[Shard],
    bucket: str,
    prefix: str,
    directory: Path,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    connect: Connect | None = None,
) -> Carried:
    """Objects `s3://bucket/prefix/<name>` into a directory, a `.tmp` that the caller renames in the end. What
    an earlier call brought is checked and stays. Each file has its size and checksum, or is in `failed` and
    not there; where the file system is full, nothing of it is left. Raises as upload_step."""
    files = [File(shard.name, shard.size, shard.crc64nvme) for shard in shards]
    lacking = room_lacking(directory, files)
    if lacking:
        return Carried((), (Failure(str(directory), lacking, Cause.FULL),), 0, 0)
    with (
        _opened(directory, make=True) as tree,
        contextlib.closing(Engine(bucket, connect, stop, progress)) as engine,
    ):
        crew = Crew(engine)
        cursor = Fetched(tree, "fetch")
        bringing = Bringing(engine, tree, files, cursor, prefix.strip("/"))
        pieces = [Piece(index, 0, file.size) for index, file in enumerate(files)]
        try:
            bringing.carry(crew, pieces)
        finally:
            cursor.close()
        whole = bringing.joined(crew, range(len(files)))
        cursor.forget()
    if any(failure.cause is Cause.FULL for failure in crew.failed):
        shutil.rmtree(directory, ignore_errors=True)
        return Carried((), tuple(f for f in crew.failed if f.cause is Cause.FULL)[:1], bringing.bytes, 0)
    done = tuple(Shard(files[i].name, files[i].size, encoded(crc)) for i, crc in sorted(whole.items()))
    return Carried(done, tuple(crew.failed), bringing.bytes, bringing.skipped)


class Bringing:
    """Pieces of files from S3 into a tree. sums: (file, start) -> (length, CRC64NVME) of what is there."""

    def __init__(
        self, engine: Engine, tree: Tree, files: Sequence[File], cursor: Fetched, prefix: str
    ) -> None:
        self._engine, self._tree, self._files, self._cursor, self._prefix = (
            engine,
            tree,
            files,
            cursor,
            prefix,
        )
        self.sums: dict[tuple[int, int], tuple[int, int]] = {}
        self.bytes = 0
        self.skipped = 0
        self._lock = threading.Lock()

    def carry(self, crew: Crew, pieces: Sequence[Piece]) -> None:
        """Each piece, or a failure of its file."""
        large = [piece for piece in pieces if piece.length > RANGE and self._complete(piece)]
        if large:
            crew.carry((), (self._looking(crew, piece) for piece in large))
        units = [unit for piece in pieces if self.piece(piece) is None for unit in _units(piece)]
        crew.carry(
            (self._task(crew, unit) for unit in units if unit.length <= SMALL),
            (self._task(crew, unit) for unit in units if unit.length > SMALL),
        )

    def _complete(self, piece: Piece) -> bool:
        """An earlier copier had come to its end with this file: all of it is there, and no lines about it."""
        file = self._files[piece.file]
        if piece.length != file.size or not file.crc64nvme or self._cursor.knows(file.name):
            return False
        try:
            told = self._tree.stat(file.name)
        except (OSError, NotRight):
            return False
        return told.st_size == file.size and told.st_blocks * 512 >= file.size

    def _looking(self, crew: Crew, piece: Piece) -> Callable[[], None]:
        file = self._files[piece.file]

        def look() -> None:
            descriptor = self._tree.open(file.name)
            try:
                crc = self._engine.checksum(descriptor, 0, file.size)
            finally:
                os.close(descriptor)
            if crc is not None and encoded(crc) == file.crc64nvme:
                with self._lock:
                    self.sums[piece.file, 0] = (file.size, crc)
                    self.skipped += 1
                self._engine.note(file.size)

        return lambda: crew.one(file.name, look)

    def _task(self, crew: Crew, unit: Piece) -> Callable[[], None]:
        file = self._files[unit.file]
        return lambda: crew.one(file.name, lambda: self._bring(file, unit))

    def _bring(self, file: File, unit: Piece) -> None:
        whole = unit.length == file.size
        descriptor = self._tree.create(file.name, file.size)
        try:
            known = file.crc64nvme if whole else self._cursor.sum_of(file.name, unit.start, unit.length)
            crc = self._there(descriptor, unit, known)
            moved = crc is None
            if crc is None:
                crc = self._engine.fetch(
                    f"{self._prefix}/{file.name}", descriptor, unit.start, unit.length, whole
                )
                if whole and file.crc64nvme and encoded(crc) != file.crc64nvme:
                    raise NotRight(_wrong(file, encoded(crc)), Cause.BAD)
                if unit.length > SMALL:
                    self._cursor.note(file.name, unit.start, unit.length, encoded(crc))
        except BaseException as error:
            if whole and not isinstance(error, Stopped):
                self._tree.remove(file.name)
            raise
        finally:
            os.close(descriptor)
        with self._lock:
            self.sums[unit.file, unit.start] = (unit.length, crc)
            self.bytes += unit.length if moved else 0
            self.skipped += not moved and whole

    def _there(self, descriptor: int, unit: Piece, known: str) -> int | None:
        """The checksum of what an earlier copier wrote there, if it is right. A new file has no blocks."""
        if not known or (unit.length and os.fstat(descriptor).st_blocks == 0):
            return None
        crc = self._engine.checksum(descriptor, unit.start, unit.length)
        if crc is None or encoded(crc) != known:
            return None
        self._engine.note(unit.length)
        return crc

    def piece(self, piece: Piece) -> int | None:
        """The CRC64NVME of a piece; None where not all of it was brought."""
        first = self.sums.get((piece.file, piece.start))
        if first is not None and first[0] == piece.length:
            return first[1]
        told = [self.sums.get((unit.file, unit.start)) for unit in _units(piece)]
        return None if None in told else join([each for each in told if each is not None])

    def joined(self, crew: Crew, indices: Iterable[int]) -> dict[int, int]:
        """index -> CRC64NVME of the files that are whole. A file whose pieces together are not what they
        should be is removed and failed."""
        found = {}
        bad = {failure.name for failure in crew.failed}
        for index in indices:
            file = self._files[index]
            if file.name in bad:
                self._tree.remove(file.name)
                continue
            crc = self.piece(Piece(index, 0, file.size))
            if crc is None:
                continue  # it was not its turn any more, or it failed
            if file.crc64nvme and encoded(crc) != file.crc64nvme:
                self._tree.remove(file.name)
                crew.fail(file.name, NotRight(_wrong(file, encoded(crc)), Cause.BAD))
                continue
            found[index] = crc
        return found


def join(pieces: Sequence[tuple[int, int]]) -> int:
    """The CRC64NVME of (length, CRC64NVME) one after the other."""
    crc = 0
    for length, each in pieces:
        crc = combine_crc64nvme(crc, each, length)
    return crc


def _units(piece: Piece) -> Iterator[Piece]:
    if piece.length <= RANGE:
        yield piece
        return
    for at in range(piece.start, piece.start + piece.length, RANGE):
        yield Piece(piece.file, at, min(RANGE, piece.start + piece.length - at))


def _wrong(file: File, crc: str) -> str:
    return f"the object is not what the manifest says: its checksum is {crc}, not {file.crc64nvme}"


def room_lacking(directory: Path, files: Iterable[File]) -> str:
    """One sentence where the file system has no room for what is not there yet of these files, else ""."""
    place = directory
    while not place.exists() and place != place.parent:
        place = place.parent
    told = os.statvfs(place)
    free, needed = told.f_bavail * told.f_frsize, 0
    for file in files:
        try:
            there = os.lstat(directory / file.name)
            needed += max(0, file.size - there.st_blocks * 512)
        except OSError:
            needed += file.size
    if needed <= free:
        return ""
    return (
        f"the file system of {place} has {free / GIB:.2f} GiB free, and the step needs "
        f"{needed / GIB:.2f} GiB; make room and start it again"
    )
