"""A job that has waited too long for its nodes: a person is told once, and it goes on waiting.

Its nodes are kept free for it until the hold's end; after that others may have them. It is not given up: the
incident that heals its last node resumes it, however late.
"""

from typing import Any

from lambdas import resuming, survivors
from planaria.core.incident import Phase, split_incident_id
from planaria.core.table import Conflict, Row, equals, missing
from planaria.wiring import Gateways

TELLING_SECONDS = 60.0
"""Whoever is to tell has so long for it; then another one does."""

AGAIN_SECONDS = 600.0
"""Between two tries of a job whose nodes others have."""

MOST_NAMED = 8


def tell_overdue(gw: Gateways, job: Row) -> bool:
    """Mail a person when the job still waits after its hold has ended; True when this call did."""
    until, now = survivors.held_until(job), gw.clock.now()
    if until is None and job.get("unresolved"):
        until = 0.0  # it has failed by itself since, and nobody heals the node that it waits for
    if until is None or until > now or not job.get("owed"):
        return False
    known = job.get("overdue") or {}
    if known.get("until") == until and (known.get("told") or now < float(known["at"]) + TELLING_SECONDS):
        return False
    reason = _waits(gw, job)
    overdue: dict[str, Any] = {"until": until, "at": now, "reason": reason}
    still = equals("overdue", known) if known else missing("overdue")
    still = still & equals("attempt", job["attempt"])
    still = still & (equals(("hold", "until"), until) if until else missing("hold"))
    still = still & equals("pending", job["pending"]) & equals("unresolved", job["unresolved"])
    try:
        gw.jobs.write(job["job_id"], {"overdue": overdue}, when=still)
    except Conflict:
        return False  # another sweep tells, or the job waits for something else by now
    _mail(gw, job, reason)
    try:
        gw.jobs.write(job["job_id"], {("overdue", "told"): True}, when=equals("overdue", overdue))
    except Conflict:
        return True  # the job has gone on meanwhile
    return True


def tries_again(gw: Gateways, job: Row) -> bool:
    """Open another resume where the last one ended because other jobs had this one's nodes: that ends by
    itself. True when this call did."""
    ended = float(job.get("resume_ended_at") or 0.0)
    lost = "no_room" in job and job.get("resume_phase") == Phase.ESCALATED and not job.get("given_up")
    if not lost or gw.clock.now() < ended + AGAIN_SECONDS:
        return False
    claim, reason = f"sweep/{job['job_id']}/{job['resume_number']}", "its nodes may be free by now"
    return resuming.open_resume(gw, job, claim, reason, supersede=False) is not None


def _waits(gw: Gateways, job: Row) -> str:
    """What the job waits for, in one sentence."""
    rows = {row["node_id"]: row for row in gw.ledger.nodes_by_id([*job["pending"], *job["unresolved"]])}
    parts = []
    for node, incident in sorted(job["pending"].items()):
        row = rows.get(node, {})
        why = f"incident {incident} is under way"
        if row.get("session") == split_incident_id(incident)[1] and row.get("capacity_since"):
            why = f"incident {incident} waits for capacity"
        parts.append(f"{row.get('name') or node} ({why})")
    for node, why in sorted(job["unresolved"].items()):
        parts.append(f"{rows.get(node, {}).get('name') or node} ({node}: {why})")
    more = f" and {len(parts) - MOST_NAMED} more" if len(parts) > MOST_NAMED else ""
    return f"it waits for {'; '.join(parts[:MOST_NAMED])}{more}"


def _mail(gw: Gateways, job: Row, reason: str) -> None:
    job_id, seconds = job["job_id"], gw.cluster.policy.hold_seconds
    gw.notices.publish(
        f"Planaria {gw.cluster.name}: job {job_id} waits too long for its nodes",
        f"Job {job_id} does not run, and its nodes were kept free for it for {seconds:.0f} s at most.\n"
        f"Why: {reason}\n"
        "Its other nodes are not kept free for it any more. It still goes on by itself when the last of "
        "these is healed.\n"
        "What to do: docs/runbooks/job-waits.md\nLook: planaria jobs, planaria incidents\n"
        "Then, for a node that was not healed: planaria replace NODE\n",
    )
