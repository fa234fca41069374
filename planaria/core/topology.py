"""Where instances are in EC2's network, and how many links lie between two of them.

EC2 tells of an instance the network nodes above it, one per layer, top first; the last one it is plugged
into. Three or four layers, by instance type; of a capacity reservation perhaps only the upper ones.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/how-ec2-instance-topology-works.html

Unknown (not running, a type that EC2 tells nothing about, no answer) is a place of its own, `UNKNOWN`:
farther from everything than the farthest known place, also from another unknown one. A layer that is not
told counts as not shared.

The cost of a job's placement is the sum of the hops between all pairs of its nodes. NCCL strings its rings
and double binary trees along the ranks and does not know EC2's network; over all orders of the ranks the
links that a ring or a tree uses are on average that sum times a constant, and an all-to-all (expert
parallelism) uses each pair. It is also a sum over links: each counts the nodes below it times those
elsewhere.
https://github.com/NVIDIA/nccl/blob/v2.20.3-1/src/graph/connect.cc (rings and trees in the order of the nodes)
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Path = tuple[str, ...]
"""The network nodes above an instance, top first."""

UNKNOWN: Path = ()

LAYERS, MOST_LAYERS = 3, 4

UNKNOWN_LEGS = MOST_LAYERS + 2
"""Links from a place that nobody knows up to above the top layer; a known one has at most MOST_LAYERS + 1."""

LABEL = "topology.k8s.aws/network-node-layer-"
"""EKS's labels: layer 1 is the top, layer 4 is there only where the instance type has it.
https://docs.aws.amazon.com/eks/latest/userguide/ml-workload-topology.html"""


@dataclass(frozen=True, slots=True)
class Located:
    """What EC2 answers about one instance or reservation. why: the reason where the place is unknown.
    final: it will stay unknown, for EC2 tells nothing about this instance type or in this region."""

    path: Path = UNKNOWN
    why: str = ""
    final: bool = False


class NetworkTopology(Protocol):
    """EC2's two calls. Whoever is asked about has an entry in the answer. Raises TransientError."""

    def instances(self, types: Mapping[str, str]) -> dict[str, Located]:
        """types: instance id -> instance type, for EC2 refuses a call because of one type."""
        ...

    def reservations(self, ids: Sequence[str]) -> dict[str, Located]: ...


def path_of(value: object) -> Path:
    """A path as it is stored (a list of names); UNKNOWN for anything else."""
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) and name for name in value):
        return UNKNOWN
    return tuple(value)


def of_row(row: Mapping[str, Any] | None) -> Path:
    """The place of a node by its row in the ledger."""
    return path_of((row or {}).get("topology"))


def of_labels(labels: Mapping[str, str]) -> Path:
    """The place of a Kubernetes node; from the top down to the first layer that has no label."""
    found: list[str] = []
    for layer in range(1, MOST_LAYERS + 1):
        name = labels.get(f"{LABEL}{layer}")
        if not name:
            break
        found.append(name)
    return tuple(found)


def legs(path: Path) -> int:
    """Links from a place up to above the top layer."""
    return max(len(path), LAYERS) + 1 if path else UNKNOWN_LEGS


def shared(one: Path, other: Path) -> int:
    """How many network nodes two places have in common."""
    number = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        number += 1
    return number


def hops(one: Path, other: Path) -> int:
    """Links between two instances: 2 below the same network node of the lowest layer, and 2 more for each
    layer that they do not share."""
    return legs(one) + legs(other) - 2 * shared(one, other)


@dataclass(slots=True)
class Spread:
    """Where the nodes of a job are. below: how many of them each network node has below it, by its path."""

    nodes: int = 0
    unknown: int = 0
    below: Counter[Path] = field(default_factory=Counter)
    total_legs: int = 0

    @classmethod
    def of(cls, paths: Iterable[Path]) -> "Spread":
        spread = cls()
        for path in paths:
            spread.add(path)
        return spread

    def add(self, path: Path) -> None:
        self.nodes += 1
        self.unknown += not path
        self.total_legs += legs(path)
        for depth in range(1, len(path) + 1):
            self.below[path[:depth]] += 1

    def added(self, path: Path) -> int:
        """Hops from one more node to all that are there."""
        common = sum(self.below[path[:depth]] for depth in range(1, len(path) + 1))
        return self.nodes * legs(path) + self.total_legs - 2 * common

    @property
    def hops(self) -> int:
        """Between all pairs."""
        common = sum(number * (number - 1) // 2 for number in self.below.values())
        return self.total_legs * (self.nodes - 1) - 2 * common if self.nodes else 0

    @property
    def mean_hops(self) -> float:
        """Between two nodes, 0 for a job of one."""
        pairs = self.nodes * (self.nodes - 1) // 2
        return self.hops / pairs if pairs else 0.0

    @property
    def switches(self) -> tuple[int, ...]:
        """How many network nodes the job uses in each layer, top first; of the known nodes."""
        deepest = max(map(len, self.below), default=0)
        per_layer = Counter(len(path) for path in self.below)
        return tuple(per_layer[depth] for depth in range(1, deepest + 1))
