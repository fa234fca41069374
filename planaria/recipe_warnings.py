"""What a cluster file may say and yet seldom means, and where its zones contradict each other."""

from collections.abc import Iterator, Sequence

from planaria.recipe_checkpoints import Checkpoints
from planaria.recipe_nodes import NodeGroup


def placement(groups: Sequence[NodeGroup]) -> Iterator[str]:
    """Placement groups whose offerings lie in several zones."""
    for group in groups:
        zones = {zone for _, zone in _zones(group)}
        if group.placement_group and len(zones - {None}) > 1:
            named = ", ".join(sorted(zone for zone in zones if zone is not None))
            yield (
                f"node_groups {group.name}: its offerings launch in {named}, but a cluster placement "
                "group lies in one Availability Zone: those in the others will find no capacity."
            )


def away(groups: Sequence[NodeGroup], file_system: str, zones: Sequence[str]) -> Iterator[str]:
    """Offerings in a zone that has no file system. zones: those of `file_system`, which names all of them."""
    for group in groups:
        for number, zone in _zones(group):
            if zones and zone is not None and zone not in zones:
                yield (
                    f"node_groups {group.name}: offering {number} launches in {zone}, but the file "
                    f"system {file_system} lies in {', '.join(zones)}: every read and write "
                    "crosses Availability Zones, which is slower and is paid for by the gigabyte."
                )


def without_efa(groups: Sequence[NodeGroup], checkpoints: Checkpoints | None) -> Iterator[str]:
    for each in checkpoints.file_systems if checkpoints is not None else ():
        if each.create is not None and each.create.efa and not any(group.launch.efa for group in groups):
            yield (
                f"checkpoints.file_systems {each.name}: it has EFA, but no node group has (launch.efa): "
                "nodes will reach it over TCP alone."
            )


def refused(groups: Sequence[NodeGroup], region: str, checkpoints: Checkpoints) -> str | None:
    """Why the Storage stack's file systems would not lie where the capacity is, or copies not elsewhere; None
    when all is well."""
    copies = checkpoints.replication
    if copies is not None and copies.region == region:
        return (
            f"checkpoints.replication: the bucket {copies.bucket} must be in another region than the "
            f"cluster's, not in {region}"
        )
    for each in checkpoints.file_systems:
        if not each.zone.startswith(region):
            return f"checkpoints.file_systems {each.name}: zone {each.zone} is not in region {region}"
        if each.create is None:
            continue
        what = f"checkpoints.file_systems {each.name}"
        for group in groups:
            there = group.launch.zones.get(each.create.subnet, each.zone)
            if there != each.zone:
                return f"{what}: its subnet {each.create.subnet} lies in {there}, not in its zone {each.zone}"
            found = {zone for _, zone in _zones(group)}
            if None in found:
                return (
                    f"{what} is made in {each.zone}, so launch.zones of node_groups {group.name} must name "
                    "the zone of each subnet"
                )
            if found.isdisjoint(checkpoints.zones):
                named = ", ".join(sorted(zone for zone in found if zone is not None))
                return (
                    f"{what} would lie in {each.zone}, but node_groups {group.name} launches only in "
                    f"{named}: put both into one Availability Zone"
                )
    return None


def _zones(group: NodeGroup) -> Iterator[tuple[int, str | None]]:
    """(number of the offering, its zone where the file tells it)."""
    for number, offering in enumerate(group.offerings, 1):
        yield number, group.launch.zones.get(offering.subnet or group.launch.subnets[0])
