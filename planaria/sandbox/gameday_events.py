"""What AWS would say, said as game-day events on Planaria's bus: nobody but AWS may use `aws.*` sources."""

import json
import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

SOURCE = "planaria.gameday"
STATE_CHANGE = "EC2 Instance State-change Notification"
SPOT_WARNING = "EC2 Spot Instance Interruption Warning"
EXECUTION_STATUS = "Step Functions Execution Status Change"

_BATCH = 10  # entries of one PutEvents call
_MOST = 1000
_RETRY_SECONDS = 0.25
logger = logging.getLogger(__name__)


class GameDayEvents:
    """Sends in order from a thread of its own. What the bus does not take (it may not be deployed yet) is
    tried again; beyond _MOST waiting events the oldest are dropped."""

    def __init__(self, client: Any, bus: str) -> None:
        self._client = client
        self._bus = bus
        self._waiting: deque[dict[str, Any]] = deque(maxlen=_MOST)
        self._change = threading.Condition()
        self._ending = threading.Event()
        self.sent = 0
        self._thread = threading.Thread(target=self._run, name="gameday-events", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        with self._change:
            self._change.notify()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def put(self, detail_type: str, detail: Mapping[str, Any], resources: Sequence[str] = ()) -> None:
        entry = {
            "Source": SOURCE,
            "DetailType": detail_type,
            "Detail": json.dumps(detail),
            "Resources": list(resources),
            "EventBusName": self._bus,
        }
        with self._change:
            self._waiting.append(entry)
            self._change.notify()

    def _run(self) -> None:
        complained = ""
        while not self._ending.is_set():
            with self._change:
                while not self._waiting and not self._ending.is_set():
                    self._change.wait()
                batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            refused, why = self._send(batch)
            self.sent += len(batch) - len(refused)
            if refused:
                if why != complained:
                    logger.warning("game-day events wait: %s", why)
                with self._change:
                    self._waiting.extendleft(reversed(refused))
                self._ending.wait(_RETRY_SECONDS)
            complained = why

    def _send(self, batch: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
        """(entries that were not taken, why)."""
        if not batch:
            return [], ""
        try:
            answers = self._client.put_events(Entries=batch)["Entries"]
        except Exception as error:  # noqa: BLE001  whatever it is, the sandbox goes on and tries again
            return batch, str(error)
        both = zip(batch, answers, strict=True)
        pairs = [(entry, answer) for entry, answer in both if "ErrorCode" in answer]
        return [entry for entry, _ in pairs], pairs[0][1]["ErrorCode"] if pairs else ""
