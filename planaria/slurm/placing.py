"""place: which nodes could take a job now, and why another one could not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planaria.slurm import holding, jobs, nodes, telling
from planaria.slurm.jobs import Job
from planaria.slurm.nodes import Node
from planaria.slurm.programs import Slurm


@dataclass(frozen=True, slots=True)
class Cluster:
    """One look at everything that keeps a job off a node. live: name -> ids of the jobs there; kept: name ->
    the reservations that cover it; sharing: ids of the jobs that do not want their nodes for themselves; own:
    id -> the reservation that a job was submitted with; partitions: id -> where it may run."""

    nodes: Mapping[str, Node]
    live: Mapping[str, Sequence[str]]
    kept: Mapping[str, Sequence[str]]
    sharing: frozenset[str]
    own: Mapping[str, str]
    partitions: Mapping[str, frozenset[str]]

    def why_not(self, job: str, name: str, alone: bool = False) -> str:
        """Why this job cannot start on this node, "" when it can. alone: only where no other job is; else a
        job that shares nodes may have what others have left, and Slurm knows how much that is."""
        node = self.nodes.get(name)
        if node is None:
            return f"no node {name}"
        if node.words.held:
            return f"{name} is isolated: {node.reason or 'without a reason'}"
        if node.words.down or not node.words.clear or "NOT_RESPONDING" in node.words.flags:
            return f"{name} is down"
        room = not alone and job in self.sharing and node.words.base != "ALLOCATED"
        for other in self.live.get(name, ()):
            if other != job and not (room and other in self.sharing):
                return f"{name} runs {other}"
        for reservation in self.kept.get(name, ()):
            owner = holding.job_of(reservation)
            mine = owner == job or reservation == self.own.get(job)
            if not mine and not (room and owner in self.sharing):
                return f"{name} is held for {owner or reservation}"
        if (own := self.own.get(job, "")) and own not in self.kept.get(name, ()):
            return f"{name} is not in reservation {own} of the job"
        wanted = self.partitions.get(job, frozenset())
        if wanted and not wanted & set(node.partitions):
            return f"{name} is not in partition {','.join(sorted(wanted))}"
        if not self.live.get(name) and not node.words.free:
            return f"{name} is {node.words.plain}"
        return ""


def look(slurm: Slurm, every: Sequence[Job]) -> Cluster:
    """Raises SlurmError: what could not be looked at must not pass for free."""
    found = nodes.every(slurm)
    kept: dict[str, list[str]] = {}
    for reservation, names in holding.held(slurm).items():
        for name in names:
            kept.setdefault(name, []).append(reservation)
    sharing = frozenset(job.id for job in every if not any(record.exclusive for record in job.records))
    own = {job.id: named for job in every if (named := holding.own(job))}
    partitions = {job.id: frozenset(job.head.partitions) for job in every}
    return Cluster(found, jobs.live_on(every, list(found)), kept, sharing, own, partitions)


def place(slurm: Slurm, job: str, count: int) -> dict[str, list[str]]:
    """{job: names}: those of its last attempt first and in the order of its ranks, so that ranks stay put."""
    every = jobs.every(slurm)
    facts = jobs.pick(every, [job]).get(job)
    cluster = look(slurm, every)
    own = facts.id if facts else job
    before = telling.ranked(facts) if facts else ()
    last = tuple(each for each in facts.mark.get("nodes", "").split(",") if each) if facts else ()
    first = list(dict.fromkeys([*before, *last]))
    rest = sorted((name for name in cluster.nodes if name not in first), key=natural)
    fit = [name for name in first if not cluster.why_not(own, name)]
    models = [cluster.nodes[name] for name in first if name in cluster.nodes]
    for name in rest:
        alike = not models or any(cluster.nodes[name].stands_in_for(model) for model in models)
        if alike and not cluster.why_not(own, name, alone=True):
            fit.append(name)
    return {job: fit[: max(0, count)]}


def natural(name: str) -> list[tuple[int, str]]:
    """demo-2 before demo-10."""
    parts = nodes.DIGITS.split(name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
