"""A person's word, for which an incident waits before anything is done to its node.

On the node's row `approval` is {"session", "token", "asked_at", "deadline", "mailed", "after": the repair
that the incident has gone on from, if any} and, once there is an answer, {"answer", "answered_at", "by",
"reason", "told"}. The answer is written first, by one conditional write: whoever else answers comes too late.
Then the workflow is told; whoever finds an answer untold tells it again. The task token goes from the ledger
to Step Functions and nowhere else.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from planaria.core import ladder
from planaria.core.breaker import Breaker
from planaria.core.errors import Fenced
from planaria.core.incident import ACTIVE, Step, incident_id
from planaria.core.ledger import Ledger
from planaria.core.ports import Workflows
from planaria.core.table import Conflict, Row, differs, equals, missing
from planaria.core.wording import span

NAME = "approval"


class Answer(StrEnum):
    """EXPIRED: nobody gave one in time."""

    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    EXPIRED = "EXPIRED"


def of(row: Row) -> Mapping[str, Any] | None:
    """What the row's active session has asked; None when it has asked nothing."""
    found = row.get(NAME)
    if not isinstance(found, Mapping) or row.get("phase") not in ACTIVE:
        return None
    return found if found.get("session") == row.get("session") else None


def waits(row: Row) -> bool:
    """The active session waits for a person."""
    asked = of(row)
    return asked is not None and "answer" not in asked


def ask(ledger: Ledger, row: Row, token: str, now: float, patience: float) -> Row:
    """Note that the session waits, and under which token; asked again it keeps its deadline and its answer.

    token: "" when nothing can be called back. patience: seconds. Raises Fenced when the session is over.
    """
    node, session = row["node_id"], int(row["session"])
    asked = of(row)
    if asked is None:
        fresh = {"session": session, "token": token, "asked_at": now, "deadline": now + patience}
        if after := ladder.left_last(row):
            fresh["after"] = after
        other = missing(NAME) | differs((NAME, "session"), session)
        try:
            row = ledger.write(node, session, sets={NAME: fresh}, when=other)
        except Conflict as conflict:  # asked by an earlier delivery of the same Task
            row = conflict.row or {}
        asked = of(row) or {}
    if token and asked.get("token") != token and "answer" not in asked:
        open_still = equals((NAME, "session"), session) & missing((NAME, "answer"))
        try:
            row = ledger.write(node, session, sets={(NAME, "token"): token}, when=open_still)
        except Conflict as conflict:
            row = conflict.row or {}
    name, found = incident_id(node, session), row[NAME]
    ledger.step(name, Step.APPROVAL_ASKED, float(found["asked_at"]), until=found["deadline"])
    return row


def mailed(ledger: Ledger, row: Row) -> Row:
    """Note that the mail is out."""
    return ledger.write(row["node_id"], int(row["session"]), sets={(NAME, "mailed"): True})


def answer(ledger: Ledger, row: Row, word: Answer, by: str, reason: str, now: float) -> Row:
    """Write the answer. Raises Conflict when there is one already, Fenced when the session is over."""
    sets: dict[Any, Any] = {
        (NAME, "answer"): word.value,
        (NAME, "answered_at"): now,
        (NAME, "by"): by,
        (NAME, "reason"): reason,
    }
    session = int(row["session"])
    unanswered = equals((NAME, "session"), session) & missing((NAME, "answer"))
    return ledger.write(row["node_id"], session, sets=sets, when=unanswered)


def tell(ledger: Ledger, breaker: Breaker, workflows: Workflows, row: Row, now: float) -> None:
    """Act on the row's answer: the breaker's slot, the timeline, the waiting workflow. May be repeated."""
    node, session, asked = row["node_id"], int(row["session"]), row[NAME]
    name, detector = incident_id(node, session), str((row.get("fault") or {}).get("detector", "unknown"))
    approved = asked["answer"] == Answer.APPROVED
    # After a repair that did not help the node is isolated already, and stays so whatever is answered.
    kept = approved or "after" in asked
    if approved:
        breaker.admit(name, detector, now, override=True)  # counted from now on: the removal comes now
        ledger.step(name, Step.APPROVED, float(asked["answered_at"]), by=asked["by"])
    elif not kept:
        breaker.release(name, detector)
    if asked["token"]:
        workflows.answer(asked["token"], result(asked))
    slot = () if kept else ("admitted_by_breaker",)
    same = equals((NAME, "session"), session)
    try:
        ledger.write(node, session, sets={(NAME, "told"): True}, removes=slot, when=same)
    except (Fenced, Conflict):
        return  # told, and the session has ended by it


def result(asked: Mapping[str, Any]) -> dict[str, str]:
    """The answer as the workflow reads it."""
    said = f": {asked['reason']}" if asked.get("reason") else ""
    stays = f"; the node stays isolated after its {asked['after']}" if "after" in asked else ""
    match Answer(asked["answer"]):
        case Answer.APPROVED:
            return {"result": "DONE", "reason": f"approved by {asked['by']}{said}"}
        case Answer.REJECTED:
            # CANCELLED would give the node its work back, which it must not have after what was tried.
            word = "REFUSED" if stays else "REJECTED"
            return {"result": word, "reason": f"rejected by {asked['by']}{said}{stays}"}
    waited = float(asked["deadline"]) - float(asked["asked_at"])
    stays = stays or "; the node is as it was"
    return {"result": "REFUSED", "reason": f"nobody approved within {span(waited)}{stays}"}
