"""What the signals of a node mean."""

from dataclasses import dataclass
from enum import StrEnum


class Action(StrEnum):
    """What is done about a node, weakest first. DRAIN is for planned ends and stands beside REPLACE."""

    MONITOR = "MONITOR"
    RESET = "RESET"
    REBOOT = "REBOOT"
    DRAIN = "DRAIN"
    REPLACE = "REPLACE"

    @property
    def strength(self) -> int:
        return list(Action).index(self)


class Severity(StrEnum):
    """How much the node can still do."""

    INFO = "INFO"
    DEGRADED = "DEGRADED"
    FATAL = "FATAL"


@dataclass(frozen=True, slots=True)
class Fault:
    """kind and code as in the Signal; detector: who saw it (the breaker counts per detector);
    confidence: 1.0 for an authoritative proof (EC2 says terminated), less for one observer's word;
    deadline: seconds since the epoch at which the node will be gone, None when unknown;
    job_id and attempt: set when it is the job that failed, not the node.
    """

    kind: str
    code: str
    severity: Severity
    detector: str
    confidence: float = 1.0
    deadline: float | None = None
    job_id: str | None = None
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What should be done about a fault, why, and by which rule (a stable id such as `xid-79`)."""

    action: Action
    reason: str
    rule: str
