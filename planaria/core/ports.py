"""What the outside can do, as Protocols. Adapters live in planaria/aws, planaria/schedulers and
planaria/memory.py; only planaria/wiring.py chooses between them.

Slow ports have two halves: `submit` returns a ticket at once, `poll` returns an Answer. Every request is
a set, not a toggle: sent twice it changes nothing more. An adapter that cannot tell answers UNKNOWN and
never "healthy" or "drained"; waiting belongs to the workflow.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from planaria.core.scheduling import SchedulerRequest
from planaria.core.table import Changes, Condition, Path, Row


class AnswerState(StrEnum):
    PENDING = "PENDING"
    DONE = "DONE"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Answer:
    """value: one entry per asked node (or job), keyed by its name; empty unless DONE."""

    state: AnswerState
    value: dict[str, Any] = field(default_factory=dict)
    reason: str = ""


# --- Scheduler -----------------------------------------------------------------------------------


class Scheduler(Protocol):
    """Slurm, EKS or the sandbox's processes. Raises TransientError when it cannot be reached."""

    def submit(self, request: SchedulerRequest) -> str: ...
    def poll(self, ticket: str) -> Answer: ...


# --- Commands and Node ---------------------------------------------------------------------------


class Commands(Protocol):
    """Runs a named document on instances: SSM Run Command, or local HTTP in the sandbox.

    -> {node id: {"status": "SUCCESS" | "FAILED" | "UNKNOWN", "output": JSON value}}. FAILED: the program ran
    and ended badly, or this release has no such document; its output may have a `reason`. UNKNOWN: the node
    could not be reached, or its answer not be read, while others of the same call answered. Where none of
    them can be told of, the whole Answer is UNKNOWN.
    """

    def submit(self, document: str, node_ids: Sequence[str], parameters: Mapping[str, str]) -> str: ...
    def poll(self, ticket: str) -> Answer: ...


# --- Fleet (EC2) ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Instance:
    """One EC2 instance. state: EC2's word; tags: all of them; launched_at: epoch seconds. host: the id of the
    Dedicated Host below it, "" where EC2 does not show it."""

    node_id: str
    state: str
    instance_type: str = ""
    zone: str = ""
    lifecycle: str = "on-demand"
    launched_at: float = 0.0
    address: str = ""
    reservation: str = ""
    state_reason: str = ""
    host: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StatusEvent:
    """One scheduled event of an instance. code: EC2's word, such as instance-retirement; description begins
    with [Completed] or [Canceled] once it is over. not_before: epoch seconds, None when EC2 does not say."""

    event_id: str
    code: str
    description: str = ""
    not_before: float | None = None


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """EC2's own checks of one running instance: each `ok`, `impaired`, `initializing`, `insufficient-data` or
    `not-applicable`, "" where EC2 does not say. since: check -> epoch seconds from which it is impaired."""

    node_id: str
    system: str = ""
    instance: str = ""
    ebs: str = ""
    since: Mapping[str, float] = field(default_factory=dict)
    events: tuple[StatusEvent, ...] = ()


def _first(node_ids: Sequence[str]) -> str:
    return node_ids[0] if node_ids else ""


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One instance from one offering. token: at most 64 ASCII characters, the ClientToken and the
    value of the tag `planaria:launch`. capacity: a word of core/cluster.Capacity. launch_template: for a
    reservation or a Capacity Block the one that names it. auto_scaling_group: the group that launches it, ""
    where we do; replaces: the instance whose place it takes, "" for a spare.

    Of an Auto Scaling group alone: since: an instance that it launched earlier (epoch seconds) is no new one.
    choose: the first of these instances that no other incident has, "" when there is none; it is ours then.
    """

    token: str
    launch_template: str
    instance_type: str
    subnet: str
    capacity: str
    tags: Mapping[str, str]
    reservation: str = ""
    auto_scaling_group: str = ""
    replaces: str = ""
    since: float = 0.0
    choose: Callable[[Sequence[str]], str] = field(default=_first, compare=False)


class Fleet(Protocol):
    """EC2. Only instances with the tag `planaria:cluster=<name>` exist for it.

    launch raises CapacityError, PermanentError or TransientError by meaning; where an Auto Scaling group
    launches also Waiting, and it answers "" when that group wants no further instance. reboot and terminate
    of an instance that is already gone return quietly. statuses: of those among `node_ids` that run; the
    caller knows that they are ours, for EC2 cannot filter these by tag.
    """

    def describe(self, node_ids: Sequence[str]) -> list[Instance]: ...
    def cluster(self) -> list[Instance]: ...
    def statuses(self, node_ids: Sequence[str]) -> list[InstanceStatus]: ...
    def launched(self, token: str) -> list[Instance]: ...
    def launch(self, request: LaunchRequest) -> str: ...
    def reboot(self, node_id: str) -> None: ...
    def terminate(self, node_id: str) -> None: ...


class Scaling(Protocol):
    """Auto Scaling groups, whose members the cluster's nodes may be; of any other node nothing is done.

    prolong: a group that is about to end this node waits on for our word. ending: it waits so. complete: the
    node is empty, its group may end it. remove: end it, and its group wants one fewer. claim: the new member
    that a launch which was broken off would have found by now, if its node has left the group for it.
    give_back: end a replacement that is not wanted any more; `instead_of`, which left the group for it, is a
    member again. Each may be repeated.
    """

    def prolong(self, node_id: str) -> None: ...
    def ending(self, node_id: str) -> bool: ...
    def complete(self, node_id: str) -> None: ...
    def remove(self, node_id: str) -> None: ...
    def claim(self, request: LaunchRequest) -> None: ...
    def give_back(self, node_id: str, instead_of: str) -> None: ...


# --- Table, Bus, Workflows, Clock, Notices ---------------------------------------------------------


class Table(Protocol):
    """A DynamoDB table with string keys `pk` and `sk` and the index `listing` (`listing`, `pk`).

    write applies `sets`, `removes` and `adds` (counters) in one conditional UpdateItem and returns the
    row after it, or {} with `quiet`; when the condition fails it raises table.Conflict with the row as it is.
    A path of two names reaches into a map, which must exist. Numbers come back as int or float. get_many
    gives those of the rows that exist and were answered, in any order: one that is missing may yet exist.
    """

    def get(self, pk: str, sk: str) -> Row | None: ...
    def get_many(self, keys: Sequence[tuple[str, str]]) -> list[Row]: ...
    def write(
        self,
        pk: str,
        sk: str,
        sets: Changes | None = None,
        removes: Sequence[Path] = (),
        adds: Mapping[Path, int] | None = None,
        when: Condition | None = None,
        quiet: bool = False,
    ) -> Row: ...
    def query(self, pk: str) -> list[Row]: ...
    def listing(self, kind: str) -> list[Row]: ...


class Bus(Protocol):
    """Planaria's own event bus. resources: of each of these events, as AWS puts its ARNs there."""

    def put(
        self,
        source: str,
        detail_type: str,
        details: Sequence[Mapping[str, Any]],
        resources: Sequence[str] = (),
    ) -> None: ...


class Execution(StrEnum):
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    ABORTED = "ABORTED"
    NONE = "NONE"


class Workflows(Protocol):
    """Step Functions. start is idempotent by name: it returns the execution's ARN and its state, whether
    this call started it or it was there already."""

    def start(self, machine: str, name: str, document: Mapping[str, Any]) -> tuple[str, Execution]: ...
    def state(self, execution_arn: str) -> Execution: ...
    def stop(self, execution_arn: str, reason: str) -> None: ...
    def answer(self, task_token: str, output: Mapping[str, Any]) -> bool: ...


class Clock(Protocol):
    def now(self) -> float: ...


class Notices(Protocol):
    """Mail to a person (SNS)."""

    def publish(self, subject: str, text: str) -> None: ...


class Objects(Protocol):
    """Small objects in the bucket (large event bodies), by key."""

    def put(self, key: str, body: bytes) -> None: ...
    def get(self, key: str) -> bytes: ...


class Queues(Protocol):
    """What triage may do to a message it could not finish: see it again soon."""

    def retry_after(self, queue_arn: str, receipt_handle: str, seconds: int) -> None: ...
