"""The emergency checkpoint of the job on a node: asked for once per session, answered to whoever polls."""

from typing import Any

from lambdas.boundary import Event
from planaria.core.errors import TransientError
from planaria.core.incident import Step
from planaria.core.plans import is_gone
from planaria.core.ports import AnswerState
from planaria.core.table import Row
from planaria.wiring import Gateways

DOCUMENT = "planaria-checkpoint-now"


def ask(gw: Gateways, incident: Event, row: Row, deadline: float) -> Row:
    """The node's row with the ticket, also when it was asked for before. deadline: epoch seconds; an end
    that AWS has announced comes first."""
    asked = row.get("checkpoint") or {}
    if asked.get("ticket"):
        return row
    now = gw.clock.now()
    gone_at = (row.get("fault") or {}).get("deadline")
    if gone_at:
        deadline = min(deadline, float(gone_at))
    parameters = {"job_id": incident["job_id"], "deadline": f"{deadline:.3f}"}
    ticket = gw.commands.submit(DOCUMENT, [incident["node_id"]], parameters)
    asked = {"ticket": ticket, "asked_at": now, "deadline": deadline}
    row = gw.ledger.write(incident["node_id"], int(incident["session"]), sets={"checkpoint": asked})
    gw.ledger.step(incident["incident_id"], Step.CHECKPOINT_ASKED, now)
    return row


def ended(gw: Gateways, incident: Event, row: Row) -> bool:
    """Nothing is to be waited for: it is saved, or failed, or it is too late, or nobody asked for it."""
    asked = row.get("checkpoint") or {}
    if not asked.get("ticket") or asked.get("ended") or is_gone(row):
        return True
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
            gw.jobs.saved(incident["job_id"], int(step))
            gw.ledger.step(incident["incident_id"], Step.CHECKPOINT_SAVED, now, checkpoint_step=step)
    elif now < float(asked["deadline"]):
        return False
    gw.ledger.write(incident["node_id"], int(incident["session"]), sets=sets)
    return True
