"""The light check of a node: is everything there that should be? Takes milliseconds."""

import json
import shutil
from pathlib import Path

LEAST_FREE_BYTES = 50 * 2**20

INFINIBAND = Path("/sys/class/infiniband")
"""The kernel lists its RDMA devices here, those of the EFA driver among them."""

EFA_DRIVER = "efa"


def efa_devices() -> int:
    """How many devices the EFA driver has taken."""
    if not INFINIBAND.is_dir():
        return 0
    drivers = ((device / "device" / "driver").resolve().name for device in INFINIBAND.iterdir())
    return sum(driver == EFA_DRIVER for driver in drivers)


def light(hardware: Path, state_dir: Path) -> tuple[bool, str]:
    """(passed, reason): reason is one sentence when something is wrong, else empty.

    hardware: a JSON file {"gpus": {"expected": n, "seen": n}, "efa": {"expected": n}}; without it no device
    is expected. EFA devices are counted here, unless the file says how many are seen.
    """
    try:
        listed = json.loads(hardware.read_text(encoding="utf-8"))
        gpus, efa = listed.get("gpus", {}), listed.get("efa", {})
        expected, seen = int(gpus.get("expected", 0)), int(gpus.get("seen", 0))
        devices = int(efa.get("expected", 0))
        found = int(efa.get("seen", efa_devices() if devices else 0))
    except FileNotFoundError:
        expected = seen = devices = found = 0
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return False, f"the device list cannot be read: {error}"
    if seen < expected:
        return False, f"{expected - seen} of {expected} GPUs are missing"
    if found < devices:
        return False, f"{devices - found} of {devices} EFA devices are missing"
    try:
        free = shutil.disk_usage(state_dir).free
    except OSError as error:
        return False, f"the disk cannot be read: {error.strerror}"
    if free < LEAST_FREE_BYTES:
        return False, f"the disk has {free // 2**20} MB free"
    return True, ""
