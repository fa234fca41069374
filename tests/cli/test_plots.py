"""The loss curve, from half-written logs to pictures."""

import json
import re
from pathlib import Path

import pytest

from planaria.sandbox import plots
from planaria.sandbox.plots import Breaks, TrainingPoint

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
POINTS = [TrainingPoint(1, step, 4.0 - step / 50, 1000 + step / 10) for step in range(1, 61)]
POINTS += [TrainingPoint(2, step, 4.0 - step / 50, 1010 + step / 10) for step in range(41, 120)]
BREAKS = Breaks(1006.1, "Xid 79 on demo-3", 40)


def test_lines_that_are_not_whole_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    good = json.dumps({"attempt": 1, "step": 1, "loss": 3.5, "at": 1.0})
    path.write_text(f'{good}\n{{"attempt": 1, "st\n[]\n{good.replace("3.5", "NaN")}\nnull\n{good}\n\n')
    assert plots.read_points(path) == [TrainingPoint(1, 1, 3.5, 1.0)] * 2
    assert plots.read_points(tmp_path / "none") == []


@pytest.mark.parametrize("width", [60, 98, 160])
def test_the_terminal_plot_is_as_wide_as_asked_and_marks_the_break(width: int) -> None:
    lines = [ESCAPES.sub("", line) for line in plots.terminal(POINTS, BREAKS, width).splitlines()]
    assert {len(line) for line in lines if line} == {width}
    text = "\n".join(lines)
    assert "Xid 79 on demo-3" in text
    assert "resumed from step 40" in text
    assert any(0x2800 < ord(character) < 0x2900 for character in text)


def test_a_plot_has_no_background_of_its_own() -> None:
    assert "48;5" not in plots.terminal(POINTS, BREAKS, 80)


@pytest.mark.parametrize("points", [[], POINTS[:1]])
def test_there_is_no_plot_of_nothing(points: list[TrainingPoint]) -> None:
    assert plots.terminal(points, BREAKS, 80) == ""


@pytest.mark.parametrize("points", [POINTS[:2], POINTS[:60], [POINTS[0]] * 3, POINTS])
def test_any_curve_can_be_drawn(points: list[TrainingPoint], tmp_path: Path) -> None:
    assert plots.terminal(points, BREAKS, 80)
    plots.png(points, BREAKS, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes()[1:4] == b"PNG"


def test_a_picture_of_nothing_is_drawn_too(tmp_path: Path) -> None:
    plots.png([], BREAKS, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").exists()
