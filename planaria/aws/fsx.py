"""The DataRepository port on Amazon FSx for Lustre.

https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateDataRepositoryTask.html
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import ClientError, ParamValidationError

from planaria.aws.errors import SAID_LENGTH, code_of, meaning, translated
from planaria.core import tags
from planaria.core.checkpoint_policy import Checkpoints
from planaria.core.checkpoint_ports import RepositoryTask, TaskState
from planaria.core.errors import InvalidInput, PermanentError, PlanariaError, Waiting

EXPORT, IMPORT = "EXPORT_TO_REPOSITORY", "IMPORT_METADATA_FROM_REPOSITORY"
REPORTS: Mapping[str, str] = {EXPORT: "failures.csv", IMPORT: "report.csv"}
"""The name of the report that a task of this kind leaves."""
MOST_PATHS = 100
TOKEN_TAG = "planaria:token"  # noqa: S105

_TOKEN = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_TASK = re.compile(r"task-[0-9a-f]{17,}")
_UNPRINTABLE = re.compile("[\0\x85\u2028\u2029\r\n]")
_PAGES = 20
# A retry of these fails alike; what a person has to do follows the code.
_REFUSALS: Mapping[str, str] = {
    "BadRequest": "FSx does not take this request",
    "FileSystemNotFound": "FSx knows no such file system: see checkpoints.file_systems of the cluster file",
    "IncompatibleParameterError": "this token was used for another task",
    "ServiceLimitExceeded": "a quota of FSx is used up: ask AWS Support for more",
    "UnsupportedOperation": "this file system has no data repository tasks: only FSx for Lustre with a data "
    "repository association has",
}
_GONE = "DataRepositoryTaskNotFound"


class FsxDataRepository:
    """client: a boto3 client of `fsx`; checkpoints: its file systems say where reports may be written, for
    FSx writes them nowhere but in a file system's own repositories; cluster: the tag by which IAM knows our
    tasks."""

    def __init__(self, client: Any, checkpoints: Checkpoints, cluster: str) -> None:
        self._client = client
        self._cluster = cluster
        self._checkpoints = checkpoints

    def start(self, file_system: str, kind: str, paths: Sequence[str], token: str) -> str:
        """Raises InvalidInput for what FSx would take and do something else with: without any paths it
        exports the whole file system, and so it does for the root's."""
        report = self._report(file_system, kind, paths)
        # S3's prefix of step-5 is also that of step-50.
        sent = [f"{path.rstrip('/')}/" if kind == IMPORT else path.strip("/") for path in paths]
        if not _TOKEN.fullmatch(token):
            raise InvalidInput(
                f"the token {token!r:.80} must be 1 to 63 characters of A-Z, a-z, 0-9, _, . and -"
            )
        try:
            with _refusals():
                answer = self._client.create_data_repository_task(
                    FileSystemId=file_system,
                    Type=kind,
                    Paths=sent,
                    ClientRequestToken=token,
                    Report={
                        "Enabled": True,
                        "Path": report,
                        "Format": "REPORT_CSV_20191124",
                        "Scope": "FAILED_FILES_ONLY",
                    },
                    Tags=[
                        {"Key": tags.CLUSTER, "Value": self._cluster},
                        {"Key": TOKEN_TAG, "Value": token},
                    ],
                )
        except Waiting:
            # It may be ours: an earlier answer was lost, and FSx has forgotten the token.
            for found in self._open(file_system):
                if {"Key": TOKEN_TAG, "Value": token} in found.get("Tags", []):
                    return str(found["TaskId"])
            raise
        return str(answer["DataRepositoryTask"]["TaskId"])

    def task(self, task_id: str) -> RepositoryTask:
        if not _TASK.fullmatch(task_id):
            raise InvalidInput(
                f"{task_id!r:.80} is no id of a data repository task, such as task-0123456789abcdef0"
            )
        try:
            with _refusals():
                found = self._client.describe_data_repository_tasks(TaskIds=[task_id])["DataRepositoryTasks"]
        except PlanariaError as error:
            if _said(error) == _GONE:
                return RepositoryTask(task_id, TaskState.NONE)
            raise
        return _task(found[0]) if found else RepositoryTask(task_id, TaskState.NONE)

    def tasks(self, file_system: str) -> list[RepositoryTask]:
        """PENDING and EXECUTING ones: FSx filters by no other state of a task that is not over."""
        return [_task(found) for found in self._open(file_system)]

    def cancel(self, task_id: str) -> None:
        """Quiet about a task that is over or that FSx does not know. What is exported stays exported."""
        try:
            with _refusals():
                self._client.cancel_data_repository_task(TaskId=task_id)
        except PlanariaError as error:
            if _said(error) not in (_GONE, "DataRepositoryTaskEnded"):
                raise

    def _open(self, file_system: str) -> list[dict[str, Any]]:
        filters = [
            {"Name": "file-system-id", "Values": [file_system]},
            {"Name": "task-lifecycle", "Values": [TaskState.PENDING.value, TaskState.EXECUTING.value]},
        ]
        found: list[dict[str, Any]] = []
        asked: dict[str, str] = {}
        for _ in range(_PAGES):
            with _refusals():
                page = self._client.describe_data_repository_tasks(Filters=filters, **asked)
            found += page["DataRepositoryTasks"]
            if not page.get("NextToken"):
                break
            asked = {"NextToken": page["NextToken"]}
        return found

    def _report(self, file_system: str, kind: str, paths: Sequence[str]) -> str:
        """Where the task may write its report: in the repository of its first path."""
        if kind not in REPORTS:
            raise InvalidInput(f"a data repository task is {EXPORT} or {IMPORT}, not {kind!r:.80}")
        if not 1 <= len(paths) <= MOST_PATHS:
            raise InvalidInput(f"a data repository task takes 1 to {MOST_PATHS} paths, not {len(paths)}")
        known = self._checkpoints.file_system(file_system)
        links = [known.association(path) if kind == EXPORT else known.of_url(path) for path in paths]
        for path, link in zip(paths, links, strict=True):
            if link is None or not path.strip("/"):
                raise InvalidInput(
                    f"{path!r:.200} lies in no data repository association of {file_system}: name it under "
                    "checkpoints.file_systems of the cluster file"
                )
            if _UNPRINTABLE.search(path):
                raise InvalidInput(f"{path!r:.200} holds a line break, which FSx takes in no path")
        assert links[0] is not None
        return links[0].reports


@contextmanager
def _refusals() -> Iterator[None]:
    """FSx's exceptions as ours."""
    with translated(_of_task):
        try:
            yield
        except ParamValidationError as error:
            raise InvalidInput(f"FSx would not take this request: {error}") from error


def _of_task(code: str, message: str) -> PlanariaError:
    text = f"{code}: {message[:SAID_LENGTH]}"
    if code == "DataRepositoryTaskExecuting":
        return Waiting(f"another data repository task of this file system is at work ({text})")
    if code in _REFUSALS:
        return PermanentError(f"{_REFUSALS[code]} ({text})")
    return PermanentError(text) if code in (_GONE, "DataRepositoryTaskEnded") else meaning(code, message)


def _said(error: PlanariaError) -> str:
    """FSx's word behind one of our errors."""
    cause = error.__cause__
    return code_of(cause) if isinstance(cause, ClientError) else ""


def _task(found: Mapping[str, Any]) -> RepositoryTask:
    status: Mapping[str, Any] = found.get("Status") or {}
    report: Mapping[str, Any] = found.get("Report") or {}
    state = TaskState(found["Lifecycle"])
    place = ""
    if report.get("Enabled") and report.get("Path") and found["Type"] in REPORTS:
        place = f"{str(report['Path']).rstrip('/')}/{found['TaskId']}/{REPORTS[found['Type']]}"
    failed, total = int(status.get("FailedCount", 0)), int(status.get("TotalCount", 0))
    reason = ""
    if state is TaskState.FAILED:
        told = str((found.get("FailureDetails") or {}).get("Message", ""))
        reason = told or f"FSx failed on {failed} of {total} files"
    return RepositoryTask(
        task_id=str(found["TaskId"]),
        state=state,
        paths=tuple(found.get("Paths", ())),
        succeeded=int(status.get("SucceededCount", 0)),
        failed=failed,
        total=total,
        reason=reason,
        report=place,
    )
