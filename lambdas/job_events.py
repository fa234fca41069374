"""What agents say about a job's processes: the first step of an attempt, and exits."""

import dataclasses

from lambdas import resuming, syncing
from planaria.core import attempts, sync_claims
from planaria.core.fault import Action
from planaria.core.incident import ACTIVE
from planaria.core.judge import Judgement, Outcome
from planaria.core.signal import Signal
from planaria.core.table import Conflict, Row, below, equals, missing
from planaria.wiring import Gateways

START_SECONDS = 20.0
"""Within which whoever claimed a resume starts it; after that sweep does."""

OLD_SECONDS = 3600.0
"""An agent that was down for longer than this tells of no process that ended before."""


def first_step(gw: Gateways, signal: Signal) -> None:
    """The attempt advances: note it and answer the resume that waits for it."""
    job_id, attempt = str(signal.evidence["job_id"]), int(signal.evidence["attempt"])
    at = signal.time if signal.time is not None else gw.clock.now()
    first = {"attempt": attempt, "step": signal.evidence.get("step"), "at": at}
    newer = missing("first_step") | below(("first_step", "attempt"), attempt)
    try:
        row = gw.jobs.write(job_id, {"first_step": first}, when=newer & equals("attempt", attempt))
    except Conflict as conflict:
        row = conflict.row or {}
    _runs_after_all(gw, row, attempt)
    if row.get("waiting") and (row.get("first_step") or {}).get("attempt") == row.get("resume_number"):
        gw.workflows.answer(row["waiting"], {"result": "DONE", "reason": ""})


def saved(gw: Gateways, signal: Signal) -> None:
    """A checkpoint of the job is complete: it is copied to S3."""
    name, told = signal.evidence.get("job_id"), signal.evidence.get("step")
    if not name or told is None or told < 0:
        return
    job_id, step = str(name), int(told)
    gw.jobs.saved(job_id, step)
    if gw.cluster.checkpoints is None:
        return
    job = gw.jobs.job(job_id)
    if job is None or syncing.why_not(gw, job):
        return
    attempt = int(signal.evidence.get("attempt") or job["attempt"])
    at = signal.time if signal.time is not None else gw.clock.now()
    sync_claims.note_newest(gw.table, job_id, "newest", attempt, step, at)
    syncing.want(gw, job, f"step {step} was saved", f"saved/{job_id}/{attempt}/{step}/{at:.3f}")


def _runs_after_all(gw: Gateways, job: Row, attempt: int) -> None:
    """The scheduler has started it when nobody waited for it any more: a queue may take hours."""
    failure = (job.get("attempts") or {}).get(str(attempt), {}).get("failure")
    if job.get("state") != "FAILED" or job.get("attempt") != attempt or failure:
        return
    try:
        still = equals("state", "FAILED") & equals("attempt", attempt)
        gw.jobs.write(str(job["job_id"]), {"state": "RUNNING"}, when=still)
    except Conflict:
        return  # it has ended meanwhile


def exited(gw: Gateways, signal: Signal, judgement: Judgement) -> Judgement:
    """A process of a job ended badly: resume the job, unless a node's incident will or we ended it."""
    job_id, attempt = str(signal.evidence["job_id"]), int(signal.evidence["attempt"])
    job = gw.jobs.job(job_id)

    def ends(outcome: Outcome, reason: str) -> Judgement:
        return dataclasses.replace(
            judgement, outcome=outcome, action=_action(judgement, outcome), reason=reason
        )

    if job is None:
        return ends(Outcome.OBSERVED, f"job {job_id} is not in the ledger, so it resumes by its own means")
    if attempt < int(job["attempt"]):
        return ends(
            Outcome.STALE, f"attempt {attempt} of job {job_id} is over, attempt {job['attempt']} runs"
        )
    if job.get("stopped_attempt") == attempt:
        return ends(Outcome.COVERED, f"we ended attempt {attempt} of job {job_id} ourselves")
    reason = str(signal.evidence.get("reason") or "")
    what = attempts.signature(int(signal.evidence["exit_code"]), reason)
    job = gw.jobs.failed(job, attempt, what, _failed_at(gw, signal))
    if job.get("given_up"):
        return ends(Outcome.OBSERVED, f"nothing is done until a person resumes it: {job['given_up']}")
    if job.get("pending"):
        gw.jobs.owe(job_id, attempt, f"exit/{job_id}/{attempt}")
        waits = ", ".join(sorted(job["pending"]))
        return ends(Outcome.JOINED, f"job {job_id} is resumed when {waits} is healed")
    if job.get("unresolved"):
        gw.jobs.owe(job_id, attempt, f"exit/{job_id}/{attempt}")
        waits = ", ".join(sorted(job["unresolved"]))
        return ends(Outcome.JOINED, f"job {job_id} waits for {waits}, which nobody heals; a person is told")
    claim = f"exit/{job_id}/{attempt}"
    if _opened(job, claim, gw.clock.now()):
        return ends(Outcome.JOINED, f"resume {job['resume_number']} of job {job_id} is opened already")
    first = job.get("resume_claim") != claim
    resumed = _resume(gw, job, claim, signal)
    if resumed is None:
        return ends(Outcome.JOINED, f"a resume of job {job_id} is under way or it waits for a node")
    if not first:
        return ends(Outcome.JOINED, f"resume {resumed['resume_number']} of job {job_id} is claimed already")
    return ends(
        Outcome.OPENED, f"{judgement.reason}; resume {resumed['resume_number']} is opened, no node is touched"
    )


def _opened(job: Row, claim: str, now: float) -> bool:
    """The resume of this attempt runs, or whoever claimed it is about to start it: all ranks of a job end
    together, and each of them starting it again would be thousands of calls. Sweep starts what was not."""
    if job.get("resume_claim") != claim or job.get("resume_phase") not in ACTIVE:
        return False
    return bool(job.get("resume_arn")) or now - float(job.get("resume_opened_at") or 0.0) < START_SECONDS


def _resume(gw: Gateways, job: Row, claim: str, signal: Signal) -> Row | None:
    """The claimed resume. One whose own attempt failed before its first step is superseded by the next."""
    other = job.get("resume_phase") in ACTIVE and job.get("resume_claim") != claim
    if other and job.get("resume_number") != job["attempt"]:
        return None
    reason = f"rank {signal.evidence.get('rank')} ended with {signal.evidence.get('exit_code')}"
    at = _failed_at(gw, signal)
    return resuming.open_resume(gw, job, claim, reason, supersede=True, failed_at=at)


def _failed_at(gw: Gateways, signal: Signal) -> float:
    """When the process ended. Agents look at different moments, so their reports have another order."""
    told = signal.time if signal.time is not None else gw.clock.now()
    ended = signal.evidence.get("ended_at")
    return float(ended) if ended is not None and 0 <= told - float(ended) < OLD_SECONDS else told


def _action(judgement: Judgement, outcome: Outcome) -> Action | None:
    return None if outcome in (Outcome.STALE, Outcome.COVERED) else judgement.action
