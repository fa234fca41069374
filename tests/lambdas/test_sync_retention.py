"""What goes after a step has become durable, and what never does."""

import dataclasses
from typing import Any

import pytest

from lambdas import boundary, retain_sync, sync_sweeping
from planaria.core.checkpoint_ledger import CheckpointLedger
from planaria.core.checkpoint_policy import Retention
from planaria.core.errors import PermanentError
from planaria.core.incident import Phase
from planaria.core.saved_step import Tier
from tests.lambdas import copying
from tests.lambdas.conftest import Build
from tests.lambdas.copying import Copying, policy
from tests.lambdas.test_sync import done, row_of
from tests.lambdas.world import JOB


def saved(build: Build, *steps: int, keep: int = 2, keep_here: int = 2, **more: Any) -> Copying:
    """All of them are durable, and what is to go has gone."""
    site = copying.of(build, policy(keep=keep, keep_here=keep_here, **more))
    for step in steps:
        site.save(step)
        done(site)
    return site


def names(*steps: int) -> list[str]:
    return [f"step-{step}" for step in steps]


def test_the_newest_stay_in_both_tiers(build: Build) -> None:
    site = saved(build, 100, 200, 300, 400)
    site.assert_safe(300, 400)
    assert sorted(site.here.held) == sorted(site.s3.held) == names(300, 400)
    assert [row["state"] for row in site.rows] == ["gone", "gone", "durable", "durable"]


def test_without_rules_everything_stays(build: Build) -> None:
    site = saved(build, 100, 200, 300, keep=0, keep_here=0)
    site.assert_safe(100, 200, 300)
    assert len(site.here.held) == 3


def test_s3_keeps_what_the_file_system_has(build: Build) -> None:
    """Else the step on the file system would be the only copy, and be copied again."""
    site = saved(build, 100, 200, 300, keep=1, keep_here=3)
    site.assert_safe(100, 200, 300)
    carried = len(site.carried)
    site.run(3000)
    assert len(site.carried) == carried


def test_a_step_of_s3_alone_goes_by_the_rules_of_s3(build: Build) -> None:
    site = saved(build, 100, 200, 300, 400, keep=3, keep_here=1)
    site.assert_safe(200, 300, 400)
    assert sorted(site.here.held) == names(400) and sorted(site.s3.held) == names(200, 300, 400)


def test_only_durable_steps_count(build: Build) -> None:
    """Keep 1, durable 100, 200 in flight: 100 stays until 200 is proven."""
    site = saved(build, 100, keep=1, keep_here=1)
    site.seconds = 300.0
    site.save(200)
    site.run(200)
    assert site.durable == [100] and sorted(site.here.held) == names(100, 200)
    site.run(900, lambda: site.durable == [200])
    done(site)
    site.assert_safe(200)


def test_what_is_pinned_stays(build: Build) -> None:
    site = saved(build, 100, keep=1, keep_here=1)
    CheckpointLedger(site.world.table).pin(JOB, 1, 100, "the paper", "ada", site.world.now)
    for step in (200, 300):
        site.save(step)
        done(site)
    site.assert_safe(100, 300)
    CheckpointLedger(site.world.table).unpin(JOB, 1, 100)
    site.save(400)
    done(site)
    site.assert_safe(400)


def test_the_resume_point_stays(build: Build) -> None:
    site = saved(build, 100, keep=1, keep_here=1)
    site.world.gw.jobs.write(JOB, {"resume_step": 100})
    for step in (200, 300):
        site.save(step)
        done(site)
    site.assert_safe(100, 300)


def test_a_step_that_is_being_brought_back_stays(build: Build) -> None:
    site = saved(build, 100, keep=1, keep_here=1)
    restore = {"phase": Phase.RUNNING.value, "number": 3, "work": {"step": 100}}
    site.world.table.write(f"RESTORE#{JOB}", "RESTORE", sets=restore)
    for step in (200, 300):
        site.save(step)
        done(site)
    site.assert_safe(100, 300)


def test_a_later_attempts_steps_do_not_push_out_what_it_goes_on_from(build: Build) -> None:
    site = saved(build, 100, 200, 300, keep=1, keep_here=3)
    started = {"1": {"step": -1, "at": 0.0}, "2": {"step": 100, "at": site.world.now}}
    site.world.gw.jobs.write(JOB, {"attempt": 2, "attempts": started, "resume_step": 100})
    site.save(150, attempt=2, parent=100)
    done(site)
    assert 100 in site.durable and 150 in site.durable
    assert {row["step"] for row in site.rows if row["state"] == "gone"} <= {200, 300}


def test_many_go_over_several_calls(build: Build) -> None:
    site = saved(build, *range(100, 2600, 100), keep=0, keep_here=0)
    rules = {Tier.S3: Retention(2), Tier.FSX: Retention(1)}
    cluster = site.world.gw.cluster
    assert cluster.checkpoints is not None
    narrow = dataclasses.replace(cluster.checkpoints, retention=rules)
    site.world.gw.cluster = dataclasses.replace(cluster, checkpoints=narrow)
    for step in range(2600, 3600, 100):
        site.save(step)
        done(site)
    site.assert_safe(3400, 3500)
    assert sorted(site.s3.held) == names(3400, 3500) and sorted(site.here.held) == names(3500)


@pytest.mark.parametrize("when", ["once", "always"])
def test_a_step_that_cannot_be_removed_keeps_nothing_else_from_going_on(build: Build, when: str) -> None:
    site = saved(build, 100, keep=1, keep_here=1)
    real, failures = site.s3.remove, iter([True])

    def remove(copy: Any) -> None:
        if copy.step == 100 and (when == "always" or next(failures, False)):
            raise PermanentError("AccessDenied")
        real(copy)

    site.s3.remove = remove  # type: ignore[method-assign]
    for step in (200, 300):
        site.save(step)
        done(site)
    assert site.durable == [300]
    assert ("step-100" in site.s3.held) == (when == "always")
    assert ("removing" in row_of(site, 100)) == (when == "always")


def test_a_node_that_cannot_remove_does_not_stop_the_sync(build: Build) -> None:
    site = saved(build, 100, keep=1, keep_here=1)
    site.world.commands.documents["planaria-prune-checkpoints"] = lambda node, given: RuntimeError("disk")
    for step in (200, 300):
        site.save(step)
        done(site)
    assert site.durable == [100, 200, 300] and sorted(site.here.held) == names(100, 200, 300)


def test_what_is_abandoned_is_swept_after_its_time(build: Build) -> None:
    site = copying.of(build, policy(sweep_seconds=7200.0))
    for store in (site.here, site.s3):
        store.put("step-50", copying.manifest(50).shards, site.world.now)
        store.put("step-60.tmp", copying.manifest(60).shards, site.world.now)
    site.save(100)
    done(site)
    assert set(site.here.held) == set(site.s3.held) == {"step-50", "step-60.tmp", "step-100"}
    site.run(7300)
    site.save(200)
    done(site)
    assert set(site.here.held) == set(site.s3.held) == {"step-100", "step-200"}
    site.assert_safe(100, 200)


@pytest.mark.parametrize("document", ["planaria-list-checkpoints", "planaria-prune-checkpoints"])
def test_a_file_system_that_cannot_be_tidied_keeps_neither_s3_nor_the_sweep(
    build: Build, document: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = saved(build, 100, keep=1, keep_here=1)
    passed: list[str] = []

    def from_s3(*_: Any) -> tuple[list[str], bool]:
        passed.append("s3")
        return [], False

    def ask(gw: Any, event: Any, asked: str, nodes: list[str], given: Any) -> Any:
        if asked == document:
            return {nodes[0]: {"status": "FAILED", "output": "disk"}}
        return boundary.ask_command(gw, event, asked, nodes, given)

    monkeypatch.setattr(retain_sync, "_from_s3", from_s3)
    monkeypatch.setattr(sync_sweeping, "sweep", lambda *_: passed.append("sweep"))
    monkeypatch.setattr(retain_sync, "ask_command", ask)
    site.save(200)
    done(site)
    assert passed[-2:] == ["s3", "sweep"]
    site.assert_safe(100, 200)
    assert sorted(site.here.held) == names(100, 200)


def test_what_cannot_be_swept_fails_nothing(build: Build) -> None:
    site = copying.of(build)

    def refused(before: float, active: Any = ()) -> list[str]:
        raise PermanentError("not all that is abandoned was removed: AccessDenied")

    site.s3.sweep = refused  # type: ignore[method-assign]
    site.world.commands.documents["planaria-sweep-checkpoints"] = lambda node, given: RuntimeError("disk")
    site.save(100)
    done(site)
    site.assert_safe(100)
