"""A document that is run once on a node in an incident's name, for as long as it takes.

Its ticket stands on the incident's row: {"key", "asked_at", "ticket", "sent_at"} and, once it is over,
{"end", "reason", "at"}. A Lambda that dies between sending and noting the ticket leaves it to be sent once
more; what runs so must be harmless on a node that is isolated and empty.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lambdas import boundary
from planaria.core import asking
from planaria.core.errors import PermanentError, TransientError, Waiting
from planaria.core.table import Row
from planaria.core.verification import Times
from planaria.core.wording import span
from planaria.wiring import Gateways

DOCUMENT_FAILED = "FAILED"
Noted = dict[str, Any]


class Unanswered(PermanentError):
    """The time is over and nothing is known of how it ended."""


class Hangs(Unanswered):
    """It was sent and has not ended in time."""


@dataclass(frozen=True, slots=True)
class Run:
    """attribute: of the incident's row, where the ticket stands. key: what it is run for; another key begins
    anew. owner, session: the incident's. begin: called with the time before each sending."""

    attribute: str
    document: str
    node: str
    parameters: Mapping[str, str]
    key: str
    times: Times
    owner: str
    session: int
    begin: Callable[[float], object] | None = None


def noted(gw: Gateways, row: Row, run: Run) -> Noted:
    """What the row says of this run, or its beginning when it was not asked for yet."""
    found = row.get(run.attribute) or {}
    return dict(found) if found.get("key") == run.key else {"key": run.key, "asked_at": gw.clock.now()}


def ask(gw: Gateways, run: Run, mine: Noted) -> tuple[str, Any]:
    """("SUCCESS" | "FAILED", output) of the node's run. Raises Waiting while it is out, Unanswered.

    mine: what is noted of it; kept up to date.
    """
    now = gw.clock.now()

    def send() -> str:
        if run.begin is not None:
            run.begin(now)
        ticket = gw.commands.submit(run.document, [run.node], run.parameters)
        mine.update(ticket=ticket, sent_at=now)
        write(gw, run, mine)
        return ticket

    carry = {run.document: str(mine["ticket"])} if mine.get("ticket") else {}
    try:
        value = asking.ask(
            run.document, send, gw.commands.poll, carry, lambda: time.sleep(boundary.POLL_SECONDS)
        )
    except TransientError as error:
        raise _not_yet(gw, run, mine, str(error), now) from None
    except Waiting as wait:
        if not wait.carry:  # nobody knows the ticket any more
            raise again(gw, run, mine, str(wait)) from None
        if now >= float(mine["sent_at"]) + run.times.answer:
            limit = span(run.times.answer)
            raise Hangs(f"{run.document} on {run.node} did not end within {limit}") from None
        raise Waiting(f"{run.document} runs on {run.node}") from None
    entry = value.get(run.node) or {}
    return str(entry.get("status", DOCUMENT_FAILED)), entry.get("output")


def again(gw: Gateways, run: Run, mine: Noted, reason: str) -> PermanentError | Waiting:
    """To be raised: the next try sends it anew, unless the time for that is over."""
    for name in ("ticket", "sent_at"):
        mine.pop(name, None)
    return _not_yet(gw, run, mine, reason, gw.clock.now())


def end(gw: Gateways, run: Run, mine: Noted, word: str, reason: str = "", **sets: Any) -> Row:
    """Note how it ended, with other changes of the same row."""
    mine.update(end=word, reason=reason, at=gw.clock.now())
    return gw.ledger.write(run.owner, run.session, sets={run.attribute: dict(mine), **sets})


def write(gw: Gateways, run: Run, mine: Noted) -> Row:
    return gw.ledger.write(run.owner, run.session, sets={run.attribute: dict(mine)})


def _not_yet(gw: Gateways, run: Run, mine: Noted, reason: str, now: float) -> PermanentError | Waiting:
    if now >= float(mine["asked_at"]) + run.times.reach:
        return Unanswered(f"{run.node} could not be asked for {span(run.times.reach)}: {reason}")
    write(gw, run, mine)
    return Waiting(reason)
