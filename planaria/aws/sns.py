"""The Notices port on SNS."""

from typing import Any

from planaria.aws.errors import translated


class SnsNotices:
    """client: a boto3 sns client; topic: its ARN."""

    def __init__(self, client: Any, topic: str) -> None:
        self._client = client
        self._topic = topic

    def publish(self, subject: str, text: str) -> None:
        """Subjects are at most 100 ASCII characters on one line."""
        line = subject.encode("ascii", "replace").decode().replace("\n", " ")[:100]
        with translated():
            self._client.publish(TopicArn=self._topic, Subject=line, Message=text)
