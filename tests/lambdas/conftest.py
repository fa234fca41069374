"""Gateways in memory, put where the Lambdas look for theirs."""

from collections.abc import Callable, Iterator

import pytest

from lambdas import boundary
from planaria import wiring
from planaria.core.cluster import Cluster
from planaria.wiring import Gateways
from tests.lambdas.world import NODES, World

Build = Callable[..., World]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Iterator[Build]:
    """(cluster, job=True, nodes=4) -> a world whose gateways the Lambdas use from now on."""
    monkeypatch.setattr(boundary, "POLL_SECONDS", 0.0)
    worlds: list[World] = []

    def make(of: Cluster | None = None, job: bool = True, nodes: int = len(NODES)) -> World:
        world = World(of, job, nodes)
        worlds.append(world)
        monkeypatch.setattr(wiring, "gateways", lambda: world.gw)
        return world

    yield make
    for world in worlds:
        for _, text in world.notices.sent:
            # Every end that needs a person has a page of its own: planaria/core/runbooks.py.
            assert "docs/runbooks/escalated.md" not in text, text


@pytest.fixture
def world(build: Build) -> World:
    """Four nodes that run one job."""
    return build()


@pytest.fixture
def gw(world: World) -> Gateways:
    """Every port of that world."""
    return world.gw
