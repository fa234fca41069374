"""State "Go on later" of sync_checkpoints: a new execution goes on, before this one's history is full.

The claim is handed to it in one conditional write, with the work that is under way; nothing has failed.
"""

from lambdas import syncing
from lambdas.boundary import Event, Fields, task
from planaria.core import sync_claims
from planaria.core.sync_claims import Sync
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    sync = Sync.of(event["sync"])
    following, claim_id = Sync(sync.job, sync.number + 1), f"continued/{sync.number}"
    row = sync_claims.read(gw.table, sync.job) or {}
    if row.get("number") != following.number or row.get("claim_id") != claim_id:
        row = sync_claims.enter(gw.table, sync)
        deaths, reason = int(row.get("deaths", 0)), str(row.get("reason") or "")
        row = sync_claims.claim(
            gw.table, sync.job, row, claim_id=claim_id, reason=reason, now=gw.clock.now(), deaths=deaths
        )
    syncing.start(gw, row)
    return {"execution": row["execution"]}
