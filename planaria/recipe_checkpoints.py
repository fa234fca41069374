"""The section `checkpoints` of a cluster file: where they lie, what stays, and when it is copied."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from planaria.core.checkpoint_policy import overlapping
from planaria.core.saved_step import Tier
from planaria.recipe_file_systems import Association, Create, FileSystem
from planaria.recipe_policy import Count, Hours, Minutes, Section, Share

MOST_FILE_SYSTEMS = 8

Region = Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]+$")]
BucketName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")]
Tag = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class Retention(Section):
    """What stays of a tier: one rule that fits is enough."""

    keep: Count
    keep_hours: Hours | None = None
    keep_every: Annotated[int, Field(strict=True, ge=1)] | None = None
    keep_tags: tuple[Tag, ...] = ()

    def document(self, time_scale: float) -> dict[str, Any]:
        return {
            "keep": self.keep,
            "keep_seconds": (self.keep_hours or 0) * 3600 * time_scale,
            "keep_every": self.keep_every or 0,
            "keep_tags": list(self.keep_tags),
        }


class Retentions(Section):
    """A tier that is not named keeps everything."""

    fsx: Retention | None = None
    s3: Retention | None = None


class Replication(Section):
    """A bucket in another region, with versioning on, that gets every checkpoint object as well."""

    bucket: BucketName
    region: Region
    storage_class: Literal["STANDARD", "STANDARD_IA", "INTELLIGENT_TIERING", "GLACIER_IR"] = "STANDARD"


class Checkpoints(Section):
    """The whole section."""

    file_systems: Annotated[tuple[FileSystem, ...], Field(max_length=MOST_FILE_SYSTEMS)] = ()
    retention: Retentions = Retentions()
    sync_minutes: Minutes = 10.0
    bandwidth_share: Share = 0.5
    sweep_hours: Hours = 24.0
    rpo_minutes: Minutes = 60.0
    replication: Replication | None = None

    @model_validator(mode="after")
    def _each_is_there_once(self) -> Self:
        for key in ("name", "id", "mount"):
            values = [getattr(each, key) for each in self.file_systems]
            for value in values:
                if value is not None and values.count(value) > 1:
                    raise ValueError(f"two file systems have the {key} {value}")
        # The same prefix under two file systems: either could write over the other's objects.
        if found := overlapping(a.repository for each in self.file_systems for a in each.associations):
            raise ValueError(f"the associations of two file systems overlap in S3: {found[0]} and {found[1]}")
        return self

    @model_validator(mode="after")
    def _copies_are_in_time(self) -> Self:
        if self.rpo_minutes < self.sync_minutes:
            raise ValueError(
                f"rpo_minutes ({self.rpo_minutes:g}) must be at least sync_minutes ({self.sync_minutes:g}): "
                "a copy that is made seldom is old"
            )
        return self

    @property
    def zones(self) -> tuple[str, ...]:
        """Each once, in the file's order."""
        return tuple(dict.fromkeys(each.zone for each in self.file_systems))

    def resources(self) -> dict[str, Any]:
        """What the Storage stack has to know."""
        return {
            "file_systems": [each.resource() for each in self.file_systems],
            "rpo_minutes": self.rpo_minutes,
            "replication": self.replication.model_dump() if self.replication is not None else None,
        }

    def document(self, time_scale: float) -> dict[str, Any]:
        """As planaria/core/checkpoint_policy.py reads it."""
        rules = {Tier.FSX: self.retention.fsx, Tier.S3: self.retention.s3}
        return {
            "file_systems": [each.document() for each in self.file_systems],
            "retention": {
                tier.value: rule.document(time_scale) for tier, rule in rules.items() if rule is not None
            },
            "sync_seconds": self.sync_minutes * 60 * time_scale,
            "bandwidth_share": self.bandwidth_share,
            "sweep_seconds": self.sweep_hours * 3600 * time_scale,
            "rpo_seconds": self.rpo_minutes * 60 * time_scale,
        }


SECTIONS = (Checkpoints, FileSystem, Create, Association, Retentions, Retention, Replication)
