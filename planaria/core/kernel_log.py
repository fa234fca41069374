"""Kernel-log lines of the NVIDIA drivers and the Neuron runtime -> observations.

`read` understands one line; `KernelLog` also faults that spread over lines (a GPU that falls off the bus
without any Xid). Facts about the lines: NVIDIA's Xid documentation, the drivers' published sources, and
reports to NVSentinel (issue 155) and gpud (pull request 1209); tests/kernel_log/README.md names them.
"""

import re
from dataclasses import dataclass, field

from planaria.core import nvlink5
from planaria.core.ansi import SEQUENCE
from planaria.core.catalog import INJECTED

MESSAGE_LIMIT = 1024
LINE_LIMIT = 4096

_LOADED = re.compile(r"NVRM: loading NVIDIA UNIX .{0,40}?Kernel Module(?: for \w+)?\s+(\d{3,4}(?:\.\d+)+)")
# On a GPU that is partitioned (MIG) the parenthesis names the instance as well: (PCI:0000:01:00 GPU-I:05).
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)((?: GPU-C?I:\d+)*)\): ([^\s,]+)(?:, ?(.*))?")
_SXID = re.compile(r"nvidia-nvswitch(\d+):? SXid \((?:PCI:)?([0-9A-Fa-f:.]+)\): ([^\s,]+)(?:, ?(.*))?")
# The driver tells an SXid over several lines; only the first one says how bad it is.
_SXID_MORE = re.compile(r"Severity \d+ Engine instance|Data \{")
_OFF_BUS = re.compile(r"NVRM: GPU (?:at )?(?:PCI:)?([0-9A-Fa-f:.]+): GPU has fallen off the bus")
_OFF_BUS_HEAD = re.compile(r"NVRM: The NVIDIA GPU (?:PCI:)?([0-9A-Fa-f:.]+)")
_OFF_BUS_TAIL = "fallen off the bus and is not responding"
_NEURON = re.compile(r"\bNEURON_HW_ERR=(\w{1,60})")
_NEURON_DETAIL = re.compile(r"\b(nd-id|nc-id|serial-num|action)=(\S{1,60})")
_NVLINK5 = re.compile(
    r"(?:^|, )(\w{1,40}(?: \w{1,20})?)\s+(Fatal|Non-?fatal)\s+XC ?(\d+)\s+i ?(\d+)\s+Link\s+(-?\d+)"
    r"(?:\s+[(\[](0x[0-9A-Fa-f]{8})\b(?:\s+(0x[0-9A-Fa-f]{8})\b)?)?",
    re.IGNORECASE,
)
_PROCESS = re.compile(r"(?:^|, )(pid|name)='?([^',]*)'?")
_SM = re.compile(r"\(GPC (\d+), TPC (\d+), SM (\d+)\)")
_LINK = re.compile(r"\b[Ll]ink (-?\d+)")
# The line names the action before and the one since: `changed from 0x0 (None) to 0x2 (OS Reboot)`.
_RECOVERY = re.compile(r"\bto (0x[0-9A-Fa-f]{1,8})\b(?: ?\(([^()]*)\))?")
_CAUSE = re.compile(r"(?:[Dd]ue to|[Cc]aused by) previous Xid (\d+)")
_PCI = re.compile(r"(?:([0-9a-f]+):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?")

# The text of an Xid 154 names what the driver wants. R610 has other words for the same numbers, which are
# NVML's (nvmlDeviceGpuRecoveryAction), so a number stands in where the words are new.
_VERDICTS = {
    "none": "none",
    "gpu reset required": "reset",
    "drain and reset": "reset",
    # ADT resets, NVSentinel calls support; peer traffic of this GPU is over in any case.
    "drain p2p": "reset",
    "node reboot required": "reboot",
    "os reboot": "reboot",
    "pf flr": "reset",
}
_RECOVERY_ACTIONS = {0: "none", 1: "reset", 2: "reboot", 3: "reset", 4: "reset"}

WINDOW = 8
"""How many further lines a fault may spread over, and within which its echo counts as the same."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One fault that a kernel log shows.

    kind: `xid`, `sxid`, `fallen_off_bus` or `neuron`. code: the number as text (any text the driver wrote),
    the kind itself where there is none. pci: as `pci` gives it, "" when none is named. injected: NVLink 5
    marks injected errors. verdict: "" or what the line says about this occurrence: `fatal`, `nonfatal`,
    `none`, `reset`, `reboot`, `ignore`, `eval154`, `injected`. details: small texts for people (pid, name,
    link, status words; for NVLink 5 `row` of the decode table, or `undecoded`: why there is none).
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


def read(line: str, driver: str = "") -> Observation | None:
    """The observation that this one line holds, None when it holds none. The kernel's own lines are short.

    driver: the version of the NVIDIA driver that wrote the line, "" when unknown; it decides how Xid 144 to
    150 are read.
    """
    line = _plain(line)
    if "Xid (" in line:
        if match := _XID.search(line):
            return _xid(line, driver, *match.groups(default=""))
        if (match := _SXID.search(line)) and not _SXID_MORE.match(match[4] or ""):
            return _sxid(line, *match.groups(default=""))
    elif "fallen off the bus" in line:
        whole = _OFF_BUS_HEAD.search(line) if _OFF_BUS_TAIL in line else None
        if match := _OFF_BUS.search(line) or whole:
            return _off_bus(line, match[1])
    elif "NEURON_HW_ERR=" in line and (match := _NEURON.search(line)):
        return Observation("neuron", match[1], "", _message(line), details=dict(_NEURON_DETAIL.findall(line)))
    return None


def loaded(line: str) -> str:
    """The version of the NVIDIA driver that begins its work with this line, "" when none does."""
    match = _LOADED.search(line) if "NVRM: loading" in (line := _plain(line)) else None
    return match[1] if match else ""


def _plain(line: str) -> str:
    """The line without the colours of `dmesg --color=always`, cut where no kernel's own line ends."""
    if len(line) > LINE_LIMIT:
        line = line[:LINE_LIMIT]
    return SEQUENCE.sub("", line) if "\x1b" in line else line


class KernelLog:
    """Reads a log line by line and remembers what the next lines may belong to.

    began: how many lines before the one last fed its observation began (0: it is that one line).
    """

    def __init__(self) -> None:
        self.began = 0
        self._heads: dict[str, int] = {}
        self._lost: dict[str, int] = {}

    def feed(self, line: str, driver: str = "") -> Observation | None:
        """The observation that ends with this line. A fault that is told twice is told on once.

        driver: as for `read`, of this very line.
        """
        self.began = 0
        line = _plain(line)
        seen = read(line, driver) if "Xid" in line or "NVRM" in line or "NEURON_HW_ERR" in line else None
        if self._heads:
            self._heads = {gpu: age + 1 for gpu, age in self._heads.items() if age < WINDOW}
            if self._heads and seen is None and _OFF_BUS_TAIL in line:
                gpu = next(iter(self._heads))
                seen, self.began = _off_bus(f"GPU {gpu} has {_OFF_BUS_TAIL}", gpu), self._heads.pop(gpu)
        if seen is None and "NVIDIA GPU" in line and (match := _OFF_BUS_HEAD.search(line)):
            self._heads[match[1]] = 0
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


def _xid(line: str, driver: str, address: str, instance: str, code: str, rest: str) -> Observation:
    details = {key: value for key, value in _PROCESS.findall(rest) if value and value != "<unknown>"}
    if instance:
        details["instance"] = instance.strip()
    injected, verdict = False, ""
    if code == "154":
        if match := _RECOVERY.search(rest):
            words = (match[2] or "").strip()
            verdict = _VERDICTS.get(words.lower()) or _RECOVERY_ACTIONS.get(int(match[1], 16), "")
            details |= {"recovery": words} if words else {}
    elif "XC" in rest and (match := _NVLINK5.search(rest)):
        injected, verdict, said = _nvlink5(code, driver, *match.groups(default=""))
        details |= said
    elif "(GPC" in rest and (match := _SM.search(rest)):
        details |= {"gpc": match[1], "tpc": match[2], "sm": match[3]}
    elif match := _LINK.search(rest):
        details["link"] = match[1]
    if "previous Xid" in rest and (match := _CAUSE.search(rest)):
        details["cause"] = match[1]
    return Observation("xid", code, pci(address), _message(line), injected, verdict, details)


def _nvlink5(
    code: str, driver: str, unit: str, word: str, xc: str, flag: str, link: str, interrupt: str, status: str
) -> tuple[bool, str, dict[str, str]]:
    """(injected, verdict, details)."""
    details = {"unit": unit, "link": str(int(link)), "xc": xc, "interrupt": interrupt, "status": status}
    details = {key: value for key, value in details.items() if value}
    fatal, injected = word.lower() == "fatal", int(flag) != 0
    if injected:
        return True, INJECTED, details
    if code not in nvlink5.XIDS:
        return False, "fatal" if fatal else "nonfatal", details
    first, second = (int(text, 16) if text else None for text in (interrupt, status))
    decoded = nvlink5.decode(code, fatal, first, second, driver)
    found = {"row": decoded.row, "investigate": decoded.investigate, "undecoded": decoded.why}
    return False, decoded.verdict, details | {key: value for key, value in found.items() if value}


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
