"""State "Begin": take over triage's claim, or claim for a person, and say what the workflow will do."""

from collections.abc import Mapping
from typing import Any

from lambdas import staying
from lambdas.boundary import Event, Fields, task
from planaria.core import console, plans, pool
from planaria.core.claim import Claim
from planaria.core.errors import Fenced, InvalidInput, PermanentError
from planaria.core.fault import Action
from planaria.core.incident import ACTIVE, Phase, Step, incident_id
from planaria.core.table import Conflict, Row, equals, missing
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    document, execution, machine = event["document"], event["execution"], event["machine"]
    now = gw.clock.now()
    sets: dict[Any, Any] = {"phase": Phase.RUNNING.value, "execution_arn": execution}
    if isinstance(document, Mapping) and "session" in document:
        node, session = console.session_document(document)
        row = gw.ledger.enter(node, session)
        gw.ledger.open_incident_row(row)  # sweep may have started what triage had only claimed
    else:
        order = console.node_order(machine, document)
        row = _claim(gw, order, machine, execution, now)
        node, session = order.node_id, int(row["session"])
        sets["admitted_by_breaker"] = True
    try:
        row = gw.ledger.write(
            node,
            session,
            sets=sets,
            when=missing("execution_arn") | equals("execution_arn", execution),
        )
    except Conflict:
        raise Fenced(f"another execution runs session {session} of {node}") from None
    name = incident_id(node, session)
    gw.ledger.step(name, Step.BEGUN, now)
    gw.ledger.note_incident(name, {"execution_arn": execution})
    for job in staying.jobs_to_wait(gw, row):
        gw.jobs.wait_for(job, node, name)
    document = plans.incident_document(row, gw.cluster.policy)
    return {"incident": {**document, "first": document["replacement"] and staying.stays(gw, row)}}


def _claim(gw: Gateways, order: console.NodeOrder, machine: str, execution: str, now: float) -> Row:
    """A person's start meets the same claim and breaker as an event."""
    node = order.node_id
    row = gw.ledger.node(node)
    if row is None or ("name" not in row and not plans.is_gone(row)):
        row = _look_up(gw, node)  # its job may have been registered before anyone has looked at the instance
    if row.get("claim_id") == execution:
        gw.ledger.open_incident_row(row)
    if row.get("claim_id") != execution:
        _check_allowed(gw, order, row)
        row = _claim_anew(gw, order, machine, execution, now, row)
    session = int(row["session"])
    name = incident_id(node, session)
    gw.ledger.step(name, Step.DETECTED, now)
    if order.override_breaker:
        gw.ledger.note_incident(name, {"override_breaker": True})
    if order.verb != "launch" and not plans.is_gone(row) and row["phase"] in ACTIVE:
        old = row.get("supersedes") or {}
        before = incident_id(node, old["session"]) if old else ""
        refusal = gw.breaker.admit(name, "console", now, before, order.override_breaker)
        if refusal and not old.get("admitted"):
            gw.ledger.end_superseded(row, now)
            gw.ledger.close(node, session, Phase.CANCELLED, now, refusal, held=row)
            raise PermanentError(refusal)
    superseded = gw.ledger.end_superseded(row, now)
    if superseded and superseded != execution:
        gw.workflows.stop(superseded, f"superseded by session {session}")
    return row


def _claim_anew(
    gw: Gateways, order: console.NodeOrder, machine: str, execution: str, now: float, row: Row
) -> Row:
    claim = Claim(
        node_id=order.node_id,
        claim_id=execution,
        action=order.action.value,
        reason=order.reason or f"{order.verb} asked by a person",
        rule="console",
        mode="act",
        detected_at=now,
        fault={"kind": "console", "code": order.verb, "severity": "INFO", "detector": "console"},
        machine=machine,
        verb=order.verb,
    )
    raises = row.get("phase") in ACTIVE and order.action.strength > Action(row["action"]).strength
    try:
        claimed = gw.ledger.claim(claim, row, now, raises=raises)
    except Conflict as conflict:
        held = conflict.row or {}
        raise PermanentError(
            f"{order.node_id} has an active incident already ({order.node_id}-{held.get('session')}, "
            f"{held.get('action')}); wait for its end, start a stronger action, or if it waits for a person: "
            "planaria approve"
        ) from None
    return claimed


def _look_up(gw: Gateways, node: str) -> Row:
    """An unknown id is looked up once; only instances of this cluster are managed."""
    for instance in gw.fleet.describe([node]):
        return gw.ledger.note_node(node, plans.facts(instance))
    raise InvalidInput(
        f"node_id {node} is not an instance of cluster {gw.cluster.name}; `planaria nodes` lists them"
    )


def _check_allowed(gw: Gateways, order: console.NodeOrder, row: Row) -> None:
    node = order.node_id
    if refusal := pool.refusal(row):
        raise PermanentError(refusal)
    if row.get("replaced_by"):
        raise PermanentError(f"{node} was replaced by {row['replaced_by']} already; order that one instead")
    left = row.get("verb") == "remove" or order.verb != "launch"
    if row.get("phase") == Phase.RETIRED and "terminate" in (row.get("acts") or {}) and left:
        raise PermanentError(f"{node} was removed already; there is nothing left to {order.verb}")
    if order.verb == "remove" and row.get("job_id"):
        job = gw.jobs.job(row["job_id"])
        if job and job.get("state") in ("RUNNING", "STOPPED") and node in job["nodes"].values():
            raise PermanentError(
                f"{node} runs job {row['job_id']}, which needs it; replace the node instead, "
                "or stop the job first"
            )
    if order.verb == "launch" and not (row.get("isolation") or plans.is_gone(row)):
        raise PermanentError(
            f"{node} is still in service; isolate it first, or start heal_node with action replace"
        )
    if order.verb in ("reboot", "reset") and plans.is_gone(row):
        raise PermanentError(f"{node} is gone, and there is nothing left to {order.verb}; replace it")
