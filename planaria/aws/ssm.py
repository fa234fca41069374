"""The Commands port over SSM Run Command: Planaria's own documents, and no others.

https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_SendCommand.html
https://docs.aws.amazon.com/systems-manager/latest/userguide/monitor-commands.html (what each status means)

An instance that cannot be reached is UNKNOWN and never FAILED: only a program that ran and ended badly has
failed. SSM gives out the first 24,000 characters of an answer; the whole of a longer one is in the bucket,
below `commands/`.
"""

import json
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from planaria.aws.errors import code_of, of_command, translated
from planaria.core import documents
from planaria.core.errors import PlanariaError, TransientError
from planaria.core.ports import Answer, AnswerState

MOST_INSTANCES = 50
"""Of one SendCommand."""

DELIVERY_SECONDS = 30
"""The least that SSM allows. The time that the document may run is added to it before SSM gives up."""

UNDELIVERED_SECONDS = 60.0
"""After so long we take a command that no agent has begun for one that cannot be delivered."""

APPEARS_SECONDS = 30.0
"""How long after the send an invocation may still be unknown to SSM."""

S3_PREFIX = "commands"
CUT_LENGTH = 24_000
_CUT = "---Output truncated---"
_REASON_LENGTH = 300

_WAITING = frozenset({"Pending", "Delayed"})
_UNDER_WAY = frozenset({"InProgress", "Cancelling"})
_NOWHERE = "-"  # stands for the command id of instances that SSM would not send to

UNREACHED: Mapping[str, str] = {
    "DeliveryTimedOut": "its SSM agent did not take the command in time",
    "TimedOut": "its SSM agent did not take the command in time",
    "ExecutionTimedOut": "the command did not end in time",
    "Undeliverable": "its SSM agent cannot be reached",
    "Terminated": "the command was given up",
    "Cancelled": "the command was cancelled",
    "InvalidPlatform": "the document does not fit its platform",
    "AccessDenied": "the node may not run the document",
}
"""Ends of which nothing follows about what the command was to find out or to do. Any other word counts so."""


@dataclass(frozen=True, slots=True)
class _End:
    """How it stands on one node. status: PENDING, SUCCESS, FAILED or UNKNOWN."""

    status: str
    output: Any = None

    def entry(self) -> dict[str, Any]:
        return {"status": self.status, "output": self.output}


PENDING = _End("PENDING")


class SsmCommands:
    """client: a boto3 ssm client. cluster: part of the documents' names. bucket: where agents put whole
    answers, read(key): one of its objects. now: epoch seconds.

    Parameters are checked before anything is sent (InvalidInput). A document that this release has not fails
    on every node, as a program that is missing there would. Raises TransientError when SSM cannot be
    reached or does not know the instance, PermanentError when it refuses.
    """

    def __init__(
        self,
        client: Any,
        cluster: str,
        bucket: str,
        read: Callable[[str], bytes],
        now: Callable[[], float],
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._bucket = bucket
        self._read = read
        self._now = now

    # --- the port --------------------------------------------------------------------------------

    def submit(self, document: str, node_ids: Sequence[str], parameters: Mapping[str, str]) -> str:
        nodes = list(dict.fromkeys(node_ids))
        known = documents.find(document)
        if known is None:
            return json.dumps({"missing": document, "nodes": nodes})
        values = known.checked(parameters)
        given = {name: [value] for name, value in values.items() if value != known.parameters[name].default}
        sent: list[tuple[str, list[str]]] = []
        for start in range(0, len(nodes), MOST_INSTANCES):
            sent += self._send(document, nodes[start : start + MOST_INSTANCES], given)
        if nodes and all(command == _NOWHERE for command, _ in sent):
            raise TransientError(f"SSM cannot reach {', '.join(nodes[:3])}")
        return json.dumps({"at": int(self._now()), "sent": sent})

    def poll(self, ticket: str) -> Answer:
        given = _ticket(ticket)
        if given is None:
            return Answer(AnswerState.UNKNOWN, reason=f"{ticket!r:.60} is no ticket of SSM: ask again")
        if "missing" in given:
            reason = {"reason": f"there is no document {given['missing']} in this release"}
            return Answer(AnswerState.DONE, {node: _End("FAILED", reason).entry() for node in given["nodes"]})
        age = self._now() - float(given["at"])
        ends: dict[str, _End] = {}
        for command, nodes in given["sent"]:
            ends |= self._ends(command, nodes, age)
            if PENDING in ends.values():
                return Answer(AnswerState.PENDING)
        unknown = [f"{node}: {end.output['reason']}" for node, end in ends.items() if end.status == "UNKNOWN"]
        if unknown and len(unknown) == len(ends):
            return Answer(AnswerState.UNKNOWN, reason="; ".join(unknown[:3]))
        return Answer(AnswerState.DONE, {node: end.entry() for node, end in ends.items()})

    # --- sending ---------------------------------------------------------------------------------

    def _send(
        self, document: str, nodes: list[str], given: Mapping[str, list[str]]
    ) -> list[tuple[str, list[str]]]:
        """(command id, nodes) of what was sent. One instance that SSM does not know spoils the call for
        all of them; each is then sent to by itself."""
        try:
            with translated(of_command):
                answer = self._client.send_command(
                    DocumentName=documents.aws_name(self._cluster, document),
                    InstanceIds=nodes,
                    Parameters=dict(given),
                    TimeoutSeconds=DELIVERY_SECONDS,
                    OutputS3BucketName=self._bucket,
                    OutputS3KeyPrefix=S3_PREFIX,
                    # By default the first failure keeps the command from all nodes that are left.
                    MaxConcurrency="100%",
                    MaxErrors="100%",
                )
        except TransientError as error:
            cause = error.__cause__
            if not isinstance(cause, ClientError) or code_of(cause) != "InvalidInstanceId":
                raise
            if len(nodes) == 1:
                return [(_NOWHERE, nodes)]
            return [each for node in nodes for each in self._send(document, [node], given)]
        return [(str(answer["Command"]["CommandId"]), nodes)]

    # --- asking ----------------------------------------------------------------------------------

    def _ends(self, command: str, nodes: list[str], age: float) -> dict[str, _End]:
        """How it stands on each node. Outputs are only fetched once nothing is pending."""
        if command == _NOWHERE:
            return {node: _unknown("SSM does not know it: its agent does not report") for node in nodes}
        if len(nodes) == 1:
            return {nodes[0]: self._end(command, nodes[0], age)}
        words = self._words(command)
        open_ends = {node: _open(words.get(node, ""), age) for node in nodes}
        pending = {node: end for node, end in open_ends.items() if end is not None}
        if PENDING in pending.values():
            return pending
        return {node: pending.get(node) or self._end(command, node, age) for node in nodes}

    def _words(self, command: str) -> dict[str, str]:
        with translated(of_command):
            pages = self._client.get_paginator("list_command_invocations").paginate(CommandId=command)
            return {
                str(found["InstanceId"]): _word(found)
                for page in pages
                for found in page["CommandInvocations"]
            }

    def _end(self, command: str, node: str, age: float) -> _End:
        try:
            with translated(of_command):
                found = self._client.get_command_invocation(CommandId=command, InstanceId=node)
        except PlanariaError as error:
            cause = error.__cause__
            code = code_of(cause) if isinstance(cause, ClientError) else ""
            if code in ("InvocationDoesNotExist", "InvalidCommandId"):
                return PENDING if age < APPEARS_SECONDS else _unknown("SSM does not know this command")
            raise
        word = _word(found)
        if (end := _open(word, age)) is not None:
            return end
        match word:
            case "Success":
                return self._success(found)
            case "Failed":
                return _failed(found)
        return _unknown(UNREACHED.get(word, f"the command ended as {word or 'nothing'}"))

    def _success(self, found: Mapping[str, Any]) -> _End:
        text = str(found.get("StandardOutputContent") or "")
        if len(text) >= CUT_LENGTH or text.rstrip().endswith(_CUT):
            try:
                text = self._whole(str(found.get("StandardOutputUrl") or ""))
            except (PlanariaError, ValueError) as error:
                return _unknown(f"the answer is cut, and the whole of it cannot be read: {error}")
        try:
            return _End("SUCCESS", json.loads(text))
        except ValueError:
            return _unknown(f"the answer is no JSON: {text.strip()[:_REASON_LENGTH]!r}")

    def _whole(self, url: str) -> str:
        """url: of the object, with the bucket in the host or as the path's first part."""
        parts = urllib.parse.urlsplit(url)
        path = urllib.parse.unquote(parts.path).lstrip("/")
        if not parts.netloc.startswith(f"{self._bucket}."):
            bucket, _, path = path.partition("/")
            if bucket != self._bucket:
                raise ValueError(f"{url!r:.120} does not lie in the bucket {self._bucket}")
        if not path.startswith(f"{S3_PREFIX}/"):
            raise ValueError(f"{url!r:.120} is no answer of a command")
        return self._read(path).decode()


def _ticket(text: str) -> dict[str, Any] | None:
    try:
        given = json.loads(text)
    except ValueError:
        return None
    shaped = isinstance(given, dict) and ({"missing", "nodes"} <= set(given) or {"at", "sent"} <= set(given))
    return given if shaped else None


def _word(found: Mapping[str, Any]) -> str:
    """The detailed status; some answers spell it with spaces."""
    return str(found.get("StatusDetails") or found.get("Status") or "").replace(" ", "")


def _open(word: str, age: float) -> _End | None:
    """What it is while it has not ended; None when it has. "": SSM shows no invocation."""
    if not word:
        return PENDING if age < APPEARS_SECONDS else _unknown("SSM does not know this command")
    if word in _WAITING:
        late = age >= UNDELIVERED_SECONDS
        return _unknown(f"the command is not delivered after {age:.0f} s") if late else PENDING
    return PENDING if word in _UNDER_WAY else None


def _unknown(reason: str) -> _End:
    return _End("UNKNOWN", {"reason": reason})


def _failed(found: Mapping[str, Any]) -> _End:
    """The program's own reason where it printed one, else the end of what it said."""
    text = str(found.get("StandardOutputContent") or "")
    try:
        output = json.loads(text)
        if isinstance(output, dict) and "reason" in output:
            return _End("FAILED", output)
    except ValueError:
        pass
    said = (str(found.get("StandardErrorContent") or "").strip() or text.strip())[-_REASON_LENGTH:]
    status = found.get("ResponseCode", "unknown")
    return _End("FAILED", {"reason": f"the program ended with status {status}: {said or 'it said nothing'}"})
