"""Beginning a job's sync, by whoever learns that there may be something to copy, and making good what a
dead one left.

One sync per job at a time: who asks while one runs makes it look once more before it ends.
"""

from lambdas.boundary import logger
from planaria.core import sync_claims
from planaria.core.errors import Fenced
from planaria.core.incident import ACTIVE, Phase
from planaria.core.policy import Mode
from planaria.core.ports import Execution
from planaria.core.sync_claims import Sync, Synced
from planaria.core.table import Conflict, Row
from planaria.wiring import Gateways

MACHINE = "sync_checkpoints"
CLAIM_GRACE_SECONDS = 20.0
TRIES = 8
RETRY_SECONDS = 300.0
"""After so long a sync that failed as a whole is begun anew, or when its time has come."""


def folder_of(job: Row) -> str:
    """The registered directory of its checkpoints, "" where it has none."""
    return str((job.get("lineage") or {}).get("folder") or "")


def why_not(gw: Gateways, job: Row | None) -> str:
    """Why this job's checkpoints are not copied, in one sentence; "" when they are."""
    if gw.cluster.checkpoints is None:
        return "the cluster file has no section `checkpoints`, so none are copied to S3"
    if gw.cluster.policy.mode is Mode.OBSERVE:
        return "Planaria only observes here (policy.mode), so no checkpoints are copied"
    if job is None:
        return "the job is not in the ledger; `planaria jobs` lists the jobs"
    if not folder_of(job):
        return f"job {job['job_id']} has no registered directory of checkpoints; submit it with one"
    return ""


def want(
    gw: Gateways,
    job: Row | None,
    reason: str,
    claim_id: str,
    wish: int | None = None,
    deadline: float | None = None,
) -> Row | None:
    """See to it that a sync looks at the job's checkpoints from now on; None where none are copied. wish: a
    step that is to come first. deadline: epoch seconds, before which the newest step counts more than the
    others."""
    if job is None or why_not(gw, job):
        return None
    name = str(job["job_id"])
    for _ in range(TRIES):
        now, seen = gw.clock.now(), sync_claims.read(gw.table, name)
        if seen is not None and seen.get("phase") in ACTIVE:
            if sync_claims.ask_again(gw.table, Sync.of(seen), now, wish, deadline):
                return seen
            continue
        try:
            row = sync_claims.claim(
                gw.table, name, seen, claim_id=claim_id, reason=reason, now=now, wish=wish, deadline=deadline
            )
        except Conflict:
            continue
        start(gw, row)
        return row
    raise Conflict(None)


def start(gw: Gateways, row: Row) -> Execution:
    """StartExecution from the claim's row alone; started twice it is one execution."""
    if row.get("phase") != Phase.CLAIMED:
        return Execution.RUNNING  # it has begun meanwhile
    return gw.workflows.start(MACHINE, str(row["execution"]), Sync.of(row).document())[1]


def revive(gw: Gateways, row: Row) -> bool:
    """A sync whose execution never came or has died is followed by the next one, which takes its work over;
    after as many deaths as an incident may have it has failed, and is begun anew after a while."""
    if row.get("phase") not in ACTIVE:
        return False
    arn, now = row.get("execution_arn"), gw.clock.now()
    if arn:
        if gw.workflows.state(arn) is Execution.RUNNING:
            return False
    elif now - float(row["opened_at"]) < CLAIM_GRACE_SECONDS:
        return False
    elif start(gw, row) is Execution.RUNNING:
        return True
    # Read again once the execution's state is known: it may have ended the sync meanwhile.
    row = sync_claims.enter(gw.table, Sync.of(row))
    if row.get("execution_arn") != arn:
        return False
    deaths = int(row.get("deaths", 0)) + 1
    if deaths >= gw.cluster.policy.max_attempts:
        fail(gw, row, f"its execution died {deaths} times, last {row['execution']}")
        return True
    claim = f"sweep/{int(row['number']) + 1}"
    why = str(row.get("reason") or "found by sweep")
    row = sync_claims.claim(gw.table, row["job_id"], row, claim_id=claim, reason=why, now=now, deaths=deaths)
    return start(gw, row) is Execution.RUNNING


def fail(gw: Gateways, row: Row, reason: str) -> None:
    """Close it as failed; sweep begins anew after a while."""
    from lambdas import sync_work, syncing_metrics

    sync, now = Sync.of(row), gw.clock.now()
    sync_work.let_go(gw, row, "the sync has failed")
    if sync_claims.closed(gw.table, sync, Synced.FAILED):
        return
    pause = min(
        RETRY_SECONDS, gw.cluster.checkpoints.sync_seconds if gw.cluster.checkpoints else RETRY_SECONDS
    )
    sync_claims.close(gw.table, sync, Synced.FAILED, now, reason, now + pause)
    syncing_metrics.failed(gw)
    logger.error("a sync has failed", extra={"job_id": sync.job, "number": sync.number, "reason": reason})


def own(gw: Gateways, sync: Sync, execution: str) -> Row:
    """Mark the claim as run by this execution. Raises Fenced where another one does."""
    from planaria.core.table import equals, missing

    mine = missing("execution_arn") | equals("execution_arn", execution)
    sets = {"phase": Phase.RUNNING.value, "execution_arn": execution, "began_at": gw.clock.now()}
    try:
        return sync_claims.write(gw.table, sync, sets, when=mine)
    except Conflict:
        raise Fenced(f"another execution runs sync {sync.number} of job {sync.job}") from None
