"""Replacements of one job under the policy `gang: all-or-nothing`: nobody pays for nodes that cannot work.

While one of the job's nodes finds no capacity, the others give back what they have got and wait with it.
Then they ask again one after the other, in the order of their instance ids, each once those before it have
theirs. All of it is read off the nodes' own rows; under the policy `keep` nothing here does anything.
"""

from lambdas import ending
from lambdas.boundary import Event
from planaria.core.errors import CapacityError, Waiting
from planaria.core.incident import ACTIVE, incident_id
from planaria.core.plans import incident_document
from planaria.core.policy import Gang
from planaria.core.table import Row, equals
from planaria.wiring import Gateways

PROMPT_SECONDS = 300.0
"""How long a replacement looks often for those of the other nodes; they launch within seconds, as a rule."""


class NotTogether(CapacityError):
    """Not all nodes of the job find capacity."""


def await_turn(gw: Gateways, incident: Event, row: Row) -> None:
    """Raises NotTogether while a node before this one is still without capacity."""
    for other in _without(gw, incident, row):
        if other.get("capacity_since") and other["node_id"] < row["node_id"]:
            raise NotTogether(f"{other['node_id']} of the same job finds no capacity; it asks first")


def await_all(gw: Gateways, incident: Event, row: Row) -> Row:
    """The row, once every node of the job has its replacement, or has been waited for long enough.

    Raises NotTogether when one of them has found none since, and this one's is given back; Waiting and
    CapacityError until then.
    """
    launch = row.get("launch") or {}
    if gw.cluster.policy.gang is Gang.KEEP or not launch.get("instance_id") or "together" in launch:
        return row
    node, session, at = incident["node_id"], int(incident["session"]), float(launch["at"])
    missing = _without(gw, incident, row)
    for other in missing:
        if float(other.get("capacity_at") or 0.0) > at:
            mark = {("launch", "giving_back"): True}
            row = gw.ledger.write(
                node, session, mark, when=equals(("launch", "instance_id"), launch["instance_id"])
            )
            give_back(gw, incident, row)
            raise NotTogether(f"{other['node_id']} of the same job finds no capacity; both wait for it")
    held = gw.clock.now() - at
    if missing and held < gw.cluster.policy.hold_seconds:
        text = f"{launch['instance_id']} waits for the replacement of {missing[0]['node_id']} of the same job"
        raise Waiting(text) if held < PROMPT_SECONDS else CapacityError(text, retry_after=60)
    return gw.ledger.write(
        node,
        session,
        {("launch", "together"): True},
        when=equals(("launch", "instance_id"), launch["instance_id"]),
    )


def give_back(gw: Gateways, incident: Event, row: Row) -> Row:
    """What `giving_back` marks is ended or becomes a spare; the row without it. May be repeated."""
    ending.give_back(gw, row)
    launch = row["launch"]
    following = {"number": int(launch["number"]) + 1, "out": launch.get("out") or {}}
    return gw.ledger.write(
        incident["node_id"],
        int(incident["session"]),
        {"launch": following},
        ("replacement_id",),
        equals(("launch", "instance_id"), launch["instance_id"]),
    )


def _without(gw: Gateways, incident: Event, row: Row) -> list[Row]:
    """The other nodes of the same jobs that want a replacement and have none yet, in their order."""
    if gw.cluster.policy.gang is Gang.KEEP:
        return []
    pending: dict[str, str] = {}
    for job in sorted({incident["job_id"], *row.get("stopped_jobs", [])} - {""}):
        pending |= (gw.jobs.job(job) or {}).get("pending", {})
    others = gw.ledger.nodes_by_id([node for node in pending if node != row["node_id"]])
    return sorted(
        (o for o in others if _wants(gw, o, pending[o["node_id"]])), key=lambda o: str(o["node_id"])
    )


def _wants(gw: Gateways, other: Row, name: str) -> bool:
    if other.get("phase") not in ACTIVE or incident_id(other["node_id"], other["session"]) != name:
        return False
    if other.get("isolation_refused") or (other.get("launch") or {}).get("unwanted"):
        return False
    return not other.get("replacement_id") and bool(
        incident_document(other, gw.cluster.policy)["replacement"]
    )
