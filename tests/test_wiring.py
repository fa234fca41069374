"""Which adapters a cluster gets."""

import json
from pathlib import Path
from typing import Any

import pytest

from planaria import wiring
from planaria.aws.ssm import SsmCommands
from planaria.core.checkpoint_policy import Association, Checkpoints, FileSystem
from planaria.core.cluster import Cluster, Eks, Slurm
from planaria.core.errors import InvalidInput, PermanentError
from planaria.core.policy import Policy
from planaria.core.scheduling import Place
from planaria.schedulers.process import ProcessCommands, ProcessScheduler
from planaria.schedulers.slurm import SlurmScheduler
from planaria.wiring import Gateways

AWS = {"PLANARIA_TABLE": "planaria-c", "PLANARIA_BUCKET": "bucket"}
SANDBOX = {**AWS, "PLANARIA_SANDBOX_URL": "http://127.0.0.1:9", "PLANARIA_SANDBOX_TOKEN": "t"}


class Client:
    """Stands for a boto3 client; remembers what it was asked."""

    def __init__(self, service: str) -> None:
        self.service = service
        self.calls: list[dict[str, Any]] = []

    def send_command(self, **given: Any) -> dict[str, Any]:
        self.calls.append(given)
        return {"Command": {"CommandId": "c-1"}}


def _gateways(
    scheduler: str, environment: dict[str, str], **sections: Any
) -> tuple[Gateways, dict[str, Client]]:
    clients: dict[str, Client] = {}

    def client(service: str) -> Client:
        return clients.setdefault(service, Client(service))

    cluster = Cluster("c", "us-east-1", scheduler, Policy.default(), {}, **sections)
    return Gateways(environment, cluster, client), clients


def test_slurm_on_aws_is_asked_over_ssm_on_its_head_node() -> None:
    gw, clients = _gateways("slurm", AWS, slurm=Slurm("i-0123456789abcdef0"))
    assert isinstance(gw.scheduler, SlurmScheduler)
    assert isinstance(gw.commands, SsmCommands)
    gw.scheduler.submit(Place("7", 1))
    (sent,) = clients["ssm"].calls
    assert sent["DocumentName"] == "planaria-c-slurm-place"
    assert sent["InstanceIds"] == ["i-0123456789abcdef0"]
    assert sent["OutputS3BucketName"] == "bucket"
    assert "s3" not in clients, "no client before it is needed"
    assert gw.scheduler_is_slow


def test_in_the_sandbox_its_head_runs_the_documents() -> None:
    gw, _ = _gateways("slurm", SANDBOX, slurm=Slurm("i-0123456789abcdef0"))
    assert isinstance(gw.scheduler, SlurmScheduler)
    assert isinstance(gw.commands, ProcessCommands)
    assert not gw.scheduler_is_slow


def test_the_sandboxs_own_scheduler() -> None:
    gw, _ = _gateways("process", SANDBOX)
    assert isinstance(gw.scheduler, ProcessScheduler)
    assert isinstance(gw.commands, ProcessCommands)
    away, _ = _gateways("process", AWS)
    with pytest.raises(InvalidInput, match="PLANARIA_SANDBOX_URL is not set"):
        _ = away.scheduler


def test_eks_is_asked_over_its_api() -> None:
    from planaria.schedulers.eks.scheduler import EksScheduler

    gw, clients = _gateways("eks", AWS, eks=Eks("training", ("default",)))
    assert isinstance(gw.scheduler, EksScheduler)
    assert isinstance(gw.commands, SsmCommands)
    assert "eks" not in clients


@pytest.mark.parametrize("scheduler", ["slurm", "eks", "lsf"])
def test_a_scheduler_without_its_section_is_one_sentence(scheduler: str) -> None:
    gw, _ = _gateways(scheduler, AWS)
    with pytest.raises(PermanentError, match=f"says nothing about scheduler '{scheduler}'"):
        _ = gw.scheduler


STORED = Checkpoints((FileSystem("scratch", "", "/fsx", "us-east-1a", (Association("/", "checkpoints/"),)),))


@pytest.mark.parametrize("given", [True, False])
def test_checkpoints_are_where_the_deployment_says(
    given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**AWS, "PLANARIA_FILE_SYSTEMS": json.dumps({"scratch": "fs-0123456789abcdef0"})}
    if given:
        gw, clients = _gateways("process", environment, checkpoints=STORED)
    else:
        (tmp_path / "cluster.json").write_text(
            json.dumps(
                {
                    "name": "c", "region": "us-east-1", "scheduler": "process", "policy": {},
                    "node_groups": [],
                    "checkpoints": {
                        "file_systems": [
                            {
                                "name": "scratch", "id": "", "mount": "/fsx", "zone": "us-east-1a",
                                "associations": [
                                    {"file_system_path": "/", "data_repository_path": "checkpoints/"}
                                ],
                            }
                        ]
                    },
                }
            )
        )  # fmt: skip
        monkeypatch.setattr(wiring, "CLUSTER_FILE", tmp_path / "cluster.json")
        clients = {}
        gw = Gateways(environment, client=lambda service: clients.setdefault(service, Client(service)))
    assert gw.cluster.checkpoints is not None
    (scratch,) = gw.cluster.checkpoints.file_systems
    assert scratch.id == "fs-0123456789abcdef0"
    assert scratch.associations[0].data_repository_path == "s3://bucket/checkpoints/"
    assert not clients


def test_a_jobs_checkpoints_in_s3_are_in_our_bucket_or_where_its_association_leads() -> None:
    gw, _ = _gateways("process", AWS)
    assert gw.checkpoints("gpt").place("step-5") == "s3://bucket/checkpoints/gpt/step-5"
    assert gw.checkpoints("gpt", "s3://other/a/gpt").place("step-5") == "s3://other/a/gpt/step-5"
    assert gw.checkpoints("gpt", "s3://other").place("step-5") == "s3://other/step-5"


def test_fsx_is_asked_only_when_it_is_needed() -> None:
    gw, clients = _gateways("process", AWS, checkpoints=STORED)
    assert "fsx" not in clients
    with pytest.raises(InvalidInput, match="is not in the cluster file"):
        gw.data_repository.start("fs-1", "EXPORT_TO_REPOSITORY", ["a"], "t")
