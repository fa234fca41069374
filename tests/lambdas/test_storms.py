"""Storms: what a noisy node or a sick fleet sends is folded into counters, loses nothing, and costs little.

Every bound is a constant with its reason. The storms arrive as SQS hands them over: a hundred at a time in
the normal lane, ten in the urgent one.
"""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from lambdas.batch import SINGLY
from planaria.core.breaker import Breaker, allowed
from planaria.core.errors import TransientError
from planaria.core.history import ENTRIES
from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.storm import BATCH, NORMAL, URGENT, Storm
from tests.lambdas.world import JOB, NODES, Kill, World, cluster, stub

NOISY = NODES[1]
SIGNALS = 5_000
STORM_SECONDS = 300.0
MINUTES = int(STORM_SECONDS // 60) + 1

COUNTERS_PER_BATCH = 2
"""A batch writes one counter for each outcome that it holds; no storm below holds more than two of them."""

WRITES_PER_FAULT = 5
"""A minute of a fault that the node's row can remember: the first is judged (a note on that row and a row of
its own), later ones only move the time at which it was last seen, every half minute."""

WRITES_PER_NODE = 2 * SINGLY
"""A minute of what is new in every event: an environment judges the first few; a note and a row each."""

WRITES_PER_MEMORY = 2 * ENTRIES
"""A minute of what could mean something together with another fault: as many as a node's row can remember."""

WRITES_PER_INCIDENT = 30
"""Claim, incident's row and timeline, breaker, job, execution's name; twice where a session is superseded."""

WRITES_PER_HELD_NODE = 13
"""The claim, its incident's two rows, the breaker's refusal and the close; then that it waits, on its row."""

Make = Callable[[int, float], str]
"""(number of the signal, when) -> the event's text"""


def signal(node: str, at: float, code: str = "31", kind: str = "xid", **more: Any) -> str:
    message = f"NVRM: Xid (PCI:0000:b3:00): {code}, pid=1, name=python3"
    detail = {"kind": kind, "code": code, "pci": "0000:b3:00", "message": message, "count": 1}
    return events.agent(node, "Planaria Node Signal", at, **{**detail, **more})


def one_code(number: int, at: float) -> str:
    return signal(NOISY, at)


def twenty_codes(number: int, at: float) -> str:
    """None of these asks for anything, alone or together."""
    return signal(NOISY, at, str(200 + number % 20))


def more_codes_than_a_row_holds(number: int, at: float) -> str:
    return signal(NOISY, at, str(200 + number % 64))


def warp_exceptions_all_over(number: int, at: float) -> str:
    """What one faulty program writes: Xid 13 on eight GPUs, each of their 72 TPCs by itself."""
    gpu, place = number % 8, number // 8 % 72
    line = f"Graphics SM Warp Exception on (GPC {place // 9}, TPC {place % 9}, SM 0): Out Of Range Address"
    message = f"NVRM: Xid (PCI:0000:b{gpu}:00): 13, pid=1, name=python3, {line}"
    return signal(NOISY, at, "13", pci=f"0000:b{gpu}:00", message=message)


def switch_errors_all_over(number: int, at: float) -> str:
    """Four switches with 64 sorts of errors that the driver calls harmless."""
    code, address = 10_000 + number // 4 % 64, f"0000:c{number % 4}:00.0"
    message = f"nvidia-nvswitch0: SXid (PCI:{address}): {code}, Non-fatal, Link 5 error"
    return signal(NOISY, at, str(code), "sxid", pci=address, message=message)


def codes_without_end(number: int, at: float) -> str:
    return signal(NOISY, at, f"garbage-{number}")


def kinds_without_end(number: int, at: float) -> str:
    return signal(NOISY, at, "1", f"kind-{number}")


def healthy_without_end(number: int, at: float) -> str:
    return events.hyperpod(NOISY, "Healthy", "The node is healthy.", "None", at)


def types_without_end(number: int, at: float) -> str:
    return events.agent(NOISY, f"Planaria Something {number}", at, number=number)


def no_events_at_all(number: int, at: float) -> str:
    return events.event(f"planaria.node/AROA:{NOISY}", "Planaria Node Signal", {"number": number}, at)


KNOWN: dict[Make, int] = {one_code: 1, twenty_codes: 20}
ENDLESS = (
    warp_exceptions_all_over, switch_errors_all_over, more_codes_than_a_row_holds, codes_without_end,
    kinds_without_end, types_without_end, healthy_without_end, no_events_at_all,
)  # fmt: skip


def noise(world: World, make: Make, number: int = SIGNALS) -> list[str]:
    return [make(each, world.now + each * STORM_SECONDS / number) for each in range(number)]


def quiet(build: Build, **more: Any) -> tuple[World, Storm]:
    """A world whose sweep does not run meanwhile, so that what is counted is triage alone."""
    world = build(**more)
    world.sweeps = False
    return world, Storm(world)


# --- one noisy node ---------------------------------------------------------------------------------


@pytest.mark.parametrize("make", list(KNOWN))
def test_a_noisy_nodes_repeats_are_folded(build: Build, make: Make) -> None:
    world, storm = quiet(build)
    storm.pour(noise(world, make), seconds=STORM_SECONDS)
    assert storm.accounted() == storm.delivered == SIGNALS
    assert storm.writes <= WRITES_PER_FAULT * KNOWN[make] * MINUTES + COUNTERS_PER_BATCH * storm.batches
    # Nobody is woken, nothing is stored elsewhere; a batch looks up its events and the one node's row.
    assert (storm.did("workflows.start"), storm.did("objects.put"), world.notices.sent) == (0, 0, [])
    assert storm.looked_up == SIGNALS + storm.batches
    assert storm.row_reads <= 4 * KNOWN[make] * MINUTES
    assert (storm.table_scans, storm.asked_ec2) == (0, 0)
    assert world.incidents == []


@pytest.mark.parametrize("lane", [NORMAL, URGENT])
@pytest.mark.parametrize("make", ENDLESS)
def test_noise_that_never_repeats_is_folded_too(build: Build, make: Make, lane: str) -> None:
    """However small the batches are in which it comes."""
    world, storm = quiet(build)
    storm.pour(noise(world, make), lane, seconds=STORM_SECONDS)
    assert storm.accounted() == storm.delivered == SIGNALS
    singly = WRITES_PER_MEMORY if make is switch_errors_all_over else WRITES_PER_NODE
    moved = 2 * ENTRIES  # times of remembered faults, each half minute
    assert storm.writes <= (singly + moved) * MINUTES + COUNTERS_PER_BATCH * storm.batches
    assert storm.row_reads <= 3 * singly * MINUTES
    assert (storm.did("workflows.start"), storm.did("objects.put"), world.notices.sent) == (0, 0, [])
    assert world.incidents == []


def test_a_fault_that_needs_an_act_is_found_in_the_noise(build: Build) -> None:
    """It is the last of a batch in which everything is new."""
    world, storm = quiet(build)
    storm.pour([*noise(world, codes_without_end, BATCH[NORMAL] - 1), signal(NOISY, world.now, "79")])
    [incident] = world.incidents
    assert (incident["node_id"], incident["fault"]["code"]) == (NOISY, "79")
    assert (storm.did("workflows.start"), storm.batches) == (1, 1)


def test_five_thousand_reports_of_a_fatal_fault_are_one_incident(build: Build) -> None:
    world, storm = quiet(build)
    storm.pour(noise(world, lambda number, at: signal(NOISY, at, "79")), seconds=STORM_SECONDS)
    assert storm.accounted() == storm.delivered == SIGNALS
    assert storm.rows()["OPENED"] == 1 == len(world.incidents) == storm.did("workflows.start")
    assert storm.counters()["JOINED"] >= SIGNALS - 2 * MINUTES
    bound = WRITES_PER_INCIDENT + WRITES_PER_FAULT * MINUTES + COUNTERS_PER_BATCH * storm.batches
    assert storm.writes <= bound
    assert world.notices.sent == []


def fatal_codes_of_every_gpu(number: int, at: float) -> str:
    """32 faults that each ask for an act."""
    address = f"0000:b{number // 4 % 8}:00"
    return signal(NOISY, at, ("79", "48", "119", "74")[number % 4], pci=address)


@pytest.mark.parametrize("make", [lambda number, at: signal(NOISY, at, "79"), fatal_codes_of_every_gpu])
def test_a_storm_is_folded_where_nothing_may_be_done(build: Build, make: Make) -> None:
    """Observe mode says what it would have done, but not five thousand times."""
    world, storm = quiet(build, of=cluster("observe"))
    storm.pour(noise(world, make), seconds=STORM_SECONDS)
    assert storm.accounted() == storm.delivered == SIGNALS
    assert storm.rows()["OPENED"] >= 1
    bound = (2 * ENTRIES + WRITES_PER_MEMORY) * MINUTES + COUNTERS_PER_BATCH * storm.batches
    assert storm.writes <= bound
    assert (world.incidents, storm.did("workflows.start"), world.notices.sent) == ([], 0, [])


def test_a_storm_of_a_held_node_is_folded_whatever_its_faults(build: Build) -> None:
    world, storm = quiet(build)
    world.limit_breaker(1)
    storm.pour([signal(NODES[0], world.now, "79")])
    storm.pour(noise(world, fatal_codes_of_every_gpu), seconds=STORM_SECONDS)
    assert storm.accounted() == storm.delivered == SIGNALS + 1
    assert storm.rows()["OPENED"] == 1 == storm.did("workflows.start")
    assert world.node(NOISY)["held"] and len(world.notices.sent) == 1
    assert storm.asked_ec2 <= 2 + ENTRIES
    bound = 3 * WRITES_PER_INCIDENT + (2 * ENTRIES + WRITES_PER_MEMORY) * MINUTES
    assert storm.writes <= bound + COUNTERS_PER_BATCH * storm.batches


def test_a_storm_goes_on_while_its_node_is_replaced(build: Build) -> None:
    """The agent's backlog arrives long after the node is gone; nothing is done twice, little is written."""
    world = build()
    world.sweeps = False
    storm = Storm(world)
    texts = noise(world, lambda number, at: signal(NOISY, at, "79"))
    storm.pour(texts, seconds=STORM_SECONDS, live=True)
    world.sweeps = True
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["HEALED"]
    ended = storm.rows() + storm.counters()
    assert ended["OPENED"] == 1 and ended["STALE"] > SIGNALS / 2
    assert storm.accounted() >= SIGNALS
    # The node's own, and those of its replacement and its job.
    bound = 3 * WRITES_PER_INCIDENT + (WRITES_PER_FAULT + WRITES_PER_NODE) * MINUTES
    assert storm.writes <= bound + COUNTERS_PER_BATCH * storm.batches


def test_large_events_of_a_storm_do_not_fill_the_bucket(build: Build) -> None:
    world, storm = quiet(build)
    texts = [signal(NOISY, world.now, padding="x" * 5000) for _ in range(300)]
    storm.pour(texts)
    assert storm.accounted() == 300
    assert storm.did("objects.put") <= 2  # of those that have rows


@pytest.mark.parametrize("make", [one_code, codes_without_end])
def test_a_storm_loses_nothing_when_the_table_throttles(build: Build, make: Make) -> None:
    """Every third write of a counter and every hundredth of a row fails, and its messages come again."""
    world, storm = quiet(build)
    turns = {"COUNT#": itertools.count(1), "EVENT#": itertools.count(1), "NODE#i": itertools.count(1)}
    every = {"COUNT#": 3, "EVENT#": 100, "NODE#i": 100}

    def throttled(pk: str, *args: Any, **kwargs: Any) -> Any:
        if pk[:6] in every and next(turns[pk[:6]]) % every[pk[:6]] == 0:
            raise TransientError("throttled")
        return write(pk, *args, **kwargs)

    write = stub(world.table, "write", throttled)
    storm.pour(noise(world, make, 2_000))
    assert storm.accounted() == storm.delivered == 2_000
    assert storm.batches > 2_000 / BATCH[NORMAL]


@pytest.mark.parametrize("before", [True, False])
def test_a_storm_loses_nothing_when_triage_dies_in_it(build: Build, before: bool) -> None:
    """Twenty times, wherever it is; what was counted before may be counted again, nothing is done twice."""
    world, storm = quiet(build)
    dies = itertools.count(1)
    world.kills.append(Kill(lambda f, c, n: f == "triage" and next(dies) % 7 == 0, before, times=20))
    texts = noise(world, lambda number, at: signal(NOISY, at, "79" if number % 2 else str(200 + number % 9)))
    storm.pour(texts, seconds=STORM_SECONDS)
    assert world.kills[0].times == 0
    assert storm.delivered == SIGNALS <= storm.accounted() <= SIGNALS + 20 * BATCH[NORMAL]
    [incident] = world.incidents
    assert incident["fault"]["code"] == "79"
    assert len(world.workflows.executions) == 1


# --- many nodes -------------------------------------------------------------------------------------

FLEET = [f"i-{number:017x}" for number in range(0xB00000, 0xB00000 + 300)]
EACH = 20
CAP = 4
WINDOW = 3600.0


@pytest.fixture
def fleet(build: Build) -> World:
    """300 nodes without a job."""
    world = build(cluster(size=len(FLEET), removals=CAP), job=False)
    for node in NODES:
        del world.table._rows[f"NODE#{node}", "NODE"]
        del world.fleet.instances[node]
    for number, node in enumerate(FLEET):
        world.add_node(f"demo-{number}", node, f"10.1.{number // 250}.{number % 250}")
    world.gw.breaker = Breaker(world.gw.table, allowed(CAP, 0.5, len(FLEET)), WINDOW)
    world.sweeps = False
    return world


def sick_fleet(world: World, code: str = "79") -> list[str]:
    """In turn: every batch holds a hundred nodes."""
    order = [node for _ in range(EACH) for node in FLEET]
    return [signal(node, world.now + number / 50, code) for number, node in enumerate(order)]


def removals(world: World) -> list[float]:
    """When the removals were admitted that were not taken back before they began."""
    return sorted(float(row["opened_at"]) for row in world.incidents if row.get("outcome") != "CANCELLED")


def assert_breaker_held(world: World) -> None:
    opened = removals(world)
    for at in opened:
        assert sum(at <= other < at + WINDOW for other in opened) <= CAP


def test_three_hundred_sick_nodes_open_what_the_breaker_allows_and_send_one_mail(fleet: World) -> None:
    storm = Storm(fleet)
    storm.pour(sick_fleet(fleet), seconds=120.0)
    assert storm.accounted() == storm.delivered == len(FLEET) * EACH
    assert len(removals(fleet)) == CAP == storm.did("workflows.start") == storm.rows()["OPENED"]
    held = [node for node in FLEET if fleet.node(node).get("held")]
    assert len(held) == len(FLEET) - CAP
    [(subject, text)] = fleet.notices.sent
    assert "is held" in subject and "no more mail about it within the hour" in text
    minutes = 3
    bound = (
        CAP * WRITES_PER_INCIDENT
        + len(held) * WRITES_PER_HELD_NODE
        + len(FLEET) * WRITES_PER_FAULT * minutes
        + COUNTERS_PER_BATCH * storm.batches
    )
    assert storm.writes <= bound
    assert storm.looked_up <= 2 * storm.delivered  # the event, and its node's row, a hundred at a time
    assert storm.row_reads <= bound
    assert (storm.table_scans, storm.did("objects.put")) == (0, 0)
    assert storm.asked_ec2 <= len(FLEET)  # each node once, before the first act on it


def test_three_hundred_nodes_with_a_harmless_code_write_once_a_minute_each(fleet: World) -> None:
    storm = Storm(fleet)
    storm.pour(sick_fleet(fleet, "43"), seconds=120.0)
    assert storm.accounted() == storm.delivered == len(FLEET) * EACH
    minutes = 3
    bound = len(FLEET) * WRITES_PER_FAULT * minutes + COUNTERS_PER_BATCH * storm.batches
    assert storm.writes <= bound < storm.delivered
    assert (fleet.incidents, fleet.notices.sent) == ([], [])


def test_what_a_storm_held_is_judged_anew_when_the_window_moves_on(fleet: World) -> None:
    began = fleet.now

    def healed() -> set[str]:
        return {row["node_id"] for row in fleet.incidents if row.get("outcome") == "HEALED"}

    def waiting() -> int:
        return sum("held_since" in fleet.node(node) for node in FLEET)

    Storm(fleet).pour(sick_fleet(fleet), seconds=120.0)
    fleet.sweeps = True
    fleet.run(600)
    first = healed()
    assert (len(first), waiting()) == (CAP, len(FLEET) - CAP)
    fleet.clock.advance(began + WINDOW - 120 - fleet.now)
    fleet.run(60)
    assert (healed(), waiting()) == (first, len(FLEET) - CAP)
    for _ in range(10):
        fleet.run(120)
    more = healed() - first
    assert len(more) == CAP and waiting() == len(FLEET) - 2 * CAP
    assert_breaker_held(fleet)
    assert not fleet.dead_letters
    assert len(fleet.notices.sent) <= 2  # a person is told again once an hour


# --- a warning in the middle ------------------------------------------------------------------------


def agents_notice(node: str, at: float) -> str:
    deadline = at + 120
    return signal(node, at, "terminate", "spot_notice", deadline=deadline)


@pytest.mark.parametrize("warning", [events.spot, agents_notice])
def test_a_spot_warning_is_claimed_before_the_rest_of_the_storm(
    build: Build, warning: Callable[[str, float], str]
) -> None:
    world, storm = quiet(build)
    texts = noise(world, twenty_codes)
    storm.pour(texts[: SIGNALS // 2], seconds=STORM_SECONDS / 2)
    began, writes = world.now, storm.writes
    storm.pour([warning(NODES[2], world.now)], URGENT)
    assert (world.node(NODES[2])["phase"], storm.did("workflows.start")) == ("CLAIMED", 1)
    assert world.now - began < 1.0
    assert storm.writes - writes <= WRITES_PER_INCIDENT
    storm.pour(texts[SIGNALS // 2 :], seconds=STORM_SECONDS / 2)
    [incident] = world.incidents
    assert (incident["node_id"], incident["fault"]["kind"]) == (NODES[2], "spot_interruption")
    assert storm.accounted() == storm.delivered == SIGNALS + 1


def test_a_spot_warning_of_the_noisy_node_itself_is_claimed(build: Build) -> None:
    world, storm = quiet(build)
    texts = noise(world, codes_without_end)
    storm.pour(texts[: SIGNALS // 2], seconds=STORM_SECONDS / 2)
    storm.pour([events.spot(NOISY, world.now)], URGENT)
    assert world.node(NOISY)["phase"] == "CLAIMED"
    storm.pour(texts[SIGNALS // 2 :], seconds=STORM_SECONDS / 2)
    assert [row["fault"]["kind"] for row in world.incidents] == ["spot_interruption"]
    assert storm.accounted() == storm.delivered == SIGNALS + 1


def test_a_spot_warning_is_claimed_although_the_breaker_is_full(fleet: World) -> None:
    """AWS takes the node whatever the breaker says: waiting would only lose the checkpoint."""
    storm = Storm(fleet)
    texts = sick_fleet(fleet)
    storm.pour(texts[: len(texts) // 2], seconds=60.0)
    doomed = FLEET[-1]
    assert fleet.node(doomed).get("held")
    storm.pour([events.spot(doomed, fleet.now)], URGENT)
    assert fleet.outcomes_of("spot_interruption") == ["OPENED"]
    assert fleet.node(doomed)["phase"] == "CLAIMED"
    storm.pour(texts[len(texts) // 2 :], seconds=60.0)
    assert storm.did("workflows.start") == CAP + 1
    assert storm.accounted() == storm.delivered


# --- duplicates and strangers -----------------------------------------------------------------------


@pytest.mark.parametrize("lane", [NORMAL, URGENT])
def test_duplicates_are_counted_whatever_their_order(build: Build, lane: str) -> None:
    """99 of 100 deliveries are repeats; what is opened is opened once."""
    world, storm = quiet(build)
    codes = ["79", *(str(200 + number) for number in range(49))]
    distinct = [signal(NODES[number % 4], world.now, code) for number, code in enumerate(codes)]
    texts = distinct * 100
    random.Random(5).shuffle(texts)
    storm.pour(texts, lane)
    ended = storm.rows() + storm.counters()
    assert storm.accounted() == storm.delivered == 5_000
    assert (storm.rows()["OPENED"], len(world.incidents), storm.did("workflows.start")) == (1, 1, 1)
    assert ended["DUPLICATE"] >= 5_000 - 50 - storm.counters()["OBSERVED"] - storm.counters()["JOINED"]
    bound = WRITES_PER_INCIDENT + WRITES_PER_FAULT * len(distinct) + COUNTERS_PER_BATCH * storm.batches
    assert storm.writes <= bound


def test_a_storm_of_foreign_instances_costs_a_look_each_and_a_counter(build: Build) -> None:
    """Instances of a neighbour in the same account: 500 of them, ten events each."""
    world, storm = quiet(build)
    strangers = [f"i-0ffffffffffff{number:04d}" for number in range(500)]
    storm.pour([events.spot(node, world.now) for _ in range(10) for node in strangers])
    assert storm.counters() == {"NOT_MANAGED": 5_000} and not storm.rows()
    assert storm.writes <= storm.batches
    assert storm.asked_ec2 <= len(strangers)
    assert not [pk for pk, _ in world.table._rows if pk.startswith("NODE#i-0ffff")]
    assert (storm.did("workflows.start"), world.notices.sent) == (0, [])


@pytest.mark.parametrize("node_first", [True, False])
def test_every_rank_of_a_dead_job_tells_of_its_exit_and_one_resume_follows(
    build: Build, node_first: bool
) -> None:
    """A node falls and all 2,000 ranks of its job end within seconds: the ordinary storm of a big job."""
    world, storm = quiet(build)
    ranks = itertools.cycle(NODES)
    exits = [events.job_exit(next(ranks), JOB, 1, rank, -6, world.now + rank / 1000) for rank in range(2_000)]
    sick = [signal(NOISY, world.now, "79")]
    storm.pour([*sick, *exits] if node_first else [*exits, *sick])
    assert storm.accounted() == storm.delivered == 2_001
    assert [row["node_id"] for row in world.incidents] == [NOISY]
    # The node's own execution, and the resume that the first exit opened before anyone knew of the node.
    assert storm.did("workflows.start") <= (1 if node_first else 2)
    assert world.notices.sent == []
    bound = 2 * WRITES_PER_INCIDENT + 2 * len(NODES) * WRITES_PER_NODE + COUNTERS_PER_BATCH * storm.batches
    assert storm.writes <= bound
