"""What one synth is about: plain values that app.py reads from the context and the cluster file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Reservation:
    """A capacity reservation or a Capacity Block (is_block). template: the launch template that names it.
    in_placement_group: it was made in the node group's."""

    id: str
    template: str
    is_block: bool
    in_placement_group: bool = False


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """What its launch templates need. template: the name of the group's own; root_gib: size of the root
    volume in GiB; reservations: each has a launch template of its own; placement_group: it has a cluster
    placement group; efa: network card and device index of each EFA device."""

    name: str
    template: str
    image: str
    subnets: tuple[str, ...]
    security_groups: tuple[str, ...]
    key: str | None
    root_device: str
    root_gib: int
    reservations: tuple[Reservation, ...] = ()
    placement_group: bool = False
    efa: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The sandbox's local API, which its scheduler adapter calls."""

    url: str
    token: str


@dataclass(frozen=True, slots=True)
class Settings:
    """root: the repository. document: cluster.json. warnings: what the cluster file allows and seldom means.
    time_scale: what durations are multiplied by.

    sandbox: None on AWS. Everything that the sandbox does differently hangs on it.
    """

    root: Path
    cluster: str
    region: str
    document: Mapping[str, Any]
    node_groups: tuple[NodeGroup, ...]
    warnings: tuple[str, ...]
    gameday: bool
    time_scale: float
    sandbox: Sandbox | None

    @property
    def prefix(self) -> str:
        """The table's and the bus's whole name."""
        return f"planaria-{self.cluster}"

    def named(self, part: str) -> str:
        """The physical name of a queue, function, machine, topic, role or rule."""
        return f"{self.prefix}-{part}"

    @property
    def tls_only(self) -> bool:
        """Queues, topic and buckets refuse plain HTTP, which is all that the sandbox's emulator speaks."""
        return self.sandbox is None
