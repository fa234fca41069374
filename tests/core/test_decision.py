"""From fault to action: confirmation, grace after a boot, the ladder and repeat offenders."""

from typing import Any

import pytest

from planaria.core import history
from planaria.core.decision import decide
from planaria.core.fault import Action, Decision, Fault, Severity
from planaria.core.node import NodeView
from planaria.core.overrides import Override
from planaria.core.policy import Policy

T = 1_772_600_760.0
POLICY = Policy()
REMAP = Fault("gpu_remap", "failure", Severity.FATAL, "agent_gpu_remap", 0.5, pci="0000:b3:00")
XID = Fault("xid", "48", Severity.FATAL, "agent_xid", pci="0000:b3:00")


def node(*seen: tuple[Fault, float], **facts: Any) -> NodeView:
    view = NodeView("i-0aaaaaaaaaaaaaaa1", instance_type="p5.48xlarge", **facts)
    for fault, at in seen:
        note = history.remember(view, fault, at, False)
        view = view if note is None else history.noted(view, note)
    return view


def decided(fault: Fault, view: NodeView, policy: Policy = POLICY, at: float = T) -> Decision:
    return decide(fault, view, policy, at)


def test_one_observers_word_is_not_enough() -> None:
    end = decided(REMAP, node((REMAP, T)))
    assert (end.action, end.rule) == (Action.MONITOR, "unconfirmed")
    assert "agent_gpu_remap" in end.reason and "second" in end.reason


@pytest.mark.parametrize("before", [True, False])
def test_a_second_independent_observer_confirms_the_first(before: bool) -> None:
    shift = -60 if before else 60
    end = decided(REMAP, node((REMAP, T), (XID, T + shift)))
    assert end.action is Action.REPLACE


@pytest.mark.parametrize(
    "other",
    [
        (Fault("gpu_remap", "failure", Severity.FATAL, "agent_gpu_remap", 0.5, pci="0000:b4:00"), T - 60),
        (Fault("xid", "43", Severity.INFO, "agent_xid"), T - 60),  # no fault of a node
        (XID, T - POLICY.confirmation_seconds - 1),  # too long ago
        (Fault("gpu_missing", "count", Severity.FATAL, "agent_gpu_missing", 0.5), T - 60),  # NVML as well
    ],
    ids=["the same detector", "a harmless one", "an old one", "the same observer"],
)
def test_what_is_no_second_proof(other: tuple[Fault, float]) -> None:
    assert decided(REMAP, node((REMAP, T), other)).rule == "unconfirmed"


WEAKER = Fault("node_health", "NvidiaErrorReboot/reboot", Severity.FATAL, "hyperpod")


@pytest.mark.parametrize("last", [REMAP, WEAKER], ids=["the stronger last", "the weaker last"])
def test_of_two_that_confirm_each_other_the_stronger_counts(last: Fault) -> None:
    """Whichever came last is the one that is judged; both stand."""
    assert decided(WEAKER, node((WEAKER, T))).action is Action.REBOOT
    assert decided(last, node((REMAP, T - 1), (WEAKER, T))).action is Action.REPLACE


def test_what_was_answered_confirms_but_asks_for_nothing_any_more() -> None:
    healed = node((XID, T - 60), ended_at=T - 30, phase="HEALED")
    harmless = Fault("xid", "43", Severity.INFO, "agent_xid")
    assert decided(harmless, healed).action is Action.MONITOR
    check = Fault("dcgm", "warning", Severity.DEGRADED, "agent_dcgm", 0.5)
    assert decided(check, healed).rule != "xid-48"


def test_a_node_that_nobody_can_reach_is_not_failed() -> None:
    """Silent to us and to the API server is one and the same sign; EC2's own check is another."""
    silent = Fault("node_health", "silent", Severity.FATAL, "sweep", 0.5)
    kubelet = Fault("node_condition", "Ready/NodeStatusUnknown", Severity.FATAL, "eks", 0.5)
    early = T - 400
    assert decided(silent, node((silent, early), (silent, T), (kubelet, T))).rule == "unconfirmed"
    efa = Fault("efa", "missing", Severity.FATAL, "agent_efa", 0.5)
    assert decided(silent, node((silent, early), (silent, T), (efa, T))).action is Action.REBOOT


def test_an_authoritative_word_needs_no_second() -> None:
    assert decided(XID, node((XID, T))).action is Action.REBOOT


def test_after_a_boot_what_is_seen_at_once_is_not_believed() -> None:
    end = decided(REMAP, node((REMAP, T), launched_at=T - 100))
    assert (end.action, end.rule) == (Action.MONITOR, "boot-grace")
    young = node((REMAP, T), (XID, T), launched_at=T - 100)
    assert decided(XID, young).action is Action.REBOOT  # the driver's own word is
    late = node((REMAP, T), (XID, T), launched_at=T - POLICY.boot_grace_seconds - 1)
    assert decided(REMAP, late).action is Action.REPLACE
    check = Fault("status_check", "StatusCheckFailed_System", Severity.FATAL, "ec2_status")
    assert decided(check, node(acts={"reboot": T - 30})).rule == "boot-grace"


def test_a_condition_that_comes_and_goes_is_waited_for() -> None:
    bad = Fault("node_condition", "NetworkingReady/InterfaceNotUp", Severity.FATAL, "eks")
    young = decided(bad, node((bad, T)))
    assert (young.action, young.rule) == (Action.MONITOR, "not-lasting")
    assert "0 of 1800 s" in young.reason
    old = decided(bad, node((bad, T - 900), (bad, T - 1800)))
    assert old.action is not Action.MONITOR


@pytest.mark.parametrize(
    ("tried", "gpu_reset", "action", "rule"),
    [
        ({}, True, Action.RESET, "xid-48"),
        ({}, False, Action.REBOOT, "xid-48"),
        ({"reset": T - 3600}, True, Action.REBOOT, "tried-before"),
        ({"reset": T - 3600}, False, Action.REBOOT, "xid-48"),
        ({"reboot": T - 3600}, True, Action.REPLACE, "tried-before"),
        ({"reboot": T - 3600}, False, Action.REPLACE, "tried-before"),
        ({"reset": T - 7200, "reboot": T - 3600}, True, Action.REPLACE, "tried-before"),
        ({"reboot": T - 90_000}, False, Action.REBOOT, "xid-48"),  # longer ago than is remembered
        ({"reboot": T - 10}, False, Action.REBOOT, "xid-48"),  # an echo of what the reboot cures
        ({"reboot": T + 10}, False, Action.REBOOT, "xid-48"),  # seen before the reboot
    ],
)
def test_the_next_step_when_the_last_one_did_not_help(
    tried: dict[str, float], gpu_reset: bool, action: Action, rule: str
) -> None:
    memory = {act: {"at": at, "kind": "xid", "code": "48"} for act, at in tried.items()}
    end = decided(XID, node((XID, T), tried=memory), Policy(gpu_reset=gpu_reset))
    assert (end.action, end.rule) == (action, rule)


@pytest.mark.parametrize(
    ("tried", "action"),
    [
        ({"reset": (T - 3600, "passed")}, Action.REBOOT),  # it cured nothing for long
        ({"reset": (T - 172_800, "passed")}, Action.RESET),  # two days of peace: it may help again
        ({"reset": (T - 172_800, "")}, Action.RESET),
        ({"reset": (T - 172_800, "unknown: not verified")}, Action.RESET),
        ({"reset": (T - 172_800, "failed: it is in use")}, Action.REBOOT),  # it would fail again
        ({"reset": (T - 172_800, "failed: it is in use"), "reboot": (T - 172_700, "passed")}, Action.REBOOT),
        ({"reset": (T - 700_000, "failed: it is in use")}, Action.RESET),
        ({"reset": (T - 3600, "refused: the node is gone")}, Action.RESET),  # it never was
        ({"reset": (T - 10, "failed: it is in use")}, Action.RESET),  # an echo
        ({"reboot": (T - 172_800, "failed: it did not come up")}, Action.REPLACE),
        ({"reboot": (T - 3600, "refused: EC2 said no")}, Action.RESET),
    ],
)
def test_what_became_of_it_counts(tried: dict[str, tuple[float, str]], action: Action) -> None:
    memory = {act: {"at": at, "kind": "xid", "code": "48", "result": how} for act, (at, how) in tried.items()}
    assert decided(XID, node((XID, T), tried=memory), Policy(gpu_reset=True)).action is action


def test_a_failure_of_days_ago_is_told_with_its_reason() -> None:
    memory = {"reset": {"at": T - 172_800, "kind": "xid", "result": "failed: it is in use"}}
    end = decided(XID, node((XID, T), tried=memory), Policy(gpu_reset=True))
    assert end.rule == "tried-before" and "a reset 48 h before failed: it is in use" in end.reason


def test_the_policy_bounds_what_follows_an_act_that_did_not_help() -> None:
    memory = {"reboot": {"at": T - 3600, "kind": "xid", "code": "48", "result": "passed"}}
    bounded = Policy(escalate_to=Action.REBOOT)
    end = decided(XID, node((XID, T), tried=memory), bounded)
    assert end.action is Action.REBOOT and "escalate_to REBOOT allows no more" in end.reason


def test_what_was_tried_for_another_kind_of_fault_says_nothing() -> None:
    assert decided(XID, node(tried={"reboot": {"at": T - 3600, "kind": "status_check"}})).rule == "xid-48"
    other_gpu = {"reboot": {"at": T - 3600, "kind": "xid", "code": "48", "pci": "0000:b4:00"}}
    assert decided(XID, node(tried=other_gpu)).rule == "xid-48"
    same_gpu = {"reboot": {"at": T - 3600, "kind": "xid", "code": "119", "pci": "0000:b3:00"}}
    assert decided(XID, node(tried=same_gpu)).action is Action.REPLACE


@pytest.mark.parametrize(
    ("openings", "active", "action"),
    [
        ((), None, Action.REBOOT),
        ((T - 1000.0,), None, Action.REBOOT),
        ((T - 2000.0, T - 1000.0), None, Action.REPLACE),
        ((T - 700_000.0, T - 1000.0), None, Action.REBOOT),  # one of them a week ago
        ((T - 2000.0, T - 50.0), T - 50.0, Action.REBOOT),  # the second is the present session itself
        ((T - 3000.0, T - 2000.0, T - 50.0), T - 50.0, Action.REPLACE),
    ],
)
def test_a_repeat_offender_is_replaced(
    openings: tuple[float, ...], active: float | None, action: Action
) -> None:
    session: dict[str, Any] = {} if active is None else {"phase": "RUNNING", "opened_at": active}
    end = decided(XID, node(openings=openings, **session))
    assert end.action is action
    assert (end.rule == "repeat-offender") == (action is Action.REPLACE)


def test_a_clusters_own_answer_stands() -> None:
    """No correlation and no ladder changes what a person wrote, but for the next step after a failed one."""
    own = Policy(catalog=(Override("xid", "48", Action.MONITOR, "our GPUs report it falsely"),))
    remapped = Fault("xid", "63", Severity.INFO, "agent_xid", pci="0000:b3:00")
    end = decided(XID, node((remapped, T), (XID, T)), own)
    assert (end.action, end.rule, end.reason) == (
        Action.MONITOR, "override-xid-48", "our GPUs report it falsely",
    )  # fmt: skip


def test_without_a_moment_the_memory_is_not_asked() -> None:
    assert decide(REMAP, node((REMAP, T)), POLICY).action is Action.REPLACE
    assert decide(XID, None, POLICY, T).action is Action.REBOOT
