"""Claims of chunks: one carrier at a time, whoever dies when."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.core.errors import Fenced, InvalidInput
from planaria.core.transfer_ledger import LEASE_SECONDS, Claim, TransferLedger
from planaria.core.transfers import Cause, Failure
from planaria.memory.table import MemoryTable

NOW = 1000.0


def _open(chunks: int) -> TransferLedger:
    ledger = TransferLedger(MemoryTable())
    ledger.open("t", "copy", chunks, {"job": "gpt"}, NOW)
    return ledger


def test_opening_again_changes_nothing() -> None:
    ledger = _open(3)
    claim = ledger.claim("t", "a", NOW)
    assert claim is not None
    assert ledger.open("t", "copy", 3, {"job": "gpt"}, NOW + 5)["opened_at"] == NOW
    assert ledger.progress("t", NOW).owners == ("a",)
    with pytest.raises(InvalidInput, match="is open already"):
        ledger.open("t", "copy", 4, {}, NOW)
    with pytest.raises(InvalidInput, match="no transfer u"):
        ledger.progress("u", NOW)


def test_two_carriers_share_the_chunks_and_one_finishes() -> None:
    ledger = _open(4)
    claims = [ledger.claim("t", owner, NOW) for owner in "abcd"]
    assert sorted(claim.chunk for claim in claims if claim and claim.chunk is not None) == [0, 1, 2, 3]
    assert ledger.claim("t", "e", NOW) is None
    for claim in claims:
        assert claim is not None
        ledger.done(
            claim, 10, [Failure("f", "x" * 1000, Cause.DENIED)] if claim.chunk == 2 else [], "key", NOW
        )
        ledger.done(claim, 10, (), "key", NOW)  # the SDK's own repetition
    progress = ledger.progress("t", NOW)
    assert (progress.done, progress.bytes, progress.finished, progress.failures) == (4, 40, False, 1)
    assert [(f.name, len(f.reason), f.cause) for f in progress.failed] == [("f", 300, Cause.DENIED)]
    last = ledger.claim("t", "a", NOW)
    assert last is not None and last.chunk is None
    assert ledger.claim("t", "b", NOW) is None
    ledger.done(last, 0, (), "key", NOW)
    assert ledger.progress("t", NOW).finished


def test_a_lease_that_is_over_is_taken_and_fences_the_old_owner() -> None:
    ledger = _open(1)
    old = ledger.claim("t", "a", NOW)
    assert old is not None
    assert ledger.claim("t", "b", NOW + LEASE_SECONDS) is None
    ledger.renew(old, NOW + 50)
    assert ledger.claim("t", "b", NOW + LEASE_SECONDS + 1) is None
    new = ledger.claim("t", "b", NOW + 51 + LEASE_SECONDS)
    assert new is not None and new.fence > old.fence
    for write in (
        lambda: ledger.renew(old, NOW + 200),
        lambda: ledger.done(old, 1, (), "key", NOW + 200),
    ):
        with pytest.raises(Fenced):
            write()
    ledger.release(old)
    assert ledger.progress("t", NOW + 52).owners == ("b",)


def test_what_is_given_back_is_taken_at_once() -> None:
    ledger = _open(1)
    claim = ledger.claim("t", "a", NOW)
    assert claim is not None
    ledger.release(claim)
    assert ledger.claim("t", "b", NOW) is not None


def test_a_cancelled_transfer_gives_nothing_more() -> None:
    ledger = _open(2)
    claim = ledger.claim("t", "a", NOW)
    assert claim is not None
    ledger.cancel("t", "not wanted", NOW)
    ledger.cancel("t", "again", NOW)
    assert ledger.claim("t", "b", NOW) is None
    with pytest.raises(Fenced, match="not wanted"):
        ledger.renew(claim, NOW)
    assert ledger.progress("t", NOW).cancelled == "not wanted"


STEP = st.tuples(st.sampled_from(["claim", "renew", "done", "release", "wait"]), st.integers(0, 2))


@given(st.lists(STEP, max_size=60))
@settings(max_examples=200)
def test_no_chunk_is_ever_done_by_two(course: list[tuple[str, int]]) -> None:
    """Three carriers do anything in any order, with the claims they believe to have."""
    ledger, now = _open(2), NOW
    held: list[list[Claim]] = [[], [], []]
    done: list[int | None] = []
    for what, who in course:
        match what:
            case "wait":
                now += LEASE_SECONDS / 2
            case "claim":
                if claim := ledger.claim("t", f"owner-{who}", now):
                    assert claim.chunk not in done
                    assert claim.chunk is not None or sorted(map(str, done)) == ["0", "1"]
                    held[who].append(claim)
            case _:
                if not held[who]:
                    continue
                claim = held[who].pop()
                try:
                    if what == "renew":
                        ledger.renew(claim, now)
                        held[who].append(claim)
                    elif what == "done":
                        ledger.done(claim, 1, (), "key", now)
                        assert claim.chunk not in done
                        done.append(claim.chunk)
                    else:
                        ledger.release(claim)
                except Fenced:
                    continue
    assert ledger.progress("t", now).done == len([chunk for chunk in done if chunk is not None])
