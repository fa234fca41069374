"""What a person sees: consoles, tables, times and progress. With --json stdout has one JSON document and
everything else goes to stderr."""

import json
import re
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from planaria.core.ansi import SEQUENCE

PIPE_WIDTH = 120
"""Columns where the other end is no terminal and nobody said how wide it is."""


# Logs, events and tags are written by others: their colours, cursor moves, window titles and reversed texts
# are not this terminal's.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_UNESCAPED = re.compile(r"[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """The text without control characters, but for line ends and tabs."""
    return _CONTROL.sub("", SEQUENCE.sub("", text))


class _Screen(Console):
    """A console on which only its own styles reach the terminal, whatever a text holds."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(clean(segment.text), segment.style)


def console(stderr: bool = False) -> Console:
    """A console on the stream as it is now."""
    made = _Screen(stderr=stderr, highlight=False, soft_wrap=False)
    if not made.is_terminal and "COLUMNS" not in made._environ:
        made.width = PIPE_WIDTH
    return made


def emit(document: Any) -> None:
    """The answer of a command with --json."""
    sys.stdout.write(as_json(document) + "\n")


def as_json(document: Any) -> str:
    """JSON in which every control character is escaped; JSON itself asks for that of the first 32 alone."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return _UNESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def say(text: str, stderr: bool = True) -> None:
    """One line for people; markup in `text` is not interpreted."""
    console(stderr).print(Text(clean(text)), soft_wrap=True)


def iso(at: object) -> str | None:
    """Epoch seconds as 2026-11-30T10:22:03.123Z; None for anything that is no time."""
    if isinstance(at, bool) or not isinstance(at, int | float):
        return None
    try:
        moment = datetime.fromtimestamp(round(float(at), 3), UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def ago(at: object, now: float) -> str:
    """How long ago a moment was, in one unit: `14 s ago`, `3 min ago`, `2 d ago`."""
    if isinstance(at, bool) or not isinstance(at, int | float):
        return ""
    passed = max(0.0, now - at)
    for unit, seconds in (("d", 86400), ("h", 3600), ("min", 60)):
        if passed >= 2 * seconds:
            return f"{passed / seconds:.0f} {unit} ago"
    return f"{passed:.0f} s ago"


def span(seconds: float) -> str:
    """A duration: `0.42 s`, `12.3 s`, `2 min 05 s`."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"


COLOURS = {
    "HEALED": "green",
    "RETIRED": "green",
    "ESCALATED": "bold red",
    "CANCELLED": "yellow",
    "SUPERSEDED": "yellow",
    "Schedulable": "green",
    "Unschedulable": "yellow",
    "UnschedulablePendingReboot": "yellow",
    "UnschedulablePendingReplacement": "red",
    "RUNNING": "green",
    "STOPPED": "yellow",
    "FAILED": "bold red",
    "COMPLETED": "green",
    "OPENED": "bold",
    "INVALID": "red",
    "HELD": "yellow",
    "running": "green",
    "up": "green",
    "booting": "yellow",
    "dead": "red",
    "terminated": "dim",
}


def word(value: object) -> Text:
    """One of the words of the system in its colour; a dash where there is none."""
    text = "" if value is None else clean(str(value))
    return Text(text or "-", style=COLOURS.get(text, "") if text else "dim")


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    fold: Sequence[str] = (),
    clip: Sequence[str] = (),
) -> Table:
    """fold: columns whose text may be broken into lines. clip: columns whose text is cut where the room
    ends. The others always stand there whole: an id that is cut is worth nothing."""
    made = Table(
        box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0), expand=bool(clip)
    )
    cells = [[cell if isinstance(cell, Text) else word(cell) for cell in row] for row in rows]
    for number, name in enumerate(columns):
        if name in fold:
            made.add_column(name, overflow="fold")
        elif name in clip:
            made.add_column(name, no_wrap=True, overflow="ellipsis", ratio=1)
        else:
            width = max([len(name)] + [row[number].cell_len for row in cells])
            made.add_column(name, no_wrap=True, min_width=width)
    for row in cells:
        made.add_row(*row)
    return made


class Stages:
    """Progress of things that happen one after the other, told in sentences.

    `stages("nodes ready: 2 of 4")` goes on with the stage of that name (what stands before the colon) or
    begins it, which ends the one before. On a terminal the present stage lives in the last line; elsewhere
    each is one line when it begins, and one when it ends with other words.
    """

    def __init__(self, screen: Console) -> None:
        self._screen = screen
        self._live: Live | None = None
        self._text = self._printed = ""
        self._began = 0.0
        self._shown = time.monotonic()

    def __call__(self, text: str) -> None:
        name, before = text.partition(":")[0], self._text.partition(":")[0]
        if name != before:
            self._finish("[green]✓[/]")
            self._began = time.monotonic()
            if not self._screen.is_terminal:
                self._stamped(text)
        self._text = text
        if self._screen.is_terminal:
            self._show()

    def note(self, text: Text | str) -> None:
        """A line that stays, above the present stage."""
        line = text if isinstance(text, Text) else Text(text)
        if not self._screen.is_terminal:
            line = Text(f"[{time.monotonic() - self._shown:5.1f} s] ") + line
        self._screen.print(line)

    def done(self) -> None:
        """The last stage is over."""
        self._finish("[green]✓[/]")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish("[green]✓[/]" if error is None else "[red]✗[/]")

    def _show(self) -> None:
        if self._live is None:
            self._live = Live(console=self._screen, refresh_per_second=10, transient=True)
            self._live.start()
            self._spinner = Spinner("dots", style="cyan")
        grid = Table.grid(padding=(0, 1))
        grid.add_row(self._spinner, Text(self._text, overflow="ellipsis", no_wrap=True), _Clock(self._began))
        self._live.update(grid)

    def _finish(self, mark: str) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._text and self._screen.is_terminal:
            line = Text.from_markup(mark) + Text(f" {self._text}")
            line.append(f"  {span(time.monotonic() - self._began)}", style="dim")
            self._screen.print(line, no_wrap=True, overflow="ellipsis")
        elif self._text != self._printed:
            self._stamped(self._text)
        self._text = self._printed = ""

    def _stamped(self, text: str) -> None:
        self._printed = text
        self._screen.print(Text(f"[{time.monotonic() - self._shown:5.1f} s] {text}"), soft_wrap=True)


class _Clock:
    """The seconds since a moment, drawn anew with every refresh."""

    def __init__(self, began: float) -> None:
        self._began = began

    def __rich__(self) -> Text:
        return Text(f"{time.monotonic() - self._began:.0f} s", style="dim")
