"""A job's checkpoints over all tiers: its folder as one of its nodes lists it, and S3 as the bucket tells it.

What restores found bad (planaria/core/restores.py) counts as corrupt, until the copy has changed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from lambdas.boundary import Event, ask_command
from planaria.core import listed_steps, restores
from planaria.core.errors import PermanentError, TransientError, Waiting
from planaria.core.incident import ACTIVE
from planaria.core.plans import is_gone
from planaria.core.saved_step import StepCopy, StepState
from planaria.core.table import Row
from planaria.wiring import Gateways

DOCUMENT = "planaria-list-checkpoints"
MOST_CARRIERS = 16
READ_GIB = "8"
"""So much the node reads of the newest step, to see whether it is what was saved: that takes seconds."""


def folder_of(job: Mapping[str, Any]) -> str:
    """Where the job's steps are on every node, "" where the node knows it by itself."""
    return str((job.get("lineage") or {}).get("folder") or "")


def on_file_system(gw: Gateways, event: Event, job_id: str, folder: str, node: str) -> list[StepCopy]:
    """As this node sees it. Raises Waiting while it has not answered, with the node as `witness`."""
    parameters = {"Job": job_id, "ReadGiB": READ_GIB} | ({"Directory": folder} if folder else {})
    try:
        entry = ask_command(gw, event, DOCUMENT, [node], parameters).get(node) or {}
    except Waiting as wait:
        raise Waiting(str(wait), {**wait.carry, "witness": node}) from None
    if entry.get("status") != "SUCCESS":
        raise Waiting(f"{node} cannot list the checkpoints of job {job_id}: {entry.get('output')}")
    return listed_steps.copies(entry["output"], job_id, folder)


def in_s3(gw: Gateways, job_id: str, folder: str) -> list[StepCopy]:
    """Raises TransientError, PermanentError where the bucket cannot be asked."""
    policy = gw.cluster.checkpoints
    place = policy.place(folder) if policy and folder else None
    return gw.checkpoints(job_id, place.url if place else "").steps()


def in_s3_if_told(
    gw: Gateways, job: Row, folder: str, there: Iterable[StepCopy]
) -> tuple[list[StepCopy], str]:
    """(copies, what kept us from asking). A bucket that cannot be asked stops nobody whose own folder holds
    the newest step that anybody reported."""
    try:
        return in_s3(gw, str(job["job_id"]), folder), ""
    except (PermanentError, TransientError) as error:
        newest = max((copy.step for copy in there if copy.usable), default=-1)
        if newest < 0 or newest < int(job.get("saved_step", -1)):
            raise
        return [], f"S3 could not be asked ({error})"


def marked(copies: Iterable[StepCopy], restore: Mapping[str, Any]) -> list[StepCopy]:
    """The same copies, those that a restore found bad as corrupt. restore: the job's restore row."""
    bad = restore.get("bad") or {}
    return [_marked(copy, bad.get(restores.copy_key(copy))) for copy in copies]


def _marked(copy: StepCopy, mark: Mapping[str, Any] | None) -> StepCopy:
    if mark is None or not copy.usable or (copy.touched_at or 0.0) > float(mark["at"]):
        return copy
    return replace(copy, state=StepState.CORRUPT, reason=str(mark["why"]))


def witnesses(gw: Gateways, job: Row) -> list[str]:
    """Nodes of the job that are not gone: all of them should see the same file system. Those that have run
    the job before come first; of a replacement it is not known yet."""
    nodes = [str(job["nodes"][rank]) for rank in sorted(job["nodes"], key=int)]
    rows = {row["node_id"]: row for row in gw.ledger.nodes_by_id(nodes)}
    there = [node for node in nodes if not is_gone(rows.get(node, {}))]
    if not there:
        raise Waiting(f"no node of job {job['job_id']} is there to list its checkpoints")
    return sorted(there, key=lambda node: "replaces" in rows.get(node, {}))


def carriers(gw: Gateways, job: Row) -> list[str]:
    """Nodes that can bring a step: the job's own that are there, else those of the cluster that work. Raises
    Waiting while there is none."""
    if job.get("nodes"):
        return witnesses(gw, job)[:MOST_CARRIERS]
    able = [
        str(row["node_id"])
        for row in gw.ledger.nodes()
        if not is_gone(row) and row.get("phase") not in ACTIVE and not row.get("isolation")
    ]
    if not able:
        raise Waiting("no node of the cluster is there to bring the checkpoint")
    return sorted(able)[:MOST_CARRIERS]
