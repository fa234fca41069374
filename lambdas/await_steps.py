"""State "Wait for a step": the resume is proven when the attempt's first step is done.

As await_node: the token lies on the job's row, and without a token this only looks. Of a job whose steps
nobody reports the scheduler's word is all there is (lambdas/steadiness.py), and it is given already.
"""

from lambdas.boundary import Event, Fields, task
from planaria.core import job_facts
from planaria.core.errors import Waiting
from planaria.core.table import Conflict, differs
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    job_id, number = event["resume"]["job_id"], int(event["resume"]["number"])
    job = gw.jobs.enter(job_id, number)
    token = event.get("token")
    if not job_facts.reports_steps(job):
        if token:
            gw.workflows.answer(token, {"result": "DONE", "reason": ""})
        return {}
    if token:
        try:
            gw.jobs.write_resume(
                job_id, number, {"waiting": token}, when=differs(("first_step", "attempt"), number)
            )
        except Conflict:
            gw.workflows.answer(token, {"result": "DONE", "reason": ""})
        return {}
    if (job.get("first_step") or {}).get("attempt") != number:
        raise Waiting(f"attempt {number} of job {job_id} has not finished a step yet")
    return {}
