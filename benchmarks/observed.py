"""What one recovery used, read from the emulator after it: Lambda's log lines, its API trail, execution
histories."""

import json
import re
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks import costs, transitions
from benchmarks.costs import Usage
from planaria.core.errors import PermanentError
from planaria.sandbox.emulator import ACCOUNT, KEY, REGION, Emulator
from planaria.sandbox.world import ROOT

MACHINES = ("heal_node", "resume_job", "isolate_node", "launch_replacement", "refill_spares")
STANDING = ("sweep",)  # runs every minute, whatever happens: no part of a recovery
HISTORY_EVENT_BYTES = 512  # of one line in a machine's own log, which holds no payload; generous
SQS_REQUESTS = 3  # send, receive and delete, as if no two messages ever shared a batch
SQS_BATCH = 10  # messages of one receive or delete
PAGE = 50  # most events of one LookupEvents
TRAIL = 10_000  # API calls that the emulator remembers
_REPORT = re.compile(r"Billed Duration: (\d+) ms\tMemory Size: (\d+) MB")


@dataclass(frozen=True, slots=True)
class Invocation:
    """ended: epoch seconds. seconds: billed, with the start of a cold worker."""

    function: str
    ended: float
    seconds: float
    memory_mb: int


@dataclass(frozen=True, slots=True)
class Execution:
    machine: str
    arn: str
    events: list[dict[str, Any]]


@cache
def definition(machine: str) -> dict[str, Any]:
    """A machine as the repository has it, with ${function} placeholders."""
    return dict(json.loads((ROOT / f"statemachines/{machine}.asl.json").read_text(encoding="utf-8")))


class Observer:
    """Reads about one cluster from its emulator."""

    def __init__(self, emulator: Emulator, cluster: str) -> None:
        self._emulator = emulator
        self._prefix = f"planaria-{cluster}"
        self._logs = emulator.client("logs")
        self._workflows = emulator.client("stepfunctions")
        self._table = emulator.client("dynamodb")

    # --- Lambda --------------------------------------------------------------------------------------

    def lambda_lines(self, since: float) -> dict[str, list[tuple[float, str]]]:
        """(epoch seconds, text) of what each function logged since then, its platform's lines too."""
        group = f"/aws/lambda/{self._prefix}-"
        found: dict[str, list[tuple[float, str]]] = {}
        pages = self._logs.get_paginator("describe_log_groups").paginate(logGroupNamePrefix=group)
        for name in [each["logGroupName"] for page in pages for each in page["logGroups"]]:
            function = name.removeprefix(group)
            events = self._logs.get_paginator("filter_log_events").paginate(
                logGroupName=name, startTime=int(since * 1000)
            )
            lines = [(e["timestamp"] / 1000, e["message"]) for page in events for e in page["events"]]
            if lines and function not in STANDING:
                found[function] = lines
        return found

    def invocations(self, since: float) -> list[Invocation]:
        return sorted(_invocations(self.lambda_lines(since)), key=lambda one: one.ended)

    # --- Step Functions --------------------------------------------------------------------------------

    def executions(self, since: float) -> list[Execution]:
        """Of our machines, started since then."""
        found = []
        for machine in MACHINES:
            arn = f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine:{self._prefix}-{machine}"
            pages = self._workflows.get_paginator("list_executions").paginate(stateMachineArn=arn)
            rows = [row for page in pages for row in page["executions"]]
            fresh = [row["executionArn"] for row in rows if row["startDate"].timestamp() >= since - 0.01]
            found += [Execution(machine, each, self.history(each)) for each in fresh]
        return found

    def history(self, arn: str) -> list[dict[str, Any]]:
        pages = self._workflows.get_paginator("get_execution_history").paginate(executionArn=arn)
        return [event for page in pages for event in page["events"]]

    # --- everything ------------------------------------------------------------------------------------

    def usage(self, since: float) -> tuple[Usage, dict[str, int]]:
        """What AWS would bill for what happened since then, and the number of invocations by function.

        Raises PermanentError when more than one node was healed: a figure for one recovery would be wrong.
        """
        lines = self.lambda_lines(since)
        invocations = list(_invocations(lines))
        calls = Counter(one.function for one in invocations)
        executions = self.executions(since)
        if sum(one.machine == "heal_node" for one in executions) > 1:
            raise PermanentError("more than one node was healed at a time; the figures would mix them up")
        calls_by_agents, writes, reads = self._api_calls(since)
        logged = sum(len(text.encode()) + costs.LOG_OVERHEAD for each in lines.values() for _, text in each)
        logged += sum(len(one.events) for one in executions) * HISTORY_EVENT_BYTES
        messages = sum('"message":"judged"' in text for _, text in lines.get("triage", []))
        usage = Usage(
            state_transitions=sum(
                transitions.count(one.events, definition(one.machine), calls) for one in executions
            ),
            lambda_requests=len(invocations),
            lambda_gb_seconds=sum(one.seconds * one.memory_mb / 1024 for one in invocations),
            sqs_requests=SQS_REQUESTS * messages,
            eventbridge_custom_events=calls_by_agents,
            dynamodb_write_units=writes,
            dynamodb_read_units=reads,
            # DynamoDB asks KMS for the table's key once in five minutes for each role, and each function has
            # a role of its own.
            kms_requests=len(calls),
            log_gb=logged / 1e9,
        )
        return usage, dict(sorted(calls.items()))

    def storm(self, since: float, events: int) -> tuple[Usage, int]:
        """What AWS would bill for triage of this many events since then, and the invocations that did it.

        All requests to the table count, those of the incidents' own functions as well; their transitions and
        seconds do not. Raises PermanentError when the emulator has forgotten some of the requests.
        """
        lines = {"triage": self.lambda_lines(since).get("triage", [])}
        invocations = list(_invocations(lines))
        logged = sum(len(text.encode()) + costs.LOG_OVERHEAD for _, text in lines["triage"])
        _, writes, reads = self._api_calls(since)
        usage = Usage(
            lambda_requests=len(invocations),
            lambda_gb_seconds=sum(one.seconds * one.memory_mb / 1024 for one in invocations),
            # Each is sent by itself; Lambda receives and deletes ten at a time, the last of a batch fewer.
            sqs_requests=events + 2 * (events / SQS_BATCH + len(invocations)),
            eventbridge_custom_events=events,
            dynamodb_write_units=writes,
            dynamodb_read_units=reads,
            kms_requests=1,
            log_gb=logged / 1e9,
        )
        return usage, len(invocations)

    def _api_calls(self, since: float) -> tuple[int, int, int]:
        """(events that agents and Lambdas put, DynamoDB write units, read units) since then."""
        put = seen = 0
        writes: Counter[tuple[str, str]] = Counter()
        reads: Counter[tuple[str, str]] = Counter()
        for event in self._trail(since):
            seen += 1
            asked = json.loads(event["CloudTrailEvent"])
            name, parameters = event["EventName"], asked.get("requestParameters") or {}
            if name == "PutEvents" and event["AccessKeyId"] != KEY:
                # The sandbox itself puts, with the root key, what AWS sends free of charge.
                put += len(parameters.get("Entries", []))
            elif event["AccessKeyId"] == ACCOUNT and name == "BatchGetItem":
                for wanted in parameters["RequestItems"].values():
                    reads.update((key["pk"]["S"], key["sk"]["S"]) for key in wanted["Keys"])
            elif event["AccessKeyId"] == ACCOUNT and name in ("UpdateItem", "GetItem"):
                key = parameters["Key"]["pk"]["S"], parameters["Key"]["sk"]["S"]
                (writes if name == "UpdateItem" else reads)[key] += 1
        if seen >= TRAIL:
            raise PermanentError(f"the emulator remembers {TRAIL:,} requests, and there were more")
        sizes = {key: self._row(key) for key in {*writes, *reads}}
        units = sum(
            number * costs.write_units(costs.item_bytes(sizes[key])) for key, number in writes.items()
        )
        # A new row also enters the index `listing`; as if each of these were new.
        units += sum("listing" in sizes[key] for key in writes)
        return (
            put,
            units,
            sum(number * costs.read_units(costs.item_bytes(sizes[key])) for key, number in reads.items()),
        )

    def _row(self, key: tuple[str, str]) -> dict[str, Any]:
        answer = self._table.get_item(TableName=self._prefix, Key={"pk": {"S": key[0]}, "sk": {"S": key[1]}})
        return dict(answer.get("Item", {}))

    def _trail(self, since: float) -> Iterator[dict[str, Any]]:
        """The emulator's record of API calls, newest first. It has no pages, and boto3 sends no fractions."""
        seen: set[str] = set()
        until: float | None = None
        while True:
            body: dict[str, Any] = {"StartTime": since, "MaxResults": PAGE}
            if until is not None:
                body["EndTime"] = until
            events = self._ask_trail(body)
            fresh = [event for event in events if event["EventId"] not in seen]
            yield from fresh
            if not fresh:
                return
            seen |= {event["EventId"] for event in fresh}
            until = float(events[-1]["EventTime"])

    def _ask_trail(self, body: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
        request = urllib.request.Request(  # noqa: S310  http on the loopback address
            self._emulator.url,
            data=json.dumps(body).encode(),
            headers={
                "Content-Type": "application/x-amz-json-1.1",
                "X-Amz-Target": "com.amazonaws.cloudtrail.v20131101.CloudTrail_20131101.LookupEvents",
                "Authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/20260101/{REGION}/cloudtrail/"
                "aws4_request, SignedHeaders=host, Signature=0",
            },
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=10) as answer:
            return list(json.loads(answer.read())["Events"])


def _invocations(lines: Mapping[str, Sequence[tuple[float, str]]]) -> Iterator[Invocation]:
    for function, each in lines.items():
        for at, text in each:
            if text.startswith("REPORT ") and (found := _REPORT.search(text)):
                yield Invocation(function, at, int(found[1]) / 1000, int(found[2]))
