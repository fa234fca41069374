"""Gathered calls on every table: moto checks the expressions, the emulator decides real races."""

import threading
import time
from collections.abc import Sequence

from planaria.core.ports import Answer, AnswerState, Table
from planaria.memory.clock import MemoryClock
from planaria.schedulers.gathering import LEASE_SECONDS, Gathering, Part
from planaria.wiring import SystemClock


class Line:
    """Remembers what is sent, and answers each item with itself."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, ...]] = []
        self.heard: list[str] = []
        self._lock = threading.Lock()

    def send(self, group: str, items: Sequence[str]) -> str:
        with self._lock:
            self.sent.append(tuple(items))
            return str(len(self.sent) - 1)

    def hear(self, ticket: str) -> Answer:
        with self._lock:
            self.heard.append(ticket)
            return Answer(AnswerState.DONE, {item: {"of": item} for item in self.sent[int(ticket)]})


def _words(found: list[Part] | Answer) -> dict[str, dict[str, str]]:
    assert not isinstance(found, Answer), found
    return {item: answer.value[item] for part, answer in found for item in part}


def test_from_the_asking_to_the_answer(table: Table) -> None:
    line, clock = Line(), MemoryClock(1000.25)
    one, other = (Gathering(table, clock, line.send, line.hear, 1.0) for _ in range(2))
    assert one.ask("stop TERM 2", ["7", "8_3"]) == other.ask("stop TERM 2", ["9+1"]) == 1000
    assert one.poll("stop TERM 2", 1000, ["7", "8_3"], True) == Answer(AnswerState.PENDING)
    clock.advance(1.0)
    assert _words(one.poll("stop TERM 2", 1000, ["7", "8_3"], True)) == {
        "7": {"of": "7"},
        "8_3": {"of": "8_3"},
    }
    assert _words(other.poll("stop TERM 2", 1000, ["9+1"], True)) == {"9+1": {"of": "9+1"}}
    assert [sorted(items) for items in line.sent] == [["7", "8_3", "9+1"]]
    assert line.heard == ["0"]
    assert one.ask("stop TERM 2", ["7"]) == 1001


def test_a_lease_ends(table: Table) -> None:
    line, clock = Line(), MemoryClock(1000.0)
    function = Gathering(table, clock, line.send, line.hear, 1.0)
    slot = function.ask("node", ["a"])
    clock.advance(1.0)
    dead = {"sender": "dead", "lease_until": clock.now() + LEASE_SECONDS}
    table.write(f"GATHER#node#{slot}", "#", sets=dead)
    assert function.poll("node", slot, ["a"], True) == Answer(AnswerState.PENDING)
    clock.advance(LEASE_SECONDS + 0.1)
    assert _words(function.poll("node", slot, ["a"], True)) == {"a": {"of": "a"}}
    assert line.sent == [("a",)]


def test_many_functions_at_once(shared_table: Table) -> None:
    """Twelve functions ask for four nodes each, over several slots, with no word between them."""
    line, window = Line(), 0.2
    answers: dict[str, dict[str, str]] = {}
    start = threading.Barrier(12)

    def function(number: int) -> None:
        mine = Gathering(shared_table, SystemClock(), line.send, line.hear, window, poll_seconds=0.05)
        start.wait()
        for turn in range(4):
            item = f"a-{number}-{turn}=planaria:{turn}"
            slot = mine.ask("isolate", [item])
            until = time.monotonic() + 30
            while isinstance(found := mine.poll("isolate", slot, [item], True), Answer):
                assert found.state is AnswerState.PENDING, found
                assert time.monotonic() < until
                time.sleep(0.03)
            answers.update(_words(found))

    threads = [threading.Thread(target=function, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = [f"a-{number}-{turn}=planaria:{turn}" for number in range(12) for turn in range(4)]
    assert answers == {item: {"of": item} for item in wanted}
    # An item that found a lease beside it goes into the next slot, and may be in this command all the same.
    assert {item for items in line.sent for item in items} == set(wanted)
    assert len(line.sent) < 40, "gathered, even where the machine is slow"
