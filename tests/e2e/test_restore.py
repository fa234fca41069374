"""A job whose folder of checkpoints is lost goes on from what S3 has: real training, copies and losses.

A sandbox of its own with two nodes and IAM enforced: nodes copy with the node role's grants. The job saves
when it is told to, so that it is known what is where.
"""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planaria.core import restores, step_names, sync_claims
from planaria.core.checkpoint_ledger import CheckpointLedger
from planaria.core.manifest import FILE_NAME
from planaria.core.ports import AnswerState
from planaria.core.saved_step import StepCopy
from planaria.core.table import Row
from planaria.sandbox.world import World, WorldConfig
from tests.e2e.conftest import HERE, SCALE, Bench

pytestmark = pytest.mark.needs("emulator")
JOB, NEVER = "kept", 1_000_000


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("ministack", reason="the emulator is not installed")
    folder = tmp_path_factory.mktemp("restore") / "sandbox"
    config = WorldConfig(
        folder, HERE / "checkpoints.yaml", time_scale=SCALE, boot_seconds=1.5, auth=True, direct=True
    )
    with World(config) as world:
        made = Bench(world)
        made.recipe["nodes"] = 2
        made.submit(JOB, steps=NEVER, save_every=NEVER, step_seconds=0.05)
        made.train_to(JOB, 3)
        yield made


def save(bench: Bench) -> int:
    """The job saves its present step. -> the step, once it is in S3."""
    node = bench.node("s3-1")
    wish = {"job_id": JOB, "deadline": f"{time.time() + 60:.0f}"}
    head = bench.world.head()
    wanted = {"document": "planaria-checkpoint-now", "node_ids": [node], "parameters": wish}
    ticket = head.post("/commands/submit", wanted)["ticket"]

    def saved() -> dict[str, Any] | None:
        answer = head.post("/commands/poll", {"ticket": ticket})
        return dict(answer["value"]) if answer["state"] == AnswerState.DONE else None

    entry = bench.until("checkpoint", saved)[node]
    assert entry["status"] == "SUCCESS", entry
    step = int(entry["output"]["step"])
    # Its node's agent tells of it as well; whichever comes first, it is one sync.
    bench.gw.workflows.start("sync_checkpoints", f"by-hand-{step}", {"job_id": JOB, "reason": "by hand"})
    bench.until(f"step {step} in S3", lambda: step in stored(bench), 180)
    return step


def stored(bench: Bench) -> dict[int, StepCopy]:
    """The usable steps in S3."""
    return {copy.step: copy for copy in bench.gw.checkpoints(JOB).steps() if copy.usable}


def lose_the_folder(bench: Bench) -> None:
    """As on a new file system: it is there, and empty."""
    folder = bench.world.job_folder(JOB) / "checkpoints"
    shutil.rmtree(folder)
    folder.mkdir()


def resumed(bench: Bench, before: Row) -> tuple[Row, Row]:
    """(job, restore), once the job has made its first step from what was restored."""
    after = bench.resumed(JOB, int(before["attempt"]), 240)
    row = restores.read(bench.gw.table, JOB)
    assert (row["phase"], row["step"]) == ("RESTORED", after["resume_step"]), row
    assert (Path(row["place"]) / FILE_NAME).exists()
    assert not list(Path(row["place"]).parent.glob("*.tmp"))
    return after, row


def assert_curve_goes_on(bench: Bench, after: Row, lost: int) -> None:
    """The new attempt's first steps have the losses that they had before: weights, data and dice are the
    same."""
    bench.train_to(JOB, lost, int(after["attempt"]))
    steps: list[dict[str, Any]] = bench.steps(JOB)
    first = next(step for step in steps if step["attempt"] == after["attempt"])
    assert first["step"] == after["resume_step"] + 1
    before = {step["step"]: step["loss"] for step in steps if step["attempt"] < after["attempt"]}
    again = {step["step"]: step["loss"] for step in steps if step["attempt"] == after["attempt"]}
    both = sorted(before.keys() & again.keys())
    assert len(both) >= lost - after["resume_step"]
    assert [again[step] for step in both] == [before[step] for step in both]


def test_a_lost_folder_is_filled_from_s3_and_the_loss_curve_goes_on(bench: Bench) -> None:
    step = save(bench)
    bench.train_to(JOB, step + 3)
    before = bench.gw.jobs.job(JOB) or {}
    lose_the_folder(bench)
    bench.inject("xid79", "s3-2")
    after, row = resumed(bench, before)
    assert after["resume_step"] == step
    assert row["passed_over"] == []
    assert_curve_goes_on(bench, after, step + 3)


def test_a_newest_copy_that_rotted_in_s3_is_passed_over(bench: Bench) -> None:
    older, newest = save(bench), save(bench)
    bench.train_to(JOB, newest + 3, int((bench.gw.jobs.job(JOB) or {})["attempt"]))
    before = bench.gw.jobs.job(JOB) or {}
    rot(bench, stored(bench)[newest])
    lose_the_folder(bench)
    bench.inject("xid79", "s3-1")
    after, row = resumed(bench, before)
    assert after["resume_step"] == older
    [told] = row["passed_over"]
    assert f"step {newest} of attempt {before['attempt']} in S3 was not taken" in told
    assert f"step {newest} is corrupt" in after["resume_step_reason"]
    assert_curve_goes_on(bench, after, newest + 3)


def rot(bench: Bench, copy: StepCopy) -> None:
    """One byte of one object turns over; its size stays."""
    assert bench.world.emulator is not None
    s3 = bench.world.emulator.client("s3")
    bucket, _, prefix = copy.place.removeprefix("s3://").partition("/")
    shard = max(bench.gw.checkpoints(JOB).manifest(copy).shards, key=lambda shard: shard.size)
    key = f"{prefix}/{shard.name}"
    body = bytearray(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
    body[len(body) // 2] ^= 1
    s3.put_object(Bucket=bucket, Key=key, Body=bytes(body))


def test_older_steps_go_once_newer_ones_are_durable(bench: Bench) -> None:
    """Saved, copied by nodes, proven, recorded; what is pruned is gone in the bucket and on the disk."""
    saved = [save(bench) for _ in range(4)]
    ledger = CheckpointLedger(bench.gw.table)

    def durable() -> dict[int, Row]:
        return {int(row["step"]): row for row in ledger.steps(JOB) if row["state"] == "durable"}

    def at_rest() -> bool:
        claim = sync_claims.read(bench.gw.table, JOB) or {}
        return claim.get("phase") == "DONE" and set(saved[-3:]) <= set(durable())

    bench.until("a sync with nothing left to do", at_rest, 120)
    rows, kept = durable(), {int((bench.gw.jobs.job(JOB) or {})["resume_step"])}
    assert set(saved[-3:]) <= set(rows) <= {*saved[-3:], *kept}
    # What turned out rotten stays for people to look at, and counts for nothing.
    rotten = {int(row["step"]) for row in ledger.steps(JOB) if "spoiled_at" in row}
    good = {step: copy for step, copy in stored(bench).items() if step not in rotten}
    assert set(good) == set(rows)
    for step, copy in good.items():
        assert bench.gw.checkpoints(JOB).verify(copy).state == "durable"
        assert (copy.digest, copy.place) == (rows[step]["digest"], rows[step]["place"])
    folder = bench.world.job_folder(JOB) / "checkpoints"
    named = (step_names.step_of(path.name) for path in folder.iterdir())
    there = {step for step in named if step is not None}
    assert set(saved[-2:]) <= there <= {*saved[-2:], *kept}
    timeline = rows[saved[-1]]["timeline"]
    words = ("seen", "begun", "copied", "proven", "durable")
    assert [timeline[word] for word in words] == sorted(timeline[word] for word in words)
    assert (bench.gw.jobs.job(JOB) or {})["durable_step"]["step"] == saved[-1]
