"""node, jobs-on and jobs: what Slurm knows, in the schedulers' common words.

node and jobs are asked again and again, so they also put back addresses that Slurm has forgotten, and the
lists of nodes of jobs that somebody else has requeued.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from planaria.core.scheduling import JobState
from planaria.slurm import addresses, jobs, nodes, reasons, remembering, stopping
from planaria.slurm.jobs import ENDED, Job
from planaria.slurm.nodes import Node
from planaria.slurm.programs import Slurm

FAILED_KEPT = 20
"""Of the jobs that ended badly on one node: so many of the newest are told."""

NODES_FAULT = frozenset({"NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED"})
COMMON = {
    "PENDING": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "SUSPENDED": JobState.RUNNING,
    "COMPLETED": JobState.COMPLETED,
    "FAILED": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.FAILED,
    "CANCELLED": JobState.CANCELLED,
    "TIMEOUT": JobState.TIMEOUT,
    "DEADLINE": JobState.TIMEOUT,
    **dict.fromkeys(NODES_FAULT, JobState.NODE_FAIL),
}


def tell_nodes(slurm: Slurm, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """name -> {"state", "node_id", "reason", "jobs"}; an unknown name is UNKNOWN.

    Without names: the nodes that Slurm keeps out of work by its own words, each also with "codes" (what the
    fault catalogue calls these words) and "since" (epoch seconds, 0.0 where Slurm does not say).
    """
    if not names:
        return _by_itself(slurm)
    return _tell(slurm, names, nodes.read(slurm, names))


def _by_itself(slurm: Slurm) -> dict[str, dict[str, Any]]:
    every = nodes.every(slurm)
    found = {name: node for name, node in every.items() if node.by_itself}
    more = {
        name: {"codes": reasons.codes(node.reason), "since": float(node.reason_at)}
        for name, node in found.items()
    }
    return {name: {**told, **more[name]} for name, told in _tell(slurm, list(found), found).items()}


def _tell(slurm: Slurm, names: Sequence[str], found: Mapping[str, Node]) -> dict[str, dict[str, Any]]:
    addresses.restore(slurm, found.values())
    live = jobs.live_on(jobs.every(slurm), list(found)) if found else {}
    told: dict[str, dict[str, Any]] = {}
    for name in names:
        node = found.get(name)
        if node is None:
            told[name] = {"state": "UNKNOWN", "node_id": "", "reason": f"no node {name}", "jobs": []}
            continue
        told[name] = {
            "state": str(node.words.state),
            "node_id": node.mark.get("node", ""),
            "reason": node.reason,
            "jobs": live[name],
        }
        if not node.words.clear or str(node.words.state) == "UNKNOWN":
            told[name]["words"] = node.words.plain
    return told


def tell_jobs_on(slurm: Slurm, names: Sequence[str]) -> dict[str, list[str]]:
    """name -> ids of the jobs that run or complete there; nothing runs on a name that Slurm does not know."""
    return jobs.live_on(jobs.every(slurm), names)


def tell_jobs(slurm: Slurm, ids: Sequence[str], on: Sequence[str]) -> dict[str, dict[str, Any] | None]:
    """As core/scheduling.JobQuery says."""
    addresses.restore(slurm, nodes.every(slurm).values())
    every = jobs.every(slurm)
    if [job.id for job in every if remembering.recall(slurm, job)]:
        every = jobs.every(slurm)
    for job in every:
        stopping.unpin(slurm, job)
    found = jobs.pick(every, ids)
    for name, live in jobs.live_on(every, on).items():
        failed = [job for job in every if name in job.nodes and common(job) in ("FAILED", "NODE_FAIL")]
        newest = sorted(failed, key=lambda job: -job.head.end)[:FAILED_KEPT]
        found |= jobs.pick(every, [*live, *(job.id for job in newest)])
    return {**dict.fromkeys(ids), **{job: _told(facts) for job, facts in found.items()}}


def common(job: Job) -> str:
    """The job's state in common words; UNKNOWN is never an end."""
    if job.completing:
        return str(JobState.COMPLETING)
    return str(COMMON.get(job.state, JobState.UNKNOWN))


def ranked(job: Job) -> tuple[str, ...]:
    """The job's nodes in the order of their ranks: as we handed it over, else Slurm's own order."""
    order = tuple(each for each in job.mark.get("nodes", "").split(",") if each)
    return order if sorted(order) == sorted(job.nodes) else job.nodes


def started(job: Job) -> int:
    """The attempt that was started last: ours, 1 as it was submitted, 0 before its start."""
    ours = job.mark.get("attempt", "")
    if ours.isdigit():
        return int(ours)
    return 0 if job.state == "PENDING" and job.head.restarts == 0 else 1


def _told(job: Job) -> dict[str, Any]:
    head = job.head
    code, _, signal = head.exit_code.partition(":")
    exit_code = -int(signal) if signal.isdigit() and int(signal) else int(code) if code.isdigit() else 0
    return {
        "state": common(job),
        "nodes": list(ranked(job)),
        "ranks_per_node": job.ranks_per_node,
        "attempt": started(job),
        "restarts": head.restarts,
        "exit_code": exit_code,
        "user": head.user,
        "name": head.name,
        "requeue": head.requeue,
        "batch": head.batch,
        "reason": head.reason,
        "submit": float(head.submit),
        "start": float(head.start),
        "end": float(head.end) if head.state in ENDED and not job.completing else 0.0,
        "slurm_id": head.raw,
        "folder": job.told.get("folder", ""),
    }
