"""State "Close" and state "Escalate" of refill_spares: the spare stands by, or the slot rests."""

from typing import Any

from lambdas import quarantining, refilling, spares
from lambdas.boundary import Event, Fields, task
from lambdas.ending import reason_of
from planaria.core import pool, refills
from planaria.core.errors import PermanentError
from planaria.core.pool import SpareState
from planaria.core.refills import Filled, Refill
from planaria.core.table import Conflict, Row, equals, exists, missing
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    refill = Refill.of(event["refill"])
    filled = event["outcome"] == Filled.FILLED
    if refills.closed(gw.table, refill, Filled.FILLED if filled else Filled.NOT_FILLED):
        return {"outcome": event["outcome"]}
    row = refills.enter(gw.table, refill)
    if filled:
        _stand_by(gw, str((row.get("launch") or {}).get("instance_id")))
        refills.close(gw.table, refill, Filled.FILLED, gw.clock.now())
    else:
        refilling.give_up(gw, refill, row, reason_of(event), event["outcome"] == "NO_CAPACITY")
    return {"outcome": event["outcome"]}


def _stand_by(gw: Gateways, instance: str) -> None:
    """FILLING -> FREE, if its own check at boot passed."""
    row = gw.ledger.node(instance) or {}
    if pool.state_of(row) in (SpareState.FREE, SpareState.TAKEN):
        return  # done by an earlier try of this call
    why = pool.unfit(row) or ("" if "ready_at" in row else "it has not reported")
    if (row.get("check") or {}).get("passed") is False:
        spares.quarantine(gw, row, why)
    why = why or quarantining.refusal(gw, row)
    if why or pool.state_of(row) is not SpareState.FILLING:
        raise PermanentError(f"{instance} cannot stand by: {why or 'it has left the pool'}")
    sets: dict[Any, Any] = {
        ("spare", "state"): SpareState.FREE.value,
        ("spare", "checked_at"): gw.clock.now(),
    }
    filling = equals(("spare", "state"), SpareState.FILLING.value) & missing("lost") & exists("ready_at")
    try:
        gw.table.write(row["pk"], row["sk"], sets=sets, removes=("waiting",), when=filling)
    except Conflict as conflict:
        _explain(conflict.row or {}, instance)


def _explain(row: Row, instance: str) -> None:
    if pool.state_of(row) not in (SpareState.FREE, SpareState.TAKEN):
        raise PermanentError(f"{instance} cannot stand by: {pool.unfit(row) or 'it has left the pool'}")
