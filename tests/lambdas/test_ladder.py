"""The ladder: GPU reset, reboot, replacement. Each is verified and ends in a defined state where it fails."""

from collections.abc import Callable
from typing import Any

import pytest

from lambdas.reset_gpu import DOCUMENT as RESET
from planaria.core import approval
from planaria.core.errors import Fenced, PermanentError
from planaria.core.ports import Execution
from planaria.core.quarantine import Found, Quarantine
from planaria.core.verification import DOCUMENT as CHECK
from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.test_approval import slots, waits, word
from tests.lambdas.test_node_stories import SICK, ask_reboot, entered, fall_off, report_well
from tests.lambdas.world import JOB, NODES, World, cluster, stub

PCI = "0000:b3:00"
HOUR = 3600.0
LADDER = ("RESET", "REBOOT", "REPLACE")


def double_bit(world: World, node: str = SICK, pci: str = PCI) -> None:
    """Xid 48, which asks for a reset of the GPU."""
    message = f"NVRM: Xid (PCI:{pci}.0): 48, pid=1, DBE (double bit error)"
    detail = {"kind": "xid", "code": "48", "pci": f"{pci}.0", "message": message, "count": 1}
    world.send(events.agent(node, "Planaria Node Signal", world.now - 1, **detail))


def failing(reason: str) -> Callable[..., Any]:
    return lambda *_: RuntimeError(reason)


def found(suite: str, reason: str, of: str = SICK) -> Callable[[str, str], Any]:
    """The checks of this suite find something on this node; others pass."""

    def suites(node: str, asked: str) -> Any:
        bad = (node, asked) == (of, suite)
        return {"passed": not bad, "reason": reason if bad else ""}

    return suites


def sent(world: World, document: str) -> list[tuple[str, dict[str, str]]]:
    return [(nodes[0], given) for name, nodes, given in world.commands.calls if name == document]


def result(world: World, act: str, node: str = SICK) -> str:
    return str(world.node(node)["tried"][act].get("result", ""))


def over(world: World) -> Callable[[], bool]:
    return lambda: bool(world.ends) and world.ends[-1] != "none"


def reboots(world: World) -> int:
    return sum(call == ("reboot", SICK) for call in world.fleet.calls)


def silent_after_reboot(world: World) -> None:
    """SICK never comes back; whatever else boots does."""
    boot = world._boot
    world._boot = lambda node: None if node == SICK else boot(node)  # type: ignore[method-assign]


@pytest.fixture
def resetting(build: Build) -> World:
    """A cluster whose policy lets GPUs be reset."""
    return build(cluster(gpu_reset=True))


# --- each rung that helps --------------------------------------------------------------------------


def test_a_reset_that_helps_is_proven_by_the_deep_check(resetting: World) -> None:
    double_bit(resetting)
    resetting.run()
    resetting.assert_healed(replaced=0, resumed=1)
    assert resetting.ends == ["HEALED"] and resetting.fleet.calls == []
    assert sent(resetting, RESET) == [(SICK, {"pci": PCI})]
    assert sent(resetting, CHECK) == [(SICK, {"suite": "deep"})]
    assert result(resetting, "reset") == "passed"
    row, steps = resetting.gw.ledger.incident(resetting.incidents[0]["incident_id"])
    assert row is not None and row["action"] == "RESET" and row.get("climbed", []) == []
    line = [step["step"] for step in steps]
    assert line.index("job_stopped") < line.index("gpu_reset") < line.index("node_verified")
    assert resetting.node(SICK)["health"] == "Schedulable"


def test_a_fault_that_names_no_gpu_resets_all_of_them(resetting: World) -> None:
    resetting.start("heal_node", {"node_id": SICK, "action": "reset", "reason": "it stutters"})
    resetting.run()
    resetting.assert_healed(replaced=0, resumed=1)
    assert sent(resetting, RESET) == [(SICK, {"pci": ""})]
    assert sent(resetting, CHECK) == [(SICK, {"suite": "light"})]
    assert resetting.ends == ["HEALED"] and "tried" not in resetting.node(SICK)


def test_without_gpu_reset_the_ladder_begins_with_a_reboot(world: World) -> None:
    double_bit(world)
    world.run()
    world.assert_healed(replaced=0, resumed=1)
    assert (reboots(world), sent(world, RESET)) == (1, [])
    assert result(world, "reboot") == "passed" and sent(world, CHECK) == [(SICK, {"suite": "deep"})]


def test_a_replacement_is_new_hardware_and_checked_lightly(world: World) -> None:
    fall_off(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert sent(world, CHECK) == [(world.launched[0], {"suite": "light"})]


def test_the_policy_may_ask_for_the_deep_check_always_or_never(build: Build) -> None:
    always = build(cluster(deep_check="always"))
    fall_off(always)
    always.run()
    assert sent(always, CHECK) == [(always.launched[0], {"suite": "deep"})]
    never = build(cluster(deep_check="never"))
    double_bit(never)
    never.run()
    assert sent(never, CHECK) == [(SICK, {"suite": "light"})]


def test_what_else_was_seen_on_the_node_chooses_the_check_as_well(world: World) -> None:
    """EC2's check alone is answered by a light one; the double-bit error beside it is not."""
    world.send(events.alarm(SICK, "StatusCheckFailed_Instance", "ALARM", world.now - 1))
    double_bit(world)
    world.run()
    assert world.ends == ["HEALED"]
    assert sent(world, CHECK) == [(SICK, {"suite": "deep"})]


# --- each rung that does not help ------------------------------------------------------------------


def test_a_reset_that_fails_is_followed_by_a_reboot(resetting: World) -> None:
    resetting.resets = failing("GPU 3 is in use by process 4711")
    double_bit(resetting)
    resetting.run(until=lambda: entered(resetting, "Reboot"))
    assert resetting.node(SICK)["health"] == "UnschedulablePendingReboot"
    assert resetting.node(SICK)["isolation"]["mark"].startswith("planaria:")
    resetting.run()
    resetting.assert_healed(replaced=0, resumed=1)
    assert resetting.ends == ["HEALED"] and reboots(resetting) == 1
    assert len(sent(resetting, RESET)) == 1
    assert "failed: " in result(resetting, "reset") and "4711" in result(resetting, "reset")
    assert result(resetting, "reboot") == "passed"
    row = resetting.incidents[0]
    assert row["action"] == "REBOOT" and [step["to"] for step in row["climbed"]] == ["REBOOT"]
    line = resetting.timeline(row["incident_id"])
    assert line.index("went_on_to_reboot") < line.index("rebooted") < line.index("node_verified")
    assert "gpu_reset" not in line


def test_a_reset_that_does_not_end_is_given_up(resetting: World) -> None:
    resetting.resets = lambda node, pci: None
    start = resetting.now
    double_bit(resetting)
    resetting.run(until=lambda: entered(resetting, "Reboot"))
    assert 300 < resetting.now - start < 400, "the policy's reset_timeout_seconds"
    resetting.run()
    resetting.assert_healed(replaced=0, resumed=1)
    assert "did not end within 5 min" in result(resetting, "reset") and len(sent(resetting, RESET)) == 1


def test_a_reset_that_cannot_be_sent_is_sent_when_it_can(resetting: World) -> None:
    resetting.commands.reachable = False
    double_bit(resetting)
    resetting.run(60, until=lambda: entered(resetting, "Wait to reset"))
    resetting.commands.reachable = True
    resetting.run()
    resetting.assert_healed(replaced=0, resumed=1)
    assert len(sent(resetting, RESET)) == 1 and reboots(resetting) == 0


def test_a_lost_ticket_of_a_reset_is_asked_for_again(resetting: World) -> None:
    resetting.resets = lambda node, pci: None
    double_bit(resetting)
    resetting.run(until=lambda: entered(resetting, "Wait to reset"))
    resetting.commands._tickets.clear()
    resetting.resets = lambda node, pci: {"reason": ""}
    resetting.run()
    resetting.assert_healed(replaced=0, resumed=1)
    assert len(sent(resetting, RESET)) == 2 and reboots(resetting) == 0


def test_a_node_that_fails_its_deep_check_after_a_reset_reboots_and_is_cleared(resetting: World) -> None:
    checks = iter([False, True])

    def suites(node: str, suite: str) -> Any:
        passed = next(checks)
        return {"passed": passed, "reason": "" if passed else "GPU 3: memory test failed"}

    resetting.suites = suites
    double_bit(resetting)
    resetting.run(until=lambda: entered(resetting, "Climb"))
    assert "memory test failed" in resetting.node(SICK)["quarantined"]["reason"]
    resetting.run()
    resetting.assert_healed(replaced=0, resumed=1)
    assert "failed: " in result(resetting, "reset") and result(resetting, "reboot") == "passed"
    assert "quarantined" not in resetting.node(SICK)
    assert Quarantine(resetting.table).all(resetting.now) == []


def test_a_reboot_whose_check_fails_is_followed_by_a_replacement(world: World) -> None:
    world.suites = found("deep", "GPU 3: memory test failed")
    double_bit(world)
    world.run(until=lambda: entered(world, "Give back the lost one") or bool(world.launched))
    assert world.node(SICK)["health"] == "UnschedulablePendingReplacement"
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert (world.ends, reboots(world), world.terminated) == (["HEALED"], 1, [SICK])
    assert "memory test failed" in result(world, "reboot")
    [entry] = Quarantine(world.table).all(world.now)
    assert (entry["hardware"], entry["of"]) == (SICK, "instance") and "memory test" in entry["reason"]
    assert world.incidents[0]["action"] == "REPLACE"


def test_the_whole_ladder_in_one_incident(resetting: World) -> None:
    resetting.resets = failing("the driver hangs")
    resetting.suites = found("deep", "GPU 3: memory test failed")
    double_bit(resetting)
    resetting.run()
    resetting.assert_healed(replaced=1, resumed=1)
    [row] = resetting.incidents
    assert (row["outcome"], [step["to"] for step in row["climbed"]]) == ("HEALED", ["REBOOT", "REPLACE"])
    assert len(sent(resetting, RESET)) == reboots(resetting) == 1
    assert slots(resetting) == {row["incident_id"]: pytest.approx(row["opened_at"], abs=5)}


def test_a_node_that_never_comes_back_from_its_reboot_is_replaced(world: World) -> None:
    silent_after_reboot(world)
    double_bit(world)
    world.run(9000)
    world.notices.sent.clear()  # about the job, which waits for more than an hour
    world.assert_healed(replaced=1, resumed=1)
    assert "did not come up" in result(world, "reboot") and result(world, "reboot").startswith("failed: ")


def test_an_agent_that_reports_a_failed_check_after_the_reboot_is_a_proof(world: World) -> None:
    world.check_passes = lambda node: node != SICK
    double_bit(world)
    world.run()
    world.assert_healed(replaced=1, resumed=1)
    assert "GPU 3 is missing" in result(world, "reboot")
    assert [node for node, _ in sent(world, CHECK)] == world.launched  # SICK was not even asked


def test_a_check_that_cannot_be_run_is_no_proof(world: World) -> None:
    """The node is back; that nobody can ask it says nothing of its hardware."""
    world.suites = lambda node, suite: KeyError("no document planaria-check")
    double_bit(world)
    world.run(4 * HOUR, until=over(world))
    assert world.ends == ["ESCALATED"] and world.launched == [] and world.terminated == []
    assert list(world.isolated) == ["demo-1"]
    reason = world.incidents[0]["outcome_reason"]
    assert "not verified" in reason and "no proof" in reason and f"planaria replace {SICK}" in reason
    assert result(world, "reboot").startswith("unknown: ")
    assert "quarantined" not in world.node(SICK)


def test_a_check_that_nobody_may_run_is_no_proof(world: World) -> None:
    def refuse(document: str, nodes: Any, parameters: Any) -> str:
        if document == CHECK:
            raise PermanentError("AccessDenied: ssm:SendCommand")
        return str(submit(document, nodes, parameters))

    submit = stub(world.commands, "submit", refuse)
    double_bit(world)
    world.run()
    assert world.ends == ["ESCALATED"] and world.launched == [] and list(world.isolated) == ["demo-1"]
    assert "not verified: AccessDenied" in world.incidents[0]["outcome_reason"]


def test_a_check_that_can_be_run_after_a_while_counts(world: World) -> None:
    start = world.now
    world.suites = lambda node, suite: (
        {"passed": True, "reason": ""} if world.now > start + 1000 else KeyError("the agent starts")
    )
    double_bit(world)
    world.run(4 * HOUR)
    world.assert_healed(replaced=0, resumed=1)


def test_a_check_that_hangs_is_not_waited_for_for_ever(world: World) -> None:
    world.suites = lambda node, suite: None
    start = world.now
    double_bit(world)
    world.run(4 * HOUR, until=over(world))
    assert world.ends == ["ESCALATED"] and world.launched == []
    assert 9000 < world.now - start < 9400, "the policy's deep_check_timeout_seconds"
    assert "did not end within 2 h 30 min" in world.incidents[0]["outcome_reason"]


def test_an_outage_of_ten_minutes_while_a_node_is_verified_costs_no_replacement(world: World) -> None:
    fall_off(world)
    world.run(until=lambda: entered(world, "Verify"))
    start = world.now
    world.refuses = lambda call: call.startswith("commands") and world.now < start + 600
    world.run(4 * HOUR)
    world.assert_healed(replaced=1, resumed=1)


@pytest.mark.parametrize("answer", [None, 5, {}, {"passed": "yes"}], ids=["none", "a number", "{}", "a text"])
def test_an_answer_that_says_nothing_is_not_passed(world: World, answer: Any) -> None:
    world.suites = lambda node, suite: answer
    double_bit(world)
    world.run(4 * HOUR, until=over(world))
    assert world.ends == ["ESCALATED"] and "not verified" in world.incidents[0]["outcome_reason"]


# --- what may not be climbed -----------------------------------------------------------------------


def test_the_policy_bounds_the_ladder(build: Build) -> None:
    world = build(cluster(escalate_to="REBOOT"))
    world.suites = found("deep", "GPU 3: memory test failed")
    double_bit(world)
    world.run()
    assert world.ends == ["ESCALATED"] and world.launched == [] and list(world.isolated) == ["demo-1"]
    reason = world.incidents[0]["outcome_reason"]
    assert "memory test failed" in reason and "escalate_to REBOOT allows no replacement" in reason
    assert "memory test failed" in result(world, "reboot")
    assert list(world.job["unresolved"]) == [SICK]


def test_a_reboot_that_a_person_ordered_never_becomes_a_replacement(world: World) -> None:
    world.check_passes = lambda node: False
    world.start("heal_node", {"node_id": SICK, "action": "reboot"})
    world.run()
    assert world.ends == ["ESCALATED"] and world.launched == [] and list(world.isolated) == ["demo-1"]
    [(_, text)] = world.notices.sent
    assert "a person ordered the reboot, which never becomes a replacement by itself" in text
    assert f"planaria replace {SICK}" in text


def test_a_reset_that_a_person_ordered_goes_on_to_a_reboot_and_no_further(world: World) -> None:
    world.resets = failing("it is in use")
    world.start("heal_node", {"node_id": SICK, "action": "reset"})
    world.run()
    world.assert_healed(replaced=0, resumed=1)
    assert (world.ends, reboots(world)) == (["HEALED"], 1)
    world.check_passes = lambda node: False
    world.start("heal_node", {"node_id": SICK, "action": "reset"}, "again")
    world.run()
    assert world.ends == ["HEALED", "ESCALATED"] and world.launched == []


def test_a_reboot_that_ec2_refuses_is_no_proof_that_the_node_is_broken(world: World) -> None:
    def refuse(node: str) -> None:
        raise PermanentError("UnauthorizedOperation: RebootInstances is denied")

    stub(world.fleet, "reboot", refuse)
    double_bit(world)
    world.run()
    assert world.ends == ["ESCALATED"] and world.launched == [] and list(world.isolated) == ["demo-1"]
    assert "UnauthorizedOperation" in world.incidents[0]["outcome_reason"]
    assert result(world, "reboot").startswith("refused: ")


# --- a target that is gone -------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["Reset the GPU", "Wait to reset"])
def test_a_node_that_ends_before_or_while_it_is_reset_is_replaced(resetting: World, state: str) -> None:
    resetting.resets = lambda node, pci: None
    double_bit(resetting)
    resetting.run(until=lambda: entered(resetting, state))
    resetting.lose(SICK)
    resetting.run()
    resetting.assert_healed(replaced=1, resumed=1)
    assert resetting.ends == ["SUPERSEDED", "HEALED"]


def test_a_node_that_ends_while_it_reboots_is_replaced(world: World) -> None:
    silent_after_reboot(world)
    double_bit(world)
    world.run(until=lambda: entered(world, "Wait for the node"))
    world.lose(SICK, tell=False)  # sweep finds it
    world.run()
    world.assert_healed(replaced=1, resumed=1)


@pytest.mark.parametrize(("action", "function"), [("RESET", "reset_gpu"), ("REBOOT", "reboot_node")])
def test_a_target_that_is_known_to_be_gone_leads_straight_to_a_replacement(
    resetting: World, action: str, function: str
) -> None:
    """The end was noted and no other session was opened for it yet."""
    double_bit(resetting)
    resetting.run(until=lambda: entered(resetting, "Isolate"))
    node = resetting.node(SICK)
    resetting.gw.ledger.note_node(SICK, {"gone": True, "action": action})
    incident = resetting.call("begin_incident", _begin(resetting))["incident"]
    resetting.gw.ledger.note_node(SICK, {"isolation": {"mark": incident["mark"], "at": resetting.now}})
    answer = resetting.call(function, {"incident": incident})
    assert answer["result"] == "REFUSED" and "is gone" in answer["reason"]
    climbed = resetting.call("climb_ladder", {"incident": incident, "reason": answer["reason"]})
    assert climbed["incident"]["action"] == "REPLACE" and climbed["incident"]["replacement"]
    assert climbed["incident"]["session"] == node["session"]
    assert resetting.fleet.calls == [] and sent(resetting, RESET) == []


def _begin(world: World) -> dict[str, Any]:
    row = world.node(SICK)
    document = {"incident_id": "", "node_id": SICK, "session": row["session"]}
    return {"document": document, "execution": row["execution_arn"], "machine": "heal_node"}


# --- meanwhile -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["Reset the GPU", "Wait to reset", "Wait to verify"])
def test_a_stronger_fault_supersedes_the_reset_and_its_check(resetting: World, state: str) -> None:
    if state == "Wait to verify":
        resetting.suites = lambda node, suite: None if suite == "deep" else {"passed": True}
    else:
        resetting.resets = lambda node, pci: None
    double_bit(resetting)
    resetting.run(until=lambda: entered(resetting, state))
    resetting.clock.advance(2)
    fall_off(resetting)
    resetting.run()
    resetting.assert_healed(replaced=1, resumed=1)
    assert resetting.ends == ["SUPERSEDED", "HEALED"] and reboots(resetting) == 0
    assert not {"verifying", "resetting", "climbed"} & {
        key for key, value in resetting.node(SICK).items() if value and key != "verifying"
    }


def test_the_same_fault_during_the_check_after_a_reset_leads_to_a_reboot(resetting: World) -> None:
    """The reset did not cure it: the deep check's load brings it back."""
    resetting.suites = lambda node, suite: {"passed": True, "reason": ""} if reboots(resetting) else None
    double_bit(resetting)
    resetting.run(until=lambda: entered(resetting, "Wait to verify"))
    resetting.clock.advance(90)
    double_bit(resetting)
    resetting.run()
    resetting.assert_healed(replaced=0, resumed=1)
    assert resetting.ends == ["SUPERSEDED", "HEALED"] and reboots(resetting) == 1


def test_a_check_of_the_session_before_does_not_count(resetting: World) -> None:
    """Its answer was out when the stronger session took over; the reboot is verified anew."""
    resetting.suites = lambda node, suite: None
    double_bit(resetting)
    resetting.run(until=lambda: entered(resetting, "Wait to verify"))
    resetting.clock.advance(90)
    double_bit(resetting)
    resetting.run(until=lambda: bool(reboots(resetting)))
    resetting.suites = found("deep", "GPU 3: memory test failed")
    resetting.run()
    resetting.assert_healed(replaced=1, resumed=1)
    assert len([node for node, _ in sent(resetting, CHECK) if node == SICK]) == 2


def test_a_healthy_report_cancels_before_the_reset_and_not_after_it(build: Build) -> None:
    def begin() -> World:
        world = build(cluster(gpu_reset=True, catalog=[RESETS]))
        world.resets = lambda node, pci: None
        ask_reboot(world)
        return world

    early = begin()
    report_well(early)
    early.run()
    assert early.ends == ["CANCELLED"] and sent(early, RESET) == [] and early.isolated == {}
    late = begin()
    late.run(until=lambda: bool(sent(late, RESET)))
    report_well(late)
    late.resets = lambda node, pci: {}
    late.run()
    late.assert_healed(replaced=0, resumed=1)
    assert late.ends == ["HEALED"]


RESETS = {
    "kind": "node_health",
    "code": "NvidiaErrorReboot",
    "action": "RESET",
    "reason": "our driver needs no more",
    "families": [],
}


@pytest.mark.parametrize("state", ["Wait to reset", "Wait to verify"])
def test_an_execution_that_dies_goes_on_where_it_was(resetting: World, state: str) -> None:
    over = [False]
    resetting.resets = lambda node, pci: {} if over[0] or state == "Wait to verify" else None
    resetting.suites = lambda node, suite: {"passed": True, "reason": ""} if over[0] else None
    double_bit(resetting)
    resetting.run(until=lambda: entered(resetting, state))
    resetting.abort(resetting.node(SICK)["execution_arn"])
    over[0] = True
    resetting.run()
    resetting.assert_healed(replaced=0, resumed=1)
    assert len(sent(resetting, RESET)) == len(sent(resetting, CHECK)) == 1


def test_an_execution_that_dies_after_a_climb_goes_on_with_the_next_step(resetting: World) -> None:
    resetting.resets = failing("the driver hangs")
    silent = resetting.boots
    resetting.boots = False
    double_bit(resetting)
    resetting.run(until=lambda: entered(resetting, "Wait for the node"))
    resetting.abort(resetting.node(SICK)["execution_arn"])
    resetting.boots = silent
    resetting._boot(SICK)
    resetting.run()
    resetting.assert_healed(replaced=0, resumed=1)
    assert len(sent(resetting, RESET)) == reboots(resetting) == 1


def test_a_climb_that_arrives_late_changes_nothing(resetting: World) -> None:
    resetting.resets = failing("the driver hangs")
    resetting.suites = found("deep", "GPU 3: memory test failed")
    calls: list[dict[str, Any]] = []

    def around(call: Any, go: Callable[[], Any]) -> Any:
        if call.state == "Climb":
            calls.append(dict(call.payload))
        return go()

    resetting.driver.around = around
    double_bit(resetting)
    resetting.run(until=lambda: bool(resetting.launched))
    assert [call["incident"]["action"] for call in calls] == ["RESET", "REBOOT"]
    before = resetting.node(SICK)
    for call in calls:
        assert resetting.call("climb_ladder", call)["incident"]["action"] == "REPLACE"
    assert resetting.node(SICK) == before
    resetting.run()
    resetting.assert_healed(replaced=1, resumed=1)
    with pytest.raises(Fenced):
        resetting.gw.ledger.enter(SICK, calls[0]["incident"]["session"])
    assert resetting.call("climb_ladder", calls[0])["result"] == "FENCED"


# --- a person is asked for every step --------------------------------------------------------------


@pytest.fixture
def asking(build: Build) -> World:
    world = build(cluster("approve", gpu_reset=True))
    world.resets = failing("the driver hangs")
    double_bit(world)
    world.run(until=waits(world))
    word(world, approval.Answer.APPROVED)
    world.run(until=lambda: len(world.notices.sent) == 2)
    return world


def test_the_next_step_is_approved_anew(asking: World) -> None:
    first, second = asking.notices.sent
    assert "reset its GPU" in first[1] and "Nothing was done so far" in first[1]
    assert "reboot it" in second[1] and "the driver hangs" in second[1] and "is isolated" in second[1]
    assert reboots(asking) == 0
    word(asking, approval.Answer.APPROVED)
    asking.run()
    asking.notices.sent.clear()
    asking.assert_healed(replaced=0, resumed=1)
    assert asking.ends == ["HEALED"] and reboots(asking) == 1


def test_a_no_to_the_next_step_leaves_the_node_isolated(asking: World) -> None:
    word(asking, approval.Answer.REJECTED, reason="we look ourselves")
    asking.run()
    assert asking.ends == ["ESCALATED"] and list(asking.isolated) == ["demo-1"] and reboots(asking) == 0
    reason = asking.incidents[0]["outcome_reason"]
    assert "rejected by ada: we look ourselves; the node stays isolated after its GPU reset" in reason
    assert list(slots(asking)) == [asking.incidents[0]["incident_id"]]
    assert list(asking.job["unresolved"]) == [SICK]


def test_nobody_answers_about_the_next_step(asking: World) -> None:
    asking.run(2 * HOUR)
    assert asking.ends == ["ESCALATED"] and list(asking.isolated) == ["demo-1"] and reboots(asking) == 0
    reason = asking.incidents[0]["outcome_reason"]
    assert reason == "nobody approved within 1 h; the node stays isolated after its GPU reset"


# --- quarantine ------------------------------------------------------------------------------------


def test_a_replacement_that_fails_its_check_is_quarantined_and_followed_by_another(world: World) -> None:
    fall_off(world)
    world.run(until=lambda: bool(world.launched))
    world.suites = found("light", "GPU 5 is missing", of=world.launched[0])
    world.run()
    first, second = world.launched
    world.fleet.instances.pop(first)
    world.assert_healed(replaced=1, resumed=1)
    assert world.terminated.count(first) == 1 and world.job["nodes"]["1"] == second
    assert "GPU 5 is missing" in world.node(first)["quarantined"]["reason"]
    entries = {entry["hardware"]: entry["incident_id"] for entry in Quarantine(world.table).all(world.now)}
    assert entries == dict.fromkeys((first, SICK), world.incidents[0]["incident_id"])


def test_a_replacement_on_a_quarantined_host_is_given_back(world: World) -> None:
    bad = {"node_id": NODES[3], "host": "h-0bad", "name": "demo-3"}
    Quarantine(world.table).put(bad, Found("GPU 1 fell off the bus", "i-1-1", world.now))
    fall_off(world)
    world.run(until=lambda: bool(world.launched))
    world.gw.ledger.note_node(world.launched[0], {"host": "h-0bad"})  # as sweep has it
    world.run()
    first, second = world.launched
    assert world.ends == ["HEALED"] and world.terminated.count(first) == 1
    assert world.job["nodes"]["1"] == second and world.alive.count(second) == 1
    assert "its host h-0bad is quarantined" in world.node(first)["lost"]
    assert "GPU 1 fell off the bus" in world.node(first)["lost"]
    assert [node for node, _ in sent(world, CHECK)] == [second]


def test_a_host_that_is_quarantined_no_more_is_used(world: World) -> None:
    bad = {"node_id": NODES[3], "host": "h-0bad", "name": "demo-3"}
    Quarantine(world.table).put(bad, Found("GPU 1 fell off the bus", "i-1-1", world.now - 31 * 86_400))
    fall_off(world)
    world.run(until=lambda: bool(world.launched))
    world.gw.ledger.note_node(world.launched[0], {"host": "h-0bad"})
    world.run()
    world.assert_healed(replaced=1, resumed=1)


def test_a_retired_node_is_quarantined_if_its_hardware_was_to_blame(build: Build) -> None:
    sick = build()
    fall_off(sick)
    sick.run()
    [entry] = Quarantine(sick.table).all(sick.now)
    assert (entry["hardware"], entry["incident_id"]) == (SICK, sick.incidents[0]["incident_id"])
    taken = build()
    taken.interrupt(SICK)
    taken.run()
    assert taken.ends == ["HEALED"] and Quarantine(taken.table).all(taken.now) == []


# --- whatever dies, however often it is delivered --------------------------------------------------


def cured(world: World) -> None:
    double_bit(world)


def climbed(world: World) -> None:
    world.resets = failing("the driver hangs")
    world.suites = found("deep", "GPU 3: memory test failed")
    double_bit(world)


STORIES: dict[str, tuple[Callable[[World], None], int, int]] = {
    "cured": (cured, 0, 0),
    "climbed": (climbed, 1, 1),
}


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("story", STORIES)
def test_any_effect_of_the_ladder_may_be_the_last_one(build: Build, story: str, before: bool) -> None:
    begin, replaced, rebooted = STORIES[story]
    world = build(cluster(gpu_reset=True))
    begin(world)
    world.run()
    world.assert_healed(replaced=replaced, resumed=1)
    wrong = {}
    for number, (function, call) in enumerate(world.effects):
        other = build(cluster(gpu_reset=True))
        other.kill_at(number, before=before)
        begin(other)
        other.run()
        try:
            other.assert_healed(replaced=replaced, resumed=1)
            assert other.ends == ["HEALED"], other.ends
            # A Lambda that dies between its act and the note of it repeats it, on an empty node.
            again = function in ("reset_gpu", "reboot_node", "verify_node")
            assert len(sent(other, RESET)) <= 1 + again
            assert reboots(other) <= rebooted + again
            assert [entry["hardware"] for entry in Quarantine(other.table).all(other.now)] == [SICK][
                :replaced
            ]
        except AssertionError as error:
            wrong[f"{number}: {function} {call}"] = str(error).partition("\n")[0]
    assert wrong == {}


@pytest.mark.parametrize("story", STORIES)
def test_every_task_of_the_ladder_delivered_twice_does_everything_once(build: Build, story: str) -> None:
    begin, replaced, rebooted = STORIES[story]
    world = build(cluster(gpu_reset=True))
    functions = "begin_incident isolate_node launch_replacement await_node reboot_node reset_gpu verify_node"
    functions += " climb_ladder admit_node retire_node tell_job close_incident begin_resume choose_checkpoint"
    world.twice = set(f"{functions} requeue_job await_steps close_resume".split())
    begin(world)
    world.run()
    world.assert_healed(replaced=replaced, resumed=1)
    assert world.ends == ["HEALED"]
    assert (len(sent(world, RESET)), reboots(world)) == (1, rebooted)
    assert len(sent(world, CHECK)) == 1 + replaced


def test_a_redrive_of_the_ladder_after_its_end_changes_nothing(resetting: World) -> None:
    inputs: list[tuple[str, dict[str, Any]]] = []

    def around(call: Any, go: Callable[[], Any]) -> Any:
        inputs.append((call.function, dict(call.payload)))
        return go()

    resetting.driver.around = around
    climbed(resetting)
    resetting.run()
    resetting.assert_healed(replaced=1, resumed=1)
    calls, rows = list(resetting.fleet.calls), dict(resetting.table._rows)
    for function, payload in inputs:
        if function in ("reset_gpu", "reboot_node", "verify_node", "climb_ladder"):
            assert resetting.call(function, payload)["result"] == "FENCED"
    assert (resetting.fleet.calls, resetting.table._rows) == (calls, rows)
    assert set(resetting.workflows.executions.values()) == {Execution.SUCCEEDED}


def test_two_nodes_of_one_job_are_reset_and_their_job_is_resumed_once(resetting: World) -> None:
    double_bit(resetting)
    double_bit(resetting, NODES[2])
    resetting.run()
    resetting.assert_healed(replaced=0, resumed=1)
    assert resetting.ends == ["HEALED", "HEALED"] and len(sent(resetting, RESET)) == 2
    assert resetting.job["job_id"] == JOB
