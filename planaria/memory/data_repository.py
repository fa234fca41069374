"""The DataRepository port in memory."""

import re
from collections.abc import Sequence
from dataclasses import replace

from planaria.core.checkpoint_policy import Checkpoints
from planaria.core.checkpoint_ports import RepositoryTask, TaskState
from planaria.core.errors import InvalidInput, PermanentError, TransientError, Waiting

REPORTS = {"EXPORT_TO_REPOSITORY": "failures.csv", "IMPORT_METADATA_FROM_REPOSITORY": "report.csv"}
OPEN = (TaskState.PENDING, TaskState.EXECUTING)
BUSY = (*OPEN, TaskState.CANCELING)


class MemoryDataRepository:
    """A test plays FSx: `becomes` moves a task on. reachable: False lets every call fail for now. started:
    what each token has begun: (file system, kind, paths)."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self.reachable = True
        self.started: dict[str, tuple[str, str, tuple[str, ...]]] = {}
        self._tasks: dict[str, RepositoryTask] = {}
        self._of_token: dict[str, str] = {}
        self._file_system: dict[str, str] = {}

    def start(self, file_system: str, kind: str, paths: Sequence[str], token: str) -> str:
        if kind not in REPORTS:
            raise InvalidInput(f"a data repository task is {' or '.join(REPORTS)}, not {kind!r}")
        if not 1 <= len(paths) <= 100:
            raise InvalidInput(f"a data repository task takes 1 to 100 paths, not {len(paths)}")
        known = self._checkpoints.file_system(file_system)
        export = kind == "EXPORT_TO_REPOSITORY"
        links = [known.association(path) if export else known.of_url(path) for path in paths]
        first = links[0]
        if first is None or None in links or not all(path.strip("/") for path in paths):
            raise InvalidInput(f"{list(paths)} lie in no data repository association of {file_system}")
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,63}", token):
            raise InvalidInput(f"the token {token!r} must be 1 to 63 characters")
        if any("\n" in path or "\r" in path for path in paths):
            raise InvalidInput("a path holds a line break, which FSx takes in no path")
        self._reach()
        asked = file_system, kind, tuple(paths)
        if token in self.started:
            if self.started[token] != asked:
                raise PermanentError("IncompatibleParameterError: this token was used for another task")
            return self._of_token[token]
        if any(self._file_system[t.task_id] == file_system and t.state in BUSY for t in self._tasks.values()):
            raise Waiting("another data repository task of this file system is at work")
        number = f"task-{len(self._tasks) + 1:017x}"
        self.started[token] = asked
        self._of_token[token], self._file_system[number] = number, file_system
        report = f"{first.reports}/{number}/{REPORTS[kind]}"
        self._tasks[number] = RepositoryTask(number, TaskState.PENDING, tuple(paths), report=report)
        return number

    def task(self, task_id: str) -> RepositoryTask:
        if not re.fullmatch(r"task-[0-9a-f]{17,}", task_id):
            raise InvalidInput(f"{task_id!r} is no id of a data repository task")
        self._reach()
        return self._tasks.get(task_id) or RepositoryTask(task_id, TaskState.NONE)

    def tasks(self, file_system: str) -> list[RepositoryTask]:
        self._reach()
        return [
            t for t in self._tasks.values() if self._file_system[t.task_id] == file_system and t.state in OPEN
        ]

    def cancel(self, task_id: str) -> None:
        self._reach()
        found = self._tasks.get(task_id)
        if found is not None and found.state in OPEN:
            self._tasks[task_id] = replace(found, state=TaskState.CANCELING)

    def becomes(
        self,
        task_id: str,
        state: TaskState,
        *,
        succeeded: int = 0,
        failed: int = 0,
        total: int = 0,
        reason: str = "",
    ) -> None:
        """What FSx does with a task."""
        self._tasks[task_id] = replace(
            self._tasks[task_id],
            state=state,
            succeeded=succeeded,
            failed=failed,
            total=total or succeeded + failed,
            reason=reason or (f"FSx failed on {failed} files" if state is TaskState.FAILED else ""),
        )

    def _reach(self) -> None:
        if not self.reachable:
            raise TransientError("FSx cannot be reached")
