"""Processor time of the emulator and its Lambda workers, and how much slower this machine's processors become
while they are busy."""

import json
import os
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

BEAT_SECONDS = 0.5
CALM_BEATS = 20
_WORK = json.dumps({f"key-{number}": [number, str(number)] for number in range(400)})


@dataclass(frozen=True, slots=True)
class Used:
    """Seconds of processor time."""

    emulator: float
    workers: float
    benchmark: float

    def since(self, before: "Used") -> "Used":
        return Used(
            self.emulator - before.emulator,
            self.workers - before.workers,
            self.benchmark - before.benchmark,
        )

    @staticmethod
    def now(emulator: int) -> "Used":
        """emulator: its process id. Its Lambda workers are its children and of its process group; those that
        have ended count too."""
        tick = os.sysconf("SC_CLK_TCK")
        own = workers = 0.0
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue  # it has ended meanwhile
            fields = text.rpartition(")")[2].split()
            seconds = (int(fields[11]) + int(fields[12])) / tick
            if int(folder.name) == emulator:
                own = seconds
                workers += (int(fields[13]) + int(fields[14])) / tick
            elif int(fields[2]) == emulator:
                workers += seconds
        times = os.times()
        return Used(own, workers, times.user + times.system)


def beat() -> float:
    """Processor seconds of a fixed piece of work, of about a millisecond."""
    began = time.thread_time()
    for _ in range(4):
        json.loads(_WORK)
    return time.thread_time() - began


class Metronome:
    """Does a fixed piece of work twice a second in a thread of its own. That takes more processor time while
    other processes share caches and cores, and so does everything else that is measured."""

    _calm: float | None = None

    def __init__(self) -> None:
        self._beats: list[float] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metronome", daemon=True)

    @classmethod
    def rest(cls) -> None:
        """Take the measure while nothing of ours runs."""
        cls._calm = statistics.median(beat() for _ in range(CALM_BEATS))

    @property
    def slowdown(self) -> float:
        """Processor time of the work meanwhile, over that at rest."""
        if not self._beats or not self._calm:
            return 1.0
        return statistics.median(self._beats) / self._calm

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        beat()
        while True:
            self._beats.append(beat())
            if self._ending.wait(BEAT_SECONDS):
                return
