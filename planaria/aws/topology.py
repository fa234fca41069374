"""EC2's network topology of instances and of capacity reservations.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstanceTopology.html (100 ids a call, no
MaxResults beside them) and API_DescribeCapacityReservationTopology.html (10 ids a call). Both answer with
pages.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError

from planaria.aws.errors import SAID_LENGTH, code_of, translated
from planaria.core.errors import PermanentError, PlanariaError
from planaria.core.topology import Located, path_of

INSTANCE_IDS, RESERVATION_IDS = 100, 10

MOST_PAGES = 20
"""A token that never ends must not hold a Lambda."""

_ID = re.compile(r"\b(?:i|cr)-[0-9A-Za-z]+")
_MISSING = re.compile(
    r"Invalid(InstanceID|CapacityReservationId|CapacityReservationID)\.(NotFound|Malformed)"
)
_UNSUPPORTED = frozenset({"UnsupportedOperation", "Unsupported", "InvalidAction", "UnknownOperation"})
_NOT_TOLD = "EC2 tells no network nodes of it: it does not run, or its instance type has none"


class Ec2Topology:
    """client: a boto3 EC2 client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def instances(self, types: Mapping[str, str]) -> dict[str, Located]:
        """Raises TransientError where EC2 is throttled or out; every other refusal is an unknown place."""
        of_type: dict[str, list[str]] = {}
        for node, instance_type in types.items():
            of_type.setdefault(instance_type, []).append(node)
        found: dict[str, Located] = {}
        for _, nodes in sorted(of_type.items()):
            for ids in _chunks(nodes, INSTANCE_IDS):
                found |= self._asked(self._instances, ids)
        return found

    def reservations(self, ids: Sequence[str]) -> dict[str, Located]:
        found: dict[str, Located] = {}
        for chunk in _chunks(ids, RESERVATION_IDS):
            found |= self._asked(self._reservations, chunk)
        return found

    def _asked(self, ask: Callable[[list[str]], dict[str, Located]], ids: list[str]) -> dict[str, Located]:
        """One id that EC2 does not know makes the whole call fail: it is left out then."""
        try:
            answer = ask(ids)
        except PlanariaError as error:
            if not (isinstance(error, PermanentError) or _missing(error) or _final(error)):
                raise
            return self._refused(ask, ids, error)
        return {name: answer.get(name, Located(why=_NOT_TOLD)) for name in ids}

    def _refused(
        self, ask: Callable[[list[str]], dict[str, Located]], ids: list[str], error: PlanariaError
    ) -> dict[str, Located]:
        refused = Located(why=str(error)[:SAID_LENGTH], final=_final(error))
        named = set(_ID.findall(str(error)))
        bad, rest = [n for n in ids if n in named], [n for n in ids if n not in named]
        if bad and rest:
            return dict.fromkeys(bad, refused) | self._asked(ask, rest)
        if bad or len(ids) == 1 or not _missing(error):
            return dict.fromkeys(ids, refused)
        middle = len(ids) // 2
        return self._asked(ask, ids[:middle]) | self._asked(ask, ids[middle:])

    def _instances(self, ids: list[str]) -> dict[str, Located]:
        call = self._client.describe_instance_topology
        entries = self._pages(lambda more: call(InstanceIds=ids, **more), "Instances")
        return {entry["InstanceId"]: _located(entry) for entry in entries if entry.get("InstanceId")}

    def _reservations(self, ids: list[str]) -> dict[str, Located]:
        call = self._client.describe_capacity_reservation_topology
        entries = self._pages(lambda more: call(CapacityReservationIds=ids, **more), "CapacityReservations")
        named = [entry for entry in entries if entry.get("CapacityReservationId")]
        return {entry["CapacityReservationId"]: _located(entry) for entry in named}

    def _pages(self, call: Callable[[dict[str, str]], Any], key: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        more: dict[str, str] = {}
        for _ in range(MOST_PAGES):
            with translated():
                page = call(more)
            found += page.get(key) or []
            if not page.get("NextToken"):
                break
            more = {"NextToken": page["NextToken"]}
        return found


def _chunks(ids: Sequence[str], size: int) -> list[list[str]]:
    once = list(dict.fromkeys(ids))
    return [once[start : start + size] for start in range(0, len(once), size)]


def _located(entry: Mapping[str, Any]) -> Located:
    path = path_of(entry.get("NetworkNodes") or ())
    return Located(path) if path else Located(why=_NOT_TOLD)


def _code(error: PlanariaError) -> str:
    cause = error.__cause__
    return code_of(cause) if isinstance(cause, ClientError) else ""


def _missing(error: PlanariaError) -> bool:
    return bool(_MISSING.match(_code(error)))


def _final(error: PlanariaError) -> bool:
    return _code(error) in _UNSUPPORTED
