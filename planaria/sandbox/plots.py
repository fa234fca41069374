"""The loss of a job over the time of its attempts, in the terminal and as a PNG.

plotext and matplotlib are imported when they are needed: the second alone takes a second.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS = 7
SMALLEST = (40, 10)
"""Columns and rows below which a plot in the terminal says nothing."""


@dataclass(frozen=True, slots=True)
class TrainingPoint:
    """One optimizer step. loss: mean over the ranks, in nats per character. at: epoch seconds."""

    attempt: int
    step: int
    loss: float
    at: float


@dataclass(frozen=True, slots=True)
class Breaks:
    """Where the curve is broken. at: epoch seconds of the fault, what: its name for people, resume_step:
    the checkpoint that the next attempt started from."""

    at: float
    what: str
    resume_step: int


def read_points(path: Path) -> list[TrainingPoint]:
    """The lines of a train.jsonl; one that is not whole (its writer was killed) is passed over."""
    points = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        try:
            row = json.loads(line)
            point = TrainingPoint(int(row["attempt"]), int(row["step"]), float(row["loss"]), float(row["at"]))
        except (ValueError, KeyError, TypeError):
            continue
        if math.isfinite(point.loss):
            points.append(point)
    return points


def attempts(points: Sequence[TrainingPoint]) -> dict[int, list[TrainingPoint]]:
    """The points of every attempt, in the order of attempts."""
    found: dict[int, list[TrainingPoint]] = {}
    for point in points:
        found.setdefault(point.attempt, []).append(point)
    return dict(sorted(found.items()))


def terminal(points: Sequence[TrainingPoint], breaks: Breaks, width: int, height: int = 16) -> str:
    """The curve as text with ANSI colours, `width` columns wide; "" for fewer than two points."""
    if len(points) < 2:
        return ""
    import plotext

    width, height = max(width, SMALLEST[0]), max(height, SMALLEST[1])
    plotext.terminal.limit(False, False)
    figure = plotext.figure
    figure.clear()
    figure.theme("simple")
    figure.plot_size(width, height)
    begin, end = points[0].at, points[-1].at
    high = max(point.loss for point in points)
    low = min(point.loss for point in points)
    for number, each in enumerate(attempts(points).values()):
        colour = "cyan+" if number == 0 else "green+"
        marker = plotext.marker("braille", pixel=colour)
        signal = figure.signal([p.at - begin for p in each], [p.loss for p in each], marker=marker)
        figure.draw(signal.lines())
    column = (end - begin) / width
    resumed = next((each[0] for each in list(attempts(points).values())[1:]), None)
    notes = [(breaks.at - begin, high, breaks.what, "red+")]
    if resumed is not None:
        notes.append((resumed.at - begin, high - (high - low) * 0.14, _resumed(breaks), "green+"))
    for x, _, _, colour in notes:
        # A segment and not a `line`: that one brings the theme's own background along.
        figure.draw(figure.segment((x, x), (low, high), marker=plotext.marker("│", pixel=colour)))
    for x, y, text, colour in notes:
        fits = x + (len(text) + 8) * column < end - begin
        place, side = (x + 1.5 * column, "left") if fits else (x - 1.5 * column, "right")
        figure.draw(figure.text(place, y, plotext.colorize(text, colour), alignment=side))
    ticks = _ticks(end - begin)
    figure.ruler("x").ticks(ticks, [f"{tick:g} s" for tick in ticks])
    return str(figure.build().string())


def png(points: Sequence[TrainingPoint], breaks: Breaks, path: Path) -> None:
    """Two pictures of one run: loss over time, where the pause is seen, and over steps, where it is not."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    over_time, over_steps = figure.subplots(2, 1)
    begin = points[0].at if points else 0.0
    parts = attempts(points)
    for number, (attempt, each) in enumerate(parts.items()):
        colour, label = f"C{number % 10}", f"attempt {attempt}"
        losses = [p.loss for p in each]
        over_time.plot([p.at - begin for p in each], losses, color=colour, label=label)
        # A dashed line over a thick one: where two attempts did the same step they have the same loss.
        style = {"linewidth": 4.0, "alpha": 0.35} if number == 0 and len(parts) > 1 else {"linewidth": 1.5}
        over_steps.plot([p.step for p in each], losses, color=colour, label=label, **style)
    resumed = [each[0] for each in list(parts.values())[1:]]
    end = resumed[0].at if resumed else (points[-1].at if points else 0.0)
    over_time.axvspan(breaks.at - begin, end - begin, color="C3", alpha=0.12, linewidth=0)
    over_time.axvline(breaks.at - begin, color="C3", linewidth=1.2, label=breaks.what)
    over_time.set_xlabel("seconds since the first step")
    over_time.set_title(f"{breaks.what}: the training goes on after {end - breaks.at:.1f} s")
    if resumed:
        over_steps.axvline(
            breaks.resume_step, color="C2", linewidth=1.2, linestyle=":", label=_resumed(breaks)
        )
    over_steps.set_xlabel("optimizer step")
    for axes in (over_time, over_steps):
        axes.set_ylabel("loss")
        axes.grid(alpha=0.25)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def _resumed(breaks: Breaks) -> str:
    return f"resumed from step {max(breaks.resume_step, 0)}"


def _ticks(length: float) -> list[float]:
    """Round numbers from 0 to `length`, about TICKS of them."""
    rough = max(length, 1e-3) / TICKS
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    return [round(step * number, 6) for number in range(int(length / step) + 1)]
