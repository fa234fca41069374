"""Kernel-log lines of the NVIDIA drivers -> observations.

`read` understands one line; `KernelLog` also faults that spread over lines (a GPU that falls off the bus
without any Xid). Facts about the lines: NVIDIA's Xid documentation, the drivers' published sources, and
reports to NVSentinel (issue 155) and gpud (pull request 1209).
"""

import re
from dataclasses import dataclass, field

MESSAGE_LIMIT = 1024
LINE_LIMIT = 4096

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): ([^\s,]+)(?:, ?(.*))?")
_SXID = re.compile(r"nvidia-nvswitch(\d+): SXid \((?:PCI:)?([0-9A-Fa-f:.]+)\): ([^\s,]+)(?:, ?(.*))?")
_OFF_BUS = re.compile(r"NVRM: GPU (?:at )?(?:PCI:)?([0-9A-Fa-f:.]+): GPU has fallen off the bus")
_OFF_BUS_HEAD = re.compile(r"NVRM: The NVIDIA GPU (?:PCI:)?([0-9A-Fa-f:.]+)")
_OFF_BUS_TAIL = "fallen off the bus and is not responding"
_NVLINK5 = re.compile(
    r"(\w{1,40})\s+(Fatal|Non-?fatal)\s+XC(\d+)\s+i(\d+)\s+Link\s+(-?\d+)\s+\((0x[0-9A-Fa-f]+)\s+(0x[0-9A-Fa-f]+)",
    re.IGNORECASE,
)
_PROCESS = re.compile(r"(?:^|, )(pid|name)='?([^',]*)'?")
_SM = re.compile(r"\(GPC (\d+), TPC (\d+), SM (\d+)\)")
_LINK = re.compile(r"\b[Ll]ink (-?\d+)")
_PARENTHESES = re.compile(r"\(([^()]*)\)")
_CAUSE = re.compile(r"due to previous Xid (\d+)|caused by previous Xid (\d+)", re.IGNORECASE)
_PCI = re.compile(r"(?:([0-9a-f]+):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?")

_VERDICTS = {
    "none": "none",
    "gpu reset required": "reset",
    "drain and reset": "reset",
    # ADT resets, NVSentinel calls support; peer traffic of this GPU is over in any case.
    "drain p2p": "reset",
    "node reboot required": "reboot",
}

WINDOW = 8
"""How many further lines a fault may spread over, and within which its echo counts as the same."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One fault that a kernel log shows.

    kind: `xid`, `sxid` or `fallen_off_bus`. code: the number as text (any text the driver wrote), the kind
    itself where there is none. pci: as `pci` gives it, "" when none is named. injected: NVLink 5 marks
    injected errors. verdict: "" or what the line says about this occurrence: `fatal`, `nonfatal`, `none`,
    `reset`, `reboot`. details: small texts for people (pid, name, link, status words).
    """

    kind: str
    code: str
    pci: str
    message: str
    injected: bool = False
    verdict: str = ""
    details: dict[str, str] = field(default_factory=dict)

    @property
    def meaning(self) -> str:
        """The code with its verdict, as the catalogue looks it up: `79`, `154/reset`, `24007/fatal`."""
        return f"{self.code}/{self.verdict}" if self.verdict else self.code


def pci(text: str) -> str:
    """One spelling of a GPU's PCI address: lower case, four digits of domain, no function digit.

    A GPU is always function 0, and the driver's own Xid lines leave it out.
    """
    match = _PCI.fullmatch(text.strip().lower())
    if match is None:
        return text.strip().lower()
    domain, bus, device = match.groups()
    return f"{(domain or '').lstrip('0').rjust(4, '0')}:{bus}:{device}"


def read(line: str) -> Observation | None:
    """The observation that this one line holds, None when it holds none. The kernel's own lines are short."""
    if len(line) > LINE_LIMIT:
        line = line[:LINE_LIMIT]
    if "Xid (" in line:
        if match := _XID.search(line):
            return _xid(line, *match.groups(default=""))
        if match := _SXID.search(line):
            return _sxid(line, *match.groups(default=""))
    elif "fallen off the bus" in line and (match := _OFF_BUS.search(line)):
        return _off_bus(line, match[1])
    return None


class KernelLog:
    """Reads a log line by line and remembers what the next lines may belong to."""

    def __init__(self) -> None:
        self._head = ""
        self._head_age = 0
        self._lost: dict[str, int] = {}

    def feed(self, line: str) -> Observation | None:
        """The observation that ends with this line. A fault that is told twice is told on once."""
        seen = read(line) if "NVRM" in line or "nvswitch" in line else None
        if self._head:
            self._head_age += 1
            if _OFF_BUS_TAIL in line:
                seen, self._head = _off_bus(f"GPU {self._head} has {_OFF_BUS_TAIL}", self._head), ""
            elif self._head_age > WINDOW:
                self._head = ""
        elif match := _OFF_BUS_HEAD.search(line):
            self._head, self._head_age = match[1], 0
            if _OFF_BUS_TAIL in line:
                seen, self._head = _off_bus(line, match[1]), ""
        return self._once(seen)

    def _once(self, seen: Observation | None) -> Observation | None:
        if self._lost:
            self._lost = {gpu: age + 1 for gpu, age in self._lost.items() if age < WINDOW}
        if seen is None or (seen.kind != "fallen_off_bus" and (seen.kind, seen.code) != ("xid", "79")):
            return seen
        if seen.pci in self._lost and seen.kind == "fallen_off_bus":
            return None
        self._lost[seen.pci] = 0
        return seen


def _xid(line: str, address: str, code: str, rest: str) -> Observation:
    details = {key: value for key, value in _PROCESS.findall(rest) if value and value != "<unknown>"}
    injected, verdict = False, ""
    if code == "154":
        words = _PARENTHESES.findall(rest)
        verdict = _VERDICTS.get(words[-1].strip().lower(), "") if words else ""
        if words:
            details["recovery"] = words[-1].strip()
    elif match := _NVLINK5.match(rest):
        unit, word, severity, error_injected, link, interrupt, status = match.groups()
        verdict = "fatal" if word.lower() == "fatal" else "nonfatal"
        injected = error_injected != "0"
        details |= {
            "unit": unit,
            "link": str(int(link)),
            "xc": severity,
            "interrupt": interrupt,
            "status": status,
        }
    elif match := _SM.search(rest):
        details |= {"gpc": match[1], "tpc": match[2], "sm": match[3]}
    elif match := _LINK.search(rest):
        details["link"] = match[1]
    if match := _CAUSE.search(rest):
        details["cause"] = match[1] or match[2]
    return Observation("xid", code, pci(address), _message(line), injected, verdict, details)


def _sxid(line: str, switch: str, address: str, code: str, rest: str) -> Observation:
    word = rest.partition(",")[0].strip().lower()
    verdict = {"fatal": "fatal", "non-fatal": "nonfatal", "nonfatal": "nonfatal"}.get(word, "")
    details = {"switch": switch}
    if match := _LINK.search(rest):
        details["link"] = match[1]
    return Observation("sxid", code, pci(address), _message(line), False, verdict, details)


def _off_bus(line: str, address: str) -> Observation:
    return Observation("fallen_off_bus", "fallen_off_bus", pci(address), _message(line))


def _message(line: str) -> str:
    return line.strip()[:MESSAGE_LIMIT]
