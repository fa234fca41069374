"""What Planaria may do by itself, and how long it waits: the `policy` object of the cluster document."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from planaria.core.errors import InvalidInput
from planaria.core.fault import Action
from planaria.core.maintenance import Window, windows_of
from planaria.core.overrides import Override, overrides_of

W = TypeVar("W", bound=StrEnum)


class Mode(StrEnum):
    """observe: judge and record everything, act on nothing. approve: a person says yes to every incident
    that takes a working node away, before anything is done to it."""

    ACT = "act"
    APPROVE = "approve"
    OBSERVE = "observe"


class Rebalance(StrEnum):
    """What a rebalance recommendation leads to. move: the node is replaced before EC2 takes it, by another
    offering."""

    CHECKPOINT = "checkpoint"
    MOVE = "move"
    IGNORE = "ignore"


class Drain(StrEnum):
    """How a node is emptied whose end is planned and that still works: its jobs are let come to their own
    end, or save a checkpoint first, or are stopped at once. Past the deadline they are stopped anyway."""

    WAIT = "wait"
    CHECKPOINT = "checkpoint"
    STOP = "stop"


class Unused(StrEnum):
    """What becomes of a replacement that nobody needs any more."""

    TERMINATE = "terminate"
    SPARE = "spare"


class Gang(StrEnum):
    """What replacements of one job do while another of its nodes finds no capacity: keep their place, or go
    back so that nobody pays for nodes that cannot work."""

    KEEP = "keep"
    ALL_OR_NOTHING = "all-or-nothing"


class DeepCheck(StrEnum):
    """When the long check of a node runs before it works again. auto: by the fault's kind."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Breaker:
    """At most max(1, min(max_removals, max_share of the fleet)) removals in any window_seconds, and of those
    that one detector asks for likewise with max_per_detector (None: as many as of all)."""

    max_removals: int = 4
    max_share: float = 0.25
    window_seconds: float = 3600.0
    max_per_detector: int | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """Durations are seconds, already scaled by the cluster document's time_scale.

    boot_timeout_seconds: launch or reboot to node ready. drain_deadline_seconds: how long a DRAIN waits
    for the job. job_settle_seconds: how long a failed process may wait for news of its node.
    max_attempts: executions per session. max_resumes within resume_window_seconds: per job.
    gpu_reset: single GPUs may be reset; without it RESET becomes REBOOT, the next step.
    approval_timeout_seconds: how long an incident of mode `approve` waits for a person.
    boot_grace_seconds: after a boot, in which what a single observer says is not believed.
    confirmation_seconds: within which a second, independent observer confirms the first.
    ladder_seconds: how long an act is remembered as tried; the next step is taken if the fault is back.
    offender_incidents within offender_seconds: a node with as many is replaced, whatever it has.
    max_replacements within replacements_seconds: of one scheduler name; then a person looks.
    escalate_to: the strongest repair that an incident may go on to when a weaker one did not help.
    reset_timeout_seconds, deep_check_timeout_seconds: how long a GPU reset and a deep check may take.
    capacity_timeout_seconds: how long an incident waits for capacity. cooldown_seconds: how long an offering
    that had none is passed over. hold_seconds: how long the survivors of a job are kept free for it.
    rebalance_rounds: moves of one scheduler name within replacements_seconds. rebalance_grace_seconds: how
    old a node must be to be moved. lead_seconds: how long before an announced end a node is drained at the
    latest; before that when it has no job. spare_check_seconds: how often each spare is checked.
    """

    mode: Mode = Mode.ACT
    breaker: Breaker = field(default_factory=Breaker)
    boot_timeout_seconds: float = 1800.0
    drain_deadline_seconds: float = 600.0
    job_settle_seconds: float = 10.0
    max_attempts: int = 5
    max_resumes: int = 10
    resume_window_seconds: float = 3600.0
    rebalance: Rebalance = Rebalance.CHECKPOINT
    gpu_reset: bool = False
    approval_timeout_seconds: float = 3600.0
    boot_grace_seconds: float = 300.0
    confirmation_seconds: float = 900.0
    ladder_seconds: float = 86_400.0
    offender_incidents: int = 3
    offender_seconds: float = 604_800.0
    max_replacements: int = 3
    replacements_seconds: float = 86_400.0
    escalate_to: Action = Action.REPLACE
    reset_timeout_seconds: float = 300.0
    deep_check: DeepCheck = DeepCheck.AUTO
    deep_check_timeout_seconds: float = 9000.0
    drain: Drain = Drain.CHECKPOINT
    unused_replacement: Unused = Unused.TERMINATE
    gang: Gang = Gang.KEEP
    capacity_timeout_seconds: float = 604_800.0
    cooldown_seconds: float = 600.0
    hold_seconds: float = 3600.0
    rebalance_rounds: int = 2
    rebalance_grace_seconds: float = 3600.0
    lead_seconds: float = 86_400.0
    spare_check_seconds: float = 3600.0
    maintenance: tuple[Window, ...] = ()
    catalog: tuple[Override, ...] = ()

    @classmethod
    def default(cls) -> "Policy":
        return cls()

    @classmethod
    def from_document(cls, document: object) -> "Policy":
        """Read the JSON object; absent keys have their defaults.

        Unknown keys are passed over: planaria/recipes.py refuses them in the file that people edit, and
        an older Lambda must be able to read a newer document. Raises InvalidInput that names the key.
        """
        if not isinstance(document, Mapping):
            raise InvalidInput(f"policy must be an object, not {document!r:.60}")
        given = dict(document)
        default = cls()
        inner = given.get("breaker", {})
        if not isinstance(inner, Mapping):
            raise InvalidInput(f"policy.breaker must be an object, not {inner!r:.60}")
        share = _number(inner, "breaker.max_share", default.breaker.max_share)
        if not 0 < share <= 1:
            raise InvalidInput(f"policy.breaker.max_share must be above 0 and at most 1, not {share:g}")
        return cls(
            mode=_word(given, "mode", Mode, default.mode),
            breaker=Breaker(
                _count(inner, "breaker.max_removals", default.breaker.max_removals),
                share,
                _number(inner, "breaker.window_seconds", default.breaker.window_seconds),
                None
                if inner.get("max_per_detector") is None
                else _count(inner, "breaker.max_per_detector", default.breaker.max_removals),
            ),
            max_attempts=_count(given, "max_attempts", default.max_attempts),
            max_resumes=_count(given, "max_resumes", default.max_resumes),
            rebalance=_word(given, "rebalance", Rebalance, default.rebalance),
            escalate_to=_word(given, "escalate_to", Action, default.escalate_to),
            deep_check=_word(given, "deep_check", DeepCheck, default.deep_check),
            drain=_word(given, "drain", Drain, default.drain),
            unused_replacement=_word(given, "unused_replacement", Unused, default.unused_replacement),
            gang=_word(given, "gang", Gang, default.gang),
            rebalance_rounds=_count(given, "rebalance_rounds", default.rebalance_rounds),
            gpu_reset=_flag(given, "gpu_reset", default.gpu_reset),
            offender_incidents=_count(given, "offender_incidents", default.offender_incidents),
            max_replacements=_count(given, "max_replacements", default.max_replacements),
            maintenance=windows_of(given.get("maintenance", ())),
            catalog=overrides_of(given.get("catalog", ())),
            **{name: _number(given, name, getattr(default, name)) for name in _SECONDS},
        )


_SECONDS = (
    "boot_timeout_seconds",
    "drain_deadline_seconds",
    "job_settle_seconds",
    "resume_window_seconds",
    "approval_timeout_seconds",
    "boot_grace_seconds",
    "confirmation_seconds",
    "ladder_seconds",
    "offender_seconds",
    "replacements_seconds",
    "reset_timeout_seconds",
    "deep_check_timeout_seconds",
    "capacity_timeout_seconds",
    "cooldown_seconds",
    "hold_seconds",
    "rebalance_grace_seconds",
    "lead_seconds",
    "spare_check_seconds",
)


def _take(document: Mapping[Any, Any], path: str, default: Any) -> Any:
    return document.get(path.rpartition(".")[2], default)


def _number(document: Mapping[Any, Any], path: str, default: float) -> float:
    value = _take(document, path, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InvalidInput(f"policy.{path} must be a number of at least 0, not {value!r:.60}")
    return float(value)


def _count(document: Mapping[Any, Any], path: str, default: int) -> int:
    value = _take(document, path, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(f"policy.{path} must be a whole number of at least 1, not {value!r:.60}")
    return value


def _flag(document: Mapping[Any, Any], path: str, default: bool) -> bool:
    value = _take(document, path, default)
    if not isinstance(value, bool):
        raise InvalidInput(f"policy.{path} must be true or false, not {value!r:.60}")
    return value


def _word(document: Mapping[Any, Any], path: str, words: type[W], default: W) -> W:
    value = _take(document, path, default)
    if not isinstance(value, str) or value not in set(words):
        raise InvalidInput(f"policy.{path} must be one of {', '.join(words)}, not {value!r:.60}")
    return words(value)
