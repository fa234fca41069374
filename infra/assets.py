"""The two assets of the Lambdas: the code, staged at synth, and one layer of pure Python, built by pip.

Staging copies only what Lambdas import and adds `cluster.json`; its bytes depend on the repository and
the cluster file alone, so equal input gives an equal asset hash. The layer is kept under `build/layer`
by the digest of its pins: later synths need neither pip nor the network.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PINS = Path("lambdas") / "requirements-layer.txt"
LIMIT_BYTES = 5 * 1000 * 1000
_TREES = ("planaria/core", "planaria/aws", "planaria/schedulers")
_FILES = ("planaria/__init__.py", "planaria/wiring.py")
_UNUSED = ("aws_lambda_powertools/event_handler",)
"""Left out of the layer: HTTP routing with a Swagger UI, more than half of Powertools, and never imported."""
_SKIPPED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


class AssetError(Exception):
    """An asset cannot be made. The message is one sentence for people."""


def stage_code(root: Path, target: Path, functions: tuple[str, ...], cluster: Mapping[str, Any]) -> None:
    """Copy the Lambdas' code from `root` into the empty folder `target`.

    Raises AssetError when the file of one of `functions` is missing.
    """
    (target / "lambdas").mkdir(parents=True)
    for name in functions:
        if not (root / "lambdas" / f"{name}.py").is_file():
            raise AssetError(f"lambdas/{name}.py is missing, and a Lambda function is to be made from it.")
    for source in sorted((root / "lambdas").glob("*.py")):
        shutil.copyfile(source, target / "lambdas" / source.name)
    for tree in _TREES:
        shutil.copytree(root / tree, target / tree, ignore=_SKIPPED, copy_function=shutil.copyfile)
    for file in _FILES:
        shutil.copyfile(root / file, target / file)
    (target / "cluster.json").write_text(
        json.dumps(cluster, indent=1, sort_keys=True) + "\n", encoding="utf-8"
    )


def layer(root: Path) -> Path:
    """The folder of the layer (it holds `python/`), built on first use.

    Raises AssetError when pip cannot install the pins.
    """
    pins = root / PINS
    try:
        digest = hashlib.sha256(pins.read_bytes() + " ".join(_UNUSED).encode()).hexdigest()[:16]
    except OSError as error:
        raise AssetError(f"{PINS} cannot be read ({error.strerror}).") from error
    kept = root / "build" / "layer" / digest
    if kept.is_dir():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix="new-") as scratch:
        building = Path(scratch) / digest
        _install(pins, building / "python")
        try:
            building.rename(kept)
        except OSError:  # another synth was faster
            if not kept.is_dir():
                raise
    return kept


def _install(pins: Path, target: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    # No dependencies: the pins are complete, and what is not pinned must not slip in.
    plain = ["--no-deps", "--no-compile", "--only-binary=:all:", "--target", str(target)]
    done = subprocess.run([*pip, *plain, "-r", str(pins)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise AssetError(f"The Lambda layer cannot be built, for pip could not install {PINS}: {said}")
    for unused in _UNUSED:
        shutil.rmtree(target / unused, ignore_errors=True)
    # Scripts and install records hold the builder's paths, which would change the asset's hash.
    shutil.rmtree(target / "bin", ignore_errors=True)
    for record in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):
        for file in target.glob(f"*.dist-info/{record}"):
            file.unlink()


def size(folder: Path) -> int:
    """Bytes of all files below `folder`."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
