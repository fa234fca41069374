"""Cluster files: the YAML that people edit, checked here and turned into the JSON that the Lambdas read.

`ClusterFile.load(path)` reads and checks; `.document(time_scale)` gives the plain dict that synth writes
as `cluster.json` into the code asset. All its durations are seconds, already multiplied by `time_scale`:

    {"version": 1, "name": str, "region": str, "scheduler": "process" | "slurm" | "eks",
     "time_scale": float,
     "policy": {"mode": "act" | "approve" | "observe",
                "breaker": {"max_removals": int, "max_share": float 0..1, "window_seconds": float,
                            "max_per_detector": int | null},
                "boot_timeout_seconds": float, "drain_deadline_seconds": float,
                "job_settle_seconds": float, "max_attempts": int,
                "max_resumes": int, "resume_window_seconds": float,
                "rebalance": "checkpoint" | "move" | "ignore", "gpu_reset": bool,
                "escalate_to": Action, "deep_check": "auto" | "always" | "never",
                "drain": "wait" | "checkpoint" | "stop", "unused_replacement": "terminate" | "spare",
                "gang": "keep" | "all-or-nothing", "rebalance_rounds": int,
                "reset_timeout_seconds": float, "deep_check_timeout_seconds": float,
                "capacity_timeout_seconds": float, "cooldown_seconds": float, "hold_seconds": float,
                "rebalance_grace_seconds": float, "lead_seconds": float, "spare_check_seconds": float,
                "approval_timeout_seconds": float, "boot_grace_seconds": float,
                "confirmation_seconds": float, "ladder_seconds": float,
                "offender_incidents": int, "offender_seconds": float,
                "max_replacements": int, "replacements_seconds": float,
                "maintenance": [{"start": ISO, "end": ISO} | {"weekly": "sun 02:00", "hours": float}],
                "catalog": [{"kind": str, "code": str, "action": str, "families": [str], "reason": str}]},
     "file_system_zone": str, "" where none is named,
     "node_groups": as planaria/core/cluster.py reads them}

Offerings stand in the order in which they are tried. Lambdas have no pydantic; only synth and the CLI
import this module. Maintenance windows are the wall clock's and are not scaled.
"""

import difflib
from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from planaria.core import maintenance, overrides
from planaria.core.cluster import RESERVED, Capacity
from planaria.core.errors import InvalidInput
from planaria.core.fault import Action
from planaria.core.policy import DeepCheck, Drain, Gang, Mode, Rebalance, Unused

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
Region = Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]+$")]
InstanceType = Annotated[str, Field(pattern=r"^[a-z0-9-]+\.[a-z0-9-]+$")]
ImageId = Annotated[str, Field(pattern=r"^ami-[0-9a-f]{8,17}$")]
SubnetId = Annotated[str, Field(pattern=r"^subnet-[0-9a-f]{8,17}$")]
SecurityGroupId = Annotated[str, Field(pattern=r"^sg-[0-9a-f]{8,17}$")]
ReservationId = Annotated[str, Field(pattern=r"^cr-[0-9a-f]{8,17}$")]
FileSystemId = Annotated[str, Field(pattern=r"^fs-[0-9a-f]{8,17}$")]
Zone = Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]+[a-z]$")]
Repair = Literal[Action.RESET, Action.REBOOT, Action.REPLACE]
Count = Annotated[int, Field(strict=True, ge=1, le=100_000)]
Share = Annotated[float, Field(strict=True, gt=0, le=1)]
Minutes = Annotated[float, Field(strict=True, gt=0, le=60 * 24 * 30)]
Hours = Annotated[float, Field(strict=True, gt=0, le=24 * 90)]
Seconds = Annotated[float, Field(strict=True, ge=0, le=3600)]

_FORMS = {
    r"^/dev/[a-z0-9]+$": "must be a device such as /dev/xvda",
    r"^[a-z][a-z0-9-]{0,30}$": "must be 1 to 31 characters of a-z, 0-9 and -, with a letter first",
    r"^[a-z][a-z0-9-]*$": "must be an instance family such as p5",
    r"^[a-z]{2}(-[a-z]+)+-[0-9]+$": "must be an AWS region such as us-east-1",
    r"^[a-z0-9-]+\.[a-z0-9-]+$": "must be an EC2 instance type such as p5.48xlarge",
    r"^ami-[0-9a-f]{8,17}$": "must be an image id such as ami-0123456789abcdef0",
    r"^subnet-[0-9a-f]{8,17}$": "must be a subnet id such as subnet-0123456789abcdef0",
    r"^cr-[0-9a-f]{8,17}$": "must be a capacity reservation id such as cr-0123456789abcdef0",
    r"^fs-[0-9a-f]{8,17}$": "must be a file system id such as fs-0123456789abcdef0",
    r"^[a-z]{2}(-[a-z]+)+-[0-9]+[a-z]$": "must be an Availability Zone such as us-east-1a",
    r"^sg-[0-9a-f]{8,17}$": "must be a security group id such as sg-0123456789abcdef0",
}


class Scheduler(StrEnum):
    PROCESS = "process"
    SLURM = "slurm"
    EKS = "eks"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Breaker(_Section):
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


class Maintenance(_Section):
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


class CatalogEntry(_Section):
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


class Policy(_Section):
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


class Launch(_Section):
    """What every instance of the group has in common; it becomes the group's launch template.

    root_device is the image's own root device, whose volume is made encrypted with root_gib GiB. zones: the
    Availability Zone of each subnet, for what only holds within one.
    """

    image: ImageId
    subnets: Annotated[tuple[SubnetId, ...], Field(min_length=1)]
    zones: dict[SubnetId, Zone] = {}
    security_groups: Annotated[tuple[SecurityGroupId, ...], Field(min_length=1)]
    key: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    root_device: Annotated[str, Field(pattern=r"^/dev/[a-z0-9]+$")] = "/dev/xvda"
    root_gib: Annotated[int, Field(strict=True, ge=8, le=16_384)] = 200


class Offering(_Section):
    """One way to get a node. Without `subnet` the group's first one is meant. capacity spare: the group's
    warm pool; reservation and capacity-block need the id of theirs."""

    instance_type: InstanceType
    capacity: Capacity = Capacity.ON_DEMAND
    subnet: SubnetId | None = None
    reservation: ReservationId | None = None

    @model_validator(mode="after")
    def _names_its_reservation(self) -> Self:
        if (self.capacity in RESERVED) != (self.reservation is not None):
            rule = "must name its reservation" if self.capacity in RESERVED else "takes no reservation"
            raise ValueError(f"an offering of capacity {self.capacity} {rule}")
        return self


class NodeGroup(_Section):
    """`size` nodes that may stand in for each other, and `spares` warm ones beside them.

    auto_scaling_group: the group that launches the nodes; `offerings` then only says what they are.
    """

    name: Name
    size: Count
    spares: Annotated[int, Field(strict=True, ge=0, le=1000)] = 0
    auto_scaling_group: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    launch: Launch
    offerings: Annotated[tuple[Offering, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _subnets_are_known(self) -> Self:
        for offering in self.offerings:
            if offering.subnet is not None and offering.subnet not in self.launch.subnets:
                raise ValueError(f"offerings name {offering.subnet}, which launch.subnets does not list")
        for subnet in self.launch.zones:
            if subnet not in self.launch.subnets:
                raise ValueError(f"launch.zones names {subnet}, which launch.subnets does not list")
        return self

    @model_validator(mode="after")
    def _spares_have_a_source(self) -> Self:
        listed = [offering.capacity for offering in self.offerings]
        if Capacity.SPARE in listed and not self.spares:
            raise ValueError("offerings has capacity spare, but the group keeps no spares (spares: 0)")
        if listed.count(Capacity.SPARE) == len(listed):
            raise ValueError("offerings needs a way to launch a node besides the spares")
        if self.spares and self.auto_scaling_group is not None:
            raise ValueError("spares are not kept in an Auto Scaling group, which has warm pools of its own")
        return self


class FileSystem(_Section):
    """The FSx for Lustre file system that the nodes mount: it lies in one Availability Zone."""

    id: FileSystemId
    zone: Zone


class ClusterFile(_Section):
    """One cluster: the whole file."""

    name: Name
    region: Region
    scheduler: Scheduler
    file_system: FileSystem | None = None
    policy: Policy = Policy()
    node_groups: Annotated[tuple[NodeGroup, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [group.name for group in self.node_groups]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"node_groups has two groups named {name}")
        for window in self.policy.maintenance:
            for name in window.node_groups:
                if name not in names:
                    known = ", ".join(names)
                    raise ValueError(f"policy.maintenance names the node group {name}, but it has: {known}")
        return self

    @model_validator(mode="after")
    def _answers_can_be_given(self) -> Self:
        offered = {
            offering.instance_type.partition(".")[0]
            for group in self.node_groups
            for offering in group.offerings
        }
        seen: set[tuple[str, str, tuple[str, ...]]] = set()
        for entry in self.policy.catalog:
            what = f"policy.catalog has an answer to {entry.kind} {entry.code}"
            if entry.families and not offered & set(entry.families):
                named, known = ", ".join(entry.families), ", ".join(sorted(offered))
                raise ValueError(f"{what} for {named}, but the offerings are of: {known}")
            key = entry.kind, entry.code, entry.families
            if key in seen:
                raise ValueError(f"{what} twice")
            seen.add(key)
        try:
            overrides.overrides_of([entry.model_dump(mode="json") for entry in self.policy.catalog])
        except InvalidInput as error:
            raise ValueError(str(error)) from None
        return self

    @classmethod
    def load(cls, path: str | Path) -> "ClusterFile":
        """Raises InvalidInput: one sentence per problem, each names the file, the key and the rule."""
        try:
            content = _Loader(Path(path).read_text(encoding="utf-8")).get_single_data()
        except OSError as error:
            raise InvalidInput(f"{path}: cannot be read ({error.strerror}).") from error
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{path}: is not text in UTF-8.") from error
        except yaml.YAMLError as error:
            raise InvalidInput(f"{path}: {_where(error)}.") from error
        if not isinstance(content, dict):
            raise InvalidInput(f"{path}: must be a mapping with the keys {', '.join(cls.model_fields)}.")
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise InvalidInput("\n".join(f"{path}: {line}" for line in _sentences(error))) from error

    def launch_template(self, group: NodeGroup) -> str:
        """The name of the group's EC2 launch template."""
        return f"planaria-{self.name}-{group.name}"

    def reserved_template(self, group: NodeGroup, reservation: str) -> str:
        """The name of the launch template that launches into one capacity reservation or Capacity Block."""
        return f"{self.launch_template(group)}-{reservation}"

    def document(self, time_scale: float = 1.0) -> dict[str, Any]:
        """The JSON document of the module's docstring."""
        policy = self.policy
        return {
            "version": 1,
            "name": self.name,
            "region": self.region,
            "scheduler": self.scheduler.value,
            "time_scale": time_scale,
            "policy": {
                "mode": policy.mode.value,
                "breaker": {
                    "max_removals": policy.breaker.max_removals,
                    "max_share": policy.breaker.max_share,
                    "window_seconds": policy.breaker.window_minutes * 60 * time_scale,
                    "max_per_detector": policy.breaker.max_per_detector,
                },
                "boot_timeout_seconds": policy.boot_timeout_minutes * 60 * time_scale,
                "drain_deadline_seconds": policy.drain_deadline_minutes * 60 * time_scale,
                "job_settle_seconds": policy.job_settle_seconds * time_scale,
                "max_attempts": policy.max_attempts,
                "max_resumes": policy.max_resumes,
                "resume_window_seconds": policy.resume_window_minutes * 60 * time_scale,
                "rebalance": policy.rebalance.value,
                "gpu_reset": policy.gpu_reset,
                "approval_timeout_seconds": policy.approval_timeout_minutes * 60 * time_scale,
                "boot_grace_seconds": policy.boot_grace_minutes * 60 * time_scale,
                "confirmation_seconds": policy.confirmation_minutes * 60 * time_scale,
                "ladder_seconds": policy.ladder_hours * 3600 * time_scale,
                "offender_incidents": policy.offender_incidents,
                "offender_seconds": policy.offender_hours * 3600 * time_scale,
                "max_replacements": policy.max_replacements,
                "replacements_seconds": policy.replacements_hours * 3600 * time_scale,
                "escalate_to": policy.escalate_to.value,
                "reset_timeout_seconds": policy.reset_timeout_minutes * 60 * time_scale,
                "deep_check": policy.deep_check.value,
                "deep_check_timeout_seconds": policy.deep_check_timeout_minutes * 60 * time_scale,
                "drain": policy.drain.value,
                "unused_replacement": policy.unused_replacement.value,
                "gang": policy.gang.value,
                "capacity_timeout_seconds": policy.capacity_timeout_hours * 3600 * time_scale,
                "cooldown_seconds": policy.cooldown_minutes * 60 * time_scale,
                "hold_seconds": policy.hold_minutes * 60 * time_scale,
                "rebalance_rounds": policy.rebalance_rounds,
                "rebalance_grace_seconds": policy.rebalance_grace_minutes * 60 * time_scale,
                "lead_seconds": policy.lead_hours * 3600 * time_scale,
                "spare_check_seconds": policy.spare_check_minutes * 60 * time_scale,
                "maintenance": [window.entry() for window in policy.maintenance],
                "catalog": [entry.model_dump(mode="json") for entry in policy.catalog],
            },
            "file_system_zone": self.file_system.zone if self.file_system is not None else "",
            "node_groups": [self._group(group) for group in self.node_groups],
        }

    def _group(self, group: NodeGroup) -> dict[str, Any]:
        offerings = [self._offering(group, offering) for offering in group.offerings]
        if group.spares and not any(o.capacity is Capacity.SPARE for o in group.offerings):
            first = group.offerings[0]
            spare = Offering(instance_type=first.instance_type, capacity=Capacity.SPARE, subnet=first.subnet)
            offerings.insert(0, self._offering(group, spare))
        return {
            "name": group.name,
            "size": group.size,
            "spares": group.spares,
            "auto_scaling_group": group.auto_scaling_group or "",
            "launch_template": self.launch_template(group),
            "offerings": offerings,
        }

    def _offering(self, group: NodeGroup, offering: Offering) -> dict[str, Any]:
        subnet = offering.subnet or group.launch.subnets[0]
        template = self.reserved_template(group, offering.reservation) if offering.reservation else ""
        return {
            "instance_type": offering.instance_type,
            "capacity": offering.capacity.value,
            "subnet": subnet,
            "zone": group.launch.zones.get(subnet, ""),
            "reservation": offering.reservation or "",
            "launch_template": template,
        }

    def warnings(self) -> list[str]:
        """What is allowed and yet seldom meant, one sentence each."""
        found = []
        for group in self.node_groups:
            for number, offering in enumerate(group.offerings, 1):
                zone = group.launch.zones.get(offering.subnet or group.launch.subnets[0])
                if self.file_system is not None and zone is not None and zone != self.file_system.zone:
                    found.append(
                        f"node_groups {group.name}: offering {number} launches in {zone}, but the file "
                        f"system {self.file_system.id} lies in {self.file_system.zone}: every read and write "
                        "crosses Availability Zones, which is slower and is paid for by the gigabyte."
                    )
        return found


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice: the second would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"the key {key.value} stands there twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _where(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "this is not YAML"
    return f"line {mark.line + 1}: {problem}" if mark is not None else str(problem)


def _sentences(error: ValidationError) -> Iterator[str]:
    for problem in error.errors():
        if problem["type"] == "too_short" and problem["input"]:
            continue  # only the shadow of a bad entry, which is reported by itself
        key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"])
        yield f"{key.lstrip('.')}: {_rule(problem)}." if key else f"{_rule(problem)}."


def _rule(problem: ErrorDetails) -> str:
    context = problem.get("ctx", {})
    given = problem["input"]
    match problem["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return f"is no known key{_nearest(problem['loc'])}"
        case "enum":
            return f"must be {context['expected']}, not {given!r}"
        case "string_pattern_mismatch":
            return f"{_FORMS.get(context['pattern'], 'has the wrong form')}, not {given!r}"
        case "string_type":
            return f"must be text, not {given!r} (put it in quotes)"
        case "int_type" | "int_from_float":
            return f"must be a whole number, not {given!r}"
        case "float_type":
            return f"must be a number, not {given!r}"
        case "bool_type":
            return f"must be true or false, not {given!r}"
        case "tuple_type":
            return "must be a list"
        case "model_type" | "dict_type" | "model_attributes_type":
            return "must be a mapping of keys"
        case "too_short":
            return "must list at least one entry"
        case "string_too_short":
            return "must not be empty"
        case "string_too_long":
            return f"must have at most {context['max_length']} characters, not {len(given)}"
        case "value_error":
            return str(context["error"])
    message = problem["msg"].removeprefix("Input should be ")
    return f"must be {message}, not {given!r}"


def _nearest(location: tuple[int | str, ...]) -> str:
    """A hint for a misspelt key, found among all keys that a cluster file may have."""
    sections = (
        ClusterFile, FileSystem, Policy, Breaker, Maintenance, CatalogEntry, NodeGroup, Launch, Offering,
    )  # fmt: skip
    known = sorted({name for section in sections for name in section.model_fields})
    close = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.7)
    return f" (is {close[0]} meant?)" if close else ""
