"""The network topology at work: sweep finds where nodes are, replacements are taken near to their job."""

import pytest

from lambdas import locating, nearness
from planaria.core import pool
from planaria.core.cluster import Cluster, NodeGroup, Offering
from planaria.core.errors import CapacityError, TransientError
from planaria.core.offering_rows import OfferingRows
from planaria.core.placement import Candidate, choose
from planaria.core.topology import Path, of_row
from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.test_offerings import ALL, BLOCK, ODCR, launch, offered, offering, watched
from tests.lambdas.test_spare_pool import GROUP, filled, pass_time, pooled, view
from tests.lambdas.test_tasks import begun
from tests.lambdas.world import JOB, NAMES, NODES, World

TOP, MIDDLE = "nn-1", "nn-2"
NEAR: Path = (TOP, MIDDLE, "nn-4")
BESIDE: Path = (TOP, MIDDLE, "nn-5")
FAR: Path = (TOP, "nn-3", "nn-6")
OTHER_ODCR = "cr-00000000000000009"


def put(world: World, places: dict[str, Path]) -> None:
    """These nodes are known to be there."""
    for node, path in places.items():
        world.gw.ledger.note_node(node, {"topology": list(path)})


def broken(world: World, *nodes: str) -> None:
    for node in nodes:
        world.send(events.xid(node, 79, world.now))


# --- where nodes are -----------------------------------------------------------------------------------


def test_sweep_notes_where_running_nodes_are_and_asks_no_more(build: Build) -> None:
    world = build()
    world.topology.paths = dict.fromkeys(NODES, NEAR)
    world.sweep()
    assert [of_row(world.node(node)) for node in NODES] == [NEAR] * 4
    asked = len(world.topology.asked)
    pass_time(world, 1200)
    assert len(world.topology.asked) == asked == 1


def test_a_place_that_is_not_told_is_asked_for_again_after_a_while(build: Build) -> None:
    world = build()
    world.sweep()
    row = world.node(NODES[0])
    assert of_row(row) == () and "no network nodes" in row["located"]["why"]
    world.clock.advance(locating.AGAIN_SECONDS / 2)
    world.sweep()
    assert len(world.topology.asked) == 1
    world.topology.paths = {NODES[0]: FAR}
    world.clock.advance(locating.AGAIN_SECONDS)
    world.sweep()
    assert of_row(world.node(NODES[0])) == FAR and of_row(world.node(NODES[1])) == ()


def test_a_type_that_ec2_tells_nothing_about_is_asked_for_once_a_day(build: Build) -> None:
    world = build()
    world.topology.unsupported = {"p5.48xlarge"}
    world.sweep()
    assert world.node(NODES[0])["located"]["final"] is True
    world.clock.advance(locating.AGAIN_SECONDS * 3)
    world.sweep()
    assert len(world.topology.asked) == 1
    world.clock.advance(locating.FINAL_SECONDS)
    world.sweep()
    assert len(world.topology.asked) == 2


def test_a_fleet_that_is_new_is_looked_at_in_parts(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locating, "MOST", 3)
    world = build()
    world.topology.paths = dict.fromkeys(NODES, NEAR)
    world.sweep()
    assert sum(bool(of_row(world.node(node))) for node in NODES) == 3
    world.sweep()
    assert [len(asked) for asked in world.topology.asked] == [3, 1]


def test_nothing_else_suffers_when_ec2_does_not_answer(build: Build) -> None:
    world = build()
    world.topology.error = TransientError("RequestLimitExceeded")
    broken(world, NODES[1])
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert "located" not in world.node(NODES[0])


def test_a_node_that_has_stopped_has_no_place_any_more(build: Build) -> None:
    world = build()
    put(world, {NODES[0]: NEAR})
    world.gw.ledger.note_node(NODES[0], {"state": "stopped"})
    assert locating.keep(world.gw, world.gw.ledger.nodes()) == 0
    assert of_row(world.node(NODES[0])) == ()
    assert NODES[0] not in world.topology.asked[0]


def test_a_replacement_is_located_once_it_runs(build: Build) -> None:
    world = build()
    world.topology.paths = dict.fromkeys(NODES, NEAR)
    broken(world, NODES[1])
    world.run(30)
    (new,) = world.launched
    pass_time(world, 120)
    assert of_row(world.node(new)) == () and world.node(new)["located"]["why"]
    world.topology.paths[new] = BESIDE  # EC2 is not that quick
    pass_time(world, 120)
    assert of_row(world.node(new)) == BESIDE


# --- spares --------------------------------------------------------------------------------------------


def free(world: World) -> list[str]:
    return sorted(str(row["node_id"]) for row in view(world).of(pool.SpareState.FREE))


def test_the_spare_nearest_to_the_job_is_taken_whichever_was_checked_last(build: Build) -> None:
    world = filled(build, 3)
    one, two, three = free(world)
    put(world, {**dict.fromkeys(NODES, NEAR), one: FAR, two: BESIDE})
    world.table.write(f"NODE#{one}", "NODE", sets={("spare", "checked_at"): world.now})
    broken(world, NODES[1])
    world.run(120, until=lambda: world.ends == ["HEALED"])
    assert world.incidents[0]["replacement_id"] == two
    assert pool.state_of(world.node(three)) is pool.SpareState.FREE


def test_near_to_the_other_nodes_of_the_job_not_to_the_one_that_failed(build: Build) -> None:
    world = filled(build, 2)
    one, two = free(world)
    put(world, {**dict.fromkeys(NODES, NEAR), NODES[1]: FAR, one: FAR, two: NEAR})
    broken(world, NODES[1])
    world.run(120, until=lambda: world.ends == ["HEALED"])
    assert world.incidents[0]["replacement_id"] == two


def test_a_spare_whose_place_is_unknown_comes_after_all_that_are_known(build: Build) -> None:
    world = filled(build, 2)
    _, two = free(world)
    put(world, {**dict.fromkeys(NODES, NEAR), two: FAR})
    broken(world, NODES[1])
    world.run(120, until=lambda: world.ends == ["HEALED"])
    assert world.incidents[0]["replacement_id"] == two


def test_another_zone_is_farther_than_any_place_in_the_nodes_own(build: Build) -> None:
    world = filled(build, 2)
    one, two = free(world)
    put(world, {**dict.fromkeys(NODES, NEAR), one: NEAR, two: FAR})
    for node, zone in ((NODES[1], "us-east-1a"), (one, "us-east-1b"), (two, "us-east-1a")):
        world.gw.ledger.note_node(node, {"zone": zone})
    row = world.node(NODES[1])
    rows = [world.node(one), world.node(two)]
    order = nearness.spares(world.gw, {"job_id": JOB}, row, view(world), rows)
    assert [spare["node_id"] for spare in order] == [two, one]


def test_without_a_job_or_with_one_place_alone_the_order_is_as_it_was(build: Build) -> None:
    world = filled(build, 2)
    rows = [world.node(node) for node in free(world)]
    row = world.node(NODES[1])
    as_it_was = sorted(rows, key=lambda spare: pool.best_first(row, spare))
    assert nearness.spares(world.gw, {"job_id": JOB}, row, view(world), rows) == as_it_was
    put(world, {free(world)[0]: NEAR})
    rows = [world.node(node) for node in free(world)]
    as_it_was = sorted(rows, key=lambda spare: pool.best_first(row, spare))
    for job in ("", "nobody"):
        assert nearness.spares(world.gw, {"job_id": job}, row, view(world), rows) == as_it_was


def being_replaced(world: World, *nodes: str, action: str = "REPLACE") -> None:
    for node in nodes:
        world.gw.jobs.wait_for(JOB, node, f"{node}-1")
        world.gw.ledger.note_node(node, {"phase": "RUNNING", "action": action, "session": 1})


def two_that_belong_together(world: World) -> tuple[list[str], str]:
    """Of the spares (the pair that is best for two at once, the one that is nearest for one alone)."""
    alone, one, two = free(world)
    put(
        world,
        {
            NODES[0]: ("a", "b", "c"), NODES[3]: ("a", "d", "e"),
            NODES[1]: ("a", "b", "c"), NODES[2]: ("a", "d", "e"),
            alone: ("a", "b", "x"), one: ("a", "d", "y"), two: ("a", "d", "y"),
        },
    )  # fmt: skip
    return [one, two], alone


def test_nodes_that_fail_together_get_spares_that_are_near_to_each_other(build: Build) -> None:
    world = filled(build, 3)
    pair, _ = two_that_belong_together(world)
    broken(world, NODES[1], NODES[2])
    world.run()
    assert world.ends == ["HEALED", "HEALED"]
    assert sorted(str(row["replacement_id"]) for row in world.incidents) == sorted(pair)
    assert world.job["pending"] == {} and len(world.attempts) == 1


def test_who_comes_first_takes_nothing_from_the_other(build: Build) -> None:
    """Each incident by itself comes to the same choice, and to another spare of it."""
    world = filled(build, 3)
    pair, _ = two_that_belong_together(world)
    being_replaced(world, NODES[1], NODES[2])
    rows = [world.node(node) for node in free(world)]
    first = [
        nearness.spares(world.gw, {"job_id": JOB}, world.node(node), view(world), rows)[0]["node_id"]
        for node in (NODES[1], NODES[2])
    ]
    assert sorted(first) == sorted(pair)


def test_a_node_that_is_only_rebooted_keeps_its_place_in_the_job(build: Build) -> None:
    """Its neighbour alone is replaced: by the spare that is best for one, beside the node that comes back."""
    world = filled(build, 3)
    _, alone = two_that_belong_together(world)
    being_replaced(world, NODES[1])
    being_replaced(world, NODES[2], action="REBOOT")
    put(world, {NODES[2]: ("a", "b", "x")})
    rows = [world.node(node) for node in free(world)]
    order = nearness.spares(world.gw, {"job_id": JOB}, world.node(NODES[1]), view(world), rows)
    assert order[0]["node_id"] == alone


def test_what_a_sibling_has_got_counts_as_the_jobs(build: Build) -> None:
    """Its spare is taken, its row does not say so yet."""
    world = filled(build, 3)
    pair, alone = two_that_belong_together(world)
    being_replaced(world, NODES[1], NODES[2])
    spare = {"state": "TAKEN", "by": f"{NODES[2]}-1", "slot": 1, "checked_at": world.now}
    world.gw.ledger.note_node(alone, {"spare": spare})
    rows = [world.node(node) for node in pair]
    put(world, {pair[0]: ("a", "b", "x"), pair[1]: ("a", "d", "y")})
    rows = [world.node(node) for node in pair]
    order = nearness.spares(world.gw, {"job_id": JOB}, world.node(NODES[1]), view(world), rows)
    members = [("a", "b", "c"), ("a", "d", "e"), ("a", "b", "x")]
    best = choose([Candidate(node, of_row(world.node(node))) for node in pair], members)
    assert order[0]["node_id"] == best[0].name == pair[0]


def test_a_spare_that_somebody_else_was_faster_to_take_is_followed_by_the_next_nearest(build: Build) -> None:
    world = filled(build, 3)
    one, two, three = free(world)
    put(world, {**dict.fromkeys(NODES, NEAR), one: NEAR, two: BESIDE, three: FAR})
    before = world.gw.table.write

    def race(pk: str, sk: str, *args: object, **kwargs: object) -> object:
        if pk == f"NODE#{one}" and world.node(one)["spare"]["state"] == "FREE":
            world.gw.table.write = before  # type: ignore[method-assign]
            spare = {**world.node(one)["spare"], "state": "TAKEN", "by": "i-0bbbbbbbbbbbbbbb1-7"}
            before(pk, sk, sets={"spare": spare})
        return before(pk, sk, *args, **kwargs)  # type: ignore[arg-type]

    broken(world, NODES[1])
    world.gw.table.write = race  # type: ignore[method-assign,assignment]
    world.run(120, until=lambda: world.ends == ["HEALED"])
    assert world.incidents[0]["replacement_id"] == two


# --- reservations --------------------------------------------------------------------------------------


def reserved(*more: dict[str, str]) -> Cluster:
    first, second = (offering("reservation", reservation=name) for name in (ODCR, OTHER_ODCR))
    return offered(first, second, offering("on-demand"), *more)


def located(world: World) -> dict[str, Path]:
    known = OfferingRows(world.gw.table).state(GROUP).get("located") or {}
    return {name: tuple(entry["path"]) for name, entry in known.items()}


def test_sweep_notes_where_reservations_are_once_an_hour(build: Build) -> None:
    world = build(reserved())
    world.topology.paths = {ODCR: FAR, OTHER_ODCR: (TOP, MIDDLE)}
    world.sweep()
    assert located(world) == {ODCR: FAR, OTHER_ODCR: (TOP, MIDDLE)}
    asked = [ids for ids in world.topology.asked if ODCR in ids]
    world.clock.advance(locating.RESERVATION_SECONDS / 2)
    world.sweep()
    world.clock.advance(locating.RESERVATION_SECONDS)
    world.topology.paths = {ODCR: NEAR}
    world.sweep()
    assert len([ids for ids in world.topology.asked if ODCR in ids]) == len(asked) + 1
    assert located(world) == {ODCR: NEAR, OTHER_ODCR: ()}


def test_of_two_equal_reservations_the_one_nearer_to_the_job_is_asked_first(build: Build) -> None:
    world = build(reserved())
    put(world, dict.fromkeys(NODES, NEAR))
    world.topology.paths = {ODCR: FAR, OTHER_ODCR: (TOP, MIDDLE)}
    world.sweep()
    incident = begun(world)
    asked = watched(world, lambda request: CapacityError("full") if request.reservation else None)
    assert launch(world, incident)["result"] == "DONE"
    assert [request.reservation for request in asked] == [OTHER_ODCR, ODCR, ""]


def test_the_files_order_stands_where_nothing_is_known_or_the_job_is_not(build: Build) -> None:
    world = build(reserved())
    group, row = world.gw.cluster.group(GROUP), world.node(NODES[1])
    plain = [o.key for o in group.offerings]
    assert [o.key for o in nearness.listed(world.gw, {"job_id": JOB}, row, group)] == plain
    world.topology.paths = {OTHER_ODCR: NEAR}
    world.sweep()
    assert [o.key for o in nearness.listed(world.gw, {"job_id": ""}, row, group)] == plain


def test_a_reservation_never_passes_an_offering_of_another_kind(build: Build) -> None:
    world = build(offered(*ALL, offering("reservation", reservation=OTHER_ODCR)))
    put(world, dict.fromkeys(NODES, NEAR))
    world.topology.paths = {OTHER_ODCR: NEAR, BLOCK: NEAR, ODCR: FAR}
    world.sweep()
    group: NodeGroup = world.gw.cluster.group(GROUP)
    listed: tuple[Offering, ...] = nearness.listed(world.gw, {"job_id": JOB}, world.node(NODES[1]), group)
    assert listed == group.offerings


def test_a_story_with_places_ends_as_one_without(build: Build) -> None:
    world = build(pooled(0))
    world.topology.paths = dict.fromkeys([*NODES, *NAMES], NEAR)
    broken(world, NODES[1])
    world.run()
    world.assert_healed(replaced=1, resumed=1)
