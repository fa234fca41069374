"""Sweep's part of the warm pools: what is missing is refilled, what is too much or sick leaves, one by one.

Everything here rests on what the ledger says at that moment and is a conditional write first, so a sweep
beside this one, or one that died in the middle, changes nothing.
"""

from lambdas import refilling, spare_checks, spares
from lambdas.boundary import logger
from lambdas.inventory import each
from lambdas.undoing import LONGEST_TASK_SECONDS
from planaria.core import plans, pool
from planaria.core.incident import ACTIVE
from planaria.core.maintenance import under_way
from planaria.core.plans import GONE_STATES
from planaria.core.policy import Mode
from planaria.core.pool import SpareState, View
from planaria.core.refills import Filled, as_seen
from planaria.core.table import Conflict, Row, differs, equals, missing
from planaria.wiring import Gateways


def keep(gw: Gateways, nodes: list[Row]) -> int:
    """Every pool of the cluster once. nodes: every node's row. Returns how much was done."""
    done = each(nodes, "end of spare", lambda row: _end(gw, row))
    targets = {str(row.get("group")): 0 for row in nodes if pool.state_of(row) is not None}
    targets |= {group.name: group.spares for group in gw.cluster.node_groups.values()}
    for name in sorted(targets):
        done += each([{"pk": f"SPARE#{name}"}], "pool", lambda _, name=name: _keep(gw, name, targets[name]))
    return done


def _keep(gw: Gateways, group: str, target: int) -> int:
    """target: 0 for a group that the cluster file has no more."""
    policy, now = gw.cluster.policy, gw.clock.now()
    view = pool.read(gw.ledger, group)
    _note_target(gw, view, target)
    if not target and not view.slots:
        return 0
    if policy.mode is Mode.OBSERVE:
        _say(view, target, now)
        return 0
    done = each(view.of(SpareState.TAKEN), "taken spare", lambda row: _settle(gw, row))
    done += each(view.filling, "refill", lambda slot: refilling.revive(gw, slot))
    done += each(_open_ends(view, now), "launch of", lambda slot: _close_end(gw, slot))
    if under_way(policy.maintenance, now, group):
        return done  # people are at work on these nodes: a check that fails now says nothing
    done += spare_checks.rotate(gw, view)
    done += refilling.begin_missing(gw, view, target)
    return done + _retire_one(gw, view, target)


def _note_target(gw: Gateways, view: View, target: int) -> None:
    """For people, who do not see the deployed cluster file."""
    if view.head.get("target", 0) == target:
        return
    facts = {"group": view.group, "target": target, "listing": pool.LISTING}
    gw.table.write(*pool.pool_key(view.group), sets=facts)


def _say(view: View, target: int, now: float) -> None:
    """What would have been done."""
    short, surplus = view.missing(target, now), len(view.of(SpareState.FREE)) - target
    if short or surplus > 0:
        logger.info(
            "observe: the pool is left as it is",
            extra={"group": view.group, "would_launch": short, "would_retire": max(0, surplus)},
        )


def _settle(gw: Gateways, row: Row) -> bool:
    """A taken spare whose incident is over, or has come by another one, stands by again or leaves."""
    node, by = pool.taken_for(row), row["spare"]["by"]
    parent = gw.ledger.node(node) or {}
    chosen = (parent.get("launch") or {}).get("instance_id")
    if parent.get("phase") in ACTIVE and chosen in (None, row["node_id"]):
        return False
    row = gw.ledger.node(row["node_id"]) or {}
    if pool.taken_for(row) != node or row["spare"]["by"] != by:
        return False
    named = parent.get("replaced_by") == row["node_id"]
    if not named and not pool.unfit(row):
        return spares.put_back(gw, row)
    reason = pool.unfit(row) or f"it was to replace {node} and was not admitted"
    sets = {("spare", "state"): SpareState.LEFT.value, "lost": reason}
    gw.table.write(row["pk"], row["sk"], sets=sets, when=equals(("spare", "by"), by) & missing("admitted_at"))
    return True


def _open_ends(view: View, now: float) -> list[Row]:
    """Refills that gave up with a launch of which nobody knows whether it was done, once none of their Tasks
    can run any more. The next refill of the slot would have looked."""
    closed = [slot for slot in view.slots.values() if slot.get("phase") == Filled.NOT_FILLED]
    late = [slot for slot in closed if now - float(slot["closed_at"]) > LONGEST_TASK_SECONDS]
    launches = [(slot, slot.get("launch") or {}) for slot in late]
    return [slot for slot, launch in launches if launch.get("token") and not launch.get("instance_id")]


def _close_end(gw: Gateways, slot: Row) -> bool:
    for instance in gw.fleet.launched(slot["launch"]["token"]):
        row = gw.ledger.node(instance.node_id) or {}
        if instance.state in GONE_STATES or pool.state_of(row) not in (None, SpareState.FILLING):
            continue
        spare = {"state": SpareState.LEFT.value, "slot": slot["slot"]}
        facts = {**plans.facts(instance), "spare": spare, "lost": "its refill gave up before it was noted"}
        when = missing("admitted_at") & (missing("spare") | equals(("spare", "state"), "FILLING"))
        gw.ledger.note_node(instance.node_id, facts, when=when)
    gw.table.write(slot["pk"], slot["sk"], removes=("launch",), when=as_seen(slot))
    return True


def _retire_one(gw: Gateways, view: View, target: int) -> int:
    """The cluster file wants fewer: one in a sweep, those of the highest slots first."""
    free = [row for row in view.of(SpareState.FREE) if not row.get("opted_out")]
    if len(view.of(SpareState.FREE)) <= target or not free:
        return 0
    last = max(free, key=lambda row: int(row["spare"].get("slot") or 0))
    return each([last], "spare", lambda row: _retire(gw, row, target))


def _retire(gw: Gateways, row: Row, target: int) -> bool:
    reason = f"the pool is to have {target} spares" if target != 1 else "the pool is to have one spare"
    return _end(gw, spares.leave(gw, row, reason))


def _end(gw: Gateways, row: Row) -> bool:
    """Terminate what has left a pool; told of as our own act before it is done."""
    if pool.state_of(row) is not SpareState.LEFT or row.get("gone") or row.get("opted_out"):
        return False
    if gw.cluster.policy.mode is Mode.OBSERVE:
        return False
    acts = {**(row.get("acts") or {}), "terminate": gw.clock.now()}
    if "terminate" not in (row.get("acts") or {}):
        try:
            gw.table.write(row["pk"], row["sk"], sets={"acts": acts}, when=differs("gone", True))
        except Conflict:
            return False
    gw.fleet.terminate(row["node_id"])
    return True
