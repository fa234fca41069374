"""Whatever call is the last one that a Lambda gets to do, the steps are durable in the end, and only once."""

from collections.abc import Callable
from typing import Any

import pytest

from planaria.core import sync_claims
from planaria.core.errors import Fenced
from planaria.core.ports import Execution
from planaria.core.sync_claims import Sync, Synced
from planaria.core.table import Conflict
from planaria.memory.table import MemoryTable
from tests.lambdas import copying
from tests.lambdas.conftest import Build
from tests.lambdas.copying import Copying, policy
from tests.lambdas.test_sync import done
from tests.lambdas.world import JOB, nothing_answers, stub

VERBS = "begin plan start follow verify record retain close continue"
FUNCTIONS = {f"{verb}_sync" for verb in VERBS.split()}


def by_nodes(build: Build) -> Copying:
    return copying.of(build, policy(keep=1, keep_here=1))


def by_fsx(build: Build) -> Copying:
    return copying.of(build, policy(linked=True, keep=1, keep_here=1))


def tell(site: Copying) -> Copying:
    """Two steps, one of them foreign; one is kept."""
    site.task_seconds = 10.0
    site.save(100, tell=False)
    site.save_without_us(200)
    site.run(1800, lambda: site.durable == [200] and site.claim["phase"] == "DONE")
    return site


def check(site: Copying) -> None:
    site.run(120)
    site.assert_safe(200)
    assert list(site.here.held) == list(site.s3.held) == ["step-200"]
    assert not site.world.dead_letters
    paths = [paths for _, _, paths in site.fsx.started.values()]
    assert len(paths) == len(set(paths)), "a step was exported by two tasks"
    assert site.world.notices.sent == []


WAYS: dict[str, Callable[[Build], Copying]] = {"nodes": by_nodes, "fsx": by_fsx}


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("way", WAYS)
def test_any_effect_may_be_the_last_one(build: Build, way: str, before: bool) -> None:
    site = tell(WAYS[way](build))
    check(site)
    wrong = {}
    for number, (function, call) in enumerate(site.world.effects):
        other = WAYS[way](build)
        other.world.kill_at(number, before=before)
        try:
            check(tell(other))
        except AssertionError as error:
            wrong[f"{number}: {function} {call}"] = str(error).partition("\n")[0]
    assert wrong == {}


@pytest.mark.parametrize("way", WAYS)
def test_every_task_delivered_twice_does_everything_once(build: Build, way: str) -> None:
    site = WAYS[way](build)
    site.world.twice = FUNCTIONS
    check(tell(site))
    assert len(site.carried) <= (8 if way == "nodes" else 4)


@pytest.mark.parametrize("way", WAYS)
def test_an_execution_that_dies_is_followed_by_another_within_two_minutes(build: Build, way: str) -> None:
    """At every moment of its life, also when nobody tells of its end."""
    first = tell(WAYS[way](build))
    length = first.claim["closed_at"] - first.claim["opened_at"]
    for moment in range(2, int(length), 7):
        site = WAYS[way](build)
        site.world.status_changes = False
        site.task_seconds = 10.0
        site.save(100, tell=False)
        site.save_without_us(200)
        site.run(float(moment))
        arn, number = site.claim.get("execution_arn"), site.claim["number"]
        if not arn or site.claim["phase"] == "DONE":
            continue
        site.world.abort(arn)
        at = site.world.now
        site.run(120, lambda s=site, n=number: s.claim["number"] > n)  # type: ignore[misc]
        assert site.world.now - at <= 120
        site.run(1800, lambda s=site: s.durable == [200] and s.claim["phase"] == "DONE")  # type: ignore[misc]
        check(site)


def test_an_execution_that_never_came_is_started_by_sweep(build: Build) -> None:
    site = by_nodes(build)
    site.world.kill("triage", "workflows.start", before=True)
    site.save(100)
    site.run(120, lambda: site.durable == [100])


def test_a_sync_that_dies_again_and_again_fails_and_is_begun_anew(build: Build) -> None:
    site = by_nodes(build)
    site.save(100)
    site.seconds, most = 1e5, site.world.gw.cluster.policy.max_attempts
    while site.claim.get("phase") != "FAILED":
        site.run(200, lambda: site.claim["phase"] in ("RUNNING", "FAILED"))
        number = site.claim["number"]
        site.world.abort(site.claim.get("execution_arn", ""))
        site.run(200, lambda n=number: site.claim["number"] > n or site.claim["phase"] == "FAILED")  # type: ignore[misc]
        assert site.claim["number"] <= most
    site.seconds = 0.0
    assert site.claim["phase"] == "FAILED" and f"died {most} times" in site.claim["outcome_reason"]
    site.run(900, lambda: site.durable == [100])


def test_a_defect_ends_in_escalation_and_a_new_try(build: Build) -> None:
    site = by_nodes(build)
    real = stub(site.s3, "prove", nothing_answers)
    site.save(100)
    site.run(7200, lambda: site.claim.get("phase") == "FAILED")
    arn = site.claim["execution_arn"]
    assert site.world.workflows.executions[arn] is Execution.FAILED
    stub(site.s3, "prove", real)
    site.run(900, lambda: site.durable == [100])


def test_two_executions_of_one_claim_are_one_sync(build: Build) -> None:
    site = by_nodes(build)
    site.save(100)
    site.run(600, lambda: site.claim.get("phase") == "RUNNING")
    arn = site.world.start("sync_checkpoints", {"job_id": JOB, "number": site.claim["number"]}, "stranger")
    done(site)
    site.assert_safe(100)
    states = site.world.driver.records[arn].states
    assert states == ["Begin", "Begun?", "Over"] and len(site.carried) == 4


def test_a_stale_claim_is_fenced_at_every_task(build: Build) -> None:
    site = by_nodes(build)
    site.save(100)
    done(site)
    site.save(200)
    site.run(600, lambda: site.claim.get("number") == 2)
    for function in sorted(FUNCTIONS - {"begin_sync"}):
        before = len(site.world.effects)
        stale = {"sync": {"job_id": JOB, "number": 1}, "work": "1-1-100-0-1", "outcome": "ESCALATED"}
        answer = site.world.call(function, stale)
        assert answer["result"] == "FENCED", (function, answer)
        assert len(site.world.effects) == before


def test_a_late_task_of_the_step_before_is_fenced(build: Build) -> None:
    site = copying.of(build)
    for step in (100, 200):
        site.save(step, tell=False)
    site.seconds = 30.0
    site.world.send(copying.saved(site.world, 200))
    site.run(600, lambda: site.claim.get("work", {}).get("step") == 100)
    old = site.claim["work"]["id"]
    site.run(600, lambda: site.claim.get("work", {}).get("step") == 200)
    sync = {"job_id": JOB, "number": site.claim["number"]}
    for function in ("start_sync", "follow_sync", "verify_sync", "record_sync"):
        answer = site.world.call(function, {"sync": sync, "work": old})
        assert (answer["result"], answer.get("next")) == ("DONE", "plan"), (function, answer)
        answer = site.world.call(function, {"sync": sync, "work": "0-0-0-0-0"})
        assert answer["result"] == "FENCED"
    done(site)
    site.assert_safe(100, 200)


# --- the claim's rows ----------------------------------------------------------------------------------


def claimed(table: MemoryTable, seen: Any = None, **more: Any) -> Any:
    given: dict[str, Any] = {"claim_id": "one", "reason": "", "now": 1.0, **more}
    return sync_claims.claim(table, JOB, seen, **given)


def test_one_claim_at_a_time() -> None:
    table = MemoryTable()
    row = claimed(table)
    assert claimed(table)["number"] == 1  # the same claim once more
    with pytest.raises(Conflict):
        claimed(table, claim_id="two")
    following = claimed(table, row, claim_id="two")
    assert following["number"] == 2
    with pytest.raises(Fenced):
        sync_claims.enter(table, Sync.of(row))
    with pytest.raises(Fenced):
        sync_claims.write(table, Sync.of(row), {"x": 1})


def test_a_close_sees_that_somebody_asked() -> None:
    table = MemoryTable()
    sync = Sync.of(claimed(table))
    assert sync_claims.ask_again(table, sync, 2.0)
    assert not sync_claims.close(table, sync, Synced.DONE, 3.0)
    sync_claims.write(table, sync, removes=("again",))
    assert sync_claims.close(table, sync, Synced.DONE, 4.0)
    assert sync_claims.closed(table, sync, Synced.DONE)
    assert not sync_claims.ask_again(table, sync, 5.0)
    assert sync_claims.close(table, sync, Synced.DONE, 6.0)
    with pytest.raises(Fenced):
        sync_claims.close(table, sync, Synced.FAILED, 7.0)


def test_the_earlier_deadline_counts() -> None:
    table = MemoryTable()
    sync = Sync.of(claimed(table, deadline=500.0))
    sync_claims.ask_again(table, sync, 2.0, None, 900.0)
    assert (sync_claims.read(table, JOB) or {})["deadline"] == 500.0
    sync_claims.ask_again(table, sync, 2.0, None, 300.0)
    assert (sync_claims.read(table, JOB) or {})["deadline"] == 300.0


@pytest.mark.parametrize("job", ["gpt", "a" * 200, "job/with.odd", "ä" * 60, "x" * 48, "x" * 49])
def test_an_executions_name_is_legal(job: str) -> None:
    name = Sync(job, 123_456).name
    assert len(name) <= 80 and all(c.isascii() and (c.isalnum() or c == "-") for c in name)


def test_two_jobs_never_share_a_name() -> None:
    names = {Sync(job, 1).name for job in ("a/b", "a-b", "a.b", "x" * 60, "x" * 61)}
    assert len(names) == 5


def test_only_newer_steps_are_noted() -> None:
    table = MemoryTable()
    for attempt, step in ((1, 900), (2, 50), (1, 1000), (2, 40)):
        sync_claims.note_newest(table, JOB, "newest", attempt, step, 1.0)
    assert (sync_claims.read(table, JOB) or {})["newest"] | {"saved_at": 0} == {
        "attempt": 2, "step": 50, "saved_at": 0,
    }  # fmt: skip
