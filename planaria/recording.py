"""What happened in a window of time, as the ledger has it: read from there, or from a file that was exported.

The file has one JSON object per line: rows of the ledger as they are stored (`pk` and `sk` say what each is),
with the text of large events put into them, after a first line that says which cluster and window it is.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planaria.core.errors import InvalidInput, PlanariaError
from planaria.core.event_rows import COUNTED, hours
from planaria.core.ledger import Ledger
from planaria.core.table import Row

HEADER = "EXPORT"
Told = Callable[[str, int, int], None]
"""Called with what is being read, how many are done and how many there are."""


@dataclass(slots=True)
class Recording:
    """events: outcome rows in the order of `at`, large bodies put into `event`; where that failed, `unread`
    says why. incidents: their own rows; steps: timeline rows by incident id. counts: what was not stored
    singly: name -> start of the hour -> number. since, until: the window, None where the file does not say.
    cut: there was more than was wanted."""

    cluster: str = ""
    since: float | None = None
    until: float | None = None
    events: list[Row] = field(default_factory=list)
    incidents: list[Row] = field(default_factory=list)
    steps: dict[str, list[Row]] = field(default_factory=dict)
    nodes: list[Row] = field(default_factory=list)
    counts: dict[str, dict[float, int]] = field(default_factory=dict)
    cut: bool = False

    def counted(self) -> dict[str, int]:
        return {what: sum(by_hour.values()) for what, by_hour in self.counts.items()}


def read(
    ledger: Ledger,
    body: Callable[[str], bytes],
    cluster: str,
    since: float,
    until: float,
    limit: int,
    lookback: float = 3600.0,
    told: Told | None = None,
) -> Recording:
    """The first `limit` events of since <= t < until, and what explains their course.

    body: reads an object of the bucket by its key. lookback: seconds before `since` whose incidents count too
    (the breaker's window). Nothing is written.
    """
    found = Recording(cluster, since, until, nodes=ledger.nodes())
    window, read_hours = len(hours(since, until)), itertools.count(1)

    def each_hour() -> None:
        if told is not None:
            told("hours", next(read_hours), window)

    for row in ledger.events_since(since, until, each_hour):
        if len(found.events) == limit:
            found.cut = True
            found.until = until = float(found.events[-1]["at"]) + 1.0
            break
        found.events.append(_whole(row, body))
    concerned = {row.get("node_id") for row in found.events}
    for row in ledger.incidents():
        opened = row.get("opened_at")
        if not isinstance(opened, int | float) or opened >= until or not row.get("node_id"):
            continue
        if row["node_id"] in concerned or opened >= since - lookback:
            found.incidents.append(row)
    for number, row in enumerate(found.incidents, 1):
        found.steps[row["incident_id"]] = ledger.incident(row["incident_id"])[1]
        if told is not None:
            told("incidents", number, len(found.incidents))
    found.counts = {what: ledger.counts(what, since, until) for what in COUNTED}
    return found


def _whole(row: Row, body: Callable[[str], bytes]) -> Row:
    """The row with its text, which lies in the bucket when it is large."""
    key = row.get("event_key")
    if "event" in row or not isinstance(key, str):
        return row
    try:
        return {**row, "event": body(key).decode(errors="replace")}
    except PlanariaError as error:
        return {**row, "unread": f"its text is in the bucket as {key} and could not be read: {error}"}


def write(recording: Recording, path: Path) -> int:
    """Export; the number of lines. The file is there when all of it is."""
    part = path.with_name(path.name + ".part")
    lines = 0
    try:
        with part.open("w", encoding="utf-8") as file:
            for row in _rows(recording):
                lines += file.write(json.dumps(row) + "\n") > 0
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return lines


def _rows(recording: Recording) -> Iterator[Row]:
    yield {
        "pk": HEADER,
        "sk": HEADER,
        "version": 1,
        "cluster": recording.cluster,
        "since": recording.since,
        "until": recording.until,
    }
    yield from recording.nodes
    for row in recording.incidents:
        yield row
        yield from recording.steps.get(str(row.get("incident_id")), [])
    for what, by_hour in recording.counts.items():
        for at, number in by_hour.items():
            yield {"pk": f"COUNT#{what}", "sk": f"{int(at // 3600):010d}", "number": number}
    yield from recording.events


def load(path: Path) -> Recording:
    """A file that `write` made. Rows of other kinds are passed over. Raises InvalidInput, one sentence that
    names the file and the line."""
    found = Recording()
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    _sort(found, _row(line, f"{path} line {number}"), f"{path} line {number}")
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path}: is not text in UTF-8.") from error
    found.events.sort(key=lambda row: (float(row["at"]), row["pk"]))
    return found


def _row(line: str, where: str) -> Row:
    try:
        row = json.loads(line, parse_int=_integer)
    except (ValueError, RecursionError):
        raise InvalidInput(
            f"{where}: must be a JSON object, as `planaria replay --export` writes it."
        ) from None
    if not isinstance(row, dict) or not isinstance(row.get("pk"), str):
        raise InvalidInput(f"{where}: must be a row of the ledger, an object with `pk` and `sk`.")
    return row


def _integer(digits: str) -> int:
    """DynamoDB's numbers have at most 38 digits, and what is longer may be no number to others."""
    if len(digits) > 39:
        raise ValueError("no number of the ledger")
    return int(digits)


def _sort(found: Recording, row: Row, where: str) -> None:
    kind, _, name = row["pk"].partition("#")
    if kind == "EVENT":
        if _number(row.get("at")) is None:
            raise InvalidInput(f"{where}: `at` must be epoch seconds, not {row.get('at')!r:.40}.")
        found.events.append(row)
    elif kind == "INCIDENT" and row.get("sk") == "INCIDENT":
        found.incidents.append(row)
    elif kind == "INCIDENT":
        if _number(row.get("at")) is not None:
            found.steps.setdefault(name, []).append(row)
    elif kind == "NODE":
        found.nodes.append(row)
    elif kind == "COUNT":
        _count(found, name, row, where)
    elif kind == HEADER:
        found.cluster = str(row.get("cluster") or "")
        found.since, found.until = _number(row.get("since")), _number(row.get("until"))


def _count(found: Recording, what: str, row: Row, where: str) -> None:
    hour, number = row.get("sk"), row.get("number")
    if not isinstance(hour, str) or not hour.isdigit() or len(hour) > 10 or not isinstance(number, int):
        raise InvalidInput(f"{where}: a counter must have the hour as `sk` and a `number`.")
    found.counts.setdefault(what, {})[int(hour) * 3600.0] = number


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e12 < value < 1e12:
        return None
    return float(value)
