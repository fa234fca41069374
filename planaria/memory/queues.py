"""The Queues port in memory: it keeps what it was told."""


class MemoryQueues:
    """retries: (queue ARN, receipt handle, seconds) in the order of the calls."""

    def __init__(self) -> None:
        self.retries: list[tuple[str, str, int]] = []

    def retry_after(self, queue_arn: str, receipt_handle: str, seconds: int) -> None:
        self.retries.append((queue_arn, receipt_handle, seconds))
