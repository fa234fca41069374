"""Ending an incident that needs a person: shared by its own last state and by sweep."""

import json
from collections.abc import Mapping
from typing import Any

from lambdas import resuming
from planaria.core.incident import ACTIVE, Phase
from planaria.core.plans import GONE_STATES
from planaria.core.table import Row
from planaria.wiring import Gateways


def escalate(gw: Gateways, incident: Mapping[str, Any], row: Row, reason: str) -> bool:
    """Free the job, close the session, then mail a person; False when the session had ended otherwise.

    Safe to repeat: one escalation of one session is mailed once, also when the first try died in between.
    """
    node, session = incident["node_id"], int(incident["session"])
    if row.get("phase") not in (*ACTIVE, Phase.ESCALATED):
        return False
    # The job waits for the node only if we have taken the node away, or it is gone.
    taken = bool(row.get("isolation") or row.get("gone"))
    for job in jobs_of(incident, row):
        resuming.node_settled(gw, {**incident, "job_id": job}, "", reason if taken else "")
    gw.ledger.close(node, session, Phase.ESCALATED, gw.clock.now(), reason)
    row = gw.ledger.node(node) or {}
    if row.get("session") != session or row.get("phase") != Phase.ESCALATED:
        return False
    if row.get("mailed") != session:
        _mail(gw, incident, row, reason)
        gw.ledger.note_node(node, {"mailed": session})
    return True


def jobs_of(incident: Mapping[str, Any], row: Row) -> list[str]:
    """The jobs that this incident holds up: the node's own, and those that were found running there."""
    return sorted({incident["job_id"], *row.get("stopped_jobs", [])} - {""})


def give_back(gw: Gateways, row: Row) -> None:
    """Terminate what this session has launched and never admitted; nobody else will use it."""
    token = (row.get("launch") or {}).get("token")
    for instance in gw.fleet.launched(token) if token else []:
        known = gw.ledger.node(instance.node_id) or {}
        if not known.get("admitted_at") and instance.state not in GONE_STATES:
            gw.ledger.note_node(instance.node_id, {"acts": {"terminate": gw.clock.now()}})
            gw.fleet.terminate(instance.node_id)


def _mail(gw: Gateways, incident: Mapping[str, Any], row: Row, reason: str) -> None:
    state = "is isolated by Planaria" if row.get("isolation") else "is NOT isolated by Planaria"
    gw.notices.publish(
        f"Planaria {gw.cluster.name}: incident {incident['incident_id']} needs you",
        f"Incident {incident['incident_id']} on node {incident['node_id']} ({incident['name']}) "
        "ended ESCALATED.\n"
        f"Why: {reason}\n"
        f"The node {state}. Job: {incident['job_id'] or 'none'}.\n"
        f"Look: planaria incident {incident['incident_id']}\n"
        f"Then: planaria replace {incident['node_id']}  (or readmit it in the scheduler by hand)\n"
        "Runbook: docs/runbooks/escalated.md\n",
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
