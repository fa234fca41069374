"""A job's checkpoints in all tiers, by its cluster: what there is, and orders to sync_checkpoints and
restore_checkpoint."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from planaria.cli import checkpoint_tiers, screen
from planaria.cli.checkpoint_choice import Chosen, chosen
from planaria.cli.checkpoint_places import Bucket, Moved, Opened, parse_bucket
from planaria.cli.target import Target, bucket_of, connect
from planaria.core import lineage
from planaria.core.checkpoint_ledger import CheckpointLedger
from planaria.core.checkpoint_policy import Retention
from planaria.core.errors import InvalidInput
from planaria.core.pins import Pin
from planaria.core.retention import Facts
from planaria.core.saved_step import StepCopy, Tier
from planaria.core.table import Row

FOLLOW_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Found:
    copies: list[StepCopy]
    choice: Chosen


@dataclass(frozen=True, slots=True)
class Known:
    """A job that the ledger has."""

    target: Target
    job: Row

    @property
    def job_id(self) -> str:
        return str(self.job["job_id"])

    @property
    def rows(self) -> CheckpointLedger:
        return CheckpointLedger(self.target.gateways.table)

    @property
    def url(self) -> str:
        """Where the job's steps are in S3, `s3://bucket/prefix`."""
        policy = self.target.gateways.cluster.checkpoints
        folder = (self.job.get("lineage") or {}).get("folder")
        place = policy.place(str(folder)) if policy is not None and folder else None
        if place is not None and place.url:
            return place.url
        return f"s3://{bucket_of(self.target)}/checkpoints/{self.job_id}"

    @property
    def starts(self) -> dict[int, int]:
        """attempt -> the step that it started from."""
        return lineage.starts_of(self.job.get("attempts") or {})

    @property
    def facts(self) -> Facts:
        """What retention has to know beside the steps."""
        rows = self.rows.steps(self.job_id)
        told = (self.job.get("resume_step"), self.job.get("resume_step_chosen"))
        return Facts(
            resume_points={int(step) for step in told if step is not None and int(step) >= 0},
            pinned={int(row["step"]): str(row["pinned"]["reason"]) for row in rows if row.get("pinned")},
            tags={int(row["step"]): list(row["tags"]) for row in rows if row.get("tags")},
            starts=self.starts,
            aside=self.job.get("aside") or {},
        )

    def rules(self, tier: Tier) -> Retention:
        """Of the cluster file. Raises InvalidInput where it has none, or is not to be read from here."""
        policy = self.target.gateways.cluster.checkpoints
        found = policy.retention.get(tier) if policy is not None else None
        if found is None:
            raise InvalidInput(
                f"no rules for {tier.value} are known here (checkpoints.retention of the cluster file): "
                "give --keep, --keep-hours or --keep-every"
            )
        return found

    def with_pins(self, copies: Iterable[StepCopy]) -> list[StepCopy]:
        """A pin in the ledger holds for every copy of a step."""
        pins = {
            (int(row["attempt"]), int(row["step"])): str(row["pinned"]["reason"])
            for row in self.rows.steps(self.job_id)
            if row.get("pinned")
        }
        found = []
        for copy in copies:
            pin = pins.get((copy.lineage.attempt if copy.lineage else 0, copy.step))
            found.append(copy if pin is None else replace(copy, pinned=pin))
        return found


def known(job: str, cluster: str, folder: Path | None, aws: bool) -> Known:
    """Raises InvalidInput where no job of the cluster is called so."""
    target = connect(cluster, folder, aws)
    row = target.gateways.jobs.job(job)
    if row is None:
        there = ", ".join(sorted(str(one["job_id"]) for one in target.gateways.jobs.jobs())) or "none"
        beside = f"; the directory here is ./{job:.60}" if Path(job).is_dir() else ""
        raise InvalidInput(f"no job of this cluster is called {job!r:.60}; it has {there}{beside}")
    return Known(target, row)


def pin(of: Known, step: int, new: Pin | None) -> str:
    """Pin the newest lineage's step of that number in the ledger, or take its pin off -> which one it was."""
    attempts = [int(row["attempt"]) for row in of.rows.steps(of.job_id) if int(row["step"]) == step]
    if not attempts:
        raise InvalidInput(
            f"the ledger knows no step {step} of job {of.job_id}; `planaria checkpoints list` shows them"
        )
    newest = max(attempts)
    if new is None:
        of.rows.unpin(of.job_id, newest, step)
    else:
        of.rows.pin(of.job_id, newest, step, new.reason, new.by, new.at)
    return f"attempt {newest} of job {of.job_id}, in every tier"


def look(of: Known) -> Found:
    """All tiers, and what a resume would take of them."""
    seen = checkpoint_tiers.look(of.target, of.job, of.url, of.rows.steps(of.job_id))
    for sentence in seen.unseen:
        screen.say(f"Not all is seen: {sentence}")
    copies = of.with_pins(seen.copies)
    return Found(copies, chosen(copies, of.job_id, of.job.get("aside") or {}, of.starts))


def bucket_of_job(of: Known, moved: Moved | None = None) -> Opened:
    from planaria.aws.checkpoint_bucket import S3Checkpoints

    place = parse_bucket(of.url)
    client = of.target.client("s3")
    store = S3Checkpoints(client, place.bucket, place.prefix, of.job_id, progress=moved)
    return Opened(Bucket(place.bucket, place.prefix), store, of.job_id, True)
