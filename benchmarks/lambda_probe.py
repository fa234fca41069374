"""In front of the Lambdas of a benchmark's deployment, and of no other: one JSON line for every invocation.

`install` puts this file into the code asset of a synthesised app and turns the functions' handlers to
`benchmarks.lambda_probe.<function>`, which call the real ones. What is counted is the handler alone: the
clocks stand still while the line is made. A line has

    f                  the function
    at, wall, cpu      epoch seconds of the start, seconds, seconds of processor time
    cold               {"wall", "cpu"} of the process before its first handler, on its first line
    error, result      name of the exception, result of a Task
    nodes, records     instance ids that the event is about, in order; messages of a batch
    memory, log, logs  MB; bytes and lines logged
    writes, reads      [pk, sk, bytes of the row] of each request to the table
    breaker            seconds of each request to the breaker's row
    calls              {"service.Operation": number}
    launched           [[instance id, tags]]
    rebooted, terminated   instance ids
"""

import importlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import costs

PACKAGE = "benchmarks"
MODULE = f"{PACKAGE}.lambda_probe"
TARGET = "lambda_probe.json"  # beside this file in the asset: where to write
_HANDLER = re.compile(r"lambdas\.(\w+)\.handler")

BREAKER = "FLEET"  # partition of the one row that all removals write

Call = tuple[str, str, Mapping[str, Any], Mapping[str, Any], float]
"""Service, operation, parameters, answer, seconds."""


# --- before the deployment ----------------------------------------------------------------------------------


def install(assembly: Path, target: Path) -> int:
    """Instrument every function of a cloud assembly; the lines go to `target`. Returns how many there are."""
    number, assets = 0, set[str]()
    for template in sorted(assembly.glob("*.template.json")):
        document = json.loads(template.read_text(encoding="utf-8"))
        for resource in document.get("Resources", {}).values():
            found = _HANDLER.fullmatch(str(resource.get("Properties", {}).get("Handler", "")))
            if resource["Type"] == "AWS::Lambda::Function" and found:
                resource["Properties"]["Handler"] = f"{MODULE}.{found[1]}"
                assets.add(str(resource["Properties"]["Code"]["S3Key"]).partition(".")[0])
                number += 1
        template.write_text(json.dumps(document), encoding="utf-8")
    for asset in assets:
        package = assembly / f"asset.{asset}" / PACKAGE
        package.mkdir()
        (package / "__init__.py").touch()
        for source in (Path(__file__), Path(costs.__file__)):
            (package / source.name).write_bytes(source.read_bytes())
        (package / TARGET).write_text(json.dumps(str(target)), encoding="utf-8")
    return number


# --- inside the Lambda --------------------------------------------------------------------------------------


class _Counted:
    """A text stream that counts what is written to it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.bytes = self.lines = 0

    def write(self, text: str) -> int:
        self.bytes += len(text)
        self.lines += text.count("\n")
        return int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Probe:
    """Notes what one function does. One invocation at a time, as in Lambda."""

    def __init__(self, name: str, target: Path) -> None:
        self._name = name
        self._file = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._calls: list[Call] = []
        self._cold: dict[str, float] | None = None
        sys.stdout = self._log = _Counted(sys.stdout)  # before the logger takes it
        self._listen()

    def _listen(self) -> None:
        from botocore import handlers

        # A session copies these when it is made, which is after this.
        handlers.BUILTIN_HANDLERS.append(("before-parameter-build", self._asked))
        handlers.BUILTIN_HANDLERS.append(("after-call", self._answered))

    @staticmethod
    def _asked(params: Mapping[str, Any], context: dict[str, Any], **_: Any) -> None:
        context["probe"] = params, time.perf_counter()

    def _answered(self, parsed: Mapping[str, Any], model: Any, context: Mapping[str, Any], **_: Any) -> None:
        params, began = context["probe"]
        seconds = time.perf_counter() - began
        self._calls.append((model.service_model.service_name, model.name, params, parsed, seconds))

    def ready(self) -> None:
        """The handler is imported: what the process has used until now is its cold start."""
        self._cold = {"wall": time.time() - _process_began(), "cpu": time.process_time()}

    def run(self, handler: Callable[[Any, Any], Any], event: Any, context: Any) -> Any:
        self._calls.clear()
        result, error, logged, logs = None, "", self._log.bytes, self._log.lines
        at, wall, cpu = time.time(), time.perf_counter(), time.process_time()
        try:
            result = handler(event, context)
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            line: dict[str, Any] = {"f": self._name, "at": at, "wall": wall, "cpu": cpu, "error": error}
            line |= {"log": self._log.bytes - logged, "logs": self._log.lines - logs}
            line["memory"] = int(getattr(context, "memory_limit_in_mb", 0))
            if self._cold is not None:
                line["cold"], self._cold = self._cold, None
            if isinstance(result, Mapping) and "result" in result:
                line["result"] = result["result"]
            os.write(self._file, json.dumps(line | about(event) | told(self._calls)).encode() + b"\n")
        return result


def about(event: Mapping[str, Any]) -> dict[str, Any]:
    """Which nodes an event is about, and how many messages a batch has."""
    records = event.get("Records")
    if records is not None:
        bodies = [json.loads(record["body"]) for record in records]
        return {"records": len(records), "nodes": [node for body in bodies if (node := _node_of(body))]}
    for key in ("incident", "document"):
        if isinstance(event.get(key), Mapping) and (node := event[key].get("node_id")):
            return {"nodes": [node]}
    return {"nodes": []}


def _node_of(event: Mapping[str, Any]) -> str:
    detail = event.get("detail") or {}
    return str(detail.get("instance_id") or detail.get("instance-id") or "")


def told(calls: list[Call]) -> dict[str, Any]:
    """The calls as a line has them."""
    found: dict[str, Any] = {"calls": {}, "writes": [], "reads": []}
    for service, operation, parameters, answer, seconds in calls:
        name = f"{service}.{operation}"
        found["calls"][name] = found["calls"].get(name, 0) + 1
        if service == "dynamodb":
            _row_access(found, operation, parameters, answer)
            if parameters.get("Key", {}).get("pk", {}).get("S") == BREAKER:
                found.setdefault("breaker", []).append(seconds)
        elif operation == "CreateFleet":
            tags = {
                tag["Key"]: tag["Value"]
                for each in parameters.get("TagSpecifications", [])
                for tag in each.get("Tags", [])
            }
            for each in answer.get("Instances", []):
                found.setdefault("launched", []).extend([node, tags] for node in each["InstanceIds"])
        elif operation in ("RebootInstances", "TerminateInstances") and "Error" not in answer:
            what = "rebooted" if operation == "RebootInstances" else "terminated"
            found.setdefault(what, []).extend(parameters.get("InstanceIds", []))
    return found


def _row_access(
    found: dict[str, Any], operation: str, parameters: Mapping[str, Any], answer: Mapping[str, Any]
) -> None:
    """A refused conditional write costs as much as one that was done, and brings the row back as well."""
    if operation in ("UpdateItem", "PutItem", "DeleteItem"):
        row = answer.get("Attributes") or answer.get("Item") or {}
        found["writes"].append([*_key(parameters["Key"]), costs.item_bytes(row)])
    elif operation == "GetItem":
        found["reads"].append([*_key(parameters["Key"]), costs.item_bytes(answer.get("Item") or {})])
    elif operation in ("BatchGetItem", "Query"):
        pages = answer.get("Responses", {"": answer.get("Items", [])})
        found["reads"] += [[*_key(row), costs.item_bytes(row)] for rows in pages.values() for row in rows]


def _key(row: Mapping[str, Any]) -> Iterator[str]:
    for name in ("pk", "sk"):
        yield str(row.get(name, {}).get("S", ""))


def _process_began() -> float:
    """Epoch seconds at which this process was started."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    return time.time() - uptime + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def __getattr__(name: str) -> Callable[[Any, Any], Any]:
    """The handler of lambdas/<name>.py with a probe around it."""
    target = Path(__file__).with_name(TARGET)
    if name.startswith("_") or not target.exists():
        raise AttributeError(name)
    probe = Probe(name, Path(json.loads(target.read_text(encoding="utf-8"))))
    handler = importlib.import_module(f"lambdas.{name}").handler

    def measured(event: Any, context: Any) -> Any:
        return probe.run(handler, event, context)

    probe.ready()
    return measured
