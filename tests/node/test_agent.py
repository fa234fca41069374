"""The agent as a whole."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from planaria.node.agent import Agent, AgentConfig
from planaria.node.delivery import Delivery
from planaria.node.probe import NODE_SIGNAL
from planaria.node.spool import Spool
from planaria.sandbox.node_process import child_environment
from planaria.sandbox.processes import members


class FakeProbe:
    detail_type = NODE_SIGNAL

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self.error: Exception | None = None

    def poll(self, now: float) -> list[dict[str, Any]]:
        if self.error is not None:
            raise self.error
        found, self.found = self.found, []
        return found


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def config(tmp_path: Path) -> AgentConfig:
    return AgentConfig(
        instance_id="i-1", boot_id="b-1", name="demo-1", address="10.0.0.1", source="planaria.node/x:i-1",
        bus="planaria-demo", state_dir=str(tmp_path), kernel_log=str(tmp_path / "kernel.log"),
        metadata=str(tmp_path / "imds.json"), jobs=str(tmp_path / "jobs"),
        hardware=str(tmp_path / "hardware.json"), ready_at=1003.0,
    )  # fmt: skip


def make(config: AgentConfig, *probes: FakeProbe) -> tuple[Agent, Spool, Clock]:
    """An agent that sends nothing: what it would send stays in the spool."""
    spool, clock = Spool(Path(config.state_dir) / "spool.jsonl"), Clock()
    sender = Delivery(lambda: pytest.fail("not started"), config.source, spool)
    return Agent(config, probes, sender, clock), spool, clock


def events(spool: Spool) -> list[tuple[str, dict[str, Any]]]:
    return list(spool._queue)


def test_ready_once_per_boot_and_probes_only_after_it(config: AgentConfig) -> None:
    probe = FakeProbe()
    agent, spool, clock = make(config, probe)
    probe.found = [{"kind": "xid"}]
    agent.step()
    assert events(spool) == []
    clock.now = 1003.0
    agent.step()
    agent.step()
    (first, ready), (second, found) = events(spool)
    assert (first, second) == ("Planaria Node Ready", "Planaria Node Signal")
    assert ready == {
        "version": 1, "instance_id": "i-1", "boot_id": "b-1", "seq": 1, "time": 1003.0,
        "name": "demo-1", "address": "10.0.0.1", "check": {"passed": True, "reason": ""},
    }  # fmt: skip
    assert (found["seq"], found["kind"], found["time"]) == (2, "xid", 1003.0)


def test_a_node_without_all_its_gpus_says_so(config: AgentConfig) -> None:
    Path(config.hardware).write_text('{"gpus": {"expected": 8, "seen": 6}}')
    agent, spool, clock = make(config)
    clock.now = 1003.0
    agent.step()
    assert events(spool)[0][1]["check"] == {"passed": False, "reason": "2 of 8 GPUs are missing"}


def test_a_blind_probe_does_not_blind_the_others(config: AgentConfig, tmp_path: Path) -> None:
    blind, seeing = FakeProbe(), FakeProbe()
    agent, spool, clock = make(config, blind, seeing)
    clock.now = 1003.0
    agent.step()
    blind.error, seeing.found = OSError("I/O error"), [{"kind": "xid"}]
    agent.step()
    assert len(events(spool)) == 2
    clock.now += 1
    agent.step()
    beat = json.loads((tmp_path / "agent.json").read_text())
    assert beat["probe_errors"]["FakeProbe"] == {"count": 2, "last": "OSError: I/O error"}


def test_the_heartbeat_comes_each_second_and_after_a_clock_jump(config: AgentConfig, tmp_path: Path) -> None:
    agent, _, clock = make(config)
    beats = []
    for now in (1000.0, 1000.5, 1001.0, 3000.0, 500.0, 500.5):
        clock.now = now
        agent.step()
        beats.append(json.loads((tmp_path / "agent.json").read_text())["at"])
    assert beats == [1000.0, 1000.0, 1001.0, 3000.0, 500.0, 500.0]


def test_numbers_go_on_within_a_boot_and_begin_anew_with_the_next(config: AgentConfig) -> None:
    agent, spool, clock = make(config)
    clock.now = 1003.0
    agent.step()
    clock.now = 1005.0
    agent.step()
    for boot, seq in (("b-1", 2), ("b-2", 1)):
        again, spool, clock = make(replace(config, boot_id=boot))
        clock.now = 1010.0
        again.step()
        assert events(spool)[-1][1]["seq"] == seq


def test_a_full_disk_stops_neither_probes_nor_events(config: AgentConfig, tmp_path: Path) -> None:
    probe = FakeProbe()
    agent, spool, clock = make(replace(config, state_dir=str(tmp_path / "gone")), probe)
    clock.now, probe.found = 1003.0, [{"kind": "xid"}]
    agent.step()
    assert [detail_type for detail_type, _ in events(spool)] == [
        "Planaria Node Ready",
        "Planaria Node Signal",
    ]


def start(path: Path, **settings: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "planaria.node.agent", "--config", str(path)],
        env=child_environment()
        | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_DEFAULT_REGION": "us-east-1"},
        **settings,
    )


def test_the_program_says_in_one_sentence_what_is_wrong(tmp_path: Path) -> None:
    agent = start(tmp_path / "nothing.json", stderr=subprocess.PIPE)
    _, said = agent.communicate(timeout=10)
    assert agent.returncode == 2
    assert b"nothing.json cannot be used" in said
    assert said.count(b"\n") == 1


def test_the_program_loads_no_torch_and_ends_on_sigterm(config: AgentConfig, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(asdict(replace(config, ready_at=0.0))))
    agent = start(path)
    deadline = time.monotonic() + 15
    while not (tmp_path / "spool.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "torch" not in Path(f"/proc/{agent.pid}/maps").read_text()
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(10) == 0
    ready = json.loads((tmp_path / "spool.jsonl").read_text())
    assert ready[0] == "Planaria Node Ready", "it waits on disk for the API"


def test_the_whole_group_ends_with_the_lifeline(config: AgentConfig, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(asdict(config)))
    reading, writing = os.pipe()
    program = [sys.executable, "-m", "planaria.node.agent", "--config", str(path), "--lifeline", str(reading)]
    agent = subprocess.Popen(program, env=child_environment(), pass_fds=(reading,), process_group=0)
    os.close(reading)
    rank = subprocess.Popen(["sleep", "60"], process_group=agent.pid)
    assert len(members(agent.pid)) == 2
    os.close(writing)
    assert agent.wait(10) == -signal.SIGKILL
    assert rank.wait(10) == -signal.SIGKILL
