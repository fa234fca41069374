"""Storms on the twins: events in the batches that SQS hands over, and what triage did about them, counted."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.lambdas.world import Killed, World

QUEUE = "arn:aws:sqs:us-east-1:111122223333:planaria-demo-"
BATCH = {"normal": 100, "urgent": 10}
NORMAL, URGENT = BATCH


class Storm:
    """delivered: messages that triage has taken. batches: invocations that took them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.delivered = self.batches = 0
        self._reads: Counter[str] = Counter()
        self._begun = len(world.effects)
        for port, method in (
            (world.table, "get"), (world.table, "get_many"), (world.table, "query"),
            (world.table, "listing"), (world.fleet, "describe"),
        ):  # fmt: skip
            setattr(port, method, self._counted(method, getattr(port, method)))

    def _counted(self, method: str, real: Any) -> Any:
        def counted(argument: Any, *more: Any) -> Any:
            if self.world._function == "triage":
                self._reads[method] += len(argument) if method == "get_many" else 1
            return real(argument, *more)

        return counted

    def pour(
        self, texts: Sequence[str], lane: str = NORMAL, *, seconds: float = 0.0, live: bool = False
    ) -> None:
        """Deliver everything, spread over `seconds`; live: the world acts meanwhile. A record that fails, and
        all of a batch whose Lambda dies, comes again in a later batch, as from SQS."""
        waiting = [(f"m{self.delivered + number}", text) for number, text in enumerate(texts)]
        pause = seconds * BATCH[lane] / max(1, len(texts))
        while waiting:
            batch, waiting = waiting[: BATCH[lane]], waiting[BATCH[lane] :]
            failed = self._deliver(batch, lane)
            waiting += [(name, text) for name, text in batch if name in failed]
            self.delivered += len(batch) - len(failed)
            self.batches += 1
            if live:
                self.world.run(pause)
            else:
                self.world.clock.advance(pause)

    def _deliver(self, batch: Sequence[tuple[str, str]], lane: str) -> set[str]:
        records = [
            {
                "messageId": name, "receiptHandle": f"r-{name}", "body": text,
                "attributes": {"ApproximateReceiveCount": "1"}, "eventSourceARN": QUEUE + lane,
            }
            for name, text in batch
        ]  # fmt: skip
        try:
            answer = self.world.call("triage", {"Records": records})
        except Killed:
            return {name for name, _ in batch}
        return {item["itemIdentifier"] for item in answer["batchItemFailures"]}

    # --- what it cost ------------------------------------------------------------------------------

    def did(self, call: str) -> int:
        """How often triage made a call that changes something, such as `table.write`."""
        return sum(
            function == "triage" and what == call for function, what in self.world.effects[self._begun :]
        )

    @property
    def writes(self) -> int:
        return self.did("table.write")

    @property
    def row_reads(self) -> int:
        """Rows that triage asked for one by one; each is a request to DynamoDB."""
        return self._reads["get"]

    @property
    def looked_up(self) -> int:
        """Rows asked for a hundred at a time."""
        return self._reads["get_many"]

    @property
    def table_scans(self) -> int:
        return self._reads["query"] + self._reads["listing"]

    @property
    def asked_ec2(self) -> int:
        return self._reads["describe"]

    # --- what became of it -------------------------------------------------------------------------

    def rows(self) -> Counter[str]:
        """Outcome -> events that have a row of their own."""
        rows = self.world.table._rows.items()
        return Counter(str(row["outcome"]) for (pk, _), row in rows if pk.startswith("EVENT#"))

    def counters(self) -> Counter[str]:
        """Outcome -> events that were counted."""
        found: Counter[str] = Counter()
        for (pk, _), row in self.world.table._rows.items():
            if pk.startswith("COUNT#"):
                found[pk.removeprefix("COUNT#")] += int(row["number"])
        return found

    def accounted(self) -> int:
        return self.rows().total() + self.counters().total()
