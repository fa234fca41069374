"""What a healthy node of an instance family has and does at least: figures.csv, with the source of each."""

import csv
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path

from planaria.core.efa import efa_of

PRODUCT_NAME = Path("/sys/devices/virtual/dmi/id/product_name")
"""On Nitro instances the firmware says the instance type here."""


@dataclass(frozen=True, slots=True)
class Figures:
    """nvlink_gbs: bus bandwidth of an all-reduce over all GPUs of the node, GB/s at least. efa: devices at
    most (planaria/core/catalog/efa.csv), 0 where that is not known; a launch template may ask for fewer."""

    gpus: int
    nvlink_gbs: float
    efa: int
    sources: str


def figures_of(instance_type: str) -> Figures | None:
    """None for a type that has none."""
    found, efa = _figures().get(instance_type.partition(".")[0]), efa_of(instance_type)
    return found if found is None or efa is None else replace(found, efa=efa.devices)


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
        row["family"]: Figures(int(row["gpus"]), float(row["nvlink_gbs"]), 0, row["sources"])
        for row in csv.DictReader(content.splitlines(), strict=True)
    }
