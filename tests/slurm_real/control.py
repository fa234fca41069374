"""The control plane on a real Slurm: the real Lambdas and ASL files on twins of AWS, in real time.

EC2, SQS and the agents are played as in tests/lambdas/world.py; the scheduler, its jobs and their processes
are Slurm's own. An instance that EC2 launches boots as slurmd of its name.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

from planaria.core import tags
from planaria.core.cluster import Slurm
from planaria.core.table import Row
from tests.lambdas import events
from tests.lambdas import world as simulated
from tests.lambdas.world import World, _Port, cluster
from tests.slurm_real.bench import HEAD, Bench
from tests.slurm_real.jobs import RealJob

BOOT_SECONDS = 2.0
LOOK_SECONDS = 0.3


class RealClock:
    def now(self) -> float:
        return time.time()

    def advance(self, seconds: float) -> None:
        time.sleep(min(seconds, LOOK_SECONDS))


class RealWorld(World):
    """names: of the nodes that the cluster's file has; they run already. -> the ids of their instances are in
    `node_ids`."""

    def __init__(self, bench: Bench, names: Sequence[str], **policy: Any) -> None:
        limits = {"job_settle_seconds": 0.0, "drain_deadline_seconds": 60.0, **policy}
        of = dataclasses.replace(cluster(**limits), scheduler="slurm", slurm=Slurm(HEAD))
        with mock.patch.object(simulated, "MemoryClock", RealClock):
            super().__init__(of, job=False, nodes=0)
        self.bench = bench
        self.gw.scheduler = _Port(self, "scheduler", bench.scheduler)
        self.real_job: RealJob | None = None
        self.commands.documents["planaria-list-checkpoints"] = lambda node, parameters: self._saved_steps()
        self.commands.documents["planaria-checkpoint-now"] = lambda node, parameters: self._newest()
        self.node_ids = {name: f"i-0bbbbbbbbbbbbbbb{number:x}" for number, name in enumerate(names)}
        self.holders = dict(self.node_ids)
        self.nodes, self.names = list(self.node_ids.values()), list(names)
        self._told: set[int] = set()
        for number, (name, node) in enumerate(self.node_ids.items()):
            marks = {tags.CLUSTER: "demo", tags.GROUP: "workers", tags.NAME: name}
            address = f"127.0.1.{number + 1}"
            self.fleet.add(node, address=address, instance_type="p5.48xlarge", tags=marks)
            facts = {"name": name, "group": "workers", "state": "running", "address": address}
            self.gw.ledger.note_node(node, {**facts, "instance_type": "p5.48xlarge", "gone": False})
        self.at(LOOK_SECONDS, self._look)

    def register(self, job: RealJob, names: Sequence[str]) -> None:
        nodes = [self.node_ids[name] for name in names]
        self.real_job = job
        self.gw.jobs.register(job.job_id, list(names), nodes, {"attempt": 1, "recipe": "gpt"})
        for node in nodes:
            self.gw.ledger.note_node(node, {"job_id": job.job_id})

    @property
    def job(self) -> Row:
        assert self.real_job is not None
        return self.gw.jobs.job(self.real_job.job_id) or {}

    # --- EC2 and the agents, where Slurm stands behind them ---------------------------------------

    def lose(self, node: str, *, tell: bool = True) -> None:
        self.fleet.instances[node] = dataclasses.replace(self.fleet.instances[node], state="terminated")
        for name, holder in self.holders.items():
            if holder == node:
                self.bench.slurm.kill_node(name)
        if tell:
            self.at(0.5, lambda: self.send(events.state(node, "shutting-down", self.now)))
            self.at(5.0, lambda: self.send(events.state(node, "terminated", self.now)))

    def _boot(self, node: str) -> None:
        def up() -> None:
            instance = self.fleet.instances[node]
            if instance.state != "running":
                return
            name = instance.tags[tags.NAME]
            # Every address of the loopback network leads to this name's port.
            address = f"127.0.2.{len(self.fleet.instances)}"
            self.fleet.instances[node] = dataclasses.replace(instance, address=address)
            self.holders[name] = node
            self.bench.slurm.boot(name)
            self.send(events.ready(node, self.now, name, address))

        self.at(BOOT_SECONDS, up)

    def _ranks(self) -> None:
        """The ranks are processes; `_look` tells of them."""

    def _look(self) -> None:
        """What the agents report of the ranks: the first step of a start."""
        self.at(LOOK_SECONDS, self._look)
        job = self.real_job
        if job is None:
            return
        first = {step["start"]: step for step in reversed(job.steps())}
        for start in sorted(set(first) - self._told):
            self._told.add(start)
            if start > 0:
                node = self.holders[job.places()[0]]
                attempt = int(self.job["attempt"])
                self.send(events.job_step(node, job.job_id, attempt, first[start]["step"], self.now))

    def _saved_steps(self) -> dict[str, Any]:
        newest = self._newest()["step"]
        return {"steps": [{"step": newest, "state": "complete", "reason": "", "at": float(newest)}]}

    def _newest(self) -> dict[str, Any]:
        assert self.real_job is not None
        return {"step": int((self.real_job.folder / "saved").read_text())}

    def has_ended(self, count: int = 1) -> bool:
        """Have so many incidents ended, and is the job back at work?"""
        ended = [row for row in self.incidents if "outcome" in row]
        return len(ended) >= count and not self.driver.running


@contextlib.contextmanager
def real_world(bench: Bench, names: Sequence[str], **policy: Any) -> Iterator[RealWorld]:
    """The Lambdas find these gateways for as long as this lasts."""
    from planaria import wiring

    world = RealWorld(bench, names, **policy)
    with mock.patch.object(wiring, "gateways", return_value=world.gw):
        yield world
