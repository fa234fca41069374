"""AWS Systems Manager in memory, as far as the Commands adapter asks it: SendCommand,
GetCommandInvocation and ListCommandInvocations, in SSM's own wire format.

It answers a real boto3 client at botocore's last step before the network, so that the client checks every
request against AWS's model and reads every answer by it. moto takes SendCommand, but runs nothing, knows no
documents and ends every command at once with an empty answer.
"""

import io
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import boto3
from botocore.awsrequest import AWSPreparedRequest, AWSResponse

SHOWN = 24_000
CUT = "\n---Output truncated---"
Run = Callable[[str, Mapping[str, str]], "Ended | None"]
"""(instance, parameters) -> how it ended; None while it runs."""


@dataclass(frozen=True, slots=True)
class Ended:
    """status: SSM's detailed one."""

    status: str
    output: str = ""
    said: str = ""
    code: int = 0


@dataclass(slots=True)
class Command:
    document: str
    parameters: dict[str, str]
    instances: list[str]
    bucket: str
    prefix: str
    at: float
    ended: dict[str, Ended] = field(default_factory=dict)


class _Refused(Exception):
    """(code, message) of an error answer."""


class SsmService:
    """documents: name -> content (schema 2.2). managed: instances whose agents report. objects: key -> body
    of the bucket. run: what documents do, by name. hidden_seconds: how long SSM does not show an invocation
    after the send. unable: action -> error code to answer with."""

    def __init__(self, documents: Mapping[str, Mapping[str, Any]], now: Callable[[], float]) -> None:
        self.documents = documents
        self.now = now
        self.managed: set[str] = set()
        self.run: dict[str, Run] = {}
        self.objects: dict[str, bytes] = {}
        self.hidden_seconds = 0.0
        self.unable: dict[str, str] = {}
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.commands: dict[str, Command] = {}
        self._numbers = itertools.count(1)

    def client(self) -> Any:
        client = boto3.client(
            "ssm", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
        )
        client.meta.events.register("before-send.ssm.*", self._answer)
        return client

    def _answer(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        target = request.headers["X-Amz-Target"]
        action = (target.decode() if isinstance(target, bytes) else target).partition(".")[2]
        body = request.body or b"{}"
        given = json.loads(body)
        self.requests.append((action, given))
        try:
            if code := self.unable.get(action):
                raise _Refused(code, "so it is")
            status, said = 200, getattr(self, f"_{action}")(given)
        except _Refused as error:
            status, said = 400, {"__type": error.args[0], "message": error.args[1]}
        headers = {"Content-Type": "application/x-amz-json-1.1"}
        return AWSResponse(request.url, status, headers, _Raw(json.dumps(said).encode()))

    def _SendCommand(self, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        content = self.documents.get(given["DocumentName"])
        if content is None:
            raise _Refused("InvalidDocument", "")
        instances = given["InstanceIds"]
        if len(instances) > 50 or len(set(instances)) != len(instances):
            raise _Refused("ValidationException", "InstanceIds")
        if unknown := [each for each in instances if each not in self.managed]:
            raise _Refused("InvalidInstanceId", f"Instances {unknown} not in a valid state for account")
        if not 30 <= given["TimeoutSeconds"] <= 2_592_000:
            raise _Refused("ValidationException", "TimeoutSeconds")
        parameters = _filled(content["parameters"], given.get("Parameters", {}))
        number = f"00000000-0000-4000-8000-{next(self._numbers):012d}"
        self.commands[number] = Command(
            given["DocumentName"],
            parameters,
            instances,
            given["OutputS3BucketName"],
            given["OutputS3KeyPrefix"],
            self.now(),
        )
        return {"Command": {"CommandId": number, "Status": "Pending", "StatusDetails": "Pending"}}

    def _GetCommandInvocation(self, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        number, node = given["CommandId"], given["InstanceId"]
        command = self.commands.get(number)
        if command is None or node not in command.instances or self._hidden(command):
            raise _Refused("InvocationDoesNotExist", "")
        ended = self._ended(command, node)
        key = f"{command.prefix}/{number}/{node}/awsrunShellScript/run/stdout"
        if ended.output:
            self.objects[key] = ended.output.encode()
        cut = ended.output
        if len(cut) > SHOWN:
            cut = cut[: SHOWN - len(CUT)] + CUT
        return {
            "CommandId": number,
            "InstanceId": node,
            "Status": _coarse(ended.status),
            "StatusDetails": ended.status,
            "ResponseCode": ended.code,
            "StandardOutputContent": cut,
            "StandardOutputUrl": f"https://s3.us-east-1.amazonaws.com/{command.bucket}/{key}",
            "StandardErrorContent": ended.said[:8000],
        }

    def _ListCommandInvocations(self, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        command = self.commands.get(given["CommandId"])
        if command is None or self._hidden(command):
            return {"CommandInvocations": []}
        start = int(given.get("NextToken", 0))
        page = command.instances[start : start + 20]
        words = {node: self._ended(command, node).status for node in page}
        found = [
            {"InstanceId": node, "Status": _coarse(word), "StatusDetails": word}
            for node, word in words.items()
        ]
        more = start + 20 < len(command.instances)
        return {"CommandInvocations": found, **({"NextToken": str(start + 20)} if more else {})}

    def _hidden(self, command: Command) -> bool:
        return self.now() < command.at + self.hidden_seconds

    def _ended(self, command: Command, node: str) -> Ended:
        if node not in command.ended:
            ended = self.run[command.document](node, command.parameters)
            if ended is None:
                return Ended("InProgress")
            if ended.status in ("Pending", "Delayed", "InProgress", "Cancelling"):
                return ended
            command.ended[node] = ended
        return command.ended[node]


class _Raw(io.BytesIO):
    """The body of an answer, as urllib3 gives it to botocore."""

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.read()


def _filled(known: Mapping[str, Mapping[str, str]], given: Mapping[str, list[str]]) -> dict[str, str]:
    """As SSM takes parameters: known names, one value each, the pattern, the default."""
    if unknown := set(given) - set(known):
        raise _Refused("InvalidParameters", f"{unknown}")
    filled = {}
    for name, rule in known.items():
        values = given.get(name, [rule["default"]] if "default" in rule else [])
        if len(values) != 1 or not re.fullmatch(rule["allowedPattern"], values[0]):
            raise _Refused("InvalidParameters", f"{name}: {values}")
        filled[name] = values[0]
    return filled


def _coarse(word: str) -> str:
    """The status that goes with a detailed one."""
    if word in ("DeliveryTimedOut", "ExecutionTimedOut"):
        return "TimedOut"
    known = ("Pending", "InProgress", "Delayed", "Success", "Cancelled", "Cancelling")
    return word if word in known else "Failed"
