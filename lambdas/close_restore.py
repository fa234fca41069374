"""State "Close" and state "Escalate" of restore_checkpoint."""

from lambdas import restoring
from lambdas.boundary import Event, Fields, task
from lambdas.ending import reason_of
from planaria.core.restores import Restored
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    job_id, number = restoring.of(event)
    outcome = Restored.RESTORED if event["outcome"] == Restored.RESTORED else Restored.FAILED
    row = restoring.end(gw, job_id, number, outcome, reason_of(event))
    return {"outcome": outcome.value, "step": row.get("step", -1), "place": row.get("place", "")}
