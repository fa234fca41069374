"""Opening a node's incident: claim, breaker, execution. Shared by triage and sweep."""

from collections.abc import Mapping
from typing import Any

from lambdas import staying
from lambdas.ending import escalate, give_back
from planaria.core import claiming
from planaria.core.claim import Claim
from planaria.core.incident import ACTIVE, Phase, Step, execution_name, incident_id
from planaria.core.plans import incident_document
from planaria.core.ports import Execution
from planaria.core.table import Conflict, Row, equals
from planaria.wiring import Gateways


def open_incident(gw: Gateways, claim: Claim, seen: Row, raises: bool) -> str:
    """ "" when the incident is claimed and its execution runs, else why it is held.

    Safe to repeat with the same claim. Raises Conflict when the node changed since `seen` was read.
    """
    now = gw.clock.now()
    row = gw.ledger.claim(claim, seen, now, raises)
    gw.ledger.step(incident_id(row["node_id"], row["session"]), Step.DETECTED, claim.detected_at)
    return go_on(gw, row)


def go_on(gw: Gateways, row: Row) -> str:
    """What follows the claim, by whoever finds it undone: breaker, job, predecessor, execution."""
    if row.get("phase") not in ACTIVE:
        return ""
    now, name = gw.clock.now(), incident_id(row["node_id"], row["session"])
    refusal = "" if row["phase"] == Phase.RUNNING else claiming.admit(gw.ledger, gw.breaker, row, now)
    if refusal:
        if superseded := gw.ledger.end_superseded(row, now):
            gw.workflows.stop(superseded, f"superseded by session {row['session']}")
        gw.ledger.close(row["node_id"], row["session"], Phase.CANCELLED, now, refusal, held=row)
        return refusal
    for job in staying.jobs_to_wait(gw, row):
        gw.jobs.wait_for(job, row["node_id"], name)
    superseded = gw.ledger.end_superseded(row, now)
    if superseded:
        gw.workflows.stop(superseded, f"superseded by session {row['session']}")
    start(gw, row)
    gw.ledger.step(name, Step.TRIAGED, gw.clock.now())
    return ""


def start(gw: Gateways, row: Row) -> Execution:
    """StartExecution from the row alone; the execution's state. What has ended while its claim is active is
    sweep's to restart."""
    if row.get("phase") not in ACTIVE:
        return Execution.NONE
    node, session = row["node_id"], int(row["session"])
    document = {"incident_id": incident_id(node, session), "node_id": node, "session": session}
    _, state = gw.workflows.start(row["machine"], row["execution"], document)
    return state


def restart(gw: Gateways, row: Row) -> None:
    """The execution of an active session has ended: the next attempt, or a person after the last one."""
    node, session, attempt = row["node_id"], int(row["session"]), int(row["attempt"])
    if attempt >= gw.cluster.policy.max_attempts:
        give_back(gw, row)
        escalate(
            gw,
            incident_document(row, gw.cluster.policy),
            row,
            f"its execution died {attempt} times, last {row['execution']}",
        )
        return
    following: Mapping[Any, Any] = {
        "attempt": attempt + 1,
        "phase": Phase.CLAIMED.value,
        "execution": execution_name(node, session, attempt + 1),
        "opened_at_attempt": gw.clock.now(),
    }
    try:
        row = gw.ledger.write(
            node, session, following, ("execution_arn", "waiting"), equals("attempt", attempt)
        )
    except Conflict:
        return  # another caller has raised the attempt and starts it
    start(gw, row)
