"""What a benchmark shows on stderr while it runs: a bar, what it does now, and a line for each result."""

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Screen:
    """steps: how many of them the bar is long."""

    def __init__(self, steps: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task("starting", total=steps)

    def __enter__(self) -> "Screen":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def titled(self, title: str) -> Callable[[str], None]:
        """say() with this before each text."""
        return lambda text: self.say(f"{title}: {text}")

    def say(self, text: str) -> None:
        self._progress.update(self._task, description=text)

    def step(self, line: str = "") -> None:
        """One step is done; line: what came out of it."""
        if line:
            self._progress.console.print(line, highlight=False, soft_wrap=True)
        self._progress.advance(self._task)
