"""State "Launch": one replacement per incident, whatever crashes when, from the node group's offerings.

Where none of them has capacity the incident waits for it, for days if it must, at a pace that the tries on
the node's row give; so it goes on in another execution as it went on before.
"""

from typing import Any

from lambdas import advising, gangs, nearness, replacement_rows, scaling, spares, staying
from lambdas.boundary import Event, Fields, task
from lambdas.ending import give_back
from lambdas.launching import NoOffering, Order, launch_one
from planaria.core import offerings, pool, tags
from planaria.core.cluster import NodeGroup
from planaria.core.errors import CapacityError, PermanentError, Waiting
from planaria.core.incident import Step
from planaria.core.offering_rows import OfferingRows
from planaria.core.offerings import Problem
from planaria.core.plans import emptied, is_gone, isolated_by
from planaria.core.table import Conflict, Row, equals, missing
from planaria.core.wording import moment, span
from planaria.wiring import Gateways

MOST_LOST = 3

SOON = 10
"""Seconds after which an incident that waits for capacity looks again at what another call is about to do."""

CLEANED_SECONDS = 1800.0
"""EC2 needs several minutes until a reservation has the place of an instance that has ended again."""

ENDED_SECONDS = 86_400.0
"""How long a reservation is passed over after its end, by those whose own it is not."""


@task
def handler(event: Event, gw: Gateways) -> Fields:
    """first: the node works on until its replacement is ready; else staying.due says how it goes on."""
    incident = event["incident"]
    row = gw.ledger.enter(incident["node_id"], int(incident["session"]))
    if not event.get("first"):
        return _have(incident, gw, row)
    try:
        fields = _have(incident, gw, row)
        staying.await_replacement(gw, gw.ledger.enter(incident["node_id"], int(incident["session"])))
        return fields
    except (CapacityError, Waiting) as error:
        if not staying.stays(gw, row):
            return staying.due(gw.ledger.enter(incident["node_id"], int(incident["session"])), str(error))
        raise staying.no_later(gw, row, error) if isinstance(error, CapacityError) else error from None


def _have(incident: Event, gw: Gateways, row: Row) -> Fields:
    """The replacement, launched or taken from the warm pool."""
    if row.get("isolation_refused"):
        launched = str((row.get("launch") or {}).get("instance_id") or "")
        if launched:
            return {"node_id": launched, "since": 0}  # known to the machine, which gives it back
        raise PermanentError("no replacement is launched: the node's isolation was refused")
    group = gw.cluster.group(row.get("group") or next(iter(gw.cluster.node_groups)))
    try:
        row = _replaced(incident, gw, row, group)
    except Waiting as wait:
        if row.get("capacity_since"):
            raise CapacityError(str(wait), SOON) from None
        raise
    if row.get("capacity_since"):
        forget = ("capacity_since", "capacity_tries", "capacity_at")
        gw.ledger.write(incident["node_id"], int(incident["session"]), removes=forget)
    return {"node_id": row["launch"].get("instance_id", ""), "since": 0}


def _replaced(incident: Event, gw: Gateways, row: Row, group: NodeGroup) -> Row:
    """The row once its launch is done."""
    launch = row.get("launch") or {}
    if launch.get("giving_back"):
        row = gangs.give_back(gw, incident, row)
    elif launch.get("instance_id"):
        row = _unless_lost(incident, gw, row)
    try:
        launch = row.get("launch") or {}
        if not launch.get("instance_id") and not launch.get("unwanted"):
            gangs.await_turn(gw, incident, row)
            row = _launch(incident, gw, row, group)
        return gangs.await_all(gw, incident, row)
    except NoOffering as error:
        tries = _make_room(incident, gw) if error.crowded else None
        raise _no_capacity(incident, gw, group, error, tries) from None
    except gangs.NotTogether as error:
        raise _no_capacity(incident, gw, group, error) from None


def _unless_lost(incident: Event, gw: Gateways, row: Row) -> Row:
    """A replacement that was lost before it was ready is followed by another, with a new token."""
    instance = row["launch"]["instance_id"]
    known = gw.ledger.node(instance) or {}
    elsewhere = pool.lost_to(known, row["node_id"])
    if known.get("admitted_at") or not (known.get("lost") or is_gone(known) or elsewhere):
        return row
    lost = int(row.get("replacements_lost", 0)) + (not elsewhere)
    if lost > MOST_LOST:
        why = known.get("lost") or "EC2 has ended it"
        raise PermanentError(f"{lost} replacements were lost before they were ready, last {instance}: {why}")
    if not elsewhere:
        give_back(gw, row, lost=True)  # the execution that should have done it may have died
    following = {"number": int(row["launch"]["number"]) + 1, "out": row["launch"].get("out") or {}}
    return gw.ledger.write(
        incident["node_id"],
        int(incident["session"]),
        sets={"launch": following, "replacements_lost": lost},
        removes=("replacement_id",),
        when=equals(("launch", "instance_id"), instance),
    )


def _launch(incident: Event, gw: Gateways, row: Row, group: NodeGroup) -> Row:
    node, session = incident["node_id"], int(incident["session"])
    scaling.await_isolation(row, group)
    if not row.get("launch"):
        _cool_own(gw, row, group)
    listed = nearness.listed(gw, incident, row, group)
    if not listed:
        _nowhere_else(gw, row, group)
    order = Order(
        key=incident["incident_id"],
        group=group,
        offerings=listed[:1] if group.auto_scaling_group else listed,
        marks={tags.NAME: incident["name"], tags.REPLACES: node},
        write=lambda sets, removes=(), when=None: gw.ledger.write(node, session, sets, removes, when),
        replaces=node,
        leaves=row if _leaves(incident, gw, row, group) else None,
        take=lambda: spares.take(gw, group, incident, row),
        more=lambda token: scaling.request(gw, row, group, token),
    )
    launch, offering, instance = launch_one(gw, order, row.get("launch") or {})
    if not instance:
        return {**row, "launch": scaling.none_wanted(gw, incident, {**row, "launch": launch})}
    return replacement_rows.record(gw, incident, {**row, "launch": launch}, group, offering, instance)


# --- what the node's own end means for the offerings -------------------------------------------------


def _cool_own(gw: Gateways, row: Row, group: NodeGroup) -> None:
    """EC2 takes back what it gave: nobody is sent into that pool, or a reservation that ends, for now."""
    rows, now = OfferingRows(gw.table), gw.clock.now()
    fault, policy = row.get("fault") or {}, gw.cluster.policy
    if fault.get("kind") in offerings.WANTS_BACK:
        for key in sorted(offerings.of_node(group, row)):
            why = f"EC2 wants nodes of it back ({fault['kind']})"
            rows.cool(group.name, key, row["node_id"], why, now, now + policy.cooldown_seconds)
    ends = offerings.ending(row)
    known = (rows.state(group.name).get("cooling") or {}) if ends else {}
    for offering in group.offerings if ends else ():
        if offering.reservation in ends and float((known.get(offering.key) or {}).get("until") or 0.0) <= now:
            until = max(now, float(fault.get("deadline") or 0.0)) + ENDED_SECONDS
            rows.cool(group.name, offering.key, "", f"{offering.reservation} ends", now, until)


def _nowhere_else(gw: Gateways, row: Row, group: NodeGroup) -> None:
    """Only the reservation that ends is listed: the incident waits for another one to be deployed."""
    offering = group.offerings[0]
    advice = offerings.advice(Problem.RESERVATION_ENDS, offering, group)
    said = f"{offering.reservation} ends, and nothing else is listed"
    advising.tell(gw, group, offering, advice, said, row["node_id"])
    raise NoOffering(f"{said}. {advice}", crowded=False)


def _leaves(incident: Event, gw: Gateways, row: Row, group: NodeGroup) -> bool:
    """The old node will end for this one, and EC2 may still count it."""
    if not incident["retire"] or group.auto_scaling_group:
        return False
    acts = row.get("acts") or {}
    ended = float(acts.get("terminate") or (row.get("opened_at") if is_gone(row) else 0.0) or 0.0)
    return not ended or gw.clock.now() - ended < CLEANED_SECONDS


def _make_room(incident: Event, gw: Gateways) -> int | None:
    """The old node has its replacement's place: where it is isolated and empty it ends now, not at last.

    0: it does, and EC2 is asked anew without delay. None: nothing has changed.
    """
    node, session = incident["node_id"], int(incident["session"])
    row = gw.ledger.enter(node, session)
    if is_gone(row) or not isolated_by(row, incident["mark"]) or not emptied(row):
        return None
    first = "terminate" not in (row.get("acts") or {})
    if first:
        gw.ledger.act(node, session, row, "terminate", gw.clock.now())
    gw.fleet.terminate(node)
    gw.ledger.step(incident["incident_id"], Step.RETIRED, gw.clock.now())
    return 0 if first else None


# --- waiting -----------------------------------------------------------------------------------------


def _no_capacity(
    incident: Event, gw: Gateways, group: NodeGroup, error: CapacityError, tries: int | None = None
) -> PermanentError | CapacityError:
    """Counted on the node's row. tries: count on from here instead of from there."""
    node, session, now = incident["node_id"], int(incident["session"]), gw.clock.now()
    row = gw.ledger.enter(node, session)
    since = float(row.get("capacity_since") or now)
    limit = gw.cluster.policy.capacity_timeout_seconds
    if now - since > limit:
        return PermanentError(
            f"no capacity for a replacement since {moment(since)} ({span(now - since)}), the longest that "
            f"the policy waits: {error}. Add an offering to node group {group.name} or ask AWS for "
            "capacity, then order it again"
        )
    before = row.get("capacity_tries")
    counted = int(before or 0) if tries is None else tries
    sets: dict[Any, Any] = {"capacity_since": since, "capacity_tries": counted + 1}
    if isinstance(error, NoOffering):
        sets["capacity_at"] = now
    same = missing("capacity_tries") if before is None else equals("capacity_tries", before)
    try:
        gw.ledger.write(node, session, sets, when=same)
    except Conflict:
        pass  # another delivery of this call has counted
    return CapacityError(str(error), offerings.wait_seconds(counted))
