"""Cluster placement groups and EFA devices in what nodes are launched from."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import app
from planaria.core import efa
from planaria.core.errors import InvalidInput
from planaria.recipes import ClusterFile
from tests.infra.conftest import SANDBOX, Variant, statements, synth, text, user_data

ODCR, WITHIN, BLOCK = "cr-00000000000000001", "cr-00000000000000002", "cr-00000000000000003"
NEAR = f"""
name: demo
region: us-east-1
scheduler: process
node_groups:
  - name: workers
    size: 4
    placement_group: true
    launch:
      image: ami-00000000000000001
      subnets: [subnet-00000000000000001, subnet-00000000000000002]
      zones: {{subnet-00000000000000001: us-east-1a, subnet-00000000000000002: us-east-1b}}
      security_groups: [sg-00000000000000001, sg-00000000000000002]
      efa: true
    offerings:
      - {{instance_type: p5.48xlarge, capacity: reservation, reservation: {ODCR}}}
      - {{instance_type: p5.48xlarge, capacity: reservation, reservation: {WITHIN}, placement_group: true}}
      - {{instance_type: p5.48xlarge, capacity: capacity-block, reservation: {BLOCK}}}
      - {{instance_type: p5.48xlarge, capacity: on-demand}}
      - {{instance_type: p5e.48xlarge, capacity: spot, subnet: subnet-00000000000000002}}
  - name: others
    size: 1
    launch:
      image: ami-00000000000000002
      subnets: [subnet-00000000000000001]
      security_groups: [sg-00000000000000001]
    offerings:
      - {{instance_type: p5.48xlarge}}
"""


def made(folder: Path, **changes: str) -> Variant:
    (folder / "cluster.yaml").write_text(NEAR)
    return synth(folder / "out", cluster=str(folder / "cluster.yaml"), **changes)


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Variant:
    return made(tmp_path_factory.mktemp("near"), nag="true")


def templates(variant: Variant) -> dict[str, dict[str, Any]]:
    found = variant.properties("AWS::EC2::LaunchTemplate", "LaunchTemplateName")
    return {name: properties["LaunchTemplateData"] for name, properties in found.items()}


def test_a_stack_of_its_own_has_the_placement_groups(near: Variant) -> None:
    stack = json.loads((near.folder / "Planaria-demo-Placement.template.json").read_text())
    (resource,) = stack["Resources"].values()
    assert resource["Type"] == "AWS::EC2::PlacementGroup"
    assert resource["Properties"]["Strategy"] == "cluster"
    assert resource["DeletionPolicy"] == resource["UpdateReplacePolicy"] == "Retain"
    assert near.of("AWS::EC2::PlacementGroup") == {}


def test_what_may_be_launched_near_together_is(near: Variant) -> None:
    own = "planaria-demo-workers"
    placed = {name: data.get("Placement") for name, data in templates(near).items()}
    name = placed[own]
    assert name is not None and list(name) == ["GroupName"]
    assert text(name["GroupName"]).startswith("<Planaria-demo-Placement:")
    assert placed == {
        own: name, f"{own}-{ODCR}": None, f"{own}-{WITHIN}": name, f"{own}-{BLOCK}": None,
        "planaria-demo-others": None,
    }  # fmt: skip


def test_only_launchers_may_launch_into_this_placement_group(near: Variant) -> None:
    group = text(templates(near)["planaria-demo-workers"]["Placement"]["GroupName"])
    found = [
        statement["Sid"]
        for role in near.of("AWS::IAM::Role").values()
        for statement in statements(role)
        for resource in statement.get("Resource", [])
        if ":placement-group/" in text(resource)
        and text(resource).endswith(f":placement-group/{group}")
        and set(statement["Action"]) == {"ec2:CreateFleet", "ec2:RunInstances"}
    ]
    assert found == ["LaunchFrom", "LaunchFrom"]
    everything = json.dumps(near.control)
    assert everything.count(":placement-group/") == 2


def test_the_sandbox_has_none(tmp_path: Path) -> None:
    variant = made(tmp_path, **SANDBOX)
    assert not (variant.folder / "Planaria-demo-Placement.template.json").exists()
    assert all("Placement" not in data for data in templates(variant).values())
    assert ":placement-group/" not in json.dumps(variant.control)


def test_every_efa_device_of_the_type_is_launched(near: Variant) -> None:
    for name, data in templates(near).items():
        if name == "planaria-demo-others":
            assert "NetworkInterfaces" not in data and data["SecurityGroupIds"] == ["sg-00000000000000001"]
            continue
        assert "SecurityGroupIds" not in data, "EC2 takes them of the interfaces or of the instance"
        first, *others = data["NetworkInterfaces"]
        assert (first["NetworkCardIndex"], first["DeviceIndex"]) == (0, 0)
        assert first["InterfaceType"] == "interface", "the instance's own address cannot be EFA alone"
        known = efa.efa_of("p5.48xlarge")
        assert known is not None and len(others) == known.devices == 32
        assert {i["InterfaceType"] for i in others} == {"efa-only"}
        assert {i["NetworkCardIndex"] for i in others} == set(range(32))
        places = [(i["NetworkCardIndex"], i["DeviceIndex"]) for i in data["NetworkInterfaces"]]
        assert len(places) == len(set(places))
        for interface in data["NetworkInterfaces"]:
            assert interface["Groups"] == ["sg-00000000000000001", "sg-00000000000000002"]
            assert interface["DeleteOnTermination"] is True and "SubnetId" not in interface


def test_the_node_knows_how_many_it_must_have(near: Variant) -> None:
    found = templates(near)
    script = user_data(found["planaria-demo-workers"])
    assert "cat > /etc/planaria/hardware.json <<'END'\n" + '{"efa": {"expected": 32}}\nEND\n' in script
    other = user_data(found["planaria-demo-others"])
    assert "hardware.json" not in other
    done = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_templates_pass_cfn_lint_and_cdk_nag(near: Variant) -> None:
    report = json.loads((near.folder / "validation-report.json").read_text())
    assert [plugin["pluginName"] for plugin in report["pluginReports"]] == ["Construct Annotations"]
    files = [str(file) for file in near.folder.glob("*.template.json")]
    assert len(files) == 3
    linter = Path(sys.executable).with_name("cfn-lint")
    done = subprocess.run(
        [str(linter), "--template", *files], cwd=app.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- the cluster file -----------------------------------------------------------------------------------


def load(tmp_path: Path, *changes: tuple[str, str]) -> ClusterFile:
    content = NEAR
    for old, new in changes:
        assert old in content
        content = content.replace(old, new, 1)
    (tmp_path / "cluster.yaml").write_text(content)
    return ClusterFile.load(tmp_path / "cluster.yaml")


def test_a_placement_group_over_two_zones_is_warned_of(tmp_path: Path) -> None:
    (warning,) = load(tmp_path).warnings()
    assert "us-east-1a, us-east-1b, but a cluster placement group lies in one Availability Zone" in warning


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("p5e.48xlarge", "p4d.24xlarge", "not 4 of p4d.24xlarge and 32 of p5.48xlarge"),
        ("p5e.48xlarge", "p6-b300.48xlarge", "not 16 of p6-b300.48xlarge and 32 of p5.48xlarge"),
        ("p5e.48xlarge", "m5.large", "it is not known how many EFA devices m5.large has"),
        ("efa: true", "efa: 32", "efa: must be true or false"),
        ("    placement_group: true\n", "", "lies in a placement group, but the node group has none"),
        (
            f"{BLOCK}}}",
            f"{BLOCK}, placement_group: true}}",
            "is for capacity reservation, not capacity-block",
        ),
    ],
)
def test_what_cannot_be_launched_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        load(tmp_path, (old, new))
    assert says in str(refused.value)


# --- the data ---------------------------------------------------------------------------------------------


def test_counts_are_those_that_ec2_tells() -> None:
    """As moto has recorded DescribeInstanceTypes."""
    import moto

    path = Path(moto.__file__).parent / "ec2/resources/instance_types.json.gz"
    if not path.exists():
        pytest.skip("this moto keeps its instance types elsewhere")
    recorded = json.loads(gzip.decompress(path.read_bytes()))
    known = efa._table()
    assert len(known) > 20 and all(row.sources for row in known.values())
    for name, row in known.items():
        network = recorded[name]["NetworkInfo"]
        assert (row.cards, row.devices) == (
            network["MaximumNetworkCards"], network["EfaInfo"]["MaximumEfaInterfaces"],
        ), name  # fmt: skip
        assert len(row.places) == row.devices and "cluster" in recorded[name]["PlacementGroupInfo"][
            "SupportedStrategies"
        ]  # fmt: skip


def test_a_first_card_without_efa_gets_none() -> None:
    known = efa.efa_of("p6-b300.48xlarge")
    assert known is not None and known.places == tuple((card, 0) for card in range(1, 17))
    assert efa.efa_of("g6e.24xlarge") is not None and efa.efa_of("t3.micro") is None
