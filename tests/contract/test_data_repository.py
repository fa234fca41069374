"""The DataRepository port: one suite for the memory twin and for FSx over its own wire format; and what only
FSx can answer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import boto3
import pytest
from botocore.config import Config

from planaria.aws.fsx import FsxDataRepository
from planaria.core.checkpoint_policy import Association, Checkpoints
from planaria.core.checkpoint_policy import FileSystem as InFile
from planaria.core.checkpoint_ports import DataRepository, TaskState
from planaria.core.errors import InvalidInput, PermanentError, TransientError, Waiting
from planaria.core.repository_report import Failed, failures
from planaria.memory.data_repository import MemoryDataRepository
from tests.fsx.double import FsxDouble
from tests.fsx.file_system import FileSystem, MemoryBucket

ONE, TWO, BARE = "fs-0123456789abcdef1", "fs-0123456789abcdef2", "fs-0123456789abcdef3"
EXPORT, IMPORT = "EXPORT_TO_REPOSITORY", "IMPORT_METADATA_FROM_REPOSITORY"
FIRST = "t-1"
STEP = "checkpoints/gpt/step-500"
CHECKPOINTS = Checkpoints(
    (
        InFile(
            "one", ONE, "/fsx", "us-east-1a", (Association("/checkpoints/", "s3://planaria-b/checkpoints/"),)
        ),
        InFile("two", TWO, "/two", "us-east-1a", (Association("/", "s3://other/two/"),)),
        InFile("bare", BARE, "/bare", "us-east-1a"),
    )
)


class World(Protocol):
    """Two file systems with associations; ONE has two files in STEP."""

    @property
    def repository(self) -> DataRepository: ...
    def begin(self, task_id: str) -> None: ...
    def succeed(self, task_id: str) -> None: ...
    def fail(self, task_id: str) -> None: ...
    def cancelled(self, task_id: str) -> None: ...
    def cut_off(self) -> None: ...


class MemoryWorld:
    def __init__(self) -> None:
        self.repository = MemoryDataRepository(CHECKPOINTS)

    def begin(self, task_id: str) -> None:
        self.repository.becomes(task_id, TaskState.EXECUTING, total=3)

    def succeed(self, task_id: str) -> None:
        self.repository.becomes(task_id, TaskState.SUCCEEDED, succeeded=3)

    def fail(self, task_id: str) -> None:
        self.repository.becomes(task_id, TaskState.FAILED, succeeded=2, failed=1)

    def cancelled(self, task_id: str) -> None:
        self.repository.becomes(task_id, TaskState.CANCELED)

    def cut_off(self) -> None:
        self.repository.reachable = False


class FsxWorld:
    """FSx's own wire format over HTTP, on a directory and a bucket in memory."""

    def __init__(self, folder: Path, url: str, double: FsxDouble) -> None:
        self.double = double
        self.bucket = MemoryBucket()
        double.bucket = self.bucket
        links = {
            ONE: {"/checkpoints/": "s3://planaria-b/checkpoints/"},
            TWO: {"/": "s3://other/two/"},
            BARE: {},
        }
        for each, linked in links.items():
            (folder / each).mkdir()
            double.add(FileSystem(each, folder / each, linked))
        self.step = folder / ONE / STEP
        self.step.mkdir(parents=True)
        (self.step / "a.distcp").write_bytes(b"a" * 10)
        (self.step / "b.distcp").write_bytes(b"b" * 20)
        self.repository = FsxDataRepository(_client(url), CHECKPOINTS, "demo")

    def begin(self, task_id: str) -> None:
        self.double.move(task_id)

    def succeed(self, task_id: str) -> None:
        assert self.double.finish(task_id) == "SUCCEEDED"

    def fail(self, task_id: str) -> None:
        self.bucket.denied.add("checkpoints/gpt/step-500/b.distcp")
        assert self.double.finish(task_id) == "FAILED"

    def cancelled(self, task_id: str) -> None:
        assert self.double.move(task_id) == "CANCELED"

    def cut_off(self) -> None:
        self.double.unable = {
            action: ["InternalServerError"]
            for action in (
                "CreateDataRepositoryTask",
                "DescribeDataRepositoryTasks",
                "CancelDataRepositoryTask",
            )
        }


def _client(url: str) -> Any:
    return boto3.client(
        "fsx",
        region_name="us-east-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
        endpoint_url=url,
        config=Config(retries={"max_attempts": 0}, connect_timeout=5, read_timeout=5),
    )


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, FsxDouble]]:
    double = FsxDouble()
    with double.served() as url:
        yield url, double


@pytest.fixture
def fsx(tmp_path: Path, server: tuple[str, FsxDouble]) -> Iterator[FsxWorld]:
    """Everything that was sent and answered was as botocore's model has it."""
    url, double = server
    double.reset()
    yield FsxWorld(tmp_path, url, double)
    assert double.complaints == []


@pytest.fixture(params=["memory", "fsx"])
def world(request: pytest.FixtureRequest) -> World:
    if request.param == "memory":
        return MemoryWorld()
    found: FsxWorld = request.getfixturevalue("fsx")
    return found


def start(world: World, token: str = FIRST, file_system: str = ONE, path: str = STEP) -> str:
    return world.repository.start(file_system, EXPORT, [path], token)


def test_an_export_from_begin_to_end(world: World) -> None:
    task_id = start(world)
    waiting = world.repository.task(task_id)
    assert (waiting.state, waiting.task_id, waiting.paths) == (TaskState.PENDING, task_id, (STEP,))
    assert [task.task_id for task in world.repository.tasks(ONE)] == [task_id]
    world.begin(task_id)
    assert world.repository.task(task_id).state is TaskState.EXECUTING
    assert world.repository.task(task_id).total == 3, "two files and their directory"
    world.succeed(task_id)
    over = world.repository.task(task_id)
    assert (over.state, over.succeeded, over.failed, over.total) == (TaskState.SUCCEEDED, 3, 0, 3)
    assert over.reason == "" and world.repository.tasks(ONE) == []


def test_a_token_is_one_task_however_often_and_late_it_is_sent(world: World) -> None:
    task_id = start(world)
    assert start(world) == task_id
    world.begin(task_id)
    assert start(world) == task_id
    world.succeed(task_id)
    assert start(world) == task_id


def test_a_token_for_other_paths_is_refused(world: World) -> None:
    start(world)
    with pytest.raises(PermanentError, match="token"):
        start(world, path="checkpoints/gpt/step-600")


def test_a_file_system_runs_one_task_at_a_time(world: World) -> None:
    first = start(world)
    for _ in range(2):
        with pytest.raises(Waiting):
            start(world, "t-2")
        if world.repository.task(first).state is TaskState.PENDING:
            world.begin(first)
    other = start(world, "t-3", TWO, "gpt")
    assert [task.task_id for task in world.repository.tasks(TWO)] == [other], "another file system is free"
    world.succeed(first)
    assert start(world, "t-2") not in (first, other)


def test_a_cancelled_task_ends_and_blocks_until_then(world: World) -> None:
    task_id = start(world)
    world.repository.cancel(task_id)
    assert world.repository.task(task_id).state is TaskState.CANCELING
    with pytest.raises(Waiting):
        start(world, "t-2")
    world.cancelled(task_id)
    assert world.repository.task(task_id).state is TaskState.CANCELED
    world.repository.cancel(task_id)
    assert world.repository.task(task_id).state is TaskState.CANCELED, "quiet about what is over"
    assert start(world, "t-2") != task_id


def test_a_failed_task_says_why_and_where_its_report_is(world: World) -> None:
    task_id = start(world)
    world.begin(task_id)
    world.fail(task_id)
    task = world.repository.task(task_id)
    assert (task.state, task.succeeded, task.failed) == (TaskState.FAILED, 2, 1)
    assert "1" in task.reason
    assert task.report == f"s3://planaria-b/checkpoints/.planaria-reports/{task_id}/failures.csv"


def test_an_import_takes_urls_and_has_another_report(world: World) -> None:
    task_id = world.repository.start(ONE, IMPORT, ["s3://planaria-b/checkpoints/gpt/step-500"], "i-1")
    task = world.repository.task(task_id)
    assert [path.rstrip("/") for path in task.paths] == ["s3://planaria-b/checkpoints/gpt/step-500"]
    assert task.report.endswith(f"/{task_id}/report.csv")


def test_a_task_that_nobody_knows(world: World) -> None:
    unknown = f"task-{99:017x}"
    assert world.repository.task(unknown).state is TaskState.NONE
    world.repository.cancel(unknown)
    assert world.repository.tasks(ONE) == []


@pytest.mark.parametrize(
    ("file_system", "kind", "paths", "token", "says"),
    [
        (ONE, EXPORT, [], "t", "1 to 100 paths, not 0"),
        (ONE, EXPORT, ["checkpoints/x"] * 101, "t", "1 to 100 paths, not 101"),
        (ONE, EXPORT, ["elsewhere/gpt"], "t", "no data repository association"),
        (ONE, EXPORT, ["checkpoints/a", "checkpointsb"], "t", "no data repository association"),
        (ONE, IMPORT, ["s3://another/checkpoints/"], "t", "no data repository association"),
        (TWO, EXPORT, [""], "t", "no data repository association"),
        (TWO, EXPORT, ["/"], "t", "no data repository association"),
        (BARE, EXPORT, ["checkpoints/gpt"], "t", "no data repository association"),
        ("fs-0123456789abcdef9", EXPORT, ["gpt"], "t", "is not in the cluster file"),
        (ONE, "RELEASE_DATA_FROM_FILESYSTEM", ["checkpoints/gpt"], "t", "not 'RELEASE_DATA"),
        (ONE, EXPORT, ["checkpoints/gpt"], "t" * 64, "1 to 63 characters"),
        (ONE, EXPORT, ["checkpoints/gpt"], "", "1 to 63 characters"),
        (ONE, EXPORT, ["checkpoints/gpt"], "a b", "1 to 63 characters"),
        (ONE, EXPORT, ["checkpoints/g\npt"], "t", "line break"),
    ],
)
def test_what_fsx_would_not_take_or_take_otherwise_is_refused(
    world: World, file_system: str, kind: str, paths: list[str], token: str, says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        world.repository.start(file_system, kind, paths, token)
    assert world.repository.tasks(ONE) == []


def test_a_task_id_that_is_none(world: World) -> None:
    with pytest.raises(InvalidInput, match="no id of a data repository task"):
        world.repository.task("fs-0123456789abcdef0")


@pytest.mark.parametrize("call", ["start", "task", "tasks", "cancel"])
def test_an_fsx_that_cannot_be_reached_is_no_answer(world: World, call: str) -> None:
    task_id = start(world)
    world.cut_off()
    calls = {
        "start": lambda: start(world, "t-2"),
        "task": lambda: world.repository.task(task_id),
        "tasks": lambda: world.repository.tasks(ONE),
        "cancel": lambda: world.repository.cancel(task_id),
    }
    with pytest.raises(TransientError):
        calls[call]()


# --- FSx alone --------------------------------------------------------------------------------------------


def test_files_and_directories_get_where_the_association_says(fsx: FsxWorld) -> None:
    fsx.succeed(start(fsx))
    prefix = "checkpoints/gpt/step-500"
    assert fsx.bucket.objects == {
        ("planaria-b", f"{prefix}/"): b"",
        ("planaria-b", f"{prefix}/a.distcp"): b"a" * 10,
        ("planaria-b", f"{prefix}/b.distcp"): b"b" * 20,
    }
    link = CHECKPOINTS.place(f"/fsx/{STEP}/a.distcp")
    assert link is not None and link.url == f"s3://planaria-b/{prefix}/a.distcp"


def test_the_report_names_the_files(fsx: FsxWorld) -> None:
    for name in ("@odd", 'with "quotes", and comma', "-dash", "=sum"):
        (fsx.step / name).write_bytes(b"")
        fsx.bucket.denied.add(f"checkpoints/gpt/step-500/{name}")
    fsx.double.file_systems[ONE].busy.add(f"{STEP}/a.distcp")
    task_id = start(fsx)
    assert fsx.double.finish(task_id) == "FAILED"
    task = fsx.repository.task(task_id)
    bucket, _, key = task.report.removeprefix("s3://").partition("/")
    found = failures(fsx.bucket.get(bucket, key))
    assert set(found) == {
        Failed(f"{STEP}/a.distcp", "ResourceBusy"),
        Failed(f"{STEP}/@odd", "S3AccessDenied"),
        Failed(f'{STEP}/with "quotes", and comma', "S3AccessDenied"),
        Failed(f"{STEP}/-dash", "S3AccessDenied"),
        Failed(f"{STEP}/=sum", "S3AccessDenied"),
    }
    assert next(f for f in found if f.code == "ResourceBusy").reason.endswith(
        "can be exported once that is over"
    )
    assert task.failed == 5 and task.reason == "FSx failed on 5 of 7 files"


def test_a_path_that_is_not_there_fails_the_task(fsx: FsxWorld) -> None:
    task_id = start(fsx, path="checkpoints/gpt/step-7")
    assert fsx.double.move(task_id) == "FAILED"
    assert fsx.repository.task(task_id).reason == "The path checkpoints/gpt/step-7 is not valid."


def test_what_was_exported_before_a_cancel_stays(fsx: FsxWorld) -> None:
    slow = FsxDouble(fsx.bucket, files_at_once=1)
    slow.add(fsx.double.file_systems[ONE])
    with slow.served() as url:
        repository = FsxDataRepository(_client(url), CHECKPOINTS, "demo")
        task_id = repository.start(ONE, EXPORT, [STEP], "t")
        for _ in range(3):
            slow.move(task_id)
        repository.cancel(task_id)
        assert slow.move(task_id) == "CANCELED"
    assert slow.complaints == []
    assert ("planaria-b", "checkpoints/gpt/step-500/a.distcp") in fsx.bucket.objects
    assert ("planaria-b", "checkpoints/gpt/step-500/b.distcp") not in fsx.bucket.objects


def test_a_start_whose_answer_was_lost_is_found_again(fsx: FsxWorld) -> None:
    fsx.double.lost.append("CreateDataRepositoryTask")
    with pytest.raises(TransientError):
        start(fsx)
    (begun,) = fsx.double.tasks
    assert start(fsx) == begun
    fsx.double.forgetful = True
    assert start(fsx) == begun, "by its tag, where FSx has forgotten the token"
    with pytest.raises(Waiting):
        start(fsx, "t-2")
    assert len(fsx.double.tasks) == 1


def test_more_open_tasks_than_a_page_holds(fsx: FsxWorld) -> None:
    start(fsx)
    template = next(iter(fsx.double.tasks.values()))
    for number in range(2, 121):
        copy = type(template)(f"task-{number:017x}", template.request, template.at)
        fsx.double.tasks[copy.id] = copy
    assert len(fsx.repository.tasks(ONE)) == 120


@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        ("BadRequest", PermanentError, "does not take this request"),
        ("FileSystemNotFound", PermanentError, "see checkpoints.file_systems of the cluster file"),
        ("UnsupportedOperation", PermanentError, "only FSx for Lustre"),
        ("IncompatibleParameterError", PermanentError, "used for another task"),
        ("AccessDeniedException", PermanentError, "AccessDenied"),
        ("ThrottlingException", TransientError, "Throttling"),
        ("InternalServerError", TransientError, "InternalServerError"),
        ("DataRepositoryTaskExecuting", Waiting, "at work"),
    ],
)
def test_what_fsx_answers_is_sorted(fsx: FsxWorld, code: str, error: type[Exception], says: str) -> None:
    fsx.double.unable["CreateDataRepositoryTask"] = [code]
    with pytest.raises(error, match=says):
        start(fsx)


def test_files_come_back_from_s3(fsx: FsxWorld) -> None:
    fsx.succeed(start(fsx))
    for file in fsx.step.iterdir():
        file.unlink()
    task_id = fsx.repository.start(ONE, IMPORT, ["s3://planaria-b/checkpoints/gpt/step-500"], "i")
    fsx.succeed(task_id)
    assert {file.name: file.stat().st_size for file in fsx.step.iterdir()} == {"a.distcp": 10, "b.distcp": 20}


def test_an_import_of_step_50_is_none_of_step_500(fsx: FsxWorld) -> None:
    fsx.succeed(start(fsx))
    fsx.bucket.put("planaria-b", "checkpoints/gpt/step-50/x", b"x")
    (fsx.step / "a.distcp").unlink()
    fsx.succeed(fsx.repository.start(ONE, IMPORT, ["s3://planaria-b/checkpoints/gpt/step-50"], "i"))
    assert (fsx.step.parent / "step-50/x").read_bytes() == b"x"
    assert not (fsx.step / "a.distcp").exists()


def test_a_report_that_is_none() -> None:
    assert failures(b"") == failures(b"\xff\xfe\0,\n") == failures(b"a,b\nc\n") == ()
    assert failures(b'"' + b"x" * 200_000 + b'",failed,X\n') == ()
    assert failures(b"a,failed,E\n" * 5000, most=3) == (Failed("a", "E"),) * 3
