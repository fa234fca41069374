"""`planaria redrive`: messages of the dead-letter queues go through triage again."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from planaria.aws.errors import translated
from planaria.cli import options, screen
from planaria.cli.target import connect
from planaria.core.errors import PermanentError

app = typer.Typer()

BATCH = 10
HIDDEN_SECONDS = 120
"""How long a received message is hidden from others; longer than a batch takes."""

WAIT_SECONDS = 1
"""Above 0 SQS asks all of its servers, not some."""

EMPTY_RECEIVES = 2
"""Receives without a message after which a queue counts as empty."""


class Lane(StrEnum):
    """What the dead-letter queues are called after. rules: events that no rule could deliver."""

    URGENT = "urgent"
    NORMAL = "normal"
    RULES = "rules"


@dataclass(slots=True)
class Moved:
    """found: messages the queue said it has, before. failed: left in the dead-letter queue."""

    queue: str
    found: int = 0
    moved: int = 0
    failed: int = 0


@app.command("redrive")
def redrive(
    queue: Annotated[
        Lane | None, typer.Option("--queue", help="This dead-letter queue only.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="At most N messages.")] = 10_000,
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """Send what lies in the dead-letter queues through triage again.

    A message is deleted from its dead-letter queue after it was sent, so none is lost; one that was sent
    twice is a duplicate to triage.

    Example: planaria redrive --queue urgent --limit 100
    """
    target = connect(cluster, folder, aws)
    sqs = target.client("sqs")
    lanes = [queue] if queue is not None else list(Lane)
    with _bar(screen.console(stderr=True)) as advance:
        counts = move_all(sqs, f"planaria-{target.cluster}", lanes, limit, advance)
    if as_json:
        screen.emit([{"queue": c.queue, "moved": c.moved, "failed": c.failed} for c in counts])
    elif not any(c.moved or c.failed for c in counts):
        screen.say("The dead-letter queues are empty: every event has its outcome.", stderr=False)
    else:
        rows = [(c.queue, c.moved, c.failed) for c in counts]
        screen.console().print(screen.table(("DEAD-LETTER QUEUE", "MOVED", "LEFT"), rows))
    left = sum(c.failed for c in counts)
    if left:
        what = "1 message" if left == 1 else f"{left} messages"
        raise PermanentError(f"{what} could not be sent and stay in the dead-letter queue; run this again")


def move_all(
    sqs: Any, prefix: str, lanes: list[Lane], limit: int, advance: Callable[[str, int, int], None]
) -> list[Moved]:
    """sqs: a boto3 client. prefix: of the queues' names. advance(queue, moved now, found) shows progress."""
    counts: list[Moved] = []
    for lane in lanes:
        mover = _Mover(sqs, prefix, lane, advance)
        counts.append(mover.move(limit - sum(c.moved + c.failed for c in counts)))
    return counts


class _Mover:
    def __init__(self, sqs: Any, prefix: str, lane: Lane, advance: Callable[[str, int, int], None]) -> None:
        self._sqs = sqs
        self._prefix = prefix
        self._lane = lane
        self._advance = advance
        self._urls: dict[str, str] = {}
        self._count = Moved(f"{prefix}-{lane}-dlq")

    def move(self, limit: int) -> Moved:
        """Move what lies there now, `limit` messages at most."""
        source = self._url(self._count.queue)
        names = ["ApproximateNumberOfMessages"]
        with translated():
            answer = self._sqs.get_queue_attributes(QueueUrl=source, AttributeNames=names)
        self._count.found = min(limit, int(answer["Attributes"][names[0]]))
        self._advance(self._count.queue, 0, self._count.found)
        began, empty, seen = _server_time(answer), 0, set[str]()
        while empty < EMPTY_RECEIVES and len(seen) < limit:
            messages = self._receive(source, min(BATCH, limit - len(seen)))
            fresh = [m for m in messages if m["MessageId"] not in seen and _sent_at(m) <= began]
            seen |= {m["MessageId"] for m in fresh}
            # What came back meanwhile has failed again: another round would go on for ever.
            self._leave(source, [m for m in messages if m not in fresh])
            empty = 0 if fresh else empty + 1
            if fresh:
                self._send(source, fresh)
        return self._count

    def _receive(self, source: str, most: int) -> list[dict[str, Any]]:
        with translated():
            answer = self._sqs.receive_message(
                QueueUrl=source,
                MaxNumberOfMessages=most,
                VisibilityTimeout=HIDDEN_SECONDS,
                WaitTimeSeconds=WAIT_SECONDS,
                AttributeNames=["SentTimestamp"],
                MessageAttributeNames=["All"],
            )
        return list(answer.get("Messages", []))

    def _send(self, source: str, messages: list[dict[str, Any]]) -> None:
        """Each to its lane, one call each: a body may have 1 MB, which is all that a batch may have."""
        for message in messages:
            try:
                with translated():
                    self._sqs.send_message(
                        QueueUrl=self._url(f"{self._prefix}-{self._target(message)}"),
                        MessageBody=message["Body"],
                    )
            except PermanentError:
                self._count.failed += 1
                self._leave(source, [message])
                continue
            with translated():
                self._sqs.delete_message(QueueUrl=source, ReceiptHandle=message["ReceiptHandle"])
            self._count.moved += 1
            self._advance(self._count.queue, 1, self._count.found)

    def _target(self, message: dict[str, Any]) -> str:
        """A rule that could not deliver says in the attribute TARGET_ARN where to. What was for a Lambda is
        for triage too: it records everything it is given."""
        if self._lane is not Lane.RULES:
            return str(self._lane)
        attribute = message.get("MessageAttributes", {}).get("TARGET_ARN", {})
        urgent = str(attribute.get("StringValue", "")).endswith(f":{self._prefix}-{Lane.URGENT}")
        return str(Lane.URGENT if urgent else Lane.NORMAL)

    def _leave(self, source: str, messages: list[dict[str, Any]]) -> None:
        """Let others see these messages at once."""
        for message in messages:
            with translated():
                self._sqs.change_message_visibility(
                    QueueUrl=source, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
                )

    def _url(self, name: str) -> str:
        if name not in self._urls:
            with translated():
                self._urls[name] = self._sqs.get_queue_url(QueueName=name)["QueueUrl"]
        return self._urls[name]


def _server_time(answer: dict[str, Any]) -> float:
    """The end of the second in which SQS answered, by its own clock: ours may be minutes off."""
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        return parsedate_to_datetime(date).timestamp() + 0.999
    except ValueError:
        return time.time()


def _sent_at(message: dict[str, Any]) -> float:
    """When the message came into this queue, epoch seconds; 0 when it is not said."""
    return int(message.get("Attributes", {}).get("SentTimestamp", 0)) / 1000


@contextmanager
def _bar(shown: Console) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar per queue, on a terminal only."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=shown,
        disable=not shown.is_terminal,
    )
    tasks: dict[str, Any] = {}

    def advance(queue: str, moved: int, found: int) -> None:
        if queue not in tasks:
            tasks[queue] = progress.add_task(queue, total=found)
        progress.advance(tasks[queue], moved)

    with progress:
        yield advance
