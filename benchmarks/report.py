"""The last line of stdout that every benchmark prints, and the small statistics that go into it."""

import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Aim:
    """A value that must not exceed its aim."""

    value: float | None
    aim: float
    below: bool = False

    @property
    def met(self) -> bool:
        """Without a value nothing is met. below: the aim itself is too much."""
        if self.value is None:
            return False
        return self.value < self.aim if self.below else self.value <= self.aim

    def document(self) -> dict[str, Any]:
        return {"value": self.value, "aim": self.aim, "met": self.met}


@dataclass(frozen=True, slots=True)
class Reached:
    """A value that must reach its aim."""

    value: float
    aim: float

    @property
    def met(self) -> bool:
        return self.value >= self.aim

    def document(self) -> dict[str, Any]:
        return {"value": self.value, "aim": self.aim, "met": self.met}


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least, greatest and number of some measurements."""

    median: float
    least: float
    most: float
    number: int

    @staticmethod
    def of(values: Iterable[float], digits: int = 3) -> "Spread":
        found = sorted(values)
        low, high = round(found[0], digits), round(found[-1], digits)
        return Spread(round(statistics.median(found), digits), low, high, len(found))

    def document(self) -> dict[str, float]:
        return {"median": self.median, "min": self.least, "max": self.most, "n": self.number}


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it was measured. load_before: the load averages over 1, 5 and 15 minutes when the run began."""

    processor: str
    cores: int
    memory_gib: int
    system: str
    python: str
    load_before: tuple[float, ...]

    @staticmethod
    def here() -> "Machine":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Machine(
            processor=f"{_processor()} ({platform.machine()})",
            cores=len(os.sched_getaffinity(0)),
            memory_gib=round(memory / 2**30),
            system=f"{platform.system()} {platform.release()}",
            python=platform.python_version(),
            load_before=tuple(round(load, 2) for load in os.getloadavg()),
        )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown processor"
    return next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown processor"
    )


def line(
    benchmark: str, machine: Machine, figures: Mapping[str, Any], aims: Mapping[str, Aim | Reached]
) -> str:
    """One JSON object without a line break."""
    document = {
        "benchmark": benchmark,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": asdict(machine),
        "figures": figures,
        "aims": {name: aim.document() for name, aim in aims.items()},
    }
    return json.dumps(document, ensure_ascii=False)
