"""The wanted size of a node group, on the memory twin and on DynamoDB (moto)."""

import threading
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from planaria.aws.dynamodb import DynamoTable
from planaria.core import wanted
from planaria.core.breaker import KEY, Breaker
from planaria.core.ports import Table
from planaria.memory.table import MemoryTable
from tests.contract.conftest import create_table

NOW = 1_793_610_845.0


@pytest.fixture(params=["memory", "moto"])
def table(request: pytest.FixtureRequest) -> Iterator[Table]:
    if request.param == "memory":
        yield MemoryTable()
        return
    with mock_aws():
        client = boto3.client("dynamodb", region_name="us-east-1")
        create_table(client, "t")
        yield DynamoTable(client, "t")


def _size(table: Table, group: str = "workers", declared: int = 4) -> int:
    return wanted.size(table.get(*KEY) or {}, group, declared)


def test_without_removals_the_cluster_file_says_it(table: Table) -> None:
    assert _size(table) == 4


def test_every_removal_lowers_by_one_and_a_repeat_by_none(table: Table) -> None:
    assert wanted.lower(table, "workers", 4, "a", NOW) == 3
    assert wanted.lower(table, "workers", 4, "b", NOW) == 2
    assert wanted.lower(table, "workers", 4, "a", NOW + 60) == 2
    assert _size(table) == 2


def test_groups_do_not_share_their_size(table: Table) -> None:
    wanted.lower(table, "workers", 4, "a", NOW)
    assert wanted.lower(table, "big-nodes", 2, "b", NOW) == 1
    assert (_size(table), _size(table, "big-nodes", 2)) == (3, 1)


def test_never_below_zero(table: Table) -> None:
    assert [wanted.lower(table, "workers", 1, name, NOW) for name in "abc"] == [0, 0, 0]


def test_a_cluster_file_with_another_size_begins_anew(table: Table) -> None:
    wanted.lower(table, "workers", 4, "a", NOW)
    assert _size(table, declared=8) == 8
    assert wanted.lower(table, "workers", 8, "b", NOW) == 7
    assert wanted.lower(table, "workers", 8, "a", NOW) == 7


def test_old_removals_are_forgotten(table: Table) -> None:
    wanted.lower(table, "workers", 4, "a", NOW)
    wanted.lower(table, "workers", 4, "b", NOW + wanted.KEPT_SECONDS + 1)
    row = table.get(*KEY) or {}
    assert list(row["lowered"]) == ["b"]
    assert _size(table) == 2


def test_the_breakers_maps_stay(table: Table) -> None:
    breaker = Breaker(table, 2, 3600)
    assert breaker.admit("a", "console", NOW) == ""
    wanted.lower(table, "workers", 4, "a", NOW)
    assert breaker.status(NOW)["removals"] == {"a": NOW}


def test_at_once_each_counts_once() -> None:
    table = MemoryTable()
    names = [f"incident-{number % 3}" for number in range(12)]
    start = threading.Barrier(len(names))

    def work(name: str) -> None:
        start.wait()
        wanted.lower(table, "workers", 9, name, NOW)

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _size(table, declared=9) == 6


def row(node: str, **more: Any) -> dict[str, Any]:
    facts = {"node_id": node, "group": "workers", "managed": True, "state": "running", "gone": False}
    return {**facts, **more}


GROUP = [row(node) for node in ("a", "b", "c", "d")]


@pytest.mark.parametrize(
    ("rows", "below"),
    [
        (GROUP, True),
        ([*GROUP, row("e")], False),
        ([*GROUP, row("e", group="others")], True),
        ([*GROUP, row("e", state="pending")], False),
        ([*GROUP, row("e", state="stopped")], True),
        ([*GROUP, row("e", state="shutting-down")], True),
        ([*GROUP, row("e", gone=True)], True),
        ([*GROUP, row("e", managed=None)], True),
        ([*GROUP, row("e", phase="RETIRED")], True),
        ([*GROUP, row("e", replaced_by="f")], True),
        # A node that is being replaced and its replacement are one place, whichever of them is there.
        ([*GROUP, row("e", phase="RUNNING", gone=True)], False),
        ([*GROUP, row("e", phase="RUNNING"), row("f", replaces="e")], False),
        ([*GROUP[:3], row("d", phase="RUNNING"), row("f", replaces="d")], True),
        ([*GROUP, row("e", phase="RUNNING", gone=True, verb="remove")], True),
        ([*GROUP, row("f", replaces="long-gone")], False),
    ],
)
def test_a_group_below_its_size_without_a_node(rows: list[dict[str, Any]], below: bool) -> None:
    assert wanted.below_size(rows, "workers", 4, {}, "a") is below


def test_below_the_size_that_people_have_lowered(table: Table) -> None:
    wanted.lower(table, "workers", 4, "x", NOW)
    fleet = table.get(*KEY) or {}
    assert wanted.below_size(GROUP, "workers", 4, fleet, "a") is False
    assert wanted.below_size(GROUP, "workers", 5, fleet, "a") is True
    assert wanted.below_size(GROUP, "workers", 4, fleet, "not-of-ours") is False


def test_a_node_that_has_left_already_is_not_counted_twice() -> None:
    gone = [row("a", state="terminated", gone=True), *GROUP[1:], row("e")]
    assert wanted.below_size(gone, "workers", 4, {}, "a") is False
    assert wanted.below_size(gone, "workers", 5, {}, "a") is True
