"""Events that are not sent yet, kept on disk so that a restart of the agent loses none."""

import json
from collections import deque
from pathlib import Path
from typing import Any

MOST_EVENTS = 10_000


class Spool:
    """A queue of (detail type, detail) with a copy on disk. Not thread-safe: its owner locks.

    At most MOST_EVENTS are kept; then the oldest is dropped and counted in `dropped`. After a crash events
    may come again (at least once), never fewer. A disk that takes no more is no error: the queue then
    lives in memory alone, and `unwritten` says so.
    """

    def __init__(self, path: Path, most: int = MOST_EVENTS) -> None:
        self._path = path
        self._most = most
        self._on_disk = 0
        self.dropped = 0
        self.unwritten = False
        self._queue: deque[tuple[str, dict[str, Any]]] = deque(self._load())

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, detail_type: str, detail: dict[str, Any]) -> None:
        self._queue.append((detail_type, detail))
        if len(self._queue) > self._most:
            self._queue.popleft()
            self.dropped += 1
        if self._on_disk >= 2 * self._most:
            self._rewrite()
        else:
            self._write("a", [(detail_type, detail)])

    def batch(self, size: int) -> tuple[str, list[dict[str, Any]]] | None:
        """The oldest events, up to `size` and all of one detail type; they stay until `done`."""
        if not self._queue:
            return None
        detail_type = self._queue[0][0]
        details: list[dict[str, Any]] = []
        for kind, detail in self._queue:
            if kind != detail_type or len(details) == size:
                break
            details.append(detail)
        return detail_type, details

    def done(self, details: list[dict[str, Any]]) -> None:
        """These events of the last batch were sent."""
        for detail in details:
            if self._queue and self._queue[0][1] is detail:
                self._queue.popleft()
        if not self._queue:
            self._rewrite()

    def _rewrite(self) -> None:
        self._on_disk = 0
        self._write("w", list(self._queue))

    def _write(self, mode: str, events: list[tuple[str, dict[str, Any]]]) -> None:
        try:
            with self._path.open(mode, encoding="utf-8") as file:
                file.writelines(json.dumps(event) + "\n" for event in events)
            self.unwritten = False
        except OSError:
            self.unwritten = True
        self._on_disk += len(events)

    def _load(self) -> list[tuple[str, dict[str, Any]]]:
        events = []
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
        for line in lines[-self._most :]:
            try:
                detail_type, detail = json.loads(line)
            except (ValueError, TypeError):
                continue  # the line that was being written when the agent was killed
            if isinstance(detail_type, str) and isinstance(detail, dict):
                events.append((detail_type, detail))
        self._on_disk = len(lines)
        if lines and self._path.exists() and not self._path.read_bytes().endswith(b"\n"):
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n")
        return events
