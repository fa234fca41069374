"""The breaker's row on the memory twin, on moto and on DynamoDB of the emulator."""

import threading
from typing import Any

import pytest

from planaria.core.breaker import CHUNK, KEY, Breaker, allowed
from planaria.core.ports import Table
from planaria.core.table import Row

NOW = 1_793_610_845.5
WINDOW = 3600.0
NODE = "i-0123456789abcdef0"


def breaker(table: Table, cap: int = 2, per_detector: int | None = None) -> Breaker:
    return Breaker(table, cap, WINDOW, per_detector)


def row(table: Table) -> Row:
    return table.get(*KEY) or {}


def begin(table: Table, name: str) -> str:
    """The incident's own row, as a claim makes it."""
    table.write(f"INCIDENT#{name}", "INCIDENT", sets={"incident_id": name})
    return name


def end(table: Table, name: str, outcome: str) -> None:
    table.write(f"INCIDENT#{name}", "INCIDENT", sets={"outcome": outcome})


def trip(table: Table, one: Breaker, cap: int = 2) -> None:
    """Full at NOW, and one refused."""
    for number in range(cap):
        assert one.admit(f"{NODE}-{number}", "xid", NOW) == ""
    assert one.admit(f"{NODE}-9", "xid", NOW + 60).startswith("breaker: ")


def half_open(table: Table, one: Breaker) -> str:
    """A probe that is under way; its incident."""
    trip(table, one)
    probe = begin(table, f"{NODE}-10")
    assert one.admit(probe, "xid", NOW + WINDOW + 1) == ""
    return probe


@pytest.mark.parametrize(
    ("most", "share", "size", "cap"),
    [(4, 0.25, 1, 1), (4, 0.25, 2, 1), (4, 0.25, 4, 1), (4, 0.5, 3, 2), (4, 0.25, 100, 4), (4, 1.0, 4, 4)],
)
def test_small_fleets_may_heal_too(most: int, share: float, size: int, cap: int) -> None:
    assert allowed(most, share, size) == cap


def test_a_refusal_says_why_since_when_until_when_and_how_to_override(table: Table) -> None:
    one = breaker(table)
    trip(table, one)
    said = one.admit(f"{NODE}-9", "xid", NOW + 120)
    assert said == (
        "breaker: 2 of 2 removals of the fleet used within 1 h, refusing since 2026-11-02 09:15:05 UTC; "
        "one is let through as a probe after 2026-11-02 10:14:05 UTC; to go on at once: `planaria replace "
        f"{NODE} --override-breaker`, or `planaria breaker close --reason TEXT` for every node"
    )
    assert one.full(NOW + 120) == said.partition("; to go on at once")[0]
    assert row(table)["tripped"] == {"at": NOW + 60, "until": 0}


def test_a_closed_breaker_costs_one_write(table: Table) -> None:
    one = breaker(table)
    assert one.admit("a", "xid", NOW) == ""
    before = row(table)
    assert one.admit("a", "xid", NOW + 1) == ""  # asked twice, counted once
    assert before["removals"] == {"a": NOW} and row(table)["removals"] == {"a": NOW + 1}
    assert row(table)["removals_by_xid"] == {"a": NOW + 1}


def test_half_open_lets_one_through_and_waits_for_it(table: Table) -> None:
    one = breaker(table)
    probe = half_open(table, one)
    later = NOW + WINDOW + 2
    assert row(table)["tripped"]["probe"] == probe
    said = one.admit(f"{NODE}-11", "ec2", later)
    assert f"half-open: waits for incident {probe}" in said and "--override-breaker" in said
    assert f"waits for incident {probe}" in one.full(later)
    assert one.admit(probe, "xid", later) == ""  # the same incident asked again
    assert list(row(table)["removals"]) == [probe]


@pytest.mark.parametrize("outcome", ["HEALED", "RETIRED"])
def test_a_probe_that_succeeds_closes_the_breaker(table: Table, outcome: str) -> None:
    one = breaker(table)
    end(table, half_open(table, one), outcome)
    later = NOW + WINDOW + 300
    assert one.full(later) == ""
    assert one.admit(f"{NODE}-11", "xid", later) == ""  # the claimant itself hears how the probe ended
    assert "tripped" not in row(table)
    assert "2 of 2 removals" in one.admit(f"{NODE}-12", "xid", later)


def test_a_probe_that_fails_opens_it_for_another_window(table: Table) -> None:
    one = breaker(table)
    probe = half_open(table, one)
    end(table, probe, "ESCALATED")
    later = NOW + WINDOW + 300
    assert one.tidy(later)
    said = one.admit(f"{NODE}-11", "xid", later + 1)
    assert f"open for the fleet: its probe {probe} was not healed" in said
    assert "after 2026-11-02 11:19:05 UTC" in said
    assert one.admit(f"{NODE}-11", "xid", later + WINDOW - 1) != ""
    assert one.admit(begin(table, f"{NODE}-11"), "xid", later + WINDOW + 1) == ""
    assert row(table)["tripped"]["probe"] == f"{NODE}-11"


@pytest.mark.parametrize("how", ["released", "cancelled", "superseded"])
def test_a_probe_that_says_nothing_lets_the_next_one_be_it(table: Table, how: str) -> None:
    one = breaker(table)
    probe = half_open(table, one)
    later = NOW + WINDOW + 300
    if how == "released":
        one.release(probe, "xid")
    else:
        end(table, probe, how.upper())
        one.tidy(later)
    assert "probe" not in row(table)["tripped"]
    assert (probe in row(table)["removals"]) == (how == "superseded")
    assert one.admit(f"{NODE}-11", "xid", later) == ""
    assert row(table)["tripped"]["probe"] == f"{NODE}-11"


def test_a_probe_that_is_under_way_stays_it_beyond_the_window(table: Table) -> None:
    one = breaker(table)
    probe = half_open(table, one)
    assert "half-open" in one.admit(f"{NODE}-11", "xid", NOW + 5 * WINDOW)
    assert one.admit(probe, "xid", NOW + 5 * WINDOW) == ""


def test_a_superseding_incident_takes_over_slot_and_probe(table: Table) -> None:
    one = breaker(table)
    probe = half_open(table, one)
    successor = begin(table, f"{NODE}-11")
    assert one.admit(successor, "ec2", NOW + WINDOW + 2, probe) == ""
    assert row(table)["tripped"]["probe"] == successor
    assert list(row(table)["removals"]) == [successor]
    assert row(table)["removals_by_xid"] == {} and list(row(table)["removals_by_ec2"]) == [successor]
    assert one.admit(successor, "ec2", NOW + WINDOW + 3, probe) == ""
    end(table, successor, "HEALED")
    one.tidy(NOW + WINDOW + 4)
    assert "tripped" not in row(table)


def test_a_superseding_incident_passes_a_full_breaker(table: Table) -> None:
    one = breaker(table)
    trip(table, one)
    assert one.admit(f"{NODE}-20", "xid", NOW + 61, f"{NODE}-0") == ""
    assert sorted(row(table)["removals"]) == [f"{NODE}-1", f"{NODE}-20"]


def test_a_detector_has_a_limit_of_its_own(table: Table) -> None:
    one = breaker(table, 3, per_detector=1)
    assert one.admit("a", "xid", NOW) == ""
    said = one.admit("b", "xid", NOW + 1)
    assert "1 of 1 removals of detector xid used" in said
    assert one.full(NOW + 1) == "" and "detector xid" in one.full(NOW + 1, "xid")
    assert one.admit("c", "ec2", NOW + 2) == ""  # others go on
    assert "tripped" not in row(table) and row(table)["tripped_by_xid"]["at"] == NOW + 1
    later = NOW + WINDOW + 1
    assert one.admit(begin(table, "d"), "xid", later) == ""
    assert row(table)["tripped_by_xid"]["probe"] == "d"
    assert "half-open" in one.admit("e", "xid", later)
    assert one.admit("f", "ec2", NOW + WINDOW + 3) == ""
    end(table, "d", "HEALED")
    one.tidy(later + 5)
    assert "tripped_by_xid" not in row(table)


def test_override_is_counted_and_not_refused(table: Table) -> None:
    one = breaker(table)
    trip(table, one)
    assert one.admit("by-hand", "console", NOW + 70, override=True) == ""
    assert one.status(NOW + 70)["detectors"]["by-hand"] == "console"
    assert "3 of 2 removals" in one.admit("x", "xid", NOW + 80)
    assert one.admit("by-hand-2", "console", NOW + 90, override=True) == ""
    assert "2 of 2 removals" in one.admit("x", "xid", NOW + WINDOW + 30)  # those by hand still count


def test_override_on_an_empty_row(table: Table) -> None:
    assert breaker(table).admit("by-hand", "console", NOW, override=True) == ""
    assert row(table)["removals"] == {"by-hand": NOW}


def test_a_person_closes_it(table: Table) -> None:
    one = breaker(table)
    half_open(table, one)
    one.close("ada", "the driver is rolled back", NOW + WINDOW + 9)
    found = row(table)
    assert (found["removals"], found["removals_by_xid"], "tripped" in found) == ({}, {}, False)
    assert found["closed"] == {"at": NOW + WINDOW + 9, "by": "ada", "reason": "the driver is rolled back"}
    assert one.full(NOW + WINDOW + 10) == ""
    one.release(f"{NODE}-10", "xid")  # a slot that is not there any more
    assert one.admit("a", "xid", NOW + WINDOW + 10) == ""
    one.close("bob", "again", NOW + WINDOW + 11)
    assert row(table)["closed"]["by"] == "bob"


def test_closing_what_was_never_used(table: Table) -> None:
    breaker(table).close("ada", "to be sure", NOW)
    assert breaker(table).admit("a", "xid", NOW + 1) == ""


def test_tidy_notes_limits_and_keeps_the_row_small(table: Table) -> None:
    one = breaker(table, 3 * CHUNK)
    assert not one.tidy(NOW) and row(table) == {}
    for number in range(2 * CHUNK + 3):
        assert one.admit(f"{NODE}-{number}", f"detector{number % 3}", NOW + number) == ""
    assert one.tidy(NOW + 2 * CHUNK)
    assert row(table)["limits"] == {"cap": 3 * CHUNK, "per_detector": 3 * CHUNK, "window_seconds": WINDOW}
    assert not one.tidy(NOW + 2 * CHUNK)
    assert one.tidy(NOW + WINDOW + CHUNK)
    maps = [name for name in row(table) if name.startswith("removals")]
    assert len(maps) == 4 and len(row(table)["removals"]) == CHUNK + 2
    assert sum(len(row(table)[name]) for name in maps) == 2 * (CHUNK + 2)
    assert Breaker(table, 1, 1.0).as_noted().status(NOW)["cap"] == 3 * CHUNK


def test_a_cancelled_incidents_slot_that_nobody_freed_is_freed_by_tidy(table: Table) -> None:
    one = breaker(table)
    begin(table, f"{NODE}-0")
    trip(table, one)
    end(table, f"{NODE}-0", "CANCELLED")
    assert one.tidy(NOW + 100)
    assert list(row(table)["removals"]) == [f"{NODE}-1"]
    assert one.admit(f"{NODE}-30", "xid", NOW + 101) == ""
    assert row(table)["tripped"]["probe"] == f"{NODE}-30"


def test_an_entry_written_anew_meanwhile_is_not_taken_for_an_old_one(table: Table) -> None:
    one = breaker(table)
    assert one.admit("a", "xid", NOW) == ""
    stale = row(table)
    one.touch("a", "xid", NOW + WINDOW)
    one.touch("b", "xid", NOW + WINDOW)  # not admitted: nothing to keep
    one._expire(stale, NOW + WINDOW + 1)
    assert row(table)["removals"] == {"a": NOW + WINDOW}


def test_status_for_people(table: Table) -> None:
    one = breaker(table)
    trip(table, one)
    found = one.status(NOW + 120)
    assert found["removals"] == {f"{NODE}-0": NOW, f"{NODE}-1": NOW}
    assert set(found["detectors"].values()) == {"xid"}
    [circuit] = found["circuits"]
    assert circuit["who"] == "fleet" and "2 of 2 removals" in circuit["waits"]
    assert "half-open: the next removal" in one.status(NOW + WINDOW + 1)["circuits"][0]["waits"]


def race(many: int, act: Any) -> None:
    threads = [threading.Thread(target=act, args=(number,)) for number in range(many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_of_many_at_once_one_is_the_probe(shared_table: Table) -> None:
    one = breaker(shared_table, 4)
    trip(shared_table, one, 4)
    names = [begin(shared_table, f"{NODE}-{number}") for number in range(100, 112)]
    admitted: list[str] = []

    def ask(number: int) -> None:
        if one.admit(names[number], "xid", NOW + WINDOW + 61) == "":
            admitted.append(names[number])

    race(len(names), ask)
    assert admitted == [row(shared_table)["tripped"]["probe"]]
    assert list(row(shared_table)["removals"]) == admitted


def test_never_more_than_the_cap_while_others_leave(shared_table: Table) -> None:
    """Twelve writers, each admits and half of them release; what is admitted at any time stays in bounds."""
    one, most = breaker(shared_table, 3), []
    lock, under_way = threading.Lock(), set()

    def work(number: int) -> None:
        for turn in range(4):
            name = f"{NODE}-{number}{turn}"
            if one.admit(name, "xid", NOW) != "":
                continue
            with lock:
                under_way.add(name)
                most.append(len(under_way))
            if number % 2:
                with lock:
                    under_way.discard(name)
                one.release(name, "xid")

    race(12, work)
    assert max(most) <= 3 and under_way <= set(row(shared_table)["removals"])
    assert len(row(shared_table)["removals"]) <= 3
