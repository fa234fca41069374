"""Rebalance recommendations: a node is not moved where nothing else is to be had, and the job of one that
stays saves a checkpoint now and goes on."""

import dataclasses

from lambdas import saving
from planaria.core import offerings, rebalance
from planaria.core.errors import PlanariaError
from planaria.core.fault import Action
from planaria.core.judge import Judgement, Outcome
from planaria.core.offering_rows import OfferingRows
from planaria.core.signal import Signal
from planaria.core.table import Row
from planaria.core.wording import span
from planaria.wiring import Gateways


def weighed(gw: Gateways, row: Row, judgement: Judgement) -> Judgement:
    """The judgement, or that the node stays: a move is worth nothing without another offering that may have
    capacity, and would stop the job for as long as there is none."""
    moves = judgement.rule == rebalance.MOVE and (judgement.outcome is Outcome.OPENED or judgement.raises)
    why = _nowhere_else(gw, row) if moves else ""
    if not why:
        return judgement
    return dataclasses.replace(
        judgement,
        outcome=Outcome.OBSERVED if judgement.outcome is Outcome.OPENED else judgement.outcome,
        action=Action.MONITOR,
        reason=f"EC2 is likely to take the node soon; it is not moved: {why}",
        rule=rebalance.LIMIT,
        raises=False,
    )


def _nowhere_else(gw: Gateways, row: Row) -> str:
    group = gw.cluster.node_groups.get(str(row.get("group")))
    if group is None:
        return "its node group is not in the cluster file"
    if group.auto_scaling_group:
        return ""  # which has its own ways to get a node
    own, now = offerings.of_node(group, row), gw.clock.now()
    others = [offering for offering in group.offerings if offering.key not in own]
    if not others:
        return f"node group {group.name} lists no other offering"
    state = OfferingRows(gw.table).state(group.name)
    if all(offerings.cooling(state, offering, row["node_id"], now) for offering in others):
        return f"no other offering of node group {group.name} had capacity lately"
    return ""


def heed(gw: Gateways, row: Row, signal: Signal, judgement: Judgement) -> Judgement:
    """The judgement with what was done in its reason; any other fault's as it is.

    The checkpoint is not waited for: nothing is stopped. One for each job within the cool-down, whichever of
    its nodes the advice is about. A hint that cannot be heeded now is no message to be judged again.
    """
    if judgement.fault is None or not rebalance.saves(judgement.fault, judgement.rule, gw.cluster.policy):
        return judgement
    return dataclasses.replace(judgement, reason=f"{judgement.reason}; {_save(gw, row, signal)}")


def _save(gw: Gateways, row: Row, signal: Signal) -> str:
    policy, now = gw.cluster.policy, gw.clock.now()
    job = gw.jobs.job(row["job_id"]) if row.get("job_id") else None
    if job is None or job.get("state") != "RUNNING":
        return "no job runs on it that could save a checkpoint"
    name, before = job["job_id"], job.get("advised") or {}
    since = now - float(before.get("at") or 0.0)
    if since < policy.cooldown_seconds and before.get("by") != signal.dedupe_key:
        return f"job {name} was asked for a checkpoint {span(since)} before"
    deadline = now + policy.drain_deadline_seconds
    parameters = {"job_id": str(name), "deadline": f"{deadline:.3f}"}
    try:
        gw.commands.submit(saving.DOCUMENT, [row["node_id"]], parameters)
    except PlanariaError as error:
        return f"job {name} could not be asked for a checkpoint: {error}"
    gw.jobs.write(name, {"advised": {"at": now, "by": signal.dedupe_key, "node_id": row["node_id"]}})
    return f"job {name} saves a checkpoint now"
