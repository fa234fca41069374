import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planaria.core.fault import Action
from planaria.core.judge import Judgement, Outcome, judge
from planaria.core.node import NodeView
from planaria.core.parsers import parse
from planaria.core.policy import Mode, Policy
from planaria.core.signal import Signal

EVENTS = Path(__file__).parents[1] / "events"
A = "i-0aaaaaaaaaaaaaaa1"
T = 1772600767.0  # the time of all recorded events
IDLE = NodeView(A)
ENDED = NodeView(A, session=1, phase="HEALED", action="REBOOT", opened_at=T - 90, ended_at=T - 50)


def signal(name: str, **changes: Any) -> Signal:
    (parsed,) = parse(json.loads((EVENTS / f"{name}.json").read_text()))
    return replace(parsed, **changes)


def active(action: str, kind: str = "xid", code: str = "48", **changes: Any) -> NodeView:
    node = NodeView(
        A, session=7, claim_id="first", phase="RUNNING", action=action, fault_kind=kind, fault_code=code,
        detected_at=T - 11, opened_at=T - 10,
    )  # fmt: skip
    return replace(node, **changes)


def judged(what: str | Signal, node: NodeView | None, **more: Any) -> Judgement:
    asked = signal(what) if isinstance(what, str) else what
    policy, now = more.pop("policy", Policy.default()), more.pop("now", T + 1)
    return judge(asked, node, known=more.pop("known", False), policy=policy, now=now, **more)


# --- the order of outcomes -------------------------------------------------------------------------


def test_invalid_comes_before_all() -> None:
    assert judged("ec2_spot_without_detail", None, known=True).outcome is Outcome.INVALID


@pytest.mark.parametrize("node", [None, NodeView(A, managed=False)])
def test_not_managed_comes_before_duplicate(node: NodeView | None) -> None:
    end = judged("ec2_spot_terminate", node, known=True)
    assert (end.outcome, end.action, end.fault) == (Outcome.NOT_MANAGED, None, None)
    assert A in end.reason


def test_duplicate_comes_before_covered() -> None:
    node = NodeView(A, phase="RETIRED", acts={"terminate": T - 5})
    assert judged("ec2_state_terminated", node, known=True).outcome is Outcome.DUPLICATE


def test_covered_comes_before_stale() -> None:
    node = NodeView(A, gone=True, acts={"terminate": T - 5})
    assert judged("ec2_state_terminated", node).outcome is Outcome.COVERED


def test_stale_comes_before_joined() -> None:
    node = active("REPLACE", acts={"reboot": T + 5})
    assert judged("hyperpod_reboot", node).outcome is Outcome.STALE


def test_joined_comes_before_observed_and_held() -> None:
    assert judged("agent_xid_13", active("REBOOT", opted_out=True)).outcome is Outcome.JOINED
    assert judged("ec2_rebalance", active("REBOOT")).outcome is Outcome.JOINED


def test_observed_comes_before_held() -> None:
    assert judged("ec2_rebalance", NodeView(A, opted_out=True)).outcome is Outcome.OBSERVED


def test_held_says_why() -> None:
    end = judged("ec2_spot_terminate", NodeView(A, name="demo-1", opted_out=True))
    assert (end.outcome, end.action) == (Outcome.HELD, Action.REPLACE)
    assert end.reason.startswith("demo-1 is left alone")


def test_an_unknown_event_does_not_join() -> None:
    assert judged("unknown_pretender", active("REBOOT")).outcome is Outcome.OBSERVED


def test_an_announced_end_without_a_node_is_observed_and_says_so() -> None:
    end = judged("capacity_block_expiration_title", None)
    assert (end.outcome, end.action) == (Outcome.OBSERVED, Action.MONITOR)
    assert "no instance of this cluster" in end.reason


# --- our own acts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["stopping", "stopped", "shutting_down", "terminated"])
def test_ends_that_we_made_are_covered(state: str) -> None:
    mine = active("REPLACE", acts={"terminate": T - 3})
    assert judged(f"ec2_state_{state}", mine).outcome is Outcome.COVERED
    assert judged(f"ec2_state_{state}", NodeView(A, phase="RETIRED")).outcome is Outcome.COVERED


def test_a_time_in_whole_seconds_may_be_any_moment_of_it() -> None:
    assert (
        judged("ec2_state_terminated", active("REPLACE", acts={"terminate": T + 0.6})).outcome
        is Outcome.COVERED
    )


def test_the_launch_of_the_replacement_explains_no_termination() -> None:
    end = judged("ec2_state_terminated", active("REPLACE", acts={"launch": T - 3}))
    assert end.outcome is Outcome.JOINED
    assert end.tells_gone


def test_a_stop_of_ours_explains_stopped_but_not_terminated() -> None:
    node = NodeView(A, acts={"stop": T - 3})
    assert judged("ec2_state_stopped", node).outcome is Outcome.COVERED
    assert judged("ec2_state_terminated", node).outcome is Outcome.OPENED


def test_a_lifecycle_action_after_our_termination_is_covered() -> None:
    assert judged("autoscaling_terminate", NodeView(A, acts={"terminate": T - 3})).outcome is Outcome.COVERED


def test_an_instance_check_fails_while_we_reboot() -> None:
    node = active("REBOOT", acts={"reboot": T - 3})
    assert judged("alarm_instance", node).outcome is Outcome.COVERED
    assert judged("alarm_system", node).outcome is Outcome.JOINED  # a reboot breaks no host
    late = signal("alarm_instance", time=T + 3600)
    assert judged(late, node).outcome is Outcome.JOINED


# --- what is too old ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["agent_xid_79", "hyperpod_replace", "ec2_spot_terminate", "health_retirement_bare_id"]
)
def test_a_gone_node_makes_everything_stale(name: str) -> None:
    assert judged(name, NodeView(A, gone=True)).outcome is Outcome.STALE
    assert judged(name, NodeView(A, phase="RETIRED", acts={"terminate": T - 5})).outcome is Outcome.STALE
    assert judged(name, NodeView(A, phase="HEALED", replaced_by="i-0bbbbbbbb")).outcome is Outcome.STALE


def test_the_event_that_first_tells_of_the_end_is_never_stale() -> None:
    end = judged(signal("ec2_state_terminated", time=T - 3600), ENDED)
    assert (end.outcome, end.action, end.tells_gone) == (Outcome.OPENED, Action.REPLACE, True)
    assert judged("ec2_state_terminated", NodeView(A, gone=True)).outcome is Outcome.STALE


def test_a_dying_instance_is_not_yet_gone() -> None:
    assert not judged("ec2_state_shutting_down", IDLE).tells_gone


def test_older_than_the_last_end() -> None:
    assert judged(signal("agent_xid_79", time=T - 60), ENDED).outcome is Outcome.STALE
    assert judged(signal("agent_xid_79", time=T - 40), ENDED).outcome is Outcome.OPENED
    assert judged(signal("agent_xid_79", time=None), ENDED).outcome is Outcome.OPENED


def test_the_end_of_an_earlier_session_does_not_age_what_joins_this_one() -> None:
    node = active("REPLACE", ended_at=T + 5)
    assert judged("agent_xid_79", node).outcome is Outcome.JOINED


@pytest.mark.parametrize(
    "name", ["ec2_spot_terminate", "health_retirement_bare_id", "autoscaling_terminate", "agent_spot_notice"]
)
def test_what_aws_announces_outlives_a_reboot(name: str) -> None:
    healed = NodeView(A, phase="HEALED", acts={"reboot": T + 5}, ended_at=T + 9)
    assert judged(name, healed).outcome is Outcome.OPENED
    assert judged(name, replace(healed, phase="CANCELLED")).outcome is Outcome.STALE
    assert judged(name, NodeView(A, acts={"terminate": T + 5})).outcome in (Outcome.STALE, Outcome.COVERED)


def test_a_warning_that_did_not_come_true() -> None:
    assert judged("ec2_spot_terminate", IDLE, now=T + 700).outcome is Outcome.OPENED
    assert judged("ec2_spot_terminate", IDLE, now=T + 86400).outcome is Outcome.STALE
    assert judged("capacity_interruption", IDLE, now=T + 86400).outcome is Outcome.STALE
    assert judged("agent_spot_notice", IDLE, now=T + 86400).outcome is Outcome.STALE
    assert judged("health_retirement_bare_id", IDLE, now=T + 86400 * 30).outcome is Outcome.OPENED


# --- the active session ---------------------------------------------------------------------------------

EVENTS_BY_ACTION = {
    "REBOOT": "hyperpod_reboot",
    "DRAIN": "health_retirement_bare_id",
    "REPLACE": "agent_xid_79",
}


@pytest.mark.parametrize("session", ["MONITOR", "RESET", "REBOOT", "DRAIN", "REPLACE"])
@pytest.mark.parametrize("fault", ["REBOOT", "DRAIN", "REPLACE"])
def test_only_a_stronger_action_raises(session: str, fault: str) -> None:
    end = judged(EVENTS_BY_ACTION[fault], active(session))
    assert (end.outcome, end.action, end.cancels) == (Outcome.JOINED, fault, False)
    assert end.raises == (Action(fault).strength > Action(session).strength)


def test_the_event_that_claimed_is_opened_again() -> None:
    spot = signal("ec2_spot_terminate")
    node = active("REPLACE", "spot_interruption", "terminate", claim_id=spot.dedupe_key, opened_at=T + 2)
    end = judged(spot, node)
    assert (end.outcome, end.action, end.raises) == (Outcome.OPENED, Action.REPLACE, False)
    terminated = signal("ec2_state_terminated")
    assert (
        judged(terminated, replace(node, claim_id=terminated.dedupe_key, gone=True)).outcome is Outcome.OPENED
    )
    assert (
        judged(spot, replace(node, phase="HEALED", ended_at=T + 5)).outcome is Outcome.OPENED
    )  # a new session


def test_a_fault_after_the_reboot_goes_on_to_replacement() -> None:
    node = active("REBOOT", acts={"reboot": T - 5})
    echo, back = signal("agent_sxid_fatal", time=T), signal("agent_sxid_fatal", time=T + 300)
    assert not judged(echo, node).raises
    end = judged(back, node)
    assert (end.outcome, end.action, end.rule, end.raises) == (
        Outcome.JOINED,
        "REPLACE",
        "reboot-did-not-cure",
        True,
    )
    before = active("REBOOT", acts={"reboot": T - 500}, opened_at=T - 10)
    assert not judged(back, before).raises  # that reboot was another session's


@pytest.mark.parametrize(
    ("name", "kind", "code", "cancels"),
    [
        ("hyperpod_healthy", "node_health", "NvidiaErrorReboot/reboot", True),
        ("hyperpod_healthy", "xid", "48", False),
        ("hyperpod_healthy", "health_issue", "AWS_EC2_INSTANCE_STORE_DRIVE_PERFORMANCE_DEGRADED", False),
        ("alarm_ok", "status_check", "StatusCheckFailed_System", True),
        ("alarm_ok", "status_check", "StatusCheckFailed_Instance", False),
        ("health_retirement_closed", "scheduled_event", "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED", True),
        ("health_retirement_closed", "scheduled_event", "AWS_EC2_INSTANCE_STOP_SCHEDULED", False),
        ("agent_node_ready", "node_ready", "failed", False),
        ("agent_node_ready", "xid", "48", False),
    ],
)
def test_a_healthy_report_takes_back_its_own_session_only(
    name: str, kind: str, code: str, cancels: bool
) -> None:
    end = judged(name, active("REBOOT", kind, code))
    assert (end.outcome, end.action) == (Outcome.JOINED, Action.MONITOR)
    assert (end.cancels, end.raises) == (cancels, False)


def test_a_healthy_report_is_too_late_after_a_destructive_act() -> None:
    node = active("REPLACE", "node_health", "NvidiaErrorTerminate/replace")
    assert judged("hyperpod_healthy", replace(node, acts={"launch": T - 2})).cancels
    assert not judged("hyperpod_healthy", replace(node, acts={"reboot": T - 2})).cancels
    assert judged("hyperpod_healthy", replace(node, acts={"reboot": T - 500})).cancels


def test_a_healthy_report_from_before_the_fault_takes_nothing_back() -> None:
    node = active(
        "REPLACE", "node_health", "NvidiaErrorTerminate/replace", detected_at=T + 30, opened_at=T + 31
    )
    assert not judged("hyperpod_healthy", node).cancels


# --- jobs, persons, modes --------------------------------------------------------------------------------


def test_a_crashed_process_opens_the_resume_and_touches_no_node() -> None:
    end = judged("agent_job_exit", IDLE)
    assert (end.outcome, end.action, end.rule, end.job_id) == (Outcome.OPENED, "MONITOR", "job-exit", "gpt")
    assert end.fault is not None
    assert end.fault.attempt == 2


def test_a_crashed_process_on_a_failing_node_is_evidence() -> None:
    end = judged("agent_job_exit", active("REPLACE"))
    assert (end.outcome, end.job_id, end.raises) == (Outcome.JOINED, "gpt", False)


def test_a_crash_right_after_a_heal_is_not_lost() -> None:
    assert judged(signal("agent_job_exit", time=T - 60), ENDED).outcome is Outcome.OPENED


def test_a_termination_that_a_person_asked_for() -> None:
    asked = signal("ec2_state_terminated", evidence={"state_reason": "Client.UserInitiatedShutdown"})
    end = judged(asked, IDLE)
    assert (end.outcome, end.rule, end.tells_gone) == (Outcome.OBSERVED, "asked-by-a-person", True)
    short = replace(asked, evidence={**asked.evidence, "below_size": True})
    assert judged(short, IDLE).outcome is Outcome.OPENED
    taken = replace(asked, evidence={"state_reason": "Server.SpotInstanceTermination"})
    assert judged(taken, IDLE).outcome is Outcome.OPENED


def test_observe_mode_uses_the_same_words() -> None:
    end = judged("ec2_spot_terminate", IDLE, policy=Policy(mode=Mode.OBSERVE))
    assert (end.outcome, end.action, end.mode) == (Outcome.OPENED, "REPLACE", Mode.OBSERVE)
    assert judged("ec2_spot_terminate", IDLE).mode is Mode.ACT


def test_a_replayed_event_is_judged_in_observe_mode() -> None:
    assert judged("ec2_spot_replayed", IDLE).mode is Mode.OBSERVE


def test_single_gpus_are_reset_where_policy_allows() -> None:
    xid = signal("agent_xid_13", code="48")
    assert judged(xid, IDLE).action is Action.REBOOT
    assert judged(xid, IDLE, policy=Policy(gpu_reset=True)).action is Action.RESET


@pytest.mark.parametrize(
    ("name", "detector"),
    [
        ("ec2_spot_terminate", "ec2"),
        ("health_store_drive_backup", "health"),
        ("hyperpod_replace", "hyperpod"),
        ("alarm_system", "ec2_status"),
        ("agent_xid_79", "agent_xid"),
        ("agent_other_probe", "agent"),
        ("sweep_terminated_by_spot", "ec2"),
        ("gameday_spot", "ec2"),
    ],
)
def test_the_detector_can_name_a_map_of_the_breaker(name: str, detector: str) -> None:
    end = judged(name, IDLE)
    assert end.fault is not None
    assert end.fault.detector == detector
    assert detector.replace("_", "").isalnum()


def test_a_fault_after_the_sessions_own_reboot_is_judged_afresh_even_when_told_late() -> None:
    """Triage was killed and the event came back when the reboot's session had ended."""
    policy = Policy.default()
    reboot = T - 2 * policy.boot_timeout_seconds

    def after(rebooted: float) -> NodeView:
        acts = {"reboot": rebooted}
        return NodeView(A, phase="HEALED", action="REBOOT", opened_at=rebooted - 5, acts=acts, ended_at=T + 9)

    assert judged("agent_xid_79", after(reboot)).outcome is Outcome.OPENED
    assert judged("agent_xid_79", after(T - 1)).outcome is Outcome.STALE
