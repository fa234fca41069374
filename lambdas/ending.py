"""Ending an incident that needs a person: shared by its own last state and by sweep."""

import json
from collections.abc import Mapping
from typing import Any

from lambdas import resuming
from planaria.core.incident import Phase
from planaria.core.table import Row
from planaria.wiring import Gateways


def escalate(gw: Gateways, incident: Mapping[str, Any], row: Row, reason: str) -> bool:
    """Free the job, mail a person, close the session; False when it had ended before."""
    if incident["job_id"]:
        # The job waits for the node only if we have taken the node away, or it is gone.
        taken = bool(row.get("isolation") or row.get("gone"))
        resuming.node_settled(gw, incident, "", reason if taken else "")
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
    return gw.ledger.close(
        incident["node_id"], int(incident["session"]), Phase.ESCALATED, gw.clock.now(), reason
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
