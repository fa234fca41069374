"""State "Save a checkpoint": ask the node's job for an emergency checkpoint, at once.

The two minutes of a spot notice run already; the answer is read later, beside the launch of the
replacement. Any other incident whose node still works passes here too.
"""

from lambdas.boundary import Event, Fields, task
from planaria.core.incident import Step
from planaria.wiring import Gateways

DOCUMENT = "planaria-checkpoint-now"


@task
def handler(event: Event, gw: Gateways) -> Fields:
    incident = event["incident"]
    node, session = incident["node_id"], int(incident["session"])
    row = gw.ledger.enter(node, session)
    now = gw.clock.now()
    asked = row.get("checkpoint") or {}
    if not asked.get("ticket"):
        deadline = now + gw.cluster.policy.drain_deadline_seconds
        gone_at = (row.get("fault") or {}).get("deadline")
        if gone_at:
            deadline = min(deadline, float(gone_at))
        parameters = {"job_id": incident["job_id"], "deadline": f"{deadline:.3f}"}
        ticket = gw.commands.submit(DOCUMENT, [node], parameters)
        asked = {"ticket": ticket, "asked_at": now, "deadline": deadline}
        gw.ledger.write(node, session, sets={"checkpoint": asked})
        gw.ledger.step(incident["incident_id"], Step.CHECKPOINT_ASKED, now)
    return {"ticket": asked["ticket"], "deadline": asked["deadline"]}
