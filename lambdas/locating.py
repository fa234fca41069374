"""Sweep's part of the network topology: where EC2 says that nodes and reservations are, into their rows.

A place does not change while an instance runs, so EC2 is asked only about nodes that have none yet, a
bounded number in one sweep, and seldom again about those that it tells nothing about. A node that has
stopped loses its place: it starts on another host.
"""

from collections.abc import Mapping
from typing import Any

from lambdas.boundary import logger
from lambdas.inventory import HALTED, each
from planaria.core.cluster import NodeGroup
from planaria.core.errors import PlanariaError
from planaria.core.offering_rows import OfferingRows
from planaria.core.plans import is_gone
from planaria.core.table import Row, equals
from planaria.core.topology import Located
from planaria.wiring import Gateways

MOST = 300
"""Nodes of one sweep: three calls, and a write each."""

YOUNG_SECONDS = 900.0
AGAIN_SECONDS = 600.0
"""EC2 tells of a new instance soon after it runs: a young one is asked about in every sweep."""

FINAL_SECONDS = 86_400.0
"""EC2 learns to tell of further instance types and regions from time to time."""

RESERVATION_SECONDS = 3600.0
REASON_LENGTH = 200


def keep(gw: Gateways, nodes: list[Row]) -> int:
    """nodes: every node's row. Returns how many were found."""
    each([row for row in nodes if _moved(row)], "place of", lambda row: _forget(gw, row))
    return _nodes(gw, nodes) + each(
        [{"pk": f"OFFERINGS#{group.name}", "group": group} for group in gw.cluster.node_groups.values()],
        "reservations of",
        lambda entry: _reservations(gw, entry["group"]),
    )


# --- nodes -------------------------------------------------------------------------------------------


def _nodes(gw: Gateways, nodes: list[Row]) -> int:
    due = [row for row in nodes if _due(row, gw.clock.now())][:MOST]
    if not due:
        return 0
    try:
        found = gw.topology.instances({row["node_id"]: str(row.get("instance_type") or "") for row in due})
    except PlanariaError as error:
        logger.warning("sweep: EC2 does not tell where nodes are", extra={"reason": str(error)})
        return 0
    return each(due, "place of", lambda row: _note(gw, row, found.get(row["node_id"], Located())))


def _due(row: Row, now: float) -> bool:
    if row.get("topology") or row.get("state") != "running" or is_gone(row):
        return False
    asked = row.get("located") or {}
    wait = FINAL_SECONDS if asked.get("final") else AGAIN_SECONDS
    if not asked.get("final") and now - float(row.get("launched_at") or 0.0) < YOUNG_SECONDS:
        wait = 0.0
    return now - float(asked.get("at") or 0.0) >= wait


def _note(gw: Gateways, row: Row, found: Located) -> bool:
    """located: when EC2 was asked, and why it did not tell; not written again for the same answer so soon."""
    now, before = gw.clock.now(), row.get("located") or {}
    asked: dict[str, Any] = {"at": now, "why": found.why[:REASON_LENGTH], "final": found.final}
    soon = now - float(before.get("at") or 0.0) < AGAIN_SECONDS
    if not found.path and soon and {**before, "at": now} == asked:
        return False
    sets: dict[Any, Any] = {"located": asked}
    if found.path:
        sets["topology"] = list(found.path)
    gw.table.write(row["pk"], row["sk"], sets=sets, when=equals("state", "running"))
    return bool(found.path)


def _moved(row: Row) -> bool:
    return bool(row.get("topology")) and row.get("state") in HALTED


def _forget(gw: Gateways, row: Row) -> bool:
    gw.table.write(row["pk"], row["sk"], removes=("topology", "located"), when=equals("state", row["state"]))
    return True


# --- reservations ------------------------------------------------------------------------------------


def _reservations(gw: Gateways, group: NodeGroup) -> bool:
    ids = sorted({offering.reservation for offering in group.offerings if offering.reservation})
    if not ids:
        return False
    rows, now = OfferingRows(gw.table), gw.clock.now()
    known: Mapping[str, Any] = rows.state(group.name).get("located") or {}
    if all(now - float((known.get(name) or {}).get("at") or 0.0) < RESERVATION_SECONDS for name in ids):
        return False
    found = gw.topology.reservations(ids)
    rows.located(
        group.name,
        {
            name: {"path": list(place.path), "why": place.why[:REASON_LENGTH], "at": now}
            for name, place in found.items()
        },
    )
    return True
