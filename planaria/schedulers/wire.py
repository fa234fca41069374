"""Scheduler requests and answers as JSON, for schedulers that are spoken to over HTTP."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any, get_args, get_type_hints

from planaria.core.errors import InvalidInput
from planaria.core.ports import Answer, AnswerState
from planaria.core.scheduling import SchedulerRequest

_REQUESTS: dict[str, type[Any]] = {
    str(each.default): kind
    for kind in get_args(SchedulerRequest)
    for each in fields(kind)
    if each.name == "verb"
}


def encode(request: SchedulerRequest) -> dict[str, Any]:
    """{"verb": ..., and the fields of the request}."""
    return asdict(request)


def decode(document: Mapping[str, Any]) -> SchedulerRequest:
    """The request of a document. Raises InvalidInput with one sentence that names the wrong field."""
    verb = document.get("verb")
    kind = _REQUESTS.get(verb) if isinstance(verb, str) else None
    if kind is None:
        raise InvalidInput(f"unknown verb {verb!r}: use one of {', '.join(sorted(_REQUESTS))}")
    hints = get_type_hints(kind)
    values = {}
    for each in fields(kind):
        if each.name in document:
            values[each.name] = _value(document[each.name], hints[each.name], f"{verb}: {each.name}")
        elif each.default is MISSING:
            raise InvalidInput(f"{verb}: {each.name} is missing")
    unknown = sorted(set(document) - {each.name for each in fields(kind)})
    if unknown:
        raise InvalidInput(f"{verb}: unknown field {unknown[0]}")
    request: SchedulerRequest = kind(**values)
    return request


def decode_answer(document: Mapping[str, Any]) -> Answer:
    """An Answer; a state that nobody knows counts as UNKNOWN."""
    state = str(document.get("state"))
    return Answer(
        AnswerState(state) if state in set(AnswerState) else AnswerState.UNKNOWN,
        dict(document.get("value") or {}),
        str(document.get("reason", "")),
    )


def _value(value: Any, hint: Any, where: str) -> Any:
    if hint is str and isinstance(value, str):
        return value
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint == tuple[str, ...] and isinstance(value, list) and all(isinstance(v, str) for v in value):
        return tuple(value)
    raise InvalidInput(f"{where} has a wrong value: {value!r}")
