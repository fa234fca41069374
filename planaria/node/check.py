"""The light check of a node: is everything there that should be? Takes milliseconds."""

import json
import shutil
from pathlib import Path

LEAST_FREE_BYTES = 50 * 2**20


def light(hardware: Path, state_dir: Path) -> tuple[bool, str]:
    """(passed, reason): reason is one sentence when something is wrong, else empty.

    hardware: a JSON file {"gpus": {"expected": n, "seen": n}}; without it no device is expected.
    """
    try:
        gpus = json.loads(hardware.read_text(encoding="utf-8")).get("gpus", {})
        expected, seen = int(gpus.get("expected", 0)), int(gpus.get("seen", 0))
    except FileNotFoundError:
        expected = seen = 0
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return False, f"the device list cannot be read: {error}"
    if seen < expected:
        return False, f"{expected - seen} of {expected} GPUs are missing"
    try:
        free = shutil.disk_usage(state_dir).free
    except OSError as error:
        return False, f"the disk cannot be read: {error.strerror}"
    if free < LEAST_FREE_BYTES:
        return False, f"the disk has {free // 2**20} MB free"
    return True, ""
