"""The file systems of a cluster file's section `checkpoints`, and how FSx links them to S3.

What FSx itself refuses minutes into a deployment is refused here, with the rule's page:
https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystemLustreConfiguration.html
https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateDataRepositoryAssociation.html
"""

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from planaria.core.checkpoint_policy import PREFIX, overlapping
from planaria.recipe_nodes import SecurityGroupId, SubnetId, Zone
from planaria.recipe_policy import Name, Section

MOST_ASSOCIATIONS = 8
Deployment = Literal["PERSISTENT_2", "PERSISTENT_1", "SCRATCH_2", "SCRATCH_1"]
THROUGHPUT: dict[str, tuple[int, ...]] = {
    "PERSISTENT_2": (125, 250, 500, 1000),
    "PERSISTENT_1": (50, 100, 200),
}
"""MB/s per TiB of SSD storage. The scratch types have a fixed one."""
EFA_STEP_GIB: dict[int, int] = {125: 38_400, 250: 19_200, 500: 9600, 1000: 4800}
"""Throughput -> the step in which the storage of a file system with EFA grows; also its least size."""
Event = Literal["NEW", "CHANGED"]

FileSystemId = Annotated[str, Field(pattern=r"^fs-[0-9a-f]{8,17}$")]
VpcId = Annotated[str, Field(pattern=r"^vpc-[0-9a-f]{8,17}$")]
KeyArn = Annotated[str, Field(pattern=r"^arn:[a-z-]+:kms:[a-z0-9-]+:[0-9]{12}:key/[0-9a-f-]{36}$")]
WeeklyTime = Annotated[str, Field(pattern=r"^[1-7]:([01][0-9]|2[0-3]):[0-5][0-9]$")]
AbsolutePath = Annotated[str, Field(pattern=r"^/[^\x00\r\n]{0,4000}$")]
Strict = Annotated[bool, Field(strict=True)]


class Association(Section):
    """A directory of the file system that FSx links to a prefix of a bucket.

    data_repository_path: `checkpoints/...`, a prefix of Planaria's own bucket, or `s3://bucket/prefix`.
    auto_export, auto_import: what FSx carries over by itself. DELETED is not among them: whoever empties a
    directory would empty the other side as well, and with it what is durable. import_on_create: files that
    the prefix holds already appear in the file system.
    """

    file_system_path: AbsolutePath = "/checkpoints"
    data_repository_path: Annotated[str, Field(min_length=1, max_length=4000)] = "checkpoints"
    auto_export: tuple[Event, ...] = ()
    auto_import: tuple[Event, ...] = ()
    import_on_create: Strict = True

    @field_validator("auto_export", "auto_import", mode="before")
    @classmethod
    def _nothing_is_deleted(cls, value: Any) -> Any:
        if isinstance(value, list | tuple) and "DELETED" in value:
            raise ValueError(
                "takes NEW and CHANGED, not DELETED: an emptied directory would empty the other side too; "
                "retention removes what is old"
            )
        return value

    @model_validator(mode="after")
    def _paths_are_plain(self) -> Self:
        for key, path in (("file_system_path", self.file_system_path), ("data_repository_path", self._key)):
            if ".." in path.split("/") or "//" in path:
                raise ValueError(f"{key} must be a plain path without .. and //, not {path!r}")
        if not self.own:
            return self
        if not self.repository.startswith(PREFIX):
            raise ValueError(
                "data_repository_path must be checkpoints or below it (in Planaria's own bucket) or "
                f"s3://bucket/prefix, not {self.data_repository_path!r}"
            )
        return self

    @property
    def own(self) -> bool:
        """In Planaria's own bucket."""
        return not self.data_repository_path.startswith("s3://")

    @property
    def _key(self) -> str:
        return self.data_repository_path.removeprefix("s3://").strip("/")

    @property
    def bucket(self) -> str:
        """Of somebody else's repository; "" in our own bucket."""
        return "" if self.own else self._key.partition("/")[0]

    @property
    def prefix(self) -> str:
        """In the bucket, with `/` at its end; "" for the whole bucket."""
        inner = self._key if self.own else self._key.partition("/")[2]
        return f"{inner}/" if inner else ""

    @property
    def path(self) -> str:
        """With `/` at both ends."""
        inner = self.file_system_path.strip("/")
        return f"/{inner}/" if inner else "/"

    @property
    def repository(self) -> str:
        """With `/` at its end; as the cluster document has it."""
        return f"{'' if self.own else 's3://'}{self._key}/"


class Create(Section):
    """An FSx for Lustre file system that the Storage stack makes, in the subnet's Availability Zone.

    throughput: MB/s per TiB; metadata_iops: without it FSx chooses by the size. security_groups: without any
    the stack makes one that lets the node groups' own groups in. kms_key: without it FSx's own key.
    """

    vpc: VpcId
    subnet: SubnetId
    storage_gib: Annotated[int, Field(strict=True, ge=1200, le=1_000_000)]
    deployment: Deployment = "PERSISTENT_2"
    throughput: Annotated[int, Field(strict=True)] | None = None
    metadata_iops: Annotated[int, Field(strict=True)] | None = None
    efa: Strict = False
    compression: Literal["LZ4", "NONE"] = "NONE"
    security_groups: tuple[SecurityGroupId, ...] = ()
    kms_key: KeyArn | None = None
    maintenance: WeeklyTime | None = None

    @model_validator(mode="after")
    def _fsx_would_make_it(self) -> Self:
        step = 3600 if self.deployment == "SCRATCH_1" else 2400
        if self.storage_gib not in (1200, 2400) and self.storage_gib % step:
            raise ValueError(
                f"storage_gib must be 1200, 2400 or a multiple of {step}, not {self.storage_gib}"
            )
        known = THROUGHPUT.get(self.deployment, ())
        if self.throughput is not None and self.throughput not in known:
            said = f"must be one of {', '.join(map(str, known))}" if known else "is fixed"
            raise ValueError(f"throughput of {self.deployment} {said}, not {self.throughput}")
        if self.deployment != "PERSISTENT_2" and (self.efa or self.metadata_iops is not None):
            raise ValueError(f"efa and metadata_iops need deployment PERSISTENT_2, not {self.deployment}")
        iops = self.metadata_iops
        if iops is not None and iops not in (1500, 3000, 6000) and (iops % 12_000 or not 0 < iops <= 192_000):
            raise ValueError(
                f"metadata_iops must be 1500, 3000, 6000 or a multiple of 12000 up to 192000, not {iops}"
            )
        return self

    @model_validator(mode="after")
    def _efa_has_its_sizes(self) -> Self:
        if self.efa:
            step = EFA_STEP_GIB[self.rate or 0]
            if self.storage_gib % step:
                raise ValueError(
                    f"storage_gib of a file system with EFA and throughput {self.rate} must be a multiple of "
                    f"{step}, not {self.storage_gib}"
                )
        return self

    @property
    def rate(self) -> int | None:
        """MB/s per TiB; None where it is fixed."""
        known = THROUGHPUT.get(self.deployment)
        return None if known is None else self.throughput or known[1]


class FileSystem(Section):
    """One that nodes mount: `id` of one that is there, or `create`. make_associations: with `id`, the stack
    links it; without, the associations are only described, as somebody else has made them."""

    name: Name
    id: FileSystemId | None = None
    create: Create | None = None
    mount: AbsolutePath = "/fsx"
    zone: Zone
    associations: Annotated[tuple[Association, ...], Field(max_length=MOST_ASSOCIATIONS)] = ()
    make_associations: Strict = False

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if (self.id is None) == (self.create is None):
            raise ValueError("must have id (of one that is there) or create (the Storage stack makes it)")
        if self.create is not None and self.make_associations:
            raise ValueError("make_associations is for id; with create they are made anyway")
        if self.mount == "/" or ".." in PurePosixPath(self.mount).parts:
            raise ValueError(f"mount must be a directory such as /fsx, not {self.mount!r}")
        return self

    @model_validator(mode="after")
    def _associations_stand_beside_each_other(self) -> Self:
        if self.associations and self.create is not None and self.create.deployment == "SCRATCH_1":
            raise ValueError(
                "associations need deployment PERSISTENT_2, PERSISTENT_1 or SCRATCH_2, not SCRATCH_1"
            )
        if found := overlapping(each.path for each in self.associations):
            raise ValueError(f"two associations overlap in the file system: {found[0]} and {found[1]}")
        if found := overlapping(each.repository for each in self.associations):
            raise ValueError(f"two associations overlap in S3: {found[0]} and {found[1]}")
        return self

    def resource(self) -> dict[str, Any]:
        """What the Storage stack has to know."""
        create = self.create
        return {
            "name": self.name,
            "id": self.id or "",
            "mount": self.mount.rstrip("/"),
            "make_links": create is not None or self.make_associations,
            "creation": {**create.model_dump(), "throughput": create.rate} if create is not None else None,
            "links": [
                {
                    "path": each.path,
                    "bucket": each.bucket,
                    "prefix": each.prefix,
                    "auto_export": each.auto_export,
                    "auto_import": each.auto_import,
                    "import_on_create": each.import_on_create,
                }
                for each in self.associations
            ],
        }

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "id": self.id or "",
            "mount": self.mount.rstrip("/"),
            "zone": self.zone,
            "associations": [
                {
                    "file_system_path": each.path,
                    "data_repository_path": each.repository,
                    "auto_export": list(each.auto_export),
                    "auto_import": list(each.auto_import),
                }
                for each in self.associations
            ],
        }
