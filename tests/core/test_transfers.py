"""Chunks of a transfer: everything once, balanced, and cut where S3 allows it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planaria.core.errors import InvalidInput
from planaria.core.transfers import (
    FILE_COST,
    LARGEST_OBJECT,
    LARGEST_PART,
    MIB,
    MOST_PARTS,
    PART,
    SPLIT,
    Carrier,
    File,
    balanced,
    carriers,
    part_size,
    parts_of,
    split_files,
)

SIZES = st.one_of(
    st.integers(0, 64 * 1024),
    st.integers(0, 64 * MIB),
    st.integers(0, 40 * SPLIT),
    st.integers(0, LARGEST_OBJECT),
)


@given(st.lists(SIZES, max_size=40), st.integers(1, 50))
def test_every_byte_is_in_one_chunk(sizes: list[int], chunks: int) -> None:
    files = [File(str(number), size) for number, size in enumerate(sizes)]
    found = balanced(files, chunks)
    assert len(found) <= chunks and all(found)
    at = dict.fromkeys(range(len(files)), 0)
    for piece in sorted((p for chunk in found for p in chunk), key=lambda p: (p.file, p.start)):
        assert piece.start == at[piece.file]
        assert piece.start % part_size(files[piece.file].size) == 0
        at[piece.file] = piece.start + piece.length
    assert at == {number: file.size for number, file in enumerate(files)}
    pieces = [piece.file for chunk in found for piece in chunk]
    assert set(pieces) == set(range(len(files)))
    assert split_files(found) == {number for number in at if pieces.count(number) > 1}
    assert balanced(files, chunks) == found


@given(st.lists(SIZES, min_size=1, max_size=40), st.integers(1, 50))
def test_no_chunk_has_much_more_work_than_its_share(sizes: list[int], chunks: int) -> None:
    files = [File(str(number), size) for number, size in enumerate(sizes)]
    found = balanced(files, chunks)
    loads = [sum(p.length + FILE_COST for p in chunk) for chunk in found]
    share = sum(size + FILE_COST for size in sizes) / chunks
    longest = max(piece.length for chunk in found for piece in chunk)
    assert max(loads) <= 2 * share + longest + FILE_COST
    assert longest <= max(2 * SPLIT, 2 * share) + LARGEST_PART


def test_a_hundred_thousand_small_files_are_balanced_by_their_number() -> None:
    files = [File(str(number), 100) for number in range(100_000)]
    assert {len(chunk) for chunk in balanced(files, 8)} == {12_500}


@given(st.integers(0, LARGEST_OBJECT))
def test_parts_keep_to_the_limits_of_s3(size: int) -> None:
    step = part_size(size)
    assert PART <= step <= LARGEST_PART
    assert -(-size // step) <= MOST_PARTS
    if size <= 1000 * PART:
        parts = parts_of(size, 0, size)
        assert [number for number, _, _ in parts] == list(range(1, len(parts) + 1))
        assert sum(length for _, _, length in parts) == size
        assert all(length == step for _, _, length in parts[:-1])


def test_what_s3_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidInput, match="larger than the largest object"):
        balanced([File("f", LARGEST_OBJECT + 1)], 4)


def test_idle_nodes_carry_first_and_the_jobs_own_within_its_share() -> None:
    assert carriers(["i1", "i2"], ["o1"], 2, 0.2) == (Carrier("i1", 1.0), Carrier("i2", 1.0))
    assert carriers(["i1"], ["o1", "o2", "i1"], 2, 0.2) == (Carrier("i1", 1.0), Carrier("o1", 0.2))
    assert carriers([], ["o1", "o2"], 5, 0.0) == ()
    assert carriers(["i1", "i2", "i3"], [], 1, 0.5) == (Carrier("i1", 1.0),)
