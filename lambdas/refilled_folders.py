"""The restore that a resume needs: the step that it would take is in S3, and not whole in the job's folder.

On the job's row: resume_restore {"of": number of the resume, "number": of the restore, "tries"}.
"""

from lambdas import restoring, tiers
from lambdas.boundary import Event, Fields
from planaria.core import checkpoints, lineage, restores
from planaria.core.checkpoints import Choice
from planaria.core.errors import PermanentError, TransientError
from planaria.core.restores import Order, Restored
from planaria.core.saved_step import Tier
from planaria.core.table import Row
from planaria.wiring import Gateways

MOST_TRIES = 2
"""Restores of one resume: what was brought and is not seen afterwards is brought once more."""


def refill(gw: Gateways, job: Row, choice: Choice) -> Fields:
    """The restore to wait for, after which the checkpoint is chosen anew. Raises PermanentError where it has
    failed."""
    job_id, number = str(job["job_id"]), int(job["resume_number"])
    known = job.get("resume_restore") or {}
    mine = known if known.get("of") == number else {"of": number, "tries": 0}
    row = restores.read(gw.table, job_id)
    claim = f"{job['resume_name']}/{mine['tries']}"
    if mine["tries"] and row.get("claim_id") == claim and not restores.active(row):
        if row["phase"] == Restored.FAILED:
            raise PermanentError(str(row.get("outcome_reason") or f"restore {row['number']} failed"))
        if mine["tries"] >= MOST_TRIES:
            raise PermanentError(
                f"restore {row['number']} of job {job_id} has brought step {row.get('step')} to "
                f"{row.get('place')}, and the job's nodes do not list it as a good one"
            )
    if not mine["tries"] or (row.get("claim_id") == claim and not restores.active(row)):
        mine = {**mine, "tries": int(mine["tries"]) + 1}
        claim = f"{job['resume_name']}/{mine['tries']}"
        gw.jobs.write_resume(job_id, number, {"resume_restore": mine})
    reason = f"resume {number} of the job starts from step {choice.step}, which is in S3 alone"
    row = restoring.ensure(gw, Order(job_id, reason=reason), claim)
    return {"restore": int(row["number"]), "reason": reason}


def lacking(gw: Gateways, event: Event, job: Row) -> Choice | None:
    """For a job that finds its checkpoints by itself: None where its folder has all that it may want, else
    what it should find there; its first copy is in S3, or on the file system where a restore of this resume
    has brought it.

    What we cannot read may be its newest step all the same, so the folder is only filled where nothing in it
    is as new as what S3 has.
    """
    job_id, folder = str(job["job_id"]), tiers.folder_of(job)
    if not folder:
        return None
    restore = restores.read(gw.table, job_id)
    node = (event.get("carry") or {}).get("witness") or ""
    try:
        stored = [copy for copy in tiers.marked(tiers.in_s3(gw, job_id, folder), restore) if copy.usable]
    except (PermanentError, TransientError):
        there = tiers.on_file_system(gw, event, job_id, folder, node or tiers.witnesses(gw, job)[0])
        if any(copy.usable or copy.sealable for copy in there):
            return None  # it has something to go on from, and nobody can tell of anything newer
        raise
    if not stored:
        return None
    there = tiers.on_file_system(gw, event, job_id, folder, node or tiers.witnesses(gw, job)[0])
    there = tiers.marked(there, restore)
    starts = lineage.starts_of(job.get("attempts") or {})
    choice = checkpoints.choose_copy([*there, *stored], job_id, job.get("aside") or {}, starts)
    if not choice.copies or any(copy.sealable and copy.step >= choice.step for copy in there):
        return None
    if choice.copies[0].tier is not Tier.FSX:
        return choice
    brought = (job.get("resume_restore") or {}).get("of") == job["resume_number"]
    return choice if brought and restore.get("step") == choice.step else None
