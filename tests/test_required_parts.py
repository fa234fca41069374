"""Where PLANARIA_REQUIRE names a part, a test that skips for want of it fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

SKIPS = {
    "by marker": "import pytest\n@pytest.mark.needs('torch')\ndef test_it(): pass\n",
    "by import": "import pytest\npytest.importorskip('torch')\ndef test_it(): pass\n",
    "within": "import pytest\ndef test_it(): pytest.skip('torch is missing')\n",
}


def _ended(folder: Path, source: str, required: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(source)
    # A torch that cannot be found, in place of the one that may be installed.
    (folder / "sitecustomize.py").write_text(
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda n, p=None: None if n == 'torch' else find(n, p)\n"
        "sys.modules['torch'] = None\n"
    )
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "tests.conftest", "test_it.py"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{folder}:{ROOT}", "PLANARIA_REQUIRE": required},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("source", SKIPS.values(), ids=SKIPS.keys())
def test_a_skip_for_a_required_part_fails(tmp_path: Path, source: str) -> None:
    assert "1 skipped" in _ended(tmp_path, source, "").stdout
    ended = _ended(tmp_path, source, "torch,emulator")
    assert ended.returncode != 0
    assert "PLANARIA_REQUIRE names torch" in ended.stdout
