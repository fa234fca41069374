"""Environment -> adapters: the only place where adapters are chosen.

Nothing touches the environment or boto3 at import, and a client is made when it is first used: a Lambda
that needs DynamoDB alone never loads the EC2 model.
"""

import functools
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planaria.core.breaker import Breaker, allowed
from planaria.core.cluster import Cluster
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

if TYPE_CHECKING:
    from planaria.aws.autoscaling import AutoScalingFleet
    from planaria.aws.ec2 import Ec2Fleet

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
            self.cluster = cluster

    @functools.cached_property
    def cluster(self) -> Cluster:
        return Cluster.from_document(json.loads(CLUSTER_FILE.read_text()))

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
    def queues(self) -> Queues:
        from planaria.aws.sqs import SqsQueues

        return SqsQueues(self._client("sqs"))

    @functools.cached_property
    def scheduler(self) -> Scheduler:
        if self.cluster.scheduler != "process":
            raise PermanentError(
                f"scheduler {self.cluster.scheduler!r} has no adapter in this release; only `process` has"
            )
        from planaria.schedulers.process import ProcessScheduler

        return ProcessScheduler(self._need("PLANARIA_SANDBOX_URL"), self._need("PLANARIA_SANDBOX_TOKEN"))

    @functools.cached_property
    def commands(self) -> Commands:
        from planaria.schedulers.process import ProcessCommands

        return ProcessCommands(self._need("PLANARIA_SANDBOX_URL"), self._need("PLANARIA_SANDBOX_TOKEN"))

    def _need(self, name: str) -> str:
        value = self._environment.get(name)
        if not value:
            raise InvalidInput(f"the environment variable {name} is not set; deploy with `cdk deploy`")
        return value


def _boto3_client(service: str) -> Any:
    import boto3
    from botocore.config import Config

    retries = {"mode": "standard", "max_attempts": 3}
    return boto3.client(service, config=Config(connect_timeout=2, read_timeout=5, retries=retries))


@functools.cache
def gateways() -> Gateways:
    return Gateways(os.environ)
