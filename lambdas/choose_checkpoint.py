"""State "Choose the checkpoint": the newest complete step that a node with the file system can see.

First it must be clear that all nodes of the job work.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lambdas import members, own_checkpoints, survivors
from lambdas.boundary import Event, Fields, ask_command, task
from planaria.core import attempts, checkpoints, job_facts
from planaria.core.errors import PermanentError, Waiting
from planaria.core.plans import is_gone
from planaria.core.table import Row
from planaria.wiring import Gateways

DOCUMENT = "planaria-list-checkpoints"


@task
def handler(event: Event, gw: Gateways) -> Fields:
    job_id, number = event["resume"]["job_id"], int(event["resume"]["number"])
    job = gw.jobs.enter(job_id, number)
    if "resume_step_chosen" in job:
        return {"step": job["resume_step_chosen"], "why": job.get("resume_step_reason", "")}
    job = members.not_being_healed(gw, job)
    carry = event.get("carry") or {}
    if DOCUMENT not in carry:
        _settle(gw, job)
        members.fit(gw, job, int(carry.get("looks", 0)))
    if job_facts.finds_its_checkpoints(job):
        step, why = own_checkpoints.look(gw, event, job)
        return _chosen(gw, job, step, why)
    witnesses = _witnesses(gw, job)
    node = carry.get("witness") or witnesses[0]
    step, why = _choose(gw, job, _listed(gw, event, job_id, node))
    if step == checkpoints.NO_CHECKPOINT:
        if node == witnesses[0] and len(witnesses) > 1:
            # An empty list may be a file system that is not mounted there.
            raise Waiting(f"{node} sees no checkpoint; another node is asked", {"witness": witnesses[1]})
        _refuse_step_0(job)
    return _chosen(gw, job, step, why)


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


def _choose(gw: Gateways, job: Row, steps: Sequence[Mapping[str, Any]]) -> tuple[int, str]:
    """The copy from which the last attempts failed alike is set aside, if it would be chosen again."""
    aside = dict(job.get("aside") or {})
    step, why = checkpoints.choose(steps, aside)
    suspect = attempts.suspect(job)
    if suspect is None or suspect[0] != step:
        return step, why
    mark = {"why": suspect[1], "copy": checkpoints.copy_of(steps, step), "at": gw.clock.now()}
    aside[str(step)] = mark
    gw.jobs.write_resume(job["job_id"], int(job["resume_number"]), {"aside": aside})
    return checkpoints.choose(steps, aside)


def _listed(gw: Gateways, event: Event, job_id: str, node: str) -> list[Mapping[str, Any]]:
    try:
        entry = ask_command(gw, event, DOCUMENT, [node], {"job_id": job_id}).get(node) or {}
    except Waiting as wait:
        raise Waiting(str(wait), {**wait.carry, "witness": node}) from None
    if entry.get("status") != "SUCCESS":
        raise Waiting(f"{node} cannot list the checkpoints of job {job_id}: {entry.get('output')}")
    return list(entry["output"]["steps"])


def _refuse_step_0(job: Row) -> None:
    known = {"resumed from": job.get("resume_step"), "saved": job.get("saved_step")}
    for what, step in known.items():
        if step is not None and int(step) >= 0:
            raise PermanentError(
                f"job {job['job_id']} {what} step {step} before, and now no checkpoint is there; "
                "it is not started from step 0"
            )


def _witnesses(gw: Gateways, job: Row) -> list[str]:
    """Nodes of the job that are not gone: all of them should see the same file system. Those that have run
    the job before come first; of a replacement it is not known yet."""
    nodes = [str(job["nodes"][rank]) for rank in sorted(job["nodes"], key=int)]
    rows = {row["node_id"]: row for row in gw.ledger.nodes_by_id(nodes)}
    there = [node for node in nodes if not is_gone(rows.get(node, {}))]
    if not there:
        raise Waiting(f"no node of job {job['job_id']} is there to list its checkpoints")
    return sorted(there, key=lambda node: "replaces" in rows.get(node, {}))
