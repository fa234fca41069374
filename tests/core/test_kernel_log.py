import csv
from pathlib import Path

import pytest

from planaria.core.classify import observed
from planaria.core.decision import decide
from planaria.core.kernel_log import MESSAGE_LIMIT, KernelLog, pci, read
from planaria.core.node import NodeView
from planaria.core.policy import Policy

with (Path(__file__).parents[1] / "kernel_log" / "lines.csv").open() as table:
    LINES = list(csv.DictReader(table))


@pytest.mark.parametrize("row", LINES, ids=[f"{row['kind']}-{row['meaning']}" for row in LINES])
def test_line(row: dict[str, str]) -> None:
    seen = read(row["line"])
    assert seen is not None
    assert (seen.kind, seen.meaning, seen.pci) == (row["kind"], row["meaning"], row["pci"])
    assert seen.injected == (row["injected"] == "yes")
    assert decide(observed(seen), None, Policy.default()).action == row["action"]
    assert KernelLog().feed(row["line"]) == seen


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01",
        "the user typed NVRM: Xid",
        "NVRM: Xid (PCI:0000:66:00):",
        "nvidia-nvswitch0: SXid ()",
        "EXT4-fs (nvme1n1): mounted filesystem",
        "NVRM: GPU at PCI:0000:66:00: GPU-0a0a0a0a",
    ],
)
def test_noise(line: str) -> None:
    assert read(line) is None
    assert KernelLog().feed(line) is None


def test_details() -> None:
    details = [seen.details if (seen := read(row["line"])) else {} for row in LINES]
    assert details[0] == {"pid": "12345"}
    assert details[3] == {"gpc": "1", "tpc": "3", "sm": "0"}
    assert details[4] == {"link": "14"}
    assert details[5] == {"recovery": "GPU Reset Required"}
    assert details[10]["unit"] == "NETIR_LINK_EVT"
    assert (details[10]["link"], details[10]["interrupt"]) == ("9", "0x025525c6")
    assert details[13] == {"pid": "1797828", "name": "pt_main_thread"}
    assert details[17] == {"switch": "0", "link": "28"}


def test_the_cause_of_a_cleanup_is_named() -> None:
    seen = read("NVRM: Xid (PCI:0000:66:00): 45, pid=1, name=x, Ch 00000008, caused by previous Xid 149")
    assert seen is not None
    assert seen.details["cause"] == "149"


FALLEN = [
    "NVRM: The NVIDIA GPU 0000:b3:00.0",
    "NVRM: (PCI ID: 10de:26b5) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
]


def test_a_gpu_that_falls_off_the_bus_without_an_xid() -> None:
    log = KernelLog()
    noise = ["[ 1.0] usb 1-1: new device", "NVRM: Xid (PCI:0000:66:00): 13, pid=1"]
    seen = [log.feed(line) for line in (FALLEN[0], noise[0], FALLEN[1], noise[1], FALLEN[2])]
    assert [s.kind for s in seen if s] == ["xid", "fallen_off_bus"]
    assert seen[4] is not None
    assert (seen[4].pci, seen[4].code) == ("0000:b3:00", "fallen_off_bus")
    assert "not responding" in seen[4].message


def test_a_tail_without_its_head_is_nothing() -> None:
    assert KernelLog().feed(FALLEN[2]) is None
    log = KernelLog()
    lines = [FALLEN[0], *["noise"] * 9, FALLEN[2]]
    assert [log.feed(line) for line in lines] == [None] * len(lines)


def test_the_echo_of_an_xid_79_is_told_once() -> None:
    log = KernelLog()
    xid, echo = LINES[0]["line"], "NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus."
    other = "NVRM: GPU 0000:b4:00.0: GPU has fallen off the bus."
    assert [bool(log.feed(line)) for line in (xid, echo, other, echo)] == [True, False, True, False]
    assert [bool(log.feed(line)) for line in [*["noise"] * 12, echo]][-1]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0000:66:00", "0000:66:00"),
        ("0000:66:00.0", "0000:66:00"),
        ("00000000:66:00.0", "0000:66:00"),
        ("66:00.0", "0000:66:00"),
        (" 0008:0A:00 ", "0008:0a:00"),
        ("10000:0a:00.0", "10000:0a:00"),
        ("what", "what"),
        ("", ""),
    ],
)
def test_one_spelling_of_pci(text: str, wanted: str) -> None:
    assert pci(text) == wanted


def test_exceptions_by_instance_family() -> None:
    policy = Policy(gpu_reset=True)
    seen = read("NVRM: Xid (PCI:0000:66:00): 64, pid=1")
    assert seen is not None
    actions = [
        decide(observed(seen, node.family), node, policy).action
        for node in (NodeView("i-0aaaa", instance_type=t) for t in ("p4d.24xlarge", "p5.48xlarge", ""))
    ]
    assert actions == ["REBOOT", "RESET", "RESET"]


def test_a_long_line_is_cut() -> None:
    seen = read("NVRM: Xid (PCI:0000:66:00): 13, " + "x" * 10_000)
    assert seen is not None
    assert len(seen.message) == MESSAGE_LIMIT


def test_the_shared_samples() -> None:
    samples = Path(__file__).parents[2].parent / "shared" / "kernel_log" / "samples.log"
    if not samples.exists():
        pytest.skip("no shared samples here")
    log = KernelLog()
    codes = [seen.meaning for line in samples.read_text().splitlines() if (seen := log.feed(line))]
    assert codes == [
        "79",
        "13",
        "74",
        "154/reset",
        "149/fatal",
        "109",
        "94",
        "abc",
        "24007/fatal",
        "12028/nonfatal",
    ]
