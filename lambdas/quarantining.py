"""Keeping hardware out that has proven bad: whoever retires a node or finds one bad calls this."""

from planaria.core import verification
from planaria.core.incident import incident_id
from planaria.core.quarantine import Found, Quarantine, barred
from planaria.core.table import Row
from planaria.wiring import Gateways

CHECKED = "its check passed"
PLANARIA = "Planaria"


def quarantine(gw: Gateways, row: Row, reason: str, incident: str = "") -> None:
    """Quarantine the node of this row, and its Dedicated Host. Safe to repeat.

    incident: the incident's id, where it is not the newest of this very node (a replacement's is another's).
    """
    name = incident or incident_id(row["node_id"], int(row["session"]))
    Quarantine(gw.table).put(row, Found(reason, name, gw.clock.now()))


def retired(gw: Gateways, row: Row) -> None:
    """The node of this row is retired by its own incident: its hardware is kept out if it was to blame."""
    if verification.of_hardware(row):
        quarantine(gw, row, str(row.get("reason") or "retired for a fault of its hardware"))


def cleared(gw: Gateways, row: Row) -> None:
    """The node of this row has passed its check after a repair."""
    now = gw.clock.now()
    if barred(row, now):
        Quarantine(gw.table).release(row["node_id"], PLANARIA, CHECKED, now)


def refusal(gw: Gateways, row: Row) -> str:
    """Why this node is not to be taken into service, "" when nothing is against it.

    Its host is what sweep has noted of the instance while it booted.
    """
    now = gw.clock.now()
    why = barred(row, now) or Quarantine(gw.table).against(str(row.get("host") or ""), now)
    return f"{row['node_id']} is not used: {why}" if why else ""
