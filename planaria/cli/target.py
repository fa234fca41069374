"""Which cluster a command is about: a sandbox on this machine, or a deployment on AWS."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planaria.aws.errors import translated
from planaria.cli import options, screen
from planaria.core.cluster import Cluster
from planaria.core.errors import InvalidInput
from planaria.core.policy import Policy
from planaria.schedulers.process import HeadClient
from planaria.wiring import Gateways

MACHINES = (
    "heal_node",
    "resume_job",
    "isolate_node",
    "launch_replacement",
    "refill_spares",
    "sync_checkpoints",
    "restore_checkpoint",
)


@dataclass(frozen=True, slots=True)
class Target:
    """client: makes a boto3 client of a service. head and folder: of a sandbox, None on AWS. environment:
    what the gateways read; a bucket that is found later is put there."""

    cluster: str
    gateways: Gateways
    client: Callable[[str], Any]
    head: HeadClient | None = None
    folder: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)


def connect(cluster: str, folder: Path | None, on_aws: bool) -> Target:
    """A running sandbox of this name, else AWS; says on stderr which sandbox it is.

    folder: the sandbox's, when it is not where it is by default. Raises InvalidInput.
    """
    if on_aws:
        return _aws(cluster)
    chosen = sandbox_folder(cluster, folder)
    if folder is None and not (chosen / "sandbox.json").exists():
        return _aws(cluster)
    target = _sandbox(chosen)
    screen.say(f"sandbox {target.cluster} in {short(chosen)}")
    return target


def sandbox_folder(cluster: str, folder: Path | None) -> Path:
    """The folder of the sandbox that is meant. Raises InvalidInput where name and folder contradict."""
    from planaria.sandbox.job_folder import read_json
    from planaria.sandbox.world import default_folder

    if folder is None:
        return default_folder(cluster)
    there = (read_json(folder / "sandbox.json") or {}).get("cluster")
    if isinstance(cluster, options.Named) and there not in (None, cluster):
        raise InvalidInput(
            f"--cluster (or PLANARIA_CLUSTER) says {str(cluster)!r:.40}, but the sandbox in {short(folder)} "
            f"(--dir or PLANARIA_SANDBOX) is {there}; leave one of the two out"
        )
    return folder


def _sandbox(folder: Path) -> Target:
    from planaria.recipes import ClusterFile
    from planaria.sandbox.world import attached, sandbox_gateways

    with attached(folder) as (running, head, document):
        file = ClusterFile.load(document["cluster_file"])
        gateways = sandbox_gateways(running, file, float(document["time_scale"]), document["outputs"])
        bucket = {"PLANARIA_BUCKET": str(document["outputs"].get("Bucket", ""))}
        return Target(file.name, gateways, running.client, head, folder, bucket)


def _aws(cluster: str) -> Target:
    import boto3
    from botocore.config import Config

    config = Config(connect_timeout=5, read_timeout=20, retries={"mode": "standard", "max_attempts": 4})
    session = boto3.Session()

    def client(service: str) -> Any:
        return session.client(service, config=config)

    identity = client("sts").get_caller_identity()
    partition, region = identity["Arn"].split(":")[1], session.region_name
    if not region:
        raise InvalidInput("no AWS region is set: set AWS_REGION, or a region in your AWS profile")
    environment = aws_environment(cluster, partition, region, identity["Account"])
    known = Cluster(cluster, region, "", Policy.default(), {})
    return Target(cluster, Gateways(environment, known, client), client, environment=environment)


def aws_environment(cluster: str, partition: str, region: str, account: str) -> dict[str, str]:
    """What the Lambdas have in their environment, from the names that every deployment has."""
    prefix = f"planaria-{cluster}"

    def arn(service: str, name: str) -> str:
        return f"arn:{partition}:{service}:{region}:{account}:{name}"

    return {
        "PLANARIA_CLUSTER": cluster,
        "PLANARIA_TABLE": prefix,
        "PLANARIA_BUS": prefix,
        "PLANARIA_TOPIC": arn("sns", f"{prefix}-notices"),
        "PLANARIA_MACHINES": json.dumps(
            {machine: arn("states", f"stateMachine:{prefix}-{machine}") for machine in MACHINES}
        ),
    }


def bucket_of(target: Target) -> str:
    """The cluster's bucket. On AWS its name is CloudFormation's own; the functions have it in their
    environment."""
    if not target.environment.get("PLANARIA_BUCKET"):
        with translated():
            found = target.client("lambda").get_function_configuration(
                FunctionName=f"planaria-{target.cluster}-triage"
            )
        target.environment["PLANARIA_BUCKET"] = str(found["Environment"]["Variables"]["PLANARIA_BUCKET"])
    return target.environment["PLANARIA_BUCKET"]


def need_head(target: Target, what: str) -> HeadClient:
    """The sandbox's head. Raises InvalidInput on AWS, where there is none."""
    if target.head is None:
        raise InvalidInput(f"{what} works in a sandbox only; `planaria sandbox up` starts one")
    return target.head


def short(path: Path) -> str:
    text, home = str(path), str(Path("~").expanduser())
    return f"~{text[len(home) :]}" if home != "/" and text.startswith(f"{home}/") else text
