import csv
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.core.classify import observed
from planaria.core.decision import decide
from planaria.core.kernel_log import MESSAGE_LIMIT, KernelLog, loaded, pci, read
from planaria.core.node import NodeView
from planaria.core.policy import Policy

with (Path(__file__).parents[1] / "kernel_log" / "lines.csv").open() as table:
    LINES = list(csv.DictReader(table))

SXID = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0)"


def holding(text: str) -> dict[str, str]:
    """The details of the first of the lines that holds this text."""
    row = next(row for row in LINES if text in row["line"])
    seen = read(row["line"], row["driver"])
    assert seen is not None
    return seen.details


@pytest.mark.parametrize("row", LINES, ids=[f"{n}-{row['meaning']}" for n, row in enumerate(LINES, 2)])
def test_line(row: dict[str, str]) -> None:
    seen = read(row["line"], driver=row["driver"])
    assert seen is not None
    assert (seen.kind, seen.meaning, seen.pci) == (row["kind"], row["meaning"], row["pci"])
    assert seen.injected == (row["injected"] == "yes")
    node = NodeView("i-0aaaa", instance_type=f"{row['family']}.48xlarge" if row["family"] else "")
    assert decide(observed(seen, node.family), node, Policy.default()).action == row["action"]
    assert KernelLog().feed(row["line"], driver=row["driver"]) == seen


def test_every_sort_of_line_is_there() -> None:
    """What the drivers are known to write; a line that is lost from the table is missed here."""
    lines = "\n".join(row["line"] for row in LINES)
    for shape in (
        "pid='<unknown>'",
        "name=<unknown>",
        "GPU-I:05",
        "(PCI:0000:b3:00.0)",
        "(PCI:0000:b3:00)",
        "abc",
    ):
        assert shape in lines
    known = {(row["kind"], row["meaning"].partition("/")[0], row["driver"][:3]) for row in LINES}
    for xid in ("144", "145", "149"):
        assert (("xid", xid, "580") in known) or (("xid", xid, "575") in known)
    assert {word for row in LINES if row["meaning"].startswith("154/") for word in [row["meaning"][4:]]} == {
        "none",
        "reset",
        "reboot",
    }
    assert {row["source"] for row in LINES} == {
        line.split("|")[1].strip()
        for line in (Path(__file__).parents[1] / "kernel_log" / "README.md").read_text().splitlines()
        if line.startswith("| ") and "source" not in line
    }


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
        "NVRM: Xid : 32, pid=2280636",
        "NVRM: Xid error: xyz, invalid data",
        f"{SXID}: 12033, Severity 1 Engine instance 00 Sub-engine instance 00",
        f"{SXID}: 12028, Data {{0x00140004, 0x00100000, 0x00140004}}",
        "NEURON_HW_ERR=",
    ],
)
def test_noise(line: str) -> None:
    assert read(line) is None
    assert KernelLog().feed(line) is None


def test_details() -> None:
    assert holding("79, pid=12345") == {"pid": "12345"}
    assert holding("(GPC 1, TPC 3, SM 0)") == {"gpc": "1", "tpc": "3", "sm": "0"}
    assert holding("on link 14") == {"link": "14"}
    assert holding("0x1 (GPU Reset Required)") == {"recovery": "GPU Reset Required"}
    assert holding("pt_main_thread") == {"pid": "1797828", "name": "pt_main_thread"}
    assert holding("GPU-I:01 GPU-CI:02")["instance"] == "GPU-I:01 GPU-CI:02"
    assert holding("24007") == {"switch": "0", "link": "28"}
    assert holding("SRAM_UNCORRECTABLE_ERROR instance-id") == {
        "nd-id": "0",
        "nc-id": "0",
        "serial-num": "19fcda00f5ff6eb9",
        "action": "TERMINATE_INSTANCE",
    }


def test_details_of_nvlink5() -> None:
    found = holding("NETIR_LINK_EVT  Fatal   XC0 i0 Link 09")
    assert (found["unit"], found["link"], found["interrupt"]) == ("NETIR_LINK_EVT", "9", "0x025525c6")
    assert found["row"].startswith("nvlink5.csv line ")
    assert found["investigate"] == "INVESTIGATE_PEER_DEVICE"
    found = holding("ray::WorkerDict")
    assert (found["pid"], found["name"], found["unit"]) == ("876767", "ray::WorkerDict", "RLW_RXPIPE")
    assert holding("NVLPW_CTRL")["undecoded"] == "the line has no status words"
    assert "no row" in holding("TREX_ERR")["undecoded"]


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


def test_where_a_fault_of_several_lines_began() -> None:
    log = KernelLog()
    for line in (FALLEN[0], "noise", FALLEN[1]):
        log.feed(line)
        assert log.began == 0
    assert log.feed(FALLEN[2]) is not None
    assert log.began == 3
    log.feed("NVRM: Xid (PCI:0000:66:00): 13, pid=1")
    assert log.began == 0


def test_the_head_that_is_told_on_two_lines_and_its_second_telling() -> None:
    log = KernelLog()
    lines = [
        "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1e07) installed in this",
        "NVRM: system has fallen off the bus and is not responding to commands.",
    ]
    assert [bool(log.feed(line)) for line in (*lines, *lines)] == [False, True, False, False]


def test_two_gpus_that_fall_off_at_once() -> None:
    other = FALLEN[0].replace("b3", "b4")
    log = KernelLog()
    lines = [FALLEN[0], other, FALLEN[1], FALLEN[1], FALLEN[2], FALLEN[2], FALLEN[2]]
    assert [seen.pci if (seen := log.feed(line)) else "" for line in lines] == [
        *[""] * 4,
        "0000:b3:00",
        "0000:b4:00",
        "",
    ]


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build", "570.158.01"),
        (
            "[ 9.5] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.105.08  Wed Oct 29 23:15:11",
            "580.105.08",
        ),
        ("NVRM: loading NVIDIA UNIX Open Kernel Module for aarch64  575.57", "575.57"),
        ("NVRM: loading something", ""),
        ("nvidia: loading out-of-tree module taints kernel.", ""),
    ],
)
def test_the_line_by_which_a_driver_loads(line: str, version: str) -> None:
    assert loaded(line) == version


def test_an_sxid_is_one_observation_over_its_three_lines() -> None:
    log = KernelLog()
    lines = [
        f"{SXID}: 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
        f"{SXID}: 12028, Severity 0 Engine instance 32 Sub-engine instance 00",
        f"{SXID}: 12028, Data {{0x00140004, 0x00100000, 0x00140004, 0x00000000}}",
    ]
    assert [seen.meaning if (seen := log.feed(line)) else "" for line in lines] == ["12028/nonfatal", "", ""]


def test_the_driver_is_asked_for_every_line_anew() -> None:
    line = "NVRM: Xid (PCI:0019:01:00): 145, RLW_SRC_TRACK Fatal XC1 i0 Link 12 (0x04000007 0x00000010 0x0)"
    log = KernelLog()
    meanings = [
        seen.meaning for driver in ("580.1", "570.1", "580.1", "", "new") if (seen := log.feed(line, driver))
    ]
    assert meanings == ["145/reset", "145/fatal", "145/reset", "145/reset", "145/reset"]


def test_a_tail_without_its_head_is_nothing() -> None:
    assert KernelLog().feed(FALLEN[2]) is None
    log = KernelLog()
    lines = [FALLEN[0], *["noise"] * 9, FALLEN[2]]
    assert [log.feed(line) for line in lines] == [None] * len(lines)


def test_the_echo_of_an_xid_79_is_told_once() -> None:
    log = KernelLog()
    xid = "NVRM: Xid (PCI:0000:b3:00.0): 79, pid=12345, GPU has fallen off the bus."
    echo = "NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus."
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
        "149/reset",
        "109",
        "94",
        "abc",
        "24007/fatal",
        "12028/nonfatal",
    ]


COLOURED = (
    "\x1b[32m[  123.456789] \x1b[0m\x1b[33mNVRM: \x1b[0m\x1b[31mXid (PCI:0000:b3:00): 79, pid=1, GPU has"
    " fallen off the bus.\x1b[0m"
)


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        (COLOURED, "79"),
        (
            "NVRM: Xid (PCI:0000:b3:00): \x1b[31m154, changed to 0x2\x1b[0m (Node Reboot Required)",
            "154/reboot",
        ),
        (
            "\x1b]8;;http://x\x07nvidia-nvswitch3:\x1b]8;;\x1b\\ SXid (PCI:0000:05:00.0): 24007, Fatal",
            "24007/fatal",
        ),
    ],
)
def test_the_colours_of_dmesg_are_no_part_of_a_line(line: str, meaning: str) -> None:
    for seen in (read(line), KernelLog().feed(line)):
        assert seen is not None
        assert seen.meaning == meaning and "\x1b" not in seen.message
    assert (
        loaded("\x1b[33mNVRM: \x1b[0mloading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01")
        == "570.158.01"
    )


@pytest.mark.parametrize(
    ("told", "meaning"),
    [
        ('from 0x0 (None) to 0x2 (Node Reboot Required)","PRIORITY":"3","x":"(foo)"}', "154/reboot"),
        ("from 0x0 (None) to 0x1 (GPU Reset Required) (repeated 3 times)", "154/reset"),
        ("from 0x2 (Node Reboot Required) to 0x0 (None) (was: Node Reboot Required)", "154/none"),
        ("from 0x0 (None) to 0x2 (OS Reboot) (x)", "154/reboot"),
        ("from 0x0 (None) to 0x1 (PF FLR) (x)", "154/reset"),
        ("from 0x0 (None) to 0x2", "154/reboot"),
        ("from 0x0 (Node Reboot Required)", "154"),
        ("(Node Reboot Required)", "154"),
    ],
)
def test_the_verdict_of_an_xid_154_is_what_the_action_changed_to(told: str, meaning: str) -> None:
    seen = read(f"NVRM: Xid (PCI:0000:cb:00): 154, GPU recovery action changed {told}")
    assert seen is not None
    assert seen.meaning == meaning


words = st.sampled_from(
    [
        *[
            "NVRM: Xid (PCI:0000:66:00): ",
            "nvidia-nvswitch0: SXid (",
            "149, ",
            "154, ",
            "NEURON_HW_ERR=",
            "(",
            ")",
        ],
        *[
            "NETIR_LINK_EVT ",
            "Fatal ",
            "XC0 i1 ",
            "Link -1 ",
            "(0x025525c6 ",
            "0xffffffff)",
            "fallen off the bus",
        ],
        *[
            "NVRM: The NVIDIA GPU 0000:01:00.0",
            " and is not responding",
            "pid='<unknown>', ",
            "GPU-I:05",
            "\x00",
        ],
    ]
)


@settings(max_examples=300, deadline=None, database=None)
@given(
    st.lists(words | st.text(max_size=20), max_size=12).map("".join), st.text(max_size=12) | st.just("580.1")
)
def test_no_text_raises_and_every_observation_has_an_answer(line: str, driver: str) -> None:
    seen = read(line, driver=driver)
    assert KernelLog().feed(line, driver) == seen
    if seen is not None:
        assert seen.kind in ("xid", "sxid", "fallen_off_bus", "neuron")
        assert decide(observed(seen, "p6-b200"), None, Policy.default()).reason
        assert not seen.injected or decide(observed(seen), None, Policy.default()).action == "MONITOR"


@settings(max_examples=150, deadline=None, database=None)
@given(st.binary(max_size=4096))
def test_no_bytes_raise(content: bytes) -> None:
    log = KernelLog()
    for line in content.decode("utf-8", errors="replace").splitlines():
        log.feed(line)
