"""The breaker: how many removals a window allows, for the fleet and for each detector.

One row (`FLEET`, `FLEET`) holds the circuits (planaria/core/circuits.py). One conditional write adds an
incident to the fleet's map and to its detector's, or to neither; where a circuit is half-open the same write
makes the incident its probe.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from planaria.core import admission, circuits
from planaria.core.circuits import Circuit, detector_circuit, fleet_circuit
from planaria.core.incident import Phase
from planaria.core.ports import Table
from planaria.core.table import Condition, Conflict, Path, Row, equals, exists, missing

KEY = ("FLEET", "FLEET")
TRIES = 8
CHUNK = 40
"""Paths in one clean-up write: DynamoDB takes expressions of at most 4 KB."""

TOO_FAST = "breaker: its row changes too fast; the signal waits and is judged anew"


def allowed(max_removals: int, max_share: float, fleet_size: int) -> int:
    """max(1, min(absolute cap, share of the fleet)): a fleet of one may still heal."""
    return max(1, min(max_removals, math.ceil(max_share * fleet_size)))


class Breaker:
    """cap: removals in any window_seconds. per_detector: of one detector; None is the fleet's cap."""

    def __init__(
        self, table: Table, cap: int, window_seconds: float, per_detector: int | None = None
    ) -> None:
        self._table = table
        self._cap = cap
        self._window = window_seconds
        self._own = min(cap, per_detector or cap)

    def as_noted(self) -> "Breaker":
        """With the limits that the deployment has noted in the row: for who has no cluster file."""
        noted = (self._table.get(*KEY) or {}).get("limits")
        if not noted:
            return self
        return Breaker(self._table, noted["cap"], float(noted["window_seconds"]), noted["per_detector"])

    # --- claimants ---------------------------------------------------------------------------------

    def admit(
        self, incident: str, detector: str, now: float, instead_of: str = "", override: bool = False
    ) -> str:
        """Why the removal may not go on, "" when it may. The same incident asked twice is admitted once.

        instead_of: the incident of the same node that this one superseded; it passes its slot on, and the
        part of the probe if it has it. override: a person's word; the removal is counted and not refused.
        """
        pair = self._pair(detector)
        row = (self._table.get(*KEY) or {}) if instead_of or override else None
        for _ in range(TRIES):
            try:
                sets, removes, when = admission.entry(row, pair, incident, now, instead_of, override)
                self._table.write(*KEY, sets=sets, removes=removes, when=when, quiet=True)  # a large row
                return ""
            except Conflict as conflict:
                row = conflict.row or {}
            if any(circuit.removals not in row for circuit in pair):
                self._create(row, pair)
            elif not self._expire(row, now) and not self._settle(row, now):
                refusal = self._refuse(row, pair, incident, now)
                if refusal:
                    return f"breaker: {refusal}; {circuits.advice(incident)}"
                continue
            row = self._table.get(*KEY) or {}
        return TOO_FAST

    def release(self, incident: str, detector: str) -> None:
        """Free the slot of an incident that ended before it isolated anything, and its part of a probe."""
        pair = self._pair(detector)
        try:
            row = self._table.write(
                *KEY,
                removes=[(circuit.removals, incident) for circuit in pair],
                when=exists((pair[0].removals, incident)) & exists(pair[1].removals),
            )
        except Conflict as conflict:
            row = conflict.row or {}
        for circuit in self._circuits(row):
            if circuits.probe_of(row, circuit) == incident:
                self._probe_ended(row, circuit, Phase.CANCELLED, 0.0)

    def touch(self, incident: str, detector: str, now: float) -> None:
        """An incident that waits for a person keeps its slot: its removal is still to come."""
        pair = self._pair(detector)
        held = exists((pair[0].removals, incident)) & exists(pair[1].removals)
        try:
            sets = {(circuit.removals, incident): now for circuit in pair}
            self._table.write(*KEY, sets=sets, when=held, quiet=True)
        except Conflict:
            return

    def full(self, now: float, detector: str = "") -> str:
        """Why nothing more may be removed now, "" when something may; only looks."""
        row = self._table.get(*KEY) or {}
        for circuit in self._pair(detector):
            refusal = circuits.blocked(row, circuit, now, self._window)
            if refusal and self._outcome(circuits.probe_of(row, circuit)) is None:
                return f"breaker: {refusal}"
        return ""

    # --- sweep and people --------------------------------------------------------------------------

    def tidy(self, now: float) -> bool:
        """Sweep's part: what is older than the window leaves, ended probes are heard, limits are noted, and
        slots are freed that a Lambda which died has left behind. True when something changed."""
        row = self._table.get(*KEY) or {}
        if circuits.REMOVALS not in row:
            return False  # nothing was ever removed here
        limits = {"cap": self._cap, "per_detector": self._own, "window_seconds": self._window}
        changed = row.get("limits") != limits
        if changed:
            row = self._table.write(*KEY, sets={"limits": limits})
        while self._expire(row, now) or self._settle(row, now) or self._leaked(row):
            row, changed = self._table.get(*KEY) or {}, True
        return changed

    def close(self, by: str, reason: str, now: float) -> None:
        """A person closes it: nothing is tripped any more and no removal counts. Raises Conflict when the
        row changes too fast."""
        row: Row = self._table.get(*KEY) or {}
        for _ in range(TRIES):
            known = list(self._circuits(row))
            sets: dict[Any, Any] = {circuit.removals: {} for circuit in known}
            sets["closed"] = {"at": now, "by": by, "reason": reason}
            states = [circuit.state for circuit in circuits.tripped(row, known)]
            same = equals("closed", row["closed"]) if "closed" in row else missing("closed")
            try:
                self._table.write(*KEY, sets=sets, removes=states, when=same)
                return
            except Conflict as conflict:
                row = conflict.row or {}
        raise Conflict(row)

    def status(self, now: float) -> Mapping[str, Any]:
        """removals: incident -> epoch seconds; detectors: incident -> who saw its fault; circuits: those that
        are tripped, with what each waits for; closed: by a person, the last time."""
        row = self._table.get(*KEY) or {}
        known, horizon = list(self._circuits(row)), now - self._window
        found = circuits.entries(row, known[0]).items()
        return {
            "cap": self._cap,
            "per_detector": self._own,
            "window_seconds": self._window,
            "removals": {incident: at for incident, at in found if float(at) > horizon},
            "detectors": {i: c.who for c in known[1:] for i in circuits.entries(row, c)},
            "circuits": [circuits.describe(row, c, now, self._window) for c in circuits.tripped(row, known)],
            "closed": row.get("closed"),
        }

    # --- the row -----------------------------------------------------------------------------------

    def _pair(self, detector: str) -> tuple[Circuit, Circuit]:
        return fleet_circuit(self._cap), detector_circuit(detector, self._own)

    def _circuits(self, row: Row) -> Sequence[Circuit]:
        return list(circuits.circuits_of(row, self._cap, self._own))

    def _create(self, row: Row, pair: Sequence[Circuit]) -> None:
        for circuit in pair:
            if circuit.removals not in row:
                try:
                    self._table.write(*KEY, sets={circuit.removals: {}}, when=missing(circuit.removals))
                except Conflict:
                    continue

    def _expire(self, row: Row, now: float) -> bool:
        """Take entries older than the window out of all maps; True when there were any."""
        horizon = now - self._window
        old = [
            ((circuit.removals, incident), at)
            for circuit in self._circuits(row)
            for incident, at in circuits.entries(row, circuit).items()
            if float(at) <= horizon
        ][:CHUNK]
        if old:
            self._remove([path for path, _ in old], [equals(path, at) for path, at in old])
        return bool(old)

    def _remove(self, paths: Sequence[Path], unchanged: Sequence[Condition]) -> None:
        """An entry that was written anew since it was read is left, with all others of this call."""
        when = unchanged[0]
        for condition in unchanged[1:]:
            when = when & condition
        try:
            self._table.write(*KEY, removes=paths, when=when)
        except Conflict:
            return

    def _refuse(self, row: Row, pair: Sequence[Circuit], incident: str, now: float) -> str:
        """The first circuit's reason to refuse; one that was closed until now is tripped by it."""
        for circuit in pair:
            refusal = circuits.blocked(row, circuit, now, self._window)
            mine = incident in circuits.entries(row, circuit) or circuits.probe_of(row, circuit) == incident
            if mine or not refusal:
                continue
            if circuits.state_of(row, circuit) is None:
                tripped = {"at": now, "until": 0.0}
                try:
                    self._table.write(*KEY, sets={circuit.state: tripped}, when=missing(circuit.state))
                except Conflict:
                    pass
            return refusal
        return ""

    # --- probes ------------------------------------------------------------------------------------

    def _outcome(self, incident: str | None) -> Phase | None:
        """How an incident has ended, None while it has not."""
        head = self._table.get(f"INCIDENT#{incident}", "INCIDENT") if incident else None
        outcome = (head or {}).get("outcome")
        return Phase(outcome) if outcome in set(Phase) else None

    def _settle(self, row: Row, now: float) -> bool:
        """Hear how probes have ended; True when one has."""
        heard = False
        for circuit in self._circuits(row):
            outcome = self._outcome(circuits.probe_of(row, circuit))
            if outcome is not None:
                self._probe_ended(row, circuit, outcome, now)
                heard = True
        return heard

    def _probe_ended(self, row: Row, circuit: Circuit, outcome: Phase, now: float) -> None:
        sets, removes, when = admission.probe_ended(row, circuit, outcome, now, self._window)
        try:
            self._table.write(*KEY, sets=sets, removes=removes, when=when)
        except Conflict:
            return

    def _leaked(self, row: Row) -> bool:
        known = self._circuits(row)
        if not circuits.tripped(row, known):
            return False
        for incident in list(circuits.entries(row, known[0]))[:CHUNK]:
            if self._outcome(incident) is Phase.CANCELLED:
                paths = admission.slots(row, incident)
                self._remove(paths, [exists(path) for path in paths])
                return True
        return False
