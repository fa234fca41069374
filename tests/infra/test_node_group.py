"""Launch templates: what every replacement looks like."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest

import app
from tests.infra.conftest import Variant, annotations, context, statements, synth, text, user_data

RESERVED = """
name: demo
region: us-east-1
scheduler: process
file_system: {id: fs-0123456789abcdef0, zone: us-east-1a}
node_groups:
  - name: workers
    size: 4
    launch:
      image: ami-00000000000000001
      subnets: [subnet-00000000000000001, subnet-00000000000000002]
      zones: {subnet-00000000000000001: us-east-1a, subnet-00000000000000002: us-east-1b}
      security_groups: [sg-00000000000000001]
    offerings:
      - {instance_type: p5.48xlarge, capacity: reservation, reservation: cr-00000000000000001}
      - {instance_type: p5.48xlarge, capacity: capacity-block, reservation: cr-00000000000000002}
      - {instance_type: p5.48xlarge, capacity: reservation, reservation: cr-00000000000000001}
      - {instance_type: p5.48xlarge, capacity: on-demand, subnet: subnet-00000000000000002}
  - name: others
    size: 1
    launch:
      image: ami-00000000000000002
      subnets: [subnet-00000000000000001]
      security_groups: [sg-00000000000000001]
    offerings:
      - {instance_type: p5.48xlarge, capacity: reservation, reservation: cr-00000000000000001}
"""


@pytest.fixture(scope="module")
def reserved(tmp_path_factory: pytest.TempPathFactory) -> Variant:
    """A cluster whose offerings name a capacity reservation and a Capacity Block."""
    folder = tmp_path_factory.mktemp("reserved")
    (folder / "cluster.yaml").write_text(RESERVED)
    return synth(folder / "out", cluster=str(folder / "cluster.yaml"), nag="true")


def templates(variant: Variant) -> dict[str, dict[str, Any]]:
    found = variant.properties("AWS::EC2::LaunchTemplate", "LaunchTemplateName")
    return {name: properties["LaunchTemplateData"] for name, properties in found.items()}


def test_launch_template(aws: Variant) -> None:
    (template,) = aws.of("AWS::EC2::LaunchTemplate").values()
    properties = template["Properties"]
    data = properties["LaunchTemplateData"]
    assert properties["LaunchTemplateName"] == "planaria-demo-workers"
    assert data["ImageId"] == "ami-00000000000000001"
    assert data["SecurityGroupIds"] == ["sg-00000000000000001"]
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert data["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
    assert all(mapping["Ebs"]["Encrypted"] is True for mapping in data["BlockDeviceMappings"])
    assert "InstanceType" not in data, "the offering chooses it"
    assert "KeyName" not in data
    (profile,) = aws.of("AWS::IAM::InstanceProfile")
    assert text(data["IamInstanceProfile"]["Arn"]) == f"<{profile}.Arn>"


def test_everything_launched_is_tagged(aws: Variant) -> None:
    (template,) = aws.of("AWS::EC2::LaunchTemplate").values()
    specifications = template["Properties"]["LaunchTemplateData"]["TagSpecifications"]
    assert {s["ResourceType"] for s in specifications} == {
        "instance",
        "volume",
        "network-interface",
        "spot-instances-request",
    }
    for specification in specifications:
        tags = {tag["Key"]: tag["Value"] for tag in specification["Tags"]}
        assert tags == {"planaria:cluster": "demo", "planaria:group": "workers"}


def test_user_data_is_fixed_and_names_the_cluster(aws: Variant, gameday: Variant) -> None:
    def script_of(variant: Variant) -> str:
        (template,) = variant.of("AWS::EC2::LaunchTemplate").values()
        return user_data(template["Properties"]["LaunchTemplateData"])

    script = script_of(aws)
    assert script == script_of(gameday)
    assert script.startswith("#!/bin/sh\n")
    facts = json.loads(next(line for line in script.splitlines() if line.startswith("{")))
    assert facts.pop("bucket").startswith("<Planaria-demo-State:")
    assert facts == {
        "cluster": "demo",
        "group": "workers",
        "bus": "planaria-demo",
        "region": "us-east-1",
        "table": "planaria-demo",
    }


def test_the_same_file_gives_the_same_bytes(reserved: Variant, tmp_path: Path) -> None:
    """Another user data would make every replacement differ from the nodes around it."""
    (tmp_path / "cluster.yaml").write_text(RESERVED)
    again = synth(tmp_path / "out", cluster=str(tmp_path / "cluster.yaml"))
    assert json.dumps(templates(again)) == json.dumps(templates(reserved))


def test_every_reservation_of_a_group_has_a_launch_template_that_names_it(reserved: Variant) -> None:
    found = templates(reserved)
    own, odcr, block = "planaria-demo-workers", "cr-00000000000000001", "cr-00000000000000002"
    assert sorted(found) == [
        "planaria-demo-others", f"planaria-demo-others-{odcr}", own, f"{own}-{odcr}", f"{own}-{block}",
    ]  # fmt: skip
    for name, reservation in ((f"{own}-{odcr}", odcr), (f"{own}-{block}", block)):
        assert found[name]["CapacityReservationSpecification"] == {
            "CapacityReservationPreference": "capacity-reservations-only",
            "CapacityReservationTarget": {"CapacityReservationId": reservation},
        }
    assert found[f"{own}-{block}"]["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    for name in (own, f"{own}-{odcr}"):
        assert "InstanceMarketOptions" not in found[name], "EC2 takes a reservation for On-Demand"
    assert "CapacityReservationSpecification" not in found[own]
    added = {"CapacityReservationSpecification", "InstanceMarketOptions"}
    for name in (f"{own}-{odcr}", f"{own}-{block}"):
        same = {key: value for key, value in found[name].items() if key not in added}
        assert same == found[own], "a replacement is what the lost node was"


def test_the_names_are_those_that_the_lambdas_launch_from(reserved: Variant, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(RESERVED)
    settings = app.settings_of(cdk.App(context=context(cluster=str(tmp_path / "cluster.yaml"))))
    used = {
        offering["launch_template"] or group["launch_template"]
        for group in settings.document["node_groups"]
        for offering in group["offerings"]
    }
    assert used | {"planaria-demo-others"} == set(templates(reserved))


def test_only_the_reservations_of_the_file_may_be_launched_into(reserved: Variant, aws: Variant) -> None:
    def of(variant: Variant, sid: str) -> list[set[str]]:
        roles = variant.of("AWS::IAM::Role").values()
        return [
            {text(resource) for resource in statement["Resource"]}
            for role in roles
            for statement in statements(role)
            if statement.get("Sid") == sid
        ]

    granted = of(reserved, "LaunchReserved")
    home = "arn:aws:ec2:us-east-1:*:capacity-reservation"
    assert granted and all(
        names == {f"{home}/cr-00000000000000001", f"{home}/cr-00000000000000002"} for names in granted
    )
    assert of(aws, "LaunchReserved") == [], "the demo has none"
    made = list(reserved.of("AWS::EC2::LaunchTemplate"))
    for names in of(reserved, "LaunchFrom"):
        for template in made:
            assert any(name.endswith(f"launch-template/<{template}>") for name in names)


def test_a_zone_away_from_the_file_system_is_warned_of_at_synth(reserved: Variant) -> None:
    (warning,) = annotations(reserved.folder)
    assert "offering 4 launches in us-east-1b, but the file system" in warning


def test_the_reserved_templates_pass_cfn_lint_and_cdk_nag(reserved: Variant) -> None:
    report = json.loads((reserved.folder / "validation-report.json").read_text())
    assert [plugin["pluginName"] for plugin in report["pluginReports"]] == ["Construct Annotations"]
    files = [str(file) for file in reserved.folder.glob("*.template.json")]
    linter = Path(sys.executable).with_name("cfn-lint")
    done = subprocess.run(
        [str(linter), "--template", *files], cwd=app.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
