"""What may be asked of a scheduler, as values: the requests of the Scheduler port and their answers.

Every request takes a list and is a set, not a toggle: sent twice it changes nothing more. The answer has
one entry per asked node or job, keyed by its name.
"""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class NodeQuery:
    """-> {name: {"state": NodeState, "node_id": str, "reason": str, "jobs": [job id]}}"""

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
class Stop:
    """End all processes of these jobs; the jobs stay known. -> {job id: "STOPPED" | "COMPLETING" |
    "COMPLETED" (it had come to its own end) | "UNKNOWN: <reason>" (no such job, so nothing runs)}"""

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
    requeued job after about two minutes (BeginTime)."""

    job: str
    nodes: tuple[str, ...]
    attempt: int
    resume_step: int
    verb: str = "requeue"


@dataclass(frozen=True, slots=True)
class Place:
    """-> {job id: [names of `count` nodes that could take this job now]}"""

    job: str
    count: int
    verb: str = "place"


SchedulerRequest = NodeQuery | Isolate | Lost | Readmit | Join | JobsOn | Stop | Hold | Requeue | Place


class NodeState(StrEnum):
    """Base states in the schedulers' common words; anything else is UNKNOWN, never healthy."""

    IDLE = "IDLE"
    ALLOCATED = "ALLOCATED"
    DRAINING = "DRAINING"
    DRAINED = "DRAINED"
    DOWN = "DOWN"
    UNKNOWN = "UNKNOWN"
