"""One node of the sandbox: a process group with the node agent as its leader, in the head's own session, so
that the rank server can put ranks into it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

import planaria
from planaria.node.agent import AgentConfig
from planaria.sandbox.gpu_tools import write_tools
from planaria.sandbox.job_folder import read_json, write_json

GPUS = 8
HEARTBEAT_AGE_SECONDS = 5.0
_MARKS = ("broken", "bad", "stuck")
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ")


class NodeStage(StrEnum):
    """BOOTING until the agent says it is ready; DEAD when its processes are gone."""

    BOOTING = "booting"
    UP = "up"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class NodePlace:
    """The files of one node in nodes/<instance id>."""

    folder: Path

    @property
    def kernel_log(self) -> Path:
        return self.folder / "kernel.log"

    @property
    def metadata(self) -> Path:
        """{metadata item: document}, what EC2 would say at 169.254.169.254."""
        return self.folder / "imds.json"

    @property
    def hardware(self) -> Path:
        """{"gpus": {"expected", "seen"}, "broken", "bad", "stuck": bool}. broken: a lost GPU stays so over
        reboots. bad: all GPUs are there, and one fails under load. stuck: no reset helps, a reboot does."""
        return self.folder / "hardware.json"

    @property
    def tools(self) -> Path:
        """The programs that this node alone has."""
        return self.folder / "bin"

    @property
    def heartbeat(self) -> Path:
        return self.folder / "agent.json"

    @property
    def log(self) -> Path:
        return self.folder / "agent.log"

    def set_gpus(self, seen: int, **marks: bool) -> None:
        """marks: broken, bad and stuck; what is not given stays as it was."""
        kept = {name: bool((read_json(self.hardware) or {}).get(name, False)) for name in _MARKS}
        write_json(self.hardware, {"gpus": {"expected": GPUS, "seen": seen}, **kept, **marks})

    def marked(self, name: str) -> bool:
        return bool((read_json(self.hardware) or {}).get(name, False))

    def boot_hardware(self) -> None:
        """A reboot brings a lost GPU back, unless it is broken."""
        self.set_gpus(GPUS - 1 if self.marked("broken") else GPUS, stuck=False)
        write_tools(self.tools, self.hardware)


class NodeProcess:
    """Start, watch and kill the process group of one instance. Not thread-safe: its owner locks."""

    def __init__(self, folder: Path, jobs: Path, instance_id: str, name: str, address: str) -> None:
        self.place = NodePlace(folder)
        self.instance_id = instance_id
        self.name = name
        self.address = address
        self.boot_id = ""
        self.stage = NodeStage.DEAD
        self.environment: Mapping[str, str] = {}
        """Endpoint and credentials of this boot, also for programs that run beside the agent."""
        self._jobs = jobs
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def leader(self) -> int | None:
        """Pid of the group's leader while the node is up; ranks may join its group."""
        return self._process.pid if self._process is not None and self.stage is NodeStage.UP else None

    def boot(self, ready_at: float, bus: str, source: str, environment: Mapping[str, str]) -> None:
        """Start a new boot, which ends at ready_at (epoch seconds). What ran before is killed.

        The agent's process is there during the boot, so that loading it is part of the boot time.
        """
        self.kill()
        self.boot_id = str(uuid.uuid4())
        self.environment = dict(environment)
        self.place.boot_hardware()
        self.place.kernel_log.touch()
        config = AgentConfig(
            instance_id=self.instance_id,
            boot_id=self.boot_id,
            name=self.name,
            address=self.address,
            source=source,
            bus=bus,
            state_dir=str(self.place.folder),
            kernel_log=str(self.place.kernel_log),
            kernel_log_offset=self.place.kernel_log.stat().st_size,
            metadata=str(self.place.metadata),
            jobs=str(self._jobs),
            hardware=str(self.place.hardware),
            ready_at=ready_at,
        )
        path = self.place.folder / "agent-config.json"
        write_json(path, asdict(config))
        reading, self._lifeline = os.pipe()
        try:
            with self.place.log.open("ab") as log:
                program = [sys.executable, "-m", "planaria.node.agent"]
                self._process = subprocess.Popen(
                    [*program, "--config", str(path), "--lifeline", str(reading)],
                    cwd=self.place.folder,
                    env=child_environment() | dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(reading,),
                    process_group=0,
                )
        finally:
            os.close(reading)
        self.stage = NodeStage.BOOTING

    def refresh(self) -> NodeStage:
        """Look again: has the boot ended, has the leader died? A node whose agent died is killed whole."""
        if self._process is None:
            return self.stage
        # The leader stays a zombie until the group is killed, so its pid cannot mean another group yet.
        if os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            self.kill()
        elif self.stage is NodeStage.BOOTING:
            beat = read_json(self.place.heartbeat)
            if beat and beat.get("boot_id") == self.boot_id and beat.get("state") == "ready":
                self.stage = NodeStage.UP
        return self.stage

    def heartbeat_age(self) -> float | None:
        """Seconds since the agent of this boot wrote its heartbeat; None when it never did."""
        beat = read_json(self.place.heartbeat)
        if beat is None or beat.get("boot_id") != self.boot_id:
            return None
        return time.time() - float(beat.get("at", 0.0))

    def kill(self) -> None:
        """SIGKILL to the whole group at once; harmless when nothing runs."""
        self.stage = NodeStage.DEAD
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        os.close(self._lifeline)

    def say(self, line: str) -> None:
        """One line in the node's kernel log."""
        with self.place.kernel_log.open("a", encoding="utf-8") as log:
            log.write(line.rstrip("\n") + "\n")

    def set_metadata(self, item: str, document: Mapping[str, object]) -> None:
        write_json(self.place.metadata, {**(read_json(self.place.metadata) or {}), item: dict(document)})

    def document(self) -> dict[str, object]:
        """For `sandbox status`."""
        age = self.heartbeat_age()
        return {
            "name": self.name,
            "address": self.address,
            "stage": str(self.stage),
            "boot_id": self.boot_id,
            "pid": self._process.pid if self._process else None,
            "heartbeat_age": None if age is None else round(age, 2),
            "hardware": read_json(self.place.hardware) or {},
        }


def child_environment() -> dict[str, str]:
    """The little that a child of the sandbox gets from its surroundings; Planaria is importable in it."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return kept | {"PYTHONPATH": str(Path(planaria.__file__).resolve().parent.parent)}
