"""Xid 144 to 150 (NVLink 5, Blackwell): what the status words in the line ask for.

The driver writes a unit, Fatal or Nonfatal, and status words: first IntrInfo, then ErrorStatus. NVIDIA's Xid
catalogue ("XID 144-150 Decode", nvlink5.csv in the catalogue) has a row per unit and error: a row fits if
IntrInfo matches its mask (32 binary digits, `-` is either) and ErrorStatus is the row's, where it names one.
Drivers before R575 have other masks (V1) than later ones (V2). A second pair of masks, where a row has one,
leads to a second, stronger resolution.

The driver's version comes with each message: one node's log holds lines from before and after an upgrade.
Where it is not known, both generations are tried. Each numbers the units its own way, so that at most one of
them knows a given word; if both do and disagree, the answer is the fall-back.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

from planaria.core.catalog import tables
from planaria.core.errors import InvalidInput

XIDS = frozenset(str(number) for number in range(144, 151))
V2_SINCE = 575
_COLUMNS = (
    "xid,unit,mask_v1,mask_v2,status,resolution,action2_v1,action2_v2,action2,investigate,severity,cause"
)
# NVIDIA's resolution -> the qualifier that the catalogue answers to, weakest first.
_VERDICTS = {"IGNORE": "ignore", "XID_154_EVAL": "eval154", "RESET_GPU": "reset"}
_STRENGTH = list(_VERDICTS.values())
_MASK = re.compile(r"[01-]{32}")
_MAJOR = re.compile(r"(\d{3,4})(?:\.|$)")


@dataclass(frozen=True, slots=True)
class Decoded:
    """verdict: `ignore`, `eval154`, `reset`, or the fall-back `fatal` or `nonfatal`, the driver's own word.
    row: which row of the table said so, "" for the fall-back. why: the reason of the fall-back.
    investigate: what NVIDIA advises afterwards."""

    verdict: str
    row: str = ""
    why: str = ""
    investigate: str = ""


@dataclass(frozen=True, slots=True)
class _Mask:
    care: int
    value: int

    def fits(self, word: int) -> bool:
        return word & self.care == self.value


@dataclass(frozen=True, slots=True)
class Row:
    """masks, second_masks: of generation V1 and V2; () where there is no second one. statuses: () is any."""

    xid: str
    place: str
    unit: str
    masks: tuple[_Mask, ...]
    statuses: tuple[int, ...]
    verdict: str
    second_masks: tuple[_Mask, ...]
    second_verdict: str
    investigate: str

    def answer(self, generation: int, interrupt: int, status: int | None) -> str:
        """The verdict for these words, "" when the row does not fit. status None: the line has none."""
        if self.statuses and status not in self.statuses:
            return ""
        if self.second_masks and self.second_masks[generation].fits(interrupt):
            return self.second_verdict
        return self.verdict if self.masks[generation].fits(interrupt) else ""


def decode(xid: str, fatal: bool, interrupt: int | None, status: int | None, driver: str = "") -> Decoded:
    """fatal: the driver's own word. interrupt, status: the words IntrInfo and ErrorStatus, None where the
    line has none. driver: its version (`570.158.01`), "" or anything else when unknown. Total."""
    return _decode(xid, fatal, interrupt, status, major(driver))


@lru_cache(maxsize=1024)
def _decode(xid: str, fatal: bool, interrupt: int | None, status: int | None, version: int | None) -> Decoded:
    word = "fatal" if fatal else "nonfatal"
    if interrupt is None:
        return Decoded(word, why="the line has no status words")
    generations = (0, 1) if version is None else (int(version >= V2_SINCE),)
    found = [match for generation in generations if (match := _strongest(xid, generation, interrupt, status))]
    if not found:
        return Decoded(word, why="no row of NVIDIA's table fits the status words")
    if len({verdict for verdict, _ in found}) > 1:
        return Decoded(word, why="the driver's version is not known, and the table's answer depends on it")
    verdict, row = found[0]
    return Decoded(verdict, f"nvlink5.csv {row.place}", investigate=row.investigate)


def major(driver: str) -> int | None:
    """The driver's branch, 570 of `570.158.01`; None for what is no version."""
    match = _MAJOR.match(driver.strip())
    return int(match[1]) if match else None


def _strongest(xid: str, generation: int, interrupt: int, status: int | None) -> tuple[str, Row] | None:
    answers = [(row.answer(generation, interrupt, status), row) for row in _rows().get(xid, ())]
    fitting = [(verdict, row) for verdict, row in answers if verdict]
    return max(fitting, key=lambda pair: _STRENGTH.index(pair[0]), default=None)


def rows_of(name: str, content: str) -> Iterator[Row]:
    """The rows of the table. Raises InvalidInput that names file, line and rule."""
    for where, row in tables.rows_of(name, content, _COLUMNS):
        if row["xid"] not in XIDS:
            raise InvalidInput(f"{where}: xid must be 144 to 150, not {row['xid']!r}")
        second = bool(row["action2"])
        yield Row(
            row["xid"],
            where.removeprefix(f"{name} "),
            row["unit"],
            (_mask(where, row, "mask_v1"), _mask(where, row, "mask_v2")),
            tuple(_hex(where, word) for word in row["status"].split("/") if word),
            _verdict(where, row, "resolution"),
            (_mask(where, row, "action2_v1"), _mask(where, row, "action2_v2")) if second else (),
            _verdict(where, row, "action2") if second else "",
            row["investigate"],
        )


def _mask(where: str, row: dict[str, str], column: str) -> _Mask:
    digits = row[column]
    if not _MASK.fullmatch(digits):
        raise InvalidInput(f"{where}: {column} must be 32 digits of 0, 1 and -, not {digits!r}")
    care = int("".join("0" if digit == "-" else "1" for digit in digits), 2)
    return _Mask(care, int(digits.replace("-", "0"), 2))


def _hex(where: str, word: str) -> int:
    if not re.fullmatch(r"0x[0-9A-Fa-f]{8}", word):
        raise InvalidInput(f"{where}: status must be words such as 0x00000001, not {word!r}")
    return int(word, 16)


def _verdict(where: str, row: dict[str, str], column: str) -> str:
    if row[column] not in _VERDICTS:
        raise InvalidInput(f"{where}: {column} must be one of {', '.join(_VERDICTS)}, not {row[column]!r}")
    return _VERDICTS[row[column]]


@cache
def _rows() -> dict[str, tuple[Row, ...]]:
    every = list(rows_of("nvlink5.csv", tables.text("nvlink5.csv")))
    return {xid: tuple(row for row in every if row.xid == xid) for xid in XIDS}
