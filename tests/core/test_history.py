"""What a node's row remembers of its faults: bounded, and the same whatever order they are told in."""

import itertools
import random
from typing import Any

import pytest

from planaria.core import history
from planaria.core.fault import Fault, Severity
from planaria.core.node import NodeView
from planaria.core.occurrences import Seen
from planaria.core.table import holds
from planaria.memory.table import MemoryTable

A = "i-0aaaaaaaaaaaaaaa1"
T = 1_772_600_760.0  # the start of a minute
Delivery = tuple[Fault, float, bool]


def fault(code: str = "48", kind: str = "xid", **more: Any) -> Fault:
    return Fault(kind, code, Severity.FATAL, more.pop("detector", f"agent_{kind}"), **more)


def told(*deliveries: Delivery) -> dict[str, Any]:
    """The row after these deliveries, by the conditional writes that triage does."""
    table = MemoryTable()
    table.write("NODE", "NODE", sets={"node_id": A, "managed": True})
    for what, at, healthy in deliveries:
        note = history.remember(NodeView.from_row(table.get("NODE", "NODE") or {}), what, at, healthy)
        if note is not None:
            before = table.get("NODE", "NODE") or {}
            after = table.write("NODE", "NODE", sets=note.sets, removes=note.removes, when=note.when)
            assert note.onto(before) == after
    return table.get("NODE", "NODE") or {}


def memory(*deliveries: Delivery) -> tuple[Any, Any]:
    row = told(*deliveries)
    return row.get("recent", {}), row.get("subjects", {})


def test_the_first_fault_makes_both_maps() -> None:
    row = told((fault(pci="0000:b5:00"), T + 1.5, False))
    assert row["recent"] == {
        "xid|48|0000:b5:00|": {
            "kind": "xid", "code": "48", "pci": "0000:b5:00", "place": "", "detector": "agent_xid",
            "last": T + 1.5, "minutes": [int(T // 60)],
        }
    }  # fmt: skip
    assert row["subjects"] == {"xid": {"kind": "xid", "code": "48", "since": T + 1.5, "last": T + 1.5}}


def test_a_repeat_within_seconds_writes_nothing() -> None:
    view = NodeView.from_row(told((fault(), T + 1, False)))
    for at in (T, T + 1, T + 1 + history.FRESH_SECONDS):
        assert history.remember(view, fault(), at, False) is None
    assert history.remember(view, fault(), T + 1.1 + history.FRESH_SECONDS, False) is not None
    assert history.remember(view, fault(), T - 1, False) is not None  # another minute
    assert history.remember(view, fault(pci="0000:b5:00"), T + 1, False) is not None


@pytest.mark.parametrize("kind", ["job", "node_ready", "state_change", "lifecycle", "spot_interruption"])
def test_what_is_no_sign_of_a_sick_node_is_not_remembered(kind: str) -> None:
    assert memory((fault(kind=kind), T, False)) == ({}, {})


def test_order_and_repetition_change_nothing() -> None:
    deliveries = [
        (fault("48", pci="a"), T, False),
        (fault("63", pci="a"), T + 30, False),
        (fault("48", pci="a"), T + 700, False),
        (fault("13", pci="b", place="gpc1/tpc3"), T + 100, False),
        (fault("StatusCheckFailed_System", "status_check"), T + 5, False),
        (fault("StatusCheckFailed_System/well", "status_check"), T + 50, True),
    ]
    expected = memory(*deliveries)
    chance = random.Random(7)
    for _ in range(200):
        shuffled = deliveries + chance.choices(deliveries, k=3)
        chance.shuffle(shuffled)
        assert memory(*shuffled) == expected


def test_a_reason_that_changes_does_not_restart_the_time_of_a_bad_condition() -> None:
    reasons = ("EFAErrorMetric", "NetworkSysctl", "EFAErrorMetric")
    said = [fault(f"NetworkingReady/{why}", "node_condition") for why in reasons]
    row = told(*[(what, T + 600 * number, False) for number, what in enumerate(said)])
    assert row["subjects"]["node_condition|NetworkingReady"]["since"] == T
    assert history.unhealthy_since(NodeView.from_row(row), said[0], T + 1500) == T


def test_a_healthy_report_ends_what_came_before_it_and_nothing_else() -> None:
    storage, network = (fault(f"{kind}Ready/x", "node_condition") for kind in ("Storage", "Networking"))
    well = fault("NetworkingReady/x/well", "node_condition")
    row = told((network, T, False), (storage, T, False), (well, T + 60, True))
    view = NodeView.from_row(row)
    assert history.well_since(view, network) == T + 60
    assert history.well_since(view, storage) is None
    assert [entry["code"] for entry in row["recent"].values()] == ["StorageReady/x"]
    assert history.unhealthy_since(view, network, T + 90) == T + 90


def test_what_hyperpod_says_does_not_end_our_own_silence_finding() -> None:
    silent, well = fault("silent", "node_health"), fault("Healthy/well", "node_health")
    view = NodeView.from_row(told((silent, T, False), (well, T + 60, True)))
    assert history.well_since(view, silent) is None and history.entries(view, T)


def test_a_source_that_never_says_healthy_begins_anew_after_a_long_silence() -> None:
    silent = fault("silent", "node_health")
    row = told((silent, T, False), (silent, T + 10 * 3600, False))
    assert row["subjects"]["node_health|silent"]["since"] == T + 10 * 3600


def test_the_memory_is_bounded() -> None:
    many = [(fault(str(code), pci="x"), T + code, False) for code in range(history.ENTRIES * 3)]
    recent, _ = memory(*many)
    assert len(recent) == history.ENTRIES
    assert min(int(entry["code"]) for entry in recent.values()) == history.ENTRIES * 2
    noisy = [(fault(), T + 60 * minute, False) for minute in range(history.MINUTES * 3)]
    [entry] = memory(*noisy)[0].values()
    assert len(entry["minutes"]) == history.MINUTES
    subjects = [(fault(f"T{n}Ready/x", "node_condition"), T + n, False) for n in range(history.ENTRIES * 3)]
    assert len(memory(*subjects)[1]) <= history.ENTRIES


def test_what_is_a_day_old_is_forgotten() -> None:
    recent, _ = memory((fault("48"), T, False), (fault("63"), T + history.KEPT_SECONDS + 61, False))
    assert [entry["code"] for entry in recent.values()] == ["63"]


def test_a_note_that_rests_on_an_older_row_is_refused() -> None:
    row = told((fault("48"), T, False))
    view = NodeView.from_row(row)
    one, other = (history.remember(view, fault("48"), T + at, False) for at in (120, 240))
    assert one is not None and other is not None
    assert holds(one.when, row) and not holds(other.when, one.onto(row))


@pytest.mark.parametrize(
    ("minutes", "bursts"),
    [
        ([], 0),
        ([0], 1),
        ([0, 1, 2, 3], 1),
        ([0, 3], 1),
        ([0, 4], 2),
        ([0, 1, 5, 6, 30], 3),
        (list(range(121)), 3),  # never quiet: another occurrence each hour
    ],
)
def test_what_comes_within_minutes_is_one_occurrence(minutes: list[int], bursts: int) -> None:
    for order in itertools.islice(itertools.permutations(minutes), 6):
        seen = Seen("xid", "13", "", "", "", 0.0, tuple(sorted(order)))
        assert seen.bursts(0.0) == bursts


def test_old_minutes_are_no_occurrence_of_the_window() -> None:
    seen = Seen("xid", "13", "", "", "", 0.0, (0, 100, 200))
    assert seen.bursts(150 * 60.0) == 1


@pytest.mark.parametrize(
    "row",
    [
        {"recent": 5, "subjects": []},
        {"recent": {"k": "text"}, "subjects": {"s": None}},
        {"recent": {}, "subjects": {}},
    ],
)
def test_a_strange_row_is_read_as_far_as_it_goes(row: dict[str, Any]) -> None:
    assert history.entries(NodeView.from_row({"node_id": A, **row}), 0.0) == []
