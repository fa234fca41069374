"""One suite for the Table port, run on the memory twin and on DynamoDB (moto)."""

import threading
from typing import Any

import pytest

from planaria.core.ports import Table
from planaria.core.table import Conflict, above, below, differs, equals, exists, missing, one_of, smaller


def test_a_row_comes_back_as_it_was_written(table: Table) -> None:
    values = {
        "session": 3,
        "at": 1793610845.25,
        "name": "ü",
        "flag": True,
        "none": None,
        "map": {"a": [1, 2.5]},
    }
    row = table.write("NODE#i-1", "NODE", sets=values)
    assert row == {"pk": "NODE#i-1", "sk": "NODE", **values}
    assert table.get("NODE#i-1", "NODE") == row
    assert table.get("NODE#i-2", "NODE") is None


@pytest.mark.parametrize(
    ("condition", "true"),
    [
        (equals("n", 1), True),
        (equals("n", 2), False),
        (equals("absent", 1), False),
        (differs("n", 1), False),
        (differs("absent", 1), True),
        (below("n", 2), True),
        (below("n", 1), False),
        (below("absent", 2), False),
        (above("n", 0), True),
        (above("absent", 0), False),
        (exists("n"), True),
        (missing("n"), False),
        (missing("absent"), True),
        (missing(("map", "b")), True),
        (exists(("map", "a")), True),
        (missing(("absent", "a")), True),
        (equals(("map", "a"), 1), True),
        (smaller("map", 2), True),
        (smaller("map", 1), False),
        (smaller("absent", 1), False),
        (one_of("n", (5, 1)), True),
        (equals("n", 2) | equals("session", 7), True),
        (equals("n", 1) & equals("session", 8), False),
        ((equals("n", 9) | equals("n", 1)) & (missing("x") | equals("x", 1)), True),
    ],
)
def test_conditions(table: Table, condition: Any, true: bool) -> None:
    table.write("p", "s", sets={"n": 1, "session": 7, "map": {"a": 1}})
    if true:
        assert table.write("p", "s", sets={"seen": True}, when=condition)["seen"] is True
    else:
        with pytest.raises(Conflict) as caught:
            table.write("p", "s", sets={"seen": True}, when=condition)
        assert caught.value.row == {"pk": "p", "sk": "s", "n": 1, "session": 7, "map": {"a": 1}}
        assert "seen" not in (table.get("p", "s") or {})


def test_a_conflict_on_no_row_shows_none(table: Table) -> None:
    with pytest.raises(Conflict) as caught:
        table.write("p", "s", sets={"a": 1}, when=exists("pk"))
    assert caught.value.row is None
    assert table.get("p", "s") is None


def test_a_quiet_write_is_done_and_a_quiet_conflict_still_shows_the_row(table: Table) -> None:
    assert table.write("p", "s", sets={"n": 1}, quiet=True) == {}
    with pytest.raises(Conflict) as conflict:
        table.write("p", "s", sets={"n": 2}, when=equals("n", 9), quiet=True)
    assert conflict.value.row == {"pk": "p", "sk": "s", "n": 1} == table.get("p", "s")


def test_nested_writes_removes_and_counters(table: Table) -> None:
    table.write("p", "s", sets={"m": {}, "gone": 1})
    row = table.write("p", "s", sets={("m", "i-1"): 5}, removes=("gone",), adds={"count": 2})
    assert (row["m"], row["count"], "gone" in row) == ({"i-1": 5}, 2, False)
    row = table.write("p", "s", removes=(("m", "i-1"), ("m", "i-9")), adds={"count": 3})
    assert (row["m"], row["count"]) == ({}, 5)


def test_query_and_listing(table: Table) -> None:
    for number in range(3):
        table.write(f"INCIDENT#{number}", "INCIDENT", sets={"listing": "INCIDENT", "n": number})
        table.write(f"INCIDENT#{number}", f"STEP#{number}", sets={"n": number})
    table.write("NODE#x", "NODE", sets={"listing": "NODE"})
    assert [row["sk"] for row in table.query("INCIDENT#1")] == ["INCIDENT", "STEP#1"]
    assert [row["n"] for row in table.listing("INCIDENT")] == [0, 1, 2]
    assert table.listing("JOB") == []


def test_one_of_many_concurrent_writers_wins(shared_table: Table) -> None:
    wins: list[int] = []

    def claim(number: int) -> None:
        try:
            shared_table.write("p", "s", sets={"owner": number}, when=missing("owner"))
            wins.append(number)
        except Conflict as conflict:
            assert conflict.row is not None and "owner" in conflict.row

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == 1
    assert (shared_table.get("p", "s") or {})["owner"] == wins[0]
