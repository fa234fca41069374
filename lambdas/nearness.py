"""Which spare, and which of equal reservations, is nearest to the job of a failed node.

Only an order: who gets a spare is decided by the conditional write that takes it. Nodes of one job that
fail together choose together, each incident for itself from the same rows: so each comes to the same
choice and to another spare of it.
"""

from typing import Any

from lambdas.boundary import Event
from planaria.core import offerings, pool
from planaria.core.cluster import NodeGroup, Offering
from planaria.core.incident import ACTIVE
from planaria.core.offering_rows import OfferingRows
from planaria.core.placement import Candidate, assigned, choose
from planaria.core.plans import is_gone, replaces
from planaria.core.pool import SpareState, View
from planaria.core.table import Row
from planaria.core.topology import Path, Spread, of_row, path_of
from planaria.wiring import Gateways


class _Job:
    """Where the job's other nodes are. lost: the nodes that want another one, this one among them, by
    rank."""

    def __init__(self, gw: Gateways, row: Row, job: Row, taken: dict[str, Row]) -> None:
        """row: the failed node's. taken: spares that were taken already, by the node that they are for."""
        self._ranks: list[str] = [node for _, node in sorted(_ranked(job))]
        known = {member["node_id"]: member for member in gw.ledger.nodes_by_id(sorted(set(self._ranks)))}
        self._at: dict[str, Path] = {}
        self.lost: list[str] = []
        instead = self._replacements(gw, known, taken)
        for node in dict.fromkeys(self._ranks):
            if node != row["node_id"] and not _leaves(known.get(node) or {}, job):
                self._at[node] = of_row(known.get(node))
            elif node in instead and node != row["node_id"]:
                self._at[node] = of_row(instead[node])
            else:
                self.lost.append(node)

    @staticmethod
    def _replacements(gw: Gateways, known: dict[str, Row], taken: dict[str, Row]) -> dict[str, Row]:
        """What stands in already for a node that failed."""
        named = {node: str(row["replacement_id"]) for node, row in known.items() if row.get("replacement_id")}
        rows = {row["node_id"]: row for row in gw.ledger.nodes_by_id(sorted(set(named.values())))}
        return {node: rows[instance] for node, instance in named.items() if instance in rows} | taken

    @property
    def members(self) -> list[Path]:
        return list(self._at.values())

    def neighbours(self, node: str) -> list[Path]:
        """Where the nodes of the ranks before and after it are; the last rank's neighbour is the first."""
        found: list[Path] = []
        for index, other in enumerate(self._ranks):
            if other == node:
                beside = (self._ranks[index - 1], self._ranks[(index + 1) % len(self._ranks)])
                found += [self._at[name] for name in beside if name in self._at]
        return found


def spares(gw: Gateways, incident: Event, row: Row, view: View, free: list[Row]) -> list[Row]:
    """The free spares, best first: of the node's own zone and type, then near to its job, then the one
    that was checked last. row: the failed node's."""
    order = sorted(free, key=lambda spare: pool.best_first(row, spare))
    job = _job(gw, incident) if len({of_row(spare) for spare in free}) > 1 else None
    if job is None:
        return order
    taken = {pool.taken_for(spare): spare for spare in view.of(SpareState.TAKEN)}
    place = _Job(gw, row, job, taken)
    spread = Spread.of(place.members)
    order.sort(key=lambda spare: (*pool.unlike(row, spare), spread.added(of_row(spare))))  # stable
    alike = [spare for spare in order if pool.unlike(row, spare) == pool.unlike(row, order[0])]
    candidates = [Candidate(s["node_id"], of_row(s), rank) for rank, s in enumerate(alike)]
    chosen = choose(candidates, place.members, len(place.lost))
    mine = assigned(chosen, {node: place.neighbours(node) for node in place.lost}).get(row["node_id"])
    return order if mine is None else sorted(order, key=lambda spare: spare["node_id"] != mine.name)


def listed(gw: Gateways, incident: Event, row: Row, group: NodeGroup) -> tuple[Offering, ...]:
    """What may be tried for the node's replacement: the cluster file's order, and among reservations that
    are equal in it the nearest to the node's job first."""
    order = offerings.in_order(group, row)
    if len(offerings.equals(order)) == len(order):
        return order
    job = _job(gw, incident)
    known: dict[str, Any] = OfferingRows(gw.table).state(group.name).get("located") or {}
    places = {name: path_of((entry or {}).get("path")) for name, entry in known.items()}
    if job is None or not any(places.values()):
        return order
    spread = Spread.of(_Job(gw, row, job, {}).members)
    return offerings.nearest_first(order, lambda name: spread.added(places.get(name, ())))


def _leaves(row: Row, job: Row) -> bool:
    """This node of the job is gone, or another one takes its place; one that is rebooted or reset stays."""
    if is_gone(row):
        return True
    active = row.get("node_id") in job.get("pending", {}) and row.get("phase") in ACTIVE
    return active and "action" in row and replaces(row)


def _job(gw: Gateways, incident: Event) -> Row | None:
    """The node's job: the one that its row names, else one that has a place there by its own row, as a job of
    Slurm or EKS does that was found on the node."""
    if incident.get("job_id"):
        return gw.jobs.job(incident["job_id"])
    if gw.cluster.scheduler == "process":
        return None
    mine = [job for job in gw.jobs.jobs() if incident["node_id"] in job.get("nodes", {}).values()]
    return next((job for job in mine if job.get("state") in ("RUNNING", "STOPPED")), None)


def _ranked(job: Row) -> list[tuple[int, str]]:
    return [(int(rank), str(node)) for rank, node in (job.get("nodes") or {}).items()]
