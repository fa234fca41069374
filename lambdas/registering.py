"""Which jobs a failing node takes with it, and their rows: also of jobs that nobody told Planaria of.

The scheduler is asked what runs on the node, and what failed there lately: the processes on other nodes often
raise before the node's own fault is seen. A job that failed long before, or runs elsewhere by now, is not the
node's.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from lambdas import survivors
from lambdas.boundary import Event, ask_scheduler
from planaria.core import job_facts
from planaria.core.errors import Waiting
from planaria.core.job_facts import Told
from planaria.core.plans import is_gone
from planaria.core.scheduling import JobQuery, JobsOn, JobState
from planaria.core.table import Conflict, Row, missing
from planaria.wiring import Gateways

UNAWARE = "process"
"""The sandbox's scheduler: all its jobs are registered, and none of them ends without an agent's word."""


def affected(gw: Gateways, event: Event, row: Row) -> list[str]:
    """The ids of the jobs that have to be stopped for this node, registered and with their present places.
    row: the node's. Raises Waiting while the scheduler has not told enough.

    What the incident had been told of before and is not the node's any more waits for it no longer.
    """
    incident, name = event["incident"], event["incident"]["name"]
    mine = {*row.get("stopped_jobs", []), incident["job_id"]} - {""}
    there = set(ask_scheduler(gw, event, "jobs_on", JobsOn((name,))).get(name, []))
    if gw.cluster.scheduler == UNAWARE:
        return sorted(there | mine)
    mine |= _of_the_ledger(gw, incident["node_id"])
    query = JobQuery(tuple(sorted(there | mine)), (name,))
    answer = ask_scheduler(gw, event, "jobs", query)
    jobs = []
    for job in _in_order(row, there, {*query.jobs, *answer}):
        known = gw.jobs.job(job)
        entry = answer.get(job, {})
        told = None if entry is None else job_facts.read(entry)
        if job not in row.get("stopped_jobs", []) and not _takes(row, name, job in there, known, told):
            if job in mine:
                gw.jobs.settle(job, incident["node_id"], incident["incident_id"], None)
            if known is not None and told is not None and _ended_for(row, name, known, told):
                _never(gw, incident, known, job_facts.never_again(job, told))
            continue
        if known is None and told is not None and told.state is JobState.COMPLETING:
            _wait_a_little(gw, row, job)  # Slurm lists only the nodes on which something still ends
        if told is not None and told.state is not JobState.UNKNOWN:
            known = note(gw, job, known, told)
        elif known is None:
            _wait_a_little(gw, row, job)
        if told is not None and known is not None:
            _never(gw, incident, known, job_facts.never_again(job, told))
        jobs.append(job)
    return jobs


def _in_order(row: Row, there: Iterable[str], jobs: Iterable[str]) -> list[str]:
    """Those that have the node come first and keep their nodes: a job that failed before them has lost its
    place. What was written once keeps its order."""
    return list(dict.fromkeys([*row.get("stopped_jobs", []), *sorted(there), *sorted(jobs)]))


def _of_the_ledger(gw: Gateways, node: str) -> set[str]:
    """Jobs that have a place on this node by their rows: one that was stopped for another node is not there
    any more, and one that Slurm has forgotten neither."""
    return {
        str(job["job_id"])
        for job in gw.jobs.jobs()
        if node in job.get("nodes", {}).values() and not job_facts.over(job)
    }


def _takes(row: Row, name: str, there: bool, known: Row | None, told: Told | None) -> bool:
    """The node's end is the job's end too. told: None where the scheduler knows no such job (any more)."""
    if there:
        return True
    if known is not None and job_facts.over(known):
        return False
    if told is None:
        ended = (known or {}).get("ended_at")
        # Forgotten by the scheduler; what `planaria submit` kept can be submitted again.
        return bool(known and known.get("kept") and ended and job_facts.failed_for(float(ended), row))
    if told.failed:
        return _ended_for(row, name, known, told) and not job_facts.never_again("", told)
    if told.state in job_facts.WORKS:
        return name in told.nodes
    # One that waits in the queue by its user's or the scheduler's will is nobody's to start; only what we
    # have stopped, for another node, waits for this one as well.
    ours = ("STOPPED",) if told.state is JobState.PENDING else ("STOPPED", "RUNNING")
    waits = told.state in (JobState.PENDING, JobState.UNKNOWN)
    return waits and known is not None and known["state"] in ours and name in known.get("names", ())


def _ended_for(row: Row, name: str, known: Row | None, told: Told) -> bool:
    return told.failed and name in _places(known, told) and job_facts.failed_for(told.end, row)


def _places(known: Row | None, told: Told) -> tuple[str, ...]:
    return told.nodes or tuple((known or {}).get("names", ()))


def _wait_a_little(gw: Gateways, row: Row, job: str) -> None:
    """A job that is not in the ledger would be lost if it were stopped before anything is known of it. But a
    broken node must not stay in work for its sake."""
    since = float((row.get("isolation") or {}).get("at") or row.get("opened_at") or 0.0)
    if gw.clock.now() < since + survivors.PATIENCE_SECONDS:
        raise Waiting(f"the scheduler does not tell yet what job {job} is")


def note(gw: Gateways, job: str, known: Row | None, told: Told) -> Row:
    """The job's row with what the scheduler tells of it: a new one, or its present places."""
    facts, names = job_facts.row_facts(told, job_facts.FOUND), list(told.nodes)
    if known is None:
        return gw.jobs.register(job, names, instances(gw, names), facts)
    if job_facts.another(known, told):
        return gw.jobs.anew(known, names, instances(gw, names), facts)
    if job_facts.lives_again(known, told):
        known = gw.jobs.lives_again(known, str(facts["state"]))
    return placed(gw, known, told)


def placed(gw: Gateways, job: Row, told: Told) -> Row:
    """The row with the nodes on which the job is now, where it knows others: a scheduler may have started it
    by itself, and a job is often submitted long before it has any."""
    # Of a job that is ending Slurm names only the nodes that are not done with it, never one that is down.
    places = told.state is JobState.RUNNING or (told.failed and not job.get("names"))
    if not places or told.attempt < int(job["attempt"]) or not told.nodes:
        return job
    facts: dict[str, Any] = {"ranks_per_node": told.ranks_per_node or job.get("ranks_per_node", 0)}
    if job["state"] == "PENDING":
        facts["state"] = "RUNNING"
    elif list(told.nodes) == list(job.get("names", [])):
        return job
    try:
        return gw.jobs.placed(job, told.nodes, instances(gw, told.nodes), facts)
    except Conflict as conflict:
        return conflict.row or job  # a heal is changing its places this very moment: that one knows better


def instances(gw: Gateways, names: Iterable[str], nodes: Iterable[Row] | None = None) -> list[str]:
    """The instance behind each scheduler name, "" where the ledger has none. nodes: all rows, if at hand."""
    behind: dict[str, str] = {}
    rows = gw.ledger.nodes() if nodes is None else nodes
    for row in sorted(rows, key=_age):
        if row.get("name") and not row.get("replaced_by"):
            behind[str(row["name"])] = str(row["node_id"])
    return [behind.get(name, "") for name in names]


def _age(row: Mapping[str, Any]) -> tuple[bool, float]:
    """Of several rows with one name the last one counts: one that is there before one that is gone, then the
    newer."""
    return not is_gone(dict(row)), float(row.get("admitted_at") or row.get("launched_at") or 0.0)


def _never(gw: Gateways, incident: Event, job: Row, why: str) -> None:
    """It ends with its node, and nobody may start it again, if there is a reason: said on its row, in the
    incident and by mail."""
    if not why:
        return
    told = gw.ledger.incident(incident["incident_id"])[0] or {}
    gw.ledger.note_incident(
        incident["incident_id"], {"not_restarted": {**told.get("not_restarted", {}), job["job_id"]: why}}
    )
    if job.get("given_up"):
        return
    gw.notices.publish(
        f"Planaria {gw.cluster.name}: job {job['job_id']} ended with its node",
        f"Node {incident['name']} ({incident['node_id']}) failed, and job {job['job_id']} of "
        f"{job.get('user') or 'an unknown user'} ran there.\n"
        f"It is not started again: {why}.\n"
        "What to do: docs/runbooks/job-not-restarted.md\nLook: planaria jobs\n",
    )
    try:
        gw.jobs.write(job["job_id"], {"given_up": f"{why}"}, when=missing("given_up"))
    except Conflict:
        return
