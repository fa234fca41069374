"""The breaker: how many removals a window allows, for the fleet and for each detector.

One row (`FLEET`, `FLEET`) holds a map of removals (incident id -> epoch seconds) for the fleet and one for
each detector; one conditional write adds an incident to both or to neither.
"""

import math
from collections.abc import Mapping
from typing import Any

from planaria.core.ports import Table
from planaria.core.table import Conflict, Path, Row, exists, missing, smaller

KEY = ("FLEET", "FLEET")


def allowed(max_removals: int, max_share: float, fleet_size: int) -> int:
    """max(1, min(absolute cap, share of the fleet)): a fleet of one may still heal."""
    return max(1, min(max_removals, math.ceil(max_share * fleet_size)))


class Breaker:
    def __init__(self, table: Table, cap: int, window_seconds: float) -> None:
        self._table = table
        self._cap = cap
        self._window = window_seconds

    def admit(self, incident: str, detector: str, now: float, instead_of: str = "") -> str:
        """Why the removal may not go on, "" when it may. The same incident asked twice is admitted once.

        instead_of: the incident of the same node that this one superseded; its slot serves for both.
        """
        fleet, own = "removals", f"removals_by_{detector}"
        for _ in range(4):
            room = exists((fleet, incident)) | (smaller(fleet, self._cap) & smaller(own, self._cap))
            if instead_of:
                room = room | exists((fleet, instead_of))
            sets: dict[Any, Any] = {(fleet, incident): now, (own, incident): now}
            try:
                self._table.write(*KEY, sets=sets, when=room & exists(fleet) & exists(own))
                return ""
            except Conflict as conflict:
                row = conflict.row or {}
            if fleet not in row or own not in row:
                self._create(row, fleet, own)
            elif not self._expire(row, fleet, own, now):
                return self._refusal(row, fleet, own, detector)
        return "breaker: its row changes too fast; the signal waits and is judged anew"

    def release(self, incident: str, detector: str) -> None:
        """Free the slot of an incident that was cancelled before it isolated anything."""
        try:
            self._table.write(
                *KEY,
                removes=(("removals", incident), (f"removals_by_{detector}", incident)),
                when=exists(("removals", incident)) & exists(f"removals_by_{detector}"),
            )
        except Conflict:
            return

    def full(self, now: float) -> str:
        """Why nothing more may be removed now, "" when something may; only looks."""
        live = self.status(now)["removals"]
        if len(live) < self._cap:
            return ""
        return f"breaker: {len(live)} of {self._cap} removals used within {self._window:.0f} s"

    def status(self, now: float) -> Mapping[str, Any]:
        row = self._table.get(*KEY) or {}
        live = {k: at for k, at in row.get("removals", {}).items() if float(at) > now - self._window}
        return {"cap": self._cap, "window_seconds": self._window, "removals": live}

    def _create(self, row: Row, *maps: str) -> None:
        for name in maps:
            if name not in row:
                try:
                    self._table.write(*KEY, sets={name: {}}, when=missing(name))
                except Conflict:
                    continue

    def _expire(self, row: Row, fleet: str, own: str, now: float) -> bool:
        """Take entries older than the window out of both maps; True when there were any."""
        horizon = now - self._window
        old: list[Path] = [
            (name, incident)
            for name in (fleet, own)
            for incident, at in row.get(name, {}).items()
            if float(at) <= horizon
        ]
        if old:
            self._table.write(*KEY, removes=old, when=exists(fleet) & exists(own))
        return bool(old)

    def _refusal(self, row: Row, fleet: str, own: str, detector: str) -> str:
        full, who = (fleet, "the fleet") if len(row[fleet]) >= self._cap else (own, f"detector {detector}")
        return (
            f"breaker: {len(row[full])} of {self._cap} removals of {who} used within "
            f"{self._window:.0f} s; judged anew when the window moves on"
        )
