"""How many nodes a group should have: the cluster file's size, less what people have removed on purpose.

On the fleet's row (`FLEET`, `FLEET`) `wanted_<group>` is {"declared": the file's size, "size": the wanted
one} and `lowered` maps the incident of every removal to its time. A file with another size wins over what
was removed under the old one.
"""

from collections.abc import Iterable
from typing import Any

from planaria.core.breaker import KEY
from planaria.core.incident import ACTIVE, Phase
from planaria.core.ports import Table
from planaria.core.table import Conflict, Path, Row, equals, exists, missing

KEPT_SECONDS = 90 * 86_400.0
"""How long a removal is remembered as counted: longer than any retry of its incident can come."""

TRIES = 8


def lower(table: Table, group: str, declared: int, incident: str, now: float) -> int:
    """One node less is wanted; the same incident asked again changes nothing. Returns the wanted size.

    declared: the size in the cluster file. Raises table.Conflict when the row changes too fast: try again.
    """
    name = f"wanted_{group}"
    row: Row = table.get(*KEY) or {}
    for _ in range(TRIES):
        if incident in row.get("lowered", {}):
            return size(row, group, declared)
        try:
            if "lowered" not in row:
                row = table.write(*KEY, sets={"lowered": {}}, when=missing("lowered"))
            elif (row.get(name) or {}).get("declared") != declared:
                row = _declare(table, name, row.get(name), declared)
            elif row[name]["size"] <= 0:
                return 0
            else:
                # Compare and set: DynamoDB's ADD takes top-level attributes only.
                left = int(row[name]["size"]) - 1
                free = exists("lowered") & missing(("lowered", incident))
                same = equals((name, "declared"), declared) & equals((name, "size"), left + 1)
                sets: dict[Any, Any] = {(name, "size"): left, ("lowered", incident): now}
                row = table.write(*KEY, sets=sets, when=free & same)
                _forget(table, row, now)
                return int(row[name]["size"])
        except Conflict as conflict:
            row = conflict.row or {}
    raise Conflict(row)


def size(row: Row, group: str, declared: int) -> int:
    """The wanted size of a group by the fleet's row; the cluster file's where nobody has removed a node."""
    entry = row.get(f"wanted_{group}") or {}
    return int(entry["size"]) if entry.get("declared") == declared else declared


def below_size(rows: Iterable[Row], group: str, declared: int, fleet: Row, leaving: str) -> bool:
    """Would the group have fewer nodes than wanted without the node `leaving`?

    rows: node rows, of any group. fleet: the fleet's row, {} where there is none. A node that an incident is
    replacing and its replacement are one place, whichever of them is there at present.
    """
    ours = [row for row in rows if row.get("group") == group and row.get("managed") is True]
    kept = {str(row["node_id"]) for row in ours if row.get("phase") in ACTIVE and _replaces(row)}
    places = kept | {
        str(row["replaces"] if row.get("replaces") in kept else row["node_id"])
        for row in ours
        if _stands(row)
    }
    return len(places - {leaving}) < size(fleet, group, declared)


def _replaces(row: Row) -> bool:
    """Its active session leaves the group as large as it was."""
    return row.get("verb", "") not in ("remove", "isolate")


def _stands(row: Row) -> bool:
    """The node is there or is coming; one that was replaced or taken out for good is not, nor a spare."""
    left = row.get("gone") or row.get("replaced_by") or row.get("phase") == Phase.RETIRED
    left = left or ("spare" in row and not row.get("admitted_at"))
    return not left and (row.get("state") or "running") in ("pending", "running")


def _declare(table: Table, name: str, old: Row | None, declared: int) -> Row:
    fresh: dict[Any, Any] = {name: {"declared": declared, "size": declared}}
    unchanged = missing(name) if old is None else equals((name, "declared"), old["declared"])
    return table.write(*KEY, sets=fresh, when=unchanged)


def _forget(table: Table, row: Row, now: float) -> None:
    old: list[Path] = [
        ("lowered", name) for name, at in row["lowered"].items() if float(at) < now - KEPT_SECONDS
    ]
    if old:
        table.write(*KEY, removes=old, when=exists("lowered"))
