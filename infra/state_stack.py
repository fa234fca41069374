"""What must survive everything: the ledger's table and the checkpoint bucket."""

from dataclasses import dataclass
from typing import Any

from aws_cdk import Duration, RemovalPolicy, Stack
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_s3 as s3
from constructs import Construct

from infra.replication import replicate
from infra.settings import Settings

REPORTS = ".planaria-reports"
"""Below an association's prefix: where FSx writes which files a task failed on."""


@dataclass(frozen=True, slots=True)
class State:
    """Names and ARNs of what is kept."""

    table_name: str
    table_arn: str
    bucket_name: str
    bucket_arn: str


class Ledger(Construct):
    """One table. `listing` finds the rows of one kind; expired rows go by `expires_at`."""

    def __init__(self, scope: Construct, construct_id: str, settings: Settings) -> None:
        super().__init__(scope, construct_id)
        kept = settings.sandbox is None
        text = dynamodb.AttributeType.STRING
        self.table = dynamodb.Table(
            self,
            "Table",
            table_name=settings.prefix,
            partition_key=dynamodb.Attribute(name="pk", type=text),
            sort_key=dynamodb.Attribute(name="sk", type=text),
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            time_to_live_attribute="expires_at",
            # A key in the account, visible in CloudTrail; a customer key would cost more and guard no more.
            encryption=dynamodb.TableEncryption.AWS_MANAGED,
            deletion_protection=kept,
            removal_policy=RemovalPolicy.RETAIN if kept else RemovalPolicy.DESTROY,
        )
        self.table.add_global_secondary_index(
            index_name="listing",
            partition_key=dynamodb.Attribute(name="listing", type=text),
            sort_key=dynamodb.Attribute(name="pk", type=text),
            projection_type=dynamodb.ProjectionType.KEYS_ONLY,
        )


class Checkpoints(Construct):
    """The bucket of durable checkpoints, and of event bodies that are too large for the table."""

    def __init__(self, scope: Construct, construct_id: str, settings: Settings) -> None:
        super().__init__(scope, construct_id)
        kept = settings.sandbox is None
        common: dict[str, Any] = {
            "block_public_access": s3.BlockPublicAccess.BLOCK_ALL,
            "encryption": s3.BucketEncryption.S3_MANAGED,  # a KMS call per object of a sharded save adds up
            "enforce_ssl": settings.tls_only,
            "object_ownership": s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            "removal_policy": RemovalPolicy.RETAIN if kept else RemovalPolicy.DESTROY,
        }
        abandoned = s3.LifecycleRule(
            id="abandoned-uploads", abort_incomplete_multipart_upload_after=Duration.days(7)
        )
        access_log = s3.Bucket(
            self,
            "AccessLog",
            lifecycle_rules=[abandoned, s3.LifecycleRule(id="old-records", expiration=Duration.days(90))],
            **common,
        )
        reports = dict.fromkeys(
            f"{link.prefix}{REPORTS}/"
            for file_system in (settings.storage.file_systems if settings.storage is not None else ())
            for link in file_system.links
            if not link.bucket
        )
        self.bucket = s3.Bucket(
            self,
            "Bucket",
            versioned=True,
            server_access_logs_bucket=access_log,
            server_access_logs_prefix="checkpoints/",
            lifecycle_rules=[
                abandoned,
                # Pruned checkpoints can be brought back for a week; then they must stop costing money.
                s3.LifecycleRule(
                    id="pruned",
                    noncurrent_version_expiration=Duration.days(7),
                    expired_object_delete_marker=True,  # of a hundred thousand shards each step
                ),
                s3.LifecycleRule(id="large-events", prefix="events/", expiration=Duration.days(90)),
                s3.LifecycleRule(id="command-answers", prefix="commands/", expiration=Duration.days(7)),
                s3.LifecycleRule(id="transfer-plans", prefix="transfers/", expiration=Duration.days(30)),
                *(
                    s3.LifecycleRule(id=f"task-reports-{number}", prefix=prefix, expiration=Duration.days(90))
                    for number, prefix in enumerate(reports)
                ),
            ],
            **common,
        )
        if kept and settings.storage is not None and settings.storage.replication is not None:
            replicate(self, self.bucket, settings.storage.replication)


class StateStack(Stack):
    """Its exports are all that the Control stack knows of it."""

    def __init__(self, scope: Construct, construct_id: str, settings: Settings, **stack: Any) -> None:
        super().__init__(
            scope, construct_id, description=f"Planaria {settings.cluster}: ledger and checkpoints", **stack
        )
        table = Ledger(self, "Ledger", settings).table
        bucket = Checkpoints(self, "Checkpoints", settings).bucket
        self.exports = State(
            table_name=self.export_value(table.table_name),
            table_arn=self.export_value(table.table_arn),
            bucket_name=self.export_value(bucket.bucket_name),
            bucket_arn=self.export_value(bucket.bucket_arn),
        )
