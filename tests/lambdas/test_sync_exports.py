"""A file system that FSx keeps linked to a bucket: tasks for one step each, one at a time."""

import dataclasses

import pytest

from planaria.core import export_queue, sync_claims
from planaria.core.checkpoint_ports import TaskState
from planaria.core.manifest import Shard
from planaria.core.sync_claims import Sync
from planaria.memory.table import MemoryTable
from tests.lambdas import copying
from tests.lambdas.conftest import Build
from tests.lambdas.copying import FSX, Copying, policy
from tests.lambdas.test_sync import done, row_of


def linked(build: Build, auto: bool = False) -> Copying:
    return copying.of(build, policy(linked=True, auto=auto))


def test_a_task_exports_the_new_step_alone(build: Build) -> None:
    site = linked(build)
    site.save(100)
    done(site)
    site.assert_safe(100)
    assert [paths for _, _, paths in site.fsx.started.values()] == [("checkpoints/gpt/step-100",)]
    assert row_of(site, 100)["place"] == "s3://linked/checkpoints/gpt/step-100"
    assert site.carried == []
    site.save(200)
    done(site)
    site.assert_safe(100, 200)
    assert [paths for _, _, paths in site.fsx.started.values()][1:] == [("checkpoints/gpt/step-200",)]


def test_a_foreign_step_gets_its_manifest_before_it_is_exported(build: Build) -> None:
    site = linked(build)
    site.save_without_us(100)
    done(site)
    site.assert_safe(100)
    assert len(site.carried) == 4 and len(site.fsx.started) == 1
    assert site.here.held["step-100"].manifest == site.s3.held["step-100"].manifest


@pytest.mark.parametrize("end", [TaskState.FAILED, TaskState.CANCELED])
def test_a_task_that_fails_is_told_and_tried_again(build: Build, end: TaskState) -> None:
    site = linked(build)
    site.outcomes = [end]
    site.save(100)
    done(site)
    row = row_of(site, 100)
    assert (site.durable, row["failures"]) == ([], 1) and f"is {end}" in row["why"]
    if end is TaskState.FAILED:
        assert "1 of 4 files were not exported" in row["why"] and "failures.csv" in row["why"]
    site.run(900, lambda: site.durable == [100])
    assert len(site.fsx.started) == 2


def test_an_object_that_fsx_exported_wrong_is_not_recorded(build: Build) -> None:
    site = linked(build)
    times = iter([True])

    def other(shard: Shard) -> Shard:
        changed = shard.name == "part-00001" and next(times, False)
        return dataclasses.replace(shard, crc64nvme=copying.crc("changed")) if changed else shard

    site.spoil = other
    site.save(100)
    done(site)
    assert site.durable == [] and "its checksum is wrong" in row_of(site, 100)["why"]
    site.run(900, lambda: site.durable == [100])


def test_a_task_that_gets_on_no_more_is_cancelled(build: Build) -> None:
    site = linked(build)
    site.task_seconds = 1e9
    site.save(100)
    site.run(3 * 3600, lambda: bool(site.rows) and "failures" in site.rows[0])
    assert "got on no more" in row_of(site, 100)["why"]
    states = {task.state for task in site.fsx._tasks.values()}
    assert TaskState.CANCELED in states or TaskState.CANCELING in states


def test_another_peoples_task_is_waited_for(build: Build) -> None:
    site = linked(build)
    theirs = site.fsx.start(FSX, "EXPORT_TO_REPOSITORY", ["checkpoints/other"], "their-token")
    site.task_seconds = 1e9
    site.save(100)
    site.run(600)
    assert site.durable == [] and "failures" not in row_of(site, 100)
    site.fsx.becomes(theirs, TaskState.SUCCEEDED)
    site.task_seconds = 10.0
    done(site)
    site.assert_safe(100)


def test_the_task_is_found_again_after_a_crash(build: Build) -> None:
    """The Lambda dies after FSx has taken the task and before its id is noted."""
    site = linked(build)
    site.world.kill("start_sync", "fsx.start")
    site.save(100)
    done(site)
    site.assert_safe(100)
    assert len(site.fsx.started) == 1


def test_what_fsx_exports_by_itself_is_waited_for(build: Build) -> None:
    site = linked(build, auto=True)
    copy = site.save(100)
    site.run(900)
    assert site.durable == [] and site.fsx.started == {}
    site._exported(("checkpoints/gpt/step-100",), TaskState.SUCCEEDED)
    done(site)
    site.assert_safe(100)
    assert row_of(site, 100)["digest"] == copy.digest


def test_a_later_attempts_step_is_exported_over_an_older_one(build: Build) -> None:
    site = linked(build)
    for step in (100, 200):
        site.save(step)
        done(site)
    started = {"1": {"step": -1, "at": 0.0}, "2": {"step": 100, "at": site.world.now}}
    site.world.gw.jobs.write("gpt", {"attempt": 2, "attempts": started})
    site.save(200, attempt=2, parent=100)
    done(site)
    states = {(row["attempt"], row["step"]): row["state"] for row in site.rows}
    assert states == {(1, 100): "durable", (1, 200): "gone", (2, 200): "durable"}


def test_an_export_gives_way_before_a_node_is_taken(build: Build) -> None:
    site = linked(build)
    site.task_seconds = 600.0
    site.save(100)
    site.run(600, lambda: bool(site.claim.get("work", {}).get("task_id")))
    sync_claims.ask_again(site.world.table, Sync.of(site.claim), site.world.now, None, site.world.now + 120)
    site.task_seconds = 5.0
    site.save(200)
    site.run(900, lambda: bool(site.durable))
    assert site.durable == [200]


# --- whose turn it is --------------------------------------------------------------------------------


def test_the_oldest_step_has_its_turn_first() -> None:
    table = MemoryTable()
    a, b, c = Sync("a", 1), Sync("b", 1), Sync("c", 1)
    assert export_queue.take(table, FSX, a, 300.0, None, 1000.0) == ""
    assert "job a exports" in export_queue.take(table, FSX, b, 200.0, None, 1001.0)
    assert "job a exports" in export_queue.take(table, FSX, c, 100.0, None, 1002.0)
    export_queue.release(table, FSX, a)
    assert "job c has an older step" in export_queue.take(table, FSX, b, 200.0, None, 1003.0)
    assert export_queue.take(table, FSX, c, 100.0, None, 1004.0) == ""
    assert export_queue.take(table, FSX, c, 100.0, None, 1005.0) == ""
    assert "job c exports" in export_queue.take(table, FSX, a, 50.0, None, 1006.0)


def test_before_a_node_is_taken_a_job_comes_first() -> None:
    table = MemoryTable()
    a, b, c = Sync("a", 1), Sync("b", 1), Sync("c", 1)
    export_queue.take(table, FSX, a, 300.0, None, 1000.0)
    export_queue.take(table, FSX, b, 100.0, None, 1000.0)
    export_queue.take(table, FSX, c, 900.0, 1120.0, 1000.0)
    export_queue.release(table, FSX, a)
    assert "job c has an older step" in export_queue.take(table, FSX, b, 100.0, None, 1001.0)
    assert export_queue.take(table, FSX, c, 900.0, 1120.0, 1002.0) == ""


def test_whoever_is_not_heard_of_is_passed_over() -> None:
    table = MemoryTable()
    a, b, c = Sync("a", 1), Sync("b", 1), Sync("c", 1)
    export_queue.take(table, FSX, a, 300.0, None, 1000.0)
    export_queue.take(table, FSX, b, 100.0, None, 1000.0)
    later = 1000.0 + export_queue.LEASE_SECONDS + 1
    assert export_queue.take(table, FSX, c, 900.0, None, later) == ""
    assert export_queue.holder(table, FSX)["job_id"] == "c"


def test_a_release_of_another_jobs_turn_changes_nothing() -> None:
    table = MemoryTable()
    a, b = Sync("a", 1), Sync("b", 1)
    export_queue.take(table, FSX, a, 300.0, None, 1000.0)
    export_queue.release(table, FSX, b)
    assert export_queue.holder(table, FSX)["job_id"] == "a"
