"""Drive an attempt from whatever state its job is in to RUNNING.

A requeued job waits for cred_expire (120 s) before Slurm starts it. `scontrol release` does not lift that,
StartTime=now does; but a job that is let start within two whole seconds of its requeue is taken for the old
one by its nodes, which refuse it ("Job credential revoked", FAILED 1:0), or leaks its GRES. Slurm counts from
SubmitTime, which a requeue sets once nothing of the job is left anywhere.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from planaria.core.errors import PermanentError
from planaria.slurm import handover, holding, hostlist, jobs, nodes, records
from planaria.slurm.jobs import ENDED, Job
from planaria.slurm.programs import Slurm
from planaria.slurm.remembering import number, remember
from planaria.slurm.stopping import end_now, set_lists, stopped_by_us

LONGEST_SECONDS = 12.0
"""One command drives so long; asked again it goes on."""

LOOK_SECONDS = 0.2
SETTLE_SECONDS = 2
"""Whole seconds between a requeue and the next start."""

CLOCK_OFFSET_VARIABLE = "PLANARIA_CLOCK_OFFSET_SECONDS"
CLOCK_OFFSET_SECONDS = 0.5
"""How far the clocks of head node and nodes may be apart. With chrony on EC2 it is a millisecond."""

LAUNCHES = 3
EARLY_SECONDS = 2
RELEASE_SECONDS = 15
"""FAILED 1:0 so soon after its start and after our release is taken for a refused launch, three times."""

LOOKED_AT_SECONDS = 1.2
HOLD_SECONDS = 600.0

BY_ITSELF = {
    "COMPLETED": "is completed",
    "CANCELLED": "was cancelled by a person",
    "TIMEOUT": "has used up its time limit",
    "DEADLINE": "has missed its deadline",
}
"""How a job ended of which nothing is owed."""


@dataclass(slots=True)
class _Seen:
    """What one command has seen and done. waiting_at: when the job was first seen with nothing left of it."""

    waiting_at: float = 0.0
    prepared: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """nodes: in the order of their ranks. resume_step: -1 where no checkpoint was ever written."""

    number: int
    nodes: tuple[str, ...]
    resume_step: int


def drive(slurm: Slurm, asked: str, attempt: Attempt) -> str:
    """RUNNING | PENDING | PENDING: <reason>. Raises PermanentError when the job's folder cannot be used."""
    until = slurm.now() + LONGEST_SECONDS
    seen = _Seen()
    while True:
        job = jobs.one(slurm, asked)
        if job is None:
            return f"PENDING: Slurm does not know job {asked} any more"
        word = _step(slurm, job, attempt, seen)
        if word:
            return word
        if slurm.now() >= until:
            why = job.head.reason if job.state == "PENDING" else "its old processes are ending"
            return f"PENDING: {why}" if why else "PENDING"
        slurm.sleep(LOOK_SECONDS)


def over(job: Job) -> str:
    """How the job came to an end of its own, "" while it did not."""
    own = job.state in BY_ITSELF and not stopped_by_us(job)
    return f"{job.id} {BY_ITSELF[job.state]}" if own else ""


def runs_on(slurm: Slurm, job: Job, restarts: int) -> bool:
    """Somebody else (a person, or Slurm) has started it since it had so many restarts, and nothing keeps work
    off its nodes: what it computes there must not be thrown away."""
    if not job.running or job.head.restarts <= restarts:
        return False
    found = nodes.read(slurm, job.nodes)
    return all(name in found and found[name].words.clear and not found[name].kept_out for name in job.nodes)


def adopt(slurm: Slurm, job: Job, attempt: Attempt) -> str:
    """The start that somebody else gave the job counts as this attempt, on the nodes that it has."""
    fields = {"attempt": str(attempt.number), "nodes": ",".join(job.nodes), "restart": str(job.head.restarts)}
    remember(slurm, job, {**fields, "released": str(job.head.start), "signalled": None, "steps": None})
    holding.let_go(slurm, job)
    return "RUNNING"


def refused_launch(job: Job) -> bool:
    """It failed by our own doing: Slurm had not forgotten its last start when we let it start again."""
    head, released = job.head, number(job, "released")
    if job.state != "FAILED" or head.exit_code != "1:0" or not released:
        return False
    soon = head.end - head.start <= EARLY_SECONDS and released - 1 <= head.start <= released + RELEASE_SECONDS
    return soon and "signalled" not in job.mark


def _step(slurm: Slurm, job: Job, attempt: Attempt, seen: _Seen) -> str:
    """One look and at most one deed; a word once nothing is left to do."""
    released = number(job, "released")
    if released and "signalled" in job.mark:
        return "RUNNING"  # it was started, and stopped since: the same attempt is not started twice
    if job.completing:
        return ""
    if job.state in ENDED:
        never = not released or (job.state == "CANCELLED" and not job.nodes)
        if never and (why := over(job)):
            return f"REFUSED: {why}"
        if released and not (refused_launch(job) and number(job, "launches") < LAUNCHES):
            return "RUNNING"  # it was started and has come to an end
        slurm.ask("scontrol", "requeuehold", job.target)
        seen.waiting_at, seen.prepared = 0.0, False
        return ""
    if job.state == "PENDING":
        return _pending(slurm, job, attempt, seen) if job.startable else ""
    if not released:
        if runs_on(slurm, job, number(job, "from")):
            return adopt(slurm, job, attempt)
        end_now(slurm, job)
        return ""
    if slurm.now() < job.head.start + LOOKED_AT_SECONDS:
        return ""  # a refused launch ends the job in the second of its start
    holding.let_go(slurm, job)
    return "RUNNING"


def _pending(slurm: Slurm, job: Job, attempt: Attempt, seen: _Seen) -> str:
    released = number(job, "released")
    again = job.head.held or job.head.submit > released
    if released and not again:
        return ""  # it waits for the scheduler's next look
    seen.waiting_at = seen.waiting_at or slurm.now()
    if not seen.prepared:
        _prepare(slurm, job, attempt)
        seen.prepared = True
    # SubmitTime has whole seconds: cut by up to one. Who saw the job come back knows better.
    requeued_at = min(job.head.submit + 1.0, seen.waiting_at)
    if job.head.restarts and slurm.now() < requeued_at + SETTLE_SECONDS + _clock_offset():
        return ""
    launches = str(number(job, "launches") + 1)
    fields = {
        "restart": str(job.head.restarts),
        "launches": launches,
        "released": str(math.ceil(slurm.now())),
    }
    _tell(job, attempt)
    remember(slurm, job, {**fields, "signalled": None, "steps": None})
    if job.head.held:
        slurm.ask("scontrol", "release", job.target)
    for record in job.records:
        slurm.ask("scontrol", "update", f"JobId={record.part}", "StartTime=now")
    return ""


def _prepare(slurm: Slurm, job: Job, attempt: Attempt) -> None:
    """Bound to its nodes before it may start."""
    holding.keep(slurm, job, attempt.nodes, HOLD_SECONDS)
    own_excluded = job.mark.get("excluded", "").split("|")
    before = [name for name in job.mark.get("before", "").split(",") if name]
    for at, (record, names) in enumerate(zip(job.records, _shares(job, attempt.nodes), strict=True)):
        own = records.listed(own_excluded[at] if at < len(own_excluded) else "")
        others = list(nodes.every(slurm)) if record.leads else [*own, *before]
        out = [name for name in dict.fromkeys(others) if name not in names]
        set_lists(slurm, record, ",".join(names), hostlist.compress(out))


def _shares(job: Job, names: Sequence[str]) -> list[tuple[str, ...]]:
    """The nodes of each component, in their order; a plain job has them all."""
    if len(job.records) == 1:
        return [tuple(names)]
    shares, at = [], 0
    for record in job.records:
        shares.append(tuple(names[at : at + record.node_count]))
        at += record.node_count
    return shares


def _tell(job: Job, attempt: Attempt) -> None:
    folder = job.told.get("folder", "")
    if not folder:
        return
    told = {
        "version": 1,
        "job": job.id,
        "slurm_job": job.head.raw,
        "attempt": attempt.number,
        "resume_step": attempt.resume_step,
        "nodes": list(attempt.nodes),
        "ranks_per_node": job.ranks_per_node,
        "restart": job.head.restarts,
    }
    handover.hand_over(folder, job.head.user, attempt.nodes, job.ranks_per_node, told)


def _clock_offset() -> float:
    given = os.environ.get(CLOCK_OFFSET_VARIABLE, "")
    try:
        return max(0.0, float(given)) if given else CLOCK_OFFSET_SECONDS
    except ValueError:
        raise PermanentError(f"{CLOCK_OFFSET_VARIABLE} must be a number of seconds, not {given!r}") from None
