"""The rules of a node group's offerings: which may be tried for a node, in which order, and what a person has
to change where EC2 refuses one for good.

The order of the cluster file counts, and only what it lists is ever launched: another instance type than the
lost node's is used where the file names it, and nowhere else. Two things are known of the node itself and go
before that order: a reservation that ends is not used for its own node, and the spot pool that takes a node
back (or is about to) comes last.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from planaria.core.cluster import Capacity, NodeGroup, Offering
from planaria.core.errors import PermanentError, TransientError
from planaria.core.table import Row

FIRST_WAIT, LONGEST_WAIT = 30, 600
"""Seconds of a state's Wait between two tries of an incident that finds no capacity, from - to: doubled."""

WANTS_BACK = frozenset({"spot_interruption", "rebalance"})
"""Fault kinds by which EC2 says that it needs the capacity of this very pool."""


class Problem(StrEnum):
    """Why EC2 refuses an offering for good, until a person changes something."""

    QUOTA = "quota"
    PERMISSION = "permission"
    SPOT_ROLE = "spot-role"
    ACCOUNT = "account"
    IMAGE = "image"
    SUBNET = "subnet"
    SECURITY_GROUP = "security-group"
    KEY = "key"
    TEMPLATE = "template"
    RESERVATION = "reservation"
    RESERVATION_ENDS = "reservation-ends"
    PLACEMENT = "placement"
    ENCRYPTION = "encryption"
    TYPE = "type"
    REQUEST = "request"


class Unusable(PermanentError):
    """This offering is out until a person changes something; another one may do."""

    def __init__(self, problem: Problem, said: str) -> None:
        super().__init__(said)
        self.problem = problem


class SpentToken(TransientError):
    """No instance will come of this launch token any more.

    certain: EC2 has answered it for good; otherwise it knows the token from a call with other parameters,
    whose instance may only not be listed yet. throttled: because too much was asked of EC2.
    """

    def __init__(self, reason: str, certain: bool = True, throttled: bool = False) -> None:
        super().__init__(reason)
        self.certain, self.throttled = certain, throttled


def wait_seconds(tries: int) -> int:
    """How long an incident waits that has found no capacity `tries` times before; unscaled."""
    return min(LONGEST_WAIT, FIRST_WAIT << min(max(tries, 0), 8))


def of_node(group: NodeGroup, row: Row) -> frozenset[str]:
    """The keys of the offerings that this node may have come from; one, where we launched it ourselves."""
    if row.get("offering"):
        return frozenset({str(row["offering"])})
    if row.get("reservation"):
        return frozenset(o.key for o in group.offerings if o.reservation == row["reservation"])
    kind = (row.get("fault") or {}).get("kind")
    spot = row.get("lifecycle") == "spot" or kind in WANTS_BACK
    capacity = Capacity.SPOT if spot else Capacity.ON_DEMAND
    zone = row.get("zone")
    return frozenset(
        offering.key
        for offering in group.offerings
        if offering.capacity is capacity
        and row.get("instance_type") in (None, "", offering.instance_type)
        and not (zone and offering.zone and offering.zone != zone)
    )


def ending(row: Row) -> frozenset[str]:
    """The reservations and Capacity Blocks that end and take this node with them."""
    fault = row.get("fault") or {}
    named = (
        {fault.get("reservation"), row.get("reservation")} if fault.get("kind") == "capacity_end" else set()
    )
    return frozenset(str(name) for name in named if name)


def in_order(group: NodeGroup, row: Row) -> tuple[Offering, ...]:
    """What may be tried for the node's replacement, first to last."""
    ends = ending(row)
    usable = {o.key: o for o in group.offerings if o.reservation not in ends}
    last = of_node(group, row) if (row.get("fault") or {}).get("kind") in WANTS_BACK else frozenset()
    return tuple(sorted(usable.values(), key=lambda offering: offering.key in last))


def equals(listed: Sequence[Offering]) -> list[list[Offering]]:
    """The list in runs of equals: reservations that stand next to each other and differ in nothing but which
    reservation they are. Every other offering is a run by itself, since the file's order counts."""
    runs: list[list[Offering]] = []
    for offering in listed:
        if runs and _alike(runs[-1][-1]) == _alike(offering) is not None:
            runs[-1].append(offering)
        else:
            runs.append([offering])
    return runs


def nearest_first(listed: Sequence[Offering], hops: Callable[[str], int]) -> tuple[Offering, ...]:
    """Among equals the one that is nearest. hops: reservation id -> hops that an instance there would add."""
    return tuple(o for run in equals(listed) for o in sorted(run, key=lambda o: hops(o.reservation)))


def _alike(offering: Offering) -> tuple[str, ...] | None:
    if not offering.reservation:
        return None
    return offering.capacity.value, offering.instance_type, offering.subnet, offering.zone


def same_reservation(row: Row, offering: Offering) -> bool:
    """The node's own reservation: where it is full, the node itself has the place of its replacement."""
    return bool(offering.reservation) and offering.reservation == row.get("reservation")


def same_quota(row: Row, offering: Offering) -> bool:
    """One quota counts both: what runs as On-Demand (in a reservation or not) and as Spot has one for each
    family; a Capacity Block counts to none."""
    lifecycle = row.get("lifecycle") or "on-demand"
    counted = {
        "spot": (Capacity.SPOT,),
        "on-demand": (Capacity.ON_DEMAND, Capacity.RESERVATION),
    }.get(str(lifecycle), ())
    family = str(row.get("instance_type") or "").partition(".")[0]
    return offering.capacity in counted and offering.instance_type.partition(".")[0] == family


def cooling(state: Mapping[str, Any], offering: Offering, by: str, now: float) -> str:
    """Why this offering is passed over at present, "" when it may be tried.

    state: the group's row. by: the node or refill that asks. Who found an offering without capacity asks
    again, at its own pace; everybody else waits until it has cooled down, or was proven good.
    """
    entry = (state.get("cooling") or {}).get(offering.key) or {}
    if float(entry.get("until") or 0.0) <= now or entry.get("by") == by:
        return ""
    return str(entry.get("why") or "no capacity lately")


def all_out(offerings: Sequence[Offering], out: Mapping[str, str]) -> bool:
    """No way to launch is left. A warm pool is none: it is filled from the other offerings."""
    launched = [o for o in offerings if o.capacity is not Capacity.SPARE]
    return bool(launched) and all(o.key in out for o in launched)


def advice(problem: Problem, offering: Offering, group: NodeGroup) -> str:
    """One sentence: what a person changes so that EC2 gives this offering again."""
    family = offering.instance_type.partition(".")[0]
    template = offering.launch_template or group.launch_template
    file = "in the cluster file, and deploy"
    match problem:
        case Problem.QUOTA:
            kind = "Spot" if offering.capacity is Capacity.SPOT else "On-Demand"
            return f"Ask Service Quotas (Amazon EC2) for more running {kind} {family} instances."
        case Problem.PERMISSION:
            return (
                "Deploy again, so that the role of launch_replacement may launch with "
                f"{template} (docs/iam.md), and look for a service control policy that forbids it."
            )
        case Problem.SPOT_ROLE:
            return "Run `aws iam create-service-linked-role --aws-service-name spot.amazonaws.com` once."
        case Problem.ACCOUNT:
            return "Ask AWS Support why this account may not launch instances."
        case Problem.IMAGE:
            return f"Name an image that exists and is yours to use as launch.image of {group.name} {file}."
        case Problem.SUBNET:
            return f"Name a subnet that exists instead of {offering.subnet} {file}."
        case Problem.SECURITY_GROUP:
            return (
                f"Name security groups of the subnet's VPC as launch.security_groups of {group.name} {file}."
            )
        case Problem.KEY:
            return f"Name a key pair that exists as launch.key of {group.name}, or none, {file}."
        case Problem.TEMPLATE:
            return f"Deploy again: the launch template {template} is gone or was changed by hand."
        case Problem.RESERVATION:
            return (
                f"Take {offering.reservation or 'the reservation'} out of the offerings of {group.name}, or "
                f"put a reservation in its place that is active, {file}."
            )
        case Problem.RESERVATION_ENDS:
            return f"Give {group.name} an offering beside the reservation that ends {file}."
        case Problem.PLACEMENT:
            return f"Deploy again: the placement group of {template} is gone."
        case Problem.ENCRYPTION:
            return "Let the role of launch_replacement and EC2 use the KMS key that encrypts the volumes."
        case Problem.TYPE:
            where = offering.zone or offering.subnet or "this zone"
            return (
                f"Name an instance type that EC2 has in {where} instead of {offering.instance_type} {file}."
            )
        case Problem.REQUEST:
            return f"Correct what EC2 names above in the launch template {template} or {file}."
