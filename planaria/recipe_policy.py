"""The section `policy` of a cluster file: what Planaria may do by itself, and how long it waits."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from planaria.core import maintenance, overrides
from planaria.core.errors import InvalidInput
from planaria.core.fault import Action
from planaria.core.policy import DeepCheck, Drain, Gang, Mode, Rebalance, Unused

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
Count = Annotated[int, Field(strict=True, ge=1, le=100_000)]
Repair = Literal[Action.RESET, Action.REBOOT, Action.REPLACE]
Share = Annotated[float, Field(strict=True, gt=0, le=1)]
Minutes = Annotated[float, Field(strict=True, gt=0, le=60 * 24 * 30)]
Hours = Annotated[float, Field(strict=True, gt=0, le=24 * 90)]
Seconds = Annotated[float, Field(strict=True, ge=0, le=3600)]


class Section(BaseModel):
    """A mapping whose keys are all known."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Breaker(Section):
    """At most max(1, min(max_removals, max_share of the fleet)) removals in any window, and of those that one
    detector asks for at most max_per_detector; without it as many as of all."""

    max_removals: Count = 4
    max_share: Share = 0.25
    window_minutes: Minutes = 60.0
    max_per_detector: Count | None = None

    @model_validator(mode="after")
    def _a_part_is_no_more_than_the_whole(self) -> Self:
        if self.max_per_detector is not None and self.max_per_detector > self.max_removals:
            most = f"max_per_detector must be at most max_removals ({self.max_removals})"
            raise ValueError(f"{most}, not {self.max_per_detector}")
        return self


class Maintenance(Section):
    """A time in which people work on the cluster: `start` and `end`, or `weekly` and `hours`; UTC."""

    start: datetime | None = None
    end: datetime | None = None
    weekly: str | None = None
    hours: Annotated[float, Field(strict=True, gt=0, le=168)] | None = None
    reason: Annotated[str, Field(max_length=200)] = ""
    node_groups: tuple[Name, ...] = ()

    @field_validator("start", "end", mode="before")
    @classmethod
    def _is_a_time(cls, value: Any) -> Any:
        if isinstance(value, bool | int | float):  # pydantic would take it for seconds since 1970
            raise ValueError(f"must be a time such as 2026-12-24T18:00:00Z, not {value!r}")
        return value

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        once, weekly = (self.start, self.end), (self.weekly, self.hours)
        if (None in once or weekly != (None, None)) and (None in weekly or once != (None, None)):
            raise ValueError("must have start and end, or weekly and hours")
        try:
            maintenance.windows_of([self.entry()])
        except InvalidInput as error:
            raise ValueError(str(error).removeprefix("policy.maintenance[0].")) from None
        return self

    def entry(self) -> dict[str, Any]:
        """As the document has it."""
        common = {"reason": self.reason, "node_groups": list(self.node_groups)}
        if self.weekly is not None:
            return {"weekly": self.weekly, "hours": self.hours, **common}
        assert self.start is not None and self.end is not None
        return {"start": self.start.isoformat(), "end": self.end.isoformat(), **common}


class CatalogEntry(Section):
    """This cluster's own answer to a fault; it goes before Planaria's catalogue."""

    kind: Annotated[str, Field(min_length=1, max_length=64)]
    code: Annotated[str, Field(min_length=1, max_length=64)]
    action: Action
    reason: Annotated[str, Field(min_length=1, max_length=300)]
    families: tuple[Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")], ...] = ()

    @field_validator("code", mode="before")
    @classmethod
    def _may_be_a_number(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _is_in_the_catalogue(self) -> Self:
        try:
            overrides.overrides_of([self.model_dump(mode="json")])
        except InvalidInput as error:
            raise ValueError(str(error).removeprefix("policy.catalog[0].")) from None
        return self


class Policy(Section):
    """What Planaria may do by itself, and how long it waits."""

    mode: Mode = Mode.ACT
    breaker: Breaker = Breaker()
    boot_timeout_minutes: Minutes = 30.0
    # A state machine waits no longer than four hours for a node to be empty.
    drain_deadline_minutes: Annotated[float, Field(strict=True, gt=0, le=180)] = 10.0
    job_settle_seconds: Seconds = 10.0
    max_attempts: Count = 5
    max_resumes: Count = 10
    resume_window_minutes: Minutes = 60.0
    rebalance: Rebalance = Rebalance.CHECKPOINT
    gpu_reset: Annotated[bool, Field(strict=True)] = False
    # heal_node's state machine waits no longer than twelve hours for anyone.
    approval_timeout_minutes: Annotated[float, Field(strict=True, ge=1, le=720)] = 60.0
    boot_grace_minutes: Minutes = 5.0
    confirmation_minutes: Minutes = 15.0
    ladder_hours: Hours = 24.0
    offender_incidents: Count = 3
    offender_hours: Hours = 168.0
    max_replacements: Count = 3
    replacements_hours: Hours = 24.0
    escalate_to: Repair = Action.REPLACE
    # heal_node's loop around a GPU reset ends before twelve minutes are over.
    reset_timeout_minutes: Annotated[float, Field(strict=True, gt=0, le=10)] = 5.0
    deep_check: DeepCheck = DeepCheck.AUTO
    # heal_node's state machine waits no longer than four hours for a check.
    deep_check_timeout_minutes: Annotated[float, Field(strict=True, gt=0, le=240)] = 150.0
    drain: Drain = Drain.CHECKPOINT
    unused_replacement: Unused = Unused.TERMINATE
    gang: Gang = Gang.KEEP
    capacity_timeout_hours: Hours = 168.0
    cooldown_minutes: Minutes = 10.0
    hold_minutes: Minutes = 60.0
    rebalance_rounds: Count = 2
    rebalance_grace_minutes: Minutes = 60.0
    lead_hours: Hours = 24.0
    spare_check_minutes: Minutes = 60.0
    maintenance: tuple[Maintenance, ...] = ()
    catalog: tuple[CatalogEntry, ...] = ()

    def document(self, time_scale: float) -> dict[str, Any]:
        """As the Lambdas read it: all durations in seconds, multiplied by `time_scale`."""
        return {
            "mode": self.mode.value,
            "breaker": {
                "max_removals": self.breaker.max_removals,
                "max_share": self.breaker.max_share,
                "window_seconds": self.breaker.window_minutes * 60 * time_scale,
                "max_per_detector": self.breaker.max_per_detector,
            },
            "boot_timeout_seconds": self.boot_timeout_minutes * 60 * time_scale,
            "drain_deadline_seconds": self.drain_deadline_minutes * 60 * time_scale,
            "job_settle_seconds": self.job_settle_seconds * time_scale,
            "max_attempts": self.max_attempts,
            "max_resumes": self.max_resumes,
            "resume_window_seconds": self.resume_window_minutes * 60 * time_scale,
            "rebalance": self.rebalance.value,
            "gpu_reset": self.gpu_reset,
            "approval_timeout_seconds": self.approval_timeout_minutes * 60 * time_scale,
            "boot_grace_seconds": self.boot_grace_minutes * 60 * time_scale,
            "confirmation_seconds": self.confirmation_minutes * 60 * time_scale,
            "ladder_seconds": self.ladder_hours * 3600 * time_scale,
            "offender_incidents": self.offender_incidents,
            "offender_seconds": self.offender_hours * 3600 * time_scale,
            "max_replacements": self.max_replacements,
            "replacements_seconds": self.replacements_hours * 3600 * time_scale,
            "escalate_to": self.escalate_to.value,
            "reset_timeout_seconds": self.reset_timeout_minutes * 60 * time_scale,
            "deep_check": self.deep_check.value,
            "deep_check_timeout_seconds": self.deep_check_timeout_minutes * 60 * time_scale,
            "drain": self.drain.value,
            "unused_replacement": self.unused_replacement.value,
            "gang": self.gang.value,
            "capacity_timeout_seconds": self.capacity_timeout_hours * 3600 * time_scale,
            "cooldown_seconds": self.cooldown_minutes * 60 * time_scale,
            "hold_seconds": self.hold_minutes * 60 * time_scale,
            "rebalance_rounds": self.rebalance_rounds,
            "rebalance_grace_seconds": self.rebalance_grace_minutes * 60 * time_scale,
            "lead_seconds": self.lead_hours * 3600 * time_scale,
            "spare_check_seconds": self.spare_check_minutes * 60 * time_scale,
            "maintenance": [window.entry() for window in self.maintenance],
            "catalog": [entry.model_dump(mode="json") for entry in self.catalog],
        }
