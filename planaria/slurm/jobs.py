"""The jobs that Slurm knows, by the ids that the ledger uses.

A job's id is what squeue writes: `12`, `12_3` for a task of an array, and `12` for all components of the
heterogeneous job 12+0, 12+1, which are stopped and started as one.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planaria.slurm import marks, records
from planaria.slurm.programs import Slurm
from planaria.slurm.records import ENDED, ID, Record

__all__ = ["ENDED", "ID", "Job", "Record", "every", "live_on", "one", "pick", "read"]


@dataclass(frozen=True, slots=True)
class Job:
    """id: as the ledger calls it. records: one, or every component of a heterogeneous job in their order."""

    id: str
    records: tuple[Record, ...]

    @property
    def head(self) -> Record:
        return self.records[0]

    @property
    def target(self) -> str:
        """What an order about the whole job must name."""
        return self.head.target

    @property
    def mark(self) -> dict[str, str]:
        """What Planaria remembers of it."""
        return marks.read(self.head.admin_comment)

    @property
    def told(self) -> dict[str, str]:
        """What `planaria submit` wrote into its comment."""
        return marks.read(self.head.comment)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(name for record in self.records for name in record.nodes)

    @property
    def completing(self) -> bool:
        return any(record.completing for record in self.records)

    @property
    def state(self) -> str:
        """The components' common state; the least far one where they differ."""
        found = {record.state for record in self.records}
        order = ("", "PENDING", "SUSPENDED", "RUNNING")
        return next((state for state in order if state in found), self.head.state)

    @property
    def running(self) -> bool:
        return self.state == "RUNNING" and not self.completing

    @property
    def startable(self) -> bool:
        """Waiting in the queue with nothing of it left anywhere."""
        return self.state == "PENDING" and not self.completing and not self.nodes

    @property
    def can_requeue(self) -> bool:
        return self.head.batch and self.head.requeue

    @property
    def ranks_per_node(self) -> int:
        told = self.told.get("ranks_per_node", "")
        return int(told) if re.fullmatch(r"[1-9]\d{0,3}", told) else self.head.ranks_per_node


def read(slurm: Slurm, ids: Iterable[str]) -> dict[str, Job]:
    """Those of the ids that Slurm knows (for MinJobAge after their end). Raises SlurmError."""
    asked = [job for job in dict.fromkeys(ids) if ID.fullmatch(job)]
    return pick(every(slurm), asked) if asked else {}


def one(slurm: Slurm, job: str) -> Job | None:
    return read(slurm, (job,)).get(job)


def every(slurm: Slurm) -> list[Job]:
    """All jobs that Slurm remembers. A job that was submitted again bears its first id."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records.read(slurm):
        found.setdefault((record.id, record.root), []).append(record)
    return [
        Job(job, tuple(sorted(parts, key=lambda record: record.offset))) for (job, _), parts in found.items()
    ]


def pick(jobs: Iterable[Job], asked: Iterable[str]) -> dict[str, Job]:
    """The asked ones. Of two that bear one id the newer one counts; `12+1` names the whole job 12."""
    newest: dict[str, Job] = {}
    numbers: dict[str, Job] = {}
    for job in sorted(jobs, key=lambda job: int(job.head.root)):
        newest[job.id] = job
        numbers |= {record.raw: job for record in job.records}
    found = {}
    for each in asked:
        own = each.partition("+")[0]
        known = newest.get(own) or numbers.get(own)
        if known:
            found[each] = known
    return found


def live_on(jobs: Iterable[Job], names: Sequence[str]) -> dict[str, list[str]]:
    """name -> ids of the jobs that run or complete there."""
    found: dict[str, set[str]] = {name: set() for name in names}
    for job in jobs:
        for record in job.records:
            for name in record.nodes if record.live else ():
                if name in found:
                    found[name].add(job.id)
    return {name: sorted(ids, key=_natural) for name, ids in found.items()}


def _natural(job: str) -> tuple[int, int]:
    first, _, second = job.partition("_")
    return int(first), int(second or -1)
