"""What tests of the sandbox's head share."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from planaria.core import tags
from planaria.core.ports import Answer, AnswerState
from planaria.sandbox.emulator import Emulator
from planaria.sandbox.head import HeadConfig

FAKE_RANKS = (sys.executable, str(Path(__file__).with_name("fake_ranks.py")))
BUS = "planaria-demo"


def config(folder: Path, endpoint: str, **more: Any) -> HeadConfig:
    """A head for tests: fast boots, ranks without torch."""
    settings = {"boot_seconds": 0.5, "notice_seconds": 1.0, "rank_command": FAKE_RANKS, **more}
    return HeadConfig(folder=str(folder), cluster="demo", endpoint=endpoint, **settings)


def eventually(look: Callable[[], Any], seconds: float = 15.0, what: str = "") -> Any:
    """The first true value that `look` returns."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or look}; last answer {found!r}")
        time.sleep(0.02)


def done(poll: Callable[[str], Answer], ticket: str) -> dict[str, Any]:
    """The value of a ticket once it is there."""
    answer = eventually(lambda: (a := poll(ticket)).state is not AnswerState.PENDING and a)
    assert answer.state is AnswerState.DONE, answer
    return dict(answer.value)


def launch(emulator: Emulator, name: str, **more: str) -> str:
    """A new instance of the cluster `demo`; `more` are further tags. -> its id."""
    marks = {tags.CLUSTER: "demo", tags.NAME: name, **more}
    answer = emulator.client("ec2").run_instances(
        ImageId="ami-0abcdef1234567890",
        InstanceType="p5.48xlarge",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[
            {"ResourceType": "instance", "Tags": [{"Key": k, "Value": v} for k, v in marks.items()]}
        ],
    )
    return str(answer["Instances"][0]["InstanceId"])


class Mailbox:
    """Every event on Planaria's bus, by way of a rule and a queue."""

    def __init__(self, emulator: Emulator) -> None:
        bus, self._queues = emulator.client("events"), emulator.client("sqs")
        bus.create_event_bus(Name=BUS)
        self._url = self._queues.create_queue(QueueName="all-events")["QueueUrl"]
        facts = self._queues.get_queue_attributes(QueueUrl=self._url, AttributeNames=["QueueArn"])
        bus.put_rule(
            Name="all", EventBusName=BUS, EventPattern=json.dumps({"source": [{"prefix": "planaria"}]})
        )
        target = {"Id": "queue", "Arn": facts["Attributes"]["QueueArn"]}
        bus.put_targets(Rule="all", EventBusName=BUS, Targets=[target])
        self.events: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """All events so far, oldest first."""
        while True:
            answer = self._queues.receive_message(QueueUrl=self._url, MaxNumberOfMessages=10)
            messages = answer.get("Messages", [])
            for message in messages:
                self.events.append(json.loads(message["Body"]))
                self._queues.delete_message(QueueUrl=self._url, ReceiptHandle=message["ReceiptHandle"])
            if not messages:
                return self.events

    def find(self, detail_type: str, **detail: Any) -> list[dict[str, Any]]:
        """Events of this type whose detail holds these values (an underscore in a name means a dash, too)."""
        return [
            event
            for event in self.read()
            if event["detail-type"] == detail_type
            and all(
                event["detail"].get(k, event["detail"].get(k.replace("_", "-"))) == v
                for k, v in detail.items()
            )
        ]

    def wait(self, detail_type: str, seconds: float = 15.0, **detail: Any) -> dict[str, Any]:
        what = f"{detail_type} {detail}"
        found: list[dict[str, Any]] = eventually(lambda: self.find(detail_type, **detail), seconds, what)
        return found[0]
