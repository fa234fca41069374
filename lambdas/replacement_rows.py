"""What a replacement's own row says from its launch on, and the launch on the row of the node it is for."""

from typing import Any

from lambdas.boundary import Event, logger
from planaria.core import rebalance
from planaria.core.cluster import Capacity, NodeGroup, Offering
from planaria.core.incident import Step
from planaria.core.plans import STILL_WORKS
from planaria.core.table import Conflict, Row, equals, missing
from planaria.wiring import Gateways

REPLACEMENTS = 8
"""At least so many replacements of one scheduler name are remembered, to know that it is not the hardware."""


def record(
    gw: Gateways, incident: Event, row: Row, group: NodeGroup, offering: Offering, instance: str
) -> Row:
    """The replacement's row, then the launch on the node's; may be repeated. row: the node's."""
    node, session, now = incident["node_id"], int(incident["session"]), gw.clock.now()
    of_new, of_node = _replacements(gw, row, now)
    of_place: dict[Any, Any] = {
        "name": incident["name"],
        "group": group.name,
        "health": "Unschedulable",
        "replaces": node,
        "lineage": row.get("lineage") or node,
        "replacements": of_new,
        "moves": rebalance.moves(row, now),
    }
    # An Auto Scaling group's member may bear the mark of this incident already.
    ours = missing("replaces") | equals("replaces", node)
    try:
        if offering.capacity is Capacity.SPARE:
            new = gw.ledger.note_node(instance, of_place, when=ours)
        else:
            facts = {**of_place, **launched(offering, now)}
            new = gw.ledger.note_node(instance, facts, when=ours & missing("offering"))
    except Conflict as conflict:
        new = conflict.row or {}  # noted by an earlier try of this call
    launch = {**row["launch"], "instance_id": instance, "at": now}
    sets = {"launch": launch, "replacement_id": instance, "replacements": of_node}
    row = gw.ledger.write(node, session, sets, when=missing(("launch", "instance_id")))
    gw.ledger.note_incident(incident["incident_id"], {"replacement_id": instance, **_far(gw, new)})
    gw.ledger.step(incident["incident_id"], Step.LAUNCHED, now, node_id=instance)
    return row


def launched(offering: Offering, now: float) -> dict[Any, Any]:
    """EC2 has a word of its own for an instance in a Capacity Block, and none for one in a reservation."""
    reserved = offering.capacity is Capacity.RESERVATION
    found: dict[Any, Any] = {
        "offering": offering.key,
        "instance_type": offering.instance_type,
        "lifecycle": (Capacity.ON_DEMAND if reserved else offering.capacity).value,
        "launched_at": now,
        "state": "pending",
    }
    if offering.reservation:
        found["reservation"] = offering.reservation
    if offering.zone:
        found["zone"] = offering.zone
    return found


def _far(gw: Gateways, new: Row) -> dict[str, str]:
    """A note where the node is in another zone than the file system that it mounts."""
    zone, there = str(new.get("zone") or ""), gw.cluster.file_system_zone
    if not zone or not there or zone == there:
        return {}
    warning = (
        f"the replacement {new['node_id']} is in {zone}, the file system in {there}: reads and writes cross "
        "Availability Zones"
    )
    logger.warning(warning)
    return {"warning": warning}


def _replacements(gw: Gateways, row: Row, now: float) -> tuple[list[float], list[float]]:
    """When this scheduler name got a new instance for a fault, for the new instance's row and for the node's.
    A planned end or a spot notice is none.

    The new one knows of those that took the place before it. The node knows besides of those that were
    launched for it and never did, so that their number is bounded.
    """
    before = list(row.get("replacements", []))
    took = [at for at in before if at <= float(row.get("admitted_at") or 0.0)]
    if (row.get("fault") or {}).get("kind") in STILL_WORKS:
        return took, before
    most = max(REPLACEMENTS, gw.cluster.policy.max_replacements)
    return [*took, now][-most:], [*without_unused(row), now][-most:]


def without_unused(row: Row) -> list[float]:
    """`replacements` of the node's row but for what its session has launched and given back in good order, as
    its gang or a healthy report asks for."""
    before, lost = list(row.get("replacements", [])), int(row.get("replacements_lost", 0))
    opened = float(row.get("opened_at") or 0.0)
    own = [at for at in before if at >= opened]
    return [*(at for at in before if at < opened), *own[:lost]]
