"""Beginning a refill of a warm pool, by sweep or by a person, and making good what a dead one left."""

from lambdas import spares
from lambdas.inventory import each
from planaria.core import pool, refills
from planaria.core.errors import InvalidInput, PermanentError
from planaria.core.incident import Phase
from planaria.core.pool import View
from planaria.core.ports import Execution
from planaria.core.refills import Filled, Refill
from planaria.core.table import Conflict, Row
from planaria.wiring import Gateways

MACHINE = "refill_spares"
CLAIM_GRACE_SECONDS = 20.0
BEGUN_AT_ONCE = 5
"""Refills that one sweep begins in one pool; the others are begun by the next."""

SHORT = "the pool is short of a spare"


def begin_missing(gw: Gateways, view: View, target: int) -> int:
    """Claim and start what the pool lacks. One at a time on a fresh view: each takes a slot."""
    begun = 0
    for _ in range(min(BEGUN_AT_ONCE, view.missing(target, gw.clock.now()))):
        slot = {"pk": pool.pool_key(view.group)[0]}
        begun += each([slot], "refill of", lambda _: _begin_next(gw, view.group, target))
    return begun


def _begin_next(gw: Gateways, group: str, target: int) -> bool:
    now = gw.clock.now()
    view = pool.read(gw.ledger, group)
    if not view.missing(target, now):
        return False
    number = view.vacant(now)
    seen = view.slots.get(number) or {}
    claim_id = f"sweep/{int(seen.get('generation', 0)) + 1}"
    row = refills.claim(gw.table, group, number, seen, claim_id=claim_id, reason=SHORT, now=now)
    return _start(gw, row) is Execution.RUNNING


def claim_for_person(gw: Gateways, group: str, reason: str, execution: str) -> Row:
    """The slot that a person's execution fills. Raises PermanentError where the pool has its spares."""
    target = gw.cluster.group(group).spares
    if not target:
        raise InvalidInput(f"node_group {group} keeps no spares; set `spares` in the cluster file")
    for _ in range(refills.TRIES):
        view, now = pool.read(gw.ledger, group), gw.clock.now()
        mine = [slot for slot in view.slots.values() if slot.get("claim_id") == execution]
        if mine:
            return mine[0]
        free, filling = len(view.of(pool.SpareState.FREE)), len(view.filling)
        if free + filling >= target:
            raise PermanentError(
                f"node group {group} has its {target} spares already ({free} free, {filling} being filled); "
                "to have more raise `spares` in the cluster file"
            )
        number = view.vacant()
        try:
            return refills.claim(
                gw.table,
                group,
                number,
                view.slots.get(number),
                claim_id=execution,
                reason=reason or "asked by a person",
                now=now,
                person=True,
            )
        except Conflict:
            continue
    raise Conflict(None)


def revive(gw: Gateways, slot: Row) -> bool:
    """A refill whose execution never came or has died is followed by the next generation, which takes over
    what was launched; after as many deaths as an incident may have the slot rests for a while."""
    arn, now = slot.get("execution_arn"), gw.clock.now()
    if arn:
        if gw.workflows.state(arn) is Execution.RUNNING:
            return False
    elif now - float(slot["opened_at"]) < CLAIM_GRACE_SECONDS:
        return False
    elif not slot.get("person") and _start(gw, slot) is Execution.RUNNING:
        return True
    # Read again once the execution's state is known: it may have ended the refill meanwhile.
    refill = Refill.of(slot)
    row = refills.enter(gw.table, refill)
    if row.get("execution_arn") != arn:
        return False
    deaths = int(row.get("deaths", 0)) + 1
    if deaths >= gw.cluster.policy.max_attempts:
        reason = f"its execution died {deaths} times, last {row['execution']}"
        give_up(gw, refill, row, reason)
        return True
    row = refills.claim(
        gw.table,
        refill.group,
        refill.slot,
        row,
        claim_id=f"sweep/{refill.generation + 1}",
        reason=str(row.get("reason") or SHORT),
        now=now,
        deaths=deaths,
    )
    return _start(gw, row) is Execution.RUNNING


def give_up(gw: Gateways, refill: Refill, row: Row, reason: str, capacity: bool = False) -> None:
    """Close as not filled; what was launched leaves the pool, for sweep to terminate.

    capacity: none was to be had for hours, which is nobody's failure and is asked for again soon.
    """
    instance = gw.ledger.node(str(row.get("instance_id"))) if row.get("instance_id") else None
    if instance is not None and pool.state_of(instance) is pool.SpareState.FILLING:
        spares.leave(gw, instance, reason)
    failures = 1 if capacity else int(row.get("failures", 0)) + 1
    pause = gw.cluster.policy.cooldown_seconds
    refills.close(gw.table, refill, Filled.NOT_FILLED, gw.clock.now(), reason, failures, pause)


def _start(gw: Gateways, row: Row) -> Execution:
    if row.get("phase") != Phase.CLAIMED:
        return Execution.RUNNING  # its execution has begun meanwhile
    refill = Refill.of(row)
    document = {"node_group": refill.group, "slot": refill.slot, "generation": refill.generation}
    return gw.workflows.start(MACHINE, str(row["execution"]), document)[1]
