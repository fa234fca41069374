"""SQS batches of events -> one recorded outcome per event and node.

A record that cannot be finished now is reported as failed and seen again; the others of its batch are not.
Urgent ones get a short visibility first, so that a spot notice is not looked at a minute later.
"""

from collections.abc import Mapping
from typing import Any

from lambdas.batch import Batch
from lambdas.boundary import logger
from planaria import wiring
from planaria.core.errors import PlanariaError
from planaria.core.table import Conflict
from planaria.wiring import Gateways

URGENT_RETRY_SECONDS = (2, 4, 8)


def handler(event: Mapping[str, Any], context: object) -> dict[str, list[dict[str, str]]]:
    gw = wiring.gateways()
    records = {record["messageId"]: record for record in event["Records"]}
    failed: dict[str, None] = {}
    for identity, end in Batch(gw).judge([(name, record["body"]) for name, record in records.items()]):
        if isinstance(end, Exception):
            logger.error(
                "a record could not be judged now",
                extra={"record": identity, "error": f"{type(end).__name__}: {end}"},
                exc_info=end,
            )
            failed[identity] = None
        else:
            logger.info("judged", extra=end)
    for identity in failed:
        _soon(gw, records[identity])
    return {"batchItemFailures": [{"itemIdentifier": identity} for identity in failed]}


def _soon(gw: Gateways, record: Mapping[str, Any]) -> None:
    queue = str(record.get("eventSourceARN", ""))
    if not queue.endswith("-urgent"):
        return
    received = int(record.get("attributes", {}).get("ApproximateReceiveCount", "1"))
    if received <= len(URGENT_RETRY_SECONDS):
        try:
            gw.queues.retry_after(queue, record["receiptHandle"], URGENT_RETRY_SECONDS[received - 1])
        except (PlanariaError, Conflict):
            logger.warning("visibility unchanged: the message comes back after the queue's own time-out")
