"""Event rows read by time, on the memory twin, moto and the emulator."""

import pytest

from planaria.core.event_rows import HOUR, event_key, hours
from planaria.core.ledger import Ledger
from planaria.core.ports import Table

NOW = 498_225 * 3600.0 + 2400.0  # 20 minutes before a full hour
WINDOW = (NOW - 2 * HOUR, NOW + 1)


@pytest.fixture
def ledger(table: Table) -> Ledger:
    return Ledger(table)


def keys(ledger: Ledger, since: float, until: float) -> list[str]:
    return [str(row["key"]) for row in ledger.events_since(since, until)]


def record(ledger: Ledger, key: str, at: float, outcome: str = "OBSERVED") -> None:
    ledger.record_outcome(key, at, {"outcome": outcome, "key": key})


def test_they_come_in_the_order_in_which_they_were_judged(ledger: Ledger) -> None:
    for number, seconds in enumerate((-5, -4000, -3600, -7199.5, -1, -30)):
        record(ledger, f"e{number}", NOW + seconds)
    assert keys(ledger, *WINDOW) == ["e3", "e1", "e2", "e5", "e0", "e4"]


def test_the_window_ends_before_its_end(ledger: Ledger) -> None:
    record(ledger, "first", NOW - 60)
    record(ledger, "last", NOW)
    assert keys(ledger, NOW - 60, NOW) == ["first"]
    assert keys(ledger, NOW - 59.999, NOW + 0.001) == ["last"]
    assert keys(ledger, NOW, NOW) == []


def test_an_event_that_is_judged_again_stands_where_it_was_judged_last(ledger: Ledger) -> None:
    record(ledger, "held", NOW - 2 * HOUR, "HELD")
    record(ledger, "other", NOW - HOUR)
    record(ledger, "held", NOW, "OPENED")
    assert keys(ledger, *WINDOW) == ["other", "held"]


def test_rows_without_the_hour_are_not_found(ledger: Ledger) -> None:
    pk, sk = event_key("old")
    ledger.table.write(pk, sk, sets={"at": NOW, "outcome": "OPENED", "expires_at": int(NOW + 9999)})
    assert keys(ledger, *WINDOW) == []
    assert ledger.outcome("old", NOW) is not None


def test_more_than_a_page_of_one_hour(table: Table) -> None:
    """BatchGetItem takes 100 keys, a page of Query or of a batch 1 MB and 16 MB."""
    ledger, body = Ledger(table), "x" * 4096
    for number in range(120):
        ledger.record_outcome(f"e{number}", NOW + number, {"key": number, "event": body})
    assert [row["key"] for row in ledger.events_since(NOW, NOW + HOUR)] == list(range(120))


def test_only_the_hours_of_the_window_are_read(ledger: Ledger) -> None:
    asked: list[str] = []
    listing = ledger.table.listing

    def listed(kind: str) -> list[dict[str, object]]:
        asked.append(kind)
        return listing(kind)

    ledger.table.listing = listed  # type: ignore[method-assign]
    told: list[int] = []
    list(ledger.events_since(NOW - HOUR, NOW, lambda: told.append(len(asked))))
    first = int((NOW - HOUR) // HOUR)
    assert asked == [f"EVENT#{first:010d}", f"EVENT#{first + 1:010d}"]
    assert told == [1, 2]


def test_one_hour_is_held_at_a_time(ledger: Ledger) -> None:
    record(ledger, "early", NOW - HOUR)
    rows = ledger.events_since(NOW - HOUR, NOW + 1)
    assert next(rows)["key"] == "early"
    record(ledger, "late", NOW)
    assert [row["key"] for row in rows] == ["late"]


@pytest.mark.parametrize(
    ("since", "until", "number"),
    [(0, 0, 0), (0, 1, 1), (0, 3600, 1), (0, 3600.5, 2), (3599, 3601, 2), (7200, 3600, 0)],
)
def test_hours_that_a_window_touches(since: float, until: float, number: int) -> None:
    assert len(hours(since, until)) == number


def test_counters_of_a_window(ledger: Ledger) -> None:
    for seconds, number in ((-2 * HOUR, 5), (-HOUR, 7), (-HOUR + 1, 1), (0, 2)):
        ledger.count("NOT_MANAGED", NOW + seconds, number)
    ledger.count("DUPLICATE", NOW, 9)
    start = NOW // HOUR * HOUR
    assert ledger.counts("NOT_MANAGED", NOW - HOUR, NOW + 1) == {start - HOUR: 8, start: 2}
    assert ledger.counts("NOT_MANAGED", NOW + HOUR, NOW + 2 * HOUR) == {}
    assert ledger.counts("nothing", NOW - HOUR, NOW) == {}
