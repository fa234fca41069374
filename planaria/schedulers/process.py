"""The Scheduler and Commands ports over the local HTTP API of the sandbox's head. Standard library only."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from planaria.core.errors import InvalidInput, PermanentError, TransientError
from planaria.core.ports import Answer
from planaria.core.scheduling import SchedulerRequest
from planaria.schedulers.wire import decode_answer, encode

TOKEN_HEADER = "X-Planaria-Token"  # noqa: S105  a name, no secret
TIMEOUT_SECONDS = 2.0


class HeadClient:
    """One POST or GET at a time to the head at `url`.

    Raises TransientError when the head cannot be reached, is too slow or answers 5xx, InvalidInput with
    the head's own sentence for 400, PermanentError for any other refusal (403: a wrong token).
    """

    def __init__(self, url: str, token: str, timeout: float = TIMEOUT_SECONDS) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._timeout = timeout
        # A proxy of the environment must not see requests to this machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def post(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        return self._call(path, json.dumps(document).encode())

    def get(self, path: str) -> dict[str, Any]:
        return self._call(path, None)

    def _call(self, path: str, body: bytes | None) -> dict[str, Any]:
        headers = {TOKEN_HEADER: self._token, "Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, data=body, headers=headers)
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                document = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            said = _said(error)
            if error.code >= 500:
                raise TransientError(f"the sandbox's head answered {error.code}: {said}") from None
            if error.code == 400:
                raise InvalidInput(said) from None
            raise PermanentError(f"the sandbox's head refused: {said}") from None
        except (OSError, ValueError) as error:
            raise TransientError(f"the sandbox's head at {self._url} does not answer: {error}") from None
        if not isinstance(document, dict):
            raise TransientError(f"the sandbox's head at {self._url} did not answer with a JSON object")
        return document


class ProcessScheduler:
    """The Scheduler port; errors as in HeadClient."""

    def __init__(self, url: str, token: str, timeout: float = TIMEOUT_SECONDS) -> None:
        self._head = HeadClient(url, token, timeout)

    def submit(self, request: SchedulerRequest) -> str:
        return str(self._head.post("/scheduler/submit", encode(request))["ticket"])

    def poll(self, ticket: str) -> Answer:
        return decode_answer(self._head.post("/scheduler/poll", {"ticket": ticket}))


class ProcessCommands:
    """The Commands port; errors as in HeadClient."""

    def __init__(self, url: str, token: str, timeout: float = TIMEOUT_SECONDS) -> None:
        self._head = HeadClient(url, token, timeout)

    def submit(self, document: str, node_ids: Sequence[str], parameters: Mapping[str, str]) -> str:
        body = {"document": document, "node_ids": list(node_ids), "parameters": dict(parameters)}
        return str(self._head.post("/commands/submit", body)["ticket"])

    def poll(self, ticket: str) -> Answer:
        return decode_answer(self._head.post("/commands/poll", {"ticket": ticket}))


def _said(error: urllib.error.HTTPError) -> str:
    try:
        document = json.loads(error.read())
        return str(document["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return str(error.reason)
