"""Every rule of the default bus against recorded events, asked of the emulator's TestEventPattern."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra import patterns

MACHINE = "arn:aws:states:us-east-1:111122223333:stateMachine:planaria-demo-heal_node"
RULES = patterns.default_bus([MACHINE])
EVENTS = Path(__file__).parents[1] / "events"
SHARED = Path(__file__).parents[3] / "shared/events"

# One rule per event of AWS that names a node or its reservation; None for what must not reach triage.
EXPECTED: dict[str, str | None] = {
    "ec2_spot_terminate": "spot-interruption",
    "ec2_spot_hibernate": "spot-interruption",
    "ec2_rebalance": "rebalance",
    "ec2_state_pending": None,
    "ec2_state_running": None,
    "ec2_state_stopping": "state-change",
    "ec2_state_stopped": "state-change",
    "ec2_state_shutting_down": "state-change",
    "ec2_state_terminated": "state-change",
    "capacity_interruption": "capacity-interruption",
    "capacity_interruptible_interruption": "capacity-interruption",
    "capacity_block_delivered": None,
    "capacity_future_scheduled": None,
    "capacity_block_expiration_title": "capacity-block-end",
    "health_retirement_several": "health",
    "health_retirement_bare_id": "health",
    "health_store_drive_backup": "health",
    "health_odcr_underutilization": None,
    "health_other_service": None,
    "hyperpod_reboot": "hyperpod-node-health",
    "hyperpod_healthy": "hyperpod-node-health",
    "hyperpod_no_capacity": "hyperpod-cluster",
    "hyperpod_cluster_state": None,
    "alarm_system": "status-check-alarm",
    "alarm_ok": "status-check-alarm",
    "alarm_cpu": None,
    "alarm_insufficient_data": None,
    "unknown_pretender": None,
    "gameday_spot": None,
    "agent_xid_79": None,
}
EXPECTED_SHARED: dict[str, str | None] = {
    "autoscaling_terminate_lifecycle": None,
    "cloudwatch_alarm_status_check_failed": "status-check-alarm",
    "ec2_rebalance_recommendation": "rebalance",
    "ec2_spot_interruption_warning": "spot-interruption",
    "ec2_state_change_pending": None,
    "ec2_state_change_running": None,
    "ec2_state_change_shutting_down": "state-change",
    "ec2_state_change_stopped": "state-change",
    "ec2_state_change_stopping": "state-change",
    "ec2_state_change_terminated": "state-change",
    "health_instance_retirement_scheduled": "health",
    "health_odcr_underutilization": None,
    "health_store_drive_degraded": "health",
    "hyperpod_cluster_event_no_capacity": "hyperpod-cluster",
    "hyperpod_node_healthy": "hyperpod-node-health",
    "hyperpod_node_unhealthy": "hyperpod-node-health",
}

Matches = Callable[[dict[str, Any]], list[str]]


@pytest.fixture(scope="module")
def matches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matches]:
    pytest.importorskip("ministack", reason="the emulator is not installed")
    from planaria.sandbox import emulator

    with emulator.start(tmp_path_factory.mktemp("patterns") / "emulator") as running:
        client = running.client("events")

        def ask(event: dict[str, Any]) -> list[str]:
            text = json.dumps(event)
            answers = {
                rule.name: client.test_event_pattern(EventPattern=json.dumps(rule.pattern()), Event=text)
                for rule in RULES
            }
            return [name for name, answer in answers.items() if answer["Result"]]

        yield ask


def _event(path: Path) -> dict[str, Any]:
    event = json.loads(path.read_text())
    defaults = {"id": "1", "account": "111122223333", "time": "2026-11-02T09:14:05Z", "region": "us-east-1"}
    return {**defaults, "resources": [], **event}


@pytest.mark.parametrize(("name", "rule"), EXPECTED.items(), ids=EXPECTED)
def test_a_recorded_event_reaches_its_rule_alone(matches: Matches, name: str, rule: str | None) -> None:
    assert matches(_event(EVENTS / f"{name}.json")) == ([rule] if rule else [])


@pytest.mark.skipif(not SHARED.exists(), reason="no folder of further recorded events beside the repository")
@pytest.mark.parametrize(("name", "rule"), EXPECTED_SHARED.items(), ids=EXPECTED_SHARED)
def test_a_further_recorded_event_reaches_its_rule_alone(
    matches: Matches, name: str, rule: str | None
) -> None:
    assert matches(_event(SHARED / f"{name}.json")) == ([rule] if rule else [])


@pytest.mark.parametrize(
    ("status", "machine", "rule"),
    [
        ("FAILED", MACHINE, "execution-ended"),
        ("TIMED_OUT", MACHINE, "execution-ended"),
        ("ABORTED", MACHINE, "execution-ended"),
        ("SUCCEEDED", MACHINE, None),
        ("RUNNING", MACHINE, None),
        ("FAILED", MACHINE.replace("planaria-demo", "someone-elses"), None),
    ],
)
def test_ended_executions_of_ours_alone_reach_sweep(
    matches: Matches, status: str, machine: str, rule: str | None
) -> None:
    event = {
        "id": "1",
        "account": "111122223333",
        "time": "2026-11-02T09:14:05Z",
        "region": "us-east-1",
        "resources": [],
        "source": "aws.states",
        "detail-type": "Step Functions Execution Status Change",
        "detail": {"status": status, "stateMachineArn": machine, "name": "heal-x"},
    }
    assert matches(event) == ([rule] if rule else [])


def test_no_rule_of_the_default_bus_lacks_a_positive_event() -> None:
    covered = {rule for rule in EXPECTED.values() if rule} | {"execution-ended"}
    assert covered == {rule.name for rule in RULES}
