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
        return _STRENGTH[self]


_STRENGTH = {action: strength for strength, action in enumerate(Action)}


class Severity(StrEnum):
    """How much the node can still do."""

    INFO = "INFO"
    DEGRADED = "DEGRADED"
    FATAL = "FATAL"


ONE_OBSERVER = 0.5
"""Confidence of what a single observer says and nobody confirms (`proof` is `one` in the catalogue)."""


@dataclass(frozen=True, slots=True)
class Fault:
    """kind and code as in the Signal; detector: who saw it (the breaker counts per detector);
    confidence: 1.0 for an authoritative proof (EC2 says terminated), less for one observer's word, which
    needs a second one before anything destructive; deadline: seconds since the epoch at which the node will
    be gone, None when unknown; job_id and attempt: set when it is the job that failed, not the node;
    pci and place: which GPU, and where on it (`gpc1/tpc3`), where the fault says so; cause: the code of the
    fault that this one follows from, where its own text names it; reservation: the capacity that ends.
    """

    kind: str
    code: str
    severity: Severity
    detector: str
    confidence: float = 1.0
    deadline: float | None = None
    job_id: str | None = None
    attempt: int | None = None
    pci: str = ""
    place: str = ""
    cause: str = ""
    reservation: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """What should be done about a fault, why, by which rule (a stable id such as `xid-79`), who says so."""

    action: Action
    reason: str
    rule: str
    sources: str = ""
