"""The quarantine list: what stands, what is released, what comes too late."""

from typing import Any

import pytest

from planaria.core.errors import InvalidInput
from planaria.core.quarantine import KEPT_SECONDS, Found, Quarantine, barred
from planaria.memory.table import MemoryTable

T = 1_772_600_760.0
NODE, OTHER, HOST = "i-0aaaaaaaaaaaaaaa1", "i-0aaaaaaaaaaaaaaa2", "h-0bad"
FOUND = Found("GPU 3: memory test failed", f"{NODE}-1", T)


@pytest.fixture
def table() -> MemoryTable:
    table = MemoryTable()
    for node in (NODE, OTHER):
        table.write(f"NODE#{node}", "NODE", sets={"node_id": node})
    return table


def row(table: MemoryTable, node: str = NODE, **more: Any) -> dict[str, Any]:
    return {**(table.get(f"NODE#{node}", "NODE") or {}), "name": "demo-1", "zone": "us-east-1a", **more}


def test_an_instance_without_a_host_is_one_entry(table: MemoryTable) -> None:
    Quarantine(table).put(row(table), FOUND)
    [entry] = Quarantine(table).all(T)
    assert (entry["hardware"], entry["of"], entry["host"]) == (NODE, "instance", "")
    assert entry["until"] == T + KEPT_SECONDS
    mark = row(table)["quarantined"]
    assert mark.pop("incident_id") == FOUND.incident_id
    assert mark == {"reason": FOUND.reason, "at": T, "until": T + KEPT_SECONDS, "host": ""}
    assert "memory test failed" in barred(row(table), T) and barred(row(table, OTHER), T) == ""


def test_a_host_bars_other_instances_on_it(table: MemoryTable) -> None:
    quarantine = Quarantine(table)
    quarantine.put(row(table, host=HOST), FOUND)
    assert {entry["hardware"] for entry in quarantine.all(T)} == {NODE, HOST}
    assert HOST in quarantine.against(HOST, T) and "memory test failed" in quarantine.against(HOST, T)
    assert quarantine.against("h-0other", T) == quarantine.against("", T) == ""


def test_it_is_over_after_its_time(table: MemoryTable) -> None:
    quarantine = Quarantine(table)
    quarantine.put(row(table, host=HOST), FOUND)
    later = T + KEPT_SECONDS + 1
    assert quarantine.all(later) == [] and len(quarantine.all(later, ended=True)) == 2
    assert quarantine.against(HOST, later) == barred(row(table), later) == ""
    with pytest.raises(InvalidInput, match="is not quarantined"):
        quarantine.release(NODE, "ada", "", later)


def test_twice_is_once(table: MemoryTable) -> None:
    quarantine = Quarantine(table)
    quarantine.put(row(table, host=HOST), FOUND)
    before = dict(table._rows)
    quarantine.put(row(table, host=HOST), Found("another reason", FOUND.incident_id, T + 60))
    assert table._rows == before


def test_a_persons_release_stands_against_a_late_repetition(table: MemoryTable) -> None:
    quarantine = Quarantine(table)
    quarantine.put(row(table, host=HOST), FOUND)
    assert quarantine.release(NODE, "ada", "the board was changed", T + 10) == [NODE, HOST]
    assert quarantine.all(T + 10) == [] and "quarantined" not in row(table)
    quarantine.put(row(table, host=HOST), Found(FOUND.reason, FOUND.incident_id, T + 20))
    assert quarantine.all(T + 20) == [] and "quarantined" not in row(table)
    assert quarantine.against(HOST, T + 20) == ""
    [instance, host] = sorted(quarantine.all(T, ended=True), key=lambda entry: entry["of"] == "host")
    assert instance["released"] == host["released"] == {
        "at": T + 10, "by": "ada", "reason": "the board was changed",
    }  # fmt: skip


def test_the_next_incident_quarantines_anew(table: MemoryTable) -> None:
    quarantine = Quarantine(table)
    quarantine.put(row(table), FOUND)
    quarantine.release(NODE, "ada", "", T + 10)
    quarantine.put(row(table), Found("again", f"{NODE}-2", T + 100))
    [entry] = quarantine.all(T + 100)
    assert (entry["reason"], "released" in entry) == ("again", False)
    assert row(table)["quarantined"]["reason"] == "again"


def test_a_host_with_a_second_bad_instance_is_not_released_with_the_first(table: MemoryTable) -> None:
    quarantine = Quarantine(table)
    quarantine.put(row(table, host=HOST), FOUND)
    quarantine.put(row(table, OTHER, host=HOST), Found("GPU 5 fell off the bus", f"{OTHER}-1", T + 5))
    assert quarantine.release(NODE, "ada", "", T + 10) == [NODE]
    assert "GPU 5 fell off the bus" in quarantine.against(HOST, T + 10)
    assert quarantine.release(HOST, "ada", "", T + 20) == [HOST]
    assert [entry["hardware"] for entry in quarantine.all(T + 20)] == [OTHER]


def test_whoever_dies_between_the_writes_can_be_repeated(table: MemoryTable) -> None:
    class Dies(Exception):
        pass

    for last in range(1, 4):
        fresh = MemoryTable()
        fresh.write(f"NODE#{NODE}", "NODE", sets={"node_id": NODE})
        count = [0]
        write = fresh.write

        def dying(*args: Any, **kwargs: Any) -> Any:
            answer = write(*args, **kwargs)  # noqa: B023
            count[0] += 1  # noqa: B023
            if count[0] == last:  # noqa: B023
                raise Dies
            return answer

        fresh.write = dying  # type: ignore[method-assign]
        with pytest.raises(Dies):
            Quarantine(fresh).put(row(fresh, host=HOST), FOUND)
        Quarantine(fresh).put(row(fresh, host=HOST), FOUND)
        assert {entry["hardware"] for entry in Quarantine(fresh).all(T)} == {NODE, HOST}
        assert barred(row(fresh), T)


@pytest.mark.parametrize("hardware", ["i-0", "nonsense", OTHER, HOST])
def test_what_is_not_quarantined_cannot_be_released(table: MemoryTable, hardware: str) -> None:
    Quarantine(table).put(row(table), FOUND)
    with pytest.raises(InvalidInput, match="is not quarantined"):
        Quarantine(table).release(hardware, "ada", "", T)


def test_a_node_that_the_ledger_does_not_know(table: MemoryTable) -> None:
    Quarantine(table).put({"node_id": "i-0fff0000"}, FOUND)
    assert [entry["hardware"] for entry in Quarantine(table).all(T)] == ["i-0fff0000"]
    assert table.get("NODE#i-0fff0000", "NODE") is None
