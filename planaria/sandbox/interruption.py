"""Ctrl-C, SIGTERM and a closed terminal: one way out, in which nothing is left behind."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Handler = Callable[[int, FrameType | None], None] | signal.Handlers


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end what runs as Ctrl-C does."""
    yield from _with(_interrupt)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """An impatient second Ctrl-C does not stop the clearing up."""
    yield from _with(signal.SIG_IGN)


def _with(handler: Handler) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in ENDING}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
