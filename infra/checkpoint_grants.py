"""Grants on checkpoints: their objects in S3, and FSx's tasks that move them.

https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazons3.html
https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonfsx.html
"""

from collections.abc import Mapping

from infra.grants import Grant, Maker, Targets
from infra.settings import Storage

CHECKPOINTS = "checkpoints/*"
TRANSFERS = "transfers/*"
MANIFEST = "planaria-manifest.json"
CLUSTER_TAG = "planaria:cluster"

_KEYS = "Jobs, steps and shards have their names from users, all below the prefix of the checkpoints."
_PLANS = "Transfers get their keys at run time, all below transfers/."
_MANIFESTS = "Jobs and steps have their names from users; the manifest's own name is given."
_TASKS = "FSx makes up the ids of tasks; the cluster's tag, which is set with each, is the limit."
_READS = "FSx's DescribeDataRepositoryTasks has no resource-level permissions; it only reads."


def reads_checkpoints(to: Targets) -> tuple[Grant, ...]:
    """List steps, read manifests and reports, and prove objects by HeadObject, which is GetObject to IAM."""
    kept = _kept(to.bucket, to.linked)
    return (
        _lists(to.bucket, to.linked),
        Grant("ReadCheckpoints", ("s3:GetObject",), kept, wildcard=_KEYS),
    )


def commits_manifests(to: Targets) -> tuple[Grant, ...]:
    """The one file that makes a step durable: written where none is, and withdrawn where a shard went
    meanwhile."""
    places = tuple(f"{kept}/{MANIFEST}" for kept in _kept(to.bucket, to.linked))
    return (Grant("WriteManifests", ("s3:PutObject", "s3:DeleteObject"), places, wildcard=_MANIFESTS),)


def removes_checkpoints(to: Targets) -> tuple[Grant, ...]:
    """Remove what retention lets go, and parts of uploads that nobody finished. The bucket keeps for a week
    what is removed."""
    kept = _kept(to.bucket, to.linked)
    actions = ("s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")
    return (
        Grant("Prune", actions, kept, wildcard=_KEYS),
        Grant("ListUploads", ("s3:ListBucketMultipartUploads",), _buckets(to.bucket, to.linked)),
    )


def reads_transfers(to: Targets) -> tuple[Grant, ...]:
    """Plans, manifests and results of what nodes copy."""
    return (Grant("Transfers", ("s3:GetObject",), (f"{to.bucket}/{TRANSFERS}",), wildcard=_PLANS),)


def repository_tasks(*actions: str) -> Maker:
    """actions: CreateDataRepositoryTask, DescribeDataRepositoryTasks, CancelDataRepositoryTask. None where no
    file system is linked to a bucket."""

    def make(to: Targets) -> tuple[Grant, ...]:
        return tuple(grant for action in actions for grant in _tasks(to, action)) if to.file_systems else ()

    return make


def of_nodes(bucket: str, table: str, linked: tuple[str, ...]) -> tuple[Grant, ...]:
    """Nodes save, copy and load checkpoints, and share the work by rows of their own. They delete nothing."""
    actions = ("s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")
    rows = {
        "ForAllValues:StringLike": {"dynamodb:LeadingKeys": "TRANSFER#*"},
        "Null": {"dynamodb:LeadingKeys": "false"},
    }
    return (
        Grant("Checkpoints", actions, _kept(bucket, linked), wildcard=_KEYS),
        Grant(
            "TransferObjects", ("s3:GetObject", "s3:PutObject"), (f"{bucket}/{TRANSFERS}",), wildcard=_PLANS
        ),
        _lists(bucket, linked),
        Grant(
            "ListUploads",
            ("s3:ListBucketMultipartUploads",),
            _buckets(bucket, linked),
        ),
        Grant("TransferRows", ("dynamodb:GetItem", "dynamodb:Query", "dynamodb:UpdateItem"), (table,), rows),
    )


def places(partition: str, storage: Storage | None) -> tuple[str, ...]:
    """`arn:aws:s3:::bucket/prefix/*` of the associations that lead to buckets not ours."""
    links = [link for each in (storage.file_systems if storage is not None else ()) for link in each.links]
    found = (f"arn:{partition}:s3:::{link.bucket}/{link.prefix}*" for link in links if link.bucket)
    return tuple(dict.fromkeys(found))


def file_systems(home: str, storage: Storage | None, made: Mapping[str, str]) -> tuple[str, ...]:
    """ARNs of the file systems with associations. home: `arn:...:fsx:region:account`; made: name -> id of
    those of the Storage stack."""
    known = storage.file_systems if storage is not None else ()
    ids = (each.id or made.get(each.name, "") for each in known if each.links)
    return tuple(dict.fromkeys(f"{home}:file-system/{name}" for name in ids if name))


def _tasks(to: Targets, action: str) -> tuple[Grant, ...]:
    tasks = (f"{to.account_fsx}:task/*",)
    match action:
        case "CreateDataRepositoryTask":
            asked = {"StringEquals": {f"aws:RequestTag/{CLUSTER_TAG}": to.cluster}}
            create = f"fsx:{action}"
            return (
                Grant("TasksOf", (create,), to.file_systems),
                Grant("NewTask", (create, "fsx:TagResource"), tasks, asked, wildcard=_TASKS),
            )
        case "CancelDataRepositoryTask":
            ours = {"StringEquals": {f"aws:ResourceTag/{CLUSTER_TAG}": to.cluster}}
            return (Grant("CancelTask", (f"fsx:{action}",), tasks, ours, wildcard=_TASKS),)
        case "DescribeDataRepositoryTasks":
            return (Grant("FollowTasks", (f"fsx:{action}",), ("*",), wildcard=_READS),)
    raise ValueError(f"there is no grant for fsx:{action}")


def _kept(bucket: str, linked: tuple[str, ...]) -> tuple[str, ...]:
    return (f"{bucket}/{CHECKPOINTS}", *linked)


def _buckets(bucket: str, linked: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((bucket, *(place.partition("/")[0] for place in linked))))


def _lists(bucket: str, linked: tuple[str, ...]) -> Grant:
    """Where a caller may not list, S3 says of an object that is not there that access is denied. It asks for
    this leave without a prefix, so the condition must let that pass."""
    prefixes = [CHECKPOINTS, TRANSFERS, *(place.partition("/")[2] for place in linked)]
    only = {"StringLikeIfExists": {"s3:prefix": list(dict.fromkeys(prefixes))}}
    return Grant("ListCheckpoints", ("s3:ListBucket",), _buckets(bucket, linked), only)
