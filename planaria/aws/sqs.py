"""The Queues port on SQS."""

from typing import Any

from planaria.aws.errors import translated


class SqsQueues:
    """client: a boto3 sqs client."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._urls: dict[str, str] = {}

    def retry_after(self, queue_arn: str, receipt_handle: str, seconds: int) -> None:
        if queue_arn not in self._urls:
            account, name = queue_arn.split(":")[4:6]
            with translated():
                answer = self._client.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account)
            self._urls[queue_arn] = answer["QueueUrl"]
        with translated():
            self._client.change_message_visibility(
                QueueUrl=self._urls[queue_arn], ReceiptHandle=receipt_handle, VisibilityTimeout=seconds
            )
