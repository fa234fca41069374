"""The Table port's three worlds: memory, moto, and DynamoDB on the emulator.

moto checks the expressions and is not thread-safe; who wins a race is asked of memory and the emulator.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from planaria.aws.dynamodb import DynamoTable
from planaria.core.ports import Table
from planaria.memory.table import MemoryTable

_numbers = itertools.count(1)


def create_table(client: Any, name: str) -> None:
    client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": n, "AttributeType": "S"} for n in ("pk", "sk", "listing")],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        GlobalSecondaryIndexes=[
            {
                "IndexName": "listing",
                "KeySchema": [
                    {"AttributeName": "listing", "KeyType": "HASH"},
                    {"AttributeName": "pk", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
    )


@pytest.fixture(scope="session")
def dynamodb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A DynamoDB client of an emulator that all contract tests share."""
    pytest.importorskip("ministack", reason="the emulator is not installed")
    from planaria.sandbox import emulator

    with emulator.start(tmp_path_factory.mktemp("contract") / "emulator") as running:
        yield running.client("dynamodb")


def world(kind: str, request: pytest.FixtureRequest) -> Iterator[Table]:
    """An empty table of this kind."""
    if kind == "memory":
        yield MemoryTable()
    elif kind == "emulator":
        client, name = request.getfixturevalue("dynamodb"), f"table-{next(_numbers)}"
        create_table(client, name)
        yield DynamoTable(client, name)
    else:
        with mock_aws():
            client = boto3.client("dynamodb", region_name="us-east-1")
            create_table(client, "t")
            yield DynamoTable(client, "t")


@pytest.fixture(params=["memory", "moto", "emulator"])
def table(request: pytest.FixtureRequest) -> Iterator[Table]:
    yield from world(request.param, request)


@pytest.fixture(params=["memory", "emulator"])
def shared_table(request: pytest.FixtureRequest) -> Iterator[Table]:
    """For many writers at once."""
    yield from world(request.param, request)
