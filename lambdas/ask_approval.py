"""State "Ask for approval": keep the task token on the node's row and ask a person, by one mail.

Without a token (the slow fallback) it only looks and answers DONE, REJECTED, REFUSED or WAIT.
"""

from lambdas import approvals
from lambdas.boundary import Event, Fields, task
from planaria.core import approval, ladder
from planaria.core.errors import Fenced, Waiting
from planaria.core.table import Row
from planaria.core.wording import moment, span
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    incident, token = event["incident"], str(event.get("token") or "")
    node, session = incident["node_id"], int(incident["session"])
    try:
        row = gw.ledger.enter(node, session)
        row = approval.ask(gw.ledger, row, token, gw.clock.now(), gw.cluster.policy.approval_timeout_seconds)
        if approval.waits(row) and not row[approval.NAME].get("mailed"):
            _mail(gw, incident, row)
            row = approval.mailed(gw.ledger, row)
    except Fenced as fenced:
        if token:
            gw.workflows.answer(token, {"result": "FENCED", "reason": str(fenced)})
        raise
    if token:
        if not approval.waits(row):
            # Answered before: this is another execution of the session, or the answer was faster.
            if not row[approval.NAME].get("told"):
                approvals.tell(gw, row)
            gw.workflows.answer(token, approval.result(row[approval.NAME]))
        return {}
    approvals.expire(gw, row)
    asked = approval.of(gw.ledger.enter(node, session)) or {}
    if "answer" not in asked:
        raise Waiting("no person has answered yet")
    return dict(approval.result(asked))


def _mail(gw: Gateways, incident: Event, row: Row) -> None:
    name, asked = incident["incident_id"], row[approval.NAME]
    deadline, patience = float(asked["deadline"]), span(float(asked["deadline"]) - float(asked["asked_at"]))
    so_far = (
        "An earlier incident has isolated the node." if row.get("isolation") else "Nothing was done so far."
    )
    otherwise = "the node is left as it is"
    if tried := ladder.tried_so_far(row):
        so_far = f"The node is isolated, and what was tried did not help: {tried}."
        otherwise = "the node stays isolated"
    gw.notices.publish(
        f"Planaria {gw.cluster.name}: approve incident {name}?",
        f"Incident {name} waits for you. {so_far}\n"
        f"Node: {incident['name']} ({incident['node_id']}), job: {incident['job_id'] or 'none'}\n"
        f"Fault: {row.get('reason')} ({row.get('rule')})\n"
        f"What will be done: {_plan(incident)}\n"
        f"Yes: planaria approve {name}\n"
        f"No:  planaria approve {name} --reject\n"
        f"Without an answer by {moment(deadline)} ({patience}) {otherwise}, and the incident ends "
        "ESCALATED.\n"
        "Runbook: docs/runbooks/held.md\n",
    )


def _plan(incident: Event) -> str:
    if incident["reset"]:
        return "isolate the node, reset its GPU, and let it work again when its check passes."
    if incident["reboot"]:
        return "isolate the node, reboot it, and let it work again when its check passes."
    job = f"move job {incident['job_id']} there, " if incident["job_id"] else ""
    return f"isolate the node, launch a replacement, {job}terminate the node."
