"""classify-log, run as its user runs it: files of every prefix, stdin, odd bytes, and what it refuses."""

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planaria.cli import main
from planaria.sandbox.world import DEMO_CLUSTER
from tests.cli.conftest import Bench

KEYS = ["line", "kind", "code", "pci", "injected", "action", "reason", "rule", "sources"]
XID_79 = "NVRM: Xid (PCI:0000:b3:00.0): 79, pid=12345, GPU has fallen off the bus."
XID_48 = "NVRM: Xid (PCI:0000:66:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error"
NVLINK = "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i{} Link 09 (0x025525c6 0x00000000)"
SXID = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error"
FALLEN = [
    "NVRM: The NVIDIA GPU 0000:b3:00.0",
    "NVRM: (PCI ID: 10de:26b5) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kernel.log"
    lines = ["Linux version 6.8.0-1021-aws", XID_79, "usb 1-1: new device", XID_48, SXID, NVLINK.format(1)]
    path.write_text("\n".join(lines))
    return path


def found(bench: Bench, *words: str) -> list[dict[str, Any]]:
    answer = bench.run("classify-log", *words, "--json")
    assert (answer.status, answer.err) == (0, "")
    listed = answer.json
    assert isinstance(listed, list)
    return listed


def test_json(bench: Bench, log: Path) -> None:
    faults = found(bench, str(log), "--instance-type", "p5.48xlarge", "--driver", "570.158.01")
    assert all(list(fault)[: len(KEYS)] == KEYS for fault in faults)
    assert [
        (f["line"], f["kind"], f["code"], f["pci"], f["injected"], f["action"], f["rule"]) for f in faults
    ] == [
        (2, "xid", "79", "0000:b3:00", False, "REPLACE", "xid-79"),
        (4, "xid", "48", "0000:66:00", False, "REBOOT", "xid-48"),
        (5, "sxid", "12028", "0000:05:00", False, "MONITOR", "sxid-12028"),
        (6, "xid", "149", "0018:01:00", True, "MONITOR", "xid-149-injected"),
    ]
    assert all(fault["reason"] and fault["sources"] for fault in faults)
    assert "nvidia=RESTART_BM" in faults[0]["sources"]
    assert "single GPUs are not reset here, so the node reboots" in faults[1]["reason"]
    assert "injected" in faults[3]["reason"]


def test_a_table_for_people(bench: Bench, log: Path) -> None:
    log.write_text("\n".join([XID_48] * 3 + [XID_79]))
    answer = bench.run("classify-log", str(log))
    assert (answer.status, answer.err) == (0, "")
    row = next(line for line in answer.out.splitlines() if "Xid 48" in line).split()
    assert row[:4] == ["1", "3", "0000:66:00", "REBOOT"]
    assert "xid-48" in answer.out
    assert answer.out.splitlines()[-1] == "4 faults in 4 lines, 2 of them different: 1 REPLACE, 1 REBOOT."


def test_nothing_found_is_said_and_is_no_failure(bench: Bench, log: Path) -> None:
    log.write_text("EXT4-fs (nvme1n1): mounted filesystem\n")
    answer = bench.run("classify-log", str(log))
    assert (answer.status, answer.out, answer.err) == (0, "No fault found in 1 line.\n", "")
    assert found(bench, str(log)) == []
    log.write_bytes(b"")
    assert bench.run("classify-log", str(log)).out == "No fault found in 0 lines.\n"
    assert found(bench, str(log)) == []


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "[171167.620236] ",
        "[Wed Dec 11 13:23:01 2024] ",
        "Mar  4 05:06:07 ip-10-0-0-1 kernel: ",
        "Mar 04 05:06:07 ip-10-0-0-1 kernel: [  966.503025] ",
        "2026-03-04T05:06:07.123456+00:00 ip-10-0-0-1 kernel: ",
        "<3>1 2026-03-04T05:06:07Z ip-10-0-0-1 kernel - - - ",
        "<12>[38889.018130] ",
        "6,1234,987654321,-;",
        "kern  :err   : [171167.620236] ",
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_prefix_and_line_end(bench: Bench, log: Path, prefix: str, end: str) -> None:
    lines = ["first", *FALLEN, XID_48, SXID, NVLINK.format(0)]
    log.write_bytes("".join(f"{prefix}{line}{end}" for line in lines).encode())
    faults = found(bench, str(log), "--driver", "570.158.01")
    assert [(fault["line"], fault["kind"], fault["pci"]) for fault in faults] == [
        (2, "fallen_off_bus", "0000:b3:00"),
        (5, "xid", "0000:66:00"),
        (6, "sxid", "0000:05:00"),
        (7, "xid", "0018:01:00"),
    ]
    assert faults[3]["rule"] == "xid-149-reset"


def test_a_gpu_off_the_bus_on_one_line(bench: Bench, log: Path) -> None:
    lone = "NVRM: GPU 0000:b4:00.0: GPU has fallen off the bus."
    log.write_text(
        "\n".join(
            [XID_79, XID_79.replace("Xid (PCI:0000:b3:00.0): 79, pid=12345,", "GPU 0000:b3:00.0:"), lone]
        )
    )
    faults = found(bench, str(log))
    assert [(fault["line"], fault["kind"], fault["code"]) for fault in faults] == [
        (1, "xid", "79"),
        (3, "fallen_off_bus", "fallen_off_bus"),
    ]


def test_instance_type_and_driver_change_the_answer(bench: Bench, log: Path) -> None:
    def actions(line: str, *words: str) -> list[str]:
        log.write_text(line)
        return [f"{fault['action']} {fault['rule']}" for fault in found(bench, str(log), *words)]

    remap = "NVRM: Xid (PCI:0000:66:00): 74, NVLink: fatal error detected on link 6"
    assert actions(remap, "--instance-type", "p5.48xlarge") == ["REBOOT xid-74"]
    assert actions(remap, "--instance-type", "ml.p5.48xlarge") == ["REBOOT xid-74"]
    assert actions(remap, "--instance-type", "p6-b200.48xlarge") == ["MONITOR xid-74-not-on-b100"]
    line = "NVRM: Xid (PCI:0019:01:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x04000007 0x00000001)"
    assert actions(line, "--driver", "580.95.05") == ["REBOOT xid-145-reset"]
    assert actions(line, "--driver", "570.158.01") == ["MONITOR xid-145-nonfatal"]
    assert actions(line) == ["REBOOT xid-145-reset"]


def test_a_log_that_says_itself_which_driver_loads(bench: Bench, log: Path) -> None:
    line = "NVRM: Xid (PCI:0019:01:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x04000007 0x00000001)"
    loads = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build"
    log.write_text("\n".join([line, loads.format("570.158.01"), line, loads.format("580.95.05"), line]))
    faults = found(bench, str(log), "--driver", "575.57.08")
    assert [fault["rule"] for fault in faults] == ["xid-145-reset", "xid-145-nonfatal", "xid-145-reset"]


def test_the_policy_of_a_cluster_file(bench: Bench, log: Path, tmp_path: Path) -> None:
    cluster = yaml.safe_load(Path(DEMO_CLUSTER).read_text())
    answer = {"kind": "xid", "code": "79", "action": "DRAIN", "reason": "seen to go on", "families": ["p5"]}
    cluster["policy"] |= {"gpu_reset": True, "catalog": [answer]}
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(cluster))
    words = (str(log), "--cluster-file", str(file))
    here = found(bench, *words, "--instance-type", "p5.48xlarge")
    assert (here[0]["action"], here[0]["rule"], here[0]["reason"]) == (
        "DRAIN",
        "override-xid-79",
        "seen to go on",
    )
    assert here[0]["sources"] == ["cluster file"]
    assert (here[1]["action"], "reboots" in here[1]["reason"]) == ("RESET", False)
    assert found(bench, *words, "--instance-type", "p4d.24xlarge")[0]["rule"] == "xid-79"


def test_stdin(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"x\n{XID_79}\n".encode())))
    assert [(fault["line"], fault["code"]) for fault in found(bench, "-")] == [(2, "79")]


def test_as_a_program(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "planaria.cli", "classify-log", "-", "--json"],
        input=f"\xff\x00\n{XID_79}\n".encode("latin-1"),
        capture_output=True,
        cwd=Path(__file__).parents[2],
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert [fault["code"] for fault in json.loads(done.stdout)] == ["79"]


def test_a_coloured_log(bench: Bench, log: Path) -> None:
    log.write_text(
        f"\x1b[32m[ 12.5] \x1b[0m\x1b[33mNVRM: \x1b[0m\x1b[31m{XID_79.removeprefix('NVRM: ')}\x1b[0m\n"
    )
    assert [fault["code"] for fault in found(bench, str(log))] == ["79"]


def test_utf_16_is_refused_with_the_way_out(bench: Bench, log: Path) -> None:
    for encoding in ("utf-16-le", "utf-16-be"):
        log.write_bytes(f"\ufeff{XID_79}\n".encode(encoding))
        answer = bench.run("classify-log", str(log))
        assert (answer.status, answer.out) == (2, "")
        tool = "`iconv -f UTF-16 -t UTF-8 FILE | planaria classify-log -` reads it"
        assert answer.err == f"planaria: {log}: is text in UTF-16; {tool}.\n"
    log.write_bytes(f"\ufeff{XID_79}\n".encode())
    assert [fault["code"] for fault in found(bench, str(log))] == ["79"]


def test_the_journal_as_json(bench: Bench, log: Path) -> None:
    changed = (
        "NVRM: Xid (PCI:0000:cb:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)"
    )
    entries: list[Any] = [
        {"MESSAGE": "NVRM: Xid (PCI:0000:b3:00): 45, pid=1, name=p"},
        {"MESSAGE": changed, "x": "(foo)"},
        {"MESSAGE": list(f"\x1b[31m{XID_79}".encode())},  # as the journal writes what is no plain text
        *({"MESSAGE": message} for message in (None, 7, {"a": 1}, [256], ["a"])),
    ]
    log.write_text("".join(json.dumps(entry) + "\n" for entry in entries) + '{"MESSAGE": "' + XID_48)
    faults = found(bench, str(log))
    assert [(fault["line"], fault["code"], fault["verdict"]) for fault in faults] == [
        (1, "45", ""),
        (2, "154", "reboot"),
        (3, "79", ""),
        (9, "48", ""),
    ]
    assert (faults[0]["details"]["name"], faults[1]["message"]) == ("p", changed)


def test_what_a_log_says_does_not_reach_the_terminal_raw(bench: Bench, log: Path) -> None:
    log.write_text(
        "NVRM: Xid (PCI:0000:b3:00): a\x1bb\x07\x9b1m\x7f, pid=1\n"
        "NVRM: Xid (PCI:0000:b3:00): 154, x (\x9b31m\u202ey)"
    )
    shown = bench.run("classify-log", str(log)).out
    assert not [char for char in shown if not char.isprintable() and char != "\n"]
    assert "Xid a" in shown
    raw = bench.run("classify-log", str(log), "--json").out
    assert not [char for char in raw if not char.isprintable() and char != "\n"]
    assert any("\x9b" in fault["message"] for fault in json.loads(raw))


def test_a_line_that_never_ends_and_bytes_that_are_no_text(bench: Bench, log: Path) -> None:
    log.write_bytes(
        b"\xff\xfe\x00" * 300_000 + b"\n" + XID_79.encode() + b"\n" + b"A" * 200_000 + XID_48.encode()
    )
    assert [(fault["line"], fault["code"]) for fault in found(bench, str(log))] == [(2, "79")]
    log.write_bytes(XID_79.encode() + b"\xe9\x80\x1b[31m")
    (fault,) = found(bench, str(log))
    assert fault["message"].startswith(XID_79)


def test_many_faults_are_one_list(bench: Bench, log: Path) -> None:
    log.write_text("\n".join([XID_48] * 5000))
    faults = found(bench, str(log))
    assert [fault["line"] for fault in faults] == list(range(1, 5001))
    shown = bench.run("classify-log", str(log)).out
    assert "5,000 faults in 5,000 lines, 1 of them different: 1 REBOOT." in shown


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("/no/such/kernel.log",), "/no/such/kernel.log: cannot be read (No such file or directory)."),
        (("/",), "/: cannot be read (Is a directory)."),
        (("a\x00b",), "'a\\x00b': is no file name."),
        (
            ("-", "--instance-type", "H100"),
            "--instance-type must be an EC2 instance type such as p5.48xlarge, not 'H100'.",
        ),
        (
            ("-", "--instance-type", "p5.48xlarge; rm"),
            "--instance-type must be an EC2 instance type such as p5.48xlarge, not 'p5.48xlarge; rm'.",
        ),
        (("-", "--driver", "R570"), "--driver must be a version such as 570.158.01, not 'R570'."),
        (("-", "--driver", "57"), "--driver must be a version such as 570.158.01, not '57'."),
        (
            ("-", "--cluster-file", "/no/such/cluster.yaml"),
            "/no/such/cluster.yaml: cannot be read (No such file or directory).",
        ),
        ((), "Missing argument 'FILE'; `planaria classify-log --help` shows how it is used."),
        (
            ("-", "x"),
            "Got unexpected extra argument(s) (x); `planaria classify-log --help` shows how it is used.",
        ),
    ],
)
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_bad_input_is_one_sentence(
    bench: Bench,
    words: tuple[str, ...],
    sentence: str,
    more: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(XID_79.encode())))
    answer = bench.run("classify-log", *words, *more)
    assert (answer.status, answer.out, answer.err) == (2, "", f"planaria: {sentence}\n")


def test_a_compressed_log_is_refused_with_the_way_out(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "kern.log.2.gz"
    path.write_bytes(gzip.compress(XID_79.encode()))
    answer = bench.run("classify-log", str(path), "--json")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err == f"planaria: {path}: is no text; `zcat FILE | planaria classify-log -` reads it.\n"
    path.write_bytes(b"LPKSHHRH\x00\x00")
    assert "journalctl -k --file FILE | planaria" in bench.run("classify-log", str(path)).err


@settings(
    max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.binary(max_size=60) | st.sampled_from([XID_79.encode(), b"\n", NVLINK.encode()]), max_size=8)
)
def test_any_bytes_are_a_list(tmp_path: Path, capsys: pytest.CaptureFixture[str], parts: list[bytes]) -> None:
    path = tmp_path / "any.log"
    content = b"\n" + b"".join(parts)  # a file that begins as a compressed one is refused
    path.write_bytes(content)
    assert main(["classify-log", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for fault in json.loads(out):
        assert list(fault)[: len(KEYS)] == KEYS
        assert 1 <= fault["line"] <= content.count(b"\n") + 1


def test_the_shared_samples(bench: Bench) -> None:
    samples = Path(__file__).parents[2].parent / "shared" / "kernel_log" / "samples.log"
    if not samples.exists():
        pytest.skip("no shared samples here")
    faults = found(bench, str(samples), "--instance-type", "p6-b200.48xlarge", "--driver", "570.158.01")
    assert [fault["line"] for fault in faults] == list(range(1, 11))
    assert [fault["action"] for fault in faults] == [
        *[
            "REPLACE",
            "MONITOR",
            "MONITOR",
            "REBOOT",
            "REBOOT",
            "REBOOT",
            "MONITOR",
            "MONITOR",
            "REBOOT",
            "MONITOR",
        ]
    ]
