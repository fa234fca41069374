"""Conditional writes as data, so that DynamoDB and the memory twin obey the same conditions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Path = str | tuple[str, ...]
Changes = Mapping[Any, Any]  # Path -> value; a Mapping's key type is invariant, so it cannot be said


@dataclass(frozen=True, slots=True)
class Clause:
    """One comparison on a (possibly nested, dot-free) path of attribute names.

    op: "=", "<>", "<", ">" against `value`; "exists", "missing"; "size<" and "size>" compare the number of
    entries of a map. A comparison on a missing attribute is false, as in DynamoDB ("<>" is true).
    """

    path: tuple[str, ...]
    op: str
    value: Any = None


@dataclass(frozen=True, slots=True)
class Condition:
    """A disjunction of conjunctions: true when all clauses of any one group are."""

    groups: tuple[tuple[Clause, ...], ...]

    def __or__(self, other: "Condition") -> "Condition":
        return Condition(self.groups + other.groups)

    def __and__(self, other: "Condition") -> "Condition":
        return Condition(tuple(a + b for a in self.groups for b in other.groups))


class Conflict(Exception):
    """The condition of a write was false. `row` is the row as it is, None when there is none."""

    def __init__(self, row: Row | None) -> None:
        super().__init__("the write's condition is false")
        self.row = row


def _clause(path: Path, op: str, value: Any = None) -> Condition:
    return Condition(((Clause((path,) if isinstance(path, str) else path, op, value),),))


def equals(path: Path, value: Any) -> Condition:
    return _clause(path, "=", value)


def differs(path: Path, value: Any) -> Condition:
    return _clause(path, "<>", value)


def below(path: Path, value: float) -> Condition:
    return _clause(path, "<", value)


def above(path: Path, value: float) -> Condition:
    return _clause(path, ">", value)


def exists(path: Path) -> Condition:
    return _clause(path, "exists")


def missing(path: Path) -> Condition:
    return _clause(path, "missing")


def smaller(path: Path, entries: int) -> Condition:
    """The map at `path` has fewer than `entries` entries."""
    return _clause(path, "size<", entries)


def not_empty(path: Path) -> Condition:
    """The map at `path` has an entry."""
    return _clause(path, "size>", 0)


def one_of(path: Path, values: tuple[Any, ...]) -> Condition:
    condition = equals(path, values[0])
    for value in values[1:]:
        condition = condition | equals(path, value)
    return condition


def holds(condition: Condition | None, row: Mapping[str, Any] | None) -> bool:
    """Evaluate a condition on a row: the memory twin's half of the contract."""
    return condition is None or any(all(_true(c, row or {}) for c in group) for group in condition.groups)


_ABSENT = object()


def _true(clause: Clause, row: Mapping[str, Any]) -> bool:
    value: Any = row
    for name in clause.path:
        value = value.get(name, _ABSENT) if isinstance(value, Mapping) else _ABSENT
    if clause.op in ("exists", "missing"):
        return (value is not _ABSENT) == (clause.op == "exists")
    if value is _ABSENT:
        return clause.op == "<>"
    match clause.op:
        case "=":
            return bool(value == clause.value)
        case "<>":
            return bool(value != clause.value)
        case "<":
            return bool(value < clause.value)
        case ">":
            return bool(value > clause.value)
        case "size<":
            return len(value) < int(clause.value)
        case "size>":
            return len(value) > int(clause.value)
    raise ValueError(f"unknown operator {clause.op!r}")


def names(path: Path) -> tuple[str, ...]:
    """A path as the tuple of its names."""
    return (path,) if isinstance(path, str) else path
