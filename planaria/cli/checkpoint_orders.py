"""Orders to sync_checkpoints and restore_checkpoint, and following them to their end."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer
from rich.text import Text

from planaria.cli import orders, screen
from planaria.cli.bars import Bars
from planaria.cli.checkpoint_jobs import Known
from planaria.core import restores, sync_claims
from planaria.core.errors import InvalidInput, PermanentError, TransientError
from planaria.core.incident import ACTIVE
from planaria.core.restores import Restored
from planaria.core.sync_claims import Synced
from planaria.core.table import Row

FOLLOW_SECONDS = 24 * 3600.0
FAILED = frozenset({Synced.FAILED.value, Restored.FAILED.value})


def sync(of: Known, steps: Sequence[int], reason: str, wait: bool, as_json: bool) -> None:
    """Start sync_checkpoints, and follow it."""
    if len(steps) > 1:
        raise InvalidInput("sync of a job takes one --step; without it all steps that are not durable yet go")
    document = _document(of.job_id, steps, reason, "sync")
    _run(
        of,
        "sync_checkpoints",
        document,
        lambda: sync_claims.read(of.target.gateways.table, of.job_id) or {},
        wait,
        as_json,
    )


def restore(of: Known, steps: Sequence[int], directory: str, reason: str, wait: bool, as_json: bool) -> None:
    """Start restore_checkpoint, and follow it. directory: as the nodes see it, "" for the job's own."""
    if len(steps) > 1:
        raise InvalidInput("restore of a job takes one --step; without it the newest good one comes back")
    document = _document(of.job_id, steps, reason, "restore")
    if directory:
        if not directory.startswith("/"):
            raise InvalidInput(f"{directory!r:.80} must be a path from / on, as the job's nodes see it")
        document["directory"] = directory
    table = of.target.gateways.table
    _run(of, "restore_checkpoint", document, lambda: restores.read(table, of.job_id), wait, as_json)


def _document(job: str, steps: Sequence[int], reason: str, verb: str) -> dict[str, Any]:
    document: dict[str, Any] = {
        "job_id": job,
        "reason": reason or f"`planaria checkpoints {verb}` by {orders.person()}",
    }
    if steps:
        document["step"] = steps[0]
    return document


def _run(
    of: Known,
    machine: str,
    document: Mapping[str, Any],
    read: Callable[[], Row],
    wait: bool,
    as_json: bool,
) -> None:
    name = f"cli-{machine.partition('_')[0]}-{time.time_ns() // 1_000_000}-{os.urandom(3).hex()}"
    execution, _ = of.target.gateways.workflows.start(machine, name, document)
    if not wait:
        if as_json:
            screen.emit({"job_id": of.job_id, "machine": machine, "execution_arn": execution})
        else:
            screen.say(f"{machine} of job {of.job_id} is under way: {execution}", stderr=False)
        return
    ended = _follow(of, machine, execution, read, as_json)
    row = read()
    if as_json:
        screen.emit(_ended(of.job_id, execution, ended, row))
    good = ended["status"] == "SUCCEEDED" and row.get("phase") not in FAILED
    if good and not as_json:
        screen.console().print(_said(row, of.job_id))
    if not good:
        why = ended.get("cause") or row.get("outcome_reason") or f"the workflow ended {ended['status']}"
        if not as_json:
            raise PermanentError(str(why))
        raise typer.Exit(1)


def _follow(
    of: Known, machine: str, execution: str, read: Callable[[], Row], as_json: bool
) -> Mapping[str, Any]:
    """How the execution ended, as DescribeExecution says. One that has found another at the same work ends at
    once: then that one is followed. Raises TransientError when it takes too long."""
    poll = orders.POLL_SECONDS[of.target.head is not None]
    deadline = time.monotonic() + FOLLOW_SECONDS
    states = of.target.client("stepfunctions")
    shown, done = "", 0
    with Bars(as_json) as bars:
        while True:
            ended: Mapping[str, Any] = states.describe_execution(executionArn=execution)
            row = read()
            joined = ended["status"] == "SUCCEEDED" and row.get("phase") in ACTIVE
            if ended["status"] not in ("RUNNING", "PENDING_REDRIVE") and not joined:
                return ended
            work = row.get("work") or {}
            words = f"step {work['step']}" if "step" in work else f"{machine} begins"
            total, now = int(work.get("bytes") or 0), int(work.get("done_bytes") or 0)
            if words != shown:
                bars.begin(words, total)
                shown, done = words, 0
            bars.total(total)
            if now > done:
                bars.moved(now - done)
                done = now
            if time.monotonic() > deadline:
                raise TransientError(
                    f"{machine} of job {of.job_id} is still under way after {screen.span(FOLLOW_SECONDS)}; "
                    f"{execution} goes on by itself"
                )
            time.sleep(poll)


def _ended(job: str, execution: str, ended: Mapping[str, Any], row: Row) -> dict[str, Any]:
    work = row.get("work") or {}
    return {
        "job_id": job,
        "execution_arn": execution,
        "status": ended["status"],
        "outcome": row.get("phase"),
        "reason": row.get("outcome_reason") or ended.get("cause"),
        "step": row.get("step", work.get("step", _durable(row))),
        "place": row.get("place"),
        "passed_over": list(row.get("passed_over") or ()),
    }


def _durable(row: Row) -> int | None:
    """The newest durable step, of a sync's row."""
    step = (row.get("durable") or {}).get("step")
    return None if step is None else int(step)


def _said(row: Row, job: str) -> Text:
    line = Text("✓ ", style="green")
    reason = row.get("outcome_reason")
    if not reason:
        step = row.get("step", _durable(row))
        what = "is there" if row.get("place") else "is the newest that is durable in S3"
        reason = f"job {job}: done" if step is None else f"job {job}: step {step} {what}"
    line.append(screen.clean(str(reason)), style="default")
    if row.get("place"):
        line.append(f"  {screen.clean(str(row['place']))}", style="dim")
    return line
