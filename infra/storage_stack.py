"""FSx for Lustre in the capacity's Availability Zone, its links to S3, and alarms on how far S3 lags behind.

A stack of its own: the sandbox's emulator has no FSx, and a file system outlives every control plane. Nothing
in it is deleted with it. None of this has been deployed on AWS.
https://docs.aws.amazon.com/fsx/latest/LustreGuide/create-dra-linked-data-repo.html
"""

from collections.abc import Mapping
from typing import Any

from aws_cdk import ArnFormat, CfnOutput, RemovalPolicy, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_fsx as fsx
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sns as sns
from constructs import Construct

from infra.alarms import FIVE_MINUTES, MINUTE, Alarms
from infra.lustre_access import LustreAccess
from infra.settings import Creation, FileSystem, Link, Settings
from infra.state_stack import State

LUSTRE = "2.15"
METRICS = "Planaria"
AGE, FAILURES = "CheckpointAgeMinutes", "CheckpointSyncFailures"
# https://docs.aws.amazon.com/fsx/latest/LustreGuide/data-repo-event-logs.html
EXPORT_ERRORS = (
    "S3ExportInternalError",
    "S3ExportAccessDenied",
    "S3ExportPathSizeTooLong",
    "S3ExportFileSizeTooLarge",
    "S3ExportResourceBusy",
    "InternalAutoExportError",
)


class StorageStack(Stack):
    """exports: name -> id of the file systems that it has made."""

    def __init__(
        self, scope: Construct, construct_id: str, settings: Settings, state: State, **stack: Any
    ) -> None:
        super().__init__(
            scope,
            construct_id,
            description=f"Planaria {settings.cluster}: file systems of checkpoints",
            **stack,
        )
        storage = settings.storage
        assert storage is not None
        self._settings = settings
        self._state = state
        home = f"arn:{self.partition}:sns:{self.region}:{self.account}"
        # By its name: the topic is the Control stack's, which needs this stack's file systems.
        topic = sns.Topic.from_topic_arn(self, "Topic", f"{home}:{settings.named('notices')}")
        self._alarms = Alarms(self, "Alarms", settings, topic)
        found: dict[str, str] = {}
        for each in storage.file_systems:
            scope = Construct(self, each.name)
            name = each.id
            if each.creation is not None:
                name = self._file_system(scope, each, each.creation, storage.clients).ref
                found[each.name] = self.export_value(name)
            if each.make_links:
                self._links(scope, each, name)
            if any(link.auto_export for link in each.links):
                self._lag(each, name, storage.rpo_minutes)
        self.exports: Mapping[str, str] = found
        self._copies(storage.rpo_minutes)

    def _file_system(
        self, scope: Construct, each: FileSystem, wanted: Creation, clients: tuple[str, ...]
    ) -> fsx.CfnFileSystem:
        what = f"planaria {self._settings.cluster}: file system {each.name}"
        groups, rules = list(wanted.security_groups), []
        if not groups:
            access = LustreAccess(scope, "Access", wanted.vpc, clients, wanted.efa, what)
            groups, rules = [access.group_id], access.rules
        lustre = fsx.CfnFileSystem
        file_system = fsx.CfnFileSystem(
            scope,
            "FileSystem",
            file_system_type="LUSTRE",
            file_system_type_version=LUSTRE,
            storage_type="SSD",
            storage_capacity=wanted.storage_gib,
            subnet_ids=[wanted.subnet],
            security_group_ids=groups,
            kms_key_id=wanted.kms_key,
            tags=[{"key": "Name", "value": self._settings.named(each.name)}],
            lustre_configuration=lustre.LustreConfigurationProperty(
                deployment_type=wanted.deployment,
                per_unit_storage_throughput=wanted.throughput,
                metadata_configuration=_metadata(wanted),
                efa_enabled=wanted.efa or None,
                data_compression_type=wanted.compression,
                weekly_maintenance_start_time=wanted.maintenance,
                log_configuration=self._log(scope, each) if each.links else None,
            ),
        )
        file_system.apply_removal_policy(RemovalPolicy.RETAIN)
        for rule in rules:  # FSx tests them when it makes the file system
            file_system.add_resource_dependency(rule)
        CfnOutput(
            scope,
            "Mount",
            value=f"{file_system.attr_dns_name}@tcp:/{file_system.attr_lustre_mount_name}",
            description=f"What nodes mount as file system {each.name}",
        )
        return file_system

    def _log(self, scope: Construct, each: FileSystem) -> fsx.CfnFileSystem.LogConfigurationProperty:
        """What FSx could not carry over; its name must begin with /aws/fsx/."""
        name = f"/aws/fsx/{self._settings.named(each.name)}"
        log_group = logs.LogGroup(
            scope,
            "Log",
            log_group_name=name,
            retention=logs.RetentionDays.THREE_MONTHS,
            removal_policy=RemovalPolicy.RETAIN,
        )
        failed = logs.MetricFilter(
            scope,
            "Failed",
            log_group=log_group,
            filter_pattern=logs.FilterPattern.any_term(*EXPORT_ERRORS),
            metric_namespace=METRICS,
            metric_name=f"{self._settings.named(each.name)}-export-errors",
            metric_value="1",
        )
        self._alarms.alarm(
            f"{each.name}-export-errors",
            failed.metric(period=FIVE_MINUTES, statistic="Sum"),
            1,
            f"FSx could not export files of the file system {each.name}; its log {name} says which.",
            "checkpoint-export",
        )
        arn = self.format_arn(
            service="logs",
            resource="log-group",
            resource_name=name,
            arn_format=ArnFormat.COLON_RESOURCE_NAME,
        )
        return fsx.CfnFileSystem.LogConfigurationProperty(level="WARN_ERROR", destination=arn)

    def _links(self, scope: Construct, each: FileSystem, file_system_id: str) -> None:
        """One after another: FSx works on one association of a file system at a time."""
        before: fsx.CfnDataRepositoryAssociation | None = None
        for number, link in enumerate(each.links):
            association = fsx.CfnDataRepositoryAssociation(
                scope,
                f"Link{number}",
                file_system_id=file_system_id,
                file_system_path=link.path,
                data_repository_path=f"s3://{link.bucket or self._state.bucket_name}/{link.prefix}",
                batch_import_meta_data_on_create=link.import_on_create,
                s3=_policies(link),
            )
            association.apply_removal_policy(RemovalPolicy.RETAIN)
            if before is not None:
                association.add_resource_dependency(before)
            before = association

    def _lag(self, each: FileSystem, file_system_id: str, rpo_minutes: float) -> None:
        oldest = cloudwatch.Metric(
            namespace="AWS/FSx",
            metric_name="AgeOfOldestQueuedMessage",
            dimensions_map={"FileSystemId": file_system_id, "Publisher": "AutoExport"},
            period=MINUTE,
            statistic="Maximum",
        )
        what = f"Files of the file system {each.name} wait for their export for more than rpo_minutes."
        self._alarms.alarm(f"{each.name}-export-lag", oldest, rpo_minutes * 60, what, "checkpoint-export")

    def _copies(self, rpo_minutes: float) -> None:
        """Of all jobs, whichever way their checkpoints get to S3. The Lambdas put the figures."""
        cluster = {"Cluster": self._settings.cluster}
        age = cloudwatch.Metric(
            namespace=METRICS,
            metric_name=AGE,
            dimensions_map=cluster,
            period=FIVE_MINUTES,
            statistic="Maximum",
        )
        failed = cloudwatch.Metric(
            namespace=METRICS,
            metric_name=FAILURES,
            dimensions_map=cluster,
            period=FIVE_MINUTES,
            statistic="Sum",
        )
        old = "The newest durable checkpoint of a running job is older than rpo_minutes."
        self._alarms.alarm("checkpoint-age", age, rpo_minutes, old, "checkpoint-age")
        self._alarms.alarm(
            "checkpoint-syncs", failed, 1, "A checkpoint could not be copied to S3.", "checkpoint-sync"
        )


def _metadata(wanted: Creation) -> fsx.CfnFileSystem.MetadataConfigurationProperty | None:
    if wanted.deployment != "PERSISTENT_2":
        return None
    mode = "AUTOMATIC" if wanted.metadata_iops is None else "USER_PROVISIONED"
    return fsx.CfnFileSystem.MetadataConfigurationProperty(mode=mode, iops=wanted.metadata_iops)


def _policies(link: Link) -> fsx.CfnDataRepositoryAssociation.S3Property | None:
    if not link.auto_export and not link.auto_import:
        return None
    cfn = fsx.CfnDataRepositoryAssociation
    return cfn.S3Property(
        auto_export_policy=cfn.AutoExportPolicyProperty(events=list(link.auto_export))
        if link.auto_export
        else None,
        auto_import_policy=cfn.AutoImportPolicyProperty(events=list(link.auto_import))
        if link.auto_import
        else None,
    )
