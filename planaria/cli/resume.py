"""`planaria resume`: a person starts resume_job, as from the AWS console."""

import os
import time
from typing import Annotated, Any

import typer

from planaria.cli import options, orders, screen
from planaria.cli.target import Target, connect
from planaria.core import console
from planaria.core.errors import InvalidInput, PermanentError, TransientError
from planaria.core.incident import ACTIVE
from planaria.core.table import Row

app = typer.Typer()

Job = Annotated[str, typer.Argument(metavar="JOB", help="A job's id.", show_default=False)]
Restart = Annotated[bool, typer.Option("--restart", help="Also when it runs: its processes are ended first.")]


@app.command("resume")
def resume(
    job: Job,
    reason: orders.Reason = "",
    restart: Restart = False,
    wait: orders.Wait = False,
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """Start a job again from its newest good checkpoint.

    What it did before does not count against it any more: its failures are forgotten, and checkpoints that
    were set aside are used again.

    Example: planaria resume gpt-demo --reason "the data loader is mended" --wait
    """
    target = connect(cluster, folder, aws)
    gateways = target.gateways
    row = gateways.jobs.job(job)
    if row is None:
        known = ", ".join(sorted(str(one["job_id"]) for one in gateways.jobs.jobs()))
        raise InvalidInput(f"no job of this cluster is called {job!r:.60}; it has {known or 'none'}")
    if _runs(row) and not restart:
        raise PermanentError(
            f"job {job} runs its attempt {row['attempt']} as far as the ledger knows; --restart ends its "
            "processes and starts it again from its newest checkpoint"
        )
    document = {"job_id": job, "reason": reason or f"`planaria resume` by {orders.person()}"}
    console.job_order(document)
    name = f"cli-resume-{time.time_ns() // 1_000_000}-{os.urandom(3).hex()}"
    execution, _ = gateways.workflows.start("resume_job", name, document)
    claimed = _claimed(target, job, execution)
    if wait:
        orders.follow(target, str(claimed["resume_name"]), as_json)
    elif as_json:
        screen.emit(
            {
                "incident_id": claimed["resume_name"],
                "job_id": job,
                "attempt": claimed["resume_number"],
                "execution_arn": execution,
            }
        )
    else:
        name = str(claimed["resume_name"])
        screen.say(f"Attempt {claimed['resume_number']} of job {job} is under way; "
                   f"`planaria incident {name}` shows it.", stderr=False)  # fmt: skip


def _runs(row: Row) -> bool:
    """Nothing says that the job stands still."""
    waits = row.get("pending") or row.get("unresolved") or row.get("resume_phase") in ACTIVE
    return row.get("state") == "RUNNING" and not waits


def _claimed(target: Target, job: str, execution: str) -> Row:
    """The job's row, once this execution has claimed its resume. Raises PermanentError with the machine's own
    sentence when it was refused."""
    deadline = time.monotonic() + orders.CLAIM_SECONDS
    while True:
        ended: dict[str, Any] = target.client("stepfunctions").describe_execution(executionArn=execution)
        row = target.gateways.jobs.job(job) or {}
        if row.get("resume_claim") == execution and row.get("resume_arn") == execution:
            return row
        if ended["status"] in ("FAILED", "ABORTED", "TIMED_OUT"):
            raise PermanentError(str(ended.get("cause") or f"the workflow ended {ended['status']}"))
        if ended["status"] == "SUCCEEDED":
            raise PermanentError(
                f"job {job} was not resumed, for one of its nodes is being healed; it goes on by itself when "
                "that is done: `planaria jobs` shows what it waits for"
            )
        if time.monotonic() > deadline:
            raise TransientError(
                f"the workflow has not begun within {screen.span(orders.CLAIM_SECONDS)}; look at {execution} "
                "in the Step Functions console"
            )
        time.sleep(orders.POLL_SECONDS[target.head is not None])
