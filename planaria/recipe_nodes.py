"""The node groups of a cluster file: what their instances are, and where they come from."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from planaria.core.cluster import RESERVED, Capacity
from planaria.core.efa import efa_of
from planaria.recipe_policy import Count, Name, Section

InstanceType = Annotated[str, Field(pattern=r"^[a-z0-9-]+\.[a-z0-9-]+$")]
ImageId = Annotated[str, Field(pattern=r"^ami-[0-9a-f]{8,17}$")]
SubnetId = Annotated[str, Field(pattern=r"^subnet-[0-9a-f]{8,17}$")]
SecurityGroupId = Annotated[str, Field(pattern=r"^sg-[0-9a-f]{8,17}$")]
ReservationId = Annotated[str, Field(pattern=r"^cr-[0-9a-f]{8,17}$")]
Zone = Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]+[a-z]$")]


class Launch(Section):
    """What every instance of the group has in common; it becomes the group's launch template.

    root_device is the image's own root device, whose volume is made encrypted with root_gib GiB. zones: the
    Availability Zone of each subnet, for what only holds within one. efa: every EFA device that the instance
    type has; their security groups must let all traffic between themselves through.
    """

    image: ImageId
    subnets: Annotated[tuple[SubnetId, ...], Field(min_length=1)]
    zones: dict[SubnetId, Zone] = Field(default_factory=dict)
    security_groups: Annotated[tuple[SecurityGroupId, ...], Field(min_length=1)]
    key: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    root_device: Annotated[str, Field(pattern=r"^/dev/[a-z0-9]+$")] = "/dev/xvda"
    root_gib: Annotated[int, Field(strict=True, ge=8, le=16_384)] = 200
    efa: Annotated[bool, Field(strict=True)] = False


class Offering(Section):
    """One way to get a node. Without `subnet` the group's first one is meant. capacity spare: the group's
    warm pool; reservation and capacity-block need the id of theirs. placement_group: the reservation was made
    in the group's placement group."""

    instance_type: InstanceType
    capacity: Capacity = Capacity.ON_DEMAND
    subnet: SubnetId | None = None
    reservation: ReservationId | None = None
    placement_group: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _names_its_reservation(self) -> Self:
        if (self.capacity in RESERVED) != (self.reservation is not None):
            rule = "must name its reservation" if self.capacity in RESERVED else "takes no reservation"
            raise ValueError(f"an offering of capacity {self.capacity} {rule}")
        if self.placement_group and self.capacity is not Capacity.RESERVATION:
            raise ValueError(f"placement_group is for capacity reservation, not {self.capacity}")
        return self


class NodeGroup(Section):
    """`size` nodes that may stand in for each other, and `spares` warm ones beside them.

    auto_scaling_group: the group that launches the nodes; `offerings` then only says what they are.
    placement_group: what is launched lies near together, in a cluster placement group of the node group.
    """

    name: Name
    size: Count
    spares: Annotated[int, Field(strict=True, ge=0, le=1000)] = 0
    auto_scaling_group: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    placement_group: Annotated[bool, Field(strict=True)] = False
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

    @model_validator(mode="after")
    def _placement_group_is_ours(self) -> Self:
        if self.placement_group and self.auto_scaling_group is not None:
            raise ValueError("placement_group is set in an Auto Scaling group's own launch template")
        for offering in self.offerings:
            if offering.placement_group and not self.placement_group:
                raise ValueError(
                    f"the offering of {offering.reservation} lies in a placement group, but the node group "
                    "has none (placement_group: true)"
                )
        return self

    @model_validator(mode="after")
    def _efa_is_known(self) -> Self:
        """One launch template names the interfaces, whatever type is launched from it."""
        if self.launch.efa and self.auto_scaling_group is not None:
            raise ValueError("launch.efa is set in an Auto Scaling group's own launch template")
        counts = {}
        for offering in self.offerings if self.launch.efa else ():
            known = efa_of(offering.instance_type)
            if known is None:
                name = offering.instance_type
                raise ValueError(f"launch.efa: it is not known how many EFA devices {name} has")
            counts[known.cards, known.devices] = offering.instance_type
        if len(counts) > 1:
            said = " and ".join(f"{devices} of {name}" for (_, devices), name in sorted(counts.items()))
            raise ValueError(f"launch.efa: types with as many EFA devices in one node group, not {said}")
        return self

    @property
    def efa(self) -> tuple[tuple[int, int], ...]:
        """(network card, device index) of each EFA device that is launched with an instance."""
        known = efa_of(self.offerings[0].instance_type) if self.launch.efa else None
        return known.places if known is not None else ()
