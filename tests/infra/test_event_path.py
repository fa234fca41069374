"""Queues, dead-letter queues, rules, mappings and alarms."""

import json
from typing import Any

import pytest

import app as planaria_app
from infra import patterns
from infra.asl import MACHINES
from infra.functions import NAMES
from tests.infra.conftest import Variant, text

DAY = 24 * 3600


def test_queues(aws: Variant) -> None:
    queues = aws.properties("AWS::SQS::Queue", "QueueName")
    lanes = {"planaria-demo-urgent", "planaria-demo-normal"}
    dead = {"planaria-demo-urgent-dlq", "planaria-demo-normal-dlq", "planaria-demo-rules-dlq"}
    assert set(queues) == lanes | dead
    for name, properties in queues.items():
        assert properties["MessageRetentionPeriod"] == 14 * DAY
        assert properties["SqsManagedSseEnabled"] is True
        if name in lanes:
            assert properties["VisibilityTimeout"] == 60
            assert properties["RedrivePolicy"]["maxReceiveCount"] >= 5
            own = next(
                k
                for k, q in aws.of("AWS::SQS::Queue").items()
                if q["Properties"]["QueueName"] == name + "-dlq"
            )
            assert text(properties["RedrivePolicy"]["deadLetterTargetArn"]) == f"<{own}.Arn>"


def test_every_queue_refuses_plain_http(aws: Variant) -> None:
    guarded = set()
    for policy in aws.of("AWS::SQS::QueuePolicy").values():
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]:
            if statement["Effect"] == "Deny":
                assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
                guarded |= {text(queue) for queue in policy["Properties"]["Queues"]}
    assert guarded == {f"<{name}>" for name in aws.of("AWS::SQS::Queue")}


@pytest.mark.parametrize(("lane", "batch", "window"), [("urgent", 10, 0), ("normal", 100, 1)])
def test_mappings(aws: Variant, lane: str, batch: int, window: int) -> None:
    arn = next(
        f"<{k}.Arn>"
        for k, q in aws.of("AWS::SQS::Queue").items()
        if q["Properties"]["QueueName"] == f"planaria-demo-{lane}"
    )
    (mapping,) = (
        m["Properties"]
        for m in aws.of("AWS::Lambda::EventSourceMapping").values()
        if text(m["Properties"]["EventSourceArn"]) == arn
    )
    assert mapping["BatchSize"] == batch
    assert mapping["MaximumBatchingWindowInSeconds"] == window
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    triage = aws.properties("AWS::Lambda::Function", "FunctionName")["planaria-demo-triage"]
    assert triage["Timeout"] == 10


def _rules(variant: Variant) -> dict[str, dict[str, Any]]:
    return variant.properties("AWS::Events::Rule", "Name")


def test_rules_of_the_default_bus(aws: Variant) -> None:
    default = {name for name, rule in _rules(aws).items() if "EventBusName" not in rule}
    wanted = {f"planaria-demo-{rule.name}" for rule in patterns.default_bus([])}
    assert default == wanted | {"planaria-demo-every-minute"}
    assert _rules(aws)["planaria-demo-every-minute"]["ScheduleExpression"] == "rate(1 minute)"


def test_rules_of_the_own_bus(aws: Variant) -> None:
    own = {name for name, rule in _rules(aws).items() if "EventBusName" in rule}
    assert own == {f"planaria-demo-{rule.name}" for rule in (*patterns.AGENTS, patterns.SWEEP)}


def test_every_rule_delivers_to_its_lane(gameday: Variant) -> None:
    queues = {
        f"<{k}.Arn>": q["Properties"]["QueueName"].removeprefix("planaria-demo-")
        for k, q in gameday.of("AWS::SQS::Queue").items()
    }
    reached = {
        name.removeprefix("planaria-demo-"): queues.get(text(rule["Targets"][0]["Arn"]), "sweep")
        for name, rule in _rules(gameday).items()
        if "EventPattern" in rule
    }
    table = (*patterns.default_bus([]), *patterns.own_bus([], True))
    assert reached == {rule.name: rule.lane.value for rule in table}


def test_every_target_has_dead_letters_and_a_bounded_retry(gameday: Variant) -> None:
    undelivered = next(
        k
        for k, q in gameday.of("AWS::SQS::Queue").items()
        if q["Properties"]["QueueName"] == "planaria-demo-rules-dlq"
    )
    for rule in _rules(gameday).values():
        assert rule["State"] == "ENABLED"
        for target in rule["Targets"]:
            assert text(target["DeadLetterConfig"]["Arn"]) == f"<{undelivered}.Arn>"
            assert 60 <= target["RetryPolicy"]["MaximumEventAgeInSeconds"] <= 3600


def test_rules_may_deliver_to_exactly_their_queues(gameday: Variant) -> None:
    targets: dict[str, set[str]] = {}
    for name, rule in gameday.of("AWS::Events::Rule").items():
        for target in rule["Properties"]["Targets"]:
            for arn in (text(target["Arn"]), text(target["DeadLetterConfig"]["Arn"])):
                targets.setdefault(arn, set()).add(f"<{name}.Arn>")
    for policy in gameday.of("AWS::SQS::QueuePolicy").values():
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]:
            if statement["Effect"] == "Allow":
                assert statement["Principal"] == {"Service": "events.amazonaws.com"}
                assert statement["Action"] == "sqs:SendMessage"
                allowed = {text(arn) for arn in statement["Condition"]["ArnEquals"]["aws:SourceArn"]}
                assert allowed == targets[text(statement["Resource"])]


def test_patterns_use_the_wire_key(gameday: Variant) -> None:
    for name, rule in _rules(gameday).items():
        if "EventPattern" not in rule:
            continue
        assert set(rule["EventPattern"]) <= {"source", "detail-type", "detail"}, name
        assert rule["EventPattern"]["source"], name
    assert all(
        "detail-type" in _rules(gameday)[f"planaria-demo-{r.name}"]["EventPattern"]
        for r in patterns.DEFAULT_BUS
    )


def test_game_day_twins_differ_by_source_alone(aws: Variant, gameday: Variant) -> None:
    assert not any("gameday" in json.dumps(rule) for rule in _rules(aws).values())
    twins = {name: rule for name, rule in _rules(gameday).items() if "-gameday-" in name}
    assert len(twins) == len(patterns.default_bus([]))
    for name, twin in twins.items():
        original = _rules(gameday)[name.replace("-gameday-", "-")]
        assert "EventBusName" in twin
        assert twin["EventPattern"]["source"] == ["planaria.gameday"]
        assert {**twin["EventPattern"], "source": original["EventPattern"]["source"]} == original[
            "EventPattern"
        ]
        assert twin["Targets"] == original["Targets"]


def test_ended_executions_of_our_machines_reach_sweep(aws: Variant) -> None:
    rule = _rules(aws)["planaria-demo-execution-ended"]
    detail = rule["EventPattern"]["detail"]
    assert detail["status"] == ["FAILED", "TIMED_OUT", "ABORTED"]
    names = {text(arn).rpartition(":")[2] for arn in detail["stateMachineArn"]}
    assert names == {f"planaria-demo-{machine}" for machine in MACHINES}
    sweep = next(
        f"<{k}.Arn>"
        for k, f in aws.of("AWS::Lambda::Function").items()
        if f["Properties"]["FunctionName"] == "planaria-demo-sweep"
    )
    assert [text(target["Arn"]) for target in rule["Targets"]] == [sweep]
    invokers = {text(p["Properties"]["SourceArn"]) for p in aws.of("AWS::Lambda::Permission").values()}
    rules = {
        f"<{k}.Arn>"
        for k, r in aws.of("AWS::Events::Rule").items()
        if text(r["Properties"]["Targets"][0]["Arn"]) == sweep
    }
    assert invokers == rules


def test_alarms(aws: Variant) -> None:
    alarms = aws.properties("AWS::CloudWatch::Alarm", "AlarmName")
    topic = next(iter(aws.of("AWS::SNS::Topic")))
    wanted = {f"{queue}-dlq" for queue in ("urgent", "normal", "rules")}
    wanted |= {"urgent-late", "normal-late", "triage-throttles", "sweep-throttles"}
    wanted |= {f"{name}-errors" for name in NAMES}
    wanted |= {f"{machine}-{end}" for machine in MACHINES for end in ("failed", "timed-out", "aborted")}
    assert set(alarms) == {f"planaria-demo-{name}" for name in wanted}
    for alarm in alarms.values():
        assert [text(action) for action in alarm["AlarmActions"]] == [f"<{topic}>"]
        assert alarm["TreatMissingData"] == "notBreaching"
        page = str(alarm["AlarmDescription"]).partition("Runbook: ")[2]
        assert page and (planaria_app.ROOT / page).is_file(), alarm["AlarmDescription"]
    watched = {text(a["Dimensions"][0]["Value"]) for n, a in alarms.items() if n.endswith("-dlq")}
    dead = {
        f"<{k}.QueueName>"
        for k, q in aws.of("AWS::SQS::Queue").items()
        if "RedrivePolicy" not in q["Properties"]
    }
    assert watched == dead


def test_topic_is_encrypted_and_refuses_plain_http(aws: Variant) -> None:
    (topic,) = aws.of("AWS::SNS::Topic").values()
    assert "KmsMasterKeyId" in topic["Properties"]
    (policy,) = aws.of("AWS::SNS::TopicPolicy").values()
    refused = [s for s in policy["Properties"]["PolicyDocument"]["Statement"] if s["Effect"] == "Deny"]
    assert [s["Condition"] for s in refused] == [{"Bool": {"aws:SecureTransport": "false"}}]
    (key,) = aws.of("AWS::KMS::Key").values()
    assert key["Properties"]["EnableKeyRotation"] is True
