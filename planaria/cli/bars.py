"""Progress bars for long work, on stderr; none with --json, nor where stderr is no terminal."""

import threading
from types import TracebackType
from typing import Self

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from planaria.cli import screen

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: float) -> str:
    """Bytes for people: `512 B`, `1.5 GiB`."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in _UNITS:
        count /= 1024
        if count < 1000 or unit == _UNITS[-1]:
            break
    return f"{count:.1f} {unit}" if count < 100 else f"{count:.0f} {unit}"


class Bars:
    """`with Bars(quiet) as bars:` and then one bar after the other. quiet: there are to be none."""

    def __init__(self, quiet: bool = False, objects: bool = False) -> None:
        """objects: things are counted, not bytes."""
        shown = screen.console(stderr=True)
        columns: tuple[ProgressColumn, ...] = (
            (MofNCompleteColumn(),) if objects else (DownloadColumn(binary_units=True), TransferSpeedColumn())
        )
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            *columns,
            TimeRemainingColumn(),
            console=shown,
            transient=True,
            # What goes to stdout must not come out on stderr while a bar is there.
            redirect_stdout=False,
            redirect_stderr=False,
            disable=quiet or not shown.is_terminal,
        )
        self._quiet = quiet
        self._task: TaskID | None = None
        self._lock = threading.Lock()

    def begin(self, words: str, total: int) -> None:
        """The next bar; the one before it is gone."""
        with self._lock:
            self._drop()
            self._task = self._progress.add_task(screen.clean(words), total=max(total, 1))

    def moved(self, count: int) -> None:
        """So much more is done; any thread may call it."""
        task = self._task
        if task is not None:
            self._progress.advance(task, count)

    def total(self, count: int) -> None:
        """How much the present bar has to count, where it is known only now."""
        task = self._task
        if task is not None:
            self._progress.update(task, total=max(count, 1))

    def end(self) -> None:
        with self._lock:
            self._drop()

    def note(self, line: Text) -> None:
        """A line of the answer, above the bar where both share a terminal; nothing where bars are quiet."""
        answer = screen.console()
        if self._quiet:
            return
        if answer.is_terminal and not self._progress.disable:
            answer = self._progress.console
        answer.print(line, soft_wrap=True)

    def _drop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            self._progress.remove_task(task)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self._progress.stop()
