"""Who may do what."""

import json
from typing import Any

import pytest

from infra import permissions
from infra.asl import MACHINES
from infra.functions import NAMES
from tests.infra.conftest import Variant, statements, text

ACCOUNT_EC2 = "arn:aws:ec2:us-east-1:<AWS::AccountId>"
KINDS = ("instance", "volume", "network-interface", "spot-instances-request")

# Every wildcard in a resource, by who may use it and how far it reaches: docs/iam.md has the reasons.
WILDCARDS = {
    ("ec2:DescribeInstances", "*"),
    ("ec2:DescribeInstanceStatus", "*"),
    ("ec2:DescribeInstanceTopology", "*"),
    ("ec2:DescribeCapacityReservationTopology", "*"),
    ("ec2:CreateFleet", f"{ACCOUNT_EC2}:fleet/*"),
    ("ec2:CreateFleet", "arn:aws:ec2:us-east-1::snapshot/*"),
    ("ec2:RunInstances", "arn:aws:ec2:us-east-1::snapshot/*"),
    *(
        (action, f"{ACCOUNT_EC2}:{kind}/*")
        for action in ("ec2:CreateFleet", "ec2:RunInstances", "ec2:CreateTags")
        for kind in KINDS
    ),
    ("ec2:RebootInstances", f"{ACCOUNT_EC2}:instance/*"),
    ("ec2:TerminateInstances", f"{ACCOUNT_EC2}:instance/*"),
    *(
        (
            f"states:{verb}Execution",
            f"arn:aws:states:us-east-1:<AWS::AccountId>:execution:planaria-demo-{machine}:*",
        )
        for verb in ("Describe", "Stop")
        for machine in ("heal_node", "resume_job", "isolate_node", "launch_replacement")
    ),
    *(
        (
            "states:DescribeExecution",
            f"arn:aws:states:us-east-1:<AWS::AccountId>:execution:planaria-demo-{machine}:*",
        )
        for machine in ("refill_spares", "sync_checkpoints", "restore_checkpoint")
    ),
    ("s3:PutObject", "events/*"),
    ("s3:GetObject", "events/*"),
    *(
        (f"s3:{action}", "checkpoints/*")
        for action in (
            "GetObject",
            "PutObject",
            "AbortMultipartUpload",
            "ListMultipartUploadParts",
            "DeleteObject",
        )
    ),
    ("s3:PutObject", "checkpoints/*/planaria-manifest.json"),
    ("s3:DeleteObject", "checkpoints/*/planaria-manifest.json"),
    ("s3:GetObject", "transfers/*"),
    ("s3:PutObject", "transfers/*"),
    # Log delivery of Step Functions: AWS offers no narrower resource.
    *(
        (f"logs:{action}", "*")
        for action in (
            "CreateLogDelivery",
            "GetLogDelivery",
            "UpdateLogDelivery",
            "DeleteLogDelivery",
            "ListLogDeliveries",
            "PutResourcePolicy",
            "DescribeResourcePolicies",
            "DescribeLogGroups",
        )
    ),
}


def _all(variant: Variant) -> list[dict[str, Any]]:
    documents = [*variant.of("AWS::IAM::Role").values(), *variant.of("AWS::IAM::Policy").values()]
    return [statement for document in documents for statement in statements(document)]


def _of_function(variant: Variant, name: str) -> list[dict[str, Any]]:
    functions = variant.properties("AWS::Lambda::Function", "FunctionName")
    role = functions[f"planaria-demo-{name}"]["Role"]["Fn::GetAtt"][0]
    return list(statements(variant.control["Resources"][role]))


def _with(found: list[dict[str, Any]], action: str) -> list[dict[str, Any]]:
    return [statement for statement in found if action in statement["Action"]]


def _of_both_launchers(variant: Variant, action: str, sid: str = "") -> dict[str, Any]:
    """The statement that launch_replacement and launch_spare have alike, and nobody else has."""
    first, *others = [s for s in _with(_all(variant), action) if not sid or s["Sid"] == sid]
    assert others == [first]
    for function in ("launch_replacement", "launch_spare"):
        assert first in _of_function(variant, function)
    return first


def test_every_function_and_machine_has_a_role_of_its_own(aws: Variant) -> None:
    roles = [f["Properties"]["Role"]["Fn::GetAtt"][0] for f in aws.of("AWS::Lambda::Function").values()]
    roles += [
        m["Properties"]["RoleArn"]["Fn::GetAtt"][0]
        for m in aws.of("AWS::StepFunctions::StateMachine").values()
    ]
    assert len(roles) == len(set(roles)) == len(NAMES) + len(MACHINES)
    assert len(aws.of("AWS::IAM::Role")) == len(roles) + 1  # the nodes'


def test_permissions_and_functions_are_the_same_list() -> None:
    assert set(permissions.BY_FUNCTION) == set(NAMES)


def test_no_action_is_a_wildcard(aws: Variant) -> None:
    assert not [s for s in _all(aws) if any("*" in action for action in s["Action"])]


def test_no_allow_of_everything_but(aws: Variant) -> None:
    assert not [s for s in _all(aws) if "NotAction" in s or "NotResource" in s]


def test_wildcard_resources_are_all_known(aws: Variant) -> None:
    found = set()
    for statement in _all(aws):
        for resource in statement["Resource"]:
            name = text(resource)
            if "*" in name:
                short = name.partition(">/")[2] or name
                found |= {(action, short) for action in statement["Action"]}
    assert found == WILDCARDS


@pytest.mark.parametrize(
    ("functions", "action"),
    [
        (["reboot_node"], "ec2:RebootInstances"),
        (["retire_node", "sweep", "launch_replacement"], "ec2:TerminateInstances"),
    ],
)
def test_destroying_needs_the_cluster_tag(aws: Variant, functions: list[str], action: str) -> None:
    found = _with(_all(aws), action)
    for statement in found:
        assert statement["Condition"] == {"StringEquals": {"aws:ResourceTag/planaria:cluster": "demo"}}
        assert statement["Action"] == [action]
    assert len(found) == len(functions)
    assert all(_with(_of_function(aws, function), action) for function in functions)


def test_tags_are_made_only_while_launching(aws: Variant) -> None:
    statement = _of_both_launchers(aws, "ec2:CreateTags")
    assert statement["Condition"] == {"StringEquals": {"ec2:CreateAction": ["CreateFleet", "RunInstances"]}}


def test_only_the_node_role_is_passed_and_only_to_ec2(aws: Variant) -> None:
    statement = _of_both_launchers(aws, "iam:PassRole")
    assert statement["Condition"] == {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
    (resource,) = statement["Resource"]
    role = aws.control["Resources"][resource["Fn::GetAtt"][0]]
    assert role["Properties"]["RoleName"] == "planaria-demo-node"


def test_launching_is_limited_to_the_cluster_file(aws: Variant) -> None:
    exact = _of_both_launchers(aws, "ec2:RunInstances", "LaunchFrom")
    template = next(iter(aws.of("AWS::EC2::LaunchTemplate")))
    assert {text(resource) for resource in exact["Resource"]} == {
        "arn:aws:ec2:us-east-1::image/ami-00000000000000001",
        f"{ACCOUNT_EC2}:subnet/subnet-00000000000000001",
        f"{ACCOUNT_EC2}:security-group/sg-00000000000000001",
        f"{ACCOUNT_EC2}:launch-template/<{template}>",
    }
    made = _of_both_launchers(aws, "ec2:RunInstances", "Launch")
    assert made["Condition"] == {"StringEquals": {"aws:RequestTag/planaria:cluster": "demo"}}


def test_nodes_speak_for_themselves_alone(aws: Variant) -> None:
    (role,) = (r for r in aws.of("AWS::IAM::Role").values() if r["Properties"].get("RoleName"))
    (events,) = _with(list(statements(role)), "events:PutEvents")
    assert events["Condition"] == {
        "ForAllValues:StringEquals": {"events:source": "planaria.node/${aws:userid}"},
        "Null": {"events:source": "false"},
    }
    assert [resource["Fn::GetAtt"][0] for resource in events["Resource"]] == list(
        aws.of("AWS::Events::EventBus")
    )


def test_sweep_alone_puts_events_and_only_its_own(aws: Variant) -> None:
    found = [name for name in NAMES if _with(_of_function(aws, name), "events:PutEvents")]
    assert found == ["sweep"]
    (events,) = _with(_of_function(aws, "sweep"), "events:PutEvents")
    assert events["Condition"]["ForAllValues:StringEquals"] == {"events:source": "planaria.sweep"}


def test_task_tokens_are_returned_by_those_who_hear_the_answer_to_the_machines_that_wait(
    aws: Variant,
) -> None:
    found = {}
    for name in NAMES:
        for statement in _with(_of_function(aws, name), "states:SendTaskSuccess"):
            assert statement["Action"] == ["states:SendTaskSuccess"]
            machines = {text(resource).rpartition("planaria-demo-")[2] for resource in statement["Resource"]}
            found[name] = machines
    assert found == {
        "triage": {"heal_node", "launch_replacement", "resume_job", "refill_spares"},
        "sweep": {"heal_node", "resume_job"},
        "ask_approval": {"heal_node"},
        "await_node": {"heal_node", "launch_replacement", "refill_spares"},
        "await_steps": {"resume_job"},
        "await_restore": {"resume_job"},
        "close_restore": {"resume_job"},
    }


def test_roles_trust_one_service_each(aws: Variant) -> None:
    for role in aws.of("AWS::IAM::Role").values():
        (statement,) = role["Properties"]["AssumeRolePolicyDocument"]["Statement"]
        assert statement["Principal"]["Service"] in (
            "lambda.amazonaws.com",
            "states.amazonaws.com",
            "ec2.amazonaws.com",
        )


def test_a_grant_with_an_unexplained_wildcard_cannot_be_built(aws: Variant) -> None:
    import aws_cdk as cdk

    from infra.grants import Grant
    from infra.suppressions import accept_wildcards

    stack = cdk.Stack(cdk.App(), "s")
    with pytest.raises(ValueError, match="has a wildcard and no reason"):
        accept_wildcards(stack, [Grant("Any", ("s3:GetObject",), ("*",))])


def test_no_role_can_change_iam(aws: Variant) -> None:
    actions = {action for s in _all(aws) for action in s["Action"] if action.startswith(("iam:", "sts:"))}
    assert actions == {"iam:PassRole"}
    assert "Administrator" not in json.dumps(aws.control)


def test_only_retention_deletes_checkpoints_and_nobody_deletes_rows(aws: Variant) -> None:
    deleting = {name for name in NAMES if _with(_of_function(aws, name), "s3:DeleteObject")}
    assert deleting and "verify_sync" not in deleting and "choose_checkpoint" not in deleting
    (role,) = (r for r in aws.of("AWS::IAM::Role").values() if r["Properties"].get("RoleName"))
    nodes = {action for s in statements(role) for action in s["Action"]}
    assert not {action for action in nodes if "Delete" in action}
    assert not [s for s in _all(aws) if "dynamodb:DeleteItem" in s["Action"]]
