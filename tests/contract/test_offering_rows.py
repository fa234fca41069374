"""A node group's offerings in the ledger: on memory, on moto and on the emulator's DynamoDB."""

from concurrent.futures import ThreadPoolExecutor

from planaria.core.cluster import Capacity, Offering
from planaria.core.offering_rows import MAIL_SECONDS, REMIND_SECONDS, OfferingRows
from planaria.core.offerings import cooling
from planaria.core.ports import Table

T = 1_793_610_845.0
SPOT = Offering("p5.48xlarge", Capacity.SPOT, "subnet-1")
A, B, C = "i-0aaaaaaaaaaaaaaa1", "i-0bbbbbbbbbbbbbbb1", "i-0ccccccccccccccc1"


def test_a_group_that_nothing_is_known_of(table: Table) -> None:
    rows = OfferingRows(table)
    assert rows.state("workers") == {}
    rows.proven("workers", SPOT.key, {})
    assert table.get("OFFERINGS#workers", "OFFERINGS") is None, "nothing was proven that was in doubt"
    assert cooling({}, SPOT, A, T) == ""


def test_it_cools_for_all_but_the_one_who_found_out(table: Table) -> None:
    rows = OfferingRows(table)
    rows.cool("workers", SPOT.key, A, "none left", T, T + 600)
    rows.cool("workers", SPOT.key, B, "none left", T + 1, T + 601)  # A was first
    state = rows.state("workers")
    assert [cooling(state, SPOT, by, T + 5) for by in (A, B)] == ["", "none left"]
    assert cooling(state, SPOT, B, T + 600) == ""
    rows.cool("workers", SPOT.key, A, "still none", T + 300, T + 900)
    assert cooling(rows.state("workers"), SPOT, B, T + 700) == "still none"
    rows.cool("workers", SPOT.key, B, "none for B", T + 901, T + 1501)
    assert cooling(rows.state("workers"), SPOT, A, T + 902) == "none for B"
    assert cooling(rows.state("others"), SPOT, A, T + 902) == ""


def test_what_is_proven_good_is_known_as_such(table: Table) -> None:
    rows = OfferingRows(table)
    rows.cool("workers", SPOT.key, A, "none", T, T + 600)
    rows.cool("workers", "on-demand/p4d.24xlarge/subnet-2", A, "none", T, T + 600)
    assert rows.may_tell("workers", "Do this.", SPOT.key, A, T, rows.state("workers"))
    rows.proven("workers", SPOT.key, rows.state("workers"))
    state = rows.state("workers")
    assert (list(state["cooling"]), state["told"]) == (["on-demand/p4d.24xlarge/subnet-2"], {})
    rows.told("workers", "Do this.", A)  # too late, and no reason to stop
    assert rows.state("workers") == state


def test_one_tells_and_the_others_know(table: Table) -> None:
    rows = OfferingRows(table)

    def may(by: str, at: float, reason: str = "Do this.") -> bool:
        return rows.may_tell("workers", reason, SPOT.key, by, at, rows.state("workers"))

    assert may(A, T) and not may(B, T + 1)
    assert may(A, T + 2), "it did not live to say that it has told"
    assert may(B, T, "Do that."), "another reason"
    rows.told("workers", "Do this.", A)
    assert not may(A, T + 3) and not may(B, T + MAIL_SECONDS + 1)
    assert may(A, T + REMIND_SECONDS), "it still stands after a day"
    rows.told("workers", "Do this.", A)
    assert may(B, T + 2 * REMIND_SECONDS)
    assert not may(A, T + 2 * REMIND_SECONDS + 1)
    assert may(C, T + 2 * REMIND_SECONDS + MAIL_SECONDS), "B was to tell and did not"


def test_of_many_at_once_one_tells(shared_table: Table) -> None:
    rows = OfferingRows(shared_table)

    def ask(number: int) -> bool:
        return rows.may_tell("workers", "Do this.", SPOT.key, f"i-{number:017x}", T, rows.state("workers"))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(24))) == 1


def test_places_of_reservations_are_replaced_as_a_whole(table: Table) -> None:
    rows = OfferingRows(table)
    first = {"cr-1": {"path": ["nn-1", "nn-2"], "why": "", "at": 5.0}}
    rows.located("workers", first)
    assert rows.state("workers")["located"] == first
    rows.cool("workers", "spot/p5/subnet-1", "i-1", "none", 6.0, 60.0)
    second = {"cr-2": {"path": [], "why": "not told", "at": 7.0}}
    rows.located("workers", second)
    state = rows.state("workers")
    assert state["located"] == second and "spot/p5/subnet-1" in state["cooling"]
