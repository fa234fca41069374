"""The checks of a node: what each part finds, what it cannot know, and that none of them can hang."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planaria.node import check, check_command, deep_check, parts
from planaria.node.deep_check import BRIEF, PARTS, Bench, Load, diagnosis
from planaria.node.figures import Figures, figures_of, own_instance_type
from planaria.node.parts import Part, State, verdict

P5 = figures_of("p5.48xlarge")
TINY = Load(disk=2**21, memory=2**21, rounds=1000, stress_seconds=0.0)
Tool = Callable[[str, str], Path]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """(name, shell text) -> a program that PATH finds; no other tool is there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(deep_check, "NCCL_FOLDERS", ())
    monkeypatch.setattr(deep_check, "EFA_FOLDERS", ())

    def make(name: str, text: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    return make


def bench(folder: Path, figures: Figures | None = P5) -> Bench:
    return Bench(folder, figures, TINY)


# --- the verdict -----------------------------------------------------------------------------------


def test_what_could_not_be_checked_is_told_and_is_no_failure() -> None:
    found = verdict([Part("disk", State.PASSED), Part("gpus", State.UNKNOWN, "dcgmi is not installed")])
    assert found["passed"] is True and found["reason"] == "not checked: gpus (dcgmi is not installed)"
    assert [part["state"] for part in found["parts"]] == ["passed", "unknown"]


def test_one_failed_part_is_enough() -> None:
    found = verdict(
        [Part("disk", State.UNKNOWN, "?"), Part("gpus", State.FAILED, "GPU 3"), Part("efa", State.PASSED)]
    )
    assert (found["passed"], found["reason"]) == (False, "gpus: GPU 3")
    assert verdict([])["passed"] is True


def test_a_defect_of_a_part_says_nothing_of_the_node() -> None:
    def defect() -> Any:
        raise ZeroDivisionError("x")

    part = parts.timed("gpus", defect)
    assert (part.state, part.reason) == (State.UNKNOWN, "ZeroDivisionError: x")


# --- by this module --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["disk", "memory", "processors"])
def test_a_sound_machine_passes(name: str, tmp_path: Path) -> None:
    assert PARTS[name](bench(tmp_path)) == (State.PASSED, "")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_gives_back_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Rotten:
        """Flips a bit of the first block that is read."""

        def __init__(self, file: Any) -> None:
            self._file, self._rotten = file, False

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def __enter__(self) -> "Rotten":
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def read(self, size: int) -> bytes:
            block = bytes(self._file.read(size))
            if block and not self._rotten:
                self._rotten = True
                return bytes([block[0] ^ 1]) + block[1:]
            return block

    real = deep_check.tempfile.TemporaryFile
    monkeypatch.setattr(deep_check.tempfile, "TemporaryFile", lambda **more: Rotten(real(**more)))
    state, reason = deep_check.try_disk(2**21, tmp_path)
    assert state is State.FAILED and "not all came back the same" in reason


def test_a_disk_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(deep_check.os, "fsync", no)
    assert deep_check.try_disk(2**21, tmp_path) == (
        State.FAILED, "the disk cannot be used: Input/output error",
    )  # fmt: skip


def test_a_full_disk_is_not_a_broken_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        f_bavail, f_frsize = 10, 4096

    monkeypatch.setattr(deep_check.os, "statvfs", lambda folder: Full)
    assert deep_check.try_disk(2**21, tmp_path)[0] is State.UNKNOWN


def test_a_processor_that_adds_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = iter(range(100))
    monkeypatch.setattr(deep_check.os, "sched_getaffinity", lambda pid: {0, 1, 2})
    monkeypatch.setattr(
        deep_check.hashlib, "pbkdf2_hmac", lambda *_: b"other" if next(sums) == 1 else b"right"
    )
    assert deep_check.try_processors(1, tmp_path) == (
        State.FAILED, "1 of 3 processors came to another sum",
    )  # fmt: skip


def test_a_child_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deep_check, "OWN_SECONDS", 0.2)
    monkeypatch.setattr(deep_check.sys, "executable", "/bin/sleep")
    monkeypatch.setattr(deep_check, "run", lambda command, seconds: parts.run(["/bin/sleep", "60"], seconds))
    began = time.monotonic()
    state, reason = deep_check.disk(bench(tmp_path))
    assert state is State.FAILED and "did not end" in reason and time.monotonic() - began < 10


def test_a_child_that_was_killed_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        deep_check, "run", lambda command, seconds: parts.run(["/bin/sh", "-c", "kill -9 $$"], seconds)
    )
    assert deep_check.memory(bench(tmp_path)) == (State.UNKNOWN, "it was killed by signal 9")


# --- the GPUs --------------------------------------------------------------------------------------


def result(status: str, **more: Any) -> dict[str, Any]:
    return {"gpu_ids": "3", "status": status, **more}


def answer(*results: dict[str, Any], title: str = "DCGM GPU Diagnostic") -> dict[str, Any]:
    tests = [{"name": "GPU Memory", "results": list(results)}]
    return {title: {"test_categories": [{"category": "Hardware", "tests": tests}]}, "metadata": {}}


@pytest.mark.parametrize(
    ("document", "state", "says"),
    [
        (answer(result("Pass"), result("Skip")), State.PASSED, ""),
        (answer(result("PASS")), State.PASSED, ""),
        (answer(result("Warn", warnings="a bit slow")), State.PASSED, ""),
        (answer(result("Pass"), result("Fail", warnings="ECC")), State.FAILED, "GPU Memory on GPU 3: ECC"),
        (answer(result("FAIL")), State.FAILED, "GPU Memory on GPU 3"),
        (
            answer(
                {
                    "entity_group": "GPU",
                    "entity_id": 5,
                    "status": "Fail",
                    "warnings": [{"warning": "bad row"}],
                },
                title="DCGM Diagnostic",
            ),
            State.FAILED,
            "GPU Memory on GPU 5: bad row",
        ),
        (answer(result("Skip"), result("Not Run")), State.UNKNOWN, "tried nothing"),
        ({"DCGM Diagnostic": {"runtime_error": "no GPU"}}, State.UNKNOWN, "gave no result"),
        ({}, State.UNKNOWN, "gave no result"),
    ],
)
def test_what_dcgm_says(document: dict[str, Any], state: State, says: str) -> None:
    found, reason = diagnosis(document)
    assert found is state and says in reason


def test_dcgm_is_asked_for_its_diagnosis(tool: Tool, tmp_path: Path) -> None:
    document = json.dumps(answer(result("Fail", warnings="row 7")))
    tool("dcgmi", f"""[ "$*" = "diag -r 3 -j" ] && echo 'starting...' && echo '{document}' && exit 226""")
    assert PARTS["gpus"](bench(tmp_path)) == (State.FAILED, "GPU Memory on GPU 3: row 7")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("echo 'Error: unable to connect to the host engine'; exit 1", "unable to connect"),
        ("exit 3", "it said nothing"),
        ("echo '{ not json'", "{ not json"),
    ],
)
def test_a_diagnosis_that_does_not_run_is_unknown(tool: Tool, tmp_path: Path, text: str, says: str) -> None:
    tool("dcgmi", text)
    state, reason = PARTS["gpus"](bench(tmp_path))
    assert state is State.UNKNOWN and says in reason


def test_a_diagnosis_that_hangs_is_a_finding(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deep_check, "GPU_SECONDS", 0.3)
    tool("dcgmi", "sleep 60")
    state, reason = PARTS["gpus"](bench(tmp_path))
    assert state is State.FAILED and "did not end" in reason


# --- links, network, load --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "figures", "state", "says"),
    [
        ("Out of bounds values : 0 OK\n# Avg bus bandwidth    : 479.81", P5, State.PASSED, ""),
        ("Out of bounds values : 0 OK\n# Avg bus bandwidth    : 212.3", P5, State.FAILED, "212.3 GB/s"),
        ("Out of bounds values : 12 FAILED\n# Avg bus bandwidth : 480", P5, State.FAILED, "12 wrong values"),
        ("Out of bounds values : 0 OK\n# Avg bus bandwidth    : 3.1", None, State.UNKNOWN, "3.1 GB/s"),
        ("Test CUDA failure common.cu:892 'no device'", P5, State.UNKNOWN, "no device"),
    ],
)
def test_the_links(
    tool: Tool, tmp_path: Path, text: str, figures: Figures | None, state: State, says: str
) -> None:
    tool("all_reduce_perf", f"cat <<'END'\n# {text}\nEND")
    found, reason = PARTS["nvlink"](bench(tmp_path, figures))
    assert found is state and says in reason


def test_all_gpus_of_the_type_take_part(tool: Tool, tmp_path: Path) -> None:
    tool("all_reduce_perf", '[ "$6" = 8 ] && echo "# Avg bus bandwidth : 500"')
    assert PARTS["nvlink"](bench(tmp_path)) == (State.PASSED, "")


@pytest.mark.parametrize(
    ("code", "state"), [(0, State.PASSED), (2, State.FAILED), (1, State.UNKNOWN), (3, State.UNKNOWN)]
)
def test_the_load(tool: Tool, tmp_path: Path, code: int, state: State) -> None:
    tool("stress-ng", f"echo 'stress-ng: info: cpu failed'; exit {code}")
    assert PARTS["stress"](bench(tmp_path))[0] is state


def ports(folder: Path, *states: str) -> Path:
    for number, state in enumerate(states):
        port = folder / f"rdmap{number}" / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
    return folder


@pytest.mark.parametrize(
    ("states", "pingpong", "state", "says"),
    [
        ((), None, State.UNKNOWN, "no EFA device of at most 32"),
        (("4: ACTIVE", "1: DOWN"), "exit 0", State.FAILED, "1 of 2 devices are down: rdmap1"),
        (("4: ACTIVE",), None, State.UNKNOWN, "fi_pingpong is not installed"),
        (("4: ACTIVE",), "exit 0", State.PASSED, ""),
        (("4: ACTIVE",), "echo 'fi_getinfo(): -61'; exit 61", State.UNKNOWN, "-61"),
    ],
)
def test_the_network(
    tool: Tool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    states: tuple[str, ...],
    pingpong: str | None,
    state: State,
    says: str,
) -> None:
    monkeypatch.setattr(deep_check, "INFINIBAND", ports(tmp_path / "infiniband", *states))
    monkeypatch.setattr(deep_check, "_own_address", lambda: "10.0.0.1")
    if pingpong is not None:
        tool("fi_pingpong", pingpong)
    found, reason = PARTS["efa"](bench(tmp_path))
    assert found is state and says in reason


def test_a_machine_without_any_tool_passes_and_says_what_it_did_not_look_at(
    tool: Tool, tmp_path: Path
) -> None:
    found = check_command.deep(tmp_path / "none.json", bench(tmp_path))
    assert found["passed"] is True
    for name in ("stress", "efa", "nvlink", "gpus"):
        assert f"{name} (" in found["reason"]
    states = {part["name"]: part["state"] for part in found["parts"]}
    assert {name for name, state in states.items() if state == "passed"} == {
        "devices", "disk", "memory", "processors",
    }  # fmt: skip


def test_a_node_that_fails_the_light_check_is_not_loaded(tmp_path: Path) -> None:
    hardware = tmp_path / "hardware.json"
    hardware.write_text(json.dumps({"gpus": {"expected": 8, "seen": 7}}))
    found = check_command.deep(hardware, bench(tmp_path))
    assert (found["passed"], found["reason"]) == (False, "devices: 1 of 8 GPUs are missing")
    assert len(found["parts"]) == 1


# --- programs --------------------------------------------------------------------------------------


def test_a_program_that_leaves_a_grandchild_does_not_hold_up_the_report() -> None:
    began = time.monotonic()
    ended = parts.run(["/bin/sh", "-c", "sleep 5 & echo done"], 5.0)
    assert (ended.code, ended.tail) == (0, "done") and time.monotonic() - began < 4


def test_a_program_that_ignores_signals_is_killed() -> None:
    ended = parts.run(["/bin/sh", "-c", "trap '' TERM; echo begun; while :; do :; done"], 0.3)
    assert (ended.code, ended.tail) == (None, "begun")


def test_a_tool_is_found_in_the_newest_folder(tmp_path: Path, tool: Tool) -> None:
    for version in ("12.4", "12.8"):
        path = tmp_path / f"cuda-{version}" / "bin" / "all_reduce_perf"
        path.parent.mkdir(parents=True)
        path.write_text("")
        path.chmod(0o755)
    assert parts.find("all_reduce_perf", (f"{tmp_path}/cuda-*/bin",)).endswith("12.8/bin/all_reduce_perf")
    assert parts.find("all_reduce_perf", (f"{tmp_path}/none*",)) == ""


# --- the command -----------------------------------------------------------------------------------


def call(*arguments: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "planaria.node.check_command", "--state-dir", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=os.environ)
    return dict(json.loads(done.stdout))


def test_the_command_prints_one_document(tmp_path: Path) -> None:
    hardware = tmp_path / "hardware.json"
    hardware.write_text(json.dumps({"gpus": {"expected": 8, "seen": 8}}))
    assert call("--hardware", str(hardware), folder=tmp_path) == {"passed": True, "reason": ""}
    deep = call("--suite", "deep", "--brief", "--hardware", str(hardware), folder=tmp_path)
    assert {"disk", "memory", "processors"} <= {p["name"] for p in deep["parts"] if p["state"] == "passed"}


def test_two_deep_checks_at_once_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[float] = []

    def slow(_: Bench) -> list[Part]:
        runs.append(time.monotonic())
        time.sleep(0.3)
        return [Part("gpus", State.FAILED, f"run {len(runs)}")]

    monkeypatch.setattr(deep_check, "deep", slow)
    found: list[dict[str, Any]] = []
    ask = lambda: found.append(check_command.deep_once(tmp_path / "none.json", bench(tmp_path)))  # noqa: E731
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 1 and [one["reason"] for one in found] == ["gpus: run 1"] * 3
    ask()
    assert len(runs) == 2, "a later one is a check of its own"


def test_figures_have_their_source() -> None:
    for family in ("p4d", "p4de", "p5", "p5e", "p5en", "p6-b200"):
        found = figures_of(f"{family}.48xlarge")
        assert found is not None and found.gpus == 8 and found.nvlink_gbs >= 200 and found.sources
    assert figures_of("t3.micro") is figures_of("") is None
    assert isinstance(own_instance_type(), str) and BRIEF.disk < Load().disk


def test_missing_efa_devices_fail_the_light_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = tmp_path / "infiniband"
    for number, driver in enumerate(("efa", "efa", "mlx5_core")):
        place = tmp_path / "pci" / f"0000:0{number}:00.0"
        place.mkdir(parents=True)
        (tmp_path / "drivers" / driver).mkdir(parents=True, exist_ok=True)
        (place / "driver").symlink_to(tmp_path / "drivers" / driver)
        (devices / f"rdmap{number}").mkdir(parents=True)
        (devices / f"rdmap{number}" / "device").symlink_to(place)
    monkeypatch.setattr(check, "INFINIBAND", devices)
    hardware = tmp_path / "hardware.json"
    for expected, answer in ((2, (True, "")), (4, (False, "2 of 4 EFA devices are missing"))):
        hardware.write_text(json.dumps({"efa": {"expected": expected}}))
        assert check.light(hardware, tmp_path) == answer
    hardware.write_text(json.dumps({"efa": {"expected": 4, "seen": 4}}))
    assert check.light(hardware, tmp_path) == (True, "")
    monkeypatch.setattr(check, "INFINIBAND", tmp_path / "none")
    hardware.write_text(json.dumps({"efa": {"expected": 1}}))
    assert check.light(hardware, tmp_path) == (False, "1 of 1 EFA devices are missing")
    hardware.write_text(json.dumps({"efa": {"expected": "many"}}))
    assert check.light(hardware, tmp_path)[0] is False
