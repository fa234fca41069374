"""What may be asked of a scheduler, as values: the requests of the Scheduler port and their answers.

Every request takes a list and is a set, not a toggle: sent twice it changes nothing more. The answer has
one entry per asked node or job, keyed by its name.
"""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class NodeQuery:
    """-> {name: {"state": NodeState, "node_id": str, "reason": str, "jobs": [job id]}}

    Without names: the nodes that the scheduler keeps out of work by its own words, for something failed there
    and nobody wants it so. Each entry then has also "codes": [what the fault catalogue calls these words, a
    code of node_condition such as Slurm/KillTaskFailed], and "since": float (epoch seconds at which they were
    written, 0.0: not known). Kubernetes has none: what ails a node there is in its conditions, which its
    agents report."""

    nodes: tuple[str, ...]
    verb: str = "node"


@dataclass(frozen=True, slots=True)
class Isolate:
    """No new work on these nodes. -> {name: "ISOLATED" | "FOREIGN: <reason>" | "UNKNOWN: <reason>"}.

    A node that someone else isolated is not written to and answers FOREIGN.
    """

    nodes: tuple[str, ...]
    reason: str
    verb: str = "isolate"


@dataclass(frozen=True, slots=True)
class Lost:
    """These nodes are proven dead: end what runs there at once. -> as Isolate."""

    nodes: tuple[str, ...]
    reason: str
    verb: str = "lost"


@dataclass(frozen=True, slots=True)
class Readmit:
    """Work again. `reason` is what our isolation wrote; any other isolation stays.

    -> {name: "READMITTED" | "FOREIGN: <reason>"}
    """

    nodes: tuple[str, ...]
    reason: str
    verb: str = "readmit"


@dataclass(frozen=True, slots=True)
class Join:
    """The instance `node_id` at `address` takes the scheduler name `name`. It starts isolated with
    `reason`, and a Readmit follows. -> {name: "JOINED" | "BUSY: <reason>"}"""

    name: str
    node_id: str
    address: str
    reason: str
    verb: str = "join"


@dataclass(frozen=True, slots=True)
class JobsOn:
    """-> {name: [job id of every job that runs or completes there]}"""

    nodes: tuple[str, ...]
    verb: str = "jobs_on"


@dataclass(frozen=True, slots=True)
class JobQuery:
    """What the scheduler knows of these jobs, in one call for all of them. -> {job id: None (it knows no such
    job, or has forgotten it) | {
        "state": JobState,
        "nodes": [names in the order of their ranks, of the present attempt or the last one],
        "ranks_per_node": int (0: not known),
        "attempt": int (the one of ours that was started last; 1 as it was submitted, 0 before its start),
        "restarts": int (how often it was started again, by anyone),
        "exit_code": int (negative: a signal; 0 while there is none),
        "user": str, "name": str,
        "requeue": bool (it may be started again),
        "batch": bool (it has a script, so that it can be),
        "reason": str (the scheduler's own word for its state),
        "submit", "start", "end": float (epoch seconds; 0.0: not yet, or not known)}}

    A job without an entry could not be looked at: that is no word about it. nodes: also every job that is on
    one of these nodes now, and the newest 20 on each that ended there FAILED or NODE_FAIL and are not
    forgotten yet."""

    jobs: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    verb: str = "jobs"


@dataclass(frozen=True, slots=True)
class Stop:
    """End all processes of these jobs; the jobs stay known. -> {job id: "STOPPED" | "COMPLETING" |
    "COMPLETED" (it had come to its own end) | "LEFT: <reason>" (another controller stops and starts it, and
    nothing of it runs on a node that we isolated) | "UNKNOWN: <reason>" (no such job, so nothing runs)}

    One that failed shortly before and is remembered is kept so that it can be started again."""

    jobs: tuple[str, ...]
    signal: str
    grace_seconds: float
    verb: str = "stop"


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep these nodes free for this job until `seconds` from now, or until it is requeued; a hold of the job
    that is there already ends, and without nodes that is all. -> {job id: "HELD" | "UNKNOWN: <reason>"}"""

    job: str
    nodes: tuple[str, ...]
    seconds: float
    verb: str = "hold"


@dataclass(frozen=True, slots=True)
class Requeue:
    """Start attempt `attempt` of the job on exactly these nodes, in rank order, from `resume_step`
    (-1 = no checkpoint was ever written). The same attempt asked again changes nothing; a lower one
    is refused. -> {job id: "RUNNING" | "PENDING" | "PENDING: <reason>" | "REFUSED: <reason>"}

    PENDING is no failure: the scheduler has taken the attempt and starts it when it may, as Slurm does a
    requeued job after about two minutes (BeginTime). kept: the folder in which `planaria submit` keeps the
    job's script and options, "" for none: a job that the scheduler has forgotten is submitted again from it,
    and goes on under its old id here."""

    job: str
    nodes: tuple[str, ...]
    attempt: int
    resume_step: int
    kept: str = ""
    verb: str = "requeue"


@dataclass(frozen=True, slots=True)
class Place:
    """-> {job id: [names of `count` nodes that could take this job now]}"""

    job: str
    count: int
    verb: str = "place"


SchedulerRequest = (
    NodeQuery | Isolate | Lost | Readmit | Join | JobsOn | JobQuery | Stop | Hold | Requeue | Place
)


class NodeState(StrEnum):
    """Base states in the schedulers' common words; anything else is UNKNOWN, never healthy."""

    IDLE = "IDLE"
    ALLOCATED = "ALLOCATED"
    DRAINING = "DRAINING"
    DRAINED = "DRAINED"
    DOWN = "DOWN"
    UNKNOWN = "UNKNOWN"


class JobState(StrEnum):
    """How a job stands, in common words; anything else is UNKNOWN, which is never an end.

    PENDING: it has no processes yet, or we have stopped it and it can be started again. RUNNING: it has its
    nodes. COMPLETING: its processes are ending. Then one of: COMPLETED (by itself, and well), FAILED (by
    itself, and badly, out of memory too), NODE_FAIL (the scheduler blames a node), CANCELLED (a person has
    ended it, or we one that cannot be started again), TIMEOUT (its time was up).
    """

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETING = "COMPLETING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    NODE_FAIL = "NODE_FAIL"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    UNKNOWN = "UNKNOWN"
