"""State "Climb": the next stronger repair after one that did not help, in the same session.

One write takes the step, with what became of the attempt: a delivery after it finds the step taken. What it
does not take leaves a sentence for the person who has to go on.
"""

from lambdas.boundary import Event, Fields, task
from planaria.core import ladder, plans
from planaria.core.errors import PermanentError
from planaria.core.table import Conflict, Row, equals
from planaria.wiring import Gateways

GONE_ON = ("approval", "waiting", ladder.VERIFYING, ladder.RESETTING)
"""What belongs to the step that is left: the next one is approved, awaited and verified anew."""


@task
def handler(event: Event, gw: Gateways) -> Fields:
    incident, reason = event["incident"], str(event.get("reason") or "no reason was given")
    node, session = incident["node_id"], int(incident["session"])
    row = gw.ledger.enter(node, session)
    if row["action"] == incident["action"]:
        row = _climb(gw, row, reason)
    _tell(gw, incident["incident_id"], row)
    return {"incident": plans.incident_document(row, gw.cluster.policy)}


def _climb(gw: Gateways, row: Row, reason: str) -> Row:
    node, session, now = row["node_id"], int(row["session"]), gw.clock.now()
    result = ladder.remembered(row, ladder.result_of(row, reason))
    same = equals("action", row["action"])
    try:
        try:
            step = ladder.following(row, reason, gw.cluster.policy, now)
        except PermanentError:
            if result:
                gw.ledger.write(node, session, sets=result, when=same)
            raise
        left = {"action": row["action"], "reason": reason[: ladder.REASON_LENGTH], "at": now}
        sets = {
            **result,
            "action": step.action.value,
            "health": ladder.HEALTH[step.action.value],
            ladder.CLIMBED: [*row.get(ladder.CLIMBED, []), {**left, "to": step.action.value}],
        }
        return gw.ledger.write(node, session, sets=sets, removes=GONE_ON, when=same)
    except Conflict as conflict:
        return conflict.row or {}  # another delivery has taken the step


def _tell(gw: Gateways, name: str, row: Row) -> None:
    """The timeline and the incident's own row; may be repeated."""
    for left in row.get(ladder.CLIMBED, []):
        said = {"after": left["action"], "reason": left["reason"]}
        gw.ledger.step(name, ladder.STEPS[left["to"]], float(left["at"]), **said)
    gw.ledger.note_incident(name, {"action": row["action"], "climbed": row.get(ladder.CLIMBED, [])})
