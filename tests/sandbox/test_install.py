"""The set-up of a clone says in one sentence what stops it, also on a Python that is too old."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from planaria.sandbox import install

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("module", ["sandbox/install.py", "sandbox/__init__.py", "__init__.py"])
def test_an_old_python_can_read_it(module: str) -> None:
    ast.parse((ROOT / "planaria" / module).read_text(encoding="utf-8"), feature_version=(3, 7))


def test_an_old_python_is_told_what_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(install.SetupError, match=r"needs Python 3\.11 or newer and python3 is 3\.9;"):
        install.use_new_python()


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk of .* is full"),
        ("Retrying after connection broken by 'NewConnectionError(...)'", "cannot reach the index"),
        ("npm error code ENOTFOUND", "cannot reach the index"),
        ("npm error code SELF_SIGNED_CERT_IN_CHAIN", "certificate of the index is not trusted"),
        ("ERROR: some other thing", "its last lines .*\n.*some other thing"),
    ],
)
def test_a_failed_client_becomes_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, sentence: str
) -> None:
    monkeypatch.setattr(install, "LOG", tmp_path / "log")
    command = [sys.executable, "-c", f"print({said!r}); raise SystemExit(1)"]
    with pytest.raises(install.SetupError, match=sentence):
        install.run(install.Steps(), command, "the index", {})
    assert said in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("version", "npm", "good"),
    [("v18.19.0", True, False), ("v20.1.0", True, True), ("v24.0.0", True, True), ("v24.0.0", False, False)],
)
def test_node_must_be_new_and_have_npm(tmp_path: Path, version: str, npm: bool, good: bool) -> None:
    for name in ["node", "npm"] if npm else ["node"]:
        (tmp_path / name).write_text(f"#!/bin/sh\necho {version}\n")
        (tmp_path / name).chmod(0o755)
    assert install.good_node(str(tmp_path)) is good


def test_no_node_is_no_good_node(tmp_path: Path) -> None:
    assert install.good_node(str(tmp_path)) is False


def test_make_lists_its_targets() -> None:
    helped = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = {line.split()[1] for line in helped.stdout.splitlines()}
    assert listed >= {"demo", "test", "campaign", "check", "synth", "deploy", "clean", "help"}


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-torch.txt", "requirements-node.txt"])
def test_every_requirement_is_pinned(name: str) -> None:
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    assert lines
    assert [line for line in lines if "==" not in line] == []


def test_the_layer_has_the_pins_of_the_tests() -> None:
    pins = set((ROOT / "requirements.txt").read_text().splitlines())
    layer = (ROOT / "lambdas/requirements-layer.txt").read_text().splitlines()
    assert [line for line in layer if line and not line.startswith("#") and line not in pins] == []
