"""State "Isolate": no new work on the node, then end the job there so that the node is empty.

Each call does what is still open and answers WAIT until all is done. How a node is emptied is the incident's
`drain`: its jobs are let come to their own end, or save a checkpoint first, or are stopped at once.
"""

from lambdas import registering, saving, scaling
from lambdas.boundary import Event, Fields, ask_scheduler, task
from lambdas.survivors import hold_survivors, let_go
from planaria.core import plans
from planaria.core.errors import PermanentError, Waiting
from planaria.core.incident import Step
from planaria.core.ladder import HEALTH
from planaria.core.policy import Drain
from planaria.core.scheduling import Isolate, JobsOn, Lost, Stop
from planaria.core.table import Row
from planaria.wiring import Gateways

GRACE_SECONDS = 2.0

SAVING_SECONDS = 30.0
"""On a node that works: a job of Slurm or EKS saves when it is told to end (SIGTERM). As Slurm's KillWait."""

SAVE_SHARE = 0.2
"""Of the drain's time: how much is left for a checkpoint where the jobs were let run on."""

END_SHARE = 0.1
"""Of the drain's time: how much the jobs have to end after the signal, whenever that came."""


@task
def handler(event: Event, gw: Gateways) -> Fields:
    incident = event["incident"]
    row = gw.ledger.enter(incident["node_id"], int(incident["session"]))
    if row.get("replaced_by"):
        return {}  # an earlier execution got as far: the name is the replacement's now
    scaling.prolong(gw, row)
    if incident["verb"] == "remove" and "isolation_asked" not in row:
        _needed(event, gw)
    if not plans.isolated_by(row, incident["mark"]):
        row = _isolate(event, gw)
    row = _let_finish(event, gw, row)
    # A fatal fault may have superseded an incident that had asked for one: broken ranks save nothing.
    if incident["drain"] != Drain.STOP and not saving.ended(gw, incident, row):
        raise Waiting("the emergency checkpoint is not saved yet")
    if "emptied_at" not in row["isolation"]:
        _empty(event, gw, row)
        gw.ledger.write(
            incident["node_id"],
            int(incident["session"]),
            sets={("isolation", "emptied_at"): gw.clock.now()},
        )
    scaling.complete(gw, incident, row)
    return {}


def _isolate(event: Event, gw: Gateways) -> Row:
    incident = event["incident"]
    node, session = incident["node_id"], int(incident["session"])
    name, mark = incident["name"], incident["mark"]
    # Before it is asked for: a session that is cancelled meanwhile must know what to take back.
    row = gw.ledger.write(node, session, sets={"isolation_asked": mark})
    answer = ask_scheduler(gw, event, "isolate", Isolate((name,), mark))
    word = str(answer.get(name, "UNKNOWN: no answer for this node"))
    if word.startswith("FOREIGN"):
        # Told to the other branch, which may be waiting for capacity that is not wanted any more.
        gw.ledger.write(node, session, sets={"isolation_refused": True})
        raise PermanentError(
            f"{name} is isolated by someone else ({word.partition(': ')[2]}); it is left alone"
        )
    if word != "ISOLATED":
        raise Waiting(f"isolation of {name} is not confirmed: {word}")
    now = gw.clock.now()
    row = gw.ledger.write(
        node,
        session,
        sets={
            "isolation": {"mark": mark, "at": now},
            "health": HEALTH.get(incident["action"], "Unschedulable"),
        },
    )
    gw.ledger.step(incident["incident_id"], Step.ISOLATED, now)
    return row


def _let_finish(event: Event, gw: Gateways, row: Row) -> Row:
    """drain wait: the jobs there come to their own end; those that have not by the deadline save and stop."""
    incident = event["incident"]
    if incident["drain"] != Drain.WAIT or plans.is_gone(row):
        return row
    name, now, deadline = incident["name"], gw.clock.now(), plans.drain_until(row, gw.cluster.policy)
    save_seconds = SAVE_SHARE * gw.cluster.policy.drain_deadline_seconds
    if not (row.get("checkpoint") or {}).get("ticket"):
        jobs = ask_scheduler(gw, event, "jobs_on", JobsOn((name,))).get(name, [])
        if jobs and now < deadline - save_seconds:
            raise Waiting(f"{name} is let finish job {jobs[0]} until {deadline - save_seconds:.0f}")
        if jobs and incident["job_id"] in jobs and now < deadline:
            row = saving.ask(gw, incident, row, deadline)
    return row


def _empty(event: Event, gw: Gateways, row: Row) -> None:
    """End the jobs whose ranks run here: without this node they cannot go on."""
    incident = event["incident"]
    node, session = incident["node_id"], int(incident["session"])
    jobs = registering.affected(gw, event, row)
    if jobs and (jobs != row.get("stopped_jobs") or "stop_at" not in row["isolation"]):
        sets = {"stopped_jobs": jobs, ("isolation", "stop_at"): gw.clock.now()}
        row = gw.ledger.write(node, session, sets=sets)
    for job in jobs:
        gw.jobs.wait_for(job, node, incident["incident_id"])
        hold_survivors(gw, event, job)
        gw.jobs.stopping(job, node, incident["incident_id"], gw.clock.now())
    if plans.is_gone(row):
        _give_up(event, gw, row)
    if not jobs:
        return
    stopped = ask_scheduler(gw, event, "stop", Stop(tuple(jobs), "TERM", _grace(gw, incident, row)))
    left = sorted(job for job, word in stopped.items() if word == "COMPLETING")
    if left:
        _force(event, gw, row, left[0])
    for job in sorted(job for job, word in stopped.items() if word == "COMPLETED"):
        gw.jobs.completed(job)
        let_go(gw, gw.jobs.job(job) or {})
    gw.ledger.step(incident["incident_id"], Step.JOB_STOPPED, gw.clock.now())


def _needed(event: Event, gw: Gateways) -> None:
    """Raises PermanentError where a job runs on a node that a person wants to remove: nobody would take its
    place. Of a job that the node's row names the order itself was refused (lambdas/begin_incident.py)."""
    name = event["incident"]["name"]
    if gw.cluster.scheduler == registering.UNAWARE:
        return
    if jobs := ask_scheduler(gw, event, "jobs_on", JobsOn((name,))).get(name, []):
        raise PermanentError(
            f"{name} runs job {jobs[0]}, which needs it, so it is not terminated; replace the node instead, "
            "or end the job first"
        )


def _grace(gw: Gateways, incident: Event, row: Row) -> float:
    if gw.cluster.scheduler == registering.UNAWARE or incident["drain"] == Drain.STOP:
        return GRACE_SECONDS
    left = plans.drain_until(row, gw.cluster.policy) - float(row["isolation"]["stop_at"])
    return float(int(max(GRACE_SECONDS, min(SAVING_SECONDS, left))))


def _give_up(event: Event, gw: Gateways, row: Row) -> None:
    """EC2 has ended the node: so are its jobs, at once. Only now, for the scheduler then gives their other
    nodes to whoever waits for some, unless they are held."""
    incident, name = event["incident"], event["incident"]["name"]
    if "lost_at" in row["isolation"]:
        return
    word = str(ask_scheduler(gw, event, "lost", Lost((name,), incident["mark"])).get(name, "UNKNOWN"))
    if word != "ISOLATED":
        raise Waiting(f"{name} is gone and the scheduler does not give it up yet: {word}")
    sets = {("isolation", "lost_at"): gw.clock.now()}
    gw.ledger.write(incident["node_id"], int(incident["session"]), sets=sets)


def _force(event: Event, gw: Gateways, row: Row, job: str) -> None:
    """Past the deadline the node is taken for lost, which ends what does not end by itself."""
    incident = event["incident"]
    policy = gw.cluster.policy
    settled = float(row["isolation"]["stop_at"]) + END_SHARE * policy.drain_deadline_seconds
    if gw.clock.now() < max(plans.drain_until(row, policy), settled):
        raise Waiting(f"job {job} is still ending")
    name = incident["name"]
    word = str(ask_scheduler(gw, event, "lost", Lost((name,), incident["mark"])).get(name, "UNKNOWN"))
    if word != "ISOLATED":
        raise Waiting(f"{name} still runs job {job} and is not given up yet: {word}")
    gw.ledger.note_incident(incident["incident_id"], {"drained_by_force": job})
