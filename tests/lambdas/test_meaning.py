"""Meaning over time through the Lambdas: what EC2 adds, opt-out, confirmation, what lasts, the ladder."""

import dataclasses
import json
from typing import Any

import pytest

from planaria.core.tags import OPT_OUT
from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.test_node_stories import SICK, fall_off
from tests.lambdas.world import NODES, World, cluster, nothing_answers, stub


def agent(world: World, kind: str, code: str, node: str = SICK, ago: float = 1.0) -> None:
    at = world.now - ago
    world.send(events.agent(node, "Planaria Node Signal", at, kind=kind, code=code, pci="0000:b3:00"))


def last(world: World, node: str = SICK) -> dict[str, object]:
    rows = [row for (pk, _), row in world.table._rows.items() if pk.startswith("EVENT#")]
    return max((row for row in rows if row.get("node_id") == node), key=lambda row: float(row["at"]))


def ends(world: World, node: str, reason: str) -> None:
    """EC2 has ended the instance; the event does not say why, EC2 does."""
    old = world.fleet.instances[node]
    world.fleet.instances[node] = dataclasses.replace(old, state="shutting-down", state_reason=reason)
    world.send(events.state(node, "shutting-down", world.now))


def grouped(world: World) -> None:
    for node in NODES:
        world.gw.ledger.note_node(node, {"group": "workers"})


def test_a_node_that_a_person_ended_is_not_replaced_while_the_group_is_large_enough(build: Build) -> None:
    world = build(cluster(size=3))
    grouped(world)
    ends(world, SICK, "Client.UserInitiatedShutdown")
    assert (last(world)["outcome"], last(world)["rule"]) == ("OBSERVED", "asked-by-a-person")
    assert last(world)["looked"] == {
        "state_reason": "Client.UserInitiatedShutdown", "below_size": False, "state_now": "shutting-down",
    }  # fmt: skip
    assert world.incidents == []


@pytest.mark.parametrize("reason", ["Client.UserInitiatedShutdown", "Server.SpotInstanceTermination"])
def test_a_node_that_its_group_needs_is_replaced_whoever_ended_it(build: Build, reason: str) -> None:
    world = build(cluster(size=4))
    grouped(world)
    ends(world, SICK, reason)
    assert last(world)["outcome"] == "OPENED"


def test_when_ec2_does_not_answer_a_state_change_is_tried_again_and_a_warning_goes_on(world: World) -> None:
    from planaria.core.errors import TransientError

    def silent(*_: object) -> None:
        raise TransientError("EC2 does not answer")

    old = world.fleet.instances[SICK]
    world.fleet.instances[SICK] = dataclasses.replace(old, state="stopped")
    real = stub(world.fleet, "describe", silent)
    world.send(events.state(SICK, "stopped", world.now))
    assert world.incidents == []
    world.send(events.spot(NODES[2], world.now))
    assert [row["node_id"] for row in world.incidents] == [NODES[2]]
    world.fleet.describe = real  # type: ignore[method-assign]
    world.run(70)
    assert {row["node_id"] for row in world.incidents} == {SICK, NODES[2]}


def test_the_opt_out_tag_is_seen_at_once_and_heard_again_when_it_is_gone(world: World) -> None:
    old = world.fleet.instances[SICK]
    world.fleet.instances[SICK] = dataclasses.replace(old, tags={**old.tags, OPT_OUT: "true"})
    fall_off(world)
    assert (last(world)["outcome"], world.incidents) == ("HELD", [])
    [(subject, text)] = world.notices.sent
    assert "is held" in subject and OPT_OUT in text
    world.run(180)
    assert world.incidents == []
    world.notices.sent.clear()
    world.fleet.instances[SICK] = old
    world.run(600)
    world.run()
    world.assert_healed(replaced=1, resumed=1)


def test_each_held_fault_of_a_node_is_kept(world: World) -> None:
    """One of them is taken back; the other still stands and is healed when the breaker lets it."""
    world.limit_breaker(1)
    fall_off(world, NODES[2])
    world.run()
    world.notices.sent.clear()
    fall_off(world)
    world.clock.advance(5)
    world.send(events.hyperpod(SICK, "Unhealthy", "fault", "Reboot", world.now - 1))
    assert len(world.node(SICK)["held"]) == 2
    world.clock.advance(60)
    world.send(events.hyperpod(SICK, "Healthy", "", "", world.now))
    world.clock.advance(3700)
    world.run(600)
    world.run()
    world.notices.sent.clear()
    assert (world.node(SICK)["fault_code"], world.node(SICK)["phase"]) == ("79", "HEALED")


@pytest.mark.parametrize("first", ["gpu_remap", "xid"])
def test_two_observers_that_agree_are_enough_whoever_came_first(world: World, first: str) -> None:
    """NVML's row-remap failure alone waits; the driver's Xid 48 alone reboots; both replace."""
    told = {"gpu_remap": "failure", "xid": "48"}
    agent(world, first, told.pop(first))
    if first == "gpu_remap":
        assert (last(world)["outcome"], last(world)["rule"]) == ("OBSERVED", "unconfirmed")
    [(kind, code)] = told.items()
    agent(world, kind, code)
    assert world.node(SICK)["action"] == "REPLACE"


def test_a_condition_that_lasts_is_judged_anew_by_sweep_and_one_that_ends_is_not(world: World) -> None:
    def said(node: str, status: str) -> None:
        condition = {
            "type": "KernelReady", "status": status, "reason": "ForkFailedOutOfPIDs", "message": "",
            "lastTransitionTime": None, "lastHeartbeatTime": None,
        }  # fmt: skip
        detail = {"version": 1, "instance_id": node, "node_name": "n", "condition": condition}
        world.send(events.event("planaria.sweep", "EKS Node Monitoring Condition", detail, world.now))

    said(SICK, "False")
    said(NODES[2], "False")
    assert (last(world)["outcome"], last(world)["rule"]) == ("OBSERVED", "not-lasting")
    world.clock.advance(600)
    said(NODES[2], "True")
    world.clock.advance(900)
    world.run()
    assert world.incidents == []
    world.clock.advance(300)
    world.run()
    assert [row["node_id"] for row in world.incidents] == [SICK]


def test_what_a_reboot_did_not_cure_is_replaced_the_next_time(world: World) -> None:
    agent(world, "xid", "48")
    world.run()
    assert world.node(SICK)["phase"] == "HEALED" and world.node(SICK)["tried"]["reboot"]["kind"] == "xid"
    world.clock.advance(3600)
    agent(world, "xid", "119")
    assert (world.node(SICK)["action"], world.node(SICK)["rule"]) == ("REPLACE", "tried-before")
    world.run()
    world.assert_healed(replaced=1, resumed=2)


def test_a_scheduler_name_that_eats_instances_is_left_to_a_person(world: World) -> None:
    node = SICK
    for _ in range(3):
        fall_off(world, node)
        world.run()
        node = world.node(node)["replaced_by"]
        world.clock.advance(600)
    assert len(world.node(node)["replacements"]) == 3
    fall_off(world, node)
    assert last(world, node)["outcome"] == "HELD"
    assert "it is not the hardware" in str(last(world, node)["reason"])


def test_a_replayed_event_is_judged_in_observe_mode_and_touches_nothing(world: World) -> None:
    event = json.loads(events.xid(SICK, 79, world.now - 1))
    event["replay-name"] = "after-the-outage"
    before = {key: row for key, row in world.table._rows.items() if not key[0].startswith("EVENT#")}
    world.send(json.dumps(event))
    assert (last(world)["outcome"], last(world)["mode"]) == ("OPENED", "observe")
    after = {key: row for key, row in world.table._rows.items() if not key[0].startswith("EVENT#")}
    assert before == after and world.incidents == []
    del event["replay-name"]
    world.send(json.dumps(event))
    assert [row["node_id"] for row in world.incidents] == [SICK]


def test_one_bad_answer_of_ec2_does_not_stop_the_others(world: World) -> None:
    stub(world.fleet, "describe", nothing_answers)
    fall_off(world)
    assert world.incidents == []  # a defect, not an outage: the message comes back


def full(world: World) -> None:
    """The breaker lets nothing more through."""
    world.limit_breaker(1)
    fall_off(world, NODES[2])
    world.run()


def test_what_is_opened_is_as_strong_as_what_was_held(world: World) -> None:
    """The window moves on and a weaker fault comes before the sweep that would judge the held one anew."""
    full(world)
    fall_off(world)
    world.sweeps = False
    world.clock.advance(3700)
    agent(world, "xid", "119")
    row = world.node(SICK)
    assert (row["phase"], row["action"], row["fault_code"]) == ("CLAIMED", "REPLACE", "119")
    assert "xid 79" in row["reason"]


def test_a_strong_fault_finds_room_among_weak_ones_that_are_held(world: World) -> None:
    full(world)
    for code in ("48", "74", "109", "110", "119", "120", "136", "140", "143"):
        agent(world, "xid", code)
    held = world.node(SICK)["held"]
    assert len(held) == 8 and {body["action"] for body in held.values()} == {"REBOOT"}
    fall_off(world)
    held = world.node(SICK)["held"]
    assert len(held) == 8 and "REPLACE" in {body["action"] for body in held.values()}


def test_a_late_end_of_an_instance_that_runs_again_is_stale(world: World) -> None:
    """A person stopped and started it; the first event comes when EC2 says that it runs."""
    world.clock.advance(600)
    world.send(events.state(SICK, "stopped", world.now - 300))
    assert (last(world)["outcome"], world.incidents) == ("STALE", [])
    assert "EC2 says that the instance is running" in str(last(world)["reason"])


def test_a_fresh_end_that_ec2_does_not_show_yet_is_asked_about_again(world: World) -> None:
    world.send(events.state(SICK, "stopped", world.now))
    assert world.incidents == []
    old = world.fleet.instances[SICK]
    world.fleet.instances[SICK] = dataclasses.replace(old, state="stopped")
    world.run(70)
    assert [row["node_id"] for row in world.incidents] == [SICK]


def test_what_is_days_old_says_nothing_of_the_present(world: World) -> None:
    world.clock.advance(400_000)
    agent(world, "xid", "79", ago=3 * 86_400.0)
    world.send(events.hyperpod(SICK, "Unhealthy", "fault", "Replace", world.now - 3 * 86_400))
    assert (last(world)["outcome"], world.incidents) == ("STALE", [])
    agent(world, "xid", "79", ago=3 * 3600.0)  # triage was out for hours
    assert last(world)["outcome"] == "OPENED"


@pytest.mark.parametrize(("boot", "outcome"), [("old", "STALE"), ("new", "OPENED"), ("", "OPENED")])
def test_a_fault_of_an_older_boot_is_over_when_the_check_passed(
    world: World, boot: str, outcome: str
) -> None:
    ready = json.loads(events.ready(SICK, world.now - 10, "demo-1", "10.0.0.2"))
    ready["detail"]["boot_id"] = "new"
    world.send(json.dumps(ready))
    fault = json.loads(events.xid(SICK, 79, world.now - 60))
    fault["detail"]["boot_id"] = boot
    world.send(json.dumps(fault))
    assert last(world)["outcome"] == outcome


def test_what_was_not_believed_after_a_boot_is_judged_again_when_it_lasts(world: World) -> None:
    """The alarm is told of once; nobody else would come back to it."""
    world.gw.ledger.note_node(SICK, {"launched_at": world.now - 60})
    world.send(events.alarm(SICK, "StatusCheckFailed_System", "ALARM", world.now))
    assert last(world)["rule"] == "boot-grace"
    world.clock.advance(360)
    world.run()
    assert [row["node_id"] for row in world.incidents] == [SICK]


def test_a_healthy_report_does_not_end_what_another_source_stands_for(world: World) -> None:
    agent(world, "xid", "74")
    world.clock.advance(2)
    world.send(events.hyperpod(SICK, "Unhealthy", "fault", "Replace", world.now))
    world.clock.advance(2)
    world.send(events.hyperpod(SICK, "Healthy", "", "", world.now))
    assert last(world)["outcome"] == "JOINED" and "goes on for xid 74" in str(last(world)["reason"])
    world.run()
    assert world.ends[-1] == "HEALED" and "CANCELLED" not in world.ends


def test_a_persons_reboots_say_nothing_of_the_hardware(world: World) -> None:
    for _ in range(2):
        world.start("heal_node", {"node_id": SICK, "action": "reboot", "reason": "new kernel"}, "by-hand")
        world.run()
        world.workflows.executions.clear()
        world.clock.advance(7200)
    agent(world, "xid", "74")
    assert world.node(SICK)["action"] == "REBOOT"


def test_a_held_retirement_outlives_another_session(build: Build) -> None:
    """AWS tells of it once: it must not get lost because the node was rebooted meanwhile."""
    world = build()
    old = world.fleet.instances[SICK]
    world.fleet.instances[SICK] = dataclasses.replace(old, tags={**old.tags, OPT_OUT: "true"})
    world.send(events.retirement(SICK, world.now))
    assert last(world)["outcome"] == "HELD"
    world.start("heal_node", {"node_id": SICK, "action": "reboot", "reason": "by hand"})
    world.run()
    world.fleet.instances[SICK] = old
    world.clock.advance(3600)
    world.run()
    world.run()
    assert world.node(SICK)["action"] == "DRAIN" and world.node(SICK)["replaced_by"]


def test_a_fault_that_was_taken_back_before_its_claim_opens_nothing(world: World) -> None:
    """The healthy report is judged between the alarm's last look at the row and its claim."""
    alarm = events.alarm(SICK, "StatusCheckFailed_System", "ALARM", world.now - 60)
    well = events.alarm(SICK, "StatusCheckFailed_System", "OK", world.now - 5)
    real = world.gw.ledger.claim

    def claim(*args: Any, **kwargs: Any) -> Any:
        world.gw.ledger.claim = real  # type: ignore[method-assign]
        world.judge(well)
        return real(*args, **kwargs)

    world.gw.ledger.claim = claim  # type: ignore[method-assign]
    world.send(alarm)
    assert (world.outcomes_of("status_check"), world.incidents) == (["OBSERVED", "STALE"], [])


def test_the_mail_about_held_nodes_is_not_lost_with_its_teller(world: World) -> None:
    full(world)
    world.notices.sent.clear()
    world.kill("triage", "notices.publish", before=True)
    fall_off(world)
    world.run(300)
    assert len(world.notices.sent) == 1 and "is held" in world.notices.sent[0][0]
