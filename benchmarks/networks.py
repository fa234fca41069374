"""Random clusters in a network of three layers, and what others would choose there."""

import itertools
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planaria.core.placement import Candidate, added_hops, assigned, choose, nearest_first
from planaria.core.topology import UNKNOWN, Path, hops

MOST_NODES = 4096
MOST_WAYS = 8_000
"""A case with more ways to choose is not enumerated."""

SEED = 20_260


@dataclass(frozen=True, slots=True)
class Network:
    """One cluster. job: where the nodes of the job are that stay, in the order of their ranks; spares: a warm
    pool; idle: all other nodes that could stand in; count: how many nodes of the job are to be replaced."""

    job: tuple[Path, ...]
    spares: tuple[Candidate, ...]
    idle: tuple[Candidate, ...]
    count: int

    @property
    def nodes(self) -> int:
        return len(self.job) + len(self.idle) + self.count

    @property
    def ways(self) -> int:
        return math.comb(len(self.spares), self.count)


def network(number: int, large: bool = False) -> Network:
    """The cluster of this number, always the same one. large: it has 4,096 nodes.

    Size, width of each layer, size of the job, whether the job is compact (as a scheduler with topology
    places it) or scattered, the pool and the number of lost nodes are drawn; in every third cluster EC2 does
    not tell where every tenth node is.
    """
    draw = random.Random(SEED * 1_000_003 + number)
    nodes = MOST_NODES if large else int(2 ** draw.uniform(5, 12))
    widths = draw.choice(((1, 4, 16), (2, 8, 16), (4, 8, 8), (4, 16, 16), (8, 8, 4), (2, 4, 64)))
    places = sorted(_place(draw, widths) for _ in range(nodes))
    if number % 3 == 0:
        places = [UNKNOWN if draw.random() < 0.1 else path for path in places]
    if draw.random() < 0.5:
        draw.shuffle(places)
    count = draw.randint(1, 8)
    size = min(int(2 ** draw.uniform(2, 10)), nodes // 2) + count
    begin = draw.randrange(nodes - size + 1)
    job = places[begin : begin + size]
    lost = set(draw.sample(range(size), count))
    names = draw.sample(range(10**9), nodes)  # instance ids tell nothing of the place
    idle = [Candidate(f"i-{names[at]:017x}", path) for at, path in enumerate(places)]
    idle = idle[:begin] + idle[begin + size :]
    spares = draw.sample(idle, min(len(idle), draw.randint(count, count + 8)))
    stay = tuple(path for rank, path in enumerate(job) if rank not in lost)
    return Network(stay, tuple(spares), tuple(idle), count)


def _place(draw: random.Random, widths: tuple[int, int, int]) -> Path:
    found = itertools.accumulate((f"{draw.randrange(width):02d}" for width in widths), "{}.{}".format)
    return tuple(f"nn-{name}" for name in found)


# --- ways to choose ------------------------------------------------------------------------------------

Choice = Callable[[Network], Sequence[Candidate]]


def planaria(of: Network) -> Sequence[Candidate]:
    return choose(of.spares, of.job, of.count)


def one_after_the_other(of: Network) -> Sequence[Candidate]:
    """The nearest, then the one that is nearest to all of them, and so on."""
    left, members, chosen = list(of.spares), list(of.job), list[Candidate]()
    for _ in range(of.count):
        nearest = nearest_first(left, members)[0]
        left.remove(nearest)
        members.append(nearest.path)
        chosen.append(nearest)
    return chosen


def nearest_each(of: Network) -> Sequence[Candidate]:
    """Those that are nearest to the job, each for itself."""
    return nearest_first(of.spares, of.job)[: of.count]


def first_fit(of: Network) -> Sequence[Candidate]:
    """By name, as a scheduler without topology takes them."""
    return sorted(of.spares, key=lambda candidate: candidate.name)[: of.count]


def at_random(of: Network) -> Sequence[Candidate]:
    return random.Random(of.nodes).sample(of.spares, of.count)


def optimum(of: Network) -> int:
    """The fewest hops that any choice adds, by trying all."""
    near = [sum(hops(spare.path, path) for path in of.job) for spare in of.spares]
    between = [[hops(one.path, other.path) for other in of.spares] for one in of.spares]
    return min(
        sum(near[one] for one in way) + sum(between[a][b] for a, b in itertools.combinations(way, 2))
        for way in itertools.combinations(range(len(of.spares)), of.count)
    )


def added(choice: Choice, of: Network) -> int:
    return added_hops(choice(of), of.job)


def milliseconds(of: Network, count: int) -> tuple[float, float]:
    """Wall and processor time of one decision among all idle nodes, the assignment to ranks included."""
    beside = {str(rank): of.job[rank : rank + 2] for rank in range(count)}
    wall, used = time.perf_counter(), time.process_time()
    assigned(choose(of.idle, of.job, count), beside)
    return (time.perf_counter() - wall) * 1000, (time.process_time() - used) * 1000
