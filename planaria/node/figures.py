"""What a healthy node of an instance family has and does at least: figures.csv, with the source of each."""

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

PRODUCT_NAME = Path("/sys/devices/virtual/dmi/id/product_name")
"""On Nitro instances the firmware says the instance type here."""


@dataclass(frozen=True, slots=True)
class Figures:
    """nvlink_gbs: bus bandwidth of an all-reduce over all GPUs of the node, GB/s at least. efa: devices at
    most; a launch template may ask for fewer."""

    gpus: int
    nvlink_gbs: float
    efa: int
    sources: str


def figures_of(instance_type: str) -> Figures | None:
    """None for a type that has none."""
    return _figures().get(instance_type.partition(".")[0])


def own_instance_type() -> str:
    """Of the machine that this runs on, "" where it does not say."""
    try:
        found = PRODUCT_NAME.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
    return found if "." in found and " " not in found else ""


@cache
def _figures() -> dict[str, Figures]:
    content = resources.files("planaria.node").joinpath("figures.csv").read_text(encoding="utf-8")
    return {
        row["family"]: Figures(int(row["gpus"]), float(row["nvlink_gbs"]), int(row["efa"]), row["sources"])
        for row in csv.DictReader(content.splitlines(), strict=True)
    }
