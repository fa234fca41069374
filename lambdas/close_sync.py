"""State "Close" and state "Escalate" of sync_checkpoints: nothing is left to copy, or the sync has failed."""

from lambdas import holding, syncing, syncing_metrics
from lambdas.boundary import Event, Fields, task
from lambdas.ending import reason_of
from planaria.core import sync_claims, sync_plan
from planaria.core.checkpoint_ledger import CheckpointLedger
from planaria.core.sync_claims import Sync, Synced
from planaria.core.table import Row
from planaria.wiring import Gateways

MAIL = "unsafe"
MAIL_AFTER = 3
"""Failures in a row of one step after which a person is told."""


@task
def handler(event: Event, gw: Gateways) -> Fields:
    sync, now = Sync.of(event["sync"]), gw.clock.now()
    done = event["outcome"] == Synced.DONE
    if sync_claims.closed(gw.table, sync, Synced.DONE if done else Synced.FAILED):
        return {"next": "over"}
    row = sync_claims.enter(gw.table, sync)
    if not done:
        syncing.fail(gw, row, reason_of(event))
        return {"next": "over"}
    rows = CheckpointLedger(gw.table).steps(sync.job)
    failing = [step for step in sync_plan.unsafe(rows) if int(step.get("failures", 0)) >= MAIL_AFTER]
    if failing:
        _tell(gw, sync.job, failing)
    if not sync_claims.close(
        gw.table, sync, Synced.DONE, now, str(event.get("reason") or ""), sync_plan.next_try(rows)
    ):
        return {"next": "again"}
    if failing:
        syncing_metrics.failed(gw)
    return {"next": "over"}


def _tell(gw: Gateways, job: str, failing: list[Row]) -> None:
    worst = failing[0]
    holding.tell_hourly(
        gw,
        MAIL,
        f"Planaria {gw.cluster.name}: checkpoints of job {job} do not get to S3",
        f"Step {worst['step']} of job {job} failed to become durable {worst['failures']} times"
        f"{f', and {len(failing) - 1} other steps as well' if len(failing) > 1 else ''}.\n"
        f"Why: {worst.get('why', '')}\n"
        "It is whole on the file system and is tried again. No more mail about it within the hour.\n"
        f"Look: planaria checkpoints list {job}\n"
        "Runbook: docs/runbooks/checkpoint-sync.md\n",
    )
