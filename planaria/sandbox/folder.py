"""The folder of a sandbox: may one be put there, and how to end the one that is there."""

import shutil
from pathlib import Path

from planaria.core.errors import InvalidInput
from planaria.sandbox import emulator, slurm_cluster, slurm_side
from planaria.sandbox.job_folder import read_json
from planaria.sandbox.world import end_head

MARKS = ("sandbox.json", "head.config.json", "emulator/emulator.json", "emulator/emulator.log")


def check_free(folder: Path) -> None:
    """A sandbox's end removes its folder with all that is in it, so it must be new or empty.

    Raises InvalidInput.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is no folder; choose another one with --dir")
    alive = emulator.attach(folder / "emulator") is not None
    down = f"`planaria sandbox down --dir {folder}`"
    if alive and (folder / "sandbox.json").exists():
        raise InvalidInput(f"a sandbox runs in {folder} already; {down} ends it")
    if alive:
        raise InvalidInput(f"a sandbox is being started in {folder}; wait for it, or {down}")
    if is_sandbox(folder):
        raise InvalidInput(f"a dead sandbox lies in {folder}; {down} clears it away")
    if any(folder.iterdir()):
        raise InvalidInput(f"{folder} is not empty; choose a new folder with --dir")


def is_sandbox(folder: Path) -> bool:
    """A sandbox is or was here, so that the folder may be removed."""
    return any((folder / mark).exists() for mark in MARKS)


def end(folder: Path) -> bool:
    """End every process of the sandbox in this folder and remove it; False when there is none."""
    if not is_sandbox(folder):
        return False
    head = read_json(folder / "head.json") or (read_json(folder / "sandbox.json") or {}).get("head") or {}
    pid = head.get("pid")
    if isinstance(pid, int) and _is_head(pid):
        end_head(pid)
    running = emulator.attach(folder / "emulator")
    if running is not None:
        running.stop()
    slurm_cluster.stop(slurm_side.folder_of(folder))
    shutil.rmtree(folder)
    return True


def _is_head(pid: int) -> bool:
    """A pid in a file may have been given to another program since."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"planaria.sandbox.head" in words
