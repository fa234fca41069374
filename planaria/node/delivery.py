"""From probes to Planaria's bus: in order, in batches, kept on disk while the API cannot be reached."""

import threading
from collections.abc import Callable
from typing import Any

from planaria.core.ports import Bus
from planaria.node.spool import Spool

BATCH = 10  # entries of one PutEvents call
FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 5.0


class Delivery:
    """Sends from a thread of its own, so that a slow API never stops the probes.

    source: the only source that this node may use. make_bus: called in the thread, since loading the SDK
    takes a good part of a second. Every failure is tried again, with growing waits, for as long as the
    agent lives: a denied node may be allowed later, and the spool is bounded.
    """

    def __init__(self, make_bus: Callable[[], Bus], source: str, spool: Spool) -> None:
        self._make_bus = make_bus
        self._source = source
        self._spool = spool
        self._change = threading.Condition()
        self._closed = False
        self._retry = threading.Event()
        self.last_error = ""
        self.sent = 0
        self._thread = threading.Thread(target=self._run, name="delivery", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, detail_type: str, detail: dict[str, Any]) -> None:
        """Keep an event and send it as soon as possible."""
        with self._change:
            self._spool.add(detail_type, detail)
            self._change.notify()

    def state(self) -> dict[str, Any]:
        """Counters for the heartbeat."""
        with self._change:
            spool = self._spool
            return {
                "sent": self.sent,
                "spooled": len(spool),
                "dropped": spool.dropped,
                "spool_unwritten": spool.unwritten,
                "last_error": self.last_error,
            }

    def close(self, seconds: float) -> None:
        """Stop, after at most `seconds` for what is still to be sent."""
        with self._change:
            self._closed = True
            self._change.notify()
        self._retry.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        bus: Bus | None = None
        wait = FIRST_WAIT_SECONDS
        while True:
            try:
                bus = bus or self._make_bus()
                batch = self._next()
                if batch is None:
                    return
                bus.put(self._source, *batch)
            except Exception as error:  # noqa: BLE001  whatever it is, the events stay and are tried again
                self.last_error = f"{type(error).__name__}: {error}"[:500]
                self._retry.wait(wait)
                if self._closed:
                    return
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)
                continue
            wait, self.last_error = FIRST_WAIT_SECONDS, ""
            with self._change:
                self._spool.done(batch[1])
                self.sent += len(batch[1])

    def _next(self) -> tuple[str, list[dict[str, Any]]] | None:
        """The next batch, waiting for one; None when closed and empty."""
        with self._change:
            while True:
                batch = self._spool.batch(BATCH)
                if batch is not None or self._closed:
                    return batch
                self._change.wait()
