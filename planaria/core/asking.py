"""Asking a port that answers later: submit once, poll shortly, and hand the waiting to the workflow."""

from collections.abc import Callable, Mapping
from typing import Any

from planaria.core.errors import Waiting
from planaria.core.ports import Answer, AnswerState

# A fast answer (the sandbox's, or a command that takes a fraction of a second) saves two state transitions.
PATIENCE_POLLS = 8


def ask(
    name: str,
    submit: Callable[[], str],
    poll: Callable[[str], Answer],
    carry: Mapping[str, str],
    pause: Callable[[], None],
    linger: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """The answer's value, or Waiting with the ticket in its carry.

    name: what is asked, the key of its ticket in `carry`. An UNKNOWN answer waits too, without the
    ticket: the next try asks again, and the workflow bounds the tries. linger: pauses and says whether to
    poll once more, asked when the usual polls are over.
    """
    ticket = carry.get(name) or submit()
    polls = 0
    while True:
        answer = poll(ticket)
        polls += 1
        if answer.state is AnswerState.DONE:
            return dict(answer.value)
        if answer.state is AnswerState.UNKNOWN:
            raise Waiting(f"{name}: {answer.reason or 'the answer is unknown'}")
        if polls < PATIENCE_POLLS:
            pause()
        elif not linger():
            raise Waiting(f"{name} is still out", {name: ticket})
