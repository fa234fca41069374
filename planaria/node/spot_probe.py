"""The notice that EC2 is about to take this spot instance back.

Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
(instance metadata item spot/instance-action: {"action", "time"}, UTC).
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from planaria.node.probe import NODE_SIGNAL

ITEM = "spot/instance-action"


class SpotProbe:
    """Reports each notice once. path: a JSON file {metadata item: its document}; no file, no notice."""

    detail_type = NODE_SIGNAL

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._notice: dict[str, Any] | None = None

    def poll(self, now: float) -> list[dict[str, Any]]:  # noqa: ARG002  the notice has its own time
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return []
        if self._seen == (found.st_mtime_ns, found.st_ino):
            return []
        document = json.loads(self._path.read_text(encoding="utf-8"))
        self._seen = (found.st_mtime_ns, found.st_ino)
        notice = document.get(ITEM) if isinstance(document, dict) else None
        if not isinstance(notice, dict) or notice == self._notice:
            return []
        self._notice = notice
        detail = {
            "kind": "spot_notice",
            "code": str(notice.get("action", "terminate")),
            "pci": "",
            "message": json.dumps({ITEM: notice})[:1024],
            "injected": bool(notice.get("injected", False)),
            "count": 1,
        }
        deadline = _epoch(notice.get("time"))
        return [detail if deadline is None else {**detail, "deadline": deadline}]


def _epoch(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
