"""One emulator for all tests of the head and its player: each of them uses a cluster of its own."""

from collections.abc import Iterator

import pytest

from planaria.sandbox import emulator as emulators


@pytest.fixture(scope="session")
def one_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[emulators.Emulator]:
    with emulators.start(tmp_path_factory.mktemp("emulator")) as running:
        yield running


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return f"c{abs(hash(request.node.nodeid)) % 10**9}"
