"""State "Isolate": no new work on the node, then end the job there so that the node is empty.

Each call does what is still open and answers WAIT until all is done.
"""

from typing import Any

from lambdas.boundary import Event, Fields, ask_scheduler, task
from planaria.core import plans
from planaria.core.errors import PermanentError, TransientError, Waiting
from planaria.core.incident import Step
from planaria.core.ports import AnswerState
from planaria.core.scheduling import Isolate, JobsOn, Lost, Stop
from planaria.core.table import Row
from planaria.wiring import Gateways

HEALTH = {"REBOOT": "UnschedulablePendingReboot", "REPLACE": "UnschedulablePendingReplacement"}
GRACE_SECONDS = 2.0


@task
def handler(event: Event, gw: Gateways) -> Fields:
    incident = event["incident"]
    row = gw.ledger.enter(incident["node_id"], int(incident["session"]))
    if row.get("replaced_by"):
        return {}  # an earlier execution got as far: the name is the replacement's now
    if not plans.isolated_by(row, incident["mark"]):
        row = _isolate(event, gw)
    _await_checkpoint(event, gw, row)
    _empty(event, gw, row)
    return {}


def _isolate(event: Event, gw: Gateways) -> Row:
    incident = event["incident"]
    node, session = incident["node_id"], int(incident["session"])
    name, mark = incident["name"], incident["mark"]
    # Before it is asked for: a session that is cancelled meanwhile must know what to take back.
    row = gw.ledger.write(node, session, sets={"isolation_asked": mark})
    request = (Lost if plans.is_gone(row) else Isolate)((name,), mark)
    word = str(ask_scheduler(gw, event, "isolate", request).get(name, "UNKNOWN: no answer for this node"))
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


def _await_checkpoint(event: Event, gw: Gateways, row: Row) -> None:
    """The job must not be stopped before its emergency checkpoint is saved or too late."""
    incident, asked = event["incident"], row.get("checkpoint") or {}
    if not asked.get("ticket") or asked.get("ended") or plans.is_gone(row):
        return
    now = gw.clock.now()
    sets: dict[Any, Any] = {("checkpoint", "ended"): True}
    try:
        answer = gw.commands.poll(asked["ticket"])
    except TransientError:
        if now < float(asked["deadline"]):
            raise
        answer = None
    if answer is not None and answer.state is AnswerState.DONE:
        entry = answer.value.get(incident["node_id"], {})
        if entry.get("status") == "SUCCESS":
            step = entry["output"]["step"]
            sets[("checkpoint", "step")] = step
            gw.ledger.step(incident["incident_id"], Step.CHECKPOINT_SAVED, now, checkpoint_step=step)
    elif now < float(asked["deadline"]):
        raise Waiting("the emergency checkpoint is not saved yet")
    gw.ledger.write(incident["node_id"], int(incident["session"]), sets=sets)


def _empty(event: Event, gw: Gateways, row: Row) -> None:
    """End the jobs whose ranks run here: without this node they cannot go on."""
    incident = event["incident"]
    node, session, name = incident["node_id"], int(incident["session"]), incident["name"]
    found = ask_scheduler(gw, event, "jobs_on", JobsOn((name,))).get(name, [])
    jobs = sorted({*found, *row.get("stopped_jobs", []), incident["job_id"]} - {""})
    if not jobs:
        return
    if jobs != row.get("stopped_jobs"):
        gw.ledger.write(node, session, sets={"stopped_jobs": jobs})
    for job in jobs:
        gw.jobs.wait_for(job, node, incident["incident_id"])
        gw.jobs.stopping(job, node, incident["incident_id"])
    stopped = ask_scheduler(gw, event, "stop", Stop(tuple(jobs), "TERM", GRACE_SECONDS))
    left = sorted(job for job, word in stopped.items() if word == "COMPLETING")
    if left:
        raise Waiting(f"job {left[0]} is still ending")
    for job in sorted(job for job, word in stopped.items() if word == "COMPLETED"):
        gw.jobs.completed(job)
    gw.ledger.step(incident["incident_id"], Step.JOB_STOPPED, gw.clock.now())
