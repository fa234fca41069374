"""A job's checkpoints on their way to S3: saved, copied by nodes, proven, recorded."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import pytest

from planaria.core import sync_claims
from planaria.core.checkpoint_ledger import CheckpointLedger
from planaria.core.manifest import Manifest, Shard
from planaria.core.ports import Execution
from planaria.core.sync_claims import Sync
from planaria.core.table import Conflict
from tests.lambdas import copying
from tests.lambdas.conftest import Build
from tests.lambdas.copying import Copying
from tests.lambdas.world import JOB, NODES


def done(site: Copying, seconds: float = 3600.0) -> None:
    """Let it run to the end of the sync that is under way."""
    site.run(seconds, lambda: site.claim.get("phase") == "DONE")


def row_of(site: Copying, step: int, attempt: int = 1) -> dict[str, Any]:
    return next(row for row in site.rows if (row["attempt"], row["step"]) == (attempt, step))


def test_a_saved_step_becomes_durable(build: Build) -> None:
    site = copying.of(build)
    copy = site.save(100)
    done(site)
    site.assert_safe(100)
    (row,) = site.rows
    assert (row["digest"], row["place"]) == (copy.digest, f"s3://bucket/checkpoints/{JOB}/step-100")
    assert sorted(row["timeline"]) == ["begun", "copied", "durable", "proven", "seen"]
    assert site.world.job["durable_step"]["step"] == 100 and site.world.job["saved_step"] == 100
    assert site.claim["durable"]["step"] == site.claim["newest"]["step"] == 100


def test_without_a_section_in_the_cluster_file_nothing_is_copied(build: Build) -> None:
    site = copying.of(build)
    site.world.gw.cluster = dataclasses.replace(site.world.gw.cluster, checkpoints=None)
    site.save(100)
    site.world.run(900)
    assert site.claim == {} and site.rows == [] and site.world.job["saved_step"] == 100


def test_the_oldest_unsafe_step_goes_first(build: Build) -> None:
    site = copying.of(build)
    for step in (300, 100, 200):
        site.save(step, tell=False)
    site.world.send(copying.saved(site.world, 300))
    done(site)
    site.assert_safe(100, 200, 300)
    moments = [row_of(site, step)["durable_at"] for step in (100, 200, 300)]
    assert moments == sorted(moments)


def test_what_is_durable_is_not_copied_again(build: Build) -> None:
    site = copying.of(build)
    site.save(100)
    done(site)
    carried = len(site.carried)
    site.save(200)
    done(site)
    site.assert_safe(100, 200)
    assert len(site.carried) == 2 * carried


def test_a_step_in_a_foreign_format_gets_its_manifest_on_the_way(build: Build) -> None:
    site = copying.of(build)
    site.save_without_us(100)
    done(site)
    site.assert_safe(100)
    assert site.here.held["step-100"].manifest == site.s3.held["step-100"].manifest


def test_partial_and_foreign_steps_are_left_alone(build: Build) -> None:
    site = copying.of(build)
    site.save(100, tell=False)
    site.here.put("step-200.tmp", copying.manifest(200).shards, site.world.now)
    site.here.put("step-300", copying.manifest(300).shards, site.world.now)
    other = copying.manifest(400)
    theirs = dataclasses.replace(other, lineage=dataclasses.replace(other.lineage, job="another"))
    site.here.put("step-400", theirs.shards, site.world.now)
    site.here.held["step-400"].manifest = theirs.to_json()
    site.world.send(copying.saved(site.world, 100))
    done(site)
    site.assert_safe(100)
    assert [row["step"] for row in site.rows] == [100]


def test_a_report_told_twice_and_once_more_later_is_one_copy(build: Build) -> None:
    site = copying.of(build)
    site.save(100)
    text = copying.saved(site.world, 100)
    site.world.send(text)
    site.world.send(text)
    done(site)
    site.world.run(30)
    site.assert_safe(100)
    assert len(site.carried) == 4


def test_a_step_that_is_saved_while_a_sync_runs_is_not_forgotten(build: Build) -> None:
    """Whatever moment it comes at, also between the last look and the close."""
    first = copying.of(build)
    first.save(100)
    done(first)
    for number in range(len(first.world.effects)):
        site = copying.of(build)
        site.world.sweeps = False
        site.save(100)
        site.run(3600, lambda s=site, n=number: len(s.world.effects) > n)  # type: ignore[misc]
        site.save(200)
        site.world.run(3600)
        site.assert_safe(100, 200)


def test_a_step_that_was_saved_anew_is_copied_anew(build: Build) -> None:
    site = copying.of(build)
    site.save(100)
    site.save(200)
    done(site)
    site.save(200, saved_at=site.world.now + 1, shards=5)
    done(site)
    assert (site.durable, len(site.s3.held["step-200"].shards)) == ([100], 4)
    assert "no newer step is durable yet" in row_of(site, 200)["why"]
    site.save(300)
    site.run(3600, lambda: site.durable == [100, 200, 300])
    assert len(site.s3.held["step-200"].shards) == 5


@pytest.mark.parametrize("why", ["pinned", "resume point", "all there is"])
def test_what_is_needed_in_s3_stays_when_the_step_is_saved_anew(build: Build, why: str) -> None:
    """The ledger's row tells of the new copy by then; what is in S3 is the old one, and safe."""
    site = copying.of(build)
    site.save(100)
    done(site)
    kept = site.s3.held["step-100"].manifest
    match why:
        case "pinned":
            site.save(200)
            done(site)
            CheckpointLedger(site.world.table).pin(JOB, 1, 100, "for the paper", "ann", site.world.now)
        case "resume point":
            site.save(200)
            done(site)
            site.world.gw.jobs.write(JOB, {"resume_step": 100})
    again = site.save(100, saved_at=site.world.now + 1, shards=5)
    site.denied = {f"part-{number:05d}" for number in range(5)}
    done(site)
    assert site.s3.held["step-100"].manifest == kept != again
    assert row_of(site, 100)["why"].startswith("s3://bucket/checkpoints/gpt/step-100 holds another copy")


def test_a_pin_that_comes_at_the_last_moment_counts(build: Build) -> None:
    site = copying.of(build)
    site.save(100)
    done(site)
    ledger, (seen,) = CheckpointLedger(site.world.table), site.rows
    ledger.pin(JOB, 1, 100, "for the paper", "ann", site.world.now)
    with pytest.raises(Conflict):
        ledger.removed(seen, ("s3",), "retention", site.world.now)
    site.assert_safe(100)


def test_a_step_asked_for_by_number_that_fails_keeps_nobody_waiting(build: Build) -> None:
    site = copying.of(build)
    site.save(100, tell=False, shards=9)
    site.save(200, tell=False, shards=4)
    site.denied = {"part-00008"}  # of step 100 alone
    site.world.start("sync_checkpoints", {"job_id": JOB, "step": 100})
    done(site)
    assert site.durable == [200] and "wish" not in site.claim
    assert int(row_of(site, 100)["failures"]) < 4


def test_before_a_node_is_taken_older_steps_are_not_put_back_for_ever(build: Build) -> None:
    site = copying.of(build)
    for step in (100, 200, 300):
        site.save(step, tell=False)
    site.seconds = 20.0
    site.world.start("sync_checkpoints", {"job_id": JOB, "deadline": site.world.now + 3600})
    done(site, 1800)
    site.assert_safe(100, 200, 300)
    moments = [row_of(site, step)["durable_at"] for step in (300, 200, 100)]
    assert moments == sorted(moments)


def test_a_later_attempt_saves_another_step_under_the_same_name(build: Build) -> None:
    site = copying.of(build)
    for step in (100, 200, 300):
        site.save(step)
        done(site)
    started = {"1": {"step": -1, "at": 0.0}, "2": {"step": 100, "at": site.world.now}}
    site.world.gw.jobs.write(JOB, {"attempt": 2, "attempts": started})
    site.save(200, attempt=2, parent=100)
    done(site)
    states = {(row["attempt"], row["step"]): row["state"] for row in site.rows}
    assert states == {(1, 100): "durable", (1, 200): "gone", (1, 300): "durable", (2, 200): "durable"}
    held = site.s3.held["step-200"].manifest
    assert held is not None and Manifest.from_json(held).lineage.attempt == 2


def test_a_step_that_a_later_attempt_left_behind_is_not_copied(build: Build) -> None:
    site = copying.of(build)
    site.save(100)
    done(site)
    site.save(900, tell=False)
    started = {"1": {"step": -1, "at": 0.0}, "2": {"step": 100, "at": site.world.now}}
    site.world.gw.jobs.write(JOB, {"attempt": 2, "attempts": started})
    site.save(150, attempt=2, parent=100)
    done(site)
    assert {(r["attempt"], r["step"]) for r in site.rows if r["state"] == "durable"} == {(1, 100), (2, 150)}
    assert site.claim["newest"] | {"saved_at": 0} == {"attempt": 2, "step": 150, "saved_at": 0}


def test_a_step_that_is_gone_before_it_was_copied_is_said_to_be_gone(build: Build) -> None:
    site = copying.of(build)
    real = site.world.commands.documents["planaria-plan-transfer"]

    def removed_first(node: str, parameters: Mapping[str, str]) -> Any:
        site.here.held.pop("step-100", None)
        return real(node, parameters)

    site.world.commands.documents["planaria-plan-transfer"] = removed_first
    site.save(100)
    done(site)
    site.run(900)
    assert row_of(site, 100)["state"] == "gone" and site.durable == []


# --- what goes wrong ---------------------------------------------------------------------------------


def test_a_file_that_changes_while_it_is_copied_is_copied_once_more(build: Build) -> None:
    site = copying.of(build)
    times = iter([True])

    def other(shard: Shard) -> Shard:
        changed = shard.name == "part-00001" and next(times, False)
        return dataclasses.replace(shard, crc64nvme=copying.crc("changed")) if changed else shard

    site.spoil = other
    site.save(100)
    done(site)
    assert site.durable == []
    row = row_of(site, 100)
    assert (row["state"], row["failures"]) == ("complete", 1) and "its checksum is wrong" in row["why"]
    site.run(600, lambda: site.durable == [100])
    done(site)
    site.assert_safe(100)
    assert "failures" not in row_of(site, 100)


def test_a_denied_object_is_told_and_the_other_steps_go_on(build: Build) -> None:
    site = copying.of(build)
    site.save(100, tell=False)
    site.save(200, tell=False, shards=9)
    site.denied = {"part-00008"}
    site.world.send(copying.saved(site.world, 200))
    done(site)
    assert site.durable == [100]
    assert "part-00008 could not be copied: AccessDenied" in row_of(site, 200)["why"]
    site.run(3600, lambda: bool(site.world.notices.sent))
    subject, text = site.world.notices.sent[0]
    assert "do not get to S3" in subject and "AccessDenied" in text and "checkpoint-sync.md" in text
    site.denied = set()
    site.run(7200, lambda: site.durable == [100, 200])
    assert len(site.world.notices.sent) <= 2


def test_nodes_that_die_are_followed_by_others(build: Build) -> None:
    site = copying.of(build)
    site.seconds = 30.0
    site.dead = {NODES[0], NODES[1]}
    site.save(100)
    done(site)
    site.assert_safe(100)
    assert set(site.ran) <= set(NODES[2:])


def test_where_every_node_fails_the_step_is_put_aside(build: Build) -> None:
    site = copying.of(build)
    site.dead = set(NODES)
    site.save(100)
    done(site)
    assert site.durable == [] and "no node gets on with copying it" in row_of(site, 100)["why"]
    assert site.claim["retry_at"] > site.world.now
    site.dead = set()
    site.run(600, lambda: site.durable == [100])


def test_without_a_node_nothing_is_copied_and_it_is_tried_again(build: Build) -> None:
    site = copying.of(build)
    site.world.sweeps = False
    for node in NODES:
        site.world.gw.ledger.note_node(node, {"state": "stopped"})
    site.save(100, tell=False)
    site.world.start("sync_checkpoints", {"job_id": JOB, "reason": "by hand"})
    done(site)
    assert "no node is there" in site.claim["outcome_reason"]
    for node in NODES:
        site.world.gw.ledger.note_node(node, {"state": "running"})
    site.world.sweeps = True
    site.run(900, lambda: site.durable == [100])


def test_the_bucket_does_not_answer_for_a_while(build: Build) -> None:
    site = copying.of(build)
    site.save(100)
    site.s3.reachable = False
    site.world.at(300, lambda: setattr(site.s3, "reachable", True))
    done(site)
    site.assert_safe(100)


def test_an_object_that_is_lost_after_the_proof_is_not_recorded(build: Build) -> None:
    """commit itself looks once more on S3; the twin raises what that raises."""
    from planaria.core.errors import PermanentError

    site = copying.of(build)
    real, calls = site.s3.commit, iter([True])

    def commit(manifest: Manifest, name: str = "") -> bool:
        if next(calls, False):
            raise PermanentError("step 100 is not committed: 1 of its objects are not there")
        return real(manifest, name)

    site.s3.commit = commit  # type: ignore[method-assign]
    site.save(100)
    done(site)
    assert site.durable == [] and "could not be committed" in row_of(site, 100)["why"]
    site.run(600, lambda: site.durable == [100])


# --- whose nodes -------------------------------------------------------------------------------------


def test_idle_nodes_copy_first(build: Build) -> None:
    site = copying.of(build)
    for number in range(3):
        site.world.add_node(f"idle-{number}", f"i-0bbbbbbbbbbbbbbb{number}", f"10.0.2.{number}")
    site.save(100)
    done(site)
    assert {node for node, _ in site.carried} <= {f"i-0bbbbbbbbbbbbbbb{n}" for n in range(3)}
    assert shares(site) == [1.0]


def test_nodes_with_work_copy_within_their_share(build: Build) -> None:
    site = copying.of(build)
    site.save(100)
    done(site)
    assert {node for node, _ in site.carried} <= set(NODES) and shares(site) == [0.5]


def shares(site: Copying) -> list[float]:
    """What each transfer may take of a node's network."""
    rows = [
        row for (pk, sk), row in site.world.table._rows.items() if pk.startswith("TRANSFER#") and sk == "PLAN"
    ]
    return [float(row["bandwidth_share"]) for row in rows]


def test_a_node_that_is_healed_or_isolated_copies_nothing(build: Build) -> None:
    site = copying.of(build)
    site.world.gw.ledger.note_node(NODES[0], {"isolation": {"mark": "x", "at": 1.0}})
    site.world.gw.ledger.note_node(NODES[1], {"lost": "it did not come up"})
    site.save(100)
    done(site)
    assert {node for node, _ in site.carried} <= set(NODES[2:])


# --- deadlines, schedule, people -----------------------------------------------------------------------


def test_before_a_node_is_taken_the_newest_step_comes_first(build: Build) -> None:
    site = copying.of(build)
    for step in (100, 200, 300):
        site.save(step, tell=False)
    site.seconds = 20.0
    site.world.interrupt(NODES[1])
    site.run(3600, lambda: bool(site.durable))
    assert site.durable == [300]
    site.run(3600, lambda: site.durable == [100, 200, 300])


def test_an_older_copy_gives_way_before_a_node_is_taken(build: Build) -> None:
    site = copying.of(build)
    site.save(100)
    site.seconds = 60.0
    site.run(3600, lambda: bool(site.claim.get("work", {}).get("runs")))
    site.seconds = 0.0
    site.world.gw.jobs.write(JOB, {"pending": {NODES[1]: "i-1"}})
    sync_claims.ask_again(site.world.table, Sync.of(site.claim), site.world.now, None, site.world.now + 120)
    site.save(200)
    site.run(3600, lambda: bool(site.durable))
    assert site.durable == [200]


def test_sweep_looks_once_in_a_while(build: Build) -> None:
    site = copying.of(build)
    site.save(100, tell=False)
    site.world.run(120)
    site.assert_safe(100)
    site.save(200, tell=False)
    site.run(900, lambda: site.durable == [100, 200])
    assert site.durable == [100, 200]


def test_a_job_that_has_ended_and_is_safe_is_left_alone(build: Build) -> None:
    site = copying.of(build)
    site.save(100)
    done(site)
    site.world.gw.jobs.write(JOB, {"state": "COMPLETED"})
    number = site.claim["number"]
    site.run(6000)
    assert site.claim["number"] == number


def test_a_person_asks_for_one_step(build: Build) -> None:
    site = copying.of(build)
    for step in (100, 200, 300):
        site.save(step, tell=False)
    site.world.start("sync_checkpoints", {"job_id": JOB, "step": 200, "reason": "by hand"})
    site.run(3600, lambda: bool(site.durable))
    assert site.durable == [200]
    done(site)
    site.assert_safe(100, 200, 300)


def test_a_person_asks_while_a_sync_runs(build: Build) -> None:
    site = copying.of(build)
    site.save(100)
    site.run(3600, lambda: bool(site.claim.get("work")))
    site.save(200, tell=False)
    arn = site.world.start("sync_checkpoints", {"job_id": JOB, "reason": "by hand"})
    done(site)
    site.assert_safe(100, 200)
    assert site.world.workflows.executions[arn] is Execution.SUCCEEDED and site.claim["number"] == 1


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"job_id": "nobody"}, "the job is not in the ledger"),
        ({"job_id": JOB, "step": "forty"}, "step must be the number of a step, got 'forty'"),
        ({"job_id": JOB, "step": -1}, "step must be the number of a step"),
        ({"job_id": JOB, "deadline": True}, "deadline must be in epoch seconds"),
        ({"job": JOB}, "the field 'job' is not known"),
        ({"job_id": 7}, "job_id must be a job's id, got 7"),
        ([], "the input must be a JSON object"),
        ({"job_id": JOB, "number": "one"}, "number, Planaria's own, a whole number"),
    ],
)
def test_bad_input_is_refused_with_one_sentence(build: Build, document: Any, says: str) -> None:
    site = copying.of(build)
    arn = site.world.start("sync_checkpoints", document)
    site.world.run(60)
    cause = site.world.driver.records[arn].cause
    assert says in cause and "\n" not in cause and "Traceback" not in cause


def test_a_job_without_a_directory_is_refused(build: Build) -> None:
    site = copying.of(build)
    site.world.gw.jobs.write(JOB, {}, ("lineage",))
    arn = site.world.start("sync_checkpoints", {"job_id": JOB})
    site.world.run(60)
    assert "has no registered directory of checkpoints" in site.world.driver.records[arn].cause


# --- size --------------------------------------------------------------------------------------------


def test_many_objects_are_proven_in_slices(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    from lambdas import verify_sync

    monkeypatch.setattr(verify_sync, "BUSY_SECONDS", -1.0)
    monkeypatch.setattr(verify_sync, "SLICE", 1000)
    site = copying.of(build)
    site.save(100, shards=10_500)
    done(site)
    site.assert_safe(100)
    states = [s for r in site.world.driver.records.values() for s in r.states]
    assert states.count("Verify") == 11


def test_a_long_history_is_handed_to_a_new_execution(build: Build) -> None:
    site = copying.of(build)
    site.save(100)
    site.seconds = 3 * 3600.0
    site.run(20 * 3600, lambda: site.durable == [100])
    assert site.durable == [100]
    syncs = [r for r in site.world.driver.records.values() if r.machine == "sync_checkpoints"]
    assert len(syncs) >= 2 and all(len(r.states) < 2000 for r in syncs)
    assert len(site.carried) == 4


def test_the_age_of_the_newest_durable_step_is_told(build: Build, capsys: pytest.CaptureFixture[str]) -> None:
    site = copying.of(build)
    site.save(100)
    done(site)
    site.save(200, tell=False)
    capsys.readouterr()
    site.run(400)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"_aws"' in line]
    ages = [line["CheckpointAgeMinutes"] for line in lines if "CheckpointAgeMinutes" in line]
    assert ages and ages == sorted(ages) and 1 < max(ages) < 10
    (directive,) = lines[0]["_aws"]["CloudWatchMetrics"]
    assert directive["Namespace"] == "Planaria" and directive["Dimensions"] == [["Cluster"]]
