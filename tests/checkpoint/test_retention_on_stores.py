"""Retention and choice on real files and a real S3 endpoint: what counts is what is there at that moment."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planaria.aws.checkpoint_bucket import S3Checkpoints
from planaria.checkpoint.directory import FileCheckpoints
from planaria.core import retention
from planaria.core.checkpoint_policy import Retention
from planaria.core.checkpoints import choose_copy
from planaria.core.errors import PermanentError
from planaria.core.manifest import Manifest
from planaria.core.retention import Facts, Plan
from planaria.core.saved_step import StepCopy, StepState, Tier
from tests.checkpoint.steps import FILES, JOB, flip, manifest, write

pytestmark = pytest.mark.needs("seaweedfs")
KEEP_1 = Retention(1)


class Stores:
    """A job's folder and its place in a bucket."""

    def __init__(self, root: Path, client: Any, bucket: str) -> None:
        self.root, self.client, self.bucket = root, client, bucket
        self.files = FileCheckpoints(root, JOB)
        self.objects = S3Checkpoints(client, bucket, f"checkpoints/{JOB}", JOB, threads=4)
        self.facts = Facts()

    def save(self, step: int, attempt: int = 1, parent: int = -1) -> Manifest:
        written = manifest(step, attempt=attempt, parent=parent)
        write(self.root / f"step-{step}")
        self.files.commit(written)
        return written

    def upload(self, step: int, names: list[str]) -> None:
        for name in names:
            self.client.put_object(
                Bucket=self.bucket, Key=f"checkpoints/{JOB}/step-{step}/{name}", Body=FILES[name],
                ChecksumAlgorithm="CRC64NVME",
            )  # fmt: skip

    def make_durable(self, step: int, attempt: int = 1, parent: int = -1) -> None:
        written = self.save(step, attempt, parent)
        self.upload(step, list(FILES))
        self.objects.commit(written)

    def copies(self) -> list[StepCopy]:
        return self.files.steps() + [self.objects.verify(copy) for copy in self.objects.steps()]

    def plan(self, tier: Tier) -> Plan:
        return retention.plan(self.copies(), tier, KEEP_1, 2e9, self.facts)

    def prune(self) -> list[str]:
        """Both tiers. -> the places that went."""
        gone = []
        for tier, store in ((Tier.FSX, self.files), (Tier.S3, self.objects)):
            remove: Callable[[StepCopy], None] = store.remove
            done = retention.carry_out(lambda tier=tier: self.plan(tier), remove)  # type: ignore[misc]
            assert done.failed == ()
            gone += [copy.place for copy in done.removed]
        return gone

    def chosen(self) -> tuple[int, Tier]:
        copy = choose_copy(self.copies(), JOB).copy
        assert copy is not None
        return copy.step, copy.tier


@pytest.fixture
def stores(tmp_path: Path, object_store: Any, bucket: str) -> Stores:
    return Stores(tmp_path / "checkpoints", object_store.client(), bucket)


def test_an_asynchronous_save_never_costs_the_durable_step(stores: Stores) -> None:
    """keep 1, 500 is durable, 1000 is in flight, and retention runs at each of its moments."""
    stores.make_durable(500)
    names = list(FILES)
    scratch = stores.root / "step-1000.tmp"

    def rename() -> None:
        scratch.rename(stores.root / "step-1000")
        stores.files.commit(manifest(1000, parent=500))

    moments: list[Callable[[], object]] = [
        lambda: write(scratch, {names[0]: FILES[names[0]]}),
        lambda: write(scratch),
        rename,
        lambda: stores.upload(1000, names[:1]),
        lambda: stores.upload(1000, names),
    ]
    for moment in moments:
        moment()
        assert stores.prune() == []
        assert stores.files.sweep(1.0) == []
        assert stores.objects.sweep(1.0) == []
    assert stores.chosen() == (1000, Tier.FSX), "whole there, though not durable"
    stores.objects.commit(manifest(1000, parent=500))
    stores.facts = Facts(resume_points={500})
    assert stores.prune() == [], "the attempt began at 500"
    stores.facts = Facts(resume_points={1000})
    assert [place.rpartition("/")[2] for place in stores.prune()] == ["step-500", "step-500"]
    assert [(copy.step, copy.state) for copy in stores.copies()] == [
        (1000, StepState.COMPLETE),
        (1000, StepState.DURABLE),
    ]


def test_a_step_that_s3_has_lost_does_not_count(stores: Stores) -> None:
    stores.make_durable(500)
    stores.make_durable(1000, parent=500)
    name = next(iter(FILES))
    stores.client.delete_object(Bucket=stores.bucket, Key=f"checkpoints/{JOB}/step-1000/{name}")
    assert stores.prune() == []


def test_a_bad_copy_is_passed_over_for_the_other_tiers_and_then_the_step_before(stores: Stores) -> None:
    stores.make_durable(500)
    stores.make_durable(1000, parent=500)
    write(stores.root / "step-1500.tmp")
    name = next(iter(FILES))
    assert stores.chosen() == (1000, Tier.FSX)
    (stores.root / "step-1000" / name).write_bytes(FILES[name][:-1])
    assert stores.chosen() == (1000, Tier.S3)
    stores.upload(1000, [])
    stores.client.put_object(Bucket=stores.bucket, Key=f"checkpoints/{JOB}/step-1000/{name}", Body=b"other")
    assert stores.chosen() == (500, Tier.FSX)
    why = choose_copy(stores.copies(), JOB).why
    assert "step 1500 is partial in fsx" in why
    assert "step 1000 is corrupt in fsx" in why
    assert "step 1000 is corrupt in s3" in why


def test_a_bit_that_has_flipped_is_seen_by_verify_alone(stores: Stores) -> None:
    stores.make_durable(500)
    stores.make_durable(1000, parent=500)
    flip(stores.root / "step-1000" / next(iter(FILES)))
    copies = stores.copies()
    assert choose_copy(copies, JOB).step == 1000
    looked = [stores.files.verify(copy) if copy.tier is Tier.FSX else copy for copy in copies]
    choice = choose_copy(looked, JOB)
    assert (choice.step, [copy.tier for copy in choice.copies]) == (1000, [Tier.S3])


def test_what_was_left_behind_goes_before_what_the_job_goes_on_from(stores: Stores) -> None:
    """Attempt 2 went back to 500, and is durable at 700; attempt 1 had come to 1000."""
    stores.make_durable(500)
    stores.make_durable(1000, parent=500)
    stores.facts = Facts(resume_points={500}, starts={2: 500})
    stores.save(700, 2, 500)
    assert stores.chosen() == (700, Tier.FSX)
    assert stores.prune() == [], "nothing of attempt 2 is durable, so both 500 and 1000 are needed"
    stores.upload(700, list(FILES))
    stores.objects.commit(manifest(700, attempt=2, parent=500))
    assert [place.rpartition("/")[2] for place in stores.prune()] == ["step-1000", "step-1000"]
    stores.facts = Facts()
    assert [place.rpartition("/")[2] for place in stores.prune()] == ["step-500", "step-500"]


def test_a_plan_that_has_grown_old_removes_nothing_else(stores: Stores) -> None:
    """The step was saved anew by a later attempt after it was planned to go."""
    stores.make_durable(500)
    stores.make_durable(1000, parent=500)
    old = stores.plan(Tier.FSX).going[0]
    assert old.step == 500
    stores.files.remove(old)
    stores.save(500, attempt=2)
    with pytest.raises(PermanentError):
        stores.files.remove(old)
    assert stores.files.verify(replace(old, digest="")).usable
