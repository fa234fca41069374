"""The breaker's conditional writes as data: (sets, removes, condition) for what the fleet's row shows."""

from collections.abc import Sequence
from typing import Any

from planaria.core import circuits
from planaria.core.circuits import Circuit
from planaria.core.incident import Phase
from planaria.core.table import Condition, Path, Row, below, equals, exists, missing, smaller

Write = tuple[dict[Any, Any], list[Path], Condition]


def entry(
    row: Row | None, pair: Sequence[Circuit], incident: str, now: float, instead_of: str, override: bool
) -> Write:
    """The admitting write for what the row shows; None: as if no circuit had tripped."""
    fleet = pair[0]
    sets: dict[Any, Any] = {(circuit.removals, incident): now for circuit in pair}
    there = exists(fleet.removals) & exists(pair[1].removals)
    known = circuits.entries(row, fleet) if row else {}
    if incident in known:
        return sets, [], there & exists((fleet.removals, incident))
    if row and instead_of in known:
        return _succession(row, sets, there, incident, instead_of)
    if override:
        return sets, [], there
    room = there
    for circuit in pair:
        state = circuits.state_of(row, circuit) if row else None
        if state is None:
            room = room & missing(circuit.state) & smaller(circuit.removals, circuit.cap)
        elif state.get("probe"):
            room = room & equals((circuit.state, "probe"), incident)
        else:
            free = missing((circuit.state, "probe")) & below((circuit.state, "until"), now)
            room = room & exists(circuit.state) & free & smaller(circuit.removals, circuit.cap)
            sets |= {(circuit.state, "probe"): incident, (circuit.state, "probe_at"): now}
    if row is None:
        room = room | (there & exists((fleet.removals, incident)))
    return sets, [], room


def _succession(row: Row, sets: dict[Any, Any], there: Condition, incident: str, before: str) -> Write:
    """The superseding incident takes over slot and part; the node counts once."""
    known = list(circuits.circuits_of(row, 1, 1))
    removes = slots(row, before)
    when = there & exists((known[0].removals, before))
    for circuit in known:
        if circuits.probe_of(row, circuit) == before:
            sets[(circuit.state, "probe")] = incident
            when = when & equals((circuit.state, "probe"), before)
    return sets, removes, when


def probe_ended(row: Row, circuit: Circuit, outcome: Phase, now: float, window: float) -> Write:
    """HEALED, RETIRED: closed. CANCELLED, SUPERSEDED: the next may be the probe. Otherwise tripped for
    another window."""
    probe = row[circuit.state]["probe"]
    sets: dict[Any, Any] = {}
    removes: list[Path] = []
    if outcome in (Phase.HEALED, Phase.RETIRED):
        removes = [circuit.state]
    elif outcome in (Phase.CANCELLED, Phase.SUPERSEDED):
        removes = [(circuit.state, "probe"), (circuit.state, "probe_at")]
        if outcome is Phase.CANCELLED:
            removes += slots(row, probe)
    else:
        sets = {circuit.state: {"at": now, "until": now + window, "failed": probe}}
    return sets, removes, equals((circuit.state, "probe"), probe)


def slots(row: Row, incident: str) -> list[Path]:
    """Where the row has this incident as a removal."""
    known = circuits.circuits_of(row, 1, 1)
    return [(c.removals, incident) for c in known if incident in circuits.entries(row, c)]
