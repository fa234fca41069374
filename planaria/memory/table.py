"""The Table port in memory: same conditions, same conflicts, thread-safe."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from planaria.core.table import Changes, Condition, Conflict, Path, Row, holds, names


class MemoryTable:
    """Rows in a dict keyed by (pk, sk). Rows go in and come out as copies."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], Row] = {}
        self._lock = threading.Lock()

    def get(self, pk: str, sk: str) -> Row | None:
        with self._lock:
            return _copy(self._rows.get((pk, sk)))

    def get_many(self, keys: Sequence[tuple[str, str]]) -> list[Row]:
        with self._lock:
            return [_copy(self._rows[key]) for key in dict.fromkeys(keys) if key in self._rows]

    def write(
        self,
        pk: str,
        sk: str,
        sets: Changes | None = None,
        removes: Sequence[Path] = (),
        adds: Mapping[Path, int] | None = None,
        when: Condition | None = None,
        quiet: bool = False,
    ) -> Row:
        with self._lock:
            old = self._rows.get((pk, sk))
            if not holds(when, old):
                raise Conflict(_copy(old))
            row = _copy(old) if old is not None else {"pk": pk, "sk": sk}
            for path, value in (sets or {}).items():
                _parent(row, path)[names(path)[-1]] = _copy(value)
            for path, number in (adds or {}).items():
                parent, last = _parent(row, path), names(path)[-1]
                parent[last] = parent.get(last, 0) + number
            for path in removes:
                _parent(row, path).pop(names(path)[-1], None)
            self._rows[(pk, sk)] = row
            return {} if quiet else _copy(row)

    def query(self, pk: str) -> list[Row]:
        with self._lock:
            keys = sorted(key for key in self._rows if key[0] == pk)
            return [_copy(self._rows[key]) for key in keys]

    def listing(self, kind: str) -> list[Row]:
        with self._lock:
            rows = sorted((key, row) for key, row in self._rows.items() if row.get("listing") == kind)
            return [_copy(row) for _, row in rows]


def _parent(row: Row, path: Path) -> dict[str, Any]:
    """The map that holds the last name of `path`. DynamoDB refuses a path through a missing map."""
    parent: Any = row
    for name in names(path)[:-1]:
        parent = parent.get(name)
        if not isinstance(parent, dict):
            raise ValueError(f"the map at {name!r} does not exist in the row")
    assert isinstance(parent, dict)
    return parent


def _copy(value: Any) -> Any:
    """A deep copy of what a row may hold; several times as fast as copy.deepcopy."""
    if isinstance(value, Mapping):
        return {name: _copy(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_copy(entry) for entry in value]
    return value
