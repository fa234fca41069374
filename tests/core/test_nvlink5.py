"""The decode of Xid 144 to 150 by the masks of NVIDIA's Xid catalogue."""

import csv
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.core import nvlink5
from planaria.core.catalog import text
from planaria.core.errors import InvalidInput
from planaria.core.nvlink5 import XIDS, decode, major, rows_of

ROWS = list(csv.DictReader(text("nvlink5.csv").splitlines()))
VERDICT = {"IGNORE": "ignore", "XID_154_EVAL": "eval154", "RESET_GPU": "reset"}
DRIVERS = {"v1": "570.158.01", "v2": "580.95.05"}


def words(mask: str) -> list[int]:
    """Words that the mask describes: with all free digits 0, with all 1, and mixed."""
    free = mask.count("-")
    fillings = ["0" * free, "1" * free, ("01" * free)[:free], ("110" * free)[:free]]
    found = []
    for filling in fillings:
        digits = iter(filling)
        found.append(int("".join(next(digits) if digit == "-" else digit for digit in mask), 2))
    return found


def statuses(row: dict[str, str]) -> list[int]:
    return [int(word, 16) for word in row["status"].split("/") if word] or [0, 7, 0xFFFFFFFF]


@pytest.mark.parametrize(
    "row", ROWS, ids=[f"{n}-{row['xid']}-{row['unit']}" for n, row in enumerate(ROWS, 2)]
)
def test_every_row_for_both_generations(row: dict[str, str]) -> None:
    cases = [("mask", "resolution")] + ([("action2", "action2")] if row["action2"] else [])
    for (masks, resolution), version in product(cases, DRIVERS):
        for word, status in product(words(row[f"{masks}_{version}"]), statuses(row)):
            for fatal in (True, False):
                decoded = decode(row["xid"], fatal, word, status, DRIVERS[version])
                assert decoded.verdict == VERDICT[row[resolution]]
                assert decoded.row.startswith("nvlink5.csv line ")


def test_the_two_generations_never_contradict_each_other() -> None:
    """So a word tells by itself which driver wrote it, where nobody says which one it was."""
    for row, version in product(ROWS, DRIVERS):
        cases = [("mask", "resolution")] + ([("action2", "action2")] if row["action2"] else [])
        for masks, resolution in cases:
            for word, status in product(words(row[f"{masks}_{version}"]), statuses(row)):
                for unknown in ("", "none", "R570"):
                    assert decode(row["xid"], True, word, status, unknown).verdict == VERDICT[row[resolution]]


def test_the_totals_that_nvidia_publishes() -> None:
    counted: dict[tuple[str, str], int] = {}
    for row in ROWS:
        key = row["xid"], row["resolution"]
        counted[key] = counted.get(key, 0) + 1
    assert counted == {
        ("144", "IGNORE"): 4,
        ("144", "RESET_GPU"): 2,
        ("145", "IGNORE"): 16,
        ("145", "RESET_GPU"): 9,
        ("145", "XID_154_EVAL"): 8,
        ("146", "IGNORE"): 15,
        ("146", "RESET_GPU"): 5,
        ("147", "IGNORE"): 2,
        ("148", "IGNORE"): 1,
        ("149", "RESET_GPU"): 24,
        ("149", "IGNORE"): 7,
        ("150", "RESET_GPU"): 2,
    }


@pytest.mark.parametrize("fatal", [True, False])
def test_without_a_row_the_drivers_own_word_counts(fatal: bool) -> None:
    word = "fatal" if fatal else "nonfatal"
    for interrupt, status, driver, why in (
        (None, None, "570.1", "no status words"),
        (0x025525C6, 0, "580.95.05", "no row"),
        (0x04000007, 0x10, "570.1", "no row"),
        (0x040988E2, None, "570.1", "no row"),
        (0x040988E2, 0xC, "570.1", "no row"),
        (0xFFFFFFFF, 0xFFFFFFFF, "", "no row"),
    ):
        decoded = decode("149" if interrupt == 0x025525C6 else "145", fatal, interrupt, status, driver)
        assert (decoded.verdict, decoded.row) == (word, "")
        assert why in decoded.why
    assert decode("79", fatal, 0, 0, "570.1").verdict == word


def test_a_table_whose_generations_disagree_is_answered_by_the_drivers_own_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    any_word = "-" * 32
    head = text("nvlink5.csv").splitlines()[0]
    lines = [
        f"144,A,{any_word},{'1' * 32},,IGNORE,,,,,,",
        f"144,A,{'1' * 32},{any_word},,RESET_GPU,,,,,,",
    ]
    table = tuple(rows_of("t.csv", "\n".join([head, *lines])))
    monkeypatch.setattr("planaria.core.nvlink5._rows", lambda: {"144": table})
    nvlink5._decode.cache_clear()
    assert decode("144", False, 0, 0, "570").verdict == "ignore"
    assert decode("144", False, 0, 0, "575").verdict == "reset"
    unknown = decode("144", False, 0, 0)
    assert (unknown.verdict, unknown.row) == ("nonfatal", "")
    assert "version is not known" in unknown.why
    nvlink5._decode.cache_clear()


@pytest.mark.parametrize(
    ("driver", "wanted"),
    [
        ("570.158.01", 570),
        ("575", 575),
        (" 580.95.05 ", 580),
        ("1000.1", 1000),
        ("", None),
        ("R570", None),
        ("57.1", None),
        ("570x", None),
        ("\u0665\u0667\u0665", 575),
        ("unknown", None),
    ],
)
def test_the_branch_of_a_driver(driver: str, wanted: int | None) -> None:
    assert major(driver) == wanted


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("143,A,{m},{m},,IGNORE,,,,,,", "t.csv line 2: xid must be 144 to 150, not '143'"),
        ("144,A,01,{m},,IGNORE,,,,,,", "t.csv line 2: mask_v1 must be 32 digits of 0, 1 and -, not '01'"),
        ("144,A,{m},{m},1,IGNORE,,,,,,", "t.csv line 2: status must be words such as 0x00000001, not '1'"),
        ("144,A,{m},{m},,OOPS,,,,,,", "t.csv line 2: resolution must be one of IGNORE, XID_154_EVAL"),
        ("144,A,{m},{m},,IGNORE,{m},,RESET_GPU,,,", "t.csv line 2: action2_v2 must be 32 digits"),
        ("144,A,{m},{m},,IGNORE,,,", "t.csv line 2: must have 12 fields"),
    ],
)
def test_a_broken_row_is_refused_with_its_place(row: str, sentence: str) -> None:
    head = text("nvlink5.csv").splitlines()[0]
    with pytest.raises(InvalidInput) as refusal:
        list(rows_of("t.csv", f"{head}\n{row.format(m='-' * 32)}"))
    assert str(refusal.value).startswith(sentence)


word32 = st.none() | st.integers(0, 2**32 - 1)


@settings(max_examples=500, deadline=None, database=None)
@given(
    st.sampled_from(sorted(XIDS)) | st.text(max_size=4), st.booleans(), word32, word32, st.text(max_size=10)
)
def test_any_words_have_a_verdict(
    xid: str, fatal: bool, interrupt: int | None, status: int | None, driver: str
) -> None:
    decoded = decode(xid, fatal, interrupt, status, driver)
    assert decoded.verdict in ("ignore", "eval154", "reset", "fatal" if fatal else "nonfatal")
    assert bool(decoded.row) != bool(decoded.why)
