"""State "Launch": one replacement per incident, whatever crashes when.

Intent first (token, offering, lease), then a look-up by tag, then CreateFleet with the token as
ClientToken, then the instance id into the row.
"""

import uuid

from lambdas.boundary import Event, Fields, task
from planaria.core import tags
from planaria.core.cluster import NodeGroup, Offering
from planaria.core.errors import CapacityError, PermanentError, Waiting
from planaria.core.incident import Step, launch_token
from planaria.core.plans import GONE_STATES, STILL_WORKS, is_gone
from planaria.core.ports import LaunchRequest
from planaria.core.table import Conflict, Row, below, equals, missing
from planaria.wiring import Gateways

LEASE_SECONDS = 10.0
MOST_LOST = 3

REPLACEMENTS = 8
"""How many replacements of one scheduler name are remembered, to know that it is not the hardware."""


@task
def handler(event: Event, gw: Gateways) -> Fields:
    incident = event["incident"]
    row = gw.ledger.enter(incident["node_id"], int(incident["session"]))
    if row.get("isolation_refused"):
        raise PermanentError("no replacement is launched: the node's isolation was refused")
    launch = row.get("launch") or {}
    if launch.get("instance_id"):
        row = _unless_lost(incident, gw, row)
        launch = row["launch"]
    if not launch.get("instance_id"):
        group = gw.cluster.group(row.get("group") or next(iter(gw.cluster.node_groups)))
        launch = _launch(incident, gw, row, group)
    return {"node_id": launch["instance_id"], "since": 0}


def _unless_lost(incident: Event, gw: Gateways, row: Row) -> Row:
    """A replacement that was lost before it was ready is followed by another, with a new token."""
    instance = row["launch"]["instance_id"]
    known = gw.ledger.node(instance) or {}
    if known.get("admitted_at") or not (known.get("lost") or is_gone(known)):
        return row
    lost = int(row.get("replacements_lost", 0)) + 1
    if lost > MOST_LOST:
        raise PermanentError(f"{lost} replacements were lost before they were ready, last {instance}")
    return gw.ledger.write(
        incident["node_id"],
        int(incident["session"]),
        sets={"launch": {"number": int(row["launch"]["number"]) + 1, "index": 0}, "replacements_lost": lost},
        removes=("replacement_id",),
        when=equals(("launch", "instance_id"), instance),
    )


def _launch(incident: Event, gw: Gateways, row: Row, group: NodeGroup) -> Row:
    """Tries the offerings in order, from the one the stored intent names."""
    while True:
        launch = row.get("launch") or {"number": 1, "index": 0}
        number, index = int(launch["number"]), int(launch["index"])
        if launch.get("instance_id"):
            return launch
        if index >= len(group.offerings):
            following = {"number": number + 1, "index": 0}
            gw.ledger.write(incident["node_id"], int(incident["session"]), sets={"launch": following})
            raise CapacityError(f"no offering of node group {group.name} has capacity now")
        offering = group.offerings[index]
        # A stored token goes before a new one: it may have launched already, in another session's name.
        token = launch.get("token") or launch_token(incident["incident_id"], number, offering.key)
        row = _lease(incident, gw, number, index, token)
        found = gw.fleet.launched(token)
        alive = sorted(i.node_id for i in found if i.state not in GONE_STATES)
        try:
            if alive:
                instance = alive[0]
            elif found:
                # The token's instance has ended, and EC2 answers this token with it for ever: a new one.
                raise CapacityError(f"the instance of launch {token} has ended")
            else:
                instance = gw.fleet.launch(_request(incident, row, group, offering, token))
        except CapacityError:
            row = _pass_over(incident, gw, token, {"number": number, "index": index + 1})
            continue
        return _record(incident, gw, row, group, offering, instance)


def _pass_over(incident: Event, gw: Gateways, token: str, following: Row) -> Row:
    """On to the next offering, unless another call has launched with this token after all."""
    unused = equals(("launch", "token"), token) & missing(("launch", "instance_id"))
    try:
        return gw.ledger.write(
            incident["node_id"], int(incident["session"]), sets={"launch": following}, when=unused
        )
    except Conflict as conflict:
        return conflict.row or {}


def _lease(incident: Event, gw: Gateways, number: int, index: int, token: str) -> Row:
    """The right to launch, for a short time: two deliveries of one Task must not both call EC2."""
    now = gw.clock.now()
    intent = {
        "number": number,
        "index": index,
        "token": token,
        "lease_until": now + LEASE_SECONDS,
        "holder": uuid.uuid4().hex,
    }
    free = missing(("launch", "lease_until")) | below(("launch", "lease_until"), now)
    try:
        return gw.ledger.write(
            incident["node_id"],
            int(incident["session"]),
            sets={"launch": intent},
            when=free & missing(("launch", "instance_id")),
        )
    except Conflict as conflict:
        held = (conflict.row or {}).get("launch") or {}
        raise Waiting(f"launch {held.get('token', '')} is under way by another call") from None


def _request(incident: Event, row: Row, group: NodeGroup, offering: Offering, token: str) -> LaunchRequest:
    return LaunchRequest(
        token=token,
        launch_template=group.launch_template,
        instance_type=offering.instance_type,
        subnet=offering.subnet,
        capacity=offering.capacity,
        tags={tags.GROUP: group.name, tags.NAME: incident["name"], tags.REPLACES: row["node_id"]},
    )


def _record(
    incident: Event, gw: Gateways, row: Row, group: NodeGroup, offering: Offering, instance: str
) -> Row:
    now = gw.clock.now()
    new = {
        "name": incident["name"],
        "group": group.name,
        "instance_type": offering.instance_type,
        "lifecycle": offering.capacity,
        "launched_at": now,
        "state": "pending",
        "health": "Unschedulable",
        "replaces": row["node_id"],
        "lineage": row.get("lineage") or row["node_id"],
        "replacements": _replacements(row, now),
    }
    try:
        gw.ledger.note_node(instance, dict(new), when=missing("replaces"))
    except Conflict:
        pass  # noted by an earlier try of this call
    launch = {**row["launch"], "instance_id": instance}
    gw.ledger.write(
        incident["node_id"], int(incident["session"]), sets={"launch": launch, "replacement_id": instance}
    )
    gw.ledger.note_incident(incident["incident_id"], {"replacement_id": instance})
    gw.ledger.step(incident["incident_id"], Step.LAUNCHED, now, node_id=instance)
    return launch


def _replacements(row: Row, now: float) -> list[float]:
    """When this scheduler name got a new instance for a fault; a planned end or a spot notice is none."""
    before = list(row.get("replacements", []))
    if (row.get("fault") or {}).get("kind") in STILL_WORKS:
        return before
    return [*before, now][-REPLACEMENTS:]
