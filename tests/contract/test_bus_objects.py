"""The small ports: Bus, Objects, Notices and Queues, on their memory twins and on moto."""

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from planaria.aws.eventbridge import EventBridgeBus
from planaria.aws.s3 import S3Objects
from planaria.aws.sns import SnsNotices
from planaria.aws.sqs import SqsQueues
from planaria.core.errors import PlanariaError, TransientError
from planaria.core.ports import Objects
from planaria.memory.objects import MemoryObjects
from planaria.memory.queues import MemoryQueues
from planaria.memory.workflows import MemoryBus


@pytest.fixture(params=["memory", "moto"])
def objects(request: pytest.FixtureRequest) -> Iterator[Objects]:
    if request.param == "memory":
        yield MemoryObjects()
        return
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="planaria-demo-events")
        yield S3Objects(client, "planaria-demo-events")


def test_an_object_comes_back_and_the_last_one_stays(objects: Objects) -> None:
    objects.put("events/ü.json", b"one")
    objects.put("events/ü.json", b"two")
    assert objects.get("events/ü.json") == b"two"


def test_an_object_that_is_not_there_is_an_error_of_ours(objects: Objects) -> None:
    with pytest.raises(PlanariaError, match="NoSuchKey"):
        objects.get("events/none.json")


class Events:
    """A client of EventBridge that keeps its requests; `fail`: number of the request whose entry fails."""

    def __init__(self, fail: int = 0) -> None:
        self.requests: list[list[dict[str, Any]]] = []
        self._fail = fail

    def put_events(self, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803  boto3's own name
        self.requests.append(Entries)
        failed = {"ErrorCode": "ThrottlingException", "ErrorMessage": "slow down"}
        return {
            "Entries": [failed if len(self.requests) == self._fail else {"EventId": "1"} for _ in Entries]
        }


def test_events_go_out_ten_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    details = [{"instance-id": f"i-{number}"} for number in range(23)]
    client, twin = Events(), MemoryBus()
    for bus in (EventBridgeBus(client, "planaria-demo"), twin):
        bus.put("planaria.sweep", "EC2 Instance State-change Notification", details)
    assert [len(request) for request in client.requests] == [10, 10, 3]
    sent = [json.loads(entry["Detail"]) for request in client.requests for entry in request]
    assert sent == details == [detail for _, _, detail in twin.events]
    assert {entry["EventBusName"] for entry in client.requests[0]} == {"planaria-demo"}


def test_one_event_that_was_not_taken_fails_the_call() -> None:
    bus = EventBridgeBus(Events(fail=2), "planaria-demo")
    with pytest.raises(TransientError, match="ThrottlingException"):
        bus.put("planaria.sweep", "x", [{}] * 11)


def test_no_event_is_no_call() -> None:
    client = Events()
    EventBridgeBus(client, "planaria-demo").put("planaria.sweep", "x", [])
    assert client.requests == []


def test_a_notice_has_one_short_line_of_ascii_as_its_subject() -> None:
    """SNS refuses any other subject, and a refused mail is a person who never hears."""
    sent: list[dict[str, Any]] = []

    class Client:
        def publish(self, **arguments: Any) -> None:
            sent.append(arguments)

    SnsNotices(Client(), "arn:aws:sns:us-east-1:111122223333:t").publish(
        "Planaria démo:\n" + "x" * 200, "Why: ü"
    )
    assert len(sent[0]["Subject"]) == 100 and sent[0]["Subject"].startswith("Planaria d?mo: xxx")
    assert sent[0]["Message"] == "Why: ü"


@mock_aws
def test_a_message_is_seen_again_soon() -> None:
    client = boto3.client("sqs", region_name="us-east-1")
    url = client.create_queue(QueueName="planaria-demo-urgent", Attributes={"VisibilityTimeout": "60"})[
        "QueueUrl"
    ]
    arn = client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    client.send_message(QueueUrl=url, MessageBody="{}")
    [message] = client.receive_message(QueueUrl=url)["Messages"]
    assert "Messages" not in client.receive_message(QueueUrl=url)
    for queues in (SqsQueues(client), MemoryQueues()):
        queues.retry_after(arn, message["ReceiptHandle"], 0)
    assert client.receive_message(QueueUrl=url)["Messages"][0]["MessageId"] == message["MessageId"]


@mock_aws
def test_a_queue_that_is_not_there_is_an_error_of_ours() -> None:
    client = boto3.client("sqs", region_name="us-east-1")
    with pytest.raises(PlanariaError):
        SqsQueues(client).retry_after("arn:aws:sqs:us-east-1:123456789012:none", "r", 2)
