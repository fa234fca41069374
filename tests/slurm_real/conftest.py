"""One real Slurm of eight nodes for all scenarios; each finds it idle."""

from collections.abc import Iterator

import pytest

from planaria.sandbox import slurm_cluster
from planaria.sandbox.slurm_cluster import SlurmCluster
from planaria.sandbox.slurm_files import SlurmSettings
from tests.slurm_real.bench import Bench

NAMES = tuple(f"demo-{number}" for number in range(1, 9))
SPARE = "demo-9"


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    if lack := slurm_cluster.missing():
        pytest.skip(f"slurm: {lack}")
    folder = tmp_path_factory.mktemp("slurm")
    # Where Slurm 22.05 waits in vain for a step that has ended (docs/slurm-head-node.md), it waits for less.
    settings = SlurmSettings(folder, NAMES, (SPARE,), options={"UnkillableStepTimeout": "10"})
    with SlurmCluster(settings) as slurm:
        running = Bench(slurm)
        yield running
        running.commands.close()


@pytest.fixture
def bench(shared: Bench) -> Iterator[Bench]:
    yield shared
    shared.reset(NAMES, SPARE)
