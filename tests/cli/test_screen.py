"""Times, durations and progress."""

import io
import json
import re

import pytest
from rich.console import Console
from rich.text import Text

from planaria.cli import records, screen


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (1_793_610_845, "2026-11-02T09:14:05.000Z"),
        (1_793_610_845.9996, "2026-11-02T09:14:06.000Z"),
        (1_793_610_845.1234, "2026-11-02T09:14:05.123Z"),
        (None, None),
        ("soon", None),
        (True, None),
    ],
)
def test_iso(at: object, text: str | None) -> None:
    assert screen.iso(at) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.421, "0.42 s"), (12.34, "12.3 s"), (119.0, "119.0 s"), (125.4, "2 min 05 s")]
)
def test_span(seconds: float, text: str) -> None:
    assert screen.span(seconds) == text


@pytest.mark.parametrize(
    ("passed", "text"),
    [(0, "0 s ago"), (119, "119 s ago"), (121, "2 min ago"), (9000, "2 h ago"), (-5, "0 s ago")],
)
def test_ago(passed: float, text: str) -> None:
    assert screen.ago(1000.0, 1000.0 + passed) == text
    assert screen.ago(None, 1.0) == ""


WILD = "a\x1b[31mb\x1b]0;title\x07c\x9b5md\x00e\x85f\u202eg\x7fh\x1b"


def test_foreign_text_is_without_control_characters() -> None:
    assert screen.clean(WILD) == "abcdefgh"
    assert screen.clean("two\nlines\tand [red]brackets[/red] é") == "two\nlines\tand [red]brackets[/red] é"


def test_only_the_screens_own_styles_reach_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    shown = screen.console()
    shown.print(screen.table(("A", "B"), [(WILD, Text(WILD, style="bold"))], fold=("B",)))
    shown.print(Text(WILD), WILD, soft_wrap=True)
    screen.say(WILD, stderr=False)
    out = capsys.readouterr().out
    assert "\x1b[1m" in out  # bold is ours
    assert out.count("abcdefgh") == 2  # rich takes the end of the title from a Text before it is cleaned
    left = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert not [char for char in left if not char.isprintable() and char != "\n"]
    assert "\x1b[31m" not in out


def test_json_keeps_control_characters_as_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    screen.emit({"text": WILD})
    out = capsys.readouterr().out
    assert not [char for char in out if not char.isprintable() and char != "\n"]
    assert json.loads(out) == {"text": WILD}


def _stages(terminal: bool, fail: bool = False) -> str:
    file = io.StringIO()
    shown = Console(file=file, force_terminal=terminal, width=80, color_system=None)
    try:
        with screen.Stages(shown) as stages:
            stages("starting the emulator")
            stages("nodes ready: 1 of 4")
            stages("nodes ready: 4 of 4")
            stages.note("a line that stays")
            if fail:
                raise ValueError
    except ValueError:
        pass
    return file.getvalue()


def test_without_a_terminal_every_stage_is_a_plain_line() -> None:
    lines = _stages(terminal=False).splitlines()
    assert [line.partition("] ")[2].strip() for line in lines] == [
        "starting the emulator",
        "nodes ready: 1 of 4",
        "a line that stays",
        "nodes ready: 4 of 4",
    ]
    assert "\x1b" not in "".join(lines)


def test_on_a_terminal_stages_end_with_their_last_words() -> None:
    shown = _stages(terminal=True)
    assert "✓ starting the emulator" in shown
    assert "✓ nodes ready: 4 of 4" in shown
    assert "✗ nodes ready: 4 of 4" in _stages(terminal=True, fail=True)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"step": "isolated"}, ""),
        ({"step": "replacement_launched", "node_id": "i-9"}, "i-9"),
        ({"step": "checkpoint_saved", "checkpoint_step": 47}, "step 47"),
        ({"step": "job_resumed", "resume_step": 40, "job_attempt": 2}, "attempt 2 from step 40"),
        (
            {"step": "job_resumed", "resume_step": -1, "job_attempt": 2},
            "attempt 2 from the beginning: there is no checkpoint",
        ),
        ({"step": "job_resumed"}, ""),
        ({"step": "first_new_step", "train_step": 41}, "step 41"),
    ],
)
def test_what_a_step_says(row: dict[str, object], text: str) -> None:
    assert records.step_detail(row) == text


@pytest.mark.parametrize("width", [100, 120, 160])
def test_a_long_reason_leaves_room_for_the_other_columns(width: int) -> None:
    rows = [("i-9c46c577084d3a7c0-1796040161280", "demo-3", "REPLACE", "HEALED", "because " * 30)]
    made = screen.table(("INCIDENT", "NODE", "ACTION", "OUTCOME", "WHY"), rows, clip=("WHY",))
    console = Console(width=width, file=io.StringIO())
    console.print(made)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for word in ("i-9c46c577084d3a7c0-1796040161280", "demo-3", "REPLACE", "HEALED", "because"):
        assert word in text
