"""Sweep's look at registered jobs: where they run, and how they ended, by the scheduler's own word.

Jobs of Slurm and EKS start long after they were registered, move when the scheduler starts them anew, and end
without an agent's word. A few calls tell of many jobs; one that is still out is read by the next sweep.
"""

from typing import Any

from lambdas import registering, resuming, survivors, watched_calls
from lambdas.boundary import logger
from lambdas.inventory import each
from planaria.core import job_facts
from planaria.core.errors import PlanariaError
from planaria.core.incident import ACTIVE, incident_id
from planaria.core.job_facts import Told
from planaria.core.policy import Mode
from planaria.core.scheduling import JobState
from planaria.core.table import Conflict, Row, equals
from planaria.wiring import Gateways

LOOKED_AT = frozenset({"PENDING", "RUNNING", "STOPPED"})

FAILED_SECONDS = 86_400.0
"""So long a job that has failed is looked at as well: its user may have put it back into the queue."""

LISTED_SECONDS = 7 * 86_400.0
OVER = {
    JobState.COMPLETED: "COMPLETED",
    JobState.CANCELLED: "CANCELLED",
    JobState.TIMEOUT: "TIMEOUT",
}


def look(gw: Gateways, jobs: list[Row], nodes: list[Row]) -> int:
    """jobs, nodes: all rows. Returns how many jobs' rows were changed."""
    if gw.cluster.scheduler == registering.UNAWARE:
        return 0
    each([row for row in jobs if row.get("origin")], "old job", lambda row: _leave_the_list(gw, row))
    wanted = [row for row in jobs if row.get("origin") and _is_looked_at(row, gw.clock.now())]
    try:
        answers = watched_calls.ask(gw, [str(row["job_id"]) for row in wanted])
    except PlanariaError as error:
        logger.warning("sweep: the scheduler does not tell of its jobs", extra={"reason": str(error)})
        return 0
    told = [row for row in wanted if row["job_id"] in answers]
    return each(told, "job", lambda row: _note(gw, row, answers[row["job_id"]], nodes))


def _is_looked_at(job: Row, now: float) -> bool:
    if job.get("state") == "FAILED":
        ended = max(float(job.get("ended_at") or 0.0), float(job.get("resume_ended_at") or 0.0))
        return now - ended < FAILED_SECONDS
    return job.get("state") in LOOKED_AT


def _leave_the_list(gw: Gateways, job: Row) -> bool:
    """A job that ended long ago is not read by every sweep any more; its row stays."""
    ended = job.get("ended_at")
    if not ended or job.get("pending") or job.get("owed") or job.get("resume_phase") in ACTIVE:
        return False
    if gw.clock.now() - float(ended) < LISTED_SECONDS:
        return False
    gw.table.write(job["pk"], job["sk"], removes=("listing",), when=equals("ended_at", ended))
    return True


def _note(gw: Gateways, job: Row, entry: Any, nodes: list[Row]) -> bool:
    """entry: of a JobQuery's answer, None where the scheduler knows no such job."""
    if job.get("resume_phase") in ACTIVE:
        return False  # a resume is about to start it, and looks for itself
    if entry is None:
        return _forgotten(gw, job)
    told = job_facts.read(entry)
    if told.state is JobState.UNKNOWN:
        return False
    if job_facts.another(job, told):
        registering.note(gw, str(job["job_id"]), job, told)
        return True
    if told.attempt < int(job["attempt"]):
        return False  # told before the present attempt was started
    if told.state in OVER:
        _free(gw, job, nodes)
        if gw.cluster.policy.mode is not Mode.OBSERVE:
            survivors.let_go(gw, job)
        return gw.jobs.ended(job, OVER[told.state], told.end or gw.clock.now())
    if job["state"] == "STOPPED":
        return False  # its nodes are being healed
    if job["state"] == "FAILED":
        if told.failed:
            return False  # as it is known
        # Put back by its user, or started when nobody waited for it any more.
        job = gw.jobs.lives_again(job, "RUNNING" if told.state in job_facts.WORKS else "PENDING")
    if told.failed:
        return _failed(gw, registering.placed(gw, job, told), told, nodes)
    if told.state is JobState.PENDING and job["state"] == "RUNNING":
        # Preempted, or put back into the queue: it starts by itself.
        same = equals("attempt", job["attempt"]) & equals("state", "RUNNING")
        gw.jobs.write(str(job["job_id"]), {"state": "PENDING"}, when=same)
        return True
    before = job
    job = registering.placed(gw, job, told)
    if job["names"] and told.state in job_facts.WORKS:
        _mark(gw, job, nodes)
    return job is not before


def _forgotten(gw: Gateways, job: Row) -> bool:
    """It has ended and nobody saw how: between two sweeps a scheduler forgets nothing (MinJobAge), so the
    scheduler was out of reach for longer, or was set up anew."""
    if job["state"] in ("STOPPED", "FAILED") or job.get("owed"):
        return False
    return gw.jobs.ended(job, "UNKNOWN", gw.clock.now())


def _failed(gw: Gateways, job: Row, told: Told, nodes: list[Row]) -> bool:
    """It failed. For a node of its own that is being healed it waits; else it is started again where it was
    submitted so, within its budget."""
    attempt, at = int(job["attempt"]), told.end or gw.clock.now()
    try:
        job = gw.jobs.failed(job, attempt, told.how(), at)
    except Conflict:
        return False
    never = job_facts.never_again(str(job["job_id"]), told)
    claim, mode = f"exit/{job['job_id']}/{attempt}", gw.cluster.policy.mode
    if not never and not job.get("given_up") and mode is not Mode.OBSERVE:
        job = _waits_for_its_nodes(gw, job, nodes, at)
        if job.get("pending") or job.get("unresolved"):
            gw.jobs.owe(str(job["job_id"]), attempt, claim)
            return True
        if _starts_again(job, told) and mode is Mode.ACT:
            how = "the scheduler blames a node" if told.state is JobState.NODE_FAIL else told.how()
            reason = f"attempt {attempt} failed: {how}"
            return resuming.open_resume(gw, job, claim, reason, supersede=False, failed_at=at) is not None
    sets: dict[str, Any] = {"state": "FAILED", "ended_at": at}
    if never:
        sets["ended_reason"] = never
    elif _starts_again(job, told) and mode is not Mode.ACT:
        sets["ended_reason"] = f"mode {mode}: it would have been started again; `planaria resume` does that"
    gw.jobs.write(str(job["job_id"]), sets, when=equals("attempt", attempt) & equals("state", job["state"]))
    return True


def _starts_again(job: Row, told: Told) -> bool:
    return job_facts.resumes_itself(job) or told.state is JobState.NODE_FAIL


def _waits_for_its_nodes(gw: Gateways, job: Row, nodes: list[Row], failed_at: float) -> Row:
    """The job's row, told of every node of its own that is being healed for a fault of about that time."""
    own = set(job.get("nodes", {}).values())
    for row in nodes:
        if row["node_id"] not in own or row.get("phase") not in ACTIVE:
            continue
        if job_facts.failed_for(failed_at, row):
            gw.jobs.wait_for(str(job["job_id"]), row["node_id"], incident_id(row["node_id"], row["session"]))
    return gw.jobs.job(str(job["job_id"])) or job


def _mark(gw: Gateways, job: Row, nodes: list[Row]) -> None:
    """The job's nodes bear its id, so that their incidents know of it from the start. A job that knows
    nothing of us is found by the scheduler's word alone: several may share a node."""
    if job["origin"] != job_facts.SUBMITTED:
        return
    own = set(job.get("nodes", {}).values())
    for row in nodes:
        if row["node_id"] in own and row.get("job_id") != job["job_id"] and row.get("phase") not in ACTIVE:
            gw.ledger.note_node(row["node_id"], {"job_id": job["job_id"]})
        elif row["node_id"] not in own and row.get("job_id") == job["job_id"]:
            _unmark(gw, row)


def _free(gw: Gateways, job: Row, nodes: list[Row]) -> None:
    """The job has ended: its nodes bear its id no longer."""
    for row in nodes:
        if row.get("job_id") == job["job_id"]:
            _unmark(gw, row)


def _unmark(gw: Gateways, row: Row) -> None:
    if row.get("phase") in ACTIVE:
        return
    try:
        gw.table.write(row["pk"], row["sk"], removes=("job_id",), when=equals("job_id", row["job_id"]))
    except Conflict:
        return
