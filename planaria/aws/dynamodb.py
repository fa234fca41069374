"""The Table port on DynamoDB: one conditional UpdateItem per write.

Every name in an expression is a placeholder (`session` and others are reserved words). A failed condition
brings the row back with ReturnValuesOnConditionCheckFailure, so no second read is needed.
https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_UpdateItem.html
"""

import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from boto3.dynamodb.types import TypeDeserializer, TypeSerializer
from botocore.exceptions import ClientError

from planaria.aws.errors import code_of, translated
from planaria.core.errors import TransientError
from planaria.core.table import Changes, Condition, Conflict, Path, Row, names

_COMPARE = {"=", "<", ">"}

BATCH_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds between the tries of a batch that DynamoDB answers in part."""


class DynamoTable:
    """client: a boto3 DynamoDB client; name: the table. Reads are strongly consistent, the index is not."""

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self._name = name

    def get(self, pk: str, sk: str) -> Row | None:
        with translated():
            answer = self._client.get_item(TableName=self._name, Key=_key(pk, sk), ConsistentRead=True)
        return _plain(answer["Item"]) if "Item" in answer else None

    def write(
        self,
        pk: str,
        sk: str,
        sets: Changes | None = None,
        removes: Sequence[Path] = (),
        adds: Mapping[Path, int] | None = None,
        when: Condition | None = None,
        quiet: bool = False,
    ) -> Row:
        request = _Expression()
        clauses = []
        if sets:
            parts = [f"{request.path(path)} = {request.value(value)}" for path, value in sets.items()]
            clauses.append("SET " + ", ".join(parts))
        if removes:
            clauses.append("REMOVE " + ", ".join(request.path(path) for path in removes))
        if adds:
            parts = [f"{request.path(path)} {request.value(number)}" for path, number in adds.items()]
            clauses.append("ADD " + ", ".join(parts))
        arguments: dict[str, Any] = {"UpdateExpression": " ".join(clauses)} if clauses else {}
        if when is not None:
            arguments["ConditionExpression"] = request.condition(when)
            arguments["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        if request.names:
            arguments["ExpressionAttributeNames"] = request.names
        if request.values:
            arguments["ExpressionAttributeValues"] = request.values
        try:
            with translated():
                answer = self._client.update_item(
                    TableName=self._name,
                    Key=_key(pk, sk),
                    ReturnValues="NONE" if quiet else "ALL_NEW",
                    **arguments,
                )
        except Exception as error:
            cause = error.__cause__
            if isinstance(cause, ClientError) and code_of(cause) == "ConditionalCheckFailedException":
                item = cause.response.get("Item")
                raise Conflict(_plain(item) if item else None) from None
            raise
        return {} if quiet else _plain(answer["Attributes"])

    def query(self, pk: str) -> list[Row]:
        return self._pages(
            KeyConditionExpression="#pk = :pk",
            ExpressionAttributeNames={"#pk": "pk"},
            ExpressionAttributeValues={":pk": {"S": pk}},
            ConsistentRead=True,
        )

    def listing(self, kind: str) -> list[Row]:
        keys = self._pages(
            IndexName="listing",
            KeyConditionExpression="#kind = :kind",
            ExpressionAttributeNames={"#kind": "listing"},
            ExpressionAttributeValues={":kind": {"S": kind}},
        )
        rows = self.get_many([(row["pk"], row["sk"]) for row in keys])
        return sorted(rows, key=lambda row: (row["pk"], row["sk"]))

    def get_many(self, keys: Sequence[tuple[str, str]]) -> list[Row]:
        distinct = [_key(*key) for key in dict.fromkeys(keys)]
        batches = (distinct[start : start + 100] for start in range(0, len(distinct), 100))
        return [row for batch in batches for row in self._batch(batch)]

    def _pages(self, **arguments: Any) -> list[Row]:
        rows: list[Row] = []
        with translated():
            for page in self._client.get_paginator("query").paginate(TableName=self._name, **arguments):
                rows += [_plain(item) for item in page["Items"]]
        return rows

    def _batch(self, keys: list[dict[str, Any]]) -> list[Row]:
        """Raises TransientError when DynamoDB leaves keys unread however often it is asked."""
        rows: list[Row] = []
        wanted: Any = {self._name: {"Keys": keys, "ConsistentRead": True}}
        with translated():
            for pause in BATCH_PAUSES:
                answer = self._client.batch_get_item(RequestItems=wanted)
                rows += [_plain(item) for item in answer["Responses"].get(self._name, [])]
                wanted = answer.get("UnprocessedKeys")
                if not wanted:
                    return rows
                time.sleep(pause)
        left = len(wanted[self._name]["Keys"])
        raise TransientError(f"DynamoDB left {left} of {len(keys)} rows unread: it is being throttled")


class _Expression:
    """Collects placeholders for names and values of one request."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.values: dict[str, Any] = {}
        self._known: dict[str, str] = {}

    def path(self, path: Path) -> str:
        return ".".join(self._name(name) for name in names(path))

    def _name(self, name: str) -> str:
        if name not in self._known:
            self._known[name] = f"#n{len(self._known)}"
            self.names[self._known[name]] = name
        return self._known[name]

    def value(self, value: Any) -> str:
        placeholder = f":v{len(self.values)}"
        self.values[placeholder] = TypeSerializer().serialize(_storable(value))
        return placeholder

    def condition(self, condition: Condition) -> str:
        groups = []
        for group in condition.groups:
            clauses = []
            for clause in group:
                path = self.path(clause.path)
                if clause.op in _COMPARE:
                    clauses.append(f"{path} {clause.op} {self.value(clause.value)}")
                elif clause.op == "<>":
                    # Said in full: what a comparison with an absent attribute gives is documented nowhere.
                    differs = f"{path} <> {self.value(clause.value)}"
                    clauses.append(f"(attribute_not_exists({path}) OR {differs})")
                elif clause.op in ("size<", "size>"):
                    # size() of an absent attribute is an error in some places and false in others.
                    size = f"size({path}) {clause.op[-1]} {self.value(clause.value)}"
                    clauses.append(f"attribute_exists({path}) AND {size}")
                elif clause.op == "exists":
                    clauses.append(f"attribute_exists({path})")
                elif clause.op == "missing":
                    clauses.append(f"attribute_not_exists({path})")
                else:
                    raise ValueError(f"unknown operator {clause.op!r}")
            groups.append(" AND ".join(clauses))  # AND binds before OR
        return " OR ".join(groups)


def _key(pk: str, sk: str) -> dict[str, Any]:
    return {"pk": {"S": pk}, "sk": {"S": sk}}


def _storable(value: Any) -> Any:
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, Mapping):
        return {key: _storable(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_storable(entry) for entry in value]
    return value


def _plain(item: Mapping[str, Any]) -> Row:
    deserializer = TypeDeserializer()
    return {name: _number(deserializer.deserialize(value)) for name, value in item.items()}


def _number(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, dict):
        return {key: _number(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_number(entry) for entry in value]
    return value
