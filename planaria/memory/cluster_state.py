"""A small scheduler as a pure state machine: no process, no clock, no file.

The memory twin plays its world in tests; the sandbox's head plays it with real processes. Requests come in
through `answer`, what happens in the world through `register`, `node_up`, `node_down`, `rank_exited` and
`tick`; what has to be done in the world is collected in `effects`.

Times are seconds since the epoch, given by the caller.
"""

import re
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from planaria.core import scheduling
from planaria.core.errors import InvalidInput

OURS, SCHEDULER = "planaria", "scheduler"
BAD_EXIT_GRACE_SECONDS = 2.0
FAILED_TOLD = 20


class JobState(StrEnum):
    """PENDING waits for nodes; STOPPED is ended by us, CANCELLED by its user. All but the first two may still
    have ranks that are ending."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    CANCELLED = "CANCELLED"
    COMPLETED = "COMPLETED"


_COMMON = {
    JobState.PENDING: scheduling.JobState.PENDING,
    JobState.RUNNING: scheduling.JobState.RUNNING,
    JobState.FAILED: scheduling.JobState.FAILED,
    JobState.STOPPED: scheduling.JobState.PENDING,
    JobState.CANCELLED: scheduling.JobState.CANCELLED,
    JobState.COMPLETED: scheduling.JobState.COMPLETED,
}


@dataclass(slots=True)
class Node:
    """A scheduler name and the instance behind it. isolated: {"reason", "by"} or None, of the scheduler's own
    doing with {"codes", "since"}; lost: proven dead."""

    name: str
    node_id: str
    address: str = ""
    isolated: dict[str, Any] | None = None
    lost: bool = False


@dataclass(slots=True)
class Job:
    """placement: node id per rank of the last started attempt (0 = never started); exits: exit code per
    ended rank; queued: a requeue that waits for old ranks to end; hold: {"nodes", "until"}.

    may_requeue, has_script: a job without one of the two is never started again. first_bad: (rank, code) of
    the exit that failed the attempt."""

    job_id: str
    node_count: int
    ranks_per_node: int
    recipe: dict[str, Any] = field(default_factory=dict)
    state: JobState = JobState.PENDING
    attempt: int = 0
    resume_step: int = -1
    nodes: list[str] = field(default_factory=list)
    placement: list[str] = field(default_factory=list)
    exits: dict[int, int] = field(default_factory=dict)
    stop: dict[str, Any] | None = None
    failed_at: float | None = None
    ended: bool = False
    queued: dict[str, Any] | None = None
    hold: dict[str, Any] | None = None
    user: str = ""
    may_requeue: bool = True
    has_script: bool = True
    starts: int = 0
    first_bad: list[int] | None = None
    submitted_at: float = 0.0
    started_at: float = 0.0
    ended_at: float = 0.0

    @property
    def live_ranks(self) -> list[int]:
        return [rank for rank in range(len(self.placement)) if rank not in self.exits]


@dataclass(frozen=True, slots=True)
class StartRanks:
    """Start every rank of this attempt; rank r runs on placement[r]."""

    job_id: str
    attempt: int
    placement: tuple[str, ...]
    resume_step: int


@dataclass(frozen=True, slots=True)
class EndRanks:
    """Signal the live ranks of this attempt, and kill what is left after `grace_seconds`.

    asked: someone stopped the job, so these exits are no failure.
    """

    job_id: str
    attempt: int
    signal: str
    grace_seconds: float
    asked: bool


@dataclass(frozen=True, slots=True)
class EndNode:
    """Kill every rank on this instance at once."""

    node_id: str


Effect = StartRanks | EndRanks | EndNode


class ClusterState:
    """Nodes, jobs and the answers to every SchedulerRequest. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.jobs: dict[str, Job] = {}
        self.up: set[str] = set()
        self.kept: dict[str, tuple[int, int]] = {}
        self._now = 0.0
        self.effects: list[Effect] = []

    # --- what happens in the world ---------------------------------------------------------------

    def register(self, name: str, node_id: str, address: str = "") -> bool:
        """A first node of this name appeared. False, and nothing changes, when the name is taken: an
        instance that replaces another one comes in by Join only."""
        if name in self.nodes:
            return False
        self.nodes[name] = Node(name, node_id, address)
        return True

    def node_up(self, node_id: str) -> None:
        self.up.add(node_id)

    def node_down(self, node_id: str) -> None:
        self.up.discard(node_id)

    def rank_exited(self, job_id: str, attempt: int, rank: int, code: int, now: float) -> None:
        """A rank's process is gone; code is negative for a signal. Old attempts and repeats are ignored."""
        job = self.jobs.get(job_id)
        if job is None or attempt != job.attempt or rank in job.exits or rank >= len(job.placement):
            return
        job.exits[rank] = code
        if code != 0 and job.state is JobState.RUNNING and job.stop is None:
            job.state, job.failed_at, job.first_bad = JobState.FAILED, now, [rank, code]
        if not job.live_ranks and job.state is JobState.RUNNING:
            job.state = JobState.STOPPED if job.stop is not None else JobState.COMPLETED
        if not job.live_ranks:
            job.ended_at = now

    def submit_job(self, job_id: str, node_count: int, ranks_per_node: int, recipe: dict[str, Any]) -> Job:
        """A new job; it starts by itself once enough nodes are free. A known id changes nothing."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", job_id):
            raise InvalidInput(f"{job_id!r} is no job id: use up to 64 letters, digits, '.', '_' and '-'")
        if node_count < 1 or ranks_per_node < 1:
            raise InvalidInput(f"job {job_id} needs at least one node and one rank per node")
        return self.jobs.setdefault(job_id, Job(job_id, node_count, ranks_per_node, recipe))

    def forget(self, job_id: str) -> None:
        """An ended job drops out of the scheduler's memory, as Slurm's do after MinJobAge. Its size is what a
        folder of `planaria submit` keeps."""
        job = self.jobs.get(job_id)
        if job is not None and (job.live_ranks or job.state in (JobState.PENDING, JobState.RUNNING)):
            raise InvalidInput(f"job {job_id} has not ended, so it is not forgotten")
        if job is not None:
            del self.jobs[job_id]
            self.kept[job_id] = job.node_count, job.ranks_per_node

    def tick(self, now: float) -> None:
        """Let time pass: start what waits, end the survivors of a failed attempt, let holds expire."""
        self._now = now
        for job in self.jobs.values():
            job.submitted_at = job.submitted_at or now
            if job.hold is not None and job.hold["until"] <= now:
                job.hold = None
            over = job.failed_at is not None and now >= job.failed_at + BAD_EXIT_GRACE_SECONDS
            if job.state is JobState.FAILED and job.live_ranks and over and not job.ended:
                self._end(job, "KILL", 0.0, asked=False)
                job.ended = True
            if job.queued is not None and not job.live_ranks:
                queued, job.queued = job.queued, None
                if not self._unfit(job, queued["nodes"], now):
                    self._start(job, queued["nodes"], queued["attempt"], queued["resume_step"])
            if job.state is JobState.PENDING and job.attempt == 0 and job.queued is None:
                names = self._candidates(job, now)[: job.node_count]
                if len(names) == job.node_count:
                    self._start(job, names, 1, -1)

    def take_effects(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects

    # --- requests --------------------------------------------------------------------------------

    def answer(self, request: scheduling.SchedulerRequest, now: float) -> dict[str, Any]:
        """Carry out one request; the value is what the port's docstring of the request says."""
        self.tick(now)
        match request:
            case scheduling.NodeQuery(nodes=()):
                return {name: self._describe(name) | self._own_words(name) for name in self._by_itself()}
            case scheduling.NodeQuery(nodes=nodes):
                return {name: self._describe(name) for name in nodes}
            case scheduling.Isolate(nodes=nodes, reason=reason):
                return {name: self._isolate(name, reason, lost=False) for name in nodes}
            case scheduling.Lost(nodes=nodes, reason=reason):
                return {name: self._isolate(name, reason, lost=True) for name in nodes}
            case scheduling.Readmit(nodes=nodes, reason=reason):
                return {name: self._readmit(name, reason) for name in nodes}
            case scheduling.Join():
                return {request.name: self._join(request)}
            case scheduling.JobsOn(nodes=nodes):
                return {name: self.jobs_on(name) for name in nodes}
            case scheduling.JobQuery(jobs=jobs, nodes=nodes):
                found = [job_id for name in nodes for job_id in self._seen_on(name)]
                return {job_id: self._describe_job(job_id) for job_id in dict.fromkeys([*jobs, *found])}
            case scheduling.Stop(jobs=jobs):
                return {job_id: self._stop(job_id, request, now) for job_id in jobs}
            case scheduling.Hold(job=job_id):
                return {job_id: self._hold(request, now)}
            case scheduling.Requeue(job=job_id):
                return {job_id: self._requeue(request, now)}
            case scheduling.Place(job=job_id, count=count):
                job = self.jobs.get(job_id) or Job(job_id, count, 1)
                return {job_id: self._candidates(job, now)[: max(0, count)]}
        raise InvalidInput(f"unknown scheduler request {request!r}")

    def review(
        self, request: scheduling.SchedulerRequest, value: dict[str, Any], now: float
    ) -> dict[str, Any]:
        """The present value of an answer given earlier, without asking for anything anew."""
        self.tick(now)
        if isinstance(request, scheduling.Stop):
            return {job_id: self._stopped(job_id) for job_id in request.jobs}
        job = self.jobs.get(request.job) if isinstance(request, scheduling.Requeue) else None
        if (
            isinstance(request, scheduling.Requeue)
            and value.get(request.job) == "PENDING"
            and job is not None
        ):
            if job.attempt == request.attempt:
                return {job.job_id: "RUNNING"}
            if job.queued is None or job.queued["attempt"] != request.attempt:
                why = self._unfit(job, list(request.nodes), now) or "another request came between"
                return {job.job_id: f"REFUSED: {why}"}
        return value

    def name_of(self, node: str) -> str | None:
        """The scheduler name of a name or an instance id."""
        if node in self.nodes:
            return node
        return next((n.name for n in self.nodes.values() if n.node_id == node), None)

    def jobs_on(self, name: str) -> list[str]:
        """Jobs with a live rank on the instance behind this name."""
        node = self.nodes.get(name)
        if node is None:
            return []
        jobs = self.jobs.values()
        return sorted({j.job_id for j in jobs for r in j.live_ranks if j.placement[r] == node.node_id})

    def cancel(self, job_id: str, now: float) -> None:
        """Its user ends the job for good."""
        job = self.jobs[job_id]
        job.queued, job.hold, job.state = None, None, JobState.CANCELLED
        if job.live_ranks:
            job.stop = {"signal": "KILL", "at": now}
            self._end(job, "KILL", 0.0, asked=True)
        else:
            job.ended_at = now

    def foreign_isolate(self, name: str, reason: str, by: str) -> None:
        """Someone other than Planaria isolates this node."""
        self.nodes[name].isolated = {"reason": reason, "by": by}

    def isolate_by_itself(self, name: str, reason: str, codes: list[str], now: float) -> None:
        """The scheduler takes this node out of work, for something has failed there."""
        self.nodes[name].isolated = {"reason": reason, "by": SCHEDULER, "codes": codes, "since": now}

    def state_of(self, name: str) -> scheduling.NodeState:
        node = self.nodes.get(name)
        if node is None:
            return scheduling.NodeState.UNKNOWN
        if node.lost or node.node_id not in self.up:
            return scheduling.NodeState.DOWN
        busy = bool(self.jobs_on(name))
        if node.isolated is not None:
            return scheduling.NodeState.DRAINING if busy else scheduling.NodeState.DRAINED
        return scheduling.NodeState.ALLOCATED if busy else scheduling.NodeState.IDLE

    def _describe(self, name: str) -> dict[str, Any]:
        node = self.nodes.get(name)
        return {
            "state": str(self.state_of(name)),
            "node_id": node.node_id if node else "",
            "reason": (node.isolated or {}).get("reason", "") if node else f"no node {name}",
            "jobs": self.jobs_on(name),
        }

    def _by_itself(self) -> list[str]:
        return [node.name for node in self.nodes.values() if (node.isolated or {}).get("by") == SCHEDULER]

    def _own_words(self, name: str) -> dict[str, Any]:
        isolated = self.nodes[name].isolated or {}
        return {"codes": isolated["codes"], "since": isolated["since"]}

    def _seen_on(self, name: str) -> list[str]:
        """Jobs that are there, and those that failed there and are still known."""
        failed = [job for job in self.jobs.values() if job.state is JobState.FAILED and name in job.nodes]
        newest = sorted(failed, key=lambda job: (job.ended_at, job.job_id))[-FAILED_TOLD:]
        return sorted({*self.jobs_on(name), *(job.job_id for job in newest)})

    def _describe_job(self, job_id: str) -> dict[str, Any] | None:
        job = self.jobs.get(job_id)
        if job is None:
            return None
        state = self._common_state(job)
        first = job.first_bad if state is scheduling.JobState.FAILED else None
        over = state in (
            scheduling.JobState.COMPLETED, scheduling.JobState.FAILED, scheduling.JobState.CANCELLED,
        )  # fmt: skip
        return {
            "state": str(state),
            "nodes": list(job.nodes),
            "ranks_per_node": job.ranks_per_node,
            "attempt": job.attempt,
            "restarts": max(0, job.starts - 1),
            "exit_code": first[1] if first else 0,
            "user": job.user,
            "name": str(job.recipe.get("name") or job_id),
            "requeue": job.may_requeue,
            "batch": job.has_script,
            "reason": str(job.state),
            "submit": job.submitted_at,
            "start": job.started_at,
            "end": job.ended_at if over else 0.0,
        }

    def _common_state(self, job: Job) -> scheduling.JobState:
        if job.queued is not None:
            return scheduling.JobState.PENDING
        if job.live_ranks and (job.state is not JobState.RUNNING or job.stop is not None):
            return scheduling.JobState.COMPLETING
        if job.state is JobState.STOPPED and not (job.may_requeue and job.has_script):
            return scheduling.JobState.CANCELLED
        return _COMMON[job.state]

    def _isolate(self, name: str, reason: str, lost: bool) -> str:
        node = self.nodes.get(name)
        if node is None:
            return f"UNKNOWN: no node {name}"
        if node.isolated is not None and node.isolated["by"] not in (OURS, SCHEDULER):
            return f"FOREIGN: {node.isolated['reason']}"
        node.isolated = {"reason": reason, "by": OURS}
        if lost and not node.lost:
            node.lost = True
            self.effects.append(EndNode(node.node_id))
        return "ISOLATED"

    def _readmit(self, name: str, reason: str) -> str:
        node = self.nodes.get(name)
        if node is None:
            return f"UNKNOWN: no node {name}"
        if node.isolated is not None and node.isolated != {"reason": reason, "by": OURS}:
            return f"FOREIGN: {node.isolated['reason']}"
        node.isolated, node.lost = None, False
        return "READMITTED"

    def _join(self, request: scheduling.Join) -> str:
        holder = next((n for n in self.nodes.values() if n.node_id == request.node_id), None)
        if holder is not None and holder.name != request.name:
            return f"BUSY: {request.node_id} is {holder.name} already"
        node = self.nodes.get(request.name)
        ours = {"reason": request.reason, "by": OURS}
        if node is None:
            self.nodes[request.name] = Node(request.name, request.node_id, request.address, ours)
            return "JOINED"
        if holder is node:
            if node.isolated is not None and node.isolated["by"] == OURS:
                node.isolated = ours
            node.address = request.address
            return "JOINED"
        running = self.jobs_on(request.name)
        if running:
            return f"BUSY: ranks of {', '.join(running)} still run on {node.node_id}"
        node.node_id, node.address, node.lost = request.node_id, request.address, False
        if node.isolated is None or node.isolated["by"] in (OURS, SCHEDULER):
            node.isolated = ours
        return "JOINED"

    def _stop(self, job_id: str, request: scheduling.Stop, now: float) -> str:
        job = self.jobs.get(job_id)
        if job is not None:
            job.queued = None
            if job.state is JobState.PENDING:
                job.state = JobState.STOPPED
            if job.live_ranks and (job.stop is None or job.stop["signal"] != request.signal):
                job.stop = {"signal": request.signal, "at": now}
                self._end(job, request.signal, request.grace_seconds, asked=True)
        return self._stopped(job_id)

    def _stopped(self, job_id: str) -> str:
        job = self.jobs.get(job_id)
        if job is None:
            return f"UNKNOWN: no job {job_id}"
        if job.state is JobState.COMPLETED:
            return "COMPLETED"
        return "COMPLETING" if job.live_ranks else "STOPPED"

    def _hold(self, request: scheduling.Hold, now: float) -> str:
        job = self.jobs.get(request.job)
        if job is None:
            return f"UNKNOWN: no job {request.job}"
        job.hold = {"nodes": list(request.nodes), "until": now + request.seconds}
        return "HELD"

    def _requeue(self, request: scheduling.Requeue, now: float) -> str:
        job = self.jobs.get(request.job)
        if job is None and request.kept and request.job in self.kept:
            job = Job(request.job, *self.kept[request.job])
            why = self._unfit(job, list(request.nodes), now)
            if why:
                return f"REFUSED: {why}"
            self.jobs[request.job] = job
        if job is None:
            return f"REFUSED: no job {request.job}"
        newest = max(job.attempt, job.queued["attempt"] if job.queued else 0)
        if request.attempt < max(1, newest):
            return f"REFUSED: attempt {newest} of {job.job_id} was started already"
        if request.attempt == newest:
            return "PENDING" if job.queued else "RUNNING"
        if job.state is JobState.COMPLETED:
            return f"REFUSED: {job.job_id} is completed"
        if job.state is JobState.CANCELLED:
            return f"REFUSED: {job.job_id} was cancelled by a person"
        if not job.has_script:
            return f"REFUSED: {job.job_id} has no batch script, so it cannot be started again"
        if not job.may_requeue:
            return f"REFUSED: {job.job_id} was submitted with --no-requeue"
        why = self._unfit(job, list(request.nodes), now)
        if why:
            return f"REFUSED: {why}"
        if job.live_ranks:
            job.queued = {
                "attempt": request.attempt, "nodes": list(request.nodes), "resume_step": request.resume_step,
            }  # fmt: skip
            if job.stop is None:
                job.stop = {"signal": "KILL", "at": now}
            self._end(job, "KILL", 0.0, asked=True)
            return "PENDING"
        self._start(job, list(request.nodes), request.attempt, request.resume_step)
        return "RUNNING"

    # --- what only this class knows --------------------------------------------------------------

    def _unfit(self, job: Job, names: list[str], now: float) -> str:
        """Why this job cannot start on these nodes; empty when it can."""
        if not names or len(set(names)) != len(names):
            return "the list of nodes is empty or names one twice"
        for name in names:
            why = self._why_not(job, name, now)
            if why:
                return why
        return ""

    def _why_not(self, job: Job, name: str, now: float) -> str:
        node = self.nodes.get(name)
        if node is None:
            return f"no node {name}"
        if node.isolated is not None:
            return f"{name} is isolated: {node.isolated['reason']}"
        if self.state_of(name) is scheduling.NodeState.DOWN:
            return f"{name} is down"
        others = [other for other in self.jobs_on(name) if other != job.job_id]
        if others:
            return f"{name} runs {others[0]}"
        for other in self.jobs.values():
            hold = other.hold if other.job_id != job.job_id else None
            if hold is not None and name in hold["nodes"] and hold["until"] > now:
                return f"{name} is held for {other.job_id}"
        return ""

    def _candidates(self, job: Job, now: float) -> list[str]:
        """Fit nodes, those of the last attempt first and in their rank order, so that ranks stay put."""
        rest = sorted((name for name in self.nodes if name not in job.nodes), key=_natural)
        return [name for name in [*job.nodes, *rest] if not self._why_not(job, name, now)]

    def _start(self, job: Job, names: list[str], attempt: int, resume_step: int) -> None:
        job.nodes, job.attempt, job.resume_step = names, attempt, resume_step
        job.placement = [self.nodes[name].node_id for name in names for _ in range(job.ranks_per_node)]
        job.exits, job.stop, job.failed_at, job.ended = {}, None, None, False
        job.queued, job.hold, job.state = None, None, JobState.RUNNING
        job.starts, job.first_bad, job.started_at = job.starts + 1, None, self._now
        self.effects.append(StartRanks(job.job_id, attempt, tuple(job.placement), resume_step))

    def _end(self, job: Job, signal: str, grace_seconds: float, asked: bool) -> None:
        self.effects.append(EndRanks(job.job_id, job.attempt, signal, grace_seconds, asked))

    # --- to and from JSON ------------------------------------------------------------------------

    def nodes_document(self) -> dict[str, Any]:
        return {name: asdict(node) for name, node in self.nodes.items()}

    def job_document(self, job_id: str) -> dict[str, Any]:
        return asdict(self.jobs[job_id])

    def restore(self, nodes: dict[str, Any], jobs: list[dict[str, Any]]) -> None:
        """Continue from the documents of an earlier process."""
        self.nodes = {name: Node(**document) for name, document in nodes.items()}
        for document in jobs:
            exits = {int(rank): code for rank, code in document["exits"].items()}
            job = Job(**{**document, "exits": exits, "state": JobState(document["state"])})
            self.jobs[job.job_id] = job


def _natural(name: str) -> list[tuple[int, str]]:
    """demo-2 before demo-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
