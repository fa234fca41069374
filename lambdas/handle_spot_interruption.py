"""State "Save a checkpoint": ask the node's job for an emergency checkpoint, at once.

The two minutes of a spot notice run already; the answer is read later, beside the launch of the
replacement. Any other incident whose node still works passes here too.
"""

from lambdas import saving
from lambdas.boundary import Event, Fields, task
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    incident = event["incident"]
    row = gw.ledger.enter(incident["node_id"], int(incident["session"]))
    row = saving.ask(gw, incident, row, gw.clock.now() + gw.cluster.policy.drain_deadline_seconds)
    return {"ticket": row["checkpoint"]["ticket"], "deadline": row["checkpoint"]["deadline"]}
