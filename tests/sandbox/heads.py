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


def config(folder: Path, endpoint: str, cluster: str = "demo", **more: Any) -> HeadConfig:
    """A head for tests: fast boots, ranks without torch."""
    settings = {"boot_seconds": 0.5, "notice_seconds": 1.0, "rank_command": FAKE_RANKS, **more}
    return HeadConfig(folder=str(folder), cluster=cluster, endpoint=endpoint, **settings)


def eventually(look: Callable[[], Any], seconds: float = 15.0, what: str = "") -> Any:
    """The first true value that `look` returns. A look may start programs, so looks become rarer."""
    deadline, pause = time.monotonic() + seconds, 0.02
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or look}; last answer {found!r}")
        time.sleep(pause)
        pause = min(1.2 * pause, 0.2)


def done(poll: Callable[[str], Answer], ticket: str, seconds: float = 15.0) -> dict[str, Any]:
    """The value of a ticket once it is there."""
    answer = eventually(lambda: (a := poll(ticket)).state is not AnswerState.PENDING and a, seconds)
    assert answer.state is AnswerState.DONE, answer
    return dict(answer.value)


def launch(emulator: Emulator, name: str, cluster: str = "demo", **more: str) -> str:
    """A new instance of the cluster; `more` are further tags; without a name it is a spare. -> its id."""
    marks = {tags.CLUSTER: cluster, **({tags.NAME: name} if name else {}), **more}
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
    """Every event on a cluster's bus, by way of a rule and a queue."""

    def __init__(self, emulator: Emulator, cluster: str) -> None:
        bus, self._queues = emulator.client("events"), emulator.client("sqs")
        name = f"planaria-{cluster}"
        bus.create_event_bus(Name=name)
        self._url = self._queues.create_queue(QueueName=f"{name}-all")["QueueUrl"]
        facts = self._queues.get_queue_attributes(QueueUrl=self._url, AttributeNames=["QueueArn"])
        pattern = json.dumps({"source": [{"prefix": "planaria"}]})
        bus.put_rule(Name="all", EventBusName=name, EventPattern=pattern)
        target = {"Id": "queue", "Arn": facts["Attributes"]["QueueArn"]}
        bus.put_targets(Rule="all", EventBusName=name, Targets=[target])
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

        def fits(found: dict[str, Any]) -> bool:
            return all(found.get(k, found.get(k.replace("_", "-"))) == v for k, v in detail.items())

        return [e for e in self.read() if e["detail-type"] == detail_type and fits(e["detail"])]

    def wait(self, detail_type: str, seconds: float = 15.0, **detail: Any) -> dict[str, Any]:
        what = f"{detail_type} {detail}"
        found: list[dict[str, Any]] = eventually(lambda: self.find(detail_type, **detail), seconds, what)
        return found[0]
