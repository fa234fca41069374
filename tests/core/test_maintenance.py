"""Maintenance windows: once and weekly, by the clock in UTC."""

from datetime import UTC, datetime
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from planaria.core.errors import InvalidInput
from planaria.core.maintenance import DAYS, WEEK, Window, moment, under_way, weekly, windows_of


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


ONCE = {"start": "2026-12-24T18:00:00Z", "end": "2026-12-27T08:00:00+01:00", "reason": "holidays"}
SUNDAY = {"weekly": "sun 22:00", "hours": 4}


@pytest.mark.parametrize(
    ("now", "inside"),
    [
        ("2026-12-24T17:59:59", False),
        ("2026-12-24T18:00:00", True),
        ("2026-12-27T06:59:59", True),
        ("2026-12-27T07:00:00", False),
    ],
)
def test_a_window_begins_at_its_start_and_is_over_at_its_end(now: str, inside: bool) -> None:
    said = under_way(windows_of([ONCE]), at(now), "workers")
    assert said == ("maintenance until 2026-12-27 07:00 UTC (holidays)" if inside else "")


@pytest.mark.parametrize(
    ("now", "until"),
    [
        ("2026-11-29T21:59:59", None),  # a Sunday
        ("2026-11-29T22:00:00", "2026-11-30 02:00 UTC"),
        ("2026-11-30T01:59:59", "2026-11-30 02:00 UTC"),  # Monday: over the end of the week
        ("2026-11-30T02:00:00", None),
        ("2026-12-02T23:00:00", None),
        ("2026-12-06T23:30:00", "2026-12-07 02:00 UTC"),
    ],
)
def test_a_weekly_window_comes_back(now: str, until: str | None) -> None:
    assert under_way(windows_of([SUNDAY]), at(now), "") == (f"maintenance until {until}" if until else "")


def test_a_week_of_maintenance_never_ends() -> None:
    always = windows_of([{"weekly": "wed 00:00", "hours": 168}])
    assert all(under_way(always, at("2026-11-30T00:00:00") + hour * 3600.0, "") for hour in range(24 * 8))


def test_of_several_the_one_that_ends_last_is_named() -> None:
    windows = windows_of([ONCE, {"start": "2026-12-24T18:00:00", "end": "2026-12-24T20:00:00"}])
    assert "12-27" in under_way(windows, at("2026-12-24T19:00:00"), "")
    assert "12-27" in under_way(tuple(reversed(windows)), at("2026-12-24T19:00:00"), "")


def test_groups() -> None:
    windows = windows_of([{**ONCE, "node_groups": ["a"]}])
    now = at("2026-12-25T00:00:00")
    assert (
        under_way(windows, now, "a") and not under_way(windows, now, "b") and not under_way(windows, now, "")
    )


@given(st.sampled_from(DAYS), st.integers(0, 23), st.integers(0, 59), st.floats(0.1, 168), st.floats(0, 4e9))
def test_a_weekly_window_is_the_same_in_every_week(
    day: str, h: int, m: int, hours: float, now: float
) -> None:
    (window,) = windows_of([{"weekly": f"{day} {h:02}:{m:02}", "hours": hours}])
    until = window.until(now, "")
    if until is not None:
        assert now < until <= now + hours * 3600.0 + 1e-3
        following = window.until(now + WEEK, "")
        assert following is not None and following - until == pytest.approx(WEEK)


def test_the_day_of_the_epoch() -> None:
    """1970-01-01 was a Thursday."""
    (window,) = windows_of([{"weekly": "thu 00:00", "hours": 1}])
    assert window.until(0.0, "") == 3600.0 and window.until(3600.0, "") is None


def test_times_without_a_zone_are_utc() -> None:
    assert moment("2026-12-24T18:00:00", "x") == moment("2026-12-24T19:00:00+01:00", "x")
    assert weekly("mon 00:00", "x") == 0.0 and weekly("sun 23:59", "x") == WEEK - 60.0
    assert windows_of([]) == () and isinstance(windows_of([ONCE])[0], Window)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ("sunday", ["policy.maintenance must be a list"]),
        (5, ["policy.maintenance must be a list"]),
        (["sunday"], ["policy.maintenance[0] must be an object", "'sunday'"]),
        ([ONCE, {}], ["policy.maintenance[1].start must be a time such as"]),
        ([{"start": "now", "end": "later"}], ["maintenance[0].start", "'now'"]),
        ([{"start": "2026-12-24T18:00:00Z"}], ["maintenance[0].end must be a time", "None"]),
        ([{"start": ONCE["end"], "end": ONCE["start"]}], ["maintenance[0].end must be later than its start"]),
        (
            [{"weekly": "Sunday 22:00", "hours": 1}],
            ["maintenance[0].weekly must be a day and a time", "sun 02:00"],
        ),
        ([{"weekly": "sun 24:00", "hours": 1}], ["maintenance[0].weekly"]),
        ([{"weekly": 5, "hours": 1}], ["maintenance[0].weekly", "5"]),
        ([{"weekly": "sun 22:00"}], ["maintenance[0].hours must be a number above 0", "None"]),
        ([{"weekly": "sun 22:00", "hours": 0}], ["maintenance[0].hours"]),
        ([{"weekly": "sun 22:00", "hours": 169}], ["maintenance[0].hours", "at most 168"]),
        ([{"weekly": "sun 22:00", "hours": True}], ["maintenance[0].hours"]),
        ([{**ONCE, "node_groups": "workers"}], ["maintenance[0].node_groups must be a list"]),
        ([{**ONCE, "node_groups": [5]}], ["maintenance[0].node_groups"]),
    ],
)
def test_a_wrong_window_is_named_in_one_sentence(entries: Any, words: list[str]) -> None:
    with pytest.raises(InvalidInput) as refused:
        windows_of(entries)
    assert all(word in str(refused.value) for word in words) and "\n" not in str(refused.value)
