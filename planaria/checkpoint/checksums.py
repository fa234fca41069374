"""CRC64NVME of files. Large files are read in ranges by several threads, and the ranges' sums are
combined."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from awscrt.checksums import combine_crc64nvme, crc64nvme

from planaria.core.manifest import encoded

RANGE = 64 << 20
"""Bytes of a file that one thread reads: enough that a stripe of a parallel file system is read in one go."""
_READ = 4 << 20
_AT_ONCE = 64
"""Ranges under way for each thread: what is not begun yet costs memory too, of 100,000 files."""

Progress = Callable[[int], None]
"""Told the bytes that were read since it was told last, from any thread."""


@dataclass(frozen=True, slots=True)
class Sum:
    """size: bytes that were read; crc64nvme: as S3 writes it."""

    size: int
    crc64nvme: str


@dataclass(slots=True)
class _File:
    """One file under way: the sums of its ranges, by their number, as they come."""

    name: str
    size: int
    sums: dict[int, tuple[int, int]]


def threads() -> int:
    """As many as cores, at least 4 (a file system answers several at once) and at most 16 (the job runs
    too)."""
    return min(16, max(4, os.cpu_count() or 1))


def of_file(path: Path, progress: Progress | None = None) -> Sum:
    """Raises OSError."""
    return of_files(path.parent, {path.name: path.stat().st_size}, progress)[path.name]


def of_files(root: Path, sizes: Mapping[str, int], progress: Progress | None = None) -> dict[str, Sum]:
    """name below root -> its sum. sizes: name -> bytes to read from its beginning; of a file that is shorter
    now the sum's size is what there was.

    Raises OSError of the first file that cannot be read, with its name in `filename`; the rest is not read.
    """
    found: dict[str, Sum] = {}
    stop = threading.Event()
    with ThreadPoolExecutor(threads(), thread_name_prefix="checksum") as pool:
        under_way: dict[Future[tuple[int, int]], tuple[_File, int]] = {}
        try:
            for each, number in _ranges(sizes):
                start = number * RANGE
                length = min(RANGE, each.size - start)
                job = pool.submit(_of_range, root / each.name, start, length, progress, stop)
                under_way[job] = (each, number)
                if len(under_way) >= _AT_ONCE * threads():
                    _gather(under_way, found, len(under_way) // 2)
            _gather(under_way, found, len(under_way))
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return found


def _ranges(sizes: Mapping[str, int]) -> Iterator[tuple[_File, int]]:
    for name, size in sizes.items():
        each = _File(name, size, {})
        for number in range(_count(size)):
            yield each, number


def _count(size: int) -> int:
    return max(1, -(-size // RANGE))


def _gather(
    under_way: dict[Future[tuple[int, int]], tuple[_File, int]], found: dict[str, Sum], count: int
) -> None:
    for job in list(under_way)[:count]:
        each, number = under_way.pop(job)
        each.sums[number] = job.result()
        if len(each.sums) == _count(each.size):
            found[each.name] = _combined(each.sums[at] for at in sorted(each.sums))


def _combined(parts: Iterable[tuple[int, int]]) -> Sum:
    total = crc = 0
    for size, part in parts:
        crc = combine_crc64nvme(crc, part, size) if total else part
        total += size
    return Sum(total, encoded(crc))


def _of_range(
    path: Path, start: int, length: int, progress: Progress | None, stop: threading.Event
) -> tuple[int, int]:
    """(bytes that are there, their CRC)."""
    buffer = _buffer()
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        done = crc = 0
        while done < length and not stop.is_set():
            count = os.preadv(descriptor, [buffer[: length - done]], start + done)
            if count == 0:
                break
            crc = crc64nvme(buffer[:count], crc)
            done += count
            if progress is not None:
                progress(count)
        return done, crc
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        os.close(descriptor)


_own = threading.local()


def _buffer() -> memoryview:
    """One a thread: memory that was used before is fast."""
    held: memoryview | None = getattr(_own, "buffer", None)
    if held is None:
        held = _own.buffer = memoryview(bytearray(_READ))
    return held
