"""Calls of many incidents in one command: nothing is lost, whoever dies when."""

import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.core.errors import PermanentError, TransientError
from planaria.core.ports import Answer, AnswerState, Clock, Table
from planaria.memory.clock import MemoryClock
from planaria.memory.table import MemoryTable
from planaria.schedulers import gathering
from planaria.schedulers.gathering import Gathering


class Died(BaseException):
    """A Lambda that is ended in the middle."""


class Line:
    """The line to the head node. sent: (group, items) of each command. busy: its answer is still out.
    before, after: called around each sending."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, tuple[str, ...]]] = []
        self.heard: list[str] = []
        self.busy = False
        self.before: Callable[[], None] = _nothing
        self.after: Callable[[], None] = _nothing
        self._lock = threading.Lock()

    def send(self, group: str, items: Sequence[str]) -> str:
        self.before()
        with self._lock:
            self.sent.append((group, tuple(items)))
            ticket = str(len(self.sent) - 1)
        self.after()
        return ticket

    def hear(self, ticket: str) -> Answer:
        with self._lock:
            self.heard.append(ticket)
        if self.busy:
            return Answer(AnswerState.PENDING)
        group, items = self.sent[int(ticket)]
        return Answer(AnswerState.DONE, {item: f"{group}: {item}" for item in items})


def _nothing() -> None:
    pass


class Cluster:
    """Many Lambdas, each with a Gathering of its own, on one table."""

    def __init__(self, clock: Clock | None = None, table: Table | None = None) -> None:
        self.clock = clock or MemoryClock(1000.0)
        self.table = table or MemoryTable()
        self.line = Line()

    def function(self, window: float = 1.0) -> Gathering:
        return Gathering(self.table, self.clock, self.line.send, self.line.hear, window)

    def pass_time(self, seconds: float) -> None:
        assert isinstance(self.clock, MemoryClock)
        self.clock.advance(seconds)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def _words(found: list[gathering.Part] | Answer) -> dict[str, str]:
    assert not isinstance(found, Answer), found
    return {item: answer.value[item] for part, answer in found for item in part}


def _poll(function: Gathering, slot: int, *items: str, acts: bool = True) -> list[gathering.Part] | Answer:
    return function.poll("isolate", slot, items, acts)


def test_calls_within_a_window_are_one_command(cluster: Cluster) -> None:
    functions = [cluster.function() for _ in range(40)]
    slots = [function.ask("isolate", [f"a-{n}"]) for n, function in enumerate(functions)]
    early = [_poll(f, slot, f"a-{n}") for n, (f, slot) in enumerate(zip(functions, slots, strict=True))]
    assert early == [Answer(AnswerState.PENDING)] * 40
    cluster.pass_time(1.0)
    for number, (function, slot) in enumerate(zip(functions, slots, strict=True)):
        assert _words(_poll(function, slot, f"a-{number}")) == {f"a-{number}": f"isolate: a-{number}"}
    ((group, items),) = cluster.line.sent
    assert (group, sorted(items)) == ("isolate", sorted(f"a-{n}" for n in range(40)))
    assert cluster.line.heard == ["0"], "one heard it for all"


def test_another_function_finds_the_ticket(cluster: Cluster) -> None:
    """The workflow asks again in another Lambda."""
    slot = cluster.function().ask("isolate", ["a"])
    cluster.pass_time(1.0)
    assert _words(_poll(cluster.function(), slot, "a")) == {"a": "isolate: a"}


def test_other_kinds_of_calls_go_by_themselves(cluster: Cluster) -> None:
    function = cluster.function()
    slots = {group: function.ask(group, ["a"]) for group in ("stop TERM 2", "stop KILL 0", "node")}
    cluster.pass_time(1.0)
    for group, slot in slots.items():
        found = function.poll(group, slot, ["a"], True)
        assert _words(found) == {"a": f"{group}: a"}
    assert len(cluster.line.sent) == 3


def test_asked_twice_is_asked_once(cluster: Cluster) -> None:
    first = cluster.function().ask("isolate", ["a", "b"])
    assert cluster.function().ask("isolate", ["a", "b", "a"]) == first
    cluster.pass_time(1.0)
    _poll(cluster.function(), first, "a", "b")
    assert cluster.line.sent == [("isolate", ("a", "b"))]


def test_a_slot_that_is_sent_takes_no_more(cluster: Cluster) -> None:
    """Clocks differ: one function still takes a slot for open that another one has sent."""
    early = cluster.function()
    slot = early.ask("isolate", ["a"])
    ahead = Cluster(MemoryClock(1001.0), cluster.table)
    ahead.line = cluster.line
    assert _words(_poll(ahead.function(), slot, "a")) == {"a": "isolate: a"}
    late = early.ask("isolate", ["b"])
    assert late == slot + 1
    assert _poll(early, late, "b") == Answer(AnswerState.PENDING)
    cluster.pass_time(2.0)
    assert _words(_poll(early, late, "b")) == {"b": "isolate: b"}


def test_what_was_written_too_late_is_asked_for_again(cluster: Cluster) -> None:
    function = cluster.function()
    slot = function.ask("isolate", ["a"])
    cluster.pass_time(1.0)
    _poll(function, slot, "a")
    found = _poll(function, slot, "b")
    assert isinstance(found, Answer)
    assert (found.state, found.reason) == (
        AnswerState.UNKNOWN,
        "it came too late for its command: ask again",
    )


def test_an_act_is_not_sent_late_but_a_question_is(cluster: Cluster) -> None:
    function = cluster.function()
    slot = function.ask("isolate", ["a"])
    cluster.pass_time(1.0 + gathering.STALE_SECONDS + 0.1)
    found = _poll(function, slot, "a")
    assert isinstance(found, Answer)
    assert found.state is AnswerState.UNKNOWN
    assert cluster.line.sent == []
    assert _words(_poll(function, slot, "a", acts=False)) == {"a": "isolate: a"}


def test_more_than_one_command_holds(cluster: Cluster) -> None:
    function = cluster.function()
    many = [f"a-{number}" for number in range(120)]
    slot = function.ask("isolate", many)
    function.ask("isolate", ["b"])
    cluster.pass_time(1.0)
    assert _words(_poll(function, slot, *many)) == {item: f"isolate: {item}" for item in many}
    assert all(len(items) <= gathering.MOST_ITEMS for _, items in cluster.line.sent)
    assert len(cluster.line.sent) == 3
    assert _words(_poll(function, slot, "b")) == {"b": "isolate: b"}


def test_one_command_never_says_two_things_about_a_node(cluster: Cluster) -> None:
    """Two sessions of one node within a second: the answer is keyed by the node."""
    asked = ["a=planaria:1", "b=planaria:1"], ["a=planaria:2"], ["c=planaria:3"]
    slots = [cluster.function().ask("isolate", items) for items in asked]
    cluster.pass_time(1.0)
    for items, slot in zip(asked, slots, strict=True):
        assert _words(_poll(cluster.function(), slot, *items)) == {each: f"isolate: {each}" for each in items}
    names = [[item.partition("=")[0] for item in items] for _, items in cluster.line.sent]
    assert all(len(set(each)) == len(each) for each in names)
    assert len(names) == 2


def test_who_dies_after_the_send_leaves_it_to_the_next(cluster: Cluster) -> None:
    slot = cluster.function().ask("isolate", ["a"])
    cluster.function().ask("isolate", ["b"])
    cluster.pass_time(1.0)

    def die() -> None:
        # A Lambda that is killed does not even give its lease back.
        cluster.table.write(f"GATHER#isolate#{slot}", "#", sets={"sender": "the dead one's"})
        raise Died

    cluster.line.after = die
    with pytest.raises(Died):
        _poll(cluster.function(), slot, "a")
    cluster.line.after = _nothing
    assert _poll(cluster.function(), slot, "b") == Answer(AnswerState.PENDING), "the lease still holds"
    cluster.pass_time(gathering.LEASE_SECONDS + 0.1)
    assert _words(_poll(cluster.function(), slot, "b")) == {"b": "isolate: b"}
    assert _words(_poll(cluster.function(), slot, "a")) == {"a": "isolate: a"}
    assert [sorted(items) for _, items in cluster.line.sent] == [["a", "b"], ["a", "b"]]


@pytest.mark.parametrize("error", [TransientError("throttled"), PermanentError("denied")])
def test_an_error_of_the_send_is_everyones(cluster: Cluster, error: Exception) -> None:
    slot = cluster.function().ask("isolate", ["a"])
    cluster.pass_time(1.0)

    def refuse() -> None:
        raise error

    cluster.line.before = refuse
    for _ in range(2):  # nobody waits for a lease
        with pytest.raises(type(error)):
            _poll(cluster.function(), slot, "a")
    cluster.line.before = _nothing
    assert _words(_poll(cluster.function(), slot, "a")) == {"a": "isolate: a"}


def test_a_slow_sender_and_its_successor_agree(cluster: Cluster) -> None:
    """Both have sent; what the first of them noted counts for all."""
    slot = cluster.function().ask("isolate", ["a"])
    cluster.pass_time(1.0)
    calls = itertools.count()

    def sleep() -> None:
        if next(calls) == 0:
            cluster.pass_time(gathering.LEASE_SECONDS + 1.0)
            assert _words(_poll(cluster.function(), slot, "a")) == {"a": "isolate: a"}

    cluster.line.before = sleep
    assert _words(_poll(cluster.function(), slot, "a")) == {"a": "isolate: a"}
    assert len(cluster.line.sent) == 2
    assert len(set(cluster.line.heard)) == 1


def test_ssm_is_not_asked_by_everyone_all_the_time(cluster: Cluster) -> None:
    slot = cluster.function().ask("isolate", ["a"])
    cluster.pass_time(1.0)
    cluster.line.busy = True
    for _ in range(20):
        assert _poll(cluster.function(), slot, "a") == Answer(AnswerState.PENDING)
    assert len(cluster.line.heard) == 1
    cluster.pass_time(gathering.POLL_SECONDS + 0.01)
    cluster.line.busy = False
    assert _words(_poll(cluster.function(), slot, "a")) == {"a": "isolate: a"}
    assert len(cluster.line.heard) == 2


def test_an_answer_too_large_for_a_row_is_heard_by_each(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "_STORED_BYTES", 10)
    slot = cluster.function().ask("isolate", ["a"])
    cluster.pass_time(1.0)
    for number in range(3):
        assert _words(_poll(cluster.function(), slot, "a")) == {"a": "isolate: a"}
        assert len(cluster.line.heard) == number + 1
        cluster.pass_time(gathering.POLL_SECONDS + 0.01)


def test_rows_go_by_themselves(cluster: Cluster) -> None:
    slot = cluster.function().ask("isolate", ["a"])
    cluster.pass_time(1.0)
    _poll(cluster.function(), slot, "a")
    rows = cluster.table.query(f"GATHER#isolate#{slot}")
    assert len(rows) == 3
    assert all(4600 <= row["expires_at"] <= 4602 for row in rows)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32 - 1))
def test_whatever_happens_everyone_gets_the_answer_to_what_it_asked(seed: int) -> None:
    """Callers ask, poll, die and come back in any order; the line throws; clocks differ. Whoever goes on
    asking hears about its own item and of no other; and no two items of a command name the same node."""
    chance = random.Random(seed)
    table, line = MemoryTable(), Line()
    clocks = [MemoryClock(1000.0 + chance.random()) for _ in range(3)]
    functions = [Gathering(table, clock, line.send, line.hear) for clock in clocks]

    def mishap() -> None:
        if chance.random() < 0.2:
            raise chance.choice([TransientError("throttled"), Died()])

    line.before = line.after = mishap
    wanted = [f"n-{chance.randrange(6)}=planaria:{number}" for number in range(12)]
    slots: dict[str, int] = {}
    answered: dict[str, str] = {}
    for _ in range(2000):
        item = chance.choice(wanted)
        function = chance.choice(functions)
        try:
            if item not in slots:
                slots[item] = function.ask("isolate", [item])
            found = function.poll("isolate", slots[item], [item], True)
        except (TransientError, Died):
            continue
        finally:
            for clock in clocks:
                clock.advance(chance.random() * 0.3)
        if isinstance(found, Answer):
            if found.state is AnswerState.UNKNOWN:
                del slots[item]
            continue
        answered |= _words(found)
        if len(answered) == len(wanted):
            break
    assert answered == {item: f"isolate: {item}" for item in wanted}
    for _, items in line.sent:
        assert len({item.partition("=")[0] for item in items}) == len(items)


@pytest.mark.parametrize("number", range(3))
def test_many_at_once(number: int) -> None:
    """Real threads, a real clock: forty incidents within a tenth of a second are one or two commands."""

    class Wall:
        def now(self) -> float:
            return time.time()

    cluster = Cluster(Wall())
    answers: dict[int, dict[str, str]] = {}
    start = threading.Barrier(40)

    def incident(number: int) -> None:
        function = cluster.function(window=0.3)
        item = f"a-{number}"
        start.wait()
        slot = function.ask("isolate", [item])
        for _ in range(200):
            found = function.poll("isolate", slot, [item], True)
            if not isinstance(found, Answer):
                answers[number] = _words(found)
                return
            assert found.state is AnswerState.PENDING, found
            time.sleep(0.02)

    threads = [threading.Thread(target=incident, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: {f"a-{number}": f"isolate: a-{number}"} for number in range(40)}
    assert len(cluster.line.sent) <= 2
    assert sum(len(items) for _, items in cluster.line.sent) == 40
