"""Where a job's steps lie in the tests of syncs: its folder on the file system, and S3, with nodes and FSx
between.

Nodes play the documents of a transfer on top of the real ledger of transfers; FSx is the twin of its tasks,
which this moves on as time passes.
"""

import base64
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from planaria.core.checkpoint_ledger import CheckpointLedger
from planaria.core.checkpoint_policy import Association, Checkpoints, FileSystem, Retention
from planaria.core.checkpoint_ports import TaskState
from planaria.core.errors import Fenced
from planaria.core.manifest import Format, Lineage, Manifest, Shard, digest
from planaria.core.saved_step import StepCopy, StepState, Tier
from planaria.core.table import Row
from planaria.core.transfer_ledger import TransferLedger
from planaria.core.transfers import Cause, Failure
from planaria.memory.checkpoints import MemoryCheckpoints
from planaria.memory.data_repository import MemoryDataRepository
from tests.lambdas import events
from tests.lambdas.world import JOB, World, _Port, cluster

MOUNT, FOLDER, FSX = "/fsx", "/fsx/checkpoints/gpt", "fs-0123456789abcdef0"
LINKED = Association("/checkpoints/", "s3://linked/checkpoints/")
CHUNKS = 3


def crc(text: str) -> str:
    return base64.b64encode(text.encode()[:8].ljust(8, b"\0")).decode()


def manifest(
    step: int, attempt: int = 1, parent: int = -1, shards: int = 4, saved_at: float = 0.0
) -> Manifest:
    parts = tuple(Shard(f"part-{n:05d}", 100 + n, crc(f"{attempt}{step}{n}")) for n in range(shards))
    lineage = Lineage(JOB, attempt, parent)
    return Manifest(step, lineage, 4, Format.PLANARIA, parts, saved_at or 1000.0 * attempt + step)


def policy(
    linked: bool = False, auto: bool = False, keep: int = 0, keep_here: int = 0, **more: Any
) -> Checkpoints:
    """linked: the file system has an association; auto: which exports by itself; keep: steps in S3,
    keep_here: on the file system, 0 for all."""
    association = dataclasses.replace(LINKED, auto_export=("NEW", "CHANGED") if auto else ())
    associations = (association,) if linked else ()
    retention = {Tier.S3: Retention(keep)} if keep else {}
    retention |= {Tier.FSX: Retention(keep_here)} if keep_here else {}
    system = FileSystem("scratch", FSX, MOUNT, "", associations)
    return Checkpoints(**{"file_systems": (system,), "retention": retention, "sync_seconds": 600.0, **more})


class Copying:
    """here: the folder; s3: the bucket's steps. spoil: called with a shard's name when it is carried, may
    change what arrives; denied: names that S3 refuses. dead: nodes that come back without having done
    anything. slow: so long a node carries a chunk. tasks: what becomes of the next tasks of FSx, SUCCEEDED
    where it is empty."""

    def __init__(self, world: World, of: Checkpoints | None = None) -> None:
        self.world = world
        checkpoints = of or policy()
        world.gw.cluster = dataclasses.replace(world.gw.cluster, checkpoints=checkpoints)
        self.here = MemoryCheckpoints(JOB, Tier.FSX, FOLDER)
        linked = checkpoints.place(FOLDER)
        self.root = linked.url if linked and linked.url else f"s3://bucket/checkpoints/{JOB}"
        self.s3 = MemoryCheckpoints(JOB, Tier.S3, self.root)
        self.fsx = MemoryDataRepository(checkpoints)
        self.sealable: dict[str, Manifest] = {}
        self.spoil: Callable[[Shard], Shard | None] = lambda shard: shard
        self.denied: set[str] = set()
        self.dead: set[str] = set()
        self.seconds = 0.0
        self.outcomes: list[TaskState] = []
        self.task_seconds = 30.0
        self.ran: list[str] = []
        self.pruned: list[str] = []
        self.carried: list[tuple[str, str]] = []
        self._plans: dict[str, tuple[str, str]] = {}
        self._begun: dict[str, float] = {}
        self._claims: dict[str, Any] = {}
        world.saved.clear()
        world.commands.documents |= {
            "planaria-list-checkpoints": self._list,
            "planaria-plan-transfer": self._plan,
            "planaria-run-transfer": self._run,
            "planaria-settle-step": self._settle,
            "planaria-prune-checkpoints": self._prune,
            "planaria-sweep-checkpoints": self._sweep,
        }
        stored = _Port(world, "stores", self.s3)
        world.gw.checkpoints = lambda job, place="": stored  # type: ignore[method-assign]
        world.gw.data_repository = _Port(world, "fsx", self.fsx)
        world.gw.jobs.write(JOB, {"lineage": {"folder": FOLDER}})

    # --- what happens ------------------------------------------------------------------------------

    def save(self, step: int, attempt: int = 1, tell: bool = True, **more: Any) -> StepCopy:
        """The job saves a step: it is whole on the file system; `tell`: the node's agent says so."""
        made = manifest(step, attempt, **{"saved_at": self.world.now, **more})
        self.here.held.pop(f"step-{step}", None)
        copy = self.here.save(made)
        if tell:
            self.world.send(saved(self.world, step, attempt))
        return copy

    def save_without_us(self, step: int, attempt: int = 1) -> None:
        """A step in a foreign format, whole by its own index."""
        self.sealable[f"step-{step}"] = manifest(step, attempt, saved_at=self.world.now)
        self.world.send(saved(self.world, step, attempt))

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> None:
        """Time passes, also where nothing happens; what is waited for must come."""
        end = self.world.now + seconds
        while self.world.now < end and not (until and until()):
            step = min(10.0 if self.fsx.started else 60.0, end - self.world.now)
            self.world.at(step, self.play_fsx)
            self.world.run(step, until or (lambda: False))
        assert until is None or until(), (
            self.claim,
            [(r["step"], r["state"], r.get("why")) for r in self.rows],
        )

    # --- what one asks -----------------------------------------------------------------------------

    @property
    def rows(self) -> list[Row]:
        return CheckpointLedger(self.world.table).steps(JOB)

    @property
    def durable(self) -> list[int]:
        return [int(row["step"]) for row in self.rows if row["state"] == "durable"]

    @property
    def claim(self) -> Row:
        return self.world.table.get(f"CHECKPOINTS#{JOB}", "SYNC") or {}

    def assert_safe(self, *steps: int) -> None:
        """These steps and no others are durable, and what is recorded is true."""
        assert self.durable == list(steps), (
            self.durable,
            [(r["step"], r["state"], r.get("why")) for r in self.rows],
        )
        for row in self.rows:
            if row["state"] == "durable":
                copy = StepCopy(row["step"], Tier.S3, StepState.COMPLETE, row["place"])
                assert str(self.s3.verify(copy).state) == "durable", row
                assert self.s3.verify(copy).digest == row["digest"]
        assert self.claim.get("phase") == "DONE" and "work" not in self.claim, self.claim
        assert not self.world.driver.running

    # --- the documents -----------------------------------------------------------------------------

    def _up(self, node: str) -> bool:
        return node in self.world.scheduler.state.up

    def _list(self, node: str, parameters: Mapping[str, str]) -> Any:
        if not self._up(node):
            return RuntimeError("the node is gone")
        assert parameters == {"Job": JOB, "Directory": FOLDER}
        copies = {copy.name: copy for copy in self.here.steps()}
        for name, made in self.sealable.items():
            copies.setdefault(
                name,
                StepCopy(
                    made.step, Tier.FSX, StepState.FOREIGN, f"{FOLDER}/{name}", touched_at=made.saved_at,
                    format=Format.DCP, size=made.size, reason="it has no manifest",
                ),
            )  # fmt: skip
        return {"steps": [copy.document() for copy in sorted(copies.values(), key=lambda copy: -copy.step)]}

    def _plan(self, node: str, parameters: Mapping[str, str]) -> Any:
        if not self._up(node):
            return RuntimeError("the node is gone")
        name, mode = parameters["Step"], parameters["Mode"]
        made = self._manifest(name)
        if made is None:
            return {"state": "partial", "reason": "there is no such step"}
        self._plans[parameters["Transfer"]] = name, mode
        sealed = name in self.here.held and self.here.held[name].manifest is not None
        if sealed:
            self._hand_over(parameters["Transfer"], made)
        return {
            "state": "complete", "reason": "", "size": made.size, "files": len(made.shards), "chunks": CHUNKS,
            "manifest": sealed,
        }  # fmt: skip

    def _run(self, node: str, parameters: Mapping[str, str]) -> Any:
        transfer, now = parameters["Transfer"], self.world.now
        if node in self.dead or not self._up(node):
            return RuntimeError("the node is gone")
        name, mode = self._plans[transfer]
        ledger, made = TransferLedger(self.world.table), self._manifest(name)
        assert made is not None
        key, done = f"{transfer}/{node}", 0
        if key not in self._begun:
            self._begun[key] = now
            self._claims[key] = ledger.claim(transfer, node, now)
            self._renew(key)
        if now < self._begun[key] + self.seconds:
            return None
        while (claim := self._claims.pop(key, None) or ledger.claim(transfer, node, now)) is not None:
            mine = [] if claim.chunk is None else made.shards[claim.chunk :: CHUNKS]
            failed = [Failure(s.name, "AccessDenied", Cause.DENIED) for s in mine if s.name in self.denied]
            arrived = [self.spoil(shard) for shard in mine if shard.name not in self.denied]
            self.carried += [(node, shard.name) for shard in mine]
            if mode == "COPY":
                self.s3.put(name, [shard for shard in arrived if shard is not None], now)
            try:
                ledger.done(
                    claim, sum(s.size for s in mine), failed, f"transfers/{transfer}/{claim.chunk}", now
                )
            except Fenced:
                continue
            done += 1
        self.ran.append(node)
        return {"chunks": done, "bytes": 0, "failed": []}

    def _renew(self, key: str) -> None:
        """While a node carries it keeps its lease, as the real one does."""
        if self._claims.get(key) is None or not self.seconds:
            return
        try:
            TransferLedger(self.world.table).renew(self._claims[key], self.world.now)
        except Fenced:
            self._claims.pop(key)
            return
        if self.world.now >= self._begun[key] + self.seconds:
            self.world.commands.documents["planaria-run-transfer"](
                key.rpartition("/")[2], {"Transfer": key.rpartition("/")[0]}
            )
        else:
            self.world.at(20.0, lambda: self._renew(key))

    def _settle(self, node: str, parameters: Mapping[str, str]) -> Any:
        if not self._up(node):
            return RuntimeError("the node is gone")
        name = parameters["Step"]
        made = self.sealable.get(name)
        if made is None:
            return {"state": "partial", "reason": "it has changed while it was read"}
        lineage = Lineage(JOB, int(parameters["Attempt"]), int(parameters["Parent"]))
        made = dataclasses.replace(made, lineage=lineage)
        if name not in self.here.held:
            self.here.save(made, name)
        self._hand_over(parameters["Transfer"], made)
        return {
            "state": "complete",
            "reason": "",
            "place": f"{FOLDER}/{name}",
            "digest": digest(made.to_json()),
        }

    def _prune(self, node: str, parameters: Mapping[str, str]) -> Any:
        removed = []
        for told in parameters["Steps"].split(","):
            attempt, step = map(int, told.split(":"))
            name = f"step-{step}"
            there = self.here.held.get(name)
            if there is None or there.manifest is None:
                continue
            if Manifest.from_json(there.manifest).lineage.attempt == attempt:
                del self.here.held[name]
                self.sealable.pop(name, None)
                removed.append({"step": step, "attempt": attempt})
                self.pruned.append(name)
        return {"removed": removed, "left": []}

    def _sweep(self, node: str, parameters: Mapping[str, str]) -> Any:
        before = self.world.now - 3600 * float(parameters["Hours"])
        return {"removed": self.here.sweep(before, [n for n in parameters["Active"].split(",") if n])}

    def _manifest(self, name: str) -> Manifest | None:
        there = self.here.held.get(name)
        if there is not None and there.manifest is not None:
            return Manifest.from_json(there.manifest)
        return self.sealable.get(name)

    def _hand_over(self, transfer: str, made: Manifest) -> None:
        self.world.objects.put(f"transfers/{transfer}/manifest.json", made.to_json())

    # --- FSx ---------------------------------------------------------------------------------------

    def play_fsx(self) -> None:
        """Every task goes on as it is to; an export puts all files of the step into the bucket."""
        for token in list(self.fsx.started):
            task_id = self.fsx._of_token[token]
            task = self.fsx.task(task_id)
            begun = self._begun.setdefault(task_id, self.world.now)
            if task.state is TaskState.CANCELING:
                self.fsx.becomes(task_id, TaskState.CANCELED)
            elif task.state in (TaskState.PENDING, TaskState.EXECUTING):
                if self.world.now < begun + self.task_seconds:
                    self.fsx.becomes(task_id, TaskState.EXECUTING)
                    continue
                end = self.outcomes.pop(0) if self.outcomes else TaskState.SUCCEEDED
                self._exported(task.paths, end)
                failed = 1 if end is TaskState.FAILED else 0
                self.fsx.becomes(task_id, end, succeeded=4 - failed, failed=failed)

    def _exported(self, paths: tuple[str, ...], end: TaskState) -> None:
        for path in paths:
            name = path.rpartition("/")[2]
            made = self._manifest(name)
            if made is None or end is TaskState.CANCELED:
                continue
            arrived = [self.spoil(shard) for shard in made.shards]
            kept = [shard for shard in arrived if shard is not None]
            self.s3.put(name, kept[:-1] if end is TaskState.FAILED else kept, self.world.now)
            self.s3.held[name].manifest = made.to_json()


def saved(world: World, step: int, attempt: int = 1) -> str:
    node = world.job["nodes"]["0"]
    return events.agent(node, "Planaria Checkpoint Saved", world.now, job_id=JOB, step=step, attempt=attempt)


def of(build: Callable[..., World], checkpoints: Checkpoints | None = None, **more: Any) -> Copying:
    world = build(cluster(), **more)
    return Copying(world, checkpoints)
