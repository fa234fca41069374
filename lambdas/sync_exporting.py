"""FSx's share in a sync: one export task for the new step alone, when it is this job's turn at the file
system.

work["token"], stored before the call: the same call again is the same task. work["task_id"], and
work["moved"] {"files", "at"}: when it last got on.
"""

from lambdas import sync_work, syncing_metrics
from lambdas.boundary import Fields
from lambdas.sync_work import At
from planaria.core import export_queue
from planaria.core.checkpoint_ports import RepositoryTask, TaskState
from planaria.core.errors import InvalidInput, PermanentError, Waiting
from planaria.wiring import Gateways

KIND = "EXPORT_TO_REPOSITORY"
TURN_SECONDS = 20.0
STALLED_SECONDS = 3600.0
"""A task that runs and has not exported one file more for so long is cancelled."""

PENDING_SECONDS = 6 * 3600.0
"""So long a task may wait, behind those of other people, until it begins."""


def start(gw: Gateways, at: At) -> Fields:
    work, now = at.work, gw.clock.now()
    if work.get("task_id"):
        return {"next": "follow"}
    deadline = at.row.get("deadline")
    first = export_queue.take(gw.table, work["file_system"], at.sync, float(work["saved_at"]), deadline, now)
    if first:
        return sync_work.wait(first, TURN_SECONDS)
    if not work.get("token"):
        at = sync_work.note(gw, at, {"token": f"{at.sync.name[:24]}-{work['id']}"[:63]})
    try:
        task = _found(gw, at) or gw.data_repository.start(
            work["file_system"], KIND, [work["path"]], at.work["token"]
        )
    except Waiting as wait:
        return sync_work.wait(str(wait), TURN_SECONDS)
    except (InvalidInput, PermanentError) as error:
        return sync_work.put_aside(gw, at, f"FSx does not export it: {error}")
    sync_work.note(gw, at, {"task_id": task, "moved": {"files": 0, "at": now}})
    return {"next": "follow"}


def follow(gw: Gateways, at: At) -> Fields:
    work, now = at.work, gw.clock.now()
    if not work.get("task_id"):
        return sync_work.NEXT  # asked once more after the nodes' share: it is begun first
    if work.get("task_over"):
        return _succeeded(gw, at)
    deadline = at.row.get("deadline")
    export_queue.take(gw.table, work["file_system"], at.sync, float(work["saved_at"]), deadline, now)
    task = gw.data_repository.task(work["task_id"])
    match task.state:
        case TaskState.SUCCEEDED:
            return _succeeded(
                gw, sync_work.note(gw, at, {"task_over": task.state.value, "files": task.total})
            )
        case TaskState.FAILED | TaskState.CANCELED | TaskState.NONE:
            at = sync_work.note(gw, at, {"task_over": task.state.value})
            if task.state is TaskState.FAILED:
                syncing_metrics.failed(gw)
            return sync_work.put_aside(gw, at, _why(task))
    return _wait(gw, at, task)


def _wait(gw: Gateways, at: At, task: RepositoryTask) -> Fields:
    work, now = at.work, gw.clock.now()
    done, moved = task.succeeded + task.failed, work.get("moved") or {"files": 0, "at": now}
    if done != moved["files"]:
        at = sync_work.note(
            gw, at, {"moved": {"files": done, "at": now}, "files": task.total, "done_files": done}
        )
        moved = at.work["moved"]
    patience = STALLED_SECONDS if task.state is TaskState.EXECUTING else PENDING_SECONDS
    if now - float(moved["at"]) > patience:
        return sync_work.put_aside(
            gw, at, f"task {task.task_id} is {task.state} and got on no more; it was cancelled"
        )
    return sync_work.wait(
        f"task {task.task_id} is {task.state}", 10.0 if now - float(work["began_at"]) < 300 else 30.0
    )


def _succeeded(gw: Gateways, at: At) -> Fields:
    export_queue.release(gw.table, at.work["file_system"], at.sync)
    sync_work.note(gw, at, {"stage": "verify", "copied_at": gw.clock.now()})
    return {"next": "verify"}


def _found(gw: Gateways, at: At) -> str:
    """The task that a Lambda started which died before it could note its id."""
    path = str(at.work["path"]).strip("/")
    for task in gw.data_repository.tasks(at.work["file_system"]):
        if [each.strip("/") for each in task.paths] == [path] and task.state in (
            TaskState.PENDING,
            TaskState.EXECUTING,
        ):
            return task.task_id
    return ""


def _why(task: RepositoryTask) -> str:
    if task.state is TaskState.NONE:
        return f"FSx knows nothing of task {task.task_id} any more"
    what = f"task {task.task_id} is {task.state}"
    if task.failed:
        what += f": {task.failed} of {task.total} files were not exported"
    if task.reason:
        what += f" ({task.reason})"
    return f"{what}; see {task.report}" if task.report else what
