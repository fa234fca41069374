"""Slurm's JSON, from 22.05 to 25.05.

From release to release a field may become a list (`"IDLE"` -> `["IDLE"]`), a number an object
(`5` -> `{"set": true, "infinite": false, "number": 5}`), and where there is no number -2 or NO_VAL stands.
`errors` tells of a failure even when the program ended with status 0.
"""

import json
from collections.abc import Mapping
from typing import Any

from planaria.slurm.programs import Unreadable

NO_VALS = frozenset({0xFFFE, 0xFFFF, 0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFE, 0xFFFFFFFFFFFFFFFF})
"""NO_VAL16, INFINITE16 and so on of slurm.h: not set, or no limit."""


def rows(printed: str, name: str, what: str) -> list[dict[str, Any]]:
    """The list `name` of a JSON answer. what: names the answer in an error.

    Raises Unreadable: no JSON, cut, an error inside, the list missing, or an entry that is no object.
    """
    try:
        document = json.loads(printed)
    except ValueError:
        raise Unreadable(f"{what} is cut or is no JSON: it begins with {printed[:40]!r}") from None
    if not isinstance(document, dict):
        raise Unreadable(f"{what} is no JSON object")
    errors = document.get("errors")
    if errors:
        raise Unreadable(f"{what} tells of an error: {_error(errors)}", _error(errors))
    found = document.get(name)
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise Unreadable(f"{what} has no list {name!r}: this version of Slurm is not known here")
    return found


def text(row: Mapping[str, Any], name: str) -> str:
    """ "" where it is missing or null. A list becomes its members with commas between them."""
    value = row.get(name)
    if value is None:
        return ""
    if isinstance(value, list):
        return ",".join(str(each) for each in value)
    return str(value)


def words(row: Mapping[str, Any], name: str) -> list[str]:
    """A word or a list of words, as a list."""
    value = row.get(name)
    if value is None or value == "":
        return []
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


def number(row: Mapping[str, Any], name: str) -> int | None:
    """None where it is missing, not set or infinite."""
    value = row.get(name)
    if isinstance(value, dict):
        if value.get("set") is False or value.get("infinite"):
            return None
        value = value.get("number")
    if isinstance(value, bool):
        return int(value)
    if not isinstance(value, int | float) or value < 0 or int(value) in NO_VALS:
        return None
    return int(value)


def flag(row: Mapping[str, Any], name: str) -> bool | None:
    """True, false, 0 or 1, also as a number object; None where it is missing."""
    value = row.get(name)
    if isinstance(value, bool):
        return value
    counted = number(row, name)
    return None if counted is None else counted != 0


def _error(errors: Any) -> str:
    first = errors[0] if isinstance(errors, list) else errors
    if isinstance(first, dict):
        said = [str(first[name]) for name in ("description", "error") if first.get(name)]
        return ": ".join(said) or json.dumps(first)[:200]
    return str(first)[:200]
