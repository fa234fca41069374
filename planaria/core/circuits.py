"""The breaker's circuits, one for the fleet and one for each detector, as they stand in the fleet's row.

A circuit is closed until it refuses a removal. Then it is tripped; once the window has moved on it is
half-open and lets one removal through, its probe. How the probe's incident ends decides what comes next.

In the row: a map of removals (incident id -> epoch seconds), and while the circuit is tripped a map
{"at": when it tripped, "until": no probe before, "probe": incident id, "probe_at", "failed": the last probe}.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planaria.core.table import Row
from planaria.core.wording import moment, span

REMOVALS, TRIPPED = "removals", "tripped"
_BY = "_by_"


@dataclass(frozen=True, slots=True)
class Circuit:
    """who: "fleet" or the detector. removals and state: names of its two attributes. cap: removals in a
    window."""

    who: str
    removals: str
    state: str
    cap: int

    @property
    def whose(self) -> str:
        return "the fleet" if self.who == "fleet" else f"detector {self.who}"


def fleet_circuit(cap: int) -> Circuit:
    return Circuit("fleet", REMOVALS, TRIPPED, cap)


def detector_circuit(detector: str, cap: int) -> Circuit:
    return Circuit(detector, f"{REMOVALS}{_BY}{detector}", f"{TRIPPED}{_BY}{detector}", cap)


def circuits_of(row: Row, cap: int, per_detector: int) -> Iterator[Circuit]:
    """Every circuit that the row knows of, the fleet's first."""
    yield fleet_circuit(cap)
    marks = [f"{name}{_BY}" for name in (REMOVALS, TRIPPED)]
    for detector in sorted(
        {name.removeprefix(mark) for mark in marks for name in row if name.startswith(mark)}
    ):
        yield detector_circuit(detector, per_detector)


def entries(row: Row, circuit: Circuit) -> Mapping[str, Any]:
    """Incident id -> when its removal was admitted, old ones included."""
    found = row.get(circuit.removals)
    return found if isinstance(found, Mapping) else {}


def state_of(row: Row, circuit: Circuit) -> Mapping[str, Any] | None:
    """None while the circuit is closed."""
    found = row.get(circuit.state)
    return found if isinstance(found, Mapping) else None


def probe_of(row: Row, circuit: Circuit) -> str | None:
    """The incident that is this circuit's probe, None when it has none."""
    probe = (state_of(row, circuit) or {}).get("probe")
    return str(probe) if probe else None


def tripped(row: Row, known: Iterable[Circuit]) -> list[Circuit]:
    return [circuit for circuit in known if state_of(row, circuit) is not None]


def live(row: Row, circuit: Circuit, now: float, window: float) -> list[float]:
    """When the removals were admitted that still count, oldest first."""
    return sorted(float(at) for at in entries(row, circuit).values() if float(at) > now - window)


def moves_on(row: Row, circuit: Circuit, now: float, window: float) -> float:
    """When there is room again, if nothing else is admitted; `now` or earlier when there is."""
    ats = live(row, circuit, now, window)
    room = ats[len(ats) - circuit.cap] + window if len(ats) >= circuit.cap else now
    return max(room, float((state_of(row, circuit) or {}).get("until", 0.0)))


def blocked(row: Row, circuit: Circuit, now: float, window: float) -> str:
    """Why this circuit lets nothing through, "" when it does. A probe counts as under way."""
    state, used = state_of(row, circuit), len(live(row, circuit, now, window))
    if probe := probe_of(row, circuit):
        at = moment(float((state or {}).get("probe_at", now)))
        return (
            f"half-open: waits for incident {probe}, the one removal let through for {circuit.whose} at {at}"
        )
    when = moves_on(row, circuit, now, window)
    since = f", refusing since {moment(float(state['at']))}" if state else ""
    following = f"; one is let through as a probe after {moment(when)}"
    if state is not None and state.get("failed") and float(state["until"]) >= now:
        return f"open for {circuit.whose}: its probe {state['failed']} was not healed{since}{following}"
    if used >= circuit.cap:
        many = f"{used} of {circuit.cap} removals of {circuit.whose} used within {span(window)}"
        return f"{many}{since}{following}"
    return ""


def describe(row: Row, circuit: Circuit, now: float, window: float) -> dict[str, Any]:
    """A tripped circuit for people: its state, and what it waits for."""
    waits = blocked(row, circuit, now, window) or "half-open: the next removal is its probe"
    return {"who": circuit.who, **(state_of(row, circuit) or {}), "waits": waits}


def advice(incident: str) -> str:
    """How a person overrides a refusal."""
    node = incident.rpartition("-")[0] or "NODE"
    return (
        f"to go on at once: `planaria replace {node} --override-breaker`, or `planaria breaker close "
        "--reason TEXT` for every node"
    )
