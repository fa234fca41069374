"""redrive: out of the dead-letter queues through triage again, and no message is ever lost."""

import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from planaria.cli import redrive
from tests.cli.conftest import Bench

LANES = ("urgent", "normal", "rules")


@pytest.fixture
def sqs(bench: Bench) -> Iterator[Any]:
    with mock_aws():
        client = boto3.client("sqs", region_name="us-east-1")
        for name in ("urgent", "normal", "urgent-dlq", "normal-dlq", "rules-dlq"):
            client.create_queue(QueueName=f"planaria-demo-{name}")
        bench.clients["sqs"] = client
        yield client


def _put(sqs: Any, queue: str, *bodies: str, **attributes: str) -> None:
    for body in bodies:
        sqs.send_message(
            QueueUrl=_url(sqs, queue),
            MessageBody=body,
            MessageAttributes={
                name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()
            },
        )


def _url(sqs: Any, queue: str) -> str:
    return str(sqs.get_queue_url(QueueName=f"planaria-demo-{queue}")["QueueUrl"])


def _bodies(sqs: Any, queue: str) -> list[str]:
    found: list[str] = []
    while messages := sqs.receive_message(QueueUrl=_url(sqs, queue), MaxNumberOfMessages=10).get("Messages"):
        found += [message["Body"] for message in messages]
    return sorted(found)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive, "EMPTY_RECEIVES", 1)
    monkeypatch.setattr(redrive, "WAIT_SECONDS", 0)


def test_empty_queues_are_no_failure(bench: Bench, sqs: Any) -> None:
    answer = bench.run("redrive")
    assert answer.status == 0
    assert "every event has its outcome" in answer.out


def test_every_message_goes_to_its_own_queue(bench: Bench, sqs: Any) -> None:
    _put(sqs, "urgent-dlq", *(f"u{number:02d}" for number in range(25)))
    _put(sqs, "normal-dlq", "n1", "n2")
    answer = bench.run("redrive", "--json")
    assert answer.json == [
        {"queue": "planaria-demo-urgent-dlq", "moved": 25, "failed": 0},
        {"queue": "planaria-demo-normal-dlq", "moved": 2, "failed": 0},
        {"queue": "planaria-demo-rules-dlq", "moved": 0, "failed": 0},
    ]
    assert _bodies(sqs, "urgent") == [f"u{number:02d}" for number in range(25)]
    assert _bodies(sqs, "normal") == ["n1", "n2"]
    assert [_bodies(sqs, f"{lane}-dlq") for lane in LANES] == [[], [], []]


def test_what_no_rule_could_deliver_goes_where_the_rule_meant_it_to(bench: Bench, sqs: Any) -> None:
    _put(sqs, "rules-dlq", "spot", TARGET_ARN="arn:aws:sqs:us-east-1:000000000000:planaria-demo-urgent")
    _put(sqs, "rules-dlq", "alarm", TARGET_ARN="arn:aws:sqs:us-east-1:000000000000:planaria-demo-normal")
    _put(sqs, "rules-dlq", "sweep", TARGET_ARN="arn:aws:lambda:us-east-1:000000000000:function:x")
    _put(sqs, "rules-dlq", "bare")
    bench.run("redrive", "--queue", "rules")
    assert _bodies(sqs, "urgent") == ["spot"]
    assert _bodies(sqs, "normal") == ["alarm", "bare", "sweep"]


def test_one_queue_alone_and_a_limit(bench: Bench, sqs: Any) -> None:
    _put(sqs, "urgent-dlq", *"abcde")
    _put(sqs, "normal-dlq", "n")
    assert bench.run("redrive", "--queue", "urgent", "--limit", "2", "--json").json[0]["moved"] == 2
    assert len(_bodies(sqs, "urgent")) == 2
    assert _bodies(sqs, "normal-dlq") == ["n"]


def test_the_limit_is_over_all_queues(bench: Bench, sqs: Any) -> None:
    _put(sqs, "urgent-dlq", "a", "b")
    _put(sqs, "normal-dlq", "c", "d")
    assert [each["moved"] for each in bench.run("redrive", "--limit", "3", "--json").json] == [2, 1, 0]


class _Refusing:
    """SQS that fails in one call, at the n-th time it is made."""

    def __init__(self, sqs: Any, operation: str, code: str, at: int) -> None:
        self._sqs, self._operation, self._code, self._at = sqs, operation, code, at
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._sqs, name)
        if name != self._operation:
            return real

        def call(**arguments: Any) -> Any:
            self._calls += 1
            if self._calls == self._at:
                raise ClientError({"Error": {"Code": self._code, "Message": "no"}}, name)
            return real(**arguments)

        return call


def test_what_cannot_be_sent_stays_where_it_is(bench: Bench, sqs: Any) -> None:
    _put(sqs, "urgent-dlq", "a", "b", "c")
    bench.clients["sqs"] = _Refusing(sqs, "send_message", "InvalidParameterValue", 2)
    answer = bench.run("redrive", "--queue", "urgent", "--json")
    assert answer.status == 1
    assert answer.json == [{"queue": "planaria-demo-urgent-dlq", "moved": 2, "failed": 1}]
    assert "1 message could not be sent" in answer.err
    assert sorted(_bodies(sqs, "urgent") + _bodies(sqs, "urgent-dlq")) == ["a", "b", "c"]


@pytest.mark.parametrize("operation", ["send_message", "delete_message"])
def test_a_crash_between_send_and_delete_loses_nothing(bench: Bench, sqs: Any, operation: str) -> None:
    _put(sqs, "urgent-dlq", "a", "b", "c")
    bench.clients["sqs"] = _Refusing(sqs, operation, "InternalError", 2)
    answer = bench.run("redrive", "--queue", "urgent")
    assert answer.status == 1
    assert answer.err.count("\n") == 1
    url = _url(sqs, "urgent-dlq")
    hidden = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    left = int(hidden["ApproximateNumberOfMessagesNotVisible"]) + int(hidden["ApproximateNumberOfMessages"])
    assert left == 2
    assert set(_bodies(sqs, "urgent")) >= {"a"}


def test_what_fails_again_meanwhile_is_not_moved_in_circles(bench: Bench, sqs: Any) -> None:
    _put(sqs, "urgent-dlq", "poison")

    class Circle:
        """Triage fails at once: what is sent is in the dead-letter queue again."""

        def __getattr__(self, name: str) -> Any:
            return getattr(sqs, name)

        def send_message(self, **arguments: Any) -> Any:
            time.sleep(1.0)  # the times that SQS gives are whole seconds
            return sqs.send_message(**(arguments | {"QueueUrl": _url(sqs, "urgent-dlq")}))

    bench.clients["sqs"] = Circle()
    assert bench.run("redrive", "--queue", "urgent", "--json").json[0]["moved"] == 1
    assert _bodies(sqs, "urgent-dlq") == ["poison"]


def test_a_clock_of_ours_that_is_wrong_changes_nothing(
    bench: Bench, sqs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put(sqs, "urgent-dlq", "a")
    monkeypatch.setattr(redrive, "time", SimpleNamespace(time=lambda: 0.0))
    assert bench.run("redrive", "--queue", "urgent", "--json").json[0]["moved"] == 1


def test_a_cluster_that_is_not_deployed(bench: Bench, sqs: Any) -> None:
    answer = bench.run("redrive", "--cluster", "other")
    assert answer.status == 1
    assert "not deployed" in answer.err


def test_an_unknown_queue_is_bad_input(bench: Bench, sqs: Any) -> None:
    answer = bench.run("redrive", "--queue", "urgnt")
    assert (answer.status, answer.out) == (2, "")
    assert json.dumps(answer.err).count("urgnt") == 1
