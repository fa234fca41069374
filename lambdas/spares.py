"""Spares as incidents and triage meet them: taking one, giving it back, and what a fault on one means.

The warm pool itself is kept by sweep (lambdas/spare_pool.py).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lambdas import nearness, quarantining
from planaria.core import pool, verification
from planaria.core.cluster import NodeGroup
from planaria.core.incident import ACTIVE
from planaria.core.judge import Judgement, Outcome
from planaria.core.policy import Unused
from planaria.core.pool import SpareState, View
from planaria.core.refills import Filled, as_seen
from planaria.core.table import Condition, Conflict, Path, Row, differs, equals, missing
from planaria.wiring import Gateways

_STATE = ("spare", "state")
_BY = ("spare", "by")

TRIES = 8
LEFT = "the node is a spare without work: it leaves the pool, and another is launched for it"

# What a node has from the place that it was to take, and must not keep without it.
_OF_THE_PLACE: tuple[Path, ...] = ("name", "replaces", "lineage", "replacements", "job_id", "waiting")


# --- a failed node takes one -------------------------------------------------------------------------


def take(gw: Gateways, group: NodeGroup, incident: Mapping[str, Any], row: Row) -> str | None:
    """The instance id of a spare that is this incident's from now on; None when there is none to be had.

    row: the failed node's. Asked again, also by a session that supersedes the incident's, it is the same
    spare, as long as that one can be used.
    """
    if not group.spares:
        return None
    view, now = pool.read(gw.ledger, group.name), gw.clock.now()
    node, name = str(incident["node_id"]), str(incident["incident_id"])
    mine = [spare for spare in view.of(SpareState.TAKEN) if pool.taken_for(spare) == node]
    free = [spare for spare in view.of(SpareState.FREE) if not pool.not_now(spare, gw.cluster.policy, now)]
    order = nearness.spares(gw, incident, row, view, free)
    for spare in [spare for spare in mine if not pool.unfit(spare)] + order:
        if _taken(gw, spare, node, name, now):
            return str(spare["node_id"])
    return None


def _taken(gw: Gateways, spare: Row, node: str, name: str, now: float) -> bool:
    """One conditional write; False when somebody else was faster or the spare is not what it was."""
    sets: dict[Any, Any] = {_STATE: SpareState.TAKEN.value, _BY: name}
    if pool.state_of(spare) is SpareState.FREE:
        sets[("spare", "taken_at")] = now
    well = missing("lost") & missing("quarantined") & missing("admitted_at") & differs("gone", True)
    well = well & missing(("acts", "terminate"))
    for phase in ACTIVE:
        well = well & differs("phase", phase)
    try:
        gw.table.write(spare["pk"], spare["sk"], sets=sets, when=_as_seen(spare) & well)
    except Conflict as conflict:
        # The SDK may have repeated a write that had been done.
        found = conflict.row or {}
        return pool.taken_for(found) == node and not pool.unfit(found)
    return True


def _as_seen(spare: Row) -> Condition:
    seen = spare["spare"]
    taken = equals(_BY, seen["by"]) if "by" in seen else missing(_BY)
    return equals(_STATE, seen["state"]) & taken


# --- what nobody needs comes back --------------------------------------------------------------------


def keep_as_spare(gw: Gateways, instance: str, reason: str, node: str) -> bool:
    """Is this unused replacement of `node` left to the pool? Else the caller terminates it.

    A spare that was taken goes back into its pool; any other replacement comes into it where the policy says
    so and the pool is short. Never one that is lost, unfit or has a scheduler name by then. True as well for
    one that is the pool's or another incident's already: whoever asks again must not touch it.
    """
    row = gw.ledger.node(instance)
    if row is None or row.get("admitted_at"):
        return False
    state = pool.state_of(row)
    if state is SpareState.FREE or pool.taken_for(row) not in ("", node):
        return True
    named = (gw.ledger.node(node) or {}).get("replaced_by") == instance
    if state in (SpareState.LEFT, SpareState.FILLING) or named or pool.unfit(row):
        return False
    if state is SpareState.TAKEN:
        return put_back(gw, row)
    return _adopt(gw, row, reason)


def put_back(gw: Gateways, row: Row) -> bool:
    """A TAKEN spare stands by again; its slot has waited for it."""
    sets: dict[Any, Any] = {_STATE: SpareState.FREE.value, "health": "Unschedulable"}
    removes = (*_OF_THE_PLACE, _BY, ("spare", "taken_at"))
    when = _as_seen(row) & missing("lost") & missing("admitted_at")
    try:
        gw.table.write(row["pk"], row["sk"], sets=sets, removes=removes, when=when)
    except Conflict as conflict:
        return pool.state_of(conflict.row or {}) is SpareState.FREE
    return True


def _adopt(gw: Gateways, row: Row, reason: str) -> bool:
    """The slot first: a slot whose node is no spare is vacant, a spare without a slot would be forgotten."""
    group = gw.cluster.node_groups.get(str(row.get("group")))
    if group is None or gw.cluster.policy.unused_replacement is not Unused.SPARE:
        return False
    for _ in range(TRIES):
        view = pool.read(gw.ledger, group.name)
        if len(view.of(SpareState.FREE)) >= group.spares:
            return False
        try:
            number = _into_slot(gw, view, row, reason)
        except Conflict:
            continue
        spare = {"state": SpareState.FREE.value, "slot": number, "checked_at": row.get("ready_at", 0.0)}
        sets: dict[Any, Any] = {"spare": spare, "health": "Unschedulable"}
        when = missing("spare") & missing("lost") & missing("admitted_at")
        try:
            gw.table.write(row["pk"], row["sk"], sets=sets, removes=_OF_THE_PLACE, when=when)
        except Conflict as conflict:
            return pool.state_of(conflict.row or {}) is SpareState.FREE
        return True
    raise Conflict(None)


def _into_slot(gw: Gateways, view: View, row: Row, reason: str) -> int:
    number = view.vacant()
    seen = view.slots.get(number, {})
    sets: dict[Any, Any] = {
        "group": view.group,
        "slot": number,
        "generation": int(seen.get("generation", 0)) + 1,
        "phase": Filled.FILLED.value,
        "instance_id": row["node_id"],
        "reason": reason,
        "closed_at": gw.clock.now(),
    }
    removes: tuple[Path, ...] = ("failures", "retry_at", "claim_id")
    gw.table.write(*pool.slot_key(view.group, number), sets=sets, removes=removes, when=as_seen(seen))
    return number


# --- a fault on a spare ------------------------------------------------------------------------------


def judged(gw: Gateways, row: Row, judgement: Judgement) -> Judgement | None:
    """What becomes of a fault that would open an incident, None where its node is no spare.

    A spare has no place, no job and no part in the size of the group: it leaves the pool for it, and nothing
    is isolated, resumed or asked of the breaker. One that an incident has taken is that incident's until it
    is admitted, which learns of it by `lost`. Safe to repeat.
    """
    if pool.state_of(row) is None:
        return None
    taken, fault = pool.state_of(row) is SpareState.TAKEN, judgement.fault
    row = leave(gw, row, judgement.reason)
    if fault is not None and verification.proof_of(fault.kind, fault.code).hardware:
        quarantine(gw, row, judgement.reason)
    if row.get("waiting"):
        answer = {"result": "LOST", "reason": row["lost"], "node_id": row["node_id"]}
        gw.workflows.answer(row["waiting"]["token"], answer)
    what = "the incident that took this spare takes another" if taken else LEFT
    outcome = Outcome.JOINED if taken else Outcome.OBSERVED
    return dataclasses.replace(judgement, outcome=outcome, reason=f"{judgement.reason}; {what}")


def leave(gw: Gateways, row: Row, reason: str) -> Row:
    """Out of the pool, once: FILLING and FREE become LEFT, a TAKEN one is lost to its incident. The row after
    it. Raises Conflict when it was taken, given back or admitted meanwhile."""
    if pool.state_of(row) is SpareState.LEFT or row.get("lost"):
        return row
    sets: dict[Any, Any] = {"lost": reason}
    if pool.state_of(row) is not SpareState.TAKEN:
        sets[_STATE] = SpareState.LEFT.value
    return gw.table.write(row["pk"], row["sk"], sets=sets, when=_as_seen(row) & missing("admitted_at"))


def quarantine(gw: Gateways, row: Row, reason: str) -> None:
    """Its hardware is to blame. No incident says so, but a spare's own name."""
    quarantining.quarantine(gw, row, reason, f"{row['node_id']}-spare")
