"""The Bus port on EventBridge."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from planaria.aws.errors import translated
from planaria.core.errors import TransientError

BATCH = 10  # entries of one PutEvents call


class EventBridgeBus:
    """client: a boto3 events client; name: the bus."""

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self._name = name

    def put(
        self,
        source: str,
        detail_type: str,
        details: Sequence[Mapping[str, Any]],
        resources: Sequence[str] = (),
    ) -> None:
        """Put all or raise TransientError; events may arrive more than once and in any order."""
        common: dict[str, Any] = {"Source": source, "DetailType": detail_type, "EventBusName": self._name}
        if resources:
            common["Resources"] = list(resources)
        entries = [{**common, "Detail": json.dumps(detail)} for detail in details]
        for start in range(0, len(entries), BATCH):
            with translated():
                answer = self._client.put_events(Entries=entries[start : start + BATCH])
            failed = [e for e in answer["Entries"] if "ErrorCode" in e]
            if failed:
                raise TransientError(f"{len(failed)} events were not taken: {failed[0]['ErrorCode']}")
