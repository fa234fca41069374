"""Whole incidents over Slurm's transport: documents, a head node that answers after seconds, and calls that
are gathered in the table. Slurm itself is the twin here; tests/slurm_real has the real one."""

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lambdas import boundary
from planaria.core.ports import Answer, AnswerState
from planaria.schedulers.slurm import SlurmScheduler
from tests.lambdas.conftest import Build
from tests.lambdas.test_node_stories import SICK, fall_off
from tests.lambdas.test_slurm_jobs import ID, assert_goes_on, slurm
from tests.lambdas.world import World, _Port
from tests.schedulers.head_node import HEAD, HeadNode

SSM_SECONDS = 1.5


class Line:
    """SSM Run Command to the head node: what is sent runs there a little later, whoever asks for it."""

    def __init__(self, world: World) -> None:
        self.sent: list[tuple[str, dict[str, str]]] = []
        self._world = world
        self._head = HeadNode(world.scheduler)
        self._running: dict[str, tuple[float, str, dict[str, str]]] = {}
        self._ended: dict[str, dict[str, Any]] = {}
        self._numbers = itertools.count()

    def submit(self, document: str, node_ids: Sequence[str], parameters: Mapping[str, str]) -> str:
        assert list(node_ids) == [HEAD]
        ticket = f"command-{next(self._numbers)}"
        self.sent.append((document, dict(parameters)))

        self._running[ticket] = self._world.now + SSM_SECONDS, document, dict(parameters)
        self._world.at(SSM_SECONDS, self._work)
        return ticket

    def let_pass(self, seconds: float) -> None:
        self._world.clock.advance(seconds)
        self._work()

    def _work(self) -> None:
        due = [ticket for ticket, (at, _, _) in self._running.items() if at <= self._world.now]
        for ticket in due:
            _, document, parameters = self._running.pop(ticket)
            output = self._head.commands.documents[document](HEAD, parameters)
            self._ended[ticket] = {"status": "SUCCESS", "output": output}

    def poll(self, ticket: str) -> Answer:
        if ticket not in self._ended:
            return Answer(AnswerState.PENDING)
        return Answer(AnswerState.DONE, {HEAD: self._ended[ticket]})

    def count(self, verb: str) -> int:
        return sum(document == f"planaria-slurm-{verb}" for document, _ in self.sent)


@pytest.fixture(autouse=True)
def pauses(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Lambda that pauses lets the world's time pass, and the head node work meanwhile."""
    monkeypatch.setattr(boundary, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(time, "sleep", lambda seconds: _lines[-1].let_pass(seconds))
    _lines.clear()


_lines: list[Line] = []


def connect(world: World) -> Line:
    """From now on the world's Lambdas reach the scheduler over such a line."""
    line = Line(world)
    _lines.append(line)
    commands: Any = _Port(world, "commands", line)
    world.gw.scheduler = SlurmScheduler(commands, HEAD, world.gw.table, world.clock)
    return line


def bare(build: Build, nodes: int = 4, **policy: Any) -> World:
    return build(slurm(**policy), job=False, nodes=nodes)


def busy(build: Build) -> World:
    """A job on all four nodes that knows nothing of Planaria."""
    world = bare(build)
    connect(world)
    world.scheduler.add_job(ID, 4)
    world.scheduler.state.jobs[ID].user = "ada"
    return world


def test_a_node_is_healed_and_its_job_goes_on(build: Build) -> None:
    world = busy(build)
    fall_off(world)
    world.run()
    assert_goes_on(world)
    assert len(world.incidents) == 1


def test_a_lost_node_too(build: Build) -> None:
    world = busy(build)
    world.lose(SICK)
    world.run()
    assert_goes_on(world)


def test_two_nodes_of_a_job_are_one_resume(build: Build) -> None:
    world = busy(build)
    fall_off(world)
    fall_off(world, world.nodes[2])
    world.run()
    assert_goes_on(world, replaced=2)


def test_a_storm_is_healed(build: Build) -> None:
    world = bare(build, nodes=16, size=16, removals=12)
    line = connect(world)
    for node in world.nodes[:6]:
        fall_off(world, node)
    world.run()
    assert [row["outcome"] for row in world.gw.ledger.incidents()] == ["HEALED"] * 6
    assert line.count("join") == 6, "one for each, and none twice"


def test_a_storm_is_isolated_by_a_few_commands(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated Lambdas run one after the other. Here none of them pauses, so they ask at the same time."""
    monkeypatch.setattr(boundary, "POLL_SECONDS", 0.0)
    world = bare(build, nodes=16, size=16, removals=12)
    line = connect(world)
    for node in world.nodes[:6]:
        fall_off(world, node)
    world.run(until=lambda: len(world.isolated) == 6)
    assert sorted(world.isolated) == world.names[:6]
    isolated = [given["Entries"] for document, given in line.sent if document == "planaria-slurm-isolate"]
    assert sum(len(entries.split(",")) for entries in isolated) == 6
    assert len(isolated) <= 2


@pytest.mark.campaign
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_any_effect_may_be_the_last_one(build: Build, before: bool) -> None:
    """Also those of the gathering: its rows, its lease, the send itself."""
    world = busy(build)
    fall_off(world)
    world.run()
    wrong = {}
    for number, (function, call) in enumerate(world.effects):
        other = busy(build)
        other.kill_at(number, before=before)
        fall_off(other)
        other.run()
        try:
            assert_goes_on(other)
        except AssertionError as error:
            wrong[f"{number}: {function} {call}"] = str(error).partition("\n")[0]
    assert wrong == {}
    assert {call for _, call in world.effects} >= {"commands.submit", "table.write", "fleet.launch"}
