"""What one synth is about: plain values that app.py reads from the context and the cluster file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """What a launch template needs. template: its name; root_gib: size of the root volume in GiB."""

    name: str
    template: str
    image: str
    subnets: tuple[str, ...]
    security_groups: tuple[str, ...]
    key: str | None
    root_device: str
    root_gib: int


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The sandbox's local API, which its scheduler adapter calls."""

    url: str
    token: str


@dataclass(frozen=True, slots=True)
class Settings:
    """root: the repository. document: cluster.json. time_scale: what durations are multiplied by.

    sandbox: None on AWS. Everything that the sandbox does differently hangs on it.
    """

    root: Path
    cluster: str
    region: str
    document: Mapping[str, Any]
    node_groups: tuple[NodeGroup, ...]
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
