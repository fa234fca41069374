"""State "Begin" of sync_checkpoints: take over the claim of triage or sweep, or claim one for a person."""

from collections.abc import Mapping

from lambdas import syncing
from lambdas.boundary import Event, Fields, task
from planaria.core import console, sync_claims
from planaria.core.errors import Fenced, InvalidInput
from planaria.core.incident import ACTIVE
from planaria.core.sync_claims import Sync
from planaria.core.table import Conflict, Row
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    document, execution = event["document"], event["execution"]
    if isinstance(document, Mapping) and "number" in document:
        sync = Sync(*console.sync_document(document))
        sync_claims.enter(gw.table, sync)
    else:
        sync = Sync.of(_claim(gw, document, execution))
    syncing.own(gw, sync, execution)
    return {"sync": sync.document()}


def _claim(gw: Gateways, document: object, execution: str) -> Row:
    """A person's order. While another sync runs that one does it."""
    order = console.sync_order(document)
    job = gw.jobs.job(order.job_id)
    why = syncing.why_not(gw, job)
    if why:
        raise InvalidInput(f"job_id {order.job_id!r:.60}: {why}")
    now, reason = gw.clock.now(), order.reason or "asked by a person"
    for _ in range(syncing.TRIES):
        seen = sync_claims.read(gw.table, order.job_id)
        if seen is not None and seen.get("claim_id") == execution:
            return seen
        if seen is not None and seen.get("phase") in ACTIVE:
            if sync_claims.ask_again(gw.table, Sync.of(seen), now, order.step, order.deadline):
                raise Fenced(
                    f"sync {seen['number']} of job {order.job_id} is under way, and looks once more for it"
                )
            continue
        try:
            return sync_claims.claim(
                gw.table,
                order.job_id,
                seen,
                claim_id=execution,
                reason=reason,
                now=now,
                wish=order.step,
                deadline=order.deadline,
            )
        except Conflict:
            continue
    raise Conflict(None)
