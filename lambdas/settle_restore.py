"""State "Settle" of restore_checkpoint: a node checks the whole step and gives it its name, manifest last.

A copy that is not what its manifest says is passed over, and the next older one is chosen.
"""

from collections.abc import Mapping
from typing import Any

from lambdas import carrying, restoring, tiers
from lambdas.boundary import Event, Fields, task
from planaria.core import restores
from planaria.core.checkpoint_ledger import CheckpointLedger
from planaria.core.errors import PermanentError
from planaria.core.saved_step import USABLE
from planaria.core.table import Row, equals
from planaria.core.transfers import Cause
from planaria.wiring import Gateways

TRIES_OF_ONE = 2
"""Of a copy that was not brought for a reason that nobody knows."""


@task
def handler(event: Event, gw: Gateways) -> Fields:
    job_id, number = restoring.of(event)
    row = restores.enter(gw.table, job_id, number)
    if "place" in row:
        return {"state": restoring.THERE, "step": row["step"]}
    if not row.get("work"):
        return {"state": restoring.PASSED_OVER}
    work = row["work"]
    same = equals(("work", "transfer"), work["transfer"])
    told: Mapping[str, Any] = {}
    if work.get("planned"):
        told = carrying.settle(gw, row, tiers.carriers(gw, gw.jobs.job(job_id) or {"job_id": job_id}))
    if told.get("state") in USABLE:
        place = f"{str(row['folder']).rstrip('/')}/{work['name']}"
        sets = {"step": work["step"], "place": place}
        restores.write(gw.table, job_id, number, sets, when=same)
        return {"state": restoring.THERE, "step": work["step"]}
    flaw = work.get("flaw") or {"cause": carrying.cause_of(told.get("cause")).value, "reason": ""}
    reason = str(flaw["reason"] or told.get("reason") or f"it is {told.get('state')}")
    if flaw["cause"] == Cause.FULL:
        raise PermanentError(f"restore {number} of job {job_id}: step {work['step']} has no room: {reason}")
    _pass_over(gw, row, str(flaw["cause"]), reason)
    return {"state": restoring.PASSED_OVER, "step": work["step"]}


def _pass_over(gw: Gateways, row: Row, cause: str, reason: str) -> None:
    work, now, job_id = row["work"], gw.clock.now(), str(row["job_id"])
    known, tries = str(work["key"]), dict(row.get("tries") or {})
    tries[known] = int(tries.get(known, 0)) + 1
    sets: dict[Any, Any] = {"tries": tries}
    if cause in carrying.OF_THE_COPY or tries[known] >= TRIES_OF_ONE:
        sentence = f"step {work['step']} of attempt {work['attempt']} in S3 was not taken: {reason}"
        sets |= restores.found_bad(row, known, f"it could not be restored: {reason}", sentence, now)
        if cause == Cause.BAD:
            # Before it is passed over: retention counts on it until then.
            CheckpointLedger(gw.table).spoiled(job_id, int(work["attempt"]), int(work["step"]), reason, now)
    same = equals(("work", "transfer"), work["transfer"])
    restores.write(gw.table, job_id, int(row["number"]), sets, ("work",), same)
