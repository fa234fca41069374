"""Which candidates take the place of a job's lost nodes: those that add the fewest hops, as many as are
wanted.

Several at once are chosen together, for two that are each near to the job may be far from each other. The
hops between all pairs are a sum over the links of the tree, where each link counts the nodes below it
times those elsewhere; so the best choice for a part of the tree follows from its size alone, and is found
from the leaves upwards. It is the optimum for any number, in time linear in the network nodes.

Among choices of equal hops the candidates' own order decides, then their names: the order in which they
are given changes nothing. A place that is unknown is farther than any known one (core/topology.py), so it
is chosen only where no known one is left.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planaria.core.topology import UNKNOWN, Path, Spread, hops, legs

MOST_ASSIGNED = 8
"""So many are given their places by trying all ways; what goes beyond, one after the other."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node, or the place of one that may be launched. rank: among equals the lower one is taken."""

    name: str
    path: Path = UNKNOWN
    rank: int = 0


def nearest_first(candidates: Iterable[Candidate], members: Iterable[Path]) -> list[Candidate]:
    """By the hops that each would add by itself. members: where the job's other nodes are."""
    spread, given = Spread.of(members), list(candidates)
    added = {path: spread.added(path) for path in {candidate.path for candidate in given}}
    return sorted(given, key=lambda c: (added[c.path], c.rank, c.name))


def choose(candidates: Iterable[Candidate], members: Iterable[Path], count: int = 1) -> tuple[Candidate, ...]:
    """The `count` candidates (all, where there are no more) that add the fewest hops to the job: between
    them and its other nodes, and among themselves. Sorted as `nearest_first`."""
    members = list(members)
    order = nearest_first(candidates, members)
    if count >= len(order):
        return tuple(order)
    if count <= 1:
        return tuple(order[: max(count, 0)])
    chosen = set(_best(order, Spread.of(members), count))
    return tuple(candidate for candidate in order if candidate in chosen)


def added_hops(chosen: Sequence[Candidate], members: Iterable[Path]) -> int:
    """What this choice adds to the hops between all pairs of the job's nodes."""
    spread = Spread.of(members)
    before = spread.hops
    for candidate in chosen:
        spread.add(candidate.path)
    return spread.hops - before


# --- the best choice, from the leaves upwards ----------------------------------------------------------

# For 0, 1, 2... chosen below a link: (hops, sum of ranks, what is chosen: a nest of pairs and lists).
_Option = tuple[int, int, Any]
_Options = list[_Option]


def _best(order: Sequence[Candidate], members: Spread, count: int) -> list[Candidate]:
    size = members.nodes + count
    groups: dict[Path, list[Candidate]] = {}
    for candidate in order:  # at one place by rank and name
        group = groups.setdefault(candidate.path, [])
        if len(group) < count:
            group.append(candidate)
    options: dict[Path, _Options] = {path: _of_group(group, size) for path, group in groups.items()}
    deepest = max(map(len, groups))
    for depth in range(deepest, 0, -1):
        for path in sorted(path for path in options if len(path) == depth):
            below = _through_link(options.pop(path), members.below[path], size)
            above = path[:-1]
            options[above] = _together(options[above], below, count) if above in options else below
    return list(_flat(options[UNKNOWN][count][2]))


def _of_group(group: list[Candidate], size: int) -> _Options:
    """Candidates at one place: each has its own link, or several where its lower layers are not known."""
    path = group[0].path
    each = (legs(path) - len(path)) * (size - 1)
    found: _Options = [(0, 0, ())]
    for number, candidate in enumerate(group, 1):
        found.append((each * number, found[-1][1] + candidate.rank, group[:number]))
    return found


def _through_link(options: _Options, members: int, size: int) -> _Options:
    """The link above a network node that has `members` of the job's other nodes below it."""
    counted = []
    for number, (cost, ranks, chosen) in enumerate(options):
        below = members + number
        counted.append((cost + below * (size - below), ranks, chosen))
    return counted


def _together(one: _Options, other: _Options, count: int) -> _Options:
    """Of two parts of the tree: each number in all its divisions between them."""
    most = min(count, len(one) + len(other) - 2)
    best: _Options = []
    for number in range(most + 1):
        low = max(0, number - len(one) + 1)
        theirs, least, fewest = low, -1, 0
        for division in range(low, min(number, len(other) - 1) + 1):
            mine, more = one[number - division], other[division]
            cost, ranks = mine[0] + more[0], mine[1] + more[1]
            if least < 0 or cost < least or (cost == least and ranks < fewest):
                theirs, least, fewest = division, cost, ranks
        best.append((least, fewest, (one[number - theirs][2], other[theirs][2])))
    return best


def _flat(chosen: Any) -> Iterable[Candidate]:
    stack = [chosen]
    while stack:
        part = stack.pop()
        if isinstance(part, Candidate):
            yield part
        else:
            stack.extend(part)


# --- who takes which place -----------------------------------------------------------------------------


def assigned(chosen: Sequence[Candidate], places: Mapping[str, Sequence[Path]]) -> dict[str, Candidate]:
    """Which of the chosen takes which place (a rank of the job), with the fewest hops to its neighbours.

    places: name -> where the nodes of the neighbouring ranks are, as far as they stay: NCCL's rings go
    from rank to rank, and a replacement takes its predecessor's. Places come first to last; where there
    are fewer candidates than places the last ones get none.
    """
    order = list(places)[: len(chosen)]
    found: dict[str, Candidate] = {}
    for start in range(0, len(order), MOST_ASSIGNED):
        left = [candidate for candidate in chosen if candidate not in found.values()]
        part = order[start : start + MOST_ASSIGNED]
        found |= _matched(left[:MOST_ASSIGNED], part, places)
    return found


def _matched(
    chosen: Sequence[Candidate], order: Sequence[str], places: Mapping[str, Sequence[Path]]
) -> dict[str, Candidate]:
    """Every way, by the set of candidates that are used up: 2^8 sets of 8 at most."""
    states: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for place in order:
        costs = [sum(hops(candidate.path, path) for path in places[place]) for candidate in chosen]
        following: dict[int, tuple[int, tuple[int, ...]]] = {}
        for used, (cost, taken) in states.items():
            for index, more in enumerate(costs):
                if used >> index & 1:
                    continue
                key, state = used | 1 << index, (cost + more, (*taken, index))
                if key not in following or state < following[key]:
                    following[key] = state
        states = following
    _, taken = min(states.values())
    return {place: chosen[index] for place, index in zip(order, taken, strict=True)}
