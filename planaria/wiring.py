"""Environment -> adapters: the only place where adapters are chosen.

Nothing touches the environment or boto3 at import, and a client is made when it is first used: a Lambda
that needs DynamoDB alone never loads the EC2 model.
"""

import dataclasses
import functools
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planaria.core.breaker import Breaker, allowed
from planaria.core.checkpoint_policy import PREFIX, Checkpoints
from planaria.core.checkpoint_ports import DataRepository, DurableStore
from planaria.core.cluster import Cluster, Eks, Slurm
from planaria.core.errors import InvalidInput, PermanentError
from planaria.core.job_ledger import JobLedger
from planaria.core.ledger import Ledger
from planaria.core.ports import (
    Bus,
    Clock,
    Commands,
    Fleet,
    Notices,
    Objects,
    Queues,
    Scaling,
    Scheduler,
    Table,
    Workflows,
)
from planaria.core.singly import Singly
from planaria.core.strangers import Strangers
from planaria.core.topology import NetworkTopology

if TYPE_CHECKING:
    from planaria.aws.autoscaling import AutoScalingFleet
    from planaria.aws.ec2 import Ec2Fleet

CONNECTIONS = 16
"""Of one client: as many threads ask S3 about a checkpoint's objects at once."""
CLUSTER_FILE = Path(__file__).resolve().parent.parent / "cluster.json"


class SystemClock:
    def now(self) -> float:
        return time.time()


class Gateways:
    """Every port of one cluster, each made on first use. A test sets the attributes it wants."""

    def __init__(
        self,
        environment: Mapping[str, str],
        cluster: Cluster | None = None,
        client: Callable[[str], Any] | None = None,
    ) -> None:
        """client: makes a boto3 client of a service; by default from the environment's credentials."""
        self._environment = environment
        self._client = client or _boto3_client
        if cluster is not None:
            self.cluster = self._deployed(cluster)

    @functools.cached_property
    def cluster(self) -> Cluster:
        return self._deployed(Cluster.from_document(json.loads(CLUSTER_FILE.read_text())))

    @functools.cached_property
    def clock(self) -> Clock:
        return SystemClock()

    @functools.cached_property
    def table(self) -> Table:
        from planaria.aws.dynamodb import DynamoTable

        return DynamoTable(self._client("dynamodb"), self._need("PLANARIA_TABLE"))

    @functools.cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.table)

    @functools.cached_property
    def strangers(self) -> Strangers:
        return Strangers()

    @functools.cached_property
    def singly(self) -> Singly:
        return Singly()

    @functools.cached_property
    def jobs(self) -> JobLedger:
        return JobLedger(self.table)

    @functools.cached_property
    def breaker(self) -> Breaker:
        limits = self.cluster.policy.breaker
        cap = allowed(limits.max_removals, limits.max_share, self.cluster.size)
        own = limits.max_per_detector
        each = None if own is None else allowed(own, limits.max_share, self.cluster.size)
        return Breaker(self.table, cap, limits.window_seconds, each)

    @functools.cached_property
    def fleet(self) -> Fleet:
        if any(group.auto_scaling_group for group in self.cluster.node_groups.values()):
            return self._auto_scaling
        return self._ec2

    @functools.cached_property
    def scaling(self) -> Scaling:
        """Asked only about node groups that name an Auto Scaling group."""
        return self._auto_scaling

    @functools.cached_property
    def _ec2(self) -> "Ec2Fleet":
        from planaria.aws.ec2 import Ec2Fleet

        return Ec2Fleet(self._client("ec2"), self.cluster.name)

    @functools.cached_property
    def _auto_scaling(self) -> "AutoScalingFleet":
        from planaria.aws.autoscaling import AutoScalingFleet

        return AutoScalingFleet(
            self._client("autoscaling"), self._client("ec2"), self._ec2, self.cluster.name, self.clock.now
        )

    @functools.cached_property
    def topology(self) -> NetworkTopology:
        from planaria.aws.topology import Ec2Topology

        ec2 = Ec2Topology(self._client("ec2"))
        if self.cluster.eks is None:
            return ec2
        from planaria.schedulers.eks.connect import places

        return places(self.cluster.eks.cluster, self._client, self.clock.now, ec2)

    @functools.cached_property
    def workflows(self) -> Workflows:
        from planaria.aws.stepfunctions import StepFunctions

        machines = json.loads(self._need("PLANARIA_MACHINES"))
        return StepFunctions(self._client("stepfunctions"), machines)

    @functools.cached_property
    def bus(self) -> Bus:
        from planaria.aws.eventbridge import EventBridgeBus

        return EventBridgeBus(self._client("events"), self._need("PLANARIA_BUS"))

    @functools.cached_property
    def notices(self) -> Notices:
        from planaria.aws.sns import SnsNotices

        return SnsNotices(self._client("sns"), self._need("PLANARIA_TOPIC"))

    @functools.cached_property
    def objects(self) -> Objects:
        from planaria.aws.s3 import S3Objects

        return S3Objects(self._client("s3"), self._need("PLANARIA_BUCKET"))

    @functools.cached_property
    def data_repository(self) -> DataRepository:
        from planaria.aws.fsx import FsxDataRepository

        return FsxDataRepository(
            self._client("fsx"), self.cluster.checkpoints or Checkpoints(), self.cluster.name
        )

    def checkpoints(self, job: str, place: str = "") -> DurableStore:
        """What S3 has of a job. place: `s3://bucket/prefix`, by default our bucket's checkpoints/<job>."""
        from planaria.aws.checkpoint_bucket import S3Checkpoints

        bucket, _, prefix = place.removeprefix("s3://").partition("/")
        if not place:
            bucket, prefix = self._need("PLANARIA_BUCKET"), f"{PREFIX}{job}"
        return S3Checkpoints(self._client("s3"), bucket, prefix.rstrip("/"), job)

    @functools.cached_property
    def queues(self) -> Queues:
        from planaria.aws.sqs import SqsQueues

        return SqsQueues(self._client("sqs"))

    @functools.cached_property
    def scheduler(self) -> Scheduler:
        match self.cluster:
            case Cluster(scheduler="process"):
                from planaria.schedulers.process import ProcessScheduler

                return ProcessScheduler(*self._sandbox())
            case Cluster(scheduler="slurm", slurm=Slurm(head_node=head_node)):
                from planaria.schedulers.slurm import SlurmScheduler

                return SlurmScheduler(self.commands, head_node, self.table, self.clock)
            case Cluster(scheduler="eks", eks=Eks(cluster=name, namespaces=namespaces)):
                from planaria.schedulers.eks.connect import connect

                return connect(name, namespaces, self._client, self.ledger, self.clock.now)
        word = self.cluster.scheduler
        raise PermanentError(f"the cluster file says nothing about scheduler {word!r}: deploy it again")

    @property
    def scheduler_is_slow(self) -> bool:
        """Its answers come over SSM, in seconds. In the sandbox they do not, and its workflows' time-outs are
        shorter than on AWS."""
        return self.cluster.scheduler == "slurm" and not self._environment.get("PLANARIA_SANDBOX_URL")

    @functools.cached_property
    def commands(self) -> Commands:
        """In the sandbox its head runs the documents, whatever the scheduler is."""
        if self._environment.get("PLANARIA_SANDBOX_URL"):
            from planaria.schedulers.process import ProcessCommands

            return ProcessCommands(*self._sandbox())
        from planaria.aws.ssm import SsmCommands

        bucket = self._need("PLANARIA_BUCKET")
        client = self._client("ssm")
        return SsmCommands(
            client, self.cluster.name, bucket, lambda key: self.objects.get(key), self.clock.now
        )

    def _deployed(self, cluster: Cluster) -> Cluster:
        """With what only a deployment knows: our bucket, and the ids of file systems that are ours."""
        bucket = self._environment.get("PLANARIA_BUCKET")
        if cluster.checkpoints is None or not bucket:
            return cluster
        ids = json.loads(self._environment.get("PLANARIA_FILE_SYSTEMS") or "{}")
        return dataclasses.replace(cluster, checkpoints=cluster.checkpoints.resolved(bucket, ids))

    def _sandbox(self) -> tuple[str, str]:
        """The address of the sandbox's head, and the token for it."""
        return self._need("PLANARIA_SANDBOX_URL"), self._need("PLANARIA_SANDBOX_TOKEN")

    def _need(self, name: str) -> str:
        value = self._environment.get(name)
        if not value:
            raise InvalidInput(f"the environment variable {name} is not set; deploy with `cdk deploy`")
        return value


def _boto3_client(service: str) -> Any:
    import boto3
    from botocore.config import Config

    retries = {"mode": "standard", "max_attempts": 3}
    config = Config(connect_timeout=2, read_timeout=5, retries=retries, max_pool_connections=CONNECTIONS)
    return boto3.client(service, config=config)


@functools.cache
def gateways() -> Gateways:
    return Gateways(os.environ)
