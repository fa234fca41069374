"""Nodes that an Auto Scaling group launches: what the Tasks do otherwise for them, and nothing for any other.

A new member of the group belongs to the incident that first writes itself into the member's row (`replaces`,
`launch_token`), for two incidents may find the same one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planaria.core.cluster import NodeGroup, Offering
from planaria.core.errors import PermanentError, Waiting
from planaria.core.incident import ACTIVE
from planaria.core.plans import is_gone
from planaria.core.ports import LaunchRequest
from planaria.core.table import Condition, Conflict, Row, equals, missing
from planaria.wiring import Gateways

NONE_WANTED = "its node left with its Auto Scaling group, which wants no other"


def group_of(gw: Gateways, row: Row) -> str:
    """The Auto Scaling group of this node, "" where Planaria launches its nodes."""
    group = gw.cluster.node_groups.get(str(row.get("group", "")))
    return group.auto_scaling_group if group is not None else ""


# --- a replacement ---------------------------------------------------------------------------------


def offerings(group: NodeGroup) -> tuple[Offering, ...]:
    """An Auto Scaling group chooses type, zone and market itself: it is one offering."""
    return group.offerings[:1] if group.auto_scaling_group else group.offerings


def await_isolation(row: Row, group: NodeGroup) -> None:
    """A node that may yet turn out to be someone else's to isolate is not taken out of its group."""
    if group.auto_scaling_group and not row.get("isolation") and not is_gone(row):
        raise Waiting(f"{row['node_id']} leaves its Auto Scaling group once it is isolated")


def request(gw: Gateways, row: Row, group: NodeGroup, token: str) -> dict[str, Any]:
    """What LaunchRequest says besides for an Auto Scaling group."""
    if not group.auto_scaling_group:
        return {}
    return {
        "auto_scaling_group": group.auto_scaling_group,
        "replaces": row["node_id"],
        "since": float(row.get("opened_at") or gw.clock.now()),
        "choose": _chooser(gw, row["node_id"], token),
    }


def find_late(gw: Gateways, row: Row) -> None:
    """Make the member that a cancelled launch had not found yet known as its own: it is given back then."""
    group = gw.cluster.node_groups.get(str(row.get("group", "")))
    launch = row.get("launch") or {}
    token = launch.get("token")
    if group is None or not group.auto_scaling_group or not token or launch.get("instance_id"):
        return
    if not gw.fleet.launched(token):
        more = request(gw, row, group, token)
        gw.scaling.claim(LaunchRequest(token, "", "", "", "", {}, **more))


def none_wanted(gw: Gateways, incident: Mapping[str, Any], row: Row) -> Row:
    """The launch of an incident whose group wants no further instance: it was made smaller meanwhile."""
    if incident["verb"] == "launch":
        raise PermanentError(
            f"Auto Scaling group {group_of(gw, row)} has all instances that it wants and none is free; raise "
            "its desired capacity and start again"
        )
    launch = {**(row.get("launch") or {}), "unwanted": True}
    gw.ledger.write(incident["node_id"], int(incident["session"]), sets={"launch": launch})
    return launch


def _chooser(gw: Gateways, node: str, token: str) -> Callable[[Sequence[str]], str]:
    def choose(candidates: Sequence[str]) -> str:
        rows = {row["node_id"]: row for row in gw.ledger.nodes_by_id(candidates)}
        mine = [c for c in candidates if (rows.get(c) or {}).get("launch_token") == token]
        for candidate in [*mine, *(c for c in candidates if c not in mine)]:
            free = _free(gw, rows.get(candidate) or {}, token)
            if free is not None:
                try:
                    gw.ledger.note_node(candidate, {"replaces": node, "launch_token": token}, when=free)
                except Conflict:
                    continue
                return candidate
        return ""

    return choose


def _free(gw: Gateways, member: Row, token: str) -> Condition | None:
    """The condition under which this member may be taken; None where it is plain that it may not.

    A node that works is never taken. A claim holds as long as its incident goes on and has chosen no other.
    """
    if member.get("admitted_at") or member.get("job_id") or member.get("lost") or is_gone(member):
        return None
    idle = missing("admitted_at") & missing("job_id")
    before = member.get("launch_token")
    if before is None:
        return idle & missing("replaces")
    if before != token:
        parent = gw.ledger.node(str(member["replaces"])) or {}
        launch = parent.get("launch") or {}
        other = launch.get("instance_id", member["node_id"]) != member["node_id"]
        if parent.get("phase") in ACTIVE and not other and launch.get("token") == before:
            return None
    return idle & equals("launch_token", before)


# --- the node that leaves ----------------------------------------------------------------------------


def prolong(gw: Gateways, row: Row) -> None:
    """While the node is drained: a group that is about to end it must wait on."""
    if group_of(gw, row):
        gw.scaling.prolong(row["node_id"])


def complete(gw: Gateways, incident: Mapping[str, Any], row: Row) -> None:
    """The node is empty: a group that is about to end it may do so at once, for its replacement may need the
    very capacity. The act is recorded before, so that the end is known as the one that was expected."""
    node, session = row["node_id"], int(incident["session"])
    if group_of(gw, row) and gw.scaling.ending(node):
        gw.ledger.act(node, session, gw.ledger.enter(node, session), "terminate", gw.clock.now())
        gw.scaling.complete(node)


def terminate(gw: Gateways, incident: Mapping[str, Any], row: Row) -> None:
    """End the old node; a removed one is wanted no more by its group either."""
    if incident["verb"] == "remove" and group_of(gw, row):
        gw.scaling.remove(row["node_id"])
    else:
        gw.fleet.terminate(row["node_id"])


def give_back(gw: Gateways, row: Row, replacement: str, lost: bool) -> None:
    """End a replacement. lost: another one is to come in its place; else the old node goes back to its group,
    so that the group wants as many as before."""
    if group_of(gw, row) and not lost:
        gw.scaling.give_back(replacement, row["node_id"])
    else:
        gw.fleet.terminate(replacement)
