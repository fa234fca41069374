"""Where a replacement comes from: the list of offerings, what EC2 answers to each, waiting for capacity."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planaria.core.cluster import Cluster
from planaria.core.errors import CapacityError, PermanentError, PlanariaError, TransientError
from planaria.core.offerings import Problem, SpentToken, Unusable
from planaria.core.ports import Execution, LaunchRequest
from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.test_node_stories import SICK, fall_off
from tests.lambdas.test_tasks import begun
from tests.lambdas.world import NODES, World, cluster

HOUR, DAY = 3600.0, 86_400.0
ODCR, BLOCK = "cr-00000000000000001", "cr-00000000000000002"
P5, P4 = "p5.48xlarge", "p4d.24xlarge"

Answer = Callable[[LaunchRequest], PlanariaError | None]


def offering(capacity: str, subnet: str = "subnet-1", reservation: str = "", **more: str) -> dict[str, str]:
    template = f"planaria-demo-workers-{reservation}" if reservation else ""
    named = {"reservation": reservation, "launch_template": template}
    return {"instance_type": P5, "capacity": capacity, "subnet": subnet, **named, **more}


ALL = [
    offering("reservation", reservation=ODCR),
    offering("capacity-block", reservation=BLOCK),
    offering("on-demand"),
    offering("on-demand", "subnet-2", instance_type=P4),
    offering("spot", "subnet-2"),
]


def offered(*offerings: dict[str, str], zone: str = "", **policy: Any) -> Cluster:
    """The usual cluster with these offerings."""
    base = cluster(**policy)
    document = {
        "name": "demo", "region": "us-east-1", "scheduler": "process", "policy": {}, "file_system_zone": zone,
        "node_groups": [
            {"name": "workers", "size": 8, "launch_template": "planaria-demo-workers",
             "offerings": list(offerings)}
        ],
    }  # fmt: skip
    found = Cluster.from_document(document)
    return Cluster(base.name, base.region, base.scheduler, base.policy, found.node_groups, zone)


def none_of(*capacities: str) -> Answer:
    def refuse(request: LaunchRequest) -> PlanariaError | None:
        if request.capacity in capacities:
            return CapacityError("InsufficientInstanceCapacity: none")
        return None

    return refuse


def unusable(problem: Problem, *capacities: str) -> Answer:
    def refuse(request: LaunchRequest) -> PlanariaError | None:
        return Unusable(problem, f"{problem}: m") if request.capacity in capacities else None

    return refuse


def watched(world: World, refuse: Answer = lambda _: None) -> list[LaunchRequest]:
    """All that EC2 was asked to launch from now on."""
    asked: list[LaunchRequest] = []

    def seen(request: LaunchRequest) -> PlanariaError | None:
        asked.append(request)
        return refuse(request)

    world.fleet.refuse = seen
    return asked


def launch(world: World, incident: dict[str, Any]) -> dict[str, Any]:
    """One call of the Task, past any lease of the one before."""
    world.clock.advance(11)
    answer: dict[str, Any] = world.call("launch_replacement", {"incident": incident})
    return answer


def shared(world: World) -> dict[str, Any]:
    return world.table.get("OFFERINGS#workers", "OFFERINGS") or {}


def another(world: World, node: str = NODES[2]) -> dict[str, Any]:
    fall_off(world, node)
    document = {"incident_id": "x", "node_id": node, "session": world.node(node)["session"]}
    event = {"document": document, "execution": f"arn:{node}", "machine": "heal_node"}
    incident: dict[str, Any] = world.call("begin_incident", event)["incident"]
    return incident


# --- the list ----------------------------------------------------------------------------------------


def test_the_list_is_tried_in_its_order_each_from_its_own_launch_template(build: Build) -> None:
    world = build(offered(*ALL))
    asked = watched(world, lambda _: CapacityError("InsufficientInstanceCapacity: none"))
    incident = begun(world)
    assert launch(world, incident)["result"] == "NO_CAPACITY"
    assert [(r.capacity, r.instance_type, r.subnet, r.reservation) for r in asked] == [
        ("reservation", P5, "subnet-1", ODCR), ("capacity-block", P5, "subnet-1", BLOCK),
        ("on-demand", P5, "subnet-1", ""), ("on-demand", P4, "subnet-2", ""), ("spot", P5, "subnet-2", ""),
    ]  # fmt: skip
    own = "planaria-demo-workers"
    assert [r.launch_template for r in asked] == [f"{own}-{ODCR}", f"{own}-{BLOCK}", own, own, own]
    assert all(r.replaces == SICK for r in asked)
    assert len({r.token for r in asked}) == 5


def test_what_the_list_does_not_name_is_never_launched(build: Build) -> None:
    """The lost node is a p5; the file names p4d alone, first on demand."""
    world = build(offered(offering("on-demand", instance_type=P4)))
    asked = watched(world)
    fall_off(world)
    world.run()
    assert [(r.instance_type, r.capacity) for r in asked] == [(P4, "on-demand")]
    world.assert_healed(replaced=1, resumed=1)


@pytest.mark.parametrize(
    ("capacity", "lifecycle"),
    [("reservation", "on-demand"), ("capacity-block", "capacity-block"), ("spot", "spot")],
)
def test_the_replacement_knows_where_it_came_from(build: Build, capacity: str, lifecycle: str) -> None:
    reservation = ODCR if capacity != "spot" else ""
    world = build(offered(offering(capacity, reservation=reservation, zone="us-east-1a")))
    world.fleet.zones = {"subnet-1": "us-east-1a"}
    fall_off(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    row = world.node(world.launched[0])
    assert (row["lifecycle"], row["instance_type"], row["zone"]) == (lifecycle, P5, "us-east-1a")
    assert row["offering"] == f"{capacity}/{P5}/{reservation or 'subnet-1'}"
    assert row.get("reservation", "") == reservation


def test_another_zone_than_the_file_systems_is_noted_on_the_incident(build: Build) -> None:
    for zone, noted in (("us-east-1b", True), ("us-east-1a", False), ("", False)):
        world = build(offered(offering("on-demand", zone=zone), zone="us-east-1a"))
        fall_off(world)
        world.run()
        world.assert_healed(replaced=1, resumed=1)
        assert ("cross Availability Zones" in world.incidents[0].get("warning", "")) is noted


def test_a_good_launch_reads_the_groups_row_and_writes_nothing_there(world: World) -> None:
    written: list[str] = []
    real = world.table.write

    def write(pk: str, *args: Any, **kwargs: Any) -> Any:
        written.append(pk)
        return real(pk, *args, **kwargs)

    world.table.write = write  # type: ignore[method-assign]
    fall_off(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert written and not [pk for pk in written if pk.startswith("OFFERINGS#")]


def test_without_a_spare_the_next_offering_is_tried_and_nothing_is_held_against_the_pool(
    build: Build,
) -> None:
    world = build(offered(offering("spare"), offering("on-demand")))
    asked = watched(world)
    fall_off(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert [r.capacity for r in asked] == ["on-demand"] and shared(world) == {}


# --- no capacity -------------------------------------------------------------------------------------


def test_an_offering_without_capacity_is_passed_over_by_everybody_until_it_has_cooled(world: World) -> None:
    asked = watched(world, none_of("on-demand"))
    first, second = begun(world), another(world)
    assert launch(world, first)["result"] == "DONE"
    assert launch(world, second)["result"] == "DONE"
    assert [r.capacity for r in asked] == ["on-demand", "spot", "spot"]
    world.clock.advance(world.gw.cluster.policy.cooldown_seconds)
    world.fleet.refuse = none_of()
    third = another(world, NODES[3])
    assert launch(world, third)["result"] == "DONE"
    assert world.fleet.instances[world.launched[-1]].lifecycle == "on-demand"
    assert shared(world)["cooling"] == {}, "proven good again"


def test_who_found_it_empty_asks_again_at_its_own_pace_and_tells_the_others(build: Build) -> None:
    """One prober per offering: a thousand waiting incidents must not be a thousand calls."""
    world = build(offered(offering("on-demand")))
    asked = watched(world, none_of("on-demand"))
    first, second = begun(world), another(world)
    assert [launch(world, i)["result"] for i in (first, second, first, second)] == ["NO_CAPACITY"] * 4
    assert {r.replaces for r in asked} == {SICK} and len(asked) == 2
    world.fleet.refuse = none_of()
    assert [launch(world, i)["result"] for i in (first, second)] == ["DONE", "DONE"]


def test_the_wait_between_two_tries_doubles_up_to_ten_minutes(build: Build) -> None:
    world = build(offered(offering("on-demand")))
    world.fleet.refuse = none_of("on-demand")
    incident = begun(world)
    waits = [launch(world, incident)["retry_after"] for _ in range(8)]
    assert waits == [30, 60, 120, 240, 480, 600, 600, 600]
    row = world.node(SICK)
    assert row["capacity_tries"] == 8 and row["capacity_since"] < world.now - 70
    world.fleet.refuse = none_of()
    assert launch(world, incident)["result"] == "DONE"
    assert not {"capacity_since", "capacity_tries", "capacity_at"} & set(world.node(SICK))


def test_past_the_policys_time_a_person_is_told_since_when_there_was_none(build: Build) -> None:
    world = build(offered(offering("on-demand"), capacity_timeout_seconds=2 * HOUR, hold_seconds=10 * DAY))
    world.fleet.refuse = none_of("on-demand")
    fall_off(world)
    world.run(4 * HOUR)
    assert world.ends == ["ESCALATED"]
    (_, text), *others = world.notices.sent
    assert not others
    assert (
        "no capacity for a replacement since 20" in text and "Add an offering to node group workers" in text
    )
    assert "docs/runbooks/no-capacity.md" in text


def test_a_call_under_way_does_not_end_the_waiting_for_capacity(build: Build) -> None:
    """WAIT is bounded more tightly than NO_CAPACITY, and this incident has used up those tries."""
    world = build(offered(offering("on-demand")))
    incident = begun(world)
    second: list[Any] = []

    def meanwhile(request: LaunchRequest) -> PlanariaError | None:
        if world.node(SICK).get("capacity_since") and not second:
            second.append(world.call("launch_replacement", {"incident": incident}))
        return CapacityError("none")

    world.fleet.refuse = meanwhile
    launch(world, incident)
    launch(world, incident)
    assert (second[0]["result"], second[0]["retry_after"]) == ("NO_CAPACITY", 10)
    assert "under way by another call" in second[0]["reason"]


# --- what a person must change -----------------------------------------------------------------------


@pytest.mark.parametrize("problem", Problem)
def test_an_offering_that_must_be_changed_is_out_and_the_others_are_tried(
    world: World, problem: Problem
) -> None:
    world.gw.cluster = offered(
        offering("on-demand", instance_type="p4d.24xlarge"), offering("spot", "subnet-2")
    )
    asked = watched(world, unusable(problem, "on-demand"))
    first, second = begun(world), another(world)
    assert [launch(world, i)["result"] for i in (first, second)] == ["DONE", "DONE"]
    assert [r.capacity for r in asked] == ["on-demand", "spot"] * 2
    ((subject, text),) = world.notices.sent
    assert "cannot use an offering" in subject
    assert f"EC2 says: {problem}: m" in text and "docs/runbooks/launch-refused.md" in text
    (advice,) = [line for line in text.splitlines() if line.startswith("What to do: ")]
    assert advice.endswith(".") and len(advice) < 250


def test_the_same_reason_is_told_again_after_a_day_and_after_it_was_mended(build: Build) -> None:
    world = build(offered(offering("on-demand", instance_type=P4), offering("spot")))
    broken, good = unusable(Problem.QUOTA, "on-demand"), none_of()
    sent = []
    for at, (node, refuse) in enumerate(
        [(NODES[0], broken), (NODES[1], broken), (NODES[2], good), (NODES[3], broken)]
    ):
        world.fleet.refuse = refuse
        world.clock.advance(25 * HOUR if at == 1 else 0)
        assert launch(world, another(world, node))["result"] == "DONE"
        sent.append(len(world.notices.sent))
    assert sent == [1, 2, 2, 3]


def test_the_offering_stays_out_for_its_incident_and_is_tried_by_the_next(build: Build) -> None:
    world = build(offered(offering("on-demand", instance_type=P4), offering("spot")))
    both = {"on-demand": Unusable(Problem.IMAGE, "InvalidAMIID.NotFound: m"), "spot": CapacityError("none")}
    asked = watched(world, lambda request: both.get(request.capacity))
    incident = begun(world)
    for _ in range(3):
        assert launch(world, incident)["result"] == "NO_CAPACITY"
    assert [r.capacity for r in asked] == ["on-demand", "spot", "spot", "spot"]
    launch(world, another(world))
    assert [r.capacity for r in asked][4:] == ["on-demand"]


def test_with_every_offering_out_a_person_is_told_what_to_change(world: World) -> None:
    world.fleet.refuse = lambda request: Unusable(
        Problem.QUOTA if request.capacity == "spot" else Problem.IMAGE, "Code: m"
    )
    fall_off(world)
    world.run()
    assert world.ends == ["ESCALATED"] and world.launched == []
    reason = world.incidents[0]["outcome_reason"]
    assert "every offering of node group workers is refused by EC2" in reason
    assert "Name an image" in reason and "more running Spot p5 instances" in reason
    assert [subject.rpartition(" ")[2] for subject, _ in world.notices.sent] == [
        "offering",
        "offering",
        "you",
    ]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_person_is_told_whatever_call_is_the_last_one(build: Build, before: bool) -> None:
    def begin(world: World) -> World:
        world.fleet.refuse = unusable(Problem.KEY, "on-demand")
        fall_off(world)
        world.run()
        return world

    plain = begin(build()).effects
    for number, (function, _) in enumerate(plain):
        if function != "launch_replacement":
            continue
        world = build()
        world.kill_at(number, before=before)
        begin(world)
        told = [subject for subject, _ in world.notices.sent]
        # Between the mail and the note that it is sent nobody can know.
        twice = plain[number - before][1] == "notices.publish"
        assert len(told) == 1 + twice, (number, plain[number])
        assert world.ends == ["HEALED"] and len(world.launched) == 1


def test_a_mail_that_cannot_be_sent_keeps_no_node_back(world: World) -> None:
    def denied(subject: str, text: str) -> None:
        raise PermanentError("AuthorizationError: the topic is gone")

    real, world.notices.publish = world.notices.publish, denied  # type: ignore[method-assign]
    world.fleet.refuse = unusable(Problem.KEY, "on-demand")
    incident = begun(world)
    assert launch(world, incident)["result"] == "DONE"
    world.notices.publish = real  # type: ignore[method-assign]
    world.clock.advance(601)
    assert launch(world, another(world))["result"] == "DONE"
    assert len(world.notices.sent) == 1, "the next one tells instead"


# --- what is neither -----------------------------------------------------------------------------------


def test_throttling_never_leads_to_the_next_offering(world: World) -> None:
    answers: list[PlanariaError] = [
        TransientError("RequestLimitExceeded: of the call"),
        *[SpentToken("RequestLimitExceeded: in the answer", throttled=True)] * 5,
    ]
    asked = watched(world, lambda _: answers.pop(0) if answers else None)
    incident = begun(world)
    with pytest.raises(TransientError):
        launch(world, incident)
    assert [launch(world, incident)["result"] for _ in range(6)] == ["WAIT"] * 5 + ["DONE"]
    assert {r.capacity for r in asked} == {"on-demand"} and shared(world) == {}
    # The call is repeated as it was; what EC2 has answered for good needs another token.
    assert len(asked) == 7 and len({r.token for r in asked}) == 6


def test_an_answer_that_nobody_knows_is_tried_three_times(world: World) -> None:
    asked = watched(world, lambda r: SpentToken("SomethingNew: m") if r.capacity == "on-demand" else None)
    incident = begun(world)
    assert [launch(world, incident)["result"] for _ in range(3)] == ["WAIT", "WAIT", "DONE"]
    assert [r.capacity for r in asked] == ["on-demand"] * 3 + ["spot"]
    assert "SomethingNew: m" in world.notices.sent[0][1]


def test_a_token_that_ec2_knows_otherwise_waits_for_its_instance_to_be_listed(world: World) -> None:
    """IdempotentParameterMismatch: another call, before a deployment, may have launched with it."""
    mismatch = SpentToken("IdempotentParameterMismatch: m", certain=False)
    hidden: list[Any] = []
    asked = watched(world, lambda _: mismatch)
    incident = begun(world)
    assert launch(world, incident)["result"] == "WAIT"
    world.fleet.refuse = none_of()
    world.fleet.launch(asked[0])
    real = world.fleet.launched
    world.fleet.launched = lambda token: hidden  # type: ignore[method-assign]
    world.fleet.refuse = lambda _: mismatch
    assert launch(world, incident)["result"] == "WAIT"
    world.fleet.launched = real  # type: ignore[method-assign]
    answer = launch(world, incident)
    assert (answer["result"], [answer["node_id"]]) == ("DONE", world.launched)


def test_a_token_that_stays_without_an_instance_is_given_up(world: World) -> None:
    answers = [SpentToken("IdempotentParameterMismatch: m", certain=False)] * 7
    asked = watched(world, lambda _: answers.pop() if answers else None)
    incident = begun(world)
    results = [launch(world, incident)["result"] for _ in range(8)]
    assert results == ["WAIT"] * 7 + ["DONE"]
    assert len({r.token for r in asked}) == 2 and {r.capacity for r in asked} == {"on-demand"}


def test_an_offering_that_left_the_file_is_finished_before_another_is_tried(world: World) -> None:
    incident = begun(world)
    world.kill("launch_replacement", "fleet.launch")
    with pytest.raises(BaseException, match="launch_replacement after"):
        launch(world, incident)
    world.gw.cluster = offered(offering("spot", "subnet-9"))
    answer = launch(world, incident)
    assert (answer["result"], [answer["node_id"]]) == ("DONE", world.launched)


def test_an_intent_whose_offering_left_the_file_is_dropped_when_nothing_came_of_it(world: World) -> None:
    incident = begun(world)
    world.kill("launch_replacement", "fleet.launch", before=True)
    with pytest.raises(BaseException, match="launch_replacement before"):
        launch(world, incident)
    world.gw.cluster = offered(offering("spot", "subnet-9"))
    results = [launch(world, incident)["result"] for _ in range(7)]
    assert results[0] == "WAIT" and results[-1] == "DONE" and len(world.launched) == 1
    assert world.fleet.instances[world.launched[0]].lifecycle == "spot"


# --- capacity that AWS takes back ----------------------------------------------------------------------


def test_a_spot_replacement_comes_from_another_pool_while_there_is_one(build: Build) -> None:
    pools = [offering("spot", "subnet-1", zone="us-east-1a"), offering("spot", "subnet-2", zone="us-east-1b")]
    world = build(offered(*pools))
    for node in NODES[:3]:
        world.gw.ledger.note_node(node, {"lifecycle": "spot", "zone": "us-east-1a"})
    asked = watched(world)
    world.interrupt(SICK)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert [r.subnet for r in asked] == ["subnet-2"]
    fall_off(world, NODES[2])
    world.run(60)
    assert [r.subnet for r in asked] == ["subnet-2", "subnet-2"], "nobody else is sent there now"


def test_the_pool_that_takes_the_node_back_is_the_last_one_and_not_none(build: Build) -> None:
    pools = [offering("spot", "subnet-1", zone="us-east-1a"), offering("spot", "subnet-2", zone="us-east-1b")]
    world = build(offered(*pools))
    world.gw.ledger.note_node(SICK, {"lifecycle": "spot", "zone": "us-east-1a"})
    asked = watched(world, lambda r: CapacityError("none") if r.subnet == "subnet-2" else None)
    world.interrupt(SICK)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert [r.subnet for r in asked] == ["subnet-2", "subnet-1"]


def ending(world: World, node: str) -> dict[str, Any]:
    """An incident about a node whose Capacity Block ends."""
    fault = {"kind": "capacity_end", "code": "block", "severity": "FATAL", "deadline": world.now + 600}
    incident = another(world, node)
    world.table.write(
        f"NODE#{node}", "NODE", sets={"fault": {**fault, "reservation": BLOCK}, "reservation": BLOCK}
    )
    return incident


def test_a_block_that_ends_is_not_used_again(build: Build) -> None:
    world = build(offered(*ALL[1:3]))
    asked = watched(world)
    assert launch(world, ending(world, SICK))["result"] == "DONE"
    assert [r.capacity for r in asked] == ["on-demand"]
    world.clock.advance(HOUR)
    assert launch(world, another(world))["result"] == "DONE"
    assert [r.capacity for r in asked] == ["on-demand"] * 2, "of another node, an hour after"


def test_with_nothing_but_the_block_that_ends_the_incidents_wait_and_one_mail_says_so(build: Build) -> None:
    world = build(offered(ALL[1]))
    asked = watched(world)
    incidents = [ending(world, node) for node in NODES[:3]]
    for incident in incidents * 2:
        answer = launch(world, incident)
        assert (answer["result"], "nothing else is listed" in answer["reason"]) == ("NO_CAPACITY", True)
    assert asked == [] and len(world.notices.sent) == 1
    assert "Give workers an offering beside the reservation that ends" in world.notices.sent[0][1]
    world.gw.cluster = offered(offering("reservation", reservation=ODCR))
    assert launch(world, incidents[0])["result"] == "DONE"


# --- the failed node has the place of its replacement ----------------------------------------------------


def full(world: World, reservation: str = ODCR, cleaned: float = 300.0) -> list[LaunchRequest]:
    """A reservation with all its places taken; one is free again some minutes after a node ended."""
    for node in world.nodes:
        world.gw.ledger.note_node(node, {"reservation": reservation})
    ended: list[float] = []

    def refuse(request: LaunchRequest) -> PlanariaError | None:
        if request.reservation != reservation:
            return CapacityError("InsufficientInstanceCapacity: none")
        if not ended and world.terminated:
            ended.append(world.now)
        if not ended or world.now < ended[0] + cleaned:
            return CapacityError("ReservationCapacityExceeded: none")
        return None

    return watched(world, refuse)


def test_in_a_full_reservation_the_failed_node_makes_room_once_it_is_empty(build: Build) -> None:
    world = build(offered(ALL[0], offering("on-demand")))
    asked = full(world)
    fall_off(world)
    world.run(HOUR)
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["HEALED"] and set(world.terminated) == {SICK}
    assert world.fleet.instances[world.launched[0]].reservation == ODCR
    assert list(shared(world)["cooling"]) == [f"on-demand/{P5}/subnet-1"], "its own place is nobody's matter"
    assert [r.reservation for r in asked].count(ODCR) < 8
    steps = world.gw.ledger.incident(world.incidents[0]["incident_id"])[1]
    at = {row["step"]: float(row["at"]) for row in steps}
    assert at["job_stopped"] <= at["node_retired"] < at["replacement_launched"]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_making_room_ends_right_whatever_call_is_the_last_one(build: Build, before: bool) -> None:
    def begin(number: int = -1) -> World:
        world = build(offered(ALL[0]))
        full(world, cleaned=60.0)
        world.kill_at(number, before=before)
        fall_off(world)
        world.run(HOUR)
        return world

    effects = begin().effects
    wrong = {}
    for number, (function, call) in enumerate(effects):
        if function == "launch_replacement":
            world = begin(number)
            try:
                world.assert_healed(replaced=1, resumed=1)
                assert world.ends == ["HEALED"] and set(world.terminated) == {SICK}
            except AssertionError as error:
                wrong[f"{number}: {call}"] = str(error).partition("\n")[0]
    assert wrong == {}


def test_a_node_that_is_not_proven_empty_makes_no_room(build: Build) -> None:
    world = build(offered(ALL[0]))
    full(world)
    incident = begun(world)
    assert launch(world, incident)["result"] == "NO_CAPACITY"
    assert world.terminated == []
    world.call("isolate_node", {"incident": incident, "carry": {}})
    assert "emptied_at" in world.node(SICK)["isolation"]
    waits = [launch(world, incident)["retry_after"] for _ in range(2)]
    assert (waits, set(world.terminated), list(world.node(SICK)["acts"])) == ([30, 60], {SICK}, ["terminate"])


@pytest.mark.parametrize("verb", ["isolate", "launch"])
def test_a_node_that_stays_by_a_persons_order_makes_no_room(build: Build, verb: str) -> None:
    world = build(offered(ALL[0]))
    full(world)
    incident = {**begun(world), "retire": False, "verb": verb}
    world.call("isolate_node", {"incident": incident, "carry": {}})
    assert launch(world, incident)["result"] == "NO_CAPACITY"
    assert world.terminated == []


def test_a_used_up_quota_is_the_failed_nodes_own_place(build: Build) -> None:
    """A quota of exactly the nodes that run: the replacement would need one more."""
    world = build(offered(offering("on-demand")))

    def refuse(request: LaunchRequest) -> PlanariaError | None:
        running = [i for i in world.fleet.instances.values() if i.state == "running"]
        return Unusable(Problem.QUOTA, "VcpuLimitExceeded: m") if len(running) > 3 else None

    world.fleet.refuse = refuse
    fall_off(world)
    world.run(HOUR)
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["HEALED"]


def test_a_quota_that_stays_used_up_is_a_persons_matter_in_the_end(build: Build) -> None:
    world = build(offered(offering("on-demand"), hold_seconds=10 * DAY))
    world.fleet.refuse = unusable(Problem.QUOTA, "on-demand")
    fall_off(world)
    world.run(3 * HOUR)
    assert world.ends == ["ESCALATED"]
    assert "more running On-Demand p5 instances" in world.incidents[0]["outcome_reason"]


# --- days without capacity -------------------------------------------------------------------------------


def waiting(build: Build, seconds: float, **policy: Any) -> World:
    world = build(offered(offering("on-demand"), offering("spot"), hold_seconds=10 * DAY, **policy))
    until = world.now + seconds
    world.fleet.refuse = lambda _: CapacityError("none") if world.now < until else None
    return world


def skip(world: World, seconds: float) -> World:
    """Let time pass without its sweeps, which are most of the work and change nothing."""
    world.sweeps = False
    world.run(seconds)
    world.sweeps = True
    return world


FIRST_EXECUTION = 14.2 * HOUR
"""Ninety tries, most of them ten minutes apart: soon after it the incident goes on in the second one."""


def test_three_days_without_capacity_end_in_one_replacement(build: Build) -> None:
    world = waiting(build, 3 * DAY)
    fall_off(world)
    skip(world, 3 * DAY - HOUR).run(3 * HOUR)
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["HEALED"] and world.node(SICK)["attempt"] == 1
    executions = [name.split(":")[-1] for name, r in world.driver.records.items() if r.machine == "heal_node"]
    first = executions[0]
    assert executions == [first, *(f"{first}-c{number}" for number in range(1, len(executions)))]
    assert 4 <= len(executions) <= 6 and all(len(name) <= 80 for name in executions)
    ended = {world.workflows.executions[arn] for arn in world.driver.records}
    assert ended == {Execution.SUCCEEDED}
    transitions = [len(r.states) for r in world.driver.records.values()]
    assert max(transitions) < 400 and sum(transitions) < 1700
    tries = len([call for call in world.fleet.calls if call[0] == "launch"])
    assert tries < 1000, "about two a round, a round each ten minutes"


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_going_on_later_is_one_execution_whatever_call_is_the_last_one(build: Build, before: bool) -> None:
    """Into the second execution. What comes before that is another test's."""

    def begin(world: World) -> World:
        fall_off(world)
        skip(world, FIRST_EXECUTION).run(4 * HOUR)
        return world

    def of_interest(world: World) -> Iterator[int]:
        """Effects of the continuation and of the first Tasks after it."""
        begins = [n for n, (f, _) in enumerate(world.effects) if f == "continue_incident"]
        yield from (n for n in range(begins[0], len(world.effects)) if world.effects[n][0] != "sweep")

    plain = begin(waiting(build, FIRST_EXECUTION + 600))
    plain.assert_healed(replaced=1, resumed=1)
    numbers = list(of_interest(plain))
    assert len(numbers) > 10
    wrong = {}
    for number in numbers[:16]:
        world = waiting(build, FIRST_EXECUTION + 600)
        world.kill_at(number, before=before)
        begin(world)
        try:
            world.assert_healed(replaced=1, resumed=1)
            assert world.ends == ["HEALED"]
            names = {arn.split("-c")[-1] for arn in world.driver.records if "-c" in arn.split(":")[-1]}
            assert names == {"1"} or world.node(SICK)["attempt"] > 1, names
        except AssertionError as error:
            wrong[f"{number}: {plain.effects[number]}"] = str(error).partition("\n")[0]
    assert wrong == {}


def test_going_on_later_twice_is_one_execution(build: Build) -> None:
    world = waiting(build, 16 * HOUR)
    world.twice = {"continue_incident", "launch_replacement", "begin_incident"}
    fall_off(world)
    skip(world, FIRST_EXECUTION).run(4 * HOUR)
    world.assert_healed(replaced=1, resumed=1)
    assert len([arn for arn in world.driver.records if "-c" in arn.split(":")[-1]]) == 1


def test_a_late_second_delivery_does_not_disturb_the_execution_that_goes_on(world: World) -> None:
    incident = begun(world)
    event = {"incident": incident, "execution": "arn:by-test"}
    first = world.call("continue_incident", event)
    row = world.node(SICK)
    assert (row["phase"], row["continued"], "execution_arn" in row) == ("CLAIMED", 1, False)
    assert first["execution"] == f"{row['execution']}" and row["execution"].endswith("-1-c1")
    document = {"node_id": SICK, "session": row["session"]}
    begin = {"document": document, "execution": "arn:c1", "machine": "heal_node"}
    assert world.call("begin_incident", begin)["result"] == "DONE"
    before = world.node(SICK)
    assert world.call("continue_incident", event)["result"] == "DONE"
    assert world.node(SICK) == before and len(world.workflows.executions) == 2


def test_sweep_starts_what_the_lambda_did_not_live_to_start(world: World) -> None:
    """Between the row and StartExecution; the breaker is not asked again after all those hours."""
    incident = begun(world)
    row = world.node(SICK)
    world.workflows.executions[f"arn:old:{row['execution']}"] = Execution.SUCCEEDED
    world.kill("continue_incident", "workflows.start", before=True)
    with pytest.raises(BaseException, match="continue_incident before"):
        world.call("continue_incident", {"incident": incident, "execution": "arn:by-test"})
    world.limit_breaker(1)
    for name in ("i-0ccccccccccccccc1-1", "i-0ccccccccccccccc2-1"):
        world.gw.breaker.admit(name, "console", world.now, "", True)
    world.sweep()
    assert world.node(SICK)["phase"] == "CLAIMED" and "execution_arn" not in world.node(SICK)
    world.clock.advance(21)
    world.sweep()
    row = world.node(SICK)
    assert (row["phase"], row["attempt"]) == ("CLAIMED", 1)
    started = [arn for arn in world.workflows.executions if arn.endswith(row["execution"])]
    assert len(started) == 1 and row["execution"].endswith("-c1")


def test_an_execution_that_dies_while_it_goes_on_is_a_failed_attempt(build: Build) -> None:
    world = waiting(build, 20 * HOUR)
    fall_off(world)
    skip(world, FIRST_EXECUTION).run(DAY, until=lambda: "-c1" in world.node(SICK).get("execution_arn", ""))
    world.abort(world.node(SICK)["execution_arn"])
    world.run(DAY)
    world.assert_healed(replaced=1, resumed=1)
    assert (world.node(SICK)["attempt"], world.ends) == (2, ["HEALED"])


def test_a_superseding_end_of_the_node_takes_the_waiting_over(build: Build) -> None:
    """EC2 ends the isolated node while its incident waits for capacity."""
    world = waiting(build, 20 * HOUR)
    fall_off(world)
    skip(world, 10 * HOUR)
    world.lose(SICK)
    skip(world, 10 * HOUR).run(HOUR)
    assert world.ends[-1] == "HEALED" and len(world.launched) == 1
    assert world.notices.sent == [] and not world.driver.running


def test_events_of_the_node_while_it_waits_open_nothing(build: Build) -> None:
    world = waiting(build, 20 * HOUR)
    fall_off(world)
    for _ in range(19):
        skip(world, HOUR)
        world.send(events.xid(SICK, 79, world.now))
    skip(world, HOUR).run(HOUR)
    world.assert_healed(replaced=1, resumed=1)
    assert world.ends == ["HEALED"]


# --- whatever EC2 answers --------------------------------------------------------------------------------

ANSWERS: dict[str, Callable[[], PlanariaError | None]] = {
    "well": lambda: None,
    "capacity": lambda: CapacityError("InsufficientInstanceCapacity: m"),
    "quota": lambda: Unusable(Problem.QUOTA, "VcpuLimitExceeded: m"),
    "image": lambda: Unusable(Problem.IMAGE, "InvalidAMIID.NotFound: m"),
    "throttled": lambda: TransientError("RequestLimitExceeded: m"),
    "throttled in the answer": lambda: SpentToken("RequestLimitExceeded: m", throttled=True),
    "unknown": lambda: SpentToken("SomethingNew: m"),
    "mismatch": lambda: SpentToken("IdempotentParameterMismatch: m", certain=False),
    "ended": lambda: SpentToken("IdempotentInstanceTerminated: m"),
    "refused": lambda: PermanentError("a defect of ours"),
}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    answers=st.lists(st.sampled_from(sorted(ANSWERS)), max_size=12),
    killed=st.integers(min_value=-1, max_value=60),
    before=st.booleans(),
    twice=st.booleans(),
)
def test_any_course_of_answers_ends_with_one_replacement_or_with_a_person(
    build: Build, answers: list[str], killed: int, before: bool, twice: bool
) -> None:
    world = build(offered(ALL[0], offering("on-demand"), offering("spot"), hold_seconds=10 * DAY))
    left = list(answers)
    asked = watched(world, lambda _: ANSWERS[left.pop(0)]() if left else None)
    world.kill_at(killed, before=before)
    world.twice = {"launch_replacement"} if twice else set()
    fall_off(world)
    world.run(6 * HOUR)
    assert not world.driver.running and not world.dead_letters
    tokens: dict[str, set[tuple[str, str]]] = {}
    for request in asked:
        tokens.setdefault(request.token, set()).add((request.capacity, request.subnet))
    assert all(len(offerings) == 1 for offerings in tokens.values()), "a token has one offering"
    if world.ends == ["HEALED"]:
        assert len([node for node in world.launched if node in world.alive]) == 1
        assert len(world.launched) == 1 and len(world.alive) == 4
    else:
        assert world.ends == ["ESCALATED"] and world.launched == []
        assert "refused by EC2" in world.incidents[0]["outcome_reason"]


# --- gangs -------------------------------------------------------------------------------------------------


def scarce(world: World, places: Callable[[], int]) -> list[float]:
    """EC2 has as many nodes beside the first four as `places` says; when it was asked."""
    at: list[float] = []

    def refuse(_: LaunchRequest) -> PlanariaError | None:
        at.append(world.now)
        taken = [node for node in world.launched if node in world.alive]
        return CapacityError("none") if len(taken) >= places() else None

    world.fleet.refuse = refuse
    return at


def gang(build: Build, word: str = "all-or-nothing") -> World:
    return build(offered(offering("on-demand"), gang=word, hold_seconds=10 * DAY))


def two_fall(world: World) -> None:
    fall_off(world, NODES[1])
    fall_off(world, NODES[2])


def paid(world: World, seconds: float, hours: float) -> float:
    """Share of the time in which a replacement ran that had no work, looked at every minute."""
    idle = 0
    for _ in range(int(seconds / 60)):
        skip(world, 60)
        idle += any(node in world.alive for node in world.launched)
    assert hours == seconds / HOUR
    return idle * 60 / seconds


def test_a_gang_keeps_what_it_has_by_default(build: Build) -> None:
    world = gang(build, "keep")
    scarce(world, lambda: 1)
    two_fall(world)
    world.run(2 * HOUR)
    assert len(world.launched) == 1 and world.terminated == [NODES[1]]
    assert world.ends == ["HEALED", "none"]


def test_a_gang_with_capacity_for_all_waits_for_nobody(build: Build) -> None:
    world = gang(build)
    scarce(world, lambda: 2)
    two_fall(world)
    world.run()
    world.assert_healed(replaced=2, resumed=1)
    assert world.ends == ["HEALED", "HEALED"]


@pytest.mark.parametrize("lucky", [0, 1])
def test_nobody_of_a_gang_keeps_a_node_while_another_finds_none(build: Build, lucky: int) -> None:
    world = gang(build)
    begun_at = world.now
    at = scarce(world, lambda: 1 + (world.now > begun_at + 5 * HOUR))
    for node in (NODES[1], NODES[2])[:: 1 - 2 * lucky]:
        fall_off(world, node)
    share = paid(world, 5 * HOUR, 5)
    assert share < 0.6, "it tries again now and then, together"
    assert world.ends == ["none", "none"] and not set(world.terminated) & set(NODES)
    assert len(at) < 5 * 6 * 3, "no hot loop"
    world.run(2 * HOUR)
    assert world.ends == ["HEALED", "HEALED"] and world.attempts == [2]
    assert len([node for node in world.launched if node in world.alive]) == 2 == len(world.alive) - 2
    assert world.notices.sent == [] and not world.driver.running


def test_a_gang_of_four_is_healed_once_all_find_their_place(build: Build) -> None:
    world = build(
        offered(offering("on-demand"), gang="all-or-nothing", hold_seconds=10 * DAY, removals=8), nodes=8
    )
    begun_at = world.now
    scarce(world, lambda: int((world.now - begun_at) / HOUR))
    for node in world.nodes[1:5]:
        fall_off(world, node)
    skip(world, 8 * HOUR).run(HOUR)
    assert world.ends == ["HEALED"] * 4 and world.attempts == [2]
    assert len(world.alive) == 8 and world.notices.sent == []


def test_a_sibling_that_gives_up_is_not_waited_for(build: Build) -> None:
    """Its incident ends with a person; the other node is replaced all the same."""
    world = build(
        offered(
            offering("on-demand"),
            gang="all-or-nothing",
            capacity_timeout_seconds=2 * HOUR,
            hold_seconds=10 * DAY,
        )
    )
    scarce(world, lambda: 1)
    two_fall(world)
    skip(world, 7 * HOUR).run(HOUR)
    assert sorted(world.ends) == ["ESCALATED", "HEALED"]
    assert len([node for node in world.launched if node in world.alive]) == 1


def test_a_sibling_that_only_reboots_is_not_waited_for(build: Build) -> None:
    from tests.lambdas.test_node_stories import ask_reboot

    world = gang(build)
    scarce(world, lambda: 1)
    ask_reboot(world, NODES[2])
    fall_off(world, NODES[1])
    world.run(2 * HOUR)
    assert world.ends == ["HEALED", "HEALED"] and len(world.launched) == 1


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_gang_that_gives_back_leaves_nothing_behind_whatever_call_is_the_last(
    build: Build, before: bool
) -> None:
    def begin(world: World) -> World:
        begun_at = world.now
        scarce(world, lambda: 1 + (world.now > begun_at + 600))
        two_fall(world)
        world.run(2 * HOUR)
        return world

    plain = begin(gang(build))
    assert plain.ends == ["HEALED", "HEALED"]
    numbers = [n for n, (function, _) in enumerate(plain.effects) if function == "launch_replacement"]
    wrong = {}
    for number in numbers[::5]:
        world = gang(build)
        world.kill_at(number, before=before)
        begin(world)
        alive = [node for node in world.launched if node in world.alive]
        if (world.ends, len(alive), world.attempts) != (["HEALED", "HEALED"], 2, [2]):
            wrong[f"{number}: {plain.effects[number]}"] = (world.ends, alive, world.attempts)
    assert wrong == {}
