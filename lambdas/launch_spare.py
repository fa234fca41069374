"""State "Launch" of refill_spares: one instance per refill, by the launch protocol of a replacement."""

from typing import Any

from lambdas import replacement_rows
from lambdas.boundary import Event, Fields, task
from lambdas.launching import Order, launch_one
from planaria.core import pool, refills, tags
from planaria.core.cluster import Capacity, NodeGroup, Offering
from planaria.core.errors import PermanentError
from planaria.core.plans import is_gone
from planaria.core.policy import Mode
from planaria.core.pool import SpareState
from planaria.core.refills import Refill
from planaria.core.table import Conflict, Row, missing
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    refill = Refill.of(event["refill"])
    row = refills.enter(gw.table, refill)
    launch = row.get("launch") or {}
    instance = str(launch.get("instance_id") or "") or _launch(gw, refill, row)
    known = gw.ledger.node(instance) or {}
    if known.get("lost") or is_gone(known):
        raise PermanentError(f"{instance} was lost before it was ready: {known.get('lost') or 'it is gone'}")
    return {"node_id": instance, "since": 0}


def _launch(gw: Gateways, refill: Refill, row: Row) -> str:
    if gw.cluster.policy.mode is Mode.OBSERVE and not row.get("person"):
        raise PermanentError("policy.mode is observe: no spare is launched")
    group = gw.cluster.group(refill.group)
    order = Order(
        key=f"spare/{refill.name}",
        group=group,
        offerings=tuple(o for o in group.offerings if o.capacity is not Capacity.SPARE),
        # No name: it gets the name of the node that it will replace.
        marks={tags.GROUP: group.name},
        write=lambda sets, removes=(), when=None: refills.write(gw.table, refill, sets, removes, when),
    )
    launch, offering, instance = launch_one(gw, order, row.get("launch") or {})
    _record(gw, refill, launch, group, offering, instance)
    return instance


def _record(
    gw: Gateways, refill: Refill, launch: Row, group: NodeGroup, offering: Offering, instance: str
) -> None:
    facts: dict[Any, Any] = {
        **replacement_rows.launched(offering, gw.clock.now()),
        "group": group.name,
        "health": "Unschedulable",
        "spare": {"state": SpareState.FILLING.value, "slot": refill.slot},
    }
    try:
        gw.ledger.note_node(instance, facts, when=missing("spare"))
    except Conflict as conflict:
        if pool.state_of(conflict.row or {}) is None:
            raise PermanentError(f"{instance} is at work already") from None
    sets = {"launch": {**launch, "instance_id": instance}, "instance_id": instance}
    refills.write(gw.table, refill, sets=sets)
