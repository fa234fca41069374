"""Sweep keeps Slurm's topology.conf as the ledger has the network."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from lambdas import slurm_topology
from planaria.core.cluster import Slurm
from planaria.core.documents import documents
from planaria.core.topology import Path
from planaria.core.topology_conf import unpacked
from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.world import NAMES, NODES, World, cluster

HEAD = "i-0cccccccccccccccc"
NEAR: Path = ("nn-1", "nn-2", "nn-4")
FAR: Path = ("nn-1", "nn-3", "nn-6")


class Head:
    """The head node's answers. told: what it was told, one entry per command."""

    def __init__(self, world: World) -> None:
        self.told: list[dict[str, Path]] = []
        self.answer: Any = {"version": 1, "value": {"installed": True, "changed": True, "reason": ""}}
        world.commands.documents[slurm_topology.DOCUMENT] = self._run

    def _run(self, node: str, parameters: Mapping[str, str]) -> Any:
        assert node == HEAD
        return self.answer


def told(world: World) -> list[dict[str, Path]]:
    calls = [call for call in world.commands.calls if call[0] == slurm_topology.DOCUMENT]
    return [unpacked(parameters["Paths"]) for _, _, parameters in calls]


def slurm(build: Build, topology: str = "tree", mode: str = "act") -> World:
    """The scheduler stays the world's: only the document goes to the head node."""
    world = build(dataclasses.replace(cluster(mode), slurm=Slurm(HEAD, topology)))
    world.topology.paths = dict.fromkeys(NODES, NEAR)
    return world


def state(world: World) -> dict[str, Any]:
    return world.table.get(*slurm_topology.KEY) or {}


def test_the_head_node_is_told_where_the_nodes_are_and_not_again(build: Build) -> None:
    world = slurm(build)
    Head(world)
    for _ in range(4):
        world.sweep()
        world.clock.advance(60)
    assert told(world)[-1] == dict.fromkeys(NAMES, NEAR)
    asked = len(told(world))
    assert asked <= 2 and state(world)["installed"] == state(world)["asked"]
    world.clock.advance(slurm_topology.AGAIN_SECONDS)
    world.sweep()
    assert len(told(world)) == asked + 1, "once an hour all the same: Slurm may have got nodes"


def test_the_parameter_is_what_the_document_takes(build: Build) -> None:
    world = slurm(build)
    Head(world)
    world.sweep()
    (call, *_) = world.commands.calls
    assert documents()[call[0]].checked(call[2]) == call[2]


def test_a_replacement_under_the_same_name_moves_it(build: Build) -> None:
    world = slurm(build)
    Head(world)
    world.sweep()
    world.send(events.xid(NODES[1], 79, world.now))
    world.run(30)
    (new,) = world.launched
    world.topology.paths[new] = FAR
    world.run(2000)
    world.clock.advance(700)
    for _ in range(3):
        world.sweep()
        world.clock.advance(60)
    assert told(world)[-1] == {**dict.fromkeys(NAMES, NEAR), NAMES[1]: FAR}


@pytest.mark.parametrize(("topology", "mode"), [("none", "act"), ("tree", "observe")])
def test_nobody_is_told_where_it_is_not_asked_for(build: Build, topology: str, mode: str) -> None:
    world = slurm(build, topology, mode)
    world.sweep()
    assert told(world) == [] and state(world) == {}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"version": 1, "value": {"installed": False, "reason": "TopologyPlugin is topology/none"}}, "none"),
        ({"version": 1, "error": "scontrol is not installed here"}, "not installed"),
        (RuntimeError("the agent is gone"), "cannot be read"),
        ({"version": 9}, "cannot be read"),
    ],
)
def test_a_refusal_is_kept_with_its_reason_and_asked_about_again_later(
    build: Build, answer: Any, says: str
) -> None:
    world = slurm(build)
    Head(world).answer = answer
    world.sweep()
    world.sweep()
    asked = len(told(world))
    world.clock.advance(60)
    world.sweep()
    assert says in state(world)["why"] and "installed" not in state(world)
    assert len(told(world)) <= asked + 1
    before = len(told(world))
    world.clock.advance(slurm_topology.REFUSED_SECONDS)
    world.sweep()
    assert len(told(world)) == before + 1


def test_an_answer_that_never_comes_is_given_up(build: Build) -> None:
    world = slurm(build)
    Head(world).answer = None
    world.sweep()
    asked = len(told(world))
    world.sweep()
    assert len(told(world)) == asked and "ticket" in state(world)
    world.clock.advance(slurm_topology.SILENT_SECONDS)
    world.sweep()
    assert "did not answer" in state(world)["why"]


def test_who_bears_a_name_is_where_it_is() -> None:
    old = {"node_id": "i-1", "name": "a", "topology": list(NEAR), "launched_at": 1.0}
    new = {**old, "node_id": "i-2", "replaces": "i-1", "topology": list(FAR), "launched_at": 2.0}
    assert slurm_topology.places([old, new]) == {"a": NEAR}
    assert slurm_topology.places([{**old, "gone": True}, new]) == {"a": FAR}
    assert slurm_topology.places([{**old, "replaced_by": "i-2"}, {**new, "admitted_at": 3.0}]) == {"a": FAR}
    assert slurm_topology.places([{"node_id": "i-3", "spare": {"state": "FREE"}}]) == {}
    assert slurm_topology.places([{"node_id": "i-4", "name": "b"}]) == {"b": ()}
