"""The node agent: `python -m planaria.node.agent --config FILE [--lifeline FD]`.

Once per boot it checks the node and says that it is ready; then it polls its probes and sends what they
find. It decides nothing. AWS credentials and the endpoint come from the environment.

--lifeline is the reading end of a pipe: when its other end closes, the agent kills its whole process group,
itself included. The sandbox holds the other end, so that no node outlives it.
"""

import argparse
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planaria.core.errors import InvalidInput
from planaria.core.ports import Bus
from planaria.node import check
from planaria.node.checkpoint_probe import CheckpointProbe
from planaria.node.delivery import Delivery
from planaria.node.kernel_log_probe import KernelLogProbe
from planaria.node.probe import NODE_READY, Probe
from planaria.node.rank_probe import RankProbe
from planaria.node.spool import Spool
from planaria.node.spot_probe import SpotProbe

HEARTBEAT_SECONDS = 1.0
VERSION = 1


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """state_dir: where the agent keeps its heartbeat (agent.json), spool and memory. kernel_log, metadata,
    hardware, jobs: what the probes read (see there). kernel_log_offset: size of the kernel log at boot.
    ready_at: the boot takes until then (epoch seconds). source: this node's own event source."""

    instance_id: str
    boot_id: str
    name: str
    address: str
    source: str
    bus: str
    state_dir: str
    kernel_log: str
    metadata: str
    jobs: str
    hardware: str
    kernel_log_offset: int = 0
    ready_at: float = 0.0
    poll_seconds: float = 0.05

    @staticmethod
    def read(path: Path) -> "AgentConfig":
        """Raises InvalidInput with one sentence."""
        try:
            return AgentConfig(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise InvalidInput(f"the agent's configuration {path} cannot be used: {error}") from None


class Agent:
    """probes are polled in turn; a probe that raises is counted and polled again next time."""

    def __init__(
        self,
        config: AgentConfig,
        probes: Sequence[Probe],
        delivery: Delivery,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._probes = probes
        self._delivery = delivery
        self._now = now
        self._state_dir = Path(config.state_dir)
        self._seq = self._earlier_seq()
        self._ready = False
        self._beat_at = 0.0
        self._errors: dict[str, dict[str, Any]] = {}

    def step(self) -> None:
        """One round: announce the node if it is ready by now, poll every probe, keep the heartbeat."""
        now = self._now()
        if not self._ready and now >= self._config.ready_at:
            self._announce(now)
        if self._ready:
            for probe in self._probes:
                self._poll(probe, now)
        if not 0 <= now - self._beat_at < HEARTBEAT_SECONDS:
            self._beat(now)

    def _announce(self, now: float) -> None:
        passed, reason = check.light(Path(self._config.hardware), self._state_dir)
        self._ready = True
        self._beat(now)
        self._emit(
            NODE_READY,
            {
                "name": self._config.name,
                "address": self._config.address,
                "check": {"passed": passed, "reason": reason},
            },
            now,
        )

    def _poll(self, probe: Probe, now: float) -> None:
        try:
            details = probe.poll(now)
        except Exception as error:  # noqa: BLE001  one blind probe must not blind the others
            name = type(probe).__name__
            count = self._errors.get(name, {}).get("count", 0) + 1
            self._errors[name] = {"count": count, "last": f"{type(error).__name__}: {error}"[:300]}
            return
        for detail in details:
            self._emit(probe.detail_type, detail, now)

    def _emit(self, detail_type: str, detail: dict[str, Any], now: float) -> None:
        self._seq += 1
        who = {"version": VERSION, "instance_id": self._config.instance_id, "boot_id": self._config.boot_id}
        self._delivery.add(detail_type, {**who, "seq": self._seq, "time": now, **detail})

    def _beat(self, now: float) -> None:
        self._beat_at = now
        document = {
            "pid": os.getpid(),
            "boot_id": self._config.boot_id,
            "state": "ready" if self._ready else "booting",
            "at": now,
            "seq": self._seq,
            "probe_errors": self._errors,
            **self._delivery.state(),
        }
        try:
            scratch = self._state_dir / "agent.json.tmp"
            scratch.write_text(json.dumps(document), encoding="utf-8")
            os.replace(scratch, self._state_dir / "agent.json")
        except OSError:
            pass  # a full disk; the missing heartbeat is what others will see

    def _earlier_seq(self) -> int:
        """Numbers go on when the agent restarts within one boot."""
        try:
            beat = json.loads((self._state_dir / "agent.json").read_text(encoding="utf-8"))
            return int(beat["seq"]) if beat["boot_id"] == self._config.boot_id else 0
        except (OSError, ValueError, KeyError, TypeError):
            return 0


def make_bus(name: str) -> Bus:
    """EventBridge with short time-outs and no retries of its own: Delivery retries."""
    import botocore.session
    from botocore.config import Config

    from planaria.aws.eventbridge import EventBridgeBus

    config = Config(connect_timeout=2, read_timeout=5, retries={"total_max_attempts": 1})
    return EventBridgeBus(botocore.session.get_session().create_client("events", config=config), name)


def make_probes(config: AgentConfig) -> list[Probe]:
    return [
        KernelLogProbe(Path(config.kernel_log), config.kernel_log_offset),
        SpotProbe(Path(config.metadata)),
        RankProbe(Path(config.jobs), config.instance_id, Path(config.state_dir) / "reported.json"),
        CheckpointProbe(Path(config.jobs), config.instance_id),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="planaria.node.agent", description="Planaria's node agent.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--lifeline", type=int, help="file descriptor whose end is the node's end")
    chosen = parser.parse_args(arguments)
    try:
        config = AgentConfig.read(chosen.config)
    except InvalidInput as error:
        sys.stderr.write(f"{error}\n")
        return 2
    delivery = Delivery(
        lambda: make_bus(config.bus), config.source, Spool(Path(config.state_dir) / "spool.jsonl")
    )
    agent = Agent(config, make_probes(config), delivery)
    signal.signal(signal.SIGTERM, _leave)
    delivery.start()
    lifeline = [] if chosen.lifeline is None else [chosen.lifeline]
    try:
        while True:
            agent.step()
            if select.select(lifeline, [], [], config.poll_seconds)[0]:
                os.killpg(0, signal.SIGKILL)
    except KeyboardInterrupt:
        return 0
    finally:
        delivery.close(seconds=1.0)


def _leave(*_: object) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
