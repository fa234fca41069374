"""Copies every checkpoint object of the bucket to a bucket in another region.

Removals are not copied: whoever prunes or loses checkpoints here finds them there. The other bucket must have
versioning on; lifecycle rules there say when its copies end.
https://docs.aws.amazon.com/AmazonS3/latest/userguide/setting-repl-config-perm-overview.html
"""

from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from constructs import Construct

from infra.grants import Grant
from infra.settings import Replication
from infra.suppressions import accept_wildcards

PREFIX = "checkpoints/"
_KEYS = "Checkpoints get their keys at run time, all below checkpoints/."


def replicate(scope: Construct, bucket: s3.Bucket, to: Replication) -> None:
    there = f"arn:{Stack.of(scope).partition}:s3:::{to.bucket}"
    role = iam.Role(
        scope,
        "Replicator",
        description="Copies checkpoints to another region",
        assumed_by=iam.ServicePrincipal("s3.amazonaws.com"),
    )
    grants = (
        Grant("Source", ("s3:GetReplicationConfiguration", "s3:ListBucket"), (bucket.bucket_arn,)),
        Grant(
            "Versions",
            (
                "s3:GetObjectVersionForReplication",
                "s3:GetObjectVersionAcl",
                "s3:GetObjectVersionTagging",
            ),
            (f"{bucket.bucket_arn}/{PREFIX}*",),
            wildcard=_KEYS,
        ),
        Grant("Copies", ("s3:ReplicateObject", "s3:ReplicateTags"), (f"{there}/{PREFIX}*",), wildcard=_KEYS),
    )
    # Not in the role itself: the bucket names the role, and the role's policy names the bucket.
    policy = iam.Policy(
        scope, "Replicating", statements=[grant.statement() for grant in grants], roles=[role]
    )
    accept_wildcards(policy, grants)
    resource = bucket.node.default_child
    assert isinstance(resource, s3.CfnBucket)
    cfn = s3.CfnBucket
    resource.replication_configuration = cfn.ReplicationConfigurationProperty(
        role=role.role_arn,
        rules=[
            cfn.ReplicationRuleProperty(
                id="checkpoints",
                status="Enabled",
                priority=1,
                filter=cfn.ReplicationRuleFilterProperty(prefix=PREFIX),
                delete_marker_replication=cfn.DeleteMarkerReplicationProperty(status="Disabled"),
                destination=cfn.ReplicationDestinationProperty(bucket=there, storage_class=to.storage_class),
            )
        ],
    )
