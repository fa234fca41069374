"""State "Close" and state "Escalate" of a resume."""

from lambdas import closing_resume
from lambdas.boundary import Event, Fields, task
from lambdas.ending import reason_of
from planaria.core.incident import Phase
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    job_id, number = event["resume"]["job_id"], int(event["resume"]["number"])
    outcome = Phase(event["outcome"])
    closing_resume.close(gw, job_id, number, outcome, reason_of(event))
    return {"outcome": outcome.value}
