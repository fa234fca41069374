"""What a burst of faults cost each node, from the lines of the Lambdas' probe and from histories."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import costs, transitions
from benchmarks.costs import Usage
from benchmarks.lambda_probe import BREAKER

Line = Mapping[str, Any]

TRIAGE, BEGIN, ISOLATE, SWEEP = "triage", "begin_incident", "isolate_node", "sweep"
HISTORY_EVENT_BYTES = 512  # of one line in a machine's own log, which holds no payload; generous
KEY_SECONDS = 300.0  # DynamoDB asks KMS for the table's key as often for each role
OPENS = "stepfunctions.StartExecution"


@dataclass(frozen=True, slots=True)
class Share:
    """One node's part of one invocation, in seconds. A batch of triage is shared equally by its messages."""

    function: str
    at: float
    wall: float
    cpu: float
    opens: bool


@dataclass(frozen=True, slots=True)
class Rows:
    """Writes to the table. kinds: what a row is -> rows, writes and the most writes to one row. shared: rows
    that were written on behalf of more than one node."""

    kinds: dict[str, dict[str, int]]
    shared: list[str]


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that so many percent do not exceed."""
    found = sorted(values)
    return found[min(len(found) - 1, max(0, -int(-percent * len(found) // 100) - 1))]


def shares(lines: Sequence[Line], originals: Mapping[str, str]) -> dict[str, list[Share]]:
    """Node -> its parts, in order. originals: replacement -> the node whose incident it belongs to."""
    found: dict[str, list[Share]] = defaultdict(list)
    for line in sorted(lines, key=lambda line: float(line["at"])):
        number = int(line.get("records", 1))
        opens = OPENS in line["calls"]
        for node in line["nodes"]:
            share = Share(line["f"], line["at"], line["wall"] / number, line["cpu"] / number, opens)
            found[originals.get(node, node)].append(share)
    return dict(found)


def handling(parts: Sequence[Share], isolated: float) -> tuple[float, float]:
    """(seconds of Lambda from event to isolation without what lay between, seconds from the arrival at triage
    until the node was isolated).

    Raises ValueError when the parts do not lead to an isolation.
    """
    until = [part for part in parts if part.at <= isolated]
    opened = next((part for part in until if part.function == TRIAGE and part.opens), None)
    if opened is None or not any(part.function == ISOLATE for part in until):
        raise ValueError("triage and isolation are not among the node's invocations")
    worked = sum(part.wall for part in until if part.function in (BEGIN, ISOLATE))
    return opened.wall + worked, isolated - opened.at


def entered(
    events: Sequence[Mapping[str, Any]], definition: Mapping[str, Any], parts: Sequence[Share]
) -> int:
    """State transitions of one node's execution, as AWS bills them.

    Tries in Parallel branches that no Lambda took, because it was throttled, stand in the history alone.
    Raises ValueError as transitions.count does.
    """
    calls = Counter(part.function for part in parts)
    number = transitions.count(events, definition, calls)
    return number + throttled(events, definition, calls)


def throttled(
    events: Sequence[Mapping[str, Any]], definition: Mapping[str, Any], calls: Mapping[str, int]
) -> int:
    """Tasks that a branch asked for and no Lambda took."""
    inside = depth = 0
    for event in events:
        kind = str(event["type"])
        depth += (kind == "ParallelStateEntered") - (kind == "ParallelStateExited")
        inside += kind == "TaskScheduled" and depth > 0
    functions = {
        function
        for state in definition["States"].values()
        if state["Type"] == "Parallel"
        for branch in state["Branches"]
        for each in branch["States"].values()
        if (function := transitions.function_of(each))
    }
    outside = {transitions.function_of(state) for state in definition["States"].values()}
    return max(0, inside - sum(calls.get(function, 0) for function in functions - outside))


def usage(
    lines: Sequence[Line], histories: int, entered_states: int, puts: int, seconds: float, nodes: int
) -> Usage:
    """What AWS would bill for each node.

    histories: events in all histories. puts: custom events that agents put. seconds: how long it took.
    """
    functions = {line["f"] for line in lines}
    batches = [line for line in lines if line["f"] == TRIAGE]
    messages = sum(line["records"] for line in batches)
    written = [size for line in lines for _, _, size in line["writes"]]
    read = [size for line in lines for _, _, size in line["reads"]]
    # These enter the index `listing` when they are new; as if all of them were.
    listed = {pk for line in lines for pk, sk, _ in line["writes"] if sk in ("NODE", "INCIDENT")}
    logged = sum(line["log"] + line["logs"] * costs.LOG_OVERHEAD for line in lines)
    billed = sum((line["wall"] + line.get("cold", {}).get("wall", 0.0)) * line["memory"] for line in lines)
    return Usage(
        state_transitions=entered_states / nodes,
        lambda_requests=len(lines) / nodes,
        lambda_gb_seconds=billed / 1024 / nodes,
        # Each is sent by itself; a batch is received and deleted with one request each.
        sqs_requests=(messages + 2 * len(batches)) / nodes,
        eventbridge_custom_events=puts / nodes,
        dynamodb_write_units=(sum(map(costs.write_units, written)) + len(listed)) / nodes,
        dynamodb_read_units=sum(map(costs.read_units, read)) / nodes,
        kms_requests=len(functions) * (1 + seconds // KEY_SECONDS) / nodes,
        log_gb=(logged + histories * HISTORY_EVENT_BYTES) / 1e9 / nodes,
    )


def rows(lines: Sequence[Line], originals: Mapping[str, str]) -> Rows:
    """Which rows were written how often, and which of them for more than one node.

    A row belongs to a node if that node is among those of every invocation that wrote the row. Sweep's
    invocations are about no node and left out.
    """
    writes: Counter[tuple[str, str]] = Counter()
    owners: dict[tuple[str, str], set[str]] = {}
    for line in lines:
        if line["f"] == SWEEP:
            continue
        about = {originals.get(node, node) for node in line["nodes"]}
        for pk, sk, _ in line["writes"]:
            writes[pk, sk] += 1
            owners[pk, sk] = owners[pk, sk] & about if (pk, sk) in owners else about
    kinds: dict[str, dict[str, int]] = {}
    for (pk, sk), number in writes.items():
        kind = kinds.setdefault(_kind(pk, sk), {"rows": 0, "writes": 0, "most_writes_to_one_row": 0})
        kind["rows"] += 1
        kind["writes"] += number
        kind["most_writes_to_one_row"] = max(kind["most_writes_to_one_row"], number)
    shared = sorted(f"{pk}/{sk}" for (pk, sk), left in owners.items() if not left)
    return Rows(dict(sorted(kinds.items())), shared)


def beside_the_breaker(shared: Sequence[str]) -> list[str]:
    return [name for name in shared if name.partition("/")[0] != BREAKER]


def _kind(pk: str, sk: str) -> str:
    head, tail = pk.partition("#")[0], sk.partition("#")[0]
    return head if head == tail else f"{head}/{tail}"


def steps(lines: Sequence[Line]) -> Iterator[tuple[str, float, float]]:
    """(function, wall, processor seconds) of every invocation about a node; of triage, of every message.

    The first one of a process, which makes the SDK's clients, is a cold start's and not among them.
    """
    for line in lines:
        if line["f"] != SWEEP and "cold" not in line:
            number = int(line.get("records", 1))
            for _ in range(number):
                yield line["f"], line["wall"] / number, line["cpu"] / number
