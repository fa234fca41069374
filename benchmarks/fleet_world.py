"""A deployed sandbox with a simulated fleet, in which many nodes are broken at once."""

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks import lambda_probe, observed, storms
from benchmarks.observed import Observer
from benchmarks.processor import Metronome, Used
from benchmarks.simulated_fleet import Fleet, Scheduler
from benchmarks.storms import Lanes
from planaria.core.incident import ACTIVE
from planaria.core.plans import facts
from planaria.core.table import Row
from planaria.sandbox import deploy
from planaria.sandbox.errors import SandboxError
from planaria.sandbox.kept_logs import LoggedWorld
from planaria.sandbox.world import ROOT, WorldConfig

CLUSTER = Path(__file__).with_name("fleet.yaml")
MACHINE = "heal_node"
PROBE = "probe.jsonl"
XID = "79"
OLD_SECONDS = 86_400.0  # the nodes have been up for a day: nothing is judged by the grace after a boot
POLL_SECONDS = 0.1
ENDS_SECONDS = 1.0
QUIET_SECONDS = 2.0

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Burst:
    """Faults of one moment and what came of them. Times are epoch seconds, nodes are instance ids.

    put: when each node's fault was put on the bus; isolated: when the scheduler had isolated it. ended: when
    the ledger had ended them all. rows: the nodes', once their sessions had ended. lines: of the probe.
    histories: of the executions. isolating, healing: processor seconds from the first fault until the last
    node was isolated, and until the last incident had ended. agent_events: what agents put on the bus beside
    the faults. slowdown: of fixed work beside it. load: of the machine at the end.
    """

    put: dict[str, float]
    isolated: dict[str, float]
    ended: float
    rows: dict[str, Row]
    lines: list[dict[str, Any]]
    histories: dict[str, list[dict[str, Any]]]
    isolating: Used
    healing: Used
    agent_events: int
    slowdown: float
    load: float

    @property
    def began(self) -> float:
        return min(self.put.values())

    @property
    def originals(self) -> dict[str, str]:
        """Replacement -> the node that it replaced."""
        return {str(row.get("replacement_id")): node for node, row in self.rows.items()}


@dataclass(frozen=True, slots=True)
class HeldBurst:
    """Faults of which the breaker let only some through. seconds: until every fault had its outcome."""

    outcomes: dict[str, int]
    seconds: float
    isolated: int
    lines: list[dict[str, Any]]


class FleetWorld(LoggedWorld):
    """As World, with the simulated fleet for its nodes and a probe in every Lambda."""

    def __init__(self, config: WorldConfig, progress: Progress) -> None:
        super().__init__(config, progress)
        self.scheduler = Scheduler(self._token)
        self.probe = self.folder / PROBE
        self._started = False

    def down(self) -> None:
        if self._started:
            self.scheduler.api.stop()
            self._started = False
        super().down()

    def _start_head(self) -> None:
        self.scheduler.api.start()
        self._started = True
        self._head_url = self.scheduler.api.url

    def _deploy(self) -> None:
        assert self.emulator is not None
        context = deploy.sandbox_context(
            self._head_url,
            self._token,
            cluster=os.path.relpath(self.config.cluster_file.resolve(), ROOT),
            time_scale=self.config.time_scale,
        )
        out = self.folder / "emulator" / "cdk.out"
        deploy.synthesize(out, context, progress=self.progress)
        observed.definition(MACHINE)  # as deployed; it is kept
        self.probe.touch()
        lambda_probe.install(out, self.probe)
        outputs = deploy.deploy_direct(self.emulator, out, progress=self.progress)
        self.outputs = {key: value for stack in outputs.values() for key, value in stack.items()}

    def _wait_for_nodes(self, number: int) -> None:
        """Enter the instances in ledger and scheduler, as if they had been up for a day."""
        gateways, since = self.gateways(), time.time() - OLD_SECONDS
        instances = gateways.fleet.cluster()
        for done, instance in enumerate(instances):
            said = facts(instance)
            said |= {"launched_at": since, "ready_at": since, "check": {"passed": True, "reason": ""}}
            said |= {"health": "Schedulable", "boot_id": f"{instance.node_id}-0", "admitted_at": since}
            gateways.ledger.note_node(instance.node_id, said)
            self.scheduler.register(str(said["name"]), instance.node_id)
            if done % 50 == 0:
                self.progress(f"entering the nodes: {done:,} of {number:,}")
        if len(instances) != number:
            raise SandboxError(f"{number:,} instances were launched, and EC2 lists {len(instances):,}.")


class Cluster:
    """One deployed fleet, whose nodes are broken in bursts, each node once."""

    def __init__(self, world: FleetWorld, boot_seconds: float, patience: float) -> None:
        assert world.emulator is not None
        self._world = world
        self._pid = world.emulator.pid
        self._patience = patience
        self._ledger = world.gateways().ledger
        self._lanes = Lanes(world.emulator, world.gateways())
        self._observer = Observer(world.emulator, world.file.name)
        nodes = world.scheduler.state.nodes
        self._fresh = [(name, node.node_id) for name, node in sorted(nodes.items())]
        self.fleet = Fleet(world.scheduler, world.probe, self._lanes.put, boot_seconds)

    def burst(self, size: int, say: Progress) -> Burst:
        """Break `size` nodes at once and wait until all is over.

        Raises SandboxError when that takes longer than the cluster's patience.
        """
        chosen = [self._fresh.pop() for _ in range(size)]
        deadline = time.monotonic() + self._patience
        position, ready = self._world.probe.stat().st_size, len(self.fleet.ready)
        before = Used.now(self._pid)
        with Metronome() as metronome:
            put, _ = self._break([node for _, node in chosen])
            isolated = self._world.scheduler.isolated
            while (number := sum(name in isolated for name, _ in chosen)) < size:
                self._check(deadline, f"{number:,} of {size:,} nodes were isolated")
                say(f"{number:,} of {size:,} isolated")
                time.sleep(POLL_SECONDS)
            isolating = Used.now(self._pid).since(before)
        rows = self._ended(list(put), say, deadline)
        ended, healing, load = time.time(), Used.now(self._pid).since(before), os.getloadavg()[0]
        self._quiet(deadline)
        say(f"reading what became of {size:,}")
        return Burst(
            put=put,
            isolated={node: isolated[name] for name, node in chosen},
            ended=ended,
            rows=rows,
            lines=self._lines(position),
            histories={node: self._observer.history(row["execution_arn"]) for node, row in rows.items()},
            isolating=isolating,
            healing=healing,
            agent_events=len(self.fleet.ready) - ready,
            slowdown=metronome.slowdown,
            load=load,
        )

    def held(self, size: int, say: Progress) -> HeldBurst:
        """Break `size` nodes at once where the breaker may refuse; over when every fault has an outcome."""
        chosen = [self._fresh.pop() for _ in range(size)]
        deadline = time.monotonic() + self._patience
        position, began = self._world.probe.stat().st_size, time.time()
        _, events = self._break([node for _, node in chosen])
        while len(rows := self._lanes.rows(events)) < size:
            self._check(deadline, f"{len(rows):,} of {size:,} faults had an outcome")
            say(f"{len(rows):,} of {size:,} have an outcome")
            time.sleep(POLL_SECONDS)
        seconds, outcomes = time.time() - began, [str(row["outcome"]) for row in rows.values()]
        self._quiet(deadline)
        isolated = sum(name in self._world.scheduler.isolated for name, _ in chosen)
        found = {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}
        return HeldBurst(found, seconds, isolated, self._lines(position))

    def _break(self, nodes: list[str]) -> tuple[dict[str, float], list[str]]:
        """(when each node's fault was put on the bus, the events' ids)."""
        put: dict[str, float] = {}
        events: list[str] = []
        for start in range(0, len(nodes), storms.ENTRIES):
            some, now = nodes[start : start + storms.ENTRIES], time.time()
            put |= dict.fromkeys(some, now)
            events += self._lanes.put([storms.signal(node, XID, now) for node in some])
        return put, events

    def _ended(self, nodes: list[str], say: Progress, deadline: float) -> dict[str, Row]:
        """The nodes' rows, each once its session has ended."""
        found: dict[str, Row] = {}
        pending = list(nodes)
        while pending:
            say(f"{len(found):,} of {len(nodes):,} incidents ended")
            some = pending[: storms.LOOKED_UP]
            for row in self._ledger.nodes_by_id(some):
                if row.get("session") and row.get("phase") not in ACTIVE and not row.get("closing"):
                    found[row["node_id"]] = row
            pending = [node for node in pending if node not in found]
            if set(some) & set(pending):
                self._check(deadline, f"{len(found):,} of {len(nodes):,} incidents had ended")
                time.sleep(ENDS_SECONDS)
        return found

    def _quiet(self, deadline: float) -> None:
        last, at = -1, time.monotonic()
        while time.monotonic() - at < QUIET_SECONDS:
            size = self._world.probe.stat().st_size
            if size != last or self._lanes.depth("urgent") + self._lanes.depth("normal"):
                last, at = size, time.monotonic()
            self._check(deadline, "events were still being judged")
            time.sleep(POLL_SECONDS)
        if dead := self._lanes.dead():
            raise SandboxError(f"Events are in dead-letter queues: {dead}.")

    def _check(self, deadline: float, what: str) -> None:
        if self.fleet.failure is not None:
            raise SandboxError(f"The simulated fleet failed: {self.fleet.failure!r}.")
        if time.monotonic() > deadline:
            raise SandboxError(f"After {self._patience:.0f} s {what}.")

    def _lines(self, position: int) -> list[dict[str, Any]]:
        with self._world.probe.open("rb") as file:
            file.seek(position)
            return [json.loads(line) for line in file]


def cluster_file(folder: Path, size: int, breaker: Mapping[str, Any] | None) -> Path:
    """fleet.yaml with another size, and with this breaker if any."""
    document = yaml.safe_load(CLUSTER.read_text(encoding="utf-8"))
    document["node_groups"][0]["size"] = size
    if breaker is not None:
        document["policy"]["breaker"] = dict(breaker)
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


@contextmanager
def deployed(
    size: int,
    boot_seconds: float,
    time_scale: float,
    patience: float,
    progress: Progress,
    breaker: Mapping[str, Any] | None = None,
) -> Iterator[Cluster]:
    """A fleet of this size in a folder of its own; nothing is left of it, but for the logs of a failure."""
    with tempfile.TemporaryDirectory(prefix="planaria-bench-") as scratch, ExitStack() as stack:
        file = cluster_file(Path(scratch), size, breaker)
        world = FleetWorld(
            WorldConfig(Path(scratch) / "sandbox", file, time_scale=time_scale, direct=True), progress
        )
        with world.ended_by_failure():
            world.up()
            cluster = Cluster(world, boot_seconds, patience)
            stack.enter_context(cluster.fleet.playing())
            yield cluster
            world.down()
