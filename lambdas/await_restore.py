"""State "Wait for the restore" of resume_job: as await_node, with the token on the restore's row.

Without a token this only looks, and sees to it that the restore goes on.
"""

from lambdas import restoring
from lambdas.boundary import Event, Fields, task
from planaria.core import restores
from planaria.core.errors import Fenced, Waiting
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    job_id, number = event["resume"]["job_id"], int(event["resume"]["number"])
    job = gw.jobs.enter(job_id, number)
    restore, token = int(event["restore"]), event.get("token")
    if token:
        try:
            waits = {("waiting", str(job["resume_name"])): token}
            restores.write(gw.table, job_id, restore, waits)
        except Fenced:
            gw.workflows.answer(token, {"result": "DONE", "reason": ""})  # it has ended meanwhile
        return {}
    row = restores.read(gw.table, job_id)
    if row.get("number") != restore or not restores.active(row):
        return {}
    restoring.revive(gw, row)
    work = row.get("work") or {}
    raise Waiting(
        f"restore {restore} of job {job_id} has {work.get('done_bytes', 0)} of {work.get('bytes', '?')} bytes"
    )
