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
class Link:
    """A data repository association. path: in the file system, with `/` at both ends; bucket: "" for our own;
    prefix: with `/` at its end, "" for the whole bucket."""

    path: str
    bucket: str
    prefix: str
    auto_export: tuple[str, ...] = ()
    auto_import: tuple[str, ...] = ()
    import_on_create: bool = False


@dataclass(frozen=True, slots=True)
class Creation:
    """A file system to make. throughput: MB/s per TiB, None where the type fixes it; metadata_iops: None lets
    FSx choose, where the type has any; security_groups: empty for one of our own."""

    vpc: str
    subnet: str
    storage_gib: int
    deployment: str
    throughput: int | None
    metadata_iops: int | None
    efa: bool
    compression: str
    security_groups: tuple[str, ...]
    kms_key: str | None
    maintenance: str | None


@dataclass(frozen=True, slots=True)
class FileSystem:
    """FSx for Lustre. id: of one that is there, "" with creation; mount: where every node mounts it.
    make_links: the associations are ours."""

    name: str
    id: str
    mount: str
    links: tuple[Link, ...]
    make_links: bool
    creation: Creation | None = None


@dataclass(frozen=True, slots=True)
class Replication:
    """The bucket in another region that gets a copy of every checkpoint object."""

    bucket: str
    region: str
    storage_class: str


@dataclass(frozen=True, slots=True)
class Storage:
    """The section `checkpoints`. clients: the security groups of all nodes."""

    file_systems: tuple[FileSystem, ...]
    clients: tuple[str, ...]
    rpo_minutes: float
    replication: Replication | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any], clients: tuple[str, ...]) -> "Storage":
        """given: plain values under the names of the fields."""
        found = []
        for each in given["file_systems"]:
            links = tuple(Link(**link) for link in each["links"])
            creation = Creation(**each["creation"]) if each["creation"] else None
            found.append(FileSystem(**{**each, "links": links, "creation": creation}))
        copy = Replication(**given["replication"]) if given["replication"] else None
        return cls(tuple(found), clients, given["rpo_minutes"], copy)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The sandbox's local API, which its scheduler adapter calls."""

    url: str
    token: str


@dataclass(frozen=True, slots=True)
class Settings:
    """root: the repository. document: cluster.json. warnings: what the cluster file allows and seldom means.
    time_scale: what durations are multiplied by.

    sandbox: None on AWS. Everything that the sandbox does differently hangs on it. storage: None where the
    cluster file has no section `checkpoints`.
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
    storage: Storage | None = None

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
