"""Where a job's steps lie in the tests of restores: its folder on the file system, S3, and nodes that carry.

Nodes play the documents of a transfer on top of the real ledger of transfers: they plan, claim chunks and end
them, and settle what has come.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planaria.core.manifest import NO_STEP, Lineage
from planaria.core.saved_step import StepCopy, StepState, Tier
from planaria.core.transfer_ledger import TransferLedger
from planaria.core.transfers import Cause, Failure
from tests.lambdas.world import JOB, World

FOLDER = "/fsx/gpt"
CHUNKS = 3


class Shelves:
    """folder: step directory -> copy on the file system. rotten: names whose objects are not what the
    manifest says; denied: those that S3 gives nobody; unlucky: those that fail so many chunks for no known
    reason; full: the file system has no room. seconds: that a node carries; dead: nodes whose documents fail.
    unseen: nodes list nothing, whatever is there."""

    def __init__(self, world: World, folder: str = FOLDER) -> None:
        self.world, self.path = world, folder
        self.folder: dict[str, StepCopy] = {}
        self.scratch: dict[str, str] = {}
        self.rotten: set[str] = set()
        self.denied: set[str] = set()
        self.unlucky: dict[str, int] = {}
        self.full = False
        self.seconds = 0.0
        self.dead: set[str] = set()
        self.unseen = False
        self.settled: list[str] = []
        self._plans: dict[str, tuple[str, str]] = {}
        self._begun: dict[str, float] = {}
        world.saved.clear()
        documents = world.commands.documents
        documents["planaria-list-checkpoints"] = self._list
        documents["planaria-plan-transfer"] = self._plan
        documents["planaria-run-transfer"] = self._run
        documents["planaria-settle-step"] = self._settle
        documents["planaria-prune-checkpoints"] = self._remove
        if JOB in {row["job_id"] for row in world.gw.jobs.jobs()}:
            world.gw.jobs.write(JOB, {"lineage": {"folder": folder}})

    # --- what lies where ---------------------------------------------------------------------------

    def here(self, step: int, attempt: int = 1, state: str = "complete", **more: Any) -> StepCopy:
        """A copy in the folder."""
        copy = _copy(step, attempt, f"{self.path}/step-{step}", Tier.FSX, state, **more)
        self.folder[copy.name] = copy
        return copy

    def stored(
        self, step: int, attempt: int = 1, state: str = "complete", job: str = JOB, **more: Any
    ) -> None:
        """A copy in S3."""
        copy = _copy(step, attempt, f"s3://bucket/checkpoints/{job}/step-{step}", Tier.S3, state, **more)
        self.world.stored.setdefault(job, []).append(copy)

    def steps(self) -> list[int]:
        """The good ones of the folder, the newest first."""
        return sorted((copy.step for copy in self.folder.values() if copy.usable), reverse=True)

    def _remove(self, node: str, parameters: Mapping[str, str]) -> Any:
        """Steps are told as attempt:step."""
        wanted = parameters["Steps"].split(",")
        gone = [n for n, c in self.folder.items() if c.lineage and f"{c.lineage.attempt}:{c.step}" in wanted]
        for name in gone:
            del self.folder[name]
        return {"removed": gone, "left": []}

    def _of_s3(self, name: str) -> StepCopy:
        return next(copy for copies in self.world.stored.values() for copy in copies if copy.name == name)

    # --- the documents -----------------------------------------------------------------------------

    def _list(self, node: str, parameters: Mapping[str, str]) -> Any:
        if node not in self.world.scheduler.state.up:
            return None
        copies = [] if self.unseen else sorted(self.folder.values(), key=lambda copy: -copy.step)
        return {"steps": [copy.document() for copy in copies]}

    def _plan(self, node: str, parameters: Mapping[str, str]) -> Any:
        name, mode = parameters["Step"], parameters["Mode"]
        self._plans[parameters["Transfer"]] = name, mode
        if mode == "HASH" and name not in self.folder:
            return {"state": "partial", "reason": "there is no such step", "cause": "bad"}
        if self.full:
            return {"state": "partial", "reason": "1 GiB is free and it has 3 GiB", "cause": "full"}
        self.scratch.setdefault(name, parameters["Transfer"])
        size = self._of_s3(name).size
        return {"state": "complete", "reason": "", "size": size, "files": 4, "chunks": CHUNKS}

    def _run(self, node: str, parameters: Mapping[str, str]) -> Any:
        transfer, now = parameters["Transfer"], self.world.now
        if node in self.dead:
            return RuntimeError("the node is gone")
        begun = self._begun.setdefault(f"{transfer}/{node}", now)
        if now < begun + self.seconds:
            return None
        ledger, name, carried = TransferLedger(self.world.table), self._plans[transfer][0], 0
        while (claim := ledger.claim(transfer, node, now)) is not None:
            carried += 1
            ledger.done(claim, 100, self._failures(name), f"transfers/{transfer}", now)
        return {"chunks": carried, "bytes": 100 * carried, "failed": []}

    def _failures(self, name: str) -> list[Failure]:
        if name in self.rotten:
            return [Failure("shard-1", "its checksum is not the manifest's", Cause.BAD)]
        if name in self.denied:
            return [Failure("shard-2", "AccessDenied", Cause.DENIED)]
        if self.unlucky.get(name, 0) > 0:
            self.unlucky[name] -= 1
            return [Failure("shard-3", "Input/output error", Cause.OTHER)]
        return []

    def _settle(self, node: str, parameters: Mapping[str, str]) -> Any:
        name = parameters["Step"]
        self.settled.append(name)
        if (
            name in self.folder
            and self.folder[name].usable
            and self._plans[parameters["Transfer"]][1] != "HASH"
        ):
            self.scratch.pop(name, None)
            return {"state": "complete", "reason": "", "place": self.folder[name].place}
        progress = TransferLedger(self.world.table).progress(parameters["Transfer"], self.world.now)
        self.scratch.pop(name, None)
        if progress.failed or not progress.finished:
            return {"state": "partial", "reason": "not all of it has come", "cause": "other"}
        copy = self._of_s3(name)
        self.folder[name] = replace(
            copy, tier=Tier.FSX, place=f"{self.path}/{name}", state=StepState.COMPLETE
        )
        return {"state": "complete", "reason": "", "place": self.folder[name].place}


def _copy(step: int, attempt: int, place: str, tier: Tier, state: str, **more: Any) -> StepCopy:
    facts: dict[str, Any] = {
        "reason": "" if state in ("complete", "durable") else f"it is {state}",
        "size": 1000,
        "lineage": Lineage(JOB, attempt, NO_STEP),
        "saved_at": 1000.0 * attempt + step,
        "digest": f"{attempt:08x}{step:056x}",
    }
    return StepCopy(step, tier, StepState(state), place, **{**facts, **more})
