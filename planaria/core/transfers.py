"""What one transfer moves, divided into chunks of about the same work.

A chunk is what one node claims. Small files stay whole; a huge file is split into ranges, so that several
nodes carry it. A range begins where a part of S3's multipart upload begins: the parts of one object may come
from several nodes. Limits: https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from planaria.core.errors import InvalidInput

MIB = 1 << 20
PART = 16 * MIB
MOST_PARTS = 10_000
LARGEST_PART = 5 * 1024 * MIB
LARGEST_OBJECT = MOST_PARTS * LARGEST_PART
SPLIT = 1024 * MIB
"""A file is split into ranges of this size at least."""
FILE_COST = 64 * 1024
"""What one file costs beside its bytes (its requests, its opening), in bytes of the same time."""
MOST_CHUNKS = 1000


class Mode(StrEnum):
    """COPY: up, with checksums of what is read. HASH: checksums alone. FETCH: down, checked."""

    COPY = "copy"
    HASH = "hash"
    FETCH = "fetch"


class Cause(StrEnum):
    """Why one object was not carried. BAD: missing, or not the bytes that it should be; FULL: no room on the
    file system; DENIED: no permission; CHANGED: still being written; OTHER: it may go better later."""

    BAD = "bad"
    FULL = "full"
    DENIED = "denied"
    CHANGED = "changed"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Failure:
    """name: of the file; reason: one sentence."""

    name: str
    reason: str
    cause: Cause = Cause.OTHER


@dataclass(frozen=True, slots=True)
class File:
    """One file of a step. crc64nvme: what it has to be (base64), "" where nobody knows yet."""

    name: str
    size: int
    crc64nvme: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of one file, or the whole of it. file: its index in the plan; start, length: bytes."""

    file: int
    start: int
    length: int


def part_size(size: int) -> int:
    """Bytes of each part of an object's multipart upload; the last one may be smaller.

    Raises InvalidInput where S3 has no place for an object of that size.
    """
    if size > LARGEST_OBJECT:
        raise InvalidInput(
            f"a file of {size} bytes is larger than the largest object of S3 ({LARGEST_OBJECT} bytes); "
            "save it in more than one shard"
        )
    least = -(-size // MOST_PARTS)
    return min(LARGEST_PART, max(PART, -(-least // MIB) * MIB))


def parts_of(size: int, start: int, length: int) -> list[tuple[int, int, int]]:
    """The parts (number from 1, start, length) of a range that begins where a part begins."""
    step = part_size(size)
    assert start % step == 0, "a range begins where a part begins"
    end = start + length
    return [(at // step + 1, at, min(step, end - at)) for at in range(start, end, step)]


def balanced(files: Sequence[File], chunks: int) -> tuple[tuple[Piece, ...], ...]:
    """The files in at most `chunks` chunks of about the same work, none of them empty.

    The same files give the same chunks. Raises InvalidInput for a file that is too large for S3.
    """
    wanted = max(1, min(chunks, MOST_CHUNKS))
    total = sum(file.size + FILE_COST for file in files)
    target = max(SPLIT, -(-total // wanted))
    pieces = [piece for index, file in enumerate(files) for piece in _pieces(index, file.size, target)]
    pieces.sort(key=lambda piece: (-piece.length, piece.file, piece.start))
    loads = [(0, number) for number in range(min(wanted, max(1, len(pieces))))]
    found: list[list[Piece]] = [[] for _ in loads]
    for piece in pieces:
        load, number = heapq.heappop(loads)
        found[number].append(piece)
        heapq.heappush(loads, (load + piece.length + FILE_COST, number))
    return tuple(
        tuple(sorted(chunk, key=lambda piece: (piece.file, piece.start))) for chunk in found if chunk
    )


def _pieces(index: int, size: int, target: int) -> list[Piece]:
    step = part_size(size)
    if size <= target + target // 2:
        return [Piece(index, 0, size)]
    length = -(-target // step) * step
    return [Piece(index, at, min(length, size - at)) for at in range(0, size, length)]


def split_files(chunks: Sequence[Sequence[Piece]]) -> frozenset[int]:
    """Indices of the files that are carried in more than one piece."""
    seen: set[int] = set()
    twice: set[int] = set()
    for chunk in chunks:
        for piece in chunk:
            (twice if piece.file in seen else seen).add(piece.file)
    return frozenset(twice)


@dataclass(frozen=True, slots=True)
class Carrier:
    """A node that carries chunks. share: of its network's bandwidth, 0 < share <= 1."""

    node: str
    share: float


def carriers(idle: Sequence[str], own: Sequence[str], chunks: int, share: float) -> tuple[Carrier, ...]:
    """Who carries: idle nodes first, with all they have; the job's own only for what is left, within `share`
    of their bandwidth, since they train meanwhile. At most one node for each chunk."""
    first = [Carrier(node, 1.0) for node in idle[:chunks]]
    if share <= 0:
        return tuple(first)
    taken = set(idle)
    rest = [node for node in own if node not in taken][: max(0, chunks - len(first))]
    return tuple(first + [Carrier(node, min(1.0, share)) for node in rest])
