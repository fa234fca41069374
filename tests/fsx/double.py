"""Amazon FSx's three calls of data repository tasks over HTTP, for tests, on directories of this machine and
an object store.

Every request and every answer is checked against botocore's model of the service; what does not fit is in
`complaints`, and the client gets a BadRequest. Time stands still: a task moves on when `move` is called, or,
with `self_moving`, by one stage with every DescribeDataRepositoryTasks. Point a client at it with
endpoint_url, or a process with the environment variable AWS_ENDPOINT_URL_FSX.
"""

import base64
import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.fsx.file_system import Bucket, FileSystem, MemoryBucket
from tests.fsx.shapes import SERVICE, complaints

TARGET = f"{SERVICE.metadata['targetPrefix']}."
OVER = frozenset({"SUCCEEDED", "FAILED", "CANCELED"})
REPORT_NAMES = {"EXPORT_TO_REPOSITORY": "failures.csv", "IMPORT_METADATA_FROM_REPOSITORY": "report.csv"}
START = 1_793_610_845.0


class Refused(Exception):
    """(code, message) of an error answer."""


@dataclass(slots=True)
class Task:
    """left: what it has still to do; failures: (path, code)."""

    id: str
    request: dict[str, Any]
    at: float
    lifecycle: str = "PENDING"
    message: str = ""
    started: float | None = None
    ended: float | None = None
    left: list[Any] = field(default_factory=list)
    total: int = 0
    succeeded: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)


class FsxDouble:
    """tasks: all that were ever created, in order. unable: action -> codes to answer with, one per call,
    before anything is done; lost: actions whose next answer gets lost after all is done. files_at_once: how
    many files one stage of a task exports. forgetful: tokens are not remembered."""

    def __init__(
        self, bucket: Bucket | None = None, *, self_moving: bool = False, files_at_once: int = 0
    ) -> None:
        self.bucket: Bucket = bucket if bucket is not None else MemoryBucket()
        self.file_systems: dict[str, FileSystem] = {}
        self.tasks: dict[str, Task] = {}
        self.complaints: list[str] = []
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.unable: dict[str, list[str]] = {}
        self.lost: list[str] = []
        self.forgetful = False
        self._self_moving = self_moving
        self._at_once = files_at_once
        self._numbers = itertools.count(1)
        self._clock = itertools.count()
        self._lock = threading.RLock()

    def reset(self) -> None:
        """As new: for the next test."""
        with self._lock:
            for kept in (
                self.file_systems,
                self.tasks,
                self.complaints,
                self.requests,
                self.unable,
                self.lost,
            ):
                kept.clear()
            self.forgetful = False
            self._numbers = itertools.count(1)

    def add(self, file_system: FileSystem) -> None:
        self.file_systems[file_system.id] = file_system

    @contextmanager
    def served(self) -> Iterator[str]:
        """-> the URL, on a free port of the loopback address."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def answer(self, action: str, given: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """One call -> HTTP status and body."""
        with self._lock:
            self.requests.append((action, given))
            try:
                if self.unable.get(action):
                    raise Refused(self.unable[action].pop(0), "so it is")
                operation = SERVICE.operation_model(action)
                if wrong := complaints(operation.input_shape, given):
                    self.complaints += wrong
                    raise Refused("BadRequest", wrong[0][:256])
                said = getattr(self, f"_{action}")(given)
                self.complaints += [
                    f"answer of {action}: {c}" for c in complaints(operation.output_shape, said)
                ]
            except Refused as refused:
                code, message = refused.args
                body = {"__type": code, "Message": message}
                if code == "IncompatibleParameterError":
                    body["Parameter"] = "Paths"
                self._known(action, code)
                return (500 if code == "InternalServerError" else 400), body
            return 200, said

    def _known(self, action: str, code: str) -> None:
        known = {shape.name for shape in SERVICE.operation_model(action).error_shapes}
        if code not in known | {"ThrottlingException", "AccessDeniedException", "BadRequest"}:
            self.complaints.append(f"{action} never answers {code}, but {sorted(known)}")

    # --- the three calls -----------------------------------------------------------------------------------

    def _CreateDataRepositoryTask(self, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        where = self.file_systems.get(given["FileSystemId"])
        if where is None:
            raise Refused("FileSystemNotFound", f"File system '{given['FileSystemId']}' does not exist.")
        if not where.links:
            raise Refused("BadRequest", "The file system is not linked to a data repository.")
        if given["Report"]["Enabled"] and not {"Path", "Format", "Scope"} <= set(given["Report"]):
            raise Refused("BadRequest", "Report must have Path, Format and Scope.")
        for task in self.tasks.values():
            if not self.forgetful and task.request["ClientRequestToken"] == given.get("ClientRequestToken"):
                if task.request != given:
                    raise Refused("IncompatibleParameterError", "The token was used with other parameters.")
                return {"DataRepositoryTask": self._shown(task)}
        if any(
            t.request["FileSystemId"] == where.id and t.lifecycle not in OVER for t in self.tasks.values()
        ):
            raise Refused("DataRepositoryTaskExecuting", "A task is already executing on the file system.")
        number = f"task-{next(self._numbers):017x}"
        self.tasks[number] = task = Task(number, given, self._now())
        return {"DataRepositoryTask": self._shown(task)}

    def _DescribeDataRepositoryTasks(self, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        found = list(self.tasks.values())
        for number in given.get("TaskIds", []):
            if number not in self.tasks:
                raise Refused("DataRepositoryTaskNotFound", f"Task '{number}' does not exist.")
        if given.get("TaskIds"):
            found = [self.tasks[number] for number in given["TaskIds"]]
        if self._self_moving:
            for task in found:
                self.move(task.id)
        for asked in given.get("Filters", []):
            wanted = asked["Values"]
            if asked["Name"] == "file-system-id":
                found = [task for task in found if task.request["FileSystemId"] in wanted]
            elif asked["Name"] == "task-lifecycle":
                if unknown := set(wanted) - {"CANCELED", "EXECUTING", "FAILED", "PENDING", "SUCCEEDED"}:
                    raise Refused("BadRequest", f"No task-lifecycle to filter by: {sorted(unknown)}")
                found = [task for task in found if task.lifecycle in wanted]
        start = int(base64.b64decode(given["NextToken"])) if "NextToken" in given else 0
        size = min(given.get("MaxResults", 50), 50)
        page: dict[str, Any] = {"DataRepositoryTasks": [self._shown(t) for t in found[start : start + size]]}
        if start + size < len(found):
            page["NextToken"] = base64.b64encode(str(start + size).encode()).decode()
        return page

    def _CancelDataRepositoryTask(self, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        task = self.tasks.get(given["TaskId"])
        if task is None:
            raise Refused("DataRepositoryTaskNotFound", f"Task '{given['TaskId']}' does not exist.")
        if task.lifecycle in OVER:
            raise Refused("DataRepositoryTaskEnded", "The task has already ended.")
        task.lifecycle = "CANCELING"
        return {"TaskId": task.id, "Lifecycle": task.lifecycle}

    # --- what FSx does by itself ---------------------------------------------------------------------------

    def move(self, task_id: str) -> str:
        """One stage on -> the lifecycle: PENDING, EXECUTING (some files each), then its end."""
        with self._lock:
            task = self.tasks[task_id]
            if task.lifecycle == "PENDING":
                self._begin(task)
            elif task.lifecycle == "CANCELING":
                self._end(task, "CANCELED")
            elif task.lifecycle == "EXECUTING":
                self._work(task, self._at_once or len(task.left))
                if not task.left:
                    self._end(task, "FAILED" if task.failures else "SUCCEEDED")
            return task.lifecycle

    def finish(self, task_id: str) -> str:
        """All stages at once -> its end."""
        while (word := self.move(task_id)) not in OVER:
            pass
        return word

    def _begin(self, task: Task) -> None:
        where = self.file_systems[task.request["FileSystemId"]]
        task.lifecycle, task.started = "EXECUTING", self._now()
        for path in task.request.get("Paths") or [""]:
            try:
                if task.request["Type"] == "EXPORT_TO_REPOSITORY":
                    if where.link(path) is None:
                        raise FileNotFoundError(path)
                    task.left += where.below(path.strip("/"))
                else:
                    if not where.owns(path):
                        raise FileNotFoundError(path)
                    task.left += where.listed(path, self.bucket)
            except FileNotFoundError:
                task.message = f"The path {path} is not valid."[:256]
                self._end(task, "FAILED")
                return
        task.total = len(task.left)

    def _work(self, task: Task, count: int) -> None:
        where = self.file_systems[task.request["FileSystemId"]]
        todo, task.left = task.left[:count], task.left[count:]
        for each in todo:
            if isinstance(each, tuple):
                where.take(each, self.bucket)
                task.succeeded += 1
            elif code := where.export(each, self.bucket):
                task.failures.append((each.rstrip("/"), code))
            else:
                task.succeeded += 1

    def _end(self, task: Task, word: str) -> None:
        task.lifecycle, task.ended = word, self._now()
        report = task.request["Report"]
        where = self.file_systems[task.request["FileSystemId"]]
        if not task.failures or not report["Enabled"] or not where.owns(report["Path"]):
            return  # FSx says nothing of a report that it may not write but in its log
        name, _, prefix = report["Path"].removeprefix("s3://").partition("/")
        key = f"{prefix.rstrip('/')}/{task.id}/{REPORT_NAMES[task.request['Type']]}"
        lines = "".join(f"{_field(path)},failed,{code}\n" for path, code in task.failures)
        self.bucket.put(name, key, lines.encode())

    def _shown(self, task: Task) -> dict[str, Any]:
        given = task.request
        shown: dict[str, Any] = {
            "TaskId": task.id,
            "Lifecycle": task.lifecycle,
            "Type": given["Type"],
            "CreationTime": task.at,
            "FileSystemId": given["FileSystemId"],
            "Paths": given.get("Paths", []),
            "Report": given["Report"],
            "ResourceARN": f"arn:aws:fsx:us-east-1:111122223333:task/{task.id}",
        }
        if given.get("Tags"):
            shown["Tags"] = given["Tags"]
        if task.started is not None:
            shown["StartTime"] = task.started
            shown["Status"] = {
                "TotalCount": task.total,
                "SucceededCount": task.succeeded,
                "FailedCount": len(task.failures),
                "LastUpdatedTime": task.ended or task.started,
            }
        if task.ended is not None:
            shown["EndTime"] = task.ended
        if task.lifecycle == "FAILED" and task.message:
            shown["FailureDetails"] = {"Message": task.message}
        return shown

    def _now(self) -> float:
        return START + next(self._clock)


def _field(path: str) -> str:
    """A path as FSx writes it into a report."""
    text = f'"{path}"' if path.startswith(("@", "+", "-", "=")) else path
    quoted = text.replace('"', '""')
    return f'"{quoted}"' if '"' in text or "," in text else text


def _handler(double: FsxDouble) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            target = self.headers.get("X-Amz-Target", "")
            action = target.removeprefix(TARGET)
            if not target.startswith(TARGET) or not hasattr(double, f"_{action}"):
                status, said = 400, {"__type": "UnknownOperationException", "message": target}
                double.complaints.append(f"there is no operation {target!r}")
            else:
                status, said = double.answer(action, json.loads(body or b"{}"))
            if status == 200 and action in double.lost:
                double.lost.remove(action)
                self.close_connection = True
                return
            content = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Quiet."""

    return Handler
