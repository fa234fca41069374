"""What a cluster file that names an Auto Scaling group adds to the roles, and nothing without one."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from infra import permissions
from infra.asl import MACHINES
from infra.autoscaling_grants import group_arn
from infra.grants import Grant, Targets
from tests.infra.conftest import DEMO, Variant, statements, synth, text

ROOT = Path(__file__).resolve().parents[2]
NAME = "gpu-nodes"
ARN = group_arn("aws", "us-east-1", "111122223333", NAME)
BARE = Targets(
    "demo", "table", "bus", "bucket", "topic", "key", ("queue",),
    dict.fromkeys(MACHINES, "arn"),
    "arn:aws:ec2:us-east-1:111122223333", ("image",), (), "snapshot/*", "role",
)  # fmt: skip
SCALED = dataclasses.replace(BARE, auto_scaling_groups=(ARN,))
ACTING = {"launch_replacement", "retire_node", "sweep"}


def of_scaling(targets: Targets) -> dict[str, list[Grant]]:
    """function -> its grants on Auto Scaling, and of tags on members."""
    found = {}
    for function in permissions.BY_FUNCTION:
        grants = [
            g
            for g in permissions.of(function, targets, sandbox=False)
            if any(a.startswith("autoscaling:") for a in g.actions) or g.sid == "TagMembers"
        ]
        if grants:
            found[function] = grants
    return found


def test_without_a_group_nobody_may_touch_auto_scaling() -> None:
    assert of_scaling(BARE) == {}


def test_acts_are_limited_to_the_groups_of_the_cluster_file() -> None:
    found = of_scaling(SCALED)
    assert set(found) == {*ACTING, "isolate_node"}
    for grants in found.values():
        for grant in grants:
            reads = all(":Describe" in action for action in grant.actions)
            if grant.sid != "TagMembers":
                assert grant.resources == (("*",) if reads else (ARN,)) and grant.wildcard
    acts = {a for g in found["isolate_node"] for a in g.actions if ":Describe" not in a}
    assert acts == {"autoscaling:RecordLifecycleActionHeartbeat", "autoscaling:CompleteLifecycleAction"}
    assert ARN == (
        "arn:aws:autoscaling:us-east-1:111122223333:autoScalingGroup:*:autoScalingGroupName/gpu-nodes"
    )


@pytest.mark.parametrize("function", sorted(ACTING))
def test_no_instance_becomes_ours_by_a_tag(function: str) -> None:
    [grant] = [g for g in of_scaling(SCALED)[function] if g.sid == "TagMembers"]
    assert grant.conditions["StringEquals"] == {"aws:ResourceTag/planaria:cluster": "demo"}
    assert "planaria:cluster" not in grant.conditions["ForAllValues:StringEquals"]["aws:TagKeys"]
    assert grant.conditions["Null"] == {"aws:TagKeys": "false"}


def test_the_app_gives_them_for_a_cluster_file_with_a_group(tmp_path: Path) -> None:
    content = yaml.safe_load((ROOT / DEMO).read_text())
    for group in content["node_groups"]:
        group["auto_scaling_group"] = NAME
        group["spares"] = 0
        group["offerings"] = [o for o in group["offerings"] if o.get("capacity") != "spare"]
    path = tmp_path / "scaled.yaml"
    path.write_text(yaml.safe_dump(content))
    variant: Variant = synth(tmp_path / "out", cluster=str(path), nag="true")
    found = {
        text(resource)
        for role in variant.of("AWS::IAM::Role").values()
        for statement in statements(role)
        for resource in statement["Resource"]
        if any(action.startswith("autoscaling:Detach") for action in statement["Action"])
    }
    assert found == {
        f"arn:aws:autoscaling:us-east-1:<AWS::AccountId>:autoScalingGroup:*:autoScalingGroupName/{NAME}"
    }
