"""Ending an incident that needs a person: shared by its own last state and by sweep."""

import json
from collections.abc import Mapping
from typing import Any

from lambdas import resuming, scaling, spares
from planaria.core.incident import ACTIVE, Phase
from planaria.core.plans import GONE_STATES, is_gone
from planaria.core.runbooks import path_of
from planaria.core.table import Conflict, Row, equals
from planaria.wiring import Gateways

TOLD_SHARE = 1 / 24
"""Of the time for which repairs are remembered: an hour by default, within which one mail is enough."""


def escalate(gw: Gateways, incident: Mapping[str, Any], row: Row, reason: str) -> bool:
    """Free the job, close the session, then mail a person; False when the session had ended otherwise.

    Safe to repeat: one escalation of one session is mailed once, also when the first try died in between.
    """
    node, session = incident["node_id"], int(incident["session"])
    if row.get("phase") not in (*ACTIVE, Phase.ESCALATED):
        return False
    successor = _successor(gw, row)
    if row.get("replaced_by") and not successor:
        _place_is_free(gw, row)
    for job in jobs_of(incident, row):
        waits = "" if successor else _waits(gw, job, row, reason)
        resuming.node_settled(gw, {**incident, "job_id": job}, successor, waits)
    if row.get("isolation_refused") and not row.get("isolation"):
        # Someone else had taken it out of work already: it is no removal of ours, and others need the room.
        gw.breaker.release(incident["incident_id"], str((row.get("fault") or {}).get("detector", "unknown")))
    gw.ledger.close(node, session, Phase.ESCALATED, gw.clock.now(), reason)
    row = gw.ledger.node(node) or {}
    if row.get("session") != session or row.get("phase") != Phase.ESCALATED:
        return False
    if row.get("mailed") != session:
        told = {"page": path_of(reason), "at": gw.clock.now()}
        if row.get("verb") or not _told_lately(gw, row, told):
            _mail(gw, incident, row, reason, successor)
            gw.ledger.note_node(node, {"told": told})
        gw.ledger.note_node(node, {"mailed": session})
    return True


def _successor(gw: Gateways, row: Row) -> str:
    """The instance that has the node's place already, "" when none has."""
    new = str(row.get("replaced_by") or "")
    admitted = bool(new) and bool((gw.ledger.node(new) or {}).get("admitted_at"))
    return (resuming.newest(gw, new) or new) if admitted else ""


def _waits(gw: Gateways, job: str, row: Row, reason: str) -> str:
    """Why the job waits for this node, "" when it does not: it was stopped for it, or the node is gone. What
    an earlier session has taken away stays so."""
    if is_gone(row) or job in row.get("stopped_jobs", []):
        return reason
    if not row.get("isolation"):
        return ""
    return str((gw.jobs.job(job) or {}).get("unresolved", {}).get(row["node_id"], ""))


def _told_lately(gw: Gateways, row: Row, told: Mapping[str, Any]) -> bool:
    """A person knows of the same trouble with this node: a fault that comes back is no news."""
    before, within = row.get("told") or {}, gw.cluster.policy.ladder_seconds * TOLD_SHARE
    return bool(before.get("page") == told["page"] and told["at"] - float(before["at"]) < within)


def jobs_of(incident: Mapping[str, Any], row: Row) -> list[str]:
    """The jobs that this incident holds up: the node's own, and those that were found running there."""
    return sorted({incident["job_id"], *row.get("stopped_jobs", [])} - {""})


def give_back(gw: Gateways, row: Row, lost: bool = False) -> None:
    """End what this session has launched or taken and never admitted, or leave it to the warm pool.

    lost: it is no good, and another one is to come in its place.
    """
    for instance in _unused(gw, row):
        known = gw.ledger.node(instance) or {}
        if known.get("admitted_at"):
            continue
        if not lost and spares.keep_as_spare(gw, instance, "its incident has no use for it", row["node_id"]):
            continue
        gw.ledger.note_node(instance, {"acts": {"terminate": gw.clock.now()}})
        scaling.give_back(gw, row, instance, lost)
    new = row.get("replaced_by")
    # With `lost` the name stays with the dead instance until another one takes it: no cancelling in between.
    if new and not lost and not (gw.ledger.node(str(new)) or {}).get("admitted_at"):
        _place_is_free(gw, row)


def _place_is_free(gw: Gateways, row: Row) -> None:
    """The name was about to change hands and has not: the node can be healed anew."""
    mine = equals("session", row["session"]) & equals("replaced_by", row["replaced_by"])
    try:
        gw.table.write(row["pk"], row["sk"], removes=("replaced_by",), when=mine)
    except Conflict:
        return  # given back already, or another session has the node


def _unused(gw: Gateways, row: Row) -> list[str]:
    """Instances that this session's launch has made, and the one that it has recorded: a spare was launched
    by another."""
    launch = row.get("launch") or {}
    made = gw.fleet.launched(launch["token"]) if launch.get("token") else []
    found = {instance.node_id: instance.state for instance in made}
    if launch.get("instance_id") and launch["instance_id"] not in found:
        known = gw.ledger.node(str(launch["instance_id"])) or {}
        found[str(launch["instance_id"])] = "terminated" if is_gone(known) else "running"
    # For an Auto Scaling group also what has ended: the old node may not have gone back to its group yet.
    every = bool(scaling.group_of(gw, row))
    return sorted(node for node, state in found.items() if every or state not in GONE_STATES)


def _mail(gw: Gateways, incident: Mapping[str, Any], row: Row, reason: str, successor: str) -> None:
    then = f"Then: planaria replace {incident['node_id']}  (or readmit it in the scheduler by hand)\n"
    if successor:
        then = f"{successor} has its place and works; the old instance may still run: end it in EC2.\n"
    state = "is isolated by Planaria" if row.get("isolation") else "is NOT isolated by Planaria"
    gw.notices.publish(
        f"Planaria {gw.cluster.name}: incident {incident['incident_id']} needs you",
        f"Incident {incident['incident_id']} on node {incident['node_id']} ({incident['name']}) "
        "ended ESCALATED.\n"
        f"Why: {reason}\n"
        f"The node {state}. Job: {incident['job_id'] or 'none'}.\n"
        f"What to do: {path_of(reason)}\n"
        f"Look: planaria incident {incident['incident_id']}\n"
        f"{then}",
    )


def reason_of(event: Mapping[str, Any]) -> str:
    """The reason in words; a States error carries its cause as JSON of the Lambda's error."""
    reason = str(event.get("reason") or "")
    cause = str((event.get("error") or {}).get("Cause") or "")
    if cause:
        try:
            parsed = json.loads(cause)
            cause = str(parsed.get("errorMessage", cause)) if isinstance(parsed, dict) else cause
        except ValueError:
            pass
        reason = f"{reason}: {cause}" if reason else cause
    return reason[:1000]
