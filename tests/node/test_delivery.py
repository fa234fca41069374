"""From probes to the bus: nothing lost, bounded, at least once."""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from planaria.core.errors import PermanentError, TransientError
from planaria.node import delivery
from planaria.node.delivery import Delivery
from planaria.node.spool import Spool

SOURCE = "planaria.node/AROA:i-1"


class FakeBus:
    """Takes events, or raises `trouble`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, list[int]]] = []
        self.trouble: Exception | None = None
        self.tries = 0

    def put(
        self,
        source: str,
        detail_type: str,
        details: Sequence[Mapping[str, Any]],
        resources: Sequence[str] = (),
    ) -> None:
        self.tries += 1
        if self.trouble is not None:
            raise self.trouble
        self.calls.append((source, detail_type, [int(d["seq"]) for d in details]))

    @property
    def taken(self) -> list[int]:
        return [seq for _, _, seqs in self.calls for seq in seqs]


def until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_events_go_out_in_order_and_in_batches(tmp_path: Path) -> None:
    bus = FakeBus()
    gate = threading.Event()
    sender = Delivery(lambda: gate.wait(5) and bus, SOURCE, Spool(tmp_path / "spool"))  # type: ignore[arg-type,return-value]
    sender.start()
    for seq in range(23):
        sender.add("Planaria Node Signal", {"seq": seq})
    sender.add("Planaria Job Signal", {"seq": 23})
    gate.set()
    until(lambda: len(bus.taken) == 24)
    sender.close(1)
    assert bus.taken == list(range(24))
    assert [len(seqs) for _, _, seqs in bus.calls] == [10, 10, 3, 1]
    assert {source for source, _, _ in bus.calls} == {SOURCE}
    assert (tmp_path / "spool").read_text() == ""
    assert sender.state()["sent"] == 24


def test_what_cannot_be_sent_stays_on_disk_and_goes_out_later(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(delivery, "FIRST_WAIT_SECONDS", 0.01)
    bus = FakeBus()
    bus.trouble = TransientError("no route")
    first = Delivery(lambda: bus, SOURCE, Spool(tmp_path / "spool"))
    first.start()
    for seq in range(3):
        first.add("Planaria Node Signal", {"seq": seq})
    until(lambda: bus.tries >= 2)
    state = first.state()
    assert (state["spooled"], state["sent"]) == (3, 0)
    assert "no route" in state["last_error"]
    first.close(1)
    second = Delivery(lambda: bus, SOURCE, Spool(tmp_path / "spool"))
    second.add("Planaria Node Signal", {"seq": 3})
    bus.trouble = PermanentError("AccessDenied")
    second.start()
    until(lambda: bus.tries >= 4)
    bus.trouble = None
    until(lambda: len(bus.taken) == 4)
    second.close(1)
    assert bus.taken == [0, 1, 2, 3]
    assert second.state()["last_error"] == ""


def test_an_sdk_that_cannot_be_set_up_is_tried_again(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(delivery, "FIRST_WAIT_SECONDS", 0.01)
    bus, tries = FakeBus(), []

    def make() -> FakeBus:
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("no region")
        return bus

    sender = Delivery(make, SOURCE, Spool(tmp_path / "spool"))
    sender.add("Planaria Node Signal", {"seq": 1})
    sender.start()
    until(lambda: bus.taken == [1])
    sender.close(1)


def test_the_spool_is_bounded_in_memory_and_on_disk(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", most=10)
    for seq in range(45):
        spool.add("t", {"seq": seq})
    assert (len(spool), spool.dropped) == (10, 35)
    assert len((tmp_path / "spool").read_text().splitlines()) <= 20
    again = Spool(tmp_path / "spool", most=10)
    batch = again.batch(10)
    assert batch is not None
    assert [d["seq"] for d in batch[1]] == list(range(35, 45))


def test_a_line_that_was_cut_by_a_crash_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    path.write_text(json.dumps(["t", {"seq": 1}]) + '\n["t", {"se')
    spool = Spool(path)
    assert spool.batch(10) == ("t", [{"seq": 1}])
    spool.add("t", {"seq": 2})
    assert Spool(path).batch(10) == ("t", [{"seq": 1}, {"seq": 2}])


def test_a_disk_that_takes_nothing_costs_the_copy_alone(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "no such folder" / "spool")
    spool.add("t", {"seq": 1})
    assert spool.unwritten
    assert spool.batch(10) == ("t", [{"seq": 1}])
