"""What all tests share: skips that CI turns into failures, and the sandbox's emulator."""

import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from planaria.sandbox import slurm_cluster
from tests import object_store as object_store_server

ROOT = Path(__file__).resolve().parents[1]

REQUIRED = {name.strip() for name in os.environ.get("PLANARIA_REQUIRE", "").split(",") if name.strip()}
"""Parts whose absence fails a test instead of skipping it; CI sets `torch,emulator,cdk,slurm,seaweedfs`."""


def _module(name: str) -> Callable[[], bool]:
    return lambda: importlib.util.find_spec(name) is not None


PARTS: dict[str, Callable[[], bool]] = {
    "torch": _module("torch"),
    "emulator": _module("ministack"),
    "microburst": _module("microburst"),
    "node": lambda: shutil.which("node") is not None or (Path(sys.executable).parent / "node").exists(),
    "cdk": lambda: (ROOT / "node_modules/.bin/cdk").exists() or shutil.which("cdk") is not None,
    "slurm": lambda: not slurm_cluster.missing(),
    "seaweedfs": lambda: object_store_server.program() is not None,
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for name in marker.args:
            if not PARTS[name]():
                pytest.skip(f"{name} is not installed")


def _refuse(report: Any) -> None:
    """A skip for want of a required part becomes a failure, wherever the skip came from."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    lacking = sorted(name for name in REQUIRED if re.search(rf"\b{re.escape(name)}\b", reason))
    if lacking:
        report.outcome = "failed"
        report.longrepr = f"{reason}: PLANARIA_REQUIRE names {', '.join(lacking)}, so this may not be skipped"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse(report)
    return report


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Any]:
    """A fresh emulator for one test."""
    from planaria.sandbox import emulator as emulators

    with emulators.start(tmp_path / "emulator") as running:
        yield running


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """For what keeps Unix sockets below it: their names may have 107 bytes (unix(7))."""
    with tempfile.TemporaryDirectory(prefix="s") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object_store_server.ObjectStore]:
    """A real S3 endpoint that all tests share; each takes buckets of its own (`bucket`)."""
    if object_store_server.program() is None:
        pytest.skip("seaweedfs is not installed")
    with object_store_server.start(tmp_path_factory.mktemp("object-store")) as running:
        yield running


@pytest.fixture
def bucket(object_store: object_store_server.ObjectStore) -> Iterator[str]:
    """The name of an empty bucket of `object_store`. After the test it goes with all that is in it."""
    name = object_store.make_bucket()
    yield name
    object_store.client().delete_bucket(Bucket=name)
