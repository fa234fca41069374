"""On Kubernetes a hold is a taint that nothing takes away: sweep asks the adapter, which does."""

import dataclasses

import pytest

from lambdas import expired_holds, kept_out
from planaria.core.scheduling import NodeQuery
from tests.lambdas.conftest import Build
from tests.lambdas.world import cluster

ASKED = NodeQuery(())


@pytest.mark.parametrize(("scheduler", "asked"), [("eks", True), ("process", False), ("slurm", False)])
def test_only_kubernetes_is_asked_every_minute(
    build: Build, monkeypatch: pytest.MonkeyPatch, scheduler: str, asked: bool
) -> None:
    # Slurm is asked the same now and then, for the nodes that it keeps out of work: test_kept_out.py.
    monkeypatch.setattr(kept_out, "look", lambda *_: 0)
    world = build(dataclasses.replace(cluster(), scheduler=scheduler))
    world.run(130.0, until=lambda: False)
    found = world.scheduler.requests.count(ASKED)
    assert (found >= 2) if asked else (found == 0)


def test_a_scheduler_that_does_not_answer_stops_no_sweep(build: Build) -> None:
    world = build(dataclasses.replace(cluster(), scheduler="eks"))
    world.scheduler.reachable = False
    assert expired_holds.end(world.gw) == 0
    world.scheduler.reachable = True
    assert expired_holds.end(world.gw) == 1
