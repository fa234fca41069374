"""Opening a restore: one claim on the job's restore row, then one execution named after it.

Used by a resume that finds its checkpoint in S3 alone, by a person's order, and by sweep.
"""

from collections.abc import Mapping
from typing import Any

from lambdas import carrying
from lambdas.inventory import each
from planaria.core import restores
from planaria.core.errors import Fenced, PermanentError
from planaria.core.ports import Execution
from planaria.core.restores import Order, Restored
from planaria.core.runbooks import path_of
from planaria.core.table import Conflict, Row, equals
from planaria.wiring import Gateways

MACHINE = "restore_checkpoint"
CLAIM_GRACE_SECONDS = 20.0
TRIES = 8
"""The row may change between reading and claiming it."""

THERE, TO_BRING, PASSED_OVER = "THERE", "TO BRING", "PASSED OVER"
"""What a Task says of the step: it is whole on the file system, it must be brought, or it does not do."""


def of(event: Mapping[str, Any]) -> tuple[str, int]:
    """Job and number that the states of an execution hand on."""
    return str(event["restore"]["job_id"]), int(event["restore"]["number"])


def ensure(gw: Gateways, order: Order, claim_id: str) -> Row:
    """The job's restore that is under way, whoever asked for it, or one of our own, started."""
    for _ in range(TRIES):
        seen = restores.read(gw.table, order.job_id)
        if restores.active(seen) and seen["claim_id"] != claim_id:
            return seen
        try:
            row = restores.claim(gw.table, seen, order, claim_id, gw.clock.now())
        except Conflict:
            continue
        if restores.active(row):
            start(gw, row)
        return row
    raise Conflict(None)


def claim_for_person(gw: Gateways, order: Order, execution: str) -> Row:
    """A person's own execution does it. Raises Fenced where the same is under way already, PermanentError
    where another one is."""
    for _ in range(TRIES):
        seen = restores.read(gw.table, order.job_id)
        if restores.active(seen) and seen["claim_id"] != execution:
            number, job = seen["number"], order.job_id
            if (seen.get("wanted"), seen.get("directory")) == (order.step, order.directory):
                raise Fenced(f"restore {number} of job {job} is under way and does the same")
            raise PermanentError(f"restore {number} of job {job} is under way; try again when it has ended")
        try:
            return restores.claim(gw.table, seen, order, execution, gw.clock.now())
        except Conflict:
            continue
    raise Conflict(None)


def start(gw: Gateways, row: Mapping[str, Any]) -> Execution:
    """From the row alone; started twice it is one execution. What a person started is running already."""
    if row.get("execution_arn") or (row.get("person") and row.get("attempt") == 1):
        return Execution.RUNNING
    document = {"job_id": row["job_id"], "number": row["number"]}
    return gw.workflows.start(MACHINE, str(row["execution"]), document)[1]


def revive(gw: Gateways, row: Row) -> bool:
    """A restore whose execution never came or has died goes on in another one, a few times; True when this
    call did something about it."""
    arn = row.get("execution_arn")
    if arn:
        if gw.workflows.state(str(arn)) is Execution.RUNNING:
            return False
    elif gw.clock.now() - float(row["opened_at"]) < CLAIM_GRACE_SECONDS:
        return False
    elif not _persons(row) and start(gw, row) is Execution.RUNNING:
        return True
    job, number = str(row["job_id"]), int(row["number"])
    # Read again once the execution's state is known: it may have ended the restore meanwhile.
    fresh = restores.enter(gw.table, job, number)
    if fresh.get("execution_arn") != arn or fresh["attempt"] != row["attempt"]:
        return False
    deaths = int(fresh.get("deaths") or 0) + 1
    if deaths >= gw.cluster.policy.max_attempts:
        reason = f"restore {number} of job {job}: its execution died {deaths} times"
        end(gw, job, number, Restored.FAILED, reason)
        return True
    start(gw, restores.again(gw.table, fresh, deaths))
    return True


def _persons(row: Row) -> bool:
    return bool(row.get("person")) and row.get("attempt") == 1


def keep(gw: Gateways) -> int:
    """For sweep: all restores that are under way."""

    def check(row: Row) -> bool:
        try:
            return restores.active(row) and revive(gw, row)
        except (Conflict, Fenced):
            return False

    return each(gw.table.listing(restores.LISTING), "restore", check)


def end(gw: Gateways, job: str, number: int, outcome: Restored, reason: str) -> Row:
    """Close it, answer whoever waits, and tell a person who ordered it that it failed. Safe to repeat."""
    row = restores.close(gw.table, job, number, outcome, reason, gw.clock.now())
    if outcome is Restored.FAILED and row.get("work"):
        carrying.stop(gw, row, reason)
    for token in sorted(row.get("waiting", {}).values()):
        gw.workflows.answer(str(token), {"result": "DONE", "reason": ""})
    if outcome is Restored.FAILED and row.get("person") and not row.get("mailed"):
        _mail(gw, row, reason)
        gw.table.write(*restores.key(job), sets={"mailed": True}, when=equals("number", number))
    return row


def _mail(gw: Gateways, row: Row, reason: str) -> None:
    job, number = row["job_id"], row["number"]
    gw.notices.publish(
        f"Planaria {gw.cluster.name}: a checkpoint of job {job} was not restored",
        f"Restore {number} of job {job} ended FAILED.\nWhy: {reason}\n"
        f"What to do: {path_of(reason)}\nLook: planaria checkpoints list {job}\n"
        f"Then: planaria checkpoints restore {job}\n",
    )
