"""Documents that nodes run for a restore, for as long as they take.

The ticket stands in the row's `work`: asked {"what", "ticket", "nodes", "at" (epoch seconds), "times"}. A
Lambda that dies between sending and noting it leaves the document to be sent once more; what is sent so may
be done twice, one after the other or at the same time.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from lambdas import boundary
from planaria.core import asking, restores
from planaria.core.errors import PermanentError, TransientError, Waiting
from planaria.core.table import Row, equals
from planaria.core.wording import span
from planaria.wiring import Gateways

PLAN, RUN, SETTLE = "planaria-plan-transfer", "planaria-run-transfer", "planaria-settle-step"
REMOVE = "planaria-prune-checkpoints"
MOST_TIMES = 6
"""How often a document is sent in one round, to other nodes where there are some."""

PATIENCE_SECONDS = {PLAN: 600.0, RUN: 3600.0, SETTLE: 1800.0, REMOVE: 900.0}
Outputs = dict[str, Mapping[str, Any]]


def note(gw: Gateways, row: Row, **facts: Any) -> Row:
    """Change the row's `work`, as long as it is about the same copy; None takes a fact away. Raises Fenced,
    Conflict."""
    sets: dict[Any, Any] = {("work", name): value for name, value in facts.items() if value is not None}
    removes = tuple(("work", name) for name, value in facts.items() if value is None)
    same = equals(("work", "transfer"), row["work"]["transfer"])
    return restores.write(gw.table, str(row["job_id"]), int(row["number"]), sets, removes, same)


def send(
    gw: Gateways, row: Row, document: str, nodes: Sequence[str], parameters: Mapping[str, str]
) -> Outputs:
    """Output by node of those that did it. One node does it, each time another one; RUN is done by all.

    Raises Waiting while it is out, PermanentError when it was sent often enough.
    """
    asked = dict(row["work"].get("asked") or {})
    if asked.get("what") != document:
        asked = {"what": document, "times": 0}
    if not asked.get("ticket"):
        asked["nodes"] = list(nodes) if document == RUN else [nodes[int(asked["times"]) % len(nodes)]]
    now = gw.clock.now()

    def submit() -> str:
        ticket = gw.commands.submit(document, asked["nodes"], parameters)
        asked.update(ticket=ticket, at=now, times=int(asked["times"]) + 1)
        note(gw, row, asked=asked)
        return ticket

    carry = {document: str(asked["ticket"])} if asked.get("ticket") else {}
    value: Mapping[str, Any] = {}
    try:
        value = asking.ask(
            document, submit, gw.commands.poll, carry, lambda: time.sleep(boundary.POLL_SECONDS)
        )
        why = _said(value)
    except Waiting as wait:
        limit = PATIENCE_SECONDS[document]
        if wait.carry and now < float(asked["at"]) + limit:
            raise Waiting(f"{document} runs on {', '.join(asked['nodes'][:4])}") from None
        why = f"it did not end within {span(limit)}" if wait.carry else str(wait)
    except TransientError as error:
        raise Waiting(str(error)) from None
    done = {node: entry["output"] for node, entry in value.items() if _did(entry)}
    if not done:
        anew(gw, row, why)
        raise Waiting(f"{document} was not done: {why}")
    return done


def anew(gw: Gateways, row: Row, why: str) -> None:
    """Forget the ticket that is out, so that the next look sends the document once more; not for ever."""
    row = restores.enter(gw.table, str(row["job_id"]), int(row["number"]))
    asked = dict(row["work"].get("asked") or {})
    if int(asked.get("times", 0)) >= MOST_TIMES:
        raise PermanentError(
            f"{asked['what']} was sent {MOST_TIMES} times, last to {', '.join(asked['nodes'][:4])}, and is "
            f"not done: {why or 'it stopped early'}"
        )
    asked.pop("ticket", None)
    note(gw, row, asked=asked)


def _did(entry: Mapping[str, Any]) -> bool:
    return entry.get("status") == "SUCCESS" and isinstance(entry.get("output"), Mapping)


def _said(value: Mapping[str, Any]) -> str:
    """What the first of those says that did not do it."""
    for node, entry in sorted(value.items()):
        if not _did(entry):
            output = entry.get("output")
            told = output.get("reason") if isinstance(output, Mapping) else output
            return f"{node}: {' '.join(str(told).split())}"[:300]
    return ""
