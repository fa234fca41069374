"""What is done about an agent's word that its node is up, and about a healthy report."""

from typing import Any

from lambdas import resuming, undoing
from planaria.core.incident import Phase, Step, incident_id
from planaria.core.signal import Signal
from planaria.core.table import Conflict, Row, below, differs, equals, missing
from planaria.wiring import Gateways


def ready(gw: Gateways, signal: Signal, row: Row) -> None:
    """The agent is up after a boot: note it and answer whoever waits for this node. row: its row before."""
    assert signal.node_id is not None
    at = signal.time if signal.time is not None else gw.clock.now()
    sets: dict[Any, Any] = {
        "ready_at": at,
        "check": {"passed": signal.evidence["passed"], "reason": signal.evidence["reason"]},
        "boot_id": signal.evidence.get("boot_id"),
    }
    # The name of a node from the warm pool comes by Join, and its tags do not know it.
    for name in ("address",) if "spare" in row else ("name", "address"):
        if signal.evidence.get(name):
            sets[name] = signal.evidence[name]
    # An agent that only started anew tells of the same boot, which proves no reboot.
    newer = (missing("ready_at") | below("ready_at", at)) & differs("boot_id", sets["boot_id"])
    try:
        row = gw.ledger.note_node(signal.node_id, sets, when=newer)
    except Conflict as conflict:
        row = conflict.row or {}
    waiting = row.get("waiting")
    if waiting and float(row["ready_at"]) > float(waiting["since"]):
        if waiting.get("incident_id"):
            gw.ledger.step(waiting["incident_id"], Step.READY, float(row["ready_at"]))
        gw.workflows.answer(waiting["token"], {"result": "DONE", "reason": "", "node_id": signal.node_id})


def cancel(gw: Gateways, row: Row) -> None:
    """A healthy report ends its own session, before anything destructive was recorded."""
    node, session = row["node_id"], int(row["session"])
    reason = "the node is healthy again"
    gw.ledger.close(node, session, Phase.CANCELLED, gw.clock.now(), reason, well=True, seen=row)
    # Read again: the SDK may have repeated a write that had been done, and is then told that it was not.
    finish_cancel(gw, gw.ledger.node(node) or {})


def finish_cancel(gw: Gateways, row: Row) -> bool:
    """What follows the cancelling of a session; sweep repeats it where triage died. True when it was open.

    Stopping the execution calls sweep, which takes back what the session had begun (lambdas/undoing.py).
    """
    if not row.get("cancelling") or row.get("phase") != Phase.CANCELLED:
        return False
    node, session = row["node_id"], int(row["session"])
    name = incident_id(node, session)
    if row.get("execution_arn"):
        gw.workflows.stop(row["execution_arn"], "cancelled by a healthy report")
    gw.breaker.release(name, str((row.get("fault") or {}).get("detector", "unknown")))
    if row.get("job_id") and not undoing.outstanding(row):
        incident = {"job_id": row["job_id"], "node_id": node, "incident_id": name}
        resuming.node_settled(gw, incident, "", "")
    try:
        gw.table.write(row["pk"], row["sk"], removes=("cancelling",), when=equals("session", session))
    except Conflict:
        return True  # the next session has begun and taken the mark away
    return True
