"""The spares' checks in rotation: sweep asks a few, and reads the answer when it comes by again.

A spare that works for nobody shows no fault by itself: what does not pass, or cannot be checked, twice in a
row leaves the pool. At most one of a pool in a sweep, and of those that cannot be checked at most one in a
period: when nobody can be reached the spares are not to blame.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lambdas import spares
from lambdas.inventory import each
from planaria.core import pool
from planaria.core.incident import ACTIVE
from planaria.core.pool import SpareState, View
from planaria.core.ports import Answer, AnswerState
from planaria.core.table import Row, equals
from planaria.wiring import Gateways

DOCUMENT = "planaria-check"
ASKED_AT_ONCE = 5
MOST_FAILED = 2
SILENT_SECONDS = 90.0
"""The light check takes seconds: who has not answered in the sweep after the next does not."""

REASON_LENGTH = 400

_STATE = ("spare", "state")
_OF_A_CHECK = (("spare", "ticket"), ("spare", "asked_at"))


@dataclass(frozen=True, slots=True)
class Failure:
    """A check that was not passed. silent: nothing was found out about the node."""

    row: Row
    why: str
    silent: bool


def rotate(gw: Gateways, view: View) -> int:
    """Answers first, then new questions: one that failed is asked again at once."""
    free = [row for row in view.of(SpareState.FREE) if not _left_alone(row)]
    asked = [row for row in free if row["spare"].get("ticket")]
    failed: list[Failure] = []
    done = each(asked, "check of spare", lambda row: _read(gw, row, failed))
    for failure in failed:
        if each([failure.row], "spare", lambda _, failure=failure: _leaves(gw, view, failure)):
            done += 1
            break
    rest = [row for row in free if not row["spare"].get("ticket")]
    due = sorted((row for row in rest if _due(gw, row)), key=lambda row: float(row["spare"]["checked_at"]))
    return done + each(due[:ASKED_AT_ONCE], "check of spare", lambda row: _ask(gw, row))


def _left_alone(row: Row) -> bool:
    return bool(row.get("opted_out") or row.get("held_since") or row.get("phase") in ACTIVE)


def _due(gw: Gateways, row: Row) -> bool:
    """A node that was kept while it booted is not asked before it must have come up."""
    now, policy = gw.clock.now(), gw.cluster.policy
    if "ready_at" not in row and now - float(row.get("launched_at") or 0.0) < policy.boot_timeout_seconds:
        return False
    return bool(row["spare"].get("failed")) or (
        now - float(row["spare"].get("checked_at") or 0.0) >= policy.spare_check_seconds
    )


def _ask(gw: Gateways, row: Row) -> bool:
    ticket = gw.commands.submit(DOCUMENT, [row["node_id"]], {"suite": "light"})
    sets: dict[Any, Any] = {("spare", "ticket"): ticket, ("spare", "asked_at"): gw.clock.now()}
    gw.table.write(row["pk"], row["sk"], sets=sets, when=equals(_STATE, SpareState.FREE.value))
    return True


def _read(gw: Gateways, row: Row, failed: list[Failure]) -> bool:
    """Note a check that passed, or failed for the first time; another one goes into `failed`."""
    now = gw.clock.now()
    answer = gw.commands.poll(row["spare"]["ticket"])
    if answer.state is AnswerState.PENDING and now - float(row["spare"]["asked_at"]) < SILENT_SECONDS:
        return False
    when = equals(("spare", "ticket"), row["spare"]["ticket"]) & equals(_STATE, SpareState.FREE.value)
    if answer.state is AnswerState.UNKNOWN:
        gw.table.write(row["pk"], row["sk"], removes=_OF_A_CHECK, when=when)  # it is asked again
        return True
    failure = _failure(answer, row)
    if failure is None:
        sets: dict[Any, Any] = {("spare", "checked_at"): row["spare"]["asked_at"]}
        removes = (*_OF_A_CHECK, ("spare", "failed"), ("spare", "why"))
        gw.table.write(row["pk"], row["sk"], sets=sets, removes=removes, when=when)
        return True
    number = int(row["spare"].get("failed", 0)) + 1
    if number >= MOST_FAILED:
        failed.append(failure)
        return False
    sets = {("spare", "failed"): number, ("spare", "why"): failure.why}
    gw.table.write(row["pk"], row["sk"], sets=sets, removes=_OF_A_CHECK, when=when)
    return True


def _failure(answer: Answer, row: Row) -> Failure | None:
    """None when the check was passed."""
    if answer.state is AnswerState.PENDING:
        return Failure(row, "it did not answer its check", silent=True)
    entry = answer.value.get(row["node_id"]) or {}
    output = entry.get("output")
    said = output if isinstance(output, Mapping) else {"reason": output}
    reason = str(said.get("reason") or "no reason given")[:REASON_LENGTH]
    if entry.get("status") != "SUCCESS" or not isinstance(said.get("passed"), bool):
        return Failure(row, f"its check could not be run: {reason}", silent=True)
    return None if said["passed"] else Failure(row, f"it did not pass its check: {reason}", silent=False)


def _leaves(gw: Gateways, view: View, failure: Failure) -> bool:
    """The next sweep terminates it."""
    row, now = failure.row, gw.clock.now()
    why = f"{failure.why}, twice in a row"
    if failure.silent:
        last = float(view.head.get("silent_left_at") or 0.0)
        if now - last < gw.cluster.policy.spare_check_seconds:
            return False
        gw.table.write(*pool.pool_key(view.group), sets={"silent_left_at": now})
    else:
        spares.quarantine(gw, row, why)
    return pool.state_of(spares.leave(gw, row, why)) is SpareState.LEFT
