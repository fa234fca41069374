"""State "Choose the checkpoint": the newest good step over all tiers; what is in S3 alone is brought first.

First it must be clear that all nodes of the job work. Then a node lists the job's folder and the bucket tells
what it has. The job starts from what is whole in its folder: what a restore has brought is listed once more,
by the job's own nodes.
"""

from collections.abc import Sequence

from lambdas import members, own_checkpoints, refilled_folders, survivors, tiers
from lambdas.boundary import Event, Fields, task
from planaria.core import attempts, checkpoints, job_facts, lineage, restores
from planaria.core.checkpoints import Choice
from planaria.core.errors import PermanentError, Waiting
from planaria.core.saved_step import StepCopy, Tier
from planaria.core.table import Row
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    job_id, number = event["resume"]["job_id"], int(event["resume"]["number"])
    job = gw.jobs.enter(job_id, number)
    if "resume_step_chosen" in job:
        return {"step": job["resume_step_chosen"], "why": job.get("resume_step_reason", "")}
    job = members.not_being_healed(gw, job)
    carry = event.get("carry") or {}
    if tiers.DOCUMENT not in carry:
        _settle(gw, job)
        members.fit(gw, job, int(carry.get("looks", 0)))
    if job_facts.finds_its_checkpoints(job):
        step, why = own_checkpoints.look(gw, event, job)
        choice = refilled_folders.lacking(gw, event, job)
        if choice is None:
            return _chosen(gw, job, step, why)
        if choice.copies[0].tier is Tier.FSX:
            return _chosen(gw, job, choice.step, choice.why)
        return refilled_folders.refill(gw, job, choice)
    witnesses = tiers.witnesses(gw, job)
    node, folder = carry.get("witness") or witnesses[0], tiers.folder_of(job)
    there = tiers.on_file_system(gw, event, job_id, folder, node)
    if not there and node == witnesses[0] and len(witnesses) > 1:
        # An empty list may be a file system that is not mounted there.
        raise Waiting(f"{node} sees no checkpoint; another node is asked", {"witness": witnesses[1]})
    stored, untold = tiers.in_s3_if_told(gw, job, folder, there)
    choice = _choose(gw, job, [*there, *stored])
    if not choice.copies:
        _refuse_step_0(job)
    elif choice.copies[0].tier is not Tier.FSX:
        return refilled_folders.refill(gw, job, choice)
    return _chosen(gw, job, choice.step, f"{choice.why}; {untold}" if untold else choice.why)


def _chosen(gw: Gateways, job: Row, step: int, why: str) -> Fields:
    job_id, number = str(job["job_id"]), int(job["resume_number"])
    gw.jobs.write_resume(job_id, number, {"resume_step_chosen": step, "resume_step_reason": why})
    for name in sorted(job.get("credits", {})):
        gw.ledger.note_incident(name, {"resume_step": step, "resume_step_reason": why})
    return {"step": step, "why": why}


def _settle(gw: Gateways, job: Row) -> None:
    """What has failed may not be all that fails: others of the job are waited for a little."""
    failed_at, stopped_at = job.get("resume_failed_at"), survivors.held_since(job)
    if failed_at is not None and failed_at == job.get("ordered_at"):
        failed_at = None  # a person has looked
    since = max((float(at) for at in (failed_at, stopped_at) if at is not None), default=None)
    if since is not None and gw.clock.now() < since + gw.cluster.policy.job_settle_seconds:
        raise Waiting(f"job {job['job_id']} failed just now; other nodes of it may fail as well")


def _choose(gw: Gateways, job: Row, copies: Sequence[StepCopy]) -> Choice:
    """The copy from which the last attempts failed alike is set aside, if it would be chosen again."""
    job_id, aside = str(job["job_id"]), dict(job.get("aside") or {})
    copies = tiers.marked(copies, restores.read(gw.table, job_id))
    starts = lineage.starts_of(job.get("attempts") or {})
    choice = checkpoints.choose_copy(copies, job_id, aside, starts)
    suspect = attempts.suspect(job)
    if suspect is None or suspect[0] != choice.step or not choice.copies:
        return choice
    mark = {"why": suspect[1], "copy": choice.copies[0].saved_at, "at": gw.clock.now()}
    aside[str(choice.step)] = mark
    gw.jobs.write_resume(job["job_id"], int(job["resume_number"]), {"aside": aside})
    return checkpoints.choose_copy(copies, job_id, aside, starts)


def _refuse_step_0(job: Row) -> None:
    known = {"resumed from": job.get("resume_step"), "saved": job.get("saved_step")}
    for what, step in known.items():
        if step is not None and int(step) >= 0:
            raise PermanentError(
                f"job {job['job_id']} {what} step {step} before, and now no checkpoint is there; "
                "it is not started from step 0"
            )
