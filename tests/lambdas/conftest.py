"""Gateways in memory, put where the Lambdas look for theirs."""

from collections.abc import Callable

import pytest

from lambdas import boundary
from planaria import wiring
from planaria.core.cluster import Cluster
from planaria.wiring import Gateways
from tests.lambdas.world import World

Build = Callable[..., World]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Build:
    """(cluster, job=True) -> a world whose gateways the Lambdas use from now on."""
    monkeypatch.setattr(boundary, "POLL_SECONDS", 0.0)

    def make(of: Cluster | None = None, job: bool = True) -> World:
        world = World(of, job)
        monkeypatch.setattr(wiring, "gateways", lambda: world.gw)
        return world

    return make


@pytest.fixture
def world(build: Build) -> World:
    """Four nodes that run one job."""
    return build()


@pytest.fixture
def gw(world: World) -> Gateways:
    """Every port of that world."""
    return world.gw
