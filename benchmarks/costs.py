"""What one recovery costs on AWS: quantities times the list prices of prices.json."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

PRICES = Path(__file__).with_name("prices.json")
BLOCK_WRITE, BLOCK_READ = 1024, 4096  # bytes of one DynamoDB request unit
LOG_OVERHEAD = 26  # bytes that CloudWatch Logs adds to each line


@dataclass(frozen=True, slots=True)
class Usage:
    """Quantities that AWS bills, by the names of prices.json."""

    state_transitions: float = 0
    lambda_requests: float = 0
    lambda_gb_seconds: float = 0
    sqs_requests: float = 0
    eventbridge_custom_events: float = 0
    dynamodb_write_units: float = 0
    dynamodb_read_units: float = 0
    kms_requests: float = 0
    log_gb: float = 0

    def slower(self, factor: float) -> "Usage":
        """The same with every Lambda running `factor` times as long."""
        return replace(self, lambda_gb_seconds=self.lambda_gb_seconds * factor)


def price_list(path: Path = PRICES) -> dict[str, float]:
    """Dollars per single unit."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return {name: float(unit["usd"]) / float(unit["per"]) for name, unit in document["units"].items()}


def bill(usage: Usage, prices: Mapping[str, float]) -> dict[str, Any]:
    """{"total": dollars, "<unit>": {"quantity", "unit_usd", "usd"}, ...}; raises KeyError for a unit without
    a price."""
    items = {
        name: {
            "quantity": round(quantity, 9),
            "unit_usd": round(prices[name], 12),
            "usd": round(quantity * prices[name], 10),
        }
        for name, quantity in asdict(usage).items()
    }
    return {"total": round(sum(asdict(usage)[name] * prices[name] for name in items), 8), **items}


def write_units(size: int) -> int:
    return max(1, math.ceil(size / BLOCK_WRITE))


def read_units(size: int) -> int:
    """Of a strongly consistent read."""
    return max(1, math.ceil(size / BLOCK_READ))


def item_bytes(item: Mapping[str, Mapping[str, Any]]) -> int:
    """Size of an item in DynamoDB's own JSON, by the rules of "DynamoDB item sizes and formats".

    https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/CapacityUnitCalculations.html
    """
    return sum(len(name.encode()) + _value_bytes(value) for name, value in item.items())


def _value_bytes(typed: Mapping[str, Any]) -> int:
    kind, value = next(iter(typed.items()))
    if kind == "S":
        return len(value.encode())
    if kind == "N":
        digits = len(value.lstrip("-").replace(".", "").strip("0"))
        return min(21, math.ceil(digits / 2) + 1 + value.startswith("-"))
    if kind in ("BOOL", "NULL"):
        return 1
    if kind == "M":
        return 3 + sum(1 + len(name.encode()) + _value_bytes(entry) for name, entry in value.items())
    if kind == "L":
        return 3 + sum(1 + _value_bytes(entry) for entry in value)
    if kind in ("SS", "NS"):
        return sum(len(entry) for entry in value)
    return len(value)
