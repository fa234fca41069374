"""Sweep's comparison of the ledger with EC2: what it finds goes on Planaria's bus like any other signal."""

from collections.abc import Mapping
from typing import Any

from lambdas.boundary import logger
from planaria.core import wanted
from planaria.core.breaker import KEY
from planaria.core.errors import InvalidInput, PlanariaError
from planaria.core.incident import ACTIVE
from planaria.core.node import DESTRUCTIVE
from planaria.core.plans import GONE_STATES, facts
from planaria.core.ports import Instance
from planaria.core.status_watch import watch
from planaria.core.table import Conflict, Row
from planaria.wiring import Gateways

SOURCE = "planaria.sweep"
STATE_CHANGE = "EC2 Instance State-change Notification"
FINDING = "Planaria Sweep Finding"
NEW_SECONDS = 300.0
MISSING_SWEEPS = 3
FORGET_SECONDS = 86_400.0
HALTED = frozenset({"stopping", "stopped"})
FINDINGS = 200
"""The most status findings of one sweep; the others are found again by the next."""


def compare(gw: Gateways, nodes: list[Row]) -> int:
    """Node rows from EC2, and a finding for every node that EC2 has ended, stopped, forgotten, calls impaired
    or will take away, where nobody told us. Returns the number of findings.

    What EC2 does not answer is left for the next sweep, which has other work to do as well.
    """
    try:
        instances = {instance.node_id: instance for instance in gw.fleet.cluster()}
    except PlanariaError as error:
        logger.error("sweep: EC2 does not list the cluster's instances", extra={"reason": str(error)})
        return 0
    known = {row["node_id"]: row for row in nodes}
    lost = _lost(gw, known, instances)
    if lost:
        gw.bus.put(SOURCE, STATE_CHANGE, lost)
    for node, instance in instances.items():
        if instance.state not in GONE_STATES:
            _note(gw, known.get(node), instance)
    found = _statuses(gw, known, instances)
    each(nodes, "row of", lambda row: _forget(gw, row))
    return len(lost) + found


def _note(gw: Gateways, row: Row | None, instance: Instance) -> None:
    """The node's row, where EC2 says something else than it does."""
    if row is not None and row.get("gone"):
        return  # a terminated instance never lives again; this list is older than what the row knows
    said = facts(instance)
    if row is not None and "spare" in row:
        said.pop("name", None)  # that of a node from the warm pool comes by Join
    if row is None or row.get("state") != instance.state or row.get("times_missing"):
        gw.ledger.note_node(instance.node_id, {**said, "times_missing": 0})
    elif any(
        (row.get(name) or said[name]) and row.get(name) != said[name] for name in ("opted_out", "reservation")
    ):
        # A person may set the tag, and move an instance into a reservation, at any time.
        gw.ledger.note_node(instance.node_id, {name: said[name] for name in ("opted_out", "reservation")})


# --- nodes that ended ------------------------------------------------------------------------------


def _lost(gw: Gateways, known: Mapping[str, Row], instances: Mapping[str, Instance]) -> list[dict[str, Any]]:
    """The state changes that no event told us of."""
    changes: list[dict[str, Any]] = []
    rows, fleet = list(known.values()), dict[str, Any]()
    for node, row in known.items():
        instance = instances.get(node)
        if instance is None:
            if _missing(gw, row):
                changes.append({"instance-id": node, "state": "terminated"})
        elif _ended(row, instance):
            fleet = fleet or gw.table.get(*KEY) or {}
            changes.append(
                {
                    "instance-id": node,
                    "state": "terminated" if instance.state in GONE_STATES else instance.state,
                    "state_reason": instance.state_reason,
                    "below_size": _below_size(gw, rows, row, fleet),
                }
            )
    return changes


def _ended(row: Row, instance: Instance) -> bool:
    if row.get("gone"):
        return False
    halted = instance.state in HALTED and row.get("state") not in HALTED
    return halted or instance.state in GONE_STATES


def _below_size(gw: Gateways, rows: list[Row], row: Row, fleet: Row) -> bool:
    """A node of no group of the cluster file leaves no place that could be filled."""
    try:
        declared = gw.cluster.group(str(row.get("group"))).size
    except InvalidInput:
        return False
    return wanted.below_size(rows, row["group"], declared, fleet, row["node_id"])


def _missing(gw: Gateways, row: Row) -> bool:
    """EC2 does not list it at all: for a new instance that means "not yet", for any other it must be so
    in several sweeps, since an answer that lacks a node is no proof that the node is gone."""
    if row.get("gone") or gw.clock.now() - float(row.get("launched_at") or 0) < NEW_SECONDS:
        return False
    times = int(row.get("times_missing", 0)) + 1
    gw.table.write(row["pk"], row["sk"], sets={"times_missing": times})
    return times >= MISSING_SWEEPS


# --- nodes that run --------------------------------------------------------------------------------


def _statuses(gw: Gateways, known: Mapping[str, Row], instances: Mapping[str, Instance]) -> int:
    """EC2's checks and scheduled events; what is told is remembered only once the bus has taken it."""
    running = [
        node for node, row in known.items() if _state(instances, node) == "running" and not row.get("gone")
    ]
    try:
        statuses = gw.fleet.statuses(running)
    except PlanariaError as error:
        logger.warning("sweep: EC2 does not say how its checks stand", extra={"reason": str(error)})
        return 0
    now, findings, changed = gw.clock.now(), list[dict[str, Any]](), list[Row]()
    for status in statuses:
        row = known[status.node_id]
        before = row.get("watched") or {"events": {}, "checks": {}}
        told, after = watch(status, before, now, _news_at(gw, row))
        if len(findings) + len(told) > FINDINGS:
            break
        findings += told
        if after != before:
            changed.append({**row, "watched": after})
    if findings:
        gw.bus.put(SOURCE, FINDING, findings)
    each(changed, "checks of", lambda row: _remember(gw, row))
    return len(findings)


def _remember(gw: Gateways, row: Row) -> bool:
    gw.table.write(row["pk"], row["sk"], sets={"watched": row["watched"]})
    return True


def _news_at(gw: Gateways, row: Row) -> float | None:
    """From when on our last act on the node, or its last session, has not cured what was told before."""
    acts = row.get("acts") or {}
    moments = [float(at) for name, at in acts.items() if name in DESTRUCTIVE]
    moments += [float(row["ended_at"])] if row.get("ended_at") else []
    return max(moments) + gw.cluster.policy.boot_timeout_seconds if moments else None


def _state(instances: Mapping[str, Instance], node: str) -> str:
    return instances[node].state if node in instances else ""


def _forget(gw: Gateways, row: Row) -> bool:
    """Nodes that ended long ago leave the list that every sweep reads; their rows stay."""
    ended = float(row.get("ended_at") or row.get("launched_at") or 0)
    if not row.get("gone") or row.get("phase") in ACTIVE or gw.clock.now() - ended < FORGET_SECONDS:
        return False
    gw.table.write(row["pk"], row["sk"], removes=("listing",))
    return True


def each(rows: list[Row], what: str, act: Any) -> int:
    """One bad row must not keep the others from being looked at; the next sweep tries it again."""
    done = 0
    for row in rows:
        try:
            done += bool(act(row))
        except (PlanariaError, Conflict) as error:
            logger.warning(f"sweep: {what} {row['pk']} left for the next time", extra={"reason": str(error)})
    return done
