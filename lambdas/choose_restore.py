"""State "Choose" of restore_checkpoint: the newest good step over all tiers, and whether it must be brought.

What an earlier round brought and found bad counts as corrupt, so each round takes an older copy, down to the
last; never step 0.
"""

from collections.abc import Sequence
from typing import Any

from lambdas import restoring, tiers
from lambdas.boundary import Event, Fields, task
from lambdas.carrying import Via
from planaria.core import checkpoints, lineage, restores
from planaria.core.checkpoints import Choice
from planaria.core.errors import PermanentError
from planaria.core.saved_step import StepCopy, StepState, Tier
from planaria.core.table import Row, equals
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    row = restores.enter(gw.table, *restoring.of(event))
    if "place" in row:
        return {"state": restoring.THERE, "step": row["step"]}
    if row.get("work"):
        return {"state": restoring.TO_BRING, "step": row["work"]["step"]}
    if int(row["round"]) >= restores.MOST_ROUNDS:
        raise PermanentError(_failed(row, f"{restores.MOST_ROUNDS} copies were tried and none is good"))
    job = gw.jobs.job(str(row["job_id"])) or {"job_id": row["job_id"]}
    folder = str(row["folder"])
    node = (event.get("carry") or {}).get("witness") or tiers.carriers(gw, job)[0]
    there = tiers.on_file_system(gw, event, str(row["job_id"]), folder, node)
    copies = tiers.marked([*there, *tiers.in_s3(gw, str(row["job_id"]), folder)], row)
    choice = _choose(row, job, copies)
    here = next((copy for copy in choice.copies if copy.tier is Tier.FSX), None)
    same = equals("round", row["round"])
    if here is not None:
        sets = {"step": choice.step, "place": here.place, "why": choice.why}
        restores.write(gw.table, row["job_id"], row["number"], sets, when=same)
        return {"state": restoring.THERE, "step": choice.step}
    turn = int(row["round"]) + 1
    work = _work(gw, row, next(copy for copy in choice.copies if copy.tier is Tier.S3), there, turn)
    sets = {"work": work, "round": turn, "why": choice.why}
    restores.write(gw.table, row["job_id"], row["number"], sets, when=same)
    return {"state": restoring.TO_BRING, "step": choice.step}


def _choose(row: Row, job: Row, copies: Sequence[StepCopy]) -> Choice:
    """Raises PermanentError where there is nothing that may be restored."""
    wanted, job_id = row.get("wanted"), str(row["job_id"])
    if wanted is not None:
        copies = [copy for copy in copies if copy.step == wanted]
        if not any(copy.usable for copy in copies):
            found = [f"{copy.place or copy.tier} is {copy.state}: {copy.reason}" for copy in copies]
            raise PermanentError(
                _failed(row, f"step {wanted}: {'; '.join(found) or 'there is no copy of it'}")
            )
    # What a person asked for by its number is taken, whatever the job made of it before.
    aside = job.get("aside") or {} if wanted is None else {}
    try:
        starts = lineage.starts_of(job.get("attempts") or {})
        choice = checkpoints.choose_copy(copies, job_id, aside, starts)
    except PermanentError as error:
        raise PermanentError(_failed(row, str(error))) from None
    if not choice.copies:
        where = row["folder"] or "its folder"
        raise PermanentError(_failed(row, f"there is no checkpoint of it in {where} nor in S3"))
    return choice


def _failed(row: Row, why: str) -> str:
    told = "; ".join(row.get("passed_over") or ())
    return (
        f"restore {row['number']} of job {row['job_id']} cannot be done: {why}{f' ({told})' if told else ''}"
    )


def _work(gw: Gateways, row: Row, copy: StepCopy, there: Sequence[StepCopy], turn: int) -> dict[str, Any]:
    """FSx knows the files of a linked bucket again by an import; over what is left of the step in the folder
    it would not go, so that is fetched beside it."""
    policy = gw.cluster.checkpoints
    place = policy.place(str(row["folder"])) if policy and row["folder"] else None
    linked = place is not None and place.url and copy.place.startswith(f"{place.url}/")
    left = any(each.name == copy.name for each in there)
    work: dict[str, Any] = {
        "step": copy.step,
        "attempt": copy.lineage.attempt if copy.lineage else 0,
        "name": copy.name,
        "place": copy.place,
        "digest": copy.digest,
        "size": copy.size,
        "proven": copy.state is StepState.DURABLE,
        "key": restores.copy_key(copy),
        "transfer": restores.transfer_id(str(row["job_id"]), int(row["number"]), turn),
        "via": (Via.IMPORT if linked and not left else Via.FETCH).value,
    }
    if place is not None:
        work["file_system"] = place.file_system.id
    return work
