"""The boundary of every Task Lambda: expected ends leave as values, exceptions mean "try again".

{"result": "DONE" | "WAIT" | "FENCED" | "NO_CAPACITY" | "REFUSED" | "INVALID", "reason": str, ...}
"""

import functools
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from aws_lambda_powertools import Logger

from planaria import wiring
from planaria.core import asking
from planaria.core.errors import CapacityError, Fenced, InvalidInput, PermanentError, TransientError, Waiting
from planaria.core.ports import Answer, Scheduler
from planaria.core.scheduling import SchedulerRequest
from planaria.core.table import Conflict
from planaria.wiring import Gateways

logger = Logger()
Event = Mapping[str, Any]
Fields = dict[str, Any]
POLL_SECONDS = 0.1
LINGER_POLLS = 40
"""Where answers take seconds (SSM): so many more polls, three times as far apart, has one invocation for all
that it asks the scheduler, one thing after the other. That is twelve seconds, below the time-out of any Task
that asks one; leaving each answer to the workflow's next try would take minutes."""
_left: ContextVar[list[int] | None] = ContextVar("polls left", default=None)


def task(function: Callable[[Event, Gateways], Fields]) -> Callable[[Event, object], Fields]:
    """Decorates `(event, gateways) -> fields of the result`."""

    @functools.wraps(function)
    def handler(event: Event, context: object) -> Fields:
        token = _left.set([LINGER_POLLS])
        try:
            answer = _run(function, event)
        finally:
            _left.reset(token)
        logger.info(
            answer["result"],
            extra={"reason": answer["reason"], "subject": _subject(event)},
        )
        return answer

    return handler


def _run(function: Callable[[Event, Gateways], Fields], event: Event) -> Fields:
    try:
        return {"result": "DONE", "reason": "", **function(event, wiring.gateways())}
    except Waiting as wait:
        return {"result": "WAIT", "reason": str(wait), "carry": wait.carry}
    except Fenced as fenced:
        return {"result": "FENCED", "reason": str(fenced)}
    except CapacityError as error:
        return {"result": "NO_CAPACITY", "reason": str(error), "retry_after": error.retry_after}
    except InvalidInput as error:
        return {"result": "INVALID", "reason": str(error)}
    except PermanentError as error:
        return {"result": "REFUSED", "reason": str(error)}
    except Conflict as conflict:
        raise TransientError("a row changed between read and write") from conflict


def _subject(event: Event) -> str:
    for key in ("incident", "resume"):
        value = event.get(key)
        if isinstance(value, Mapping):
            return str(value.get("incident_id") or value.get("job_id") or "")
    return ""


def ask_scheduler(gw: Gateways, event: Event, name: str, request: SchedulerRequest) -> dict[str, Any]:
    """The scheduler's answer, or Waiting; `event["carry"]` holds the ticket of an earlier try."""
    scheduler: Scheduler = gw.scheduler
    linger = _linger if gw.scheduler_is_slow else _leave
    return _ask(event, name, lambda: scheduler.submit(request), scheduler.poll, linger)


def ask_command(
    gw: Gateways, event: Event, document: str, nodes: list[str], parameters: dict[str, str]
) -> dict[str, Any]:
    """The output of a document by node, or Waiting."""
    commands = gw.commands
    return _ask(event, document, lambda: commands.submit(document, nodes, parameters), commands.poll)


def _leave() -> bool:
    return False


def _linger() -> bool:
    """Once more? Only in a Task: triage and sweep have others to see to."""
    left = _left.get()
    if left is None or left[0] <= 0:
        return False
    left[0] -= 1
    time.sleep(3 * POLL_SECONDS)
    return True


def _ask(
    event: Event,
    name: str,
    submit: Callable[[], str],
    poll: Callable[[str], Answer],
    linger: Callable[[], bool] = _leave,
) -> dict[str, Any]:
    carry = event.get("carry") or {}
    try:
        return asking.ask(name, submit, poll, carry, lambda: time.sleep(POLL_SECONDS), linger)
    except Waiting as wait:
        if not wait.carry:
            raise
        # What was answered before this in the same try is not asked again: two answers that each take longer
        # than one try would never meet.
        raise Waiting(str(wait), {**carry, **wait.carry}) from None
