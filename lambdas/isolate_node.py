"""State "Isolate": no new work on the node, then end the job there so that the node is empty.

Each call does what is still open and answers WAIT until all is done.
"""

from typing import Any

from lambdas.boundary import Event, Fields, ask_scheduler, task
from planaria.core import plans
from planaria.core.errors import PermanentError, TransientError, Waiting
from planaria.core.incident import Step
from planaria.core.ports import AnswerState, Isolate, JobsOn, Lost, Stop
from planaria.core.table import Row
from planaria.wiring import Gateways

HEALTH = {"REBOOT": "UnschedulablePendingReboot", "REPLACE": "UnschedulablePendingReplacement"}
GRACE_SECONDS = 2.0


@task
def handler(event: Event, gw: Gateways) -> Fields:
    incident = event["incident"]
    row = gw.ledger.enter(incident["node_id"], int(incident["session"]))
    if not plans.isolated_by(row, incident["mark"]):
        row = _isolate(event, gw, row)
    _await_checkpoint(event, gw, row)
    _empty(event, gw)
    return {}


def _isolate(event: Event, gw: Gateways, row: Row) -> Row:
    incident = event["incident"]
    name, mark = incident["name"], incident["mark"]
    request = (Lost if plans.is_gone(row) else Isolate)((name,), mark)
    word = str(ask_scheduler(gw, event, "isolate", request).get(name, "UNKNOWN: no answer for this node"))
    if word.startswith("FOREIGN"):
        raise PermanentError(
            f"{name} is isolated by someone else ({word.partition(': ')[2]}); it is left alone"
        )
    if word != "ISOLATED":
        raise Waiting(f"isolation of {name} is not confirmed: {word}")
    now = gw.clock.now()
    row = gw.ledger.write(
        incident["node_id"],
        int(incident["session"]),
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
    if not asked.get("ticket") or asked.get("ended"):
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


def _empty(event: Event, gw: Gateways) -> None:
    """End the job whose ranks run here: without this node it cannot go on."""
    incident = event["incident"]
    jobs = ask_scheduler(gw, event, "jobs_on", JobsOn((incident["name"],))).get(incident["name"], [])
    if incident["job_id"] and incident["job_id"] not in jobs:
        jobs = [*jobs, incident["job_id"]]
    for job in jobs:
        row = gw.jobs.job(job)
        if row is not None and row.get("stopped_attempt") != row["attempt"]:
            # Written before the signal, so that the exits of the other ranks are known as our doing.
            gw.jobs.write(job, {"stopped_attempt": row["attempt"], "state": "STOPPED"})
    if not jobs:
        return
    stopped = ask_scheduler(gw, event, "stop", Stop(tuple(jobs), "TERM", GRACE_SECONDS))
    left = sorted(job for job, word in stopped.items() if word == "COMPLETING")
    if left:
        raise Waiting(f"job {left[0]} is still ending")
    for job in sorted(job for job, word in stopped.items() if word == "COMPLETED"):
        gw.jobs.write(job, {"state": "COMPLETED"})
    gw.ledger.step(incident["incident_id"], Step.JOB_STOPPED, gw.clock.now())
