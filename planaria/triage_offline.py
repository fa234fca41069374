"""`planaria triage --observe`: event files judged without AWS, against a ledger that lives in memory.

The events of one file share that memory: what an earlier one opened, told or repeated is known to a later
one. Every file begins with an empty ledger; with `sequence` it is kept from file to file. Nothing is ever
acted on, so no act of ours is recorded, except those that the inventory brings along.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planaria.core.affected import affected
from planaria.core.errors import InvalidInput
from planaria.core.explain import Explanation, explain
from planaria.core.parsers import parse, parse_text
from planaria.core.parsers.envelope import instance_id, when
from planaria.core.policy import Policy
from planaria.core.signal import Signal
from planaria.offline_ledger import OfflineLedger

Row = dict[str, Any]


def run(
    files: list[Path], *, inventory: Path | None = None, cluster: Path | None = None, sequence: bool = False
) -> list[dict[str, Any]]:
    """One object per event and affected node, in the order of files, then events, then entities.

    Each has the outcome in few words first, then its explanation (core/explain.py) as nested objects.
    A file `-` is stdin. inventory: JSON list of `node_id`, `instance_type`, `state`, `job_id`, `launched_at`,
    `capacity_reservation_id` (optional: `acts`); without it every instance that an event names is managed.
    cluster: a cluster file, for its policy. Raises InvalidInput, one sentence, for a file that is missing or
    unreadable; what an event file says is never an error.
    """
    if [*files, inventory].count(Path("-")) > 1:
        raise InvalidInput("- is stdin, which can be read only once")
    nodes = _inventory(inventory) if inventory is not None else None
    policy = _policy(cluster)
    judge = _Judge(nodes, policy)
    results: list[dict[str, Any]] = []
    for file in files:
        content = _read(file)
        if not sequence:
            judge = _Judge(nodes, policy)
        for signal in _signals(content):
            each = affected(signal, judge.offline.views())
            results.extend(_printed(file, judge.judge(one)) for one in each)
    return results


class _Judge:
    def __init__(self, nodes: Mapping[str, Row] | None, policy: Policy) -> None:
        self.offline = OfflineLedger(policy)
        self._everyone = nodes is None
        self._now = 0.0
        for node_id, row in (nodes or {}).items():
            self.offline.ledger.note_node(node_id, row)

    def judge(self, signal: Signal) -> Explanation:
        # The time of the event stands for the clock, so that old recordings are judged as they were live.
        self._now = signal.time if signal.time is not None else self._now
        ledger, node_id = self.offline.ledger, signal.node_id
        if node_id is not None and self._everyone and ledger.node(node_id) is None:
            ledger.note_node(node_id, {})
        judgement, view = self.offline.judge(signal, self._now)
        return explain(signal, view, self.offline.policy, judgement)


def _signals(content: bytes) -> list[Signal]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return parse_text(content)
    events = document if isinstance(document, list) else [document]
    return [signal for event in events for signal in parse(event)]


def _printed(file: Path, explanation: Explanation) -> dict[str, Any]:
    signal, judgement = explanation.signal, explanation.judgement
    return {
        "file": str(file),
        "event_id": signal.event_id,
        "source": signal.source or None,
        "detail_type": signal.detail_type or None,
        "node_id": signal.node_id,
        "kind": signal.kind.value,
        "code": signal.code,
        "outcome": judgement.outcome.value,
        "action": judgement.action.value if judgement.action is not None else None,
        "reason": judgement.reason,
        "rule": judgement.rule,
        **explanation.document(),
    }


def _read(file: Path) -> bytes:
    if str(file) == "-":
        if sys.stdin is None:
            raise InvalidInput("stdin is closed, so there is no event to read")
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InvalidInput(f"{file}: cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise InvalidInput(f"{str(file)!r}: is no file name.") from error


def _policy(cluster: Path | None) -> Policy:
    if cluster is None:
        return Policy.default()
    from planaria.recipes import ClusterFile  # pydantic is needed for --cluster alone

    return Policy.from_document(ClusterFile.load(cluster).document(1)["policy"])


def _inventory(path: Path) -> dict[str, Row]:
    try:
        entries = json.loads(_read(path))
    except (ValueError, RecursionError):
        raise InvalidInput(f"{path}: an inventory must be JSON.") from None
    if not isinstance(entries, list):
        raise InvalidInput(f"{path}: an inventory must be a JSON list of nodes.")
    rows: dict[str, Row] = {}
    for number, entry in enumerate(entries, 1):
        node_id = instance_id(entry.get("node_id")) if isinstance(entry, dict) else None
        if node_id is None:
            raise InvalidInput(
                f"{path}: entry {number} must be an object with node_id, an EC2 instance id such as "
                "i-0123456789abcdef0."
            )
        rows[node_id] = {
            **{key: entry[key] for key in _INVENTORY if key in entry},
            "managed": True,
            "launched_at": when(entry.get("launched_at")),
            "reservation": entry.get("capacity_reservation_id"),
            "gone": entry.get("state") == "terminated",
        }
    return rows


_INVENTORY = (
    "node_id",
    "name",
    "group",
    "instance_type",
    "state",
    "lifecycle",
    "job_id",
    "acts",
    "opted_out",
)
