"""The cluster document (cluster.json) as the Lambdas see it.

    {"name": str, "region": str, "scheduler": "process" | "slurm" | "eks", "policy": {...},
     "node_groups": [{"name": str, "size": int, "launch_template": str,
                      "offerings": [{"instance_type": str, "capacity": "on-demand" | "spot",
                                     "subnet": str}]}]}

planaria/recipes.py writes it from the YAML that people edit, with durations in seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planaria.core.errors import InvalidInput
from planaria.core.policy import Policy


@dataclass(frozen=True, slots=True)
class Offering:
    """One way to get a node; the list of a group is tried in its order."""

    instance_type: str
    capacity: str
    subnet: str

    @property
    def key(self) -> str:
        return f"{self.capacity}/{self.instance_type}/{self.subnet}"


@dataclass(frozen=True, slots=True)
class NodeGroup:
    name: str
    size: int
    launch_template: str
    offerings: tuple[Offering, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    name: str
    region: str
    scheduler: str
    policy: Policy
    node_groups: Mapping[str, NodeGroup]

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
            offerings = tuple(
                Offering(o["instance_type"], o["capacity"], o.get("subnet") or "") for o in entry["offerings"]
            )
            groups[entry["name"]] = NodeGroup(
                entry["name"], int(entry["size"]), entry["launch_template"], offerings
            )
        return cls(
            document["name"],
            document["region"],
            document["scheduler"],
            Policy.from_document(document["policy"]),
            groups,
        )
