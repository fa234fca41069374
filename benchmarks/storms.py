"""A storm in a deployed sandbox: what agents, EventBridge and SQS deliver, and what becomes of each event."""

import json
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from planaria.core.event_rows import COUNTED
from planaria.core.table import Row
from planaria.sandbox.emulator import ACCOUNT, REGION, Emulator
from planaria.sandbox.errors import SandboxError
from planaria.wiring import Gateways

ENTRIES = 10  # most of one PutEvents or SendMessageBatch
LOOKED_UP = 100  # event ids of one look into the ledger
DEAD_LETTERS = ("urgent-dlq", "normal-dlq", "rules-dlq")
POLL_SECONDS = 0.05

Entry = Mapping[str, str]
"""Source, DetailType and Detail of one PutEvents entry."""


def signal(node: str, code: str, at: float, kind: str = "xid") -> Entry:
    """What the agent of this node would say about a line of its kernel log."""
    message = f"NVRM: Xid (PCI:0000:b3:00): {code}, pid=4242, name=python3"
    detail = {
        "version": 1, "instance_id": node, "boot_id": "storm", "seq": 1, "time": at, "kind": kind,
        "code": code, "pci": "0000:b3:00", "message": message, "injected": False, "count": 1,
    }  # fmt: skip
    return {
        "Source": f"planaria.node/AROASTORM:{node}",
        "DetailType": "Planaria Node Signal",
        "Detail": json.dumps(detail),
    }


def spot_warning(node: str) -> Entry:
    detail = {"instance-id": node, "instance-action": "terminate"}
    return {
        "Source": "planaria.gameday",
        "DetailType": "EC2 Spot Instance Interruption Warning",
        "Detail": json.dumps(detail),
    }


def delivered(entry: Entry, identity: str) -> str:
    """The event as a rule hands it to a queue."""
    return json.dumps(
        {
            "version": "0",
            "id": identity,
            "detail-type": entry["DetailType"],
            "source": entry["Source"],
            "account": ACCOUNT,
            "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "region": REGION,
            "resources": [],
            "detail": json.loads(entry["Detail"]),
        }
    )


class Lanes:
    """Bus, queues and ledger of one deployed sandbox, as a storm needs them."""

    def __init__(self, emulator: Emulator, gateways: Gateways) -> None:
        self.ledger = gateways.ledger
        self._prefix = f"planaria-{gateways.cluster.name}"
        self._events = emulator.client("events")
        self._sqs = emulator.client("sqs")
        self._lambda = emulator.client("lambda")

    def put(self, entries: Sequence[Entry]) -> list[str]:
        """Put events on Planaria's bus; their ids."""
        found: list[str] = []
        for start in range(0, len(entries), ENTRIES):
            batch = [{**entry, "EventBusName": self._prefix} for entry in entries[start : start + ENTRIES]]
            answer = self._events.put_events(Entries=batch)
            found += [entry["EventId"] for entry in answer["Entries"]]
        return found

    def send(self, bodies: Sequence[str], lane: str = "normal") -> None:
        """Deliver texts to a queue directly, as a rule that delivers twice does."""
        url = self._url(lane)
        for start in range(0, len(bodies), ENTRIES):
            batch = [
                {"Id": str(number), "MessageBody": body}
                for number, body in enumerate(bodies[start : start + ENTRIES])
            ]
            answer = self._sqs.send_message_batch(QueueUrl=url, Entries=batch)
            if answer.get("Failed"):
                raise SandboxError(f"The queue {lane} did not take {len(answer['Failed'])} messages.")

    def hold(self, lane: str, held: bool) -> None:
        """Stop or start Lambda's reading of a queue; what arrives meanwhile waits there."""
        arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{self._prefix}-{lane}"
        found = self._lambda.list_event_source_mappings(EventSourceArn=arn)["EventSourceMappings"]
        for mapping in found:
            self._lambda.update_event_source_mapping(UUID=mapping["UUID"], Enabled=not held)

    def depth(self, queue: str) -> int:
        """Messages that wait or are being worked on."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self._sqs.get_queue_attributes(QueueUrl=self._url(queue), AttributeNames=names)["Attributes"]
        return sum(int(value) for value in found.values())

    def dead(self) -> dict[str, int]:
        """Dead-letter queue -> messages, of those that hold any."""
        depths = {queue: self.depth(queue) for queue in DEAD_LETTERS}
        return {queue: depth for queue, depth in depths.items() if depth}

    def rows(self, identities: Sequence[str]) -> dict[str, Row]:
        """Event id -> its outcome's row, of those that have one."""
        found: dict[str, Row] = {}
        for start in range(0, len(identities), LOOKED_UP):
            found |= self.ledger.outcomes(identities[start : start + LOOKED_UP], time.time())
        return found

    def counted(self, since: float) -> Counter[str]:
        """Outcome -> events counted in the hours since then."""
        now = time.time() + 3600.0
        return Counter({what: sum(self.ledger.counts(what, since, now).values()) for what in COUNTED})

    def claimed(self, node: str) -> float | None:
        """When the node's incident was opened, None while it is not."""
        rows = [row for row in self.ledger.incidents() if row.get("node_id") == node]
        return float(rows[0]["opened_at"]) if rows else None

    def _url(self, queue: str) -> str:
        return str(self._sqs.get_queue_url(QueueName=f"{self._prefix}-{queue}")["QueueUrl"])


def until(what: str, found: Callable[[], Any], seconds: float) -> Any:
    """The first true value; raises SandboxError when there is none in time."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        if time.monotonic() > deadline:
            raise SandboxError(f"No {what} within {seconds:.0f} s.")
        time.sleep(POLL_SECONDS)
    return value


# --- the storm ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """sick: its GPU falls off the bus. doomed: a spot warning comes in the middle. noisy: the others.

    events: all, of which one in `repeats` is new; the spot warning comes on top.
    """

    sick: str
    doomed: str
    noisy: tuple[str, ...]
    events: int = 10_000
    repeats: int = 100

    @property
    def distinct(self) -> int:
        return self.events // self.repeats


@dataclass(frozen=True, slots=True)
class Weathered:
    """How a storm went. begun, drained: epoch seconds of the first reading and of the empty queue.

    claimed_after: seconds from the spot warning to its claim; waiting_then: messages that waited in the
    normal queue when it was seen to be claimed. outcomes: events by how they ended; rows: those with a row.
    """

    events: int
    begun: float
    drained: float
    claimed_after: float
    waiting_then: int
    outcomes: dict[str, int]
    rows: int

    @property
    def seconds(self) -> float:
        return self.drained - self.begun


def make(plan: Plan, at: float, chance: random.Random) -> tuple[list[Entry], list[str]]:
    """(what is put on the bus, what is delivered to the queue directly), each in any order.

    Of each new event half the repeats are said by the agent anew, with an id of its own; the other half are
    the same event again, as EventBridge and SQS may deliver it.
    """
    harmless = [
        signal(plan.noisy[number % len(plan.noisy)], str(200 + number), at)
        for number in range(plan.distinct - 1)
    ]
    put: list[Entry] = []
    sent: list[str] = []
    for entry in [signal(plan.sick, "79", at), *harmless]:
        again = (plan.repeats - 1) // 2
        identity = str(uuid.UUID(int=chance.getrandbits(128), version=4))
        put += [entry] * again
        sent += [delivered(entry, identity)] * (plan.repeats - again)
    chance.shuffle(put)
    chance.shuffle(sent)
    return put, sent


def weather(lanes: Lanes, plan: Plan, patience: float, say: Callable[[str], None], seed: int) -> Weathered:
    """Let the storm wait in the normal queue, then through; the spot warning comes when half is through.

    Raises SandboxError when an event is lost or a queue does not become empty in time.
    """
    began = time.time()
    before = lanes.counted(began)
    put, sent = make(plan, began, random.Random(seed))
    lanes.hold("normal", True)
    say(f"putting {len(put):,} events on the bus")
    identities = lanes.put(put)
    say(f"delivering {len(sent):,} events twice and more")
    lanes.send(sent)
    number = len(put) + len(sent)
    # Agents say other things meanwhile, such as that a checkpoint was saved.
    until("storm in the queue", lambda: lanes.depth("normal") >= number, patience)
    say(f"{number:,} events wait; letting them through")
    begun = time.time()
    lanes.hold("normal", False)
    until("half of the storm", lambda: lanes.depth("normal") <= number // 2, patience)
    warned = time.time()
    identities += lanes.put([spot_warning(plan.doomed)])
    claimed = until("claim of the doomed node", lambda: lanes.claimed(plan.doomed), patience)
    waiting = lanes.depth("normal")
    until("end of the storm", lambda: lanes.depth("normal") + lanes.depth("urgent") == 0, patience)
    drained = time.time()
    identities += {json.loads(body)["id"] for body in sent}
    outcomes, rows = accounted(lanes, identities, before, began)
    if (total := sum(outcomes.values())) != number + 1:
        raise SandboxError(f"{number + 1:,} events were sent, but {total:,} have an outcome: {outcomes}.")
    if dead := lanes.dead():
        raise SandboxError(f"Events are in dead-letter queues: {dead}.")
    return Weathered(number + 1, begun, drained, claimed - warned, waiting, outcomes, rows)


def accounted(
    lanes: Lanes, identities: Iterable[str], before: Mapping[str, int], since: float
) -> tuple[dict[str, int], int]:
    """(outcome -> events, in rows or counted since; how many have rows)."""
    rows = lanes.rows(list(identities))
    counted = lanes.counted(since)
    counted.subtract(before)
    found = Counter(str(row["outcome"]) for row in rows.values()) + counted
    return dict(found), len(rows)


def incidents(lanes: Lanes, nodes: Iterable[str]) -> dict[str, list[str]]:
    """Node -> fault kind and outcome of each of its incidents, `OPEN` for one that has not ended."""
    found: dict[str, list[str]] = {node: [] for node in nodes}
    for row in lanes.ledger.incidents():
        if row.get("node_id") in found:
            kind = str((row.get("fault") or {}).get("kind"))
            found[row["node_id"]].append(f"{kind} {row.get('outcome', 'OPEN')}")
    return found
