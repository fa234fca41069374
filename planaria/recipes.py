"""Cluster files: the YAML that people edit, checked here and turned into the JSON that the Lambdas read.

`ClusterFile.load(path)` reads and checks; `.document(time_scale)` gives the plain dict that synth writes
as `cluster.json` into the code asset. All its durations are seconds, already multiplied by `time_scale`:

    {"version": 1, "name": str, "region": str, "scheduler": "process" | "slurm" | "eks",
     "time_scale": float,
     "policy": {"mode": "act" | "observe",
                "breaker": {"max_removals": int, "max_share": float 0..1, "window_seconds": float},
                "boot_timeout_seconds": float, "drain_deadline_seconds": float,
                "job_settle_seconds": float, "max_attempts": int,
                "max_resumes": int, "resume_window_seconds": float,
                "rebalance": "checkpoint" | "ignore", "gpu_reset": bool},
     "node_groups": [{"name": str, "size": int, "launch_template": str,
                      "offerings": [{"instance_type": str, "capacity": "on-demand" | "spot",
                                     "subnet": str}]}]}

Offerings stand in the order in which they are tried. Lambdas have no pydantic; only synth and the CLI
import this module.
"""

import difflib
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from planaria.core.errors import InvalidInput

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
Region = Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]+$")]
InstanceType = Annotated[str, Field(pattern=r"^[a-z0-9-]+\.[a-z0-9-]+$")]
ImageId = Annotated[str, Field(pattern=r"^ami-[0-9a-f]{8,17}$")]
SubnetId = Annotated[str, Field(pattern=r"^subnet-[0-9a-f]{8,17}$")]
SecurityGroupId = Annotated[str, Field(pattern=r"^sg-[0-9a-f]{8,17}$")]
Count = Annotated[int, Field(strict=True, ge=1, le=100_000)]
Share = Annotated[float, Field(strict=True, gt=0, le=1)]
Minutes = Annotated[float, Field(strict=True, gt=0, le=60 * 24 * 30)]
Seconds = Annotated[float, Field(strict=True, ge=0, le=3600)]

_FORMS = {
    r"^/dev/[a-z0-9]+$": "must be a device such as /dev/xvda",
    r"^[a-z][a-z0-9-]{0,30}$": "must be 1 to 31 characters of a-z, 0-9 and -, with a letter first",
    r"^[a-z]{2}(-[a-z]+)+-[0-9]+$": "must be an AWS region such as us-east-1",
    r"^[a-z0-9-]+\.[a-z0-9-]+$": "must be an EC2 instance type such as p5.48xlarge",
    r"^ami-[0-9a-f]{8,17}$": "must be an image id such as ami-0123456789abcdef0",
    r"^subnet-[0-9a-f]{8,17}$": "must be a subnet id such as subnet-0123456789abcdef0",
    r"^sg-[0-9a-f]{8,17}$": "must be a security group id such as sg-0123456789abcdef0",
}


class Scheduler(StrEnum):
    PROCESS = "process"
    SLURM = "slurm"
    EKS = "eks"


class Mode(StrEnum):
    ACT = "act"
    OBSERVE = "observe"


class Rebalance(StrEnum):
    CHECKPOINT = "checkpoint"
    IGNORE = "ignore"


class Capacity(StrEnum):
    ON_DEMAND = "on-demand"
    SPOT = "spot"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Breaker(_Section):
    """At most max(1, min(max_removals, max_share of the fleet)) removals in any window."""

    max_removals: Count = 4
    max_share: Share = 0.25
    window_minutes: Minutes = 60.0


class Policy(_Section):
    """What Planaria may do by itself, and how long it waits."""

    mode: Mode = Mode.ACT
    breaker: Breaker = Breaker()
    boot_timeout_minutes: Minutes = 30.0
    drain_deadline_minutes: Minutes = 10.0
    job_settle_seconds: Seconds = 10.0
    max_attempts: Count = 5
    max_resumes: Count = 10
    resume_window_minutes: Minutes = 60.0
    rebalance: Rebalance = Rebalance.CHECKPOINT
    gpu_reset: Annotated[bool, Field(strict=True)] = False


class Launch(_Section):
    """What every instance of the group has in common; it becomes the group's launch template.

    root_device is the image's own root device, whose volume is made encrypted with root_gib GiB.
    """

    image: ImageId
    subnets: Annotated[tuple[SubnetId, ...], Field(min_length=1)]
    security_groups: Annotated[tuple[SecurityGroupId, ...], Field(min_length=1)]
    key: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    root_device: Annotated[str, Field(pattern=r"^/dev/[a-z0-9]+$")] = "/dev/xvda"
    root_gib: Annotated[int, Field(strict=True, ge=8, le=16_384)] = 200


class Offering(_Section):
    """One way to get a node. Without `subnet` the group's first one is meant."""

    instance_type: InstanceType
    capacity: Capacity = Capacity.ON_DEMAND
    subnet: SubnetId | None = None


class NodeGroup(_Section):
    """`size` nodes that may stand in for each other."""

    name: Name
    size: Count
    launch: Launch
    offerings: Annotated[tuple[Offering, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _subnets_are_known(self) -> Self:
        for offering in self.offerings:
            if offering.subnet is not None and offering.subnet not in self.launch.subnets:
                raise ValueError(f"offerings name {offering.subnet}, which launch.subnets does not list")
        return self


class ClusterFile(_Section):
    """One cluster: the whole file."""

    name: Name
    region: Region
    scheduler: Scheduler
    policy: Policy = Policy()
    node_groups: Annotated[tuple[NodeGroup, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [group.name for group in self.node_groups]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"node_groups has two groups named {name}")
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
                },
                "boot_timeout_seconds": policy.boot_timeout_minutes * 60 * time_scale,
                "drain_deadline_seconds": policy.drain_deadline_minutes * 60 * time_scale,
                "job_settle_seconds": policy.job_settle_seconds * time_scale,
                "max_attempts": policy.max_attempts,
                "max_resumes": policy.max_resumes,
                "resume_window_seconds": policy.resume_window_minutes * 60 * time_scale,
                "rebalance": policy.rebalance.value,
                "gpu_reset": policy.gpu_reset,
            },
            "node_groups": [
                {
                    "name": group.name,
                    "size": group.size,
                    "launch_template": self.launch_template(group),
                    "offerings": [
                        {
                            "instance_type": offering.instance_type,
                            "capacity": offering.capacity.value,
                            "subnet": offering.subnet or group.launch.subnets[0],
                        }
                        for offering in group.offerings
                    ],
                }
                for group in self.node_groups
            ],
        }


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
        case "value_error":
            return str(context["error"])
    message = problem["msg"].removeprefix("Input should be ")
    return f"must be {message}, not {given!r}"


def _nearest(location: tuple[int | str, ...]) -> str:
    """A hint for a misspelt key, found among all keys that a cluster file may have."""
    sections = (ClusterFile, Policy, Breaker, NodeGroup, Launch, Offering)
    known = sorted({name for section in sections for name in section.model_fields})
    close = difflib.get_close_matches(str(location[-1]), known, n=1)
    return f" (is {close[0]} meant?)" if close else ""
