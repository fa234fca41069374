"""Why nothing may be opened on a node at present."""

from dataclasses import replace

import pytest

from planaria.core import gates
from planaria.core.fault import Action, Fault, Severity
from planaria.core.maintenance import Window
from planaria.core.node import NodeView
from planaria.core.policy import Policy

NOW = 1_793_610_845.0
HOUR = 3600.0
NODE = NodeView("i-0aaaaaaaaaaaaaaa1", name="demo-3", group="workers")
XID = Fault("xid", "79", Severity.FATAL, "agent_xid")
WORK = Policy(maintenance=(Window(NOW - HOUR, NOW + HOUR, reason="new cables"),))
CALM = Policy()


def held(
    fault: Fault = XID, action: Action = Action.REPLACE, node: NodeView = NODE, policy: Policy = CALM
) -> str:
    return gates.hold(fault, action, node, policy, NOW)


def test_nothing_is_in_the_way() -> None:
    assert held() == ""


# --- the opt-out tag ------------------------------------------------------------------------------


OPTED = replace(NODE, opted_out=True)


@pytest.mark.parametrize("action", [Action.RESET, Action.REBOOT, Action.DRAIN, Action.REPLACE])
def test_an_opted_out_node_is_left_alone(action: Action) -> None:
    said = held(action=action, node=OPTED)
    assert said == "demo-3 is left alone: it has the tag planaria:opt-out; without the tag it is healed"


@pytest.mark.parametrize(
    ("kind", "code"), [("spot_interruption", "terminate"), ("state_change", "terminated")]
)
def test_also_when_aws_takes_it(kind: str, code: str) -> None:
    assert "planaria:opt-out" in held(
        Fault(kind, code, Severity.FATAL, "ec2"), node=replace(OPTED, gone=True)
    )


def test_its_facts_are_noted_all_the_same_and_its_jobs_resumed() -> None:
    assert held(action=Action.MONITOR, node=OPTED, policy=WORK) == ""
    exited = Fault("job", "exit", Severity.FATAL, "agent_job", job_id="gpt", attempt=1)
    assert held(exited, Action.REPLACE, OPTED, WORK) == ""


# --- a node that was left to a person -------------------------------------------------------------


LEFT = replace(
    NODE,
    phase="ESCALATED",
    isolated=True,
    action="REBOOT",
    fault_kind="xid",
    fault_code="48",
    ended_at=NOW - HOUR,
)


def test_a_fault_that_was_known_when_a_person_was_told_is_no_news() -> None:
    said = (
        "demo-3 is isolated, and its last incident ended ESCALATED: a person was told; "
        "planaria replace i-0aaaaaaaaaaaaaaa1"
    )
    for action in (Action.RESET, Action.REBOOT):
        assert held(action=action, node=LEFT) == said
        assert held(action=action, node=replace(LEFT, opted_out=True), policy=WORK) == said


def test_a_stronger_action_is_and_so_is_a_node_that_is_ours_no_longer() -> None:
    assert held(action=Action.REPLACE, node=LEFT) == ""
    for other in ({"isolated": False}, {"phase": "HEALED"}, {"phase": "CANCELLED"}, {"action": None}):
        assert held(action=Action.REBOOT, node=replace(LEFT, **other)) == ""


@pytest.mark.parametrize(
    ("kind", "code"), [("spot_interruption", "terminate"), ("state_change", "terminated"), ("lifecycle", "x")]
)
def test_what_aws_ends_is_news(kind: str, code: str) -> None:
    node = replace(LEFT, fault_kind=kind, action="REPLACE")
    assert held(Fault(kind, code, Severity.FATAL, "ec2"), Action.REPLACE, node) == ""
    stopped = Fault("state_change", "stopped", Severity.FATAL, "ec2")
    assert (held(stopped, Action.REPLACE, node) == "") is (kind != "state_change")


def test_of_two_kinds_in_turn_each_is_news_once() -> None:
    other = Fault("gpu_missing", "1", Severity.FATAL, "nvml")
    assert held(other, Action.REBOOT, LEFT) == ""
    minute = int(LEFT.ended_at // 60)  # type: ignore[operator]
    for at, known in ((minute - 1, True), (minute, False), (minute + 5, False)):
        entry = {"kind": "gpu_missing", "code": "1", "last": NOW, "minutes": [at, minute + 30]}
        assert bool(held(other, Action.REBOOT, replace(LEFT, recent={"k": entry}))) is known
    for since, known in ((NOW - HOUR, True), (NOW - HOUR + 1, False), (None, False)):
        subject = {"kind": "gpu_missing", "code": "1", "since": since, "last": NOW}
        assert bool(held(other, Action.REBOOT, replace(LEFT, subjects={"k": subject}))) is known


# --- maintenance ----------------------------------------------------------------------------------


def test_in_a_window_nothing_is_opened() -> None:
    assert held(policy=WORK) == (
        "maintenance until 2026-11-02 10:14 UTC (new cables): nothing is opened on demo-3 by itself"
    )
    before = Policy(maintenance=(Window(NOW + 1, NOW + HOUR),))
    after = Policy(maintenance=(Window(NOW - HOUR, NOW),))
    assert (held(policy=before), held(policy=after)) == ("", "")


def test_a_window_may_be_for_some_groups() -> None:
    others = Policy(maintenance=(Window(NOW - HOUR, NOW + HOUR, groups=("storage",)),))
    ours = Policy(maintenance=(Window(NOW - HOUR, NOW + HOUR, groups=("storage", "workers")),))
    assert held(policy=others) == "" and "maintenance" in held(policy=ours)


@pytest.mark.parametrize(
    ("fault", "passes"),
    [
        (Fault("spot_interruption", "terminate", Severity.FATAL, "ec2", deadline=NOW + 120), True),
        (Fault("capacity_end", "block", Severity.DEGRADED, "ec2"), True),
        (Fault("lifecycle", "terminate", Severity.DEGRADED, "autoscaling"), True),
        (Fault("state_change", "terminated", Severity.FATAL, "ec2"), True),
        (Fault("state_change", "shutting-down", Severity.FATAL, "ec2"), True),
        (Fault("state_change", "stopped", Severity.FATAL, "ec2"), False),
        (
            Fault("scheduled_event", "instance-retirement", Severity.DEGRADED, "health", deadline=NOW + 600),
            True,
        ),
        (
            Fault("scheduled_event", "instance-retirement", Severity.DEGRADED, "health", deadline=NOW + 7200),
            False,
        ),
        (Fault("scheduled_event", "instance-retirement", Severity.DEGRADED, "health"), False),
        (Fault("status_check", "StatusCheckFailed_System", Severity.FATAL, "cloudwatch"), False),
    ],
)
def test_what_cannot_wait_passes_a_window(fault: Fault, passes: bool) -> None:
    assert (held(fault, policy=WORK) == "") is passes


def test_a_node_that_is_gone_passes_a_window() -> None:
    assert held(node=replace(NODE, gone=True), policy=WORK) == ""


# --- a name whose instances fail one after the other ------------------------------------------------


def test_a_fault_that_every_new_instance_has_is_no_hardware() -> None:
    third = replace(NODE, replacements=(NOW - 20 * HOUR, NOW - 3 * HOUR, NOW - HOUR))
    assert held(node=third) == (
        "demo-3 has got 3 new instances within 24 h: it is not the hardware; a person looks"
    )
    assert held(node=replace(third, replacements=third.replacements[1:])) == ""
    assert held(node=replace(third, replacements=(NOW - 25 * HOUR, NOW - 3 * HOUR, NOW - HOUR))) == ""
    assert held(action=Action.REBOOT, node=third) == ""  # a reboot brings no new instance
    assert held(node=third, policy=Policy(max_replacements=4)) == ""
    gone = Fault("state_change", "terminated", Severity.FATAL, "ec2")
    assert "not the hardware" in held(gone, node=replace(third, gone=True))


@pytest.mark.parametrize("kind", sorted(gates.ENDED_BY_AWS))
def test_what_aws_takes_back_is_replaced_as_often_as_it_takes(kind: str) -> None:
    often = replace(NODE, replacements=tuple(NOW - HOUR * n for n in range(9)))
    assert held(Fault(kind, "terminate", Severity.FATAL, "ec2"), node=often) == ""


def test_the_first_reason_is_the_one_that_a_person_set() -> None:
    node = replace(OPTED, replacements=(NOW - 3, NOW - 2, NOW - 1))
    assert "planaria:opt-out" in held(node=node, policy=WORK)
    assert "maintenance" in held(node=replace(node, opted_out=False), policy=WORK)


def test_a_node_without_a_name_is_called_by_its_id() -> None:
    assert held(node=replace(OPTED, name="")).startswith(NODE.node_id)


def test_who_decides_about_a_node() -> None:
    assert gates.ends_anyway("xid", True) and gates.ends_anyway("spot_interruption", False)
    assert not gates.ends_anyway("xid", False)
