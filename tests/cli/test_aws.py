"""The same commands against AWS (moto): names are derived, nothing of the sandbox is needed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from planaria.cli import main, target
from planaria.core.claim import Claim
from planaria.core.incident import Phase
from planaria.core.tags import CLUSTER, NAME
from tests.contract.conftest import create_table

REGION = "eu-west-1"


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "PLANARIA_CLUSTER", "PLANARIA_SANDBOX", "PLANARIA_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    with mock_aws():
        yield


def _instance() -> str:
    ec2 = boto3.client("ec2", REGION)
    image = ec2.describe_images()["Images"][0]["ImageId"]
    tags = [{"Key": CLUSTER, "Value": "alpha"}, {"Key": NAME, "Value": "alpha-1"}]
    answer = ec2.run_instances(
        ImageId=image,
        InstanceType="p5.48xlarge",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )
    return str(answer["Instances"][0]["InstanceId"])


def test_nodes_and_incidents(account: None, capsys: pytest.CaptureFixture[str]) -> None:
    create_table(boto3.client("dynamodb", REGION), "planaria-alpha")
    node = _instance()
    gateways = target.connect("alpha", None, on_aws=True).gateways
    claim = Claim(node, "e", "REPLACE", "why", "xid-79", "act", 1_793_610_845.5)
    row = gateways.ledger.claim(claim, None, 1_793_610_846.0)
    gateways.ledger.close(node, int(row["session"]), Phase.ESCALATED, 1_793_610_850.0, "no capacity")
    gateways.ledger.note_node(node, {"name": "alpha-1"})
    capsys.readouterr()
    assert main(["nodes", "--cluster", "alpha", "--json"]) == 0
    out, err = capsys.readouterr()
    (document,) = json.loads(out)
    assert (document["node_id"], document["state"], document["name"]) == (node, "running", "alpha-1")
    assert err == ""
    assert main(["incidents", "--cluster", "alpha", "--aws", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["outcome"], found["reason"]) == ("ESCALATED", "no capacity")


def test_a_cluster_that_is_not_deployed(account: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "--cluster", "beta"]) == 1
    assert "`make deploy` deploys it" in capsys.readouterr().err


def test_no_region(
    account: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.delenv("AWS_REGION", raising=False)
    assert main(["jobs"]) in (1, 2)
    assert "AWS_REGION" in capsys.readouterr().err


def test_no_credentials(
    account: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert main(["jobs"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "There are no AWS credentials" in err


def test_names_are_derived_in_every_partition() -> None:
    environment = target.aws_environment("alpha", "aws-cn", "cn-north-1", "111122223333")
    assert environment["PLANARIA_TABLE"] == environment["PLANARIA_BUS"] == "planaria-alpha"
    machines: dict[str, Any] = json.loads(environment["PLANARIA_MACHINES"])
    assert machines["heal_node"] == (
        "arn:aws-cn:states:cn-north-1:111122223333:stateMachine:planaria-alpha-heal_node"
    )


def test_a_sandbox_that_was_asked_for_and_is_not_there_is_not_aws(
    account: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["nodes", "--dir", str(tmp_path / "none")]) == 2
    assert "no sandbox runs in" in capsys.readouterr().err.lower()


def test_a_dead_sandbox_is_said_to_be_dead(
    account: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "planaria" / "sandbox" / "demo"
    folder.mkdir(parents=True)
    (folder / "sandbox.json").write_text("{}")
    assert main(["nodes"]) == 2
    assert "is dead; `planaria sandbox down` clears it away" in capsys.readouterr().err


def test_inject_is_for_sandboxes_alone(account: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inject", "xid79", "--node", "demo-3"]) == 2
    assert "works in a sandbox only" in capsys.readouterr().err
