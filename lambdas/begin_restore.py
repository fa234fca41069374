"""State "Begin" of restore_checkpoint: take over a resume's claim of a restore, or claim one for a person."""

from collections.abc import Mapping

from lambdas import restoring, tiers
from lambdas.boundary import Event, Fields, task
from planaria.core import console, restores
from planaria.core.errors import Fenced, InvalidInput
from planaria.core.incident import Phase
from planaria.core.restores import Order
from planaria.core.table import Conflict, Row, equals, missing
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    document, execution = event["document"], event["execution"]
    if isinstance(document, Mapping) and "number" in document:
        row = restores.enter(gw.table, *console.restore_document(document))
    else:
        row = _claim(gw, console.restore_order(document), execution)
    job_id, number = str(row["job_id"]), int(row["number"])
    folder = str(row.get("directory") or tiers.folder_of(gw.jobs.job(job_id) or {}))
    sets = {"phase": Phase.RUNNING.value, "execution_arn": execution, "folder": folder}
    mine = missing("execution_arn") | equals("execution_arn", execution)
    try:
        restores.write(gw.table, job_id, number, sets, when=mine)
    except Conflict:
        raise Fenced(f"another execution does restore {number} of job {job_id}") from None
    return {"restore": {"job_id": job_id, "number": number}}


def _claim(gw: Gateways, order: Order, execution: str) -> Row:
    if gw.jobs.job(order.job_id) is None and not order.directory:
        raise InvalidInput(
            f"job_id {order.job_id!r:.60} is not known; `planaria jobs` lists the jobs, or say with "
            "`directory` where its checkpoints are to go"
        )
    return restoring.claim_for_person(gw, order, execution)
