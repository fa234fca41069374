"""`planaria replay`: stored events, judged again by today's policy; `planaria event ID`: one, explained."""

import itertools
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from planaria.aws.s3 import S3Objects
from planaria.cli import explained, options, records, screen
from planaria.cli.target import Target, bucket_of, connect
from planaria.core.breaker import allowed
from planaria.core.cluster import Cluster
from planaria.core.errors import InvalidInput
from planaria.core.event_rows import DAY, EVENT_DAYS, HOUR, hours
from planaria.core.explain import explain
from planaria.core.fault import Action
from planaria.core.judge import Judgement, Outcome
from planaria.core.node import NodeView
from planaria.core.policy import Mode, Policy
from planaria.core.table import Row
from planaria.recording import Recording, Told, load, read, write
from planaria.replay import Line, Replay, signal_of
from planaria.replay import replay as judge_again

app = typer.Typer()

MOST_EVENTS = 10_000
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d|w)")
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_WHEN = "a time such as 2026-11-30T10:00:00Z, or how long ago: 90s, 30m, 2h, 3d, 1w"


@app.command("replay")
def replay(
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="T", help=f"{_WHEN[0].upper()}{_WHEN[1:]}.", show_default=False),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="T", help="As --since; now by default.", show_default=False),
    ] = None,
    cluster_file: Annotated[
        Path | None,
        typer.Option(
            "--cluster-file",
            metavar="FILE",
            help="Judge by the policy of this cluster file; by default by the deployed one.",
            show_default=False,
        ),
    ] = None,
    node: Annotated[
        str | None, typer.Option("--node", metavar="NODE", help="Show this node only.", show_default=False)
    ] = None,
    differences: Annotated[
        bool, typer.Option("--differences", help="Show only what would end otherwise.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="Read the first N events at most.")
    ] = MOST_EVENTS,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write what would be replayed to a file, and end.", show_default=False
        ),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Replay an exported file; no AWS, no sandbox.", show_default=False),
    ] = None,
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """Judge the stored events again, by today's code and policy, and show what would end otherwise.

    Nothing is acted on and nothing is written to the cluster.

    Example: planaria replay --since 2h --differences --cluster-file edited.yaml
    """
    now = time.time()
    chosen = _read_cluster(cluster_file) if cluster_file is not None else None
    shown = screen.console(stderr=True)
    if events is not None:
        if export is not None:
            raise InvalidInput("--events reads an exported file and --export writes one; give one of them")
        recording = _window(load(events), since, until, limit, now)
        basis = chosen or _Basis(None, "Planaria's defaults; --cluster-file names a cluster's own")
    else:
        if since is None:
            raise InvalidInput(f"say from when on with --since T: {_WHEN}")
        _times(since, until, now)  # a wrong one is said before anything is connected
        target = connect(cluster, folder, aws)
        clock = target.gateways.clock.now()
        _past(moment(since, clock, "--since"), clock)
        window = _times(since, until, clock)
        basis = chosen or _deployed(target, export is not None)
        with _bar(shown) as told:
            lookback = basis.policy.breaker.window_seconds
            recording = read(
                target.gateways.ledger, bodies(target), target.cluster, *window, limit, lookback, told
            )
    if export is not None:
        write(recording, export)
        if as_json:
            screen.emit({"file": str(export), "events": len(recording.events)})
        else:
            screen.say(
                f"{_number(len(recording.events), 'event')} in {export}; --events replays them.", False
            )
        return
    only = records.find_node(recording.nodes, node) if node is not None else None
    with _bar(shown) as told:
        found = _judge(recording, basis, told)
    lines = [
        line
        for line in found.lines
        if (only is None or line.row.get("node_id") == only) and (line.differs or not differences)
    ]
    if as_json:
        screen.emit(_document(recording, basis, found, lines))
    else:
        _show(recording, basis, found, lines)


@app.command("event")
def event(
    event_id: Annotated[str, typer.Argument(metavar="ID", help="The `id` that the event came with.")],
    since: Annotated[
        str,
        typer.Option("--since", metavar="T", help="Look back so far, where ID alone does not lead to it."),
    ] = "1d",
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """Show how a stored event ended, and why: the parse, the rule with its sources, the decision.

    An event that names several nodes has one outcome for each.

    Example: planaria event 2abb8cf7-1a1f-5a24-8822-f59d29be8803
    """
    _times(since, None, time.time())
    target = connect(cluster, folder, aws)
    now = target.gateways.clock.now()
    _past(moment(since, now, "--since"), now)
    start, _ = _times(since, None, now)
    ledger, body = target.gateways.ledger, bodies(target)
    direct = ledger.outcome(event_id, now)
    with _bar(screen.console(stderr=True)) as told:
        rows = [direct] if direct is not None else _scan(target, event_id, start, now + 1, told)
    if not rows:
        raise InvalidInput(
            f"no outcome of an event {event_id!r:.80} is stored since {explained.iso(start)}; --since 3d "
            "looks further back, and what is not managed or a duplicate is only counted"
        )
    documents = [_explained(row, target, body) for row in rows]
    if as_json:
        screen.emit(documents)
        return
    for document in documents:
        screen.console().print(_block(document))


# --- where it comes from ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Basis:
    """What is judged by. cluster: None where only defaults are known; name: for people."""

    cluster: Cluster | None
    name: str

    @property
    def policy(self) -> Policy:
        return self.cluster.policy if self.cluster is not None else Policy.default()


def moment(text: str, now: float, option: str) -> float:
    """Epoch seconds of an ISO time (UTC where it names no zone) or of a duration before now."""
    match = _SPAN.fullmatch(text.strip())
    if match is not None:
        return now - float(match[1]) * _SECONDS[match[2]]
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise InvalidInput(f"{option} must be {_WHEN}; not {text!r:.60}") from None


def _times(since: str, until: str | None, now: float) -> tuple[float, float]:
    """The window, cut to where there can be events: rows expire, and clocks are at most an hour apart."""
    start, end = moment(since, now, "--since"), moment(until, now, "--until") if until is not None else now
    _ordered(start, end if until is not None else None)
    return max(start, now - EVENT_DAYS * DAY - HOUR), min(end, now + HOUR)


def _ordered(start: float | None, end: float | None) -> None:
    if start is not None and end is not None and end <= start:
        raise InvalidInput(
            f"--until ({explained.iso(end)}) must be later than --since ({explained.iso(start)}); "
            "`--since 2h --until 1h` is the hour that ended an hour ago"
        )


def _past(since: float, now: float) -> None:
    if since > now:
        raise InvalidInput(f"--since ({explained.iso(since)}) lies in the future; it must be {_WHEN}")


def bodies(target: Target) -> Callable[[str], bytes]:
    """Reads large events from the cluster's bucket, which is looked up when the first one is wanted."""

    def body(key: str) -> bytes:
        try:
            objects = target.gateways.objects
        except InvalidInput:
            objects = target.gateways.objects = S3Objects(target.client("s3"), bucket_of(target))
        return objects.get(key)

    return body


def _read_cluster(path: Path) -> _Basis:
    from planaria.recipes import ClusterFile  # pydantic is needed for --cluster-file alone

    return _Basis(Cluster.from_document(ClusterFile.load(path).document(1)), f"the cluster file {path}")


def _deployed(target: Target, unneeded: bool) -> _Basis:
    known = target.gateways.cluster
    if known.node_groups:
        return _Basis(known, f"that of the running cluster {known.name}")
    if unneeded:
        return _Basis(None, "")
    raise InvalidInput(
        "the policy that is deployed on AWS cannot be read from here: name the cluster file that it was "
        "deployed from, or a changed copy, with --cluster-file FILE"
    )


def _window(recording: Recording, since: str | None, until: str | None, limit: int, now: float) -> Recording:
    """The part of an exported file that is wanted; what was before stays, for what it leaves in memory."""
    if since is not None:
        recording.since = moment(since, now, "--since")
    if until is not None:
        recording.until = moment(until, now, "--until")
        _ordered(recording.since if since is not None else None, recording.until)
        recording.events = [row for row in recording.events if float(row["at"]) < recording.until]
    start = recording.since if recording.since is not None else float("-inf")
    wanted = [number for number, row in enumerate(recording.events) if float(row["at"]) >= start]
    if len(wanted) > limit:
        recording.events, recording.cut = recording.events[: wanted[limit]], True
    return recording


def _judge(recording: Recording, basis: _Basis, told: Told) -> Replay:
    limits = basis.policy.breaker
    size = basis.cluster.size if basis.cluster is not None else 0
    size = size or sum(1 for row in recording.nodes if records.serves(row)) or 1
    cap = allowed(limits.max_removals, limits.max_share, size)
    done = itertools.count(1)
    since = recording.since if recording.since is not None else float("-inf")
    return judge_again(
        recording, basis.policy, cap, since, lambda: told("events", next(done), len(recording.events))
    )


def _scan(target: Target, event_id: str, since: float, until: float, told: Told) -> list[Row]:
    """All rows of an event whose id is not its whole key (AWS Health, several instances)."""
    done, window = itertools.count(1), len(hours(since, until))
    rows = target.gateways.ledger.events_since(since, until, lambda: told("hours", next(done), window))
    return [row for row in rows if row.get("event_id") == event_id]


# --- how it is shown -------------------------------------------------------------------------------


def _document(recording: Recording, basis: _Basis, found: Replay, lines: list[Line]) -> dict[str, Any]:
    names = records.names_of(recording.nodes)
    return {
        "cluster": recording.cluster or None,
        "since": explained.iso(recording.since),
        "until": explained.iso(recording.until),
        "policy": {"from": basis.name, "mode": basis.policy.mode.value},
        "cut": recording.cut,
        "events": [_line(line, names) for line in lines],
        "totals": {
            "events": len(found.lines),
            "differ": sum(1 for line in found.lines if line.differs),
            "unread": sum(1 for line in found.lines if line.now is None),
            "outcomes": {word: {"then": a, "now": b} for word, (a, b) in found.outcomes().items()},
            "incidents": {"then": found.incidents_then, "now": found.incidents_now},
            "counted": recording.counted(),
        },
    }


def _line(line: Line, names: dict[str, str]) -> dict[str, Any]:
    row = line.row
    node = row.get("node_id")
    return {
        "event_id": row.get("event_id"),
        "at": explained.iso(row["at"]),
        "source": row.get("source"),
        "detail_type": row.get("detail_type"),
        "node_id": node,
        "name": names.get(str(node)),
        "kind": row.get("kind"),
        "code": row.get("code"),
        "then": dict(line.then),
        "now": dict(line.now) if line.now is not None else None,
        "differs": list(line.differs),
        "note": line.note or None,
    }


def _show(recording: Recording, basis: _Basis, found: Replay, lines: list[Line]) -> None:
    shown, names = screen.console(), records.names_of(recording.nodes)
    if lines:
        rows = [
            (
                _seconds(line.row["at"]),
                names.get(str(line.row.get("node_id")), line.row.get("node_id")),
                Text(f"{line.row.get('kind') or ''} {line.row.get('code') or ''}".strip() or "-"),
                _end(line.then),
                _now(line),
            )
            for line in lines
        ]
        columns = ("JUDGED", "NODE", "EVENT", "THEN", "NOW")
        shown.print(screen.table(columns, rows, fold=("EVENT", "NOW")))
    differ = sum(1 for line in found.lines if line.differs)
    unread = sum(1 for line in found.lines if line.now is None)
    totals = [f"{_number(len(found.lines), 'event')}, {differ} would end otherwise"]
    totals += [f"{unread} could not be judged again"] if unread else []
    totals.append(f"incidents opened: {found.incidents_then} then, {found.incidents_now} now")
    screen.say("; ".join(totals) + ".", False)
    outcomes = ", ".join(f"{word} {a} then, {b} now" for word, (a, b) in found.outcomes().items() if a != b)
    if outcomes:
        screen.say(f"Outcomes: {outcomes}.", False)
    if counted := ", ".join(f"{what} {number}" for what, number in recording.counted().items() if number):
        screen.say(f"Only counted, by whole hours: {counted}.", False)
    if recording.cut:
        screen.say(f"There are more: only the first {len(found.lines)} were read; --limit takes more.", False)
    screen.say(f"Policy: {basis.name} (mode {basis.policy.mode}).", False)


def _end(end: Any) -> Text:
    return screen.word(end["outcome"]).append(f" {end['action'] or ''}".rstrip(), style="not bold")


def _now(line: Line) -> Text:
    if line.now is None:
        return Text(line.note, style="dim")
    if not line.differs:
        return Text("the same" + (f"; {line.note}" if line.note else ""), style="dim")
    text = _end(line.now)
    text.append(f" by {line.now['rule']}" if line.differs != ("outcome",) else "", style="not bold")
    return text.append(f"\n{line.now['reason']}", style="not bold dim")


def _seconds(at: Any) -> Text:
    return Text((explained.iso(at) or "")[:19])


def _number(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _explained(row: Row, target: Target, body: Callable[[str], bytes]) -> dict[str, Any]:
    """The row and, where its text can be had, the explanation of what was recorded."""
    made: dict[str, Any] = {
        "event_id": row.get("event_id"),
        "at": explained.iso(row.get("at")),
        "source": row.get("source"),
        "detail_type": row.get("detail_type"),
        **{key: row.get(key) for key in ("node_id", "kind", "code", "outcome", "action", "reason", "rule")},
        "mode": row.get("mode"),
    }
    text = row.get("event")
    if text is None and row.get("event_key"):
        text = body(str(row["event_key"])).decode(errors="replace")
    signal = signal_of(row, text) if isinstance(text, str) else None
    if signal is None:
        return made | dict.fromkeys(explained.KEYS)
    known = target.gateways.ledger.node(signal.node_id) if signal.node_id is not None else None
    view = NodeView.from_row(known) if known is not None else None
    action = row.get("action")
    judgement = Judgement(
        Outcome(row["outcome"]),
        Action(action) if action else None,
        str(row.get("reason") or ""),
        str(row.get("rule") or ""),
        mode=Mode(row.get("mode") or Mode.ACT),
        sources=str(row.get("sources") or ""),
    )
    policy = target.gateways.cluster.policy
    return made | explained.readable(explain(signal, view, policy, judgement).document())


def _block(document: dict[str, Any]) -> Any:
    title = _end(document).append(
        f"  {document['event_id'] or ''}  judged {document['at']}", style="not bold"
    )
    if document["parse"] is None:
        return title.append(f"\n{document['reason'] or 'its text was not stored'}", style="not bold dim")
    return explained.block(title, document)


@contextmanager
def _bar(shown: Console) -> Iterator[Told]:
    """A progress bar for each thing that is read or judged, on a terminal only."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=shown,
        disable=not shown.is_terminal,
        transient=True,
    )
    tasks: dict[str, Any] = {}

    def told(what: str, done: int, of: int) -> None:
        if what not in tasks:
            tasks[what] = progress.add_task(what, total=of)
        progress.update(tasks[what], completed=done)

    with progress:
        yield told
