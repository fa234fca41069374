"""GPU, NVSwitch and PCIe faults in the kernel's log."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planaria.core.kernel_log import KernelLog, Observation
from planaria.node.probe import NODE_SIGNAL
from planaria.node.tail import Tail

MESSAGE_BYTES = 1024
REPEAT_SECONDS = 10.0
DRIVER_VERSION = Path("/sys/module/nvidia/version")
_Key = tuple[str, str, str, str, bool]


@dataclass(slots=True)
class _Repeat:
    """Occurrences of one fault since it was last reported; `last` is the newest of them."""

    until: float
    last: Observation
    count: int = 0


class KernelLogProbe:
    """Reports the first line of a fault at once, and its repeats as one count every REPEAT_SECONDS.

    A fault is the same when kind, code, the driver's verdict, PCI address, the place on the GPU and injection
    are. Each report names the driver's version of that moment, for NVLink 5 errors are read by it.
    """

    detail_type = NODE_SIGNAL

    def __init__(self, path: Path, offset: int = 0, driver_version: Path = DRIVER_VERSION) -> None:
        """offset: bytes of the log that were written before this boot. driver_version: the file in which the
        loaded NVIDIA driver tells its version."""
        self._driver_version = driver_version
        self._tail = Tail(path, offset)
        self._log = KernelLog()
        self._repeats: dict[_Key, _Repeat] = {}

    def poll(self, now: float) -> list[dict[str, Any]]:
        details = self._due(now)
        for line in self._tail.lines():
            seen = self._log.feed(line)
            if seen is None:
                continue
            place = "/".join(seen.details.get(part, "") for part in ("gpc", "tpc"))
            key = (seen.kind, seen.meaning, seen.pci, place, seen.injected)
            repeat = self._repeats.get(key)
            if repeat is None:
                self._repeats[key] = _Repeat(now + REPEAT_SECONDS, seen)
                details.append(self._detail(seen, 1))
            else:
                repeat.count, repeat.last = repeat.count + 1, seen
        return details

    def _due(self, now: float) -> list[dict[str, Any]]:
        """Repeats whose window is over; a window without repeats ends the series."""
        details = []
        for key, repeat in list(self._repeats.items()):
            if now < repeat.until:
                continue
            if repeat.count:
                details.append(self._detail(repeat.last, repeat.count))
                self._repeats[key] = _Repeat(now + REPEAT_SECONDS, repeat.last)
            else:
                del self._repeats[key]
        return details

    def _detail(self, seen: Observation, count: int) -> dict[str, Any]:
        return {
            "kind": seen.kind,
            "code": seen.code,
            "pci": seen.pci,
            "message": seen.message.encode()[:MESSAGE_BYTES].decode("utf-8", errors="ignore"),
            "injected": seen.injected,
            "count": count,
            "driver": self._driver(),
        }

    def _driver(self) -> str:
        try:
            return self._driver_version.read_text(encoding="utf-8", errors="replace").strip()[:32]
        except OSError:
            return ""  # no driver is loaded, or none of NVIDIA's
