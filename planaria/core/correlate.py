"""What a fault means in the light of what else was seen on its node: correlations, repeats, patience.

Three tables beside the catalogue, with the reason and the sources of each row:

    correlations.csv  another fault of the same GPU or node within seconds changes the answer
    repeats.csv       the same fault, so many times within a day on one place; `alone`: and on no other
    patience.csv      how long a condition must have lasted before anything is done about it
"""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, lru_cache

from planaria.core import catalog, history
from planaria.core.errors import InvalidInput
from planaria.core.fault import Action, Fault
from planaria.core.node import NodeView
from planaria.core.occurrences import Seen


@dataclass(frozen=True, slots=True)
class Meaning:
    """climbs: a repeat after a repair takes the next step of the ladder; False where the application may be
    to blame as well, so that nothing stronger than the first step is ever done."""

    action: Action
    rule: str
    reason: str
    sources: str
    climbs: bool = True


@dataclass(frozen=True, slots=True)
class _Correlation:
    kind: str
    code: str
    with_kind: str
    with_codes: tuple[str, ...]
    scope: str
    within: float
    meaning: Meaning


@dataclass(frozen=True, slots=True)
class _Repeat:
    kind: str
    code: str
    scope: str
    bursts: int
    within: float
    alone: bool
    meaning: Meaning


def correlate(fault: Fault, node: NodeView, at: float) -> Meaning | None:
    """The strongest answer of the tables to a fault seen at `at` (epoch seconds), None without one."""
    code = fault.code.partition("/")[0]
    if fault.cause and fault.cause != code:
        reason = f"its own text names Xid {fault.cause} as the cause, which carries the action"
        return Meaning(Action.MONITOR, f"{fault.kind}-{code}-caused", reason, "driver's word")
    rules = _of(fault.kind, code)
    if not rules or not node.recent:
        return None
    seen = history.entries(node, at - history.KEPT_SECONDS)
    answered = history.answered_at(node)
    found = [rule.meaning for rule in rules if _holds(rule, fault, code, seen, at, answered)]
    return max(found, key=lambda meaning: meaning.action.strength, default=None)


def patience(kind: str, code: str) -> tuple[float, str]:
    """Seconds that a condition must have lasted, and why; 0 where nothing is gained by waiting."""
    for pattern_kind, pattern, seconds, reason in _patience():
        if kind == pattern_kind and fnmatchcase(code, pattern):
            return seconds, reason
    return 0.0, ""


def _holds(
    rule: _Correlation | _Repeat, fault: Fault, code: str, seen: list[Seen], at: float, answered: float
) -> bool:
    if isinstance(rule, _Correlation):
        return any(_correlated(rule, fault, code, other, at) for other in seen)
    if (not fault.pci) or (rule.scope == "place" and not fault.place):
        return False
    since = max(at - rule.within, answered)  # what came before an act was answered by it
    same = [other for other in seen if other.kind == fault.kind and other.code.partition("/")[0] == code]
    here = [other for other in same if _same_place(rule, fault, other)]
    if rule.alone and any(other not in here and other.bursts(since) for other in same):
        return False
    minutes = tuple(sorted({minute for other in here for minute in other.minutes}))
    return Seen(fault.kind, code, fault.pci, fault.place, "", at, minutes).bursts(since) >= rule.bursts


def _same_place(rule: _Repeat, fault: Fault, other: Seen) -> bool:
    return other.pci == fault.pci and (rule.scope == "gpu" or other.place == fault.place)


def _correlated(rule: _Correlation, fault: Fault, code: str, other: Seen, at: float) -> bool:
    bare = other.code.partition("/")[0]
    if other.kind != rule.with_kind or (other.kind, bare) == (fault.kind, code):
        return False
    if "*" not in rule.with_codes and bare not in rule.with_codes:
        return False
    if rule.scope == "gpu" and (not fault.pci or other.pci != fault.pci):
        return False
    near = min((abs(minute * 60.0 + 30.0 - at) for minute in other.minutes), default=rule.within + 60.0)
    return min(near - 30.0, abs(other.last - at)) <= rule.within


@lru_cache(maxsize=1024)
def _of(kind: str, code: str) -> tuple[_Correlation | _Repeat, ...]:
    rules: list[_Correlation | _Repeat] = [*_correlations(), *_repeats()]
    return tuple(rule for rule in rules if rule.kind == kind and rule.code in (code, "*"))


def correlations_of(name: str, content: str) -> list[_Correlation]:
    """Raises InvalidInput that names file, line and rule."""
    columns = "kind,code,with_kind,with_codes,scope,within_seconds,action,rule,reason,sources"
    rows = []
    for where, row in catalog.check(name, content, columns):
        within = _count(where, row, "within_seconds")
        codes = tuple(row["with_codes"].split())
        _word(where, row, "scope", ("gpu", "node"))
        meaning = Meaning(Action(row["action"]), row["rule"], row["reason"], row["sources"])
        rows.append(
            _Correlation(row["kind"], row["code"], row["with_kind"], codes, row["scope"], within, meaning)
        )
    return rows


def repeats_of(name: str, content: str) -> list[_Repeat]:
    """Raises InvalidInput that names file, line and rule."""
    columns = "kind,code,scope,bursts,within_seconds,alone,action,rule,reason,sources"
    rows = []
    for where, row in catalog.check(name, content, columns):
        bursts, within = _count(where, row, "bursts"), _count(where, row, "within_seconds")
        _word(where, row, "scope", ("gpu", "place"))
        _word(where, row, "alone", ("yes", "no"))
        alone = row["alone"] == "yes"
        meaning = Meaning(Action(row["action"]), row["rule"], row["reason"], row["sources"], not alone)
        rows.append(_Repeat(row["kind"], row["code"], row["scope"], bursts, within, alone, meaning))
    return rows


def patience_of(name: str, content: str) -> list[tuple[str, str, float, str]]:
    """(kind, code pattern, seconds, reason). Raises InvalidInput that names file, line and rule."""
    reader = csv.DictReader(content.splitlines(), strict=True)
    if reader.fieldnames != ["kind", "code", "seconds", "reason", "sources"]:
        raise InvalidInput(f"{name}: the first line must be kind,code,seconds,reason,sources")
    rows = []
    for row in reader:
        where = f"{name} line {reader.line_num}"
        if None in row or not all(row.values()):
            raise InvalidInput(f"{where}: must have 5 fields, none of them empty")
        rows.append((row["kind"], row["code"], float(_count(where, row, "seconds")), row["reason"]))
    return rows


def _count(where: str, row: dict[str, str], column: str) -> int:
    if not (row[column].isascii() and row[column].isdigit()):
        raise InvalidInput(f"{where}: {column} must be a whole number, not {row[column]!r}")
    return int(row[column])


def _word(where: str, row: dict[str, str], column: str, words: Iterable[str]) -> None:
    if row[column] not in words:
        raise InvalidInput(f"{where}: {column} must be one of {', '.join(words)}, not {row[column]!r}")


@cache
def _correlations() -> list[_Correlation]:
    return correlations_of("correlations.csv", catalog.text("correlations.csv"))


@cache
def _repeats() -> list[_Repeat]:
    return repeats_of("repeats.csv", catalog.text("repeats.csv"))


@cache
def _patience() -> list[tuple[str, str, float, str]]:
    return patience_of("patience.csv", catalog.text("patience.csv"))
