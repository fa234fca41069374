"""The cluster document (cluster.json) as the Lambdas see it.

    {"name": str, "region": str, "scheduler": "process" | "slurm" | "eks", "policy": {...},
     "slurm": {"head_node": str, "topology": "none" | "tree"} or null,
     "eks": {"cluster": str, "namespaces": [str]} or null,
     "file_system_zone": str,
     "checkpoints": as planaria/core/checkpoint_policy.py reads it, or null,
     "node_groups": [{"name": str, "size": int, "launch_template": str, "spares": int,
                      "auto_scaling_group": str,
                      "offerings": [{"instance_type": str, "subnet": str, "zone": str, "reservation": str,
                                     "launch_template": str, "capacity": "spare" | "reservation" |
                                     "capacity-block" | "on-demand" | "spot"}]}]}

planaria/recipes.py writes it from the YAML that people edit, with durations in seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from planaria.core.checkpoint_policy import Checkpoints
from planaria.core.errors import InvalidInput
from planaria.core.policy import Policy


class Capacity(StrEnum):
    """Where a node comes from. spare: the group's warm pool; reservation: a targeted On-Demand Capacity
    Reservation; capacity-block: a Capacity Block for ML."""

    SPARE = "spare"
    RESERVATION = "reservation"
    CAPACITY_BLOCK = "capacity-block"
    ON_DEMAND = "on-demand"
    SPOT = "spot"


RESERVED = frozenset({Capacity.RESERVATION, Capacity.CAPACITY_BLOCK})


@dataclass(frozen=True, slots=True)
class Offering:
    """One way to get a node; the list of a group is tried in its order. reservation: the id of the capacity
    reservation or block (`cr-...`) of those two kinds. launch_template: the one that names the reservation,
    "" for the group's own. zone: as the cluster file says, "" where it does not."""

    instance_type: str
    capacity: Capacity
    subnet: str
    reservation: str = ""
    launch_template: str = ""
    zone: str = ""

    @property
    def key(self) -> str:
        place = self.reservation or self.subnet
        return f"{self.capacity}/{self.instance_type}/{place}"


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """spares: how many warm nodes stand by. auto_scaling_group: the group that launches the nodes, "" where
    Planaria does."""

    name: str
    size: int
    launch_template: str
    offerings: tuple[Offering, ...]
    spares: int = 0
    auto_scaling_group: str = ""


@dataclass(frozen=True, slots=True)
class Slurm:
    """head_node: the instance id of Slurm's controller. topology: `tree` where we write its topology.conf."""

    head_node: str
    topology: str = "none"


@dataclass(frozen=True, slots=True)
class Eks:
    """cluster: its name at EKS; namespaces: those with jobs that are ours to stop and start."""

    cluster: str
    namespaces: tuple[str, ...] = ("default",)


@dataclass(frozen=True, slots=True)
class Cluster:
    """slurm, eks: what only this scheduler needs; None where it is another. checkpoints: None where the
    cluster file says nothing of them."""

    name: str
    region: str
    scheduler: str
    policy: Policy
    node_groups: Mapping[str, NodeGroup]
    file_system_zone: str = ""
    slurm: Slurm | None = None
    eks: Eks | None = None
    checkpoints: Checkpoints | None = None

    @property
    def size(self) -> int:
        """Wanted nodes over all groups."""
        return sum(group.size for group in self.node_groups.values())

    def group(self, name: str) -> NodeGroup:
        if name in self.node_groups:
            return self.node_groups[name]
        known = ", ".join(sorted(self.node_groups))
        raise InvalidInput(f"node group {name!r} is not in the cluster file of {self.name} (it has: {known})")

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Cluster":
        groups = {}
        for entry in document["node_groups"]:
            groups[entry["name"]] = NodeGroup(
                entry["name"],
                int(entry["size"]),
                entry["launch_template"],
                tuple(map(_offering, entry["offerings"])),
                int(entry.get("spares") or 0),
                entry.get("auto_scaling_group") or "",
            )
        return cls(
            document["name"],
            document["region"],
            document["scheduler"],
            Policy.from_document(document["policy"]),
            groups,
            document.get("file_system_zone") or "",
            _slurm(document.get("slurm")),
            _eks(document.get("eks")),
            _checkpoints(document.get("checkpoints")),
        )


def _slurm(given: Mapping[str, Any] | None) -> Slurm | None:
    return Slurm(given["head_node"], given.get("topology") or "none") if given else None


def _eks(given: Mapping[str, Any] | None) -> Eks | None:
    return Eks(given["cluster"], tuple(given["namespaces"])) if given else None


def _checkpoints(given: Mapping[str, Any] | None) -> Checkpoints | None:
    return Checkpoints.from_document(given) if given is not None else None


def _offering(given: Mapping[str, Any]) -> Offering:
    return Offering(
        given["instance_type"],
        Capacity(given["capacity"]),
        given.get("subnet") or "",
        given.get("reservation") or "",
        given.get("launch_template") or "",
        given.get("zone") or "",
    )
