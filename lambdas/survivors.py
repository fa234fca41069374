"""The nodes of a job that is about to be stopped for one of them: kept free for it until it goes on.

A scheduler gives the nodes of an ended job to the next one. All names of the job are held, the failed one's
too: its replacement takes that name. The requeue ends the hold; so does its time, in any case.
"""

from typing import Any

from lambdas.boundary import Event, ask_scheduler
from planaria.core import job_facts
from planaria.core.errors import PermanentError, PlanariaError, Waiting
from planaria.core.scheduling import Hold
from planaria.core.table import Row
from planaria.wiring import Gateways

PATIENCE_SECONDS = 60.0
"""For the scheduler's word that the nodes are held. Then the job is stopped without it: a broken node must
not stay in work for the sake of the others."""


def hold_survivors(gw: Gateways, event: Event, job: str) -> None:
    """Once for each incident that stops the job, and with a new deadline each time: as long as nodes go on
    failing, the job is being healed. Waiting while the scheduler has not answered."""
    incident, now = event["incident"], gw.clock.now()
    row = gw.jobs.job(job)
    if row is None or job_facts.over(row) or row.get("given_up"):
        return
    known = row.get("hold") or {}
    mine = known.get("by") == incident["incident_id"]
    if mine and "until" in known:
        return
    hold: dict[str, Any] = {"by": incident["incident_id"], "asked_at": known["asked_at"] if mine else now}
    seconds = gw.cluster.policy.hold_seconds
    request = Hold(job, _names(gw, incident, row), seconds)
    try:
        hold["word"] = str(ask_scheduler(gw, event, f"hold {job}", request).get(job, "UNKNOWN"))
    except Waiting:
        if now < hold["asked_at"] + PATIENCE_SECONDS:
            if not mine:
                gw.jobs.write(job, {"hold": hold})
            raise
        hold["word"] = "UNKNOWN: the scheduler did not answer in time"
    except PermanentError as error:
        hold["word"] = f"UNKNOWN: {error}"
    gw.jobs.write(job, {"hold": {**hold, "until": now + seconds}})


def _names(gw: Gateways, incident: Event, job: Row) -> tuple[str, ...]:
    """The job's names, but for those that another job which is stopped with it holds: two jobs must not keep
    each other off a node. Those that were there come first (lambdas/registering.py)."""
    stopped = list((gw.ledger.node(incident["node_id"]) or {}).get("stopped_jobs", []))
    first = stopped[: stopped.index(job["job_id"])] if job["job_id"] in stopped else []
    before = [gw.jobs.job(other) or {} for other in first]
    held = {name for other in before for name in other.get("names", ())}
    return tuple(name for name in job["names"] if name not in held)


def let_go(gw: Gateways, job: Row) -> None:
    """The job does not go on by itself, so others may have its nodes now. Should this fail, the hold ends by
    its time."""
    if (held_until(job) or 0.0) <= gw.clock.now():
        return
    try:
        gw.scheduler.submit(Hold(str(job["job_id"]), (), 0.0))
    except PlanariaError:
        return


def held_since(job: Row) -> float | None:
    """When the job was stopped for a node (epoch seconds); None when it has been started since."""
    hold = job.get("hold") or {}
    return float(hold["asked_at"]) if hold else None


def held_until(job: Row) -> float | None:
    """When the present wait of the job for its nodes becomes too long (epoch seconds); None before it is
    stopped for one, and once it has been started again."""
    hold = job.get("hold") or {}
    return float(hold["until"]) if "until" in hold else None
