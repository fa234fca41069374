"""What is known of a node group's offerings, shared by all its incidents: one row per group.

`OFFERINGS#<group>`, `OFFERINGS`: `cooling` maps the key of an offering that had no capacity to until when it
is passed over, why, and by whom that was found (who alone may ask again before); `told` maps a reason that a
person was told of to when; `located` maps a reservation to where EC2 says it is in its network: {"path":
network nodes, top first, [] where unknown, "why", "at"}. The row is written where an offering fails or has
proven good again, and by sweep once an hour for the places; it is only read on every other launch.
"""

import hashlib
from typing import Any

from planaria.core.ports import Table
from planaria.core.table import Condition, Conflict, Row, below, equals, exists, missing

REMIND_SECONDS = 86_400.0
"""A reason that still stands is told of again after so long."""

MAIL_SECONDS = 600.0
"""Whoever was to tell a person and did not live to do it has had so long."""


class OfferingRows:
    def __init__(self, table: Table) -> None:
        self._table = table

    def state(self, group: str) -> Row:
        return self._table.get(*_key(group)) or {}

    def cool(self, group: str, offering: str, by: str, why: str, now: float, until: float) -> None:
        """Everybody but `by` passes this offering over until then. What cools already stays as it is."""
        entry = {"until": until, "by": by, "why": why[:200], "at": now}
        path = ("cooling", offering)
        free = missing(path) | below((*path, "until"), now) | equals((*path, "by"), by)
        self._set(group, path, entry, free)

    def proven(self, group: str, offering: str, state: Row) -> None:
        """An instance came of this offering: nobody passes it over any more. state: the row as read."""
        gone: list[tuple[str, ...]] = [("cooling", k) for k in state.get("cooling") or {} if k == offering]
        told = state.get("told") or {}
        gone += [("told", key) for key, entry in told.items() if entry.get("offering") == offering]
        if gone:
            self._table.write(*_key(group), removes=gone)

    def may_tell(self, group: str, reason: str, offering: str, by: str, now: float, state: Row) -> bool:
        """Whether `by` is the one that tells a person of this reason; then follows `told`."""
        path = ("told", reason_key(reason))
        entry = (state.get("told") or {}).get(path[1]) or {}
        if entry.get("by") == by and not entry["sent"]:
            return True
        if entry and now - float(entry["at"]) < (REMIND_SECONDS if entry["sent"] else MAIL_SECONDS):
            return False
        claim = {"at": now, "by": by, "offering": offering, "sent": False}
        free = missing(path) if not entry else equals((*path, "at"), entry["at"])
        return self._set(group, path, claim, free)

    def told(self, group: str, reason: str, by: str) -> None:
        path = ("told", reason_key(reason))
        try:
            self._table.write(*_key(group), sets={(*path, "sent"): True}, when=equals((*path, "by"), by))
        except Conflict:
            return  # proven good, or told by another meanwhile

    def located(self, group: str, places: Row) -> None:
        """places: of all reservations of the group; those of others are forgotten."""
        self._set(group, ("located",), places, exists("group"))

    def _set(self, group: str, path: tuple[str, ...], value: Any, when: Condition) -> bool:
        try:
            self._table.write(*_key(group), sets={path: value}, when=exists("group") & when)
        except Conflict as conflict:
            if conflict.row is not None:
                return False
            self._create(group)
            return self._set(group, path, value, when)
        return True

    def _create(self, group: str) -> None:
        empty: dict[Any, Any] = {"group": group, "cooling": {}, "told": {}}
        try:
            self._table.write(*_key(group), sets=empty, when=missing("group"))
        except Conflict:
            return


def _key(group: str) -> tuple[str, str]:
    return f"OFFERINGS#{group}", "OFFERINGS"


def reason_key(reason: str) -> str:
    return hashlib.sha256(reason.encode()).hexdigest()[:16]
