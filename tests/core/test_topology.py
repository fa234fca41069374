"""EC2's network as a tree, and the choice of replacements in it."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.core.placement import Candidate, added_hops, assigned, choose, nearest_first
from planaria.core.topology import (
    MOST_LAYERS,
    UNKNOWN,
    Path,
    Spread,
    hops,
    legs,
    of_labels,
    of_row,
    path_of,
    shared,
)

NEAR = ("nn-1", "nn-2", "nn-4")
BESIDE = ("nn-1", "nn-2", "nn-5")
FAR = ("nn-1", "nn-3", "nn-6")
ELSEWHERE = ("nn-7", "nn-8", "nn-9")

layer = st.integers(1, 3).map("n{}".format)


@st.composite
def paths(draw: st.DrawFn) -> Path:
    """A place in a network in which a node's name is that of the whole way to it, as EC2's are."""
    depth = draw(st.sampled_from((0, 1, 2, 3, 3, 3, 3, 4)))
    return tuple(itertools.accumulate((draw(layer) for _ in range(depth)), "{}.{}".format))


def candidates(number: int, most: int = 2) -> st.SearchStrategy[list[Candidate]]:
    def named(found: list[tuple[Path, int]]) -> list[Candidate]:
        return [Candidate(f"i-{index:02d}", path, rank) for index, (path, rank) in enumerate(found)]

    one = st.tuples(paths(), st.integers(0, most))
    return st.lists(one, min_size=1, max_size=number).map(named)


def brute(found: Sequence[Candidate], members: Sequence[Path], count: int) -> int:
    return min(added_hops(choice, members) for choice in itertools.combinations(found, count))


# --- the tree ------------------------------------------------------------------------------------------


def test_hops_of_the_example_in_ec2s_guide() -> None:
    """Instances 1 and 2 below NN4, 3 below NN5, 4 below NN6."""
    assert [hops(NEAR, other) for other in (NEAR, BESIDE, FAR, ELSEWHERE)] == [2, 4, 6, 8]


def test_unknown_is_farther_than_the_farthest_known_place_also_from_itself() -> None:
    four = tuple(f"nn-{number}" for number in range(MOST_LAYERS))
    farthest = hops(four, tuple(f"mm-{number}" for number in range(MOST_LAYERS)))
    assert farthest == 10
    assert hops(UNKNOWN, NEAR) > hops(ELSEWHERE, NEAR) and hops(UNKNOWN, four) > farthest
    assert hops(UNKNOWN, UNKNOWN) > hops(UNKNOWN, four)


def test_layers_that_are_not_told_count_as_not_shared() -> None:
    upper = NEAR[:2]
    assert hops(upper, NEAR) == hops(BESIDE, NEAR) == 4
    assert hops(upper, upper) == 4
    assert hops(upper[:1], NEAR) == 6


def test_types_of_three_and_four_layers_meet_where_their_paths_do() -> None:
    assert hops(NEAR, (*NEAR, "nn-10")) == 3


@given(paths(), paths(), paths())
def test_hops_are_a_distance(one: Path, two: Path, three: Path) -> None:
    assert hops(one, two) == hops(two, one) > 0
    assert hops(one, three) <= hops(one, two) + hops(two, three)
    assert shared(one, two) <= min(len(one), len(two))


@given(st.lists(paths(), max_size=8))
def test_the_spread_of_a_job_is_the_sum_over_its_pairs(found: list[Path]) -> None:
    spread = Spread.of(found)
    pairs = [hops(one, two) for one, two in itertools.combinations(found, 2)]
    assert spread.hops == sum(pairs)
    assert spread.mean_hops == pytest.approx(sum(pairs) / len(pairs) if pairs else 0.0)
    assert spread.unknown == found.count(UNKNOWN) and spread.nodes == len(found)
    for depth, number in enumerate(spread.switches, 1):
        assert number == len({path[:depth] for path in found if len(path) >= depth})


@given(st.lists(paths(), max_size=6), paths())
def test_what_one_more_node_adds(found: list[Path], more: Path) -> None:
    spread = Spread.of(found)
    assert spread.added(more) == sum(hops(more, path) for path in found)
    before = spread.hops
    added = spread.added(more)
    spread.add(more)
    assert spread.hops == before + added


@pytest.mark.parametrize("value", [None, "nn-1", [], ["nn-1", 3], ["", "nn-2"], {"nn-1": 1}, 7])
def test_a_row_that_tells_no_place_is_unknown(value: object) -> None:
    assert path_of(value) == UNKNOWN
    assert of_row({"topology": value}) == of_row({}) == of_row(None) == UNKNOWN


def test_a_place_is_read_from_a_row_and_from_labels() -> None:
    assert of_row({"topology": list(NEAR)}) == NEAR
    labels = {f"topology.k8s.aws/network-node-layer-{n}": name for n, name in enumerate(NEAR, 1)}
    assert of_labels({**labels, "topology.kubernetes.io/zone": "us-east-1a"}) == NEAR
    assert of_labels({**labels, "topology.k8s.aws/network-node-layer-4": "nn-x"}) == (*NEAR, "nn-x")
    assert of_labels({}) == UNKNOWN
    labels.pop("topology.k8s.aws/network-node-layer-2")
    assert of_labels(labels) == NEAR[:1]


# --- the choice ----------------------------------------------------------------------------------------


@given(candidates(8), st.lists(paths(), max_size=6))
def test_one_replacement_is_always_the_optimum(found: list[Candidate], members: list[Path]) -> None:
    (chosen,) = choose(found, members)
    assert added_hops([chosen], members) == brute(found, members, 1)
    assert chosen == nearest_first(found, members)[0]


@settings(max_examples=300)
@given(candidates(9), st.lists(paths(), max_size=6), st.integers(1, 8))
def test_several_at_once_are_the_optimum(found: list[Candidate], members: list[Path], count: int) -> None:
    count = min(count, len(found))
    chosen = choose(found, members, count)
    assert len(set(chosen)) == count and set(chosen) <= set(found)
    assert added_hops(chosen, members) == brute(found, members, count)


@given(candidates(9), st.lists(paths(), max_size=6), st.integers(1, 9), st.randoms())
def test_the_order_in_which_they_are_given_changes_nothing(
    found: list[Candidate], members: list[Path], count: int, random: object
) -> None:
    chosen = choose(found, members, count)
    mixed, others = list(found), list(members)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    random.shuffle(others)  # type: ignore[attr-defined]
    assert choose(mixed, others, count) == chosen


@given(candidates(9), st.lists(paths(), min_size=1, max_size=6), st.integers(1, 8))
def test_unknown_is_never_preferred_to_known(found: list[Candidate], members: list[Path], count: int) -> None:
    chosen = choose(found, members, count)
    known = [candidate for candidate in found if candidate.path]
    if any(not candidate.path for candidate in chosen):
        assert set(known) <= set(chosen)


@given(candidates(9), st.lists(paths(), max_size=5), st.integers(2, 8))
def test_never_worse_than_one_after_the_other(
    found: list[Candidate], members: list[Path], count: int
) -> None:
    count, left, there = min(count, len(found)), list(found), list(members)
    for _ in range(count):
        (nearest,) = choose(left, there)
        left.remove(nearest)
        there.append(nearest.path)
    greedy = [candidate for candidate in found if candidate not in left]
    assert added_hops(choose(found, members, count), members) <= added_hops(greedy, members)


def test_together_is_better_than_one_after_the_other() -> None:
    """One member; the nearest candidate stands alone, two others stand together a little farther off."""
    members = [("a", "b", "c"), ("a", "d", "e")]
    alone = Candidate("i-1", ("a", "b", "x"))
    pair = [Candidate("i-2", ("a", "d", "y")), Candidate("i-3", ("a", "d", "y"))]
    assert set(choose([alone, *pair], members, 2)) == set(pair)


def test_among_equals_the_callers_order_decides_then_the_name() -> None:
    found = [Candidate("i-2", NEAR), Candidate("i-1", NEAR), Candidate("i-3", NEAR, rank=-1)]
    assert [c.name for c in choose(found, [NEAR], 2)] == ["i-3", "i-1"]
    assert [c.name for c in choose(found, [], 3)] == ["i-3", "i-1", "i-2"]


def test_too_few_candidates_are_all_taken_and_none_is_none() -> None:
    found = [Candidate("i-1", FAR), Candidate("i-2", NEAR)]
    assert [c.name for c in choose(found, [NEAR], 5)] == ["i-2", "i-1"]
    assert choose([], [NEAR], 3) == () and choose(found, [NEAR], 0) == ()


# --- who takes which place ------------------------------------------------------------------------------


@given(candidates(5), st.lists(st.lists(paths(), max_size=2), min_size=1, max_size=5))
def test_places_are_given_with_the_fewest_hops_to_their_neighbours(
    chosen: list[Candidate], beside: list[list[Path]]
) -> None:
    places = {f"n-{number}": neighbours for number, neighbours in enumerate(beside)}
    found = assigned(chosen, places)
    some = list(places)[: len(chosen)]
    assert list(found) == some and len({c.name for c in found.values()}) == len(some)

    def cost(way: Sequence[Candidate]) -> int:
        pairs = zip(some, way, strict=True)
        return sum(hops(candidate.path, path) for place, candidate in pairs for path in places[place])

    assert cost(list(found.values())) == min(map(cost, itertools.permutations(chosen, len(some))))


def test_more_places_than_are_tried_in_all_ways_are_filled_all_the_same() -> None:
    chosen = [Candidate(f"i-{number:02d}", NEAR if number % 2 else FAR) for number in range(20)]
    found = assigned(chosen, {f"n-{number}": [NEAR] for number in range(20)})
    assert len(found) == 20 and set(found.values()) == set(chosen)


def test_legs_of_a_known_place_stay_below_those_of_an_unknown_one() -> None:
    assert max(legs(tuple("abcd"[:depth])) for depth in range(1, MOST_LAYERS + 1)) < legs(UNKNOWN)
