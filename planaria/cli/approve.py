"""`planaria approve`: a person's word for an incident that waits for it."""

from typing import Annotated

import typer

from planaria.cli import options, screen
from planaria.cli.orders import person
from planaria.cli.target import connect
from planaria.core import approval
from planaria.core.approval import Answer
from planaria.core.console import REASON_LENGTH
from planaria.core.errors import InvalidInput, PermanentError
from planaria.core.incident import incident_id, split_incident_id
from planaria.core.table import Conflict, Row
from planaria.core.wording import moment
from planaria.wiring import Gateways

app = typer.Typer()


@app.command("approve")
def approve(
    incident: Annotated[
        str, typer.Argument(metavar="INCIDENT", help="As the mail names it.", show_default=False)
    ],
    reject: Annotated[bool, typer.Option("--reject", help="Say no: the node stays as it is.")] = False,
    reason: Annotated[str, typer.Option(help="Why; it stands in the ledger.", show_default=False)] = "",
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """Let an incident go on that waits for a person (policy `mode: approve`), or reject it.

    Example: planaria approve i-0123456789abcdef0-1793610845000
    """
    if len(reason) > REASON_LENGTH:
        raise InvalidInput(f"--reason must be a text of at most {REASON_LENGTH} characters")
    split_incident_id(incident)
    gateways = connect(cluster, folder, aws).gateways
    word = Answer.REJECTED if reject else Answer.APPROVED
    row = give(gateways, incident, word, person(), reason)
    asked = row[approval.NAME]
    if as_json:
        screen.emit(
            {
                "incident_id": incident,
                "node_id": row["node_id"],
                "answer": asked["answer"],
                "by": asked["by"],
                "reason": asked["reason"] or None,
                "at": screen.iso(asked["answered_at"]),
            }
        )
    elif reject:
        screen.say(
            f"Incident {incident} is rejected and ends CANCELLED; a new fault asks anew. To have the node "
            "left alone, give the instance the tag planaria:opt-out=true.",
            stderr=False,
        )
    else:
        screen.say(
            f"Incident {incident} is approved and goes on; `planaria incident {incident}` shows it.",
            stderr=False,
        )


def give(gateways: Gateways, name: str, word: Answer, by: str, reason: str) -> Row:
    """Write the answer and tell the workflow; the node's row with it. Raises InvalidInput, PermanentError."""
    row = _waiting(gateways, name)
    now = gateways.clock.now()
    try:
        row = approval.answer(gateways.ledger, row, word, by, reason, now)
    except Conflict as conflict:
        raise _answered(name, conflict.row or {}) from None
    approval.tell(gateways.ledger, gateways.breaker, gateways.workflows, row, now)
    return row


def _waiting(gateways: Gateways, name: str) -> Row:
    node, session = split_incident_id(name)
    head, _ = gateways.ledger.incident(name)
    if head is None:
        raise InvalidInput(f"there is no incident {name}; `planaria incidents` lists them")
    if head.get("outcome"):
        why = f": {head['outcome_reason']}" if head.get("outcome_reason") else ""
        raise PermanentError(f"incident {name} has ended already, {head['outcome']}{why}")
    row = gateways.ledger.node(node) or {}
    if row.get("session") != session:
        following = incident_id(node, int(row.get("session", 0)))
        raise PermanentError(f"incident {name} was superseded by {following}; answer that one")
    asked = approval.of(row)
    if asked is None:
        raise PermanentError(
            f"incident {name} does not wait for approval; `planaria incident {name}` shows what it does"
        )
    if "answer" in asked:
        if not asked.get("told"):
            approval.tell(gateways.ledger, gateways.breaker, gateways.workflows, row, gateways.clock.now())
        raise _answered(name, row)
    return row


def _answered(name: str, row: Row) -> PermanentError:
    asked = row[approval.NAME]
    when, word = moment(float(asked["answered_at"])), str(asked["answer"]).lower()
    said = "has expired without an answer" if asked["answer"] == Answer.EXPIRED else f"was {word} already"
    return PermanentError(f"incident {name} {said} ({asked['by']}, {when})")
