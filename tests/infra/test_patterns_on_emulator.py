"""Every rule that `cdk synth` writes, against recorded events, asked of the emulator's TestEventPattern.

tests/events/rules.csv says which rule an event reaches: one of the default bus for events of AWS, one of
Planaria's own bus for all others. No event may reach two.
"""

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra import patterns
from infra.patterns import Lane
from tests.infra.conftest import Variant, text

EVENTS = Path(__file__).parents[1] / "events"
SHARED = Path(__file__).parents[3] / "shared/events"
A = "i-0aaaaaaaaaaaaaaa1"
AGENT = f"planaria.node/AROASAMPLE:{A}"

with (EVENTS / "rules.csv").open() as lines:
    EXPECTED = {row["file"]: row["rule"] for row in csv.DictReader(lines)}

EXPECTED_SHARED: dict[str, str] = {
    "autoscaling_terminate_lifecycle": "autoscaling-terminate",
    "cloudwatch_alarm_status_check_failed": "status-check-alarm",
    "ec2_rebalance_recommendation": "rebalance",
    "ec2_spot_interruption_warning": "spot-interruption",
    "ec2_state_change_pending": "",
    "ec2_state_change_running": "",
    "ec2_state_change_shutting_down": "state-change",
    "ec2_state_change_stopped": "state-change",
    "ec2_state_change_stopping": "state-change",
    "ec2_state_change_terminated": "state-change",
    "health_instance_retirement_scheduled": "health",
    "health_odcr_underutilization": "",
    "health_store_drive_degraded": "health",
    "hyperpod_cluster_event_no_capacity": "hyperpod-cluster",
    "hyperpod_node_healthy": "hyperpod-node-health",
    "hyperpod_node_unhealthy": "hyperpod-node-health",
}

Asks = Callable[[dict[str, Any]], list[str]]


def synthesised(variant: Variant) -> dict[str, dict[str, Any]]:
    """Rule name without the cluster's prefix -> its event pattern, with intrinsics as readable text."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict) and not any(key in value for key in ("Ref", "Fn::Join", "Fn::GetAtt")):
            return {key: plain(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [plain(inner) for inner in value]
        return text(value) if isinstance(value, dict) else value

    rules = variant.properties("AWS::Events::Rule", "Name")
    return {
        name.removeprefix("planaria-demo-"): plain(rule["EventPattern"])
        for name, rule in rules.items()
        if "EventPattern" in rule
    }


@pytest.fixture(scope="module")
def rules(gameday: Variant) -> dict[str, dict[str, Any]]:
    return synthesised(gameday)


@pytest.fixture(scope="module")
def asks(rules: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asks]:
    """An event -> the rules of both buses that it matches."""
    pytest.importorskip("ministack", reason="the emulator is not installed")
    from planaria.sandbox import emulator

    with emulator.start(tmp_path_factory.mktemp("patterns") / "emulator") as running:
        client = running.client("events")

        def ask(event: dict[str, Any]) -> list[str]:
            content = json.dumps(event)
            return [
                name
                for name, pattern in rules.items()
                if client.test_event_pattern(EventPattern=json.dumps(pattern), Event=content)["Result"]
            ]

        yield ask


def _event(path: Path) -> dict[str, Any]:
    """TestEventPattern wants the whole envelope; what AWS's pages leave out stands on the wire."""
    event = json.loads(path.read_text())
    defaults = {"id": "1", "account": "111122223333", "time": "2026-11-02T09:14:05Z", "region": "us-east-1"}
    return {**defaults, "resources": [], **event}


def _own(detail_type: str, detail: Any, source: str = AGENT) -> dict[str, Any]:
    return {
        "id": "1",
        "account": "111122223333",
        "time": "2026-11-02T09:14:05Z",
        "region": "us-east-1",
        "resources": [],
        "source": source,
        "detail-type": detail_type,
        "detail": detail,
    }


def test_every_recorded_event_has_an_expected_rule() -> None:
    assert {path.name for path in EVENTS.glob("*.json")} == set(EXPECTED)


@pytest.mark.parametrize(("name", "rule"), EXPECTED.items(), ids=EXPECTED)
def test_a_recorded_event_reaches_its_rule_alone(asks: Asks, name: str, rule: str) -> None:
    assert asks(_event(EVENTS / name)) == ([rule] if rule else [])


@pytest.mark.skipif(not SHARED.exists(), reason="no folder of further recorded events beside the repository")
@pytest.mark.parametrize(("name", "rule"), EXPECTED_SHARED.items(), ids=EXPECTED_SHARED)
def test_a_further_recorded_event_reaches_its_rule_alone(asks: Asks, name: str, rule: str) -> None:
    assert asks(_event(SHARED / f"{name}.json")) == ([rule] if rule else [])


def test_every_rule_of_aws_has_a_positive_event(rules: dict[str, dict[str, Any]]) -> None:
    covered = set(EXPECTED.values()) - {""} | {"execution-ended"}
    assert covered >= {name for name in rules if not name.startswith("gameday-")}


def test_the_synthesised_patterns_are_those_of_the_table(rules: dict[str, dict[str, Any]]) -> None:
    machines = rules["execution-ended"]["detail"]["stateMachineArn"]
    table = (*patterns.default_bus(machines), *patterns.own_bus(machines, True))
    assert rules == {rule.name: rule.pattern() for rule in table}


@pytest.mark.parametrize("status", ["FAILED", "TIMED_OUT", "ABORTED", "SUCCEEDED", "RUNNING"])
@pytest.mark.parametrize("source", ["aws.states", "planaria.gameday"])
def test_ended_executions_of_ours_alone_reach_sweep(
    asks: Asks, rules: dict[str, dict[str, Any]], status: str, source: str
) -> None:
    ours, title = rules["execution-ended"]["detail"]["stateMachineArn"][0], patterns.EXECUTION_STATUS
    rule = "execution-ended" if source == "aws.states" else "gameday-execution-ended"
    ended = status in ("FAILED", "TIMED_OUT", "ABORTED")
    detail = {"status": status, "stateMachineArn": ours, "name": "heal-x"}
    assert asks(_own(title, detail, source)) == ([rule] if ended else [])
    assert asks(_own(title, {**detail, "stateMachineArn": f"{ours}-of-others"}, source)) == []


def test_the_key_is_detail_type(asks: Asks) -> None:
    event = _event(EVENTS / "ec2_spot_terminate.json")
    event["detail_type"] = event.pop("detail-type")
    assert asks(event) == []


@pytest.mark.parametrize(
    ("detail_type", "detail", "rule"),
    [
        (patterns.SIGNAL, {}, "agent-signal"),
        (patterns.SIGNAL, {"kind": None}, "agent-signal"),
        (patterns.SIGNAL, {"kind": ""}, "agent-signal"),
        (patterns.SIGNAL, {"kind": 79}, "agent-signal"),
        (patterns.SIGNAL, {"kind": {"spot_notice": 1}}, "agent-signal"),
        (patterns.SIGNAL, {"kind": "spot_notice_of_another_kind"}, "agent-signal"),
        (patterns.SIGNAL, {"kind": "rebalance"}, "agent-signal"),
        (patterns.SIGNAL, {"kind": "spot_notice"}, "agent-spot-notice"),
        (patterns.JOB, {}, "agent-exit"),
        (patterns.JOB, {"event": "stepping"}, "agent-exit"),
        (patterns.JOB, {"event": "step"}, "agent-step"),
        (patterns.READY, {}, "agent-ready"),
        ("Planaria Checkpoint Saved", {}, "agent-other"),
        ("EKS Node Monitoring Condition", {}, "agent-other"),
        ("EC2 Spot Instance Interruption Warning", {"instance-id": A}, "agent-other"),
    ],
)
def test_what_an_agent_says_reaches_one_lane_well_formed_or_not(
    asks: Asks, detail_type: str, detail: Any, rule: str
) -> None:
    assert asks(_own(detail_type, detail)) == [rule]


@pytest.mark.parametrize(
    "source", ["planaria.nodeX/a:b", "planaria.node", "planaria.nod", "aws.ec2", "planaria.sweeper", ""]
)
def test_no_other_source_reaches_the_rules_of_agents_and_sweep(asks: Asks, source: str) -> None:
    for detail_type in (patterns.SIGNAL, patterns.READY, patterns.JOB, "Planaria Checkpoint Saved"):
        assert asks(_own(detail_type, {"kind": "spot_notice", "event": "step"}, source)) == []


def test_a_game_day_never_matches_a_rule_of_aws_nor_aws_one_of_a_game_day(
    asks: Asks, rules: dict[str, dict[str, Any]]
) -> None:
    for name in ("ec2_spot_terminate", "ec2_state_terminated", "health_retirement_several", "alarm_system"):
        event = _event(EVENTS / f"{name}.json")
        [rule] = asks(event)
        assert asks({**event, "source": "planaria.gameday"}) == [f"gameday-{rule}"]


def test_nothing_that_a_sick_node_repeats_is_in_the_urgent_lane() -> None:
    urgent = {rule.name for rule in (*patterns.DEFAULT_BUS, *patterns.AGENTS) if rule.lane is Lane.URGENT}
    assert urgent == {
        "spot-interruption", "capacity-interruption", "state-change",
        "agent-spot-notice", "agent-ready", "agent-step",
    }  # fmt: skip
