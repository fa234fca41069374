"""The reset of a GPU, with a tool of the test's own in nvidia-smi's place."""

import json
import os
from pathlib import Path

import pytest

from planaria.node import reset_gpu


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def _install(folder: Path, script: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = reset_gpu.main(arguments)
    said = json.loads(capsys.readouterr().out)
    assert set(said) == {"reason"}
    return status, said["reason"]


@pytest.mark.parametrize(
    ("pci", "asked"),
    [
        ("", "--gpu-reset"),
        ("0000:17:00", "--gpu-reset --id 0000:17:00.0"),
        ("00000000:17:00.0", "--gpu-reset --id 00000000:17:00.0"),
    ],
)
def test_what_the_tool_is_asked(tool: Path, capsys: pytest.CaptureFixture[str], pci: str, asked: str) -> None:
    _install(tool, f'echo "$@" > {tool}/asked')
    assert _run(capsys, f"--pci={pci}") == (0, "")
    assert (tool / "asked").read_text().strip() == asked


def test_the_tools_own_reason(tool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _install(tool, "echo 'GPU is currently in use by another process.'; exit 255")
    status, reason = _run(capsys, "--pci=0000:17:00")
    assert status == 1
    assert reason == "nvidia-smi ended with status 255: GPU is currently in use by another process."


def test_a_node_without_the_tool(tool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(capsys) == (1, "nvidia-smi is not installed on this node")
    _install(tool, "exit 0")
    (tool / "nvidia-smi").write_bytes(b"\x7fELF")
    status, reason = _run(capsys)
    assert status == 1
    assert reason.startswith("nvidia-smi cannot be run")


def test_a_driver_that_hangs(tool: Path) -> None:
    _install(tool, f"exec {os.path.realpath('/bin/sleep')} 60")
    assert reset_gpu.reset("", seconds=0.2).startswith("nvidia-smi did not end within 0 s")


@pytest.mark.parametrize("pci", ["--help", "17:00", "all; reboot", "0000:17:00 0000:18:00", "0000:17:00.8"])
def test_what_is_no_address_is_not_handed_on(
    tool: Path, capsys: pytest.CaptureFixture[str], pci: str
) -> None:
    _install(tool, f"touch {tool}/asked")
    status, reason = _run(capsys, f"--pci={pci}")
    assert (status, "is no PCI address" in reason) == (1, True)
    assert not (tool / "asked").exists()
