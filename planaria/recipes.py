"""Cluster files: the YAML that people edit, checked here and turned into the JSON that the Lambdas read.

`ClusterFile.load(path)` reads and checks; `.document(time_scale)` gives the plain dict that synth writes
as `cluster.json` into the code asset. All its durations are seconds, already multiplied by `time_scale`:

    {"version": 1, "name": str, "region": str, "scheduler": "process" | "slurm" | "eks",
     "slurm": {"head_node": str, "topology": "none" | "tree"} | null,
     "eks": {"cluster": str, "namespaces": [str]} | null, "time_scale": float,
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
     "checkpoints": as planaria/core/checkpoint_policy.py reads it | null,
     "node_groups": as planaria/core/cluster.py reads them}

Offerings stand in the order in which they are tried. Lambdas have no pydantic; only synth and the CLI
import this module. Maintenance windows are the wall clock's and are not scaled. The parts of the file are in
recipe_*.py, the words about what is wrong in recipe_errors.py.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from planaria import recipe_checkpoints, recipe_errors, recipe_warnings
from planaria.core import overrides
from planaria.core.cluster import Capacity
from planaria.core.errors import InvalidInput
from planaria.recipe_checkpoints import Checkpoints, Region
from planaria.recipe_file_systems import FileSystemId
from planaria.recipe_nodes import Launch, NodeGroup, Offering, Zone
from planaria.recipe_policy import Breaker, CatalogEntry, Maintenance, Name, Policy, Section

__all__ = ["ClusterFile", "Eks", "NodeGroup", "Policy", "Scheduler", "Slurm"]
Namespace = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
InstanceId = Annotated[str, Field(pattern=r"^i-[0-9a-f]{8,17}$")]


class Scheduler(StrEnum):
    PROCESS = "process"
    SLURM = "slurm"
    EKS = "eks"


class FileSystem(Section):
    """The FSx for Lustre file system that the nodes mount: it lies in one Availability Zone."""

    id: FileSystemId
    zone: Zone


class Slurm(Section):
    """head_node: the instance on which Slurm's controller runs, with Planaria's node package and the SSM
    agent. topology: tree keeps Slurm's topology.conf in step with where AWS has placed the nodes."""

    head_node: InstanceId
    topology: Literal["none", "tree"] = "none"


class Eks(Section):
    """cluster: the name of the EKS cluster; namespaces: those whose jobs Planaria may stop and start."""

    cluster: Annotated[str, Field(pattern=r"^[0-9A-Za-z][A-Za-z0-9_-]{0,99}$")]
    namespaces: Annotated[tuple[Namespace, ...], Field(min_length=1)] = ("default",)


class ClusterFile(Section):
    """One cluster: the whole file."""

    name: Name
    region: Region
    scheduler: Scheduler
    slurm: Slurm | None = None
    eks: Eks | None = None
    file_system: FileSystem | None = None
    checkpoints: Checkpoints | None = None
    policy: Policy = Policy()
    node_groups: Annotated[tuple[NodeGroup, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _its_scheduler_is_described(self) -> Self:
        sections = {
            Scheduler.SLURM: (self.slurm, "slurm: {head_node: i-0123456789abcdef0}"),
            Scheduler.EKS: (self.eks, "eks: {cluster: my-cluster, namespaces: [default]}"),
        }
        for scheduler, (section, example) in sections.items():
            if self.scheduler is scheduler and section is None:
                raise ValueError(f"scheduler {scheduler} needs the section {scheduler}, such as {example}")
        for scheduler, (section, _) in sections.items():
            if self.scheduler is not scheduler and section is not None:
                raise ValueError(f"the section {scheduler} is only for scheduler {scheduler}")
        return self

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
    def _file_systems_lie_where_capacity_is(self) -> Self:
        if self.checkpoints is not None:
            reason = recipe_warnings.refused(self.node_groups, self.region, self.checkpoints)
            if reason is not None:
                raise ValueError(reason)
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
            content = recipe_errors.Loader(Path(path).read_text(encoding="utf-8")).get_single_data()
        except OSError as error:
            raise InvalidInput(f"{path}: cannot be read ({error.strerror}).") from error
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{path}: is not text in UTF-8.") from error
        except yaml.YAMLError as error:
            raise InvalidInput(f"{path}: {recipe_errors.where(error)}.") from error
        if not isinstance(content, dict):
            raise InvalidInput(f"{path}: must be a mapping with the keys {', '.join(cls.model_fields)}.")
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise InvalidInput(
                "\n".join(f"{path}: {line}" for line in recipe_errors.sentences(error, _keys()))
            ) from error

    def launch_template(self, group: NodeGroup) -> str:
        """The name of the group's EC2 launch template."""
        return f"planaria-{self.name}-{group.name}"

    def reserved_template(self, group: NodeGroup, reservation: str) -> str:
        """The name of the launch template that launches into one capacity reservation or Capacity Block."""
        return f"{self.launch_template(group)}-{reservation}"

    def document(self, time_scale: float = 1.0) -> dict[str, Any]:
        """The JSON document of the module's docstring."""
        return {
            "version": 1,
            "name": self.name,
            "region": self.region,
            "scheduler": self.scheduler.value,
            "slurm": self.slurm.model_dump(mode="json") if self.slurm is not None else None,
            "eks": self.eks.model_dump(mode="json") if self.eks is not None else None,
            "time_scale": time_scale,
            "policy": self.policy.document(time_scale),
            "file_system_zone": self._file_system_zone(),
            "checkpoints": self.checkpoints.document(time_scale) if self.checkpoints is not None else None,
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
            "placement_group": group.placement_group,
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
            "placement_group": offering.placement_group,
            "launch_template": template,
        }

    def warnings(self) -> list[str]:
        """What is allowed and yet seldom meant, one sentence each."""
        found = [*recipe_warnings.placement(self.node_groups)]
        if self.file_system is not None:
            found += recipe_warnings.away(self.node_groups, self.file_system.id, (self.file_system.zone,))
        elif self.checkpoints is not None:
            names = " or ".join(each.name for each in self.checkpoints.file_systems)
            found += recipe_warnings.away(self.node_groups, names, self.checkpoints.zones)
        return [*found, *recipe_warnings.without_efa(self.node_groups, self.checkpoints)]

    def _file_system_zone(self) -> str:
        """Where replacements should be; "" where there are several or none."""
        zones = self.checkpoints.zones if self.checkpoints is not None else ()
        return self.file_system.zone if self.file_system is not None else zones[0] if len(zones) == 1 else ""


def _keys() -> set[str]:
    """All keys that a cluster file may have, wherever."""
    sections = (
        ClusterFile, Slurm, Eks, FileSystem, Policy, Breaker, Maintenance, CatalogEntry, NodeGroup, Launch,
        Offering, *recipe_checkpoints.SECTIONS,
    )  # fmt: skip
    return {name for section in sections for name in section.model_fields}
