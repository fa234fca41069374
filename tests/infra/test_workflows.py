"""The state machines as synthesised, and what they may invoke."""

import json
from pathlib import Path
from typing import Any

import pytest

import app
from infra import asl
from infra.functions import NAMES
from tests.infra.conftest import DEMO, Variant, statements, synth, text


def _machines(variant: Variant) -> dict[str, dict[str, Any]]:
    found = variant.properties("AWS::StepFunctions::StateMachine", "StateMachineName")
    return {name.removeprefix("planaria-demo-"): properties for name, properties in found.items()}


def _definition(properties: dict[str, Any]) -> str:
    definition = properties["DefinitionString"]
    assert isinstance(definition, str), "the text must need no tokens: substitutions carry them"
    return definition


def test_all_machines_are_there(aws: Variant) -> None:
    assert set(_machines(aws)) == set(asl.MACHINES)
    on_disk = {
        file.name.removesuffix(".asl.json") for file in (app.ROOT / "statemachines").glob("*.asl.json")
    }
    assert on_disk == set(asl.MACHINES)


@pytest.mark.parametrize("machine", asl.MACHINES)
def test_every_placeholder_is_granted_and_only_those(aws: Variant, machine: str) -> None:
    properties = _machines(aws)[machine]
    names = asl.placeholders(asl.path(app.ROOT, machine).read_text())
    substitutions = properties["DefinitionSubstitutions"]
    assert set(substitutions) == set(names)
    role = properties["RoleArn"]["Fn::GetAtt"][0]
    policies = [p for p in aws.of("AWS::IAM::Policy").values() if {"Ref": role} in p["Properties"]["Roles"]]
    invoked, published = set(), set()
    for policy in policies:
        for statement in statements(policy):
            if "lambda:InvokeFunction" in statement["Action"]:
                invoked |= {text(resource) for resource in statement["Resource"]}
            if "sns:Publish" in statement["Action"]:
                published |= {text(resource) for resource in statement["Resource"]}
    functions = {
        f"<{logical}.Arn>": f["Properties"]["FunctionName"].removeprefix("planaria-demo-")
        for logical, f in aws.of("AWS::Lambda::Function").items()
    }
    assert {functions[arn] for arn in invoked} == {name for name in names if name in NAMES}
    assert bool(published) == (asl.TOPIC_PLACEHOLDER in names)


def test_every_task_function_is_used_by_a_machine() -> None:
    used = {n for m in asl.MACHINES for n in asl.placeholders(asl.path(app.ROOT, m).read_text())}
    assert {name for name in NAMES if name not in used} == {"triage", "sweep"}


def test_machines_log_every_transition_without_data(aws: Variant) -> None:
    for properties in _machines(aws).values():
        logging = properties["LoggingConfiguration"]
        assert logging["Level"] == "ALL"
        assert logging["IncludeExecutionData"] is False


def test_the_text_is_the_files_own(aws: Variant) -> None:
    for machine, properties in _machines(aws).items():
        assert json.loads(_definition(properties)) == json.loads(asl.path(app.ROOT, machine).read_text())


def test_time_scale_shortens_every_time_out(tmp_path: Path) -> None:
    def timeouts(node: Any) -> list[float]:
        if isinstance(node, list):
            return [t for part in node for t in timeouts(part)]
        if not isinstance(node, dict):
            return []
        own = [node[key] for key in ("TimeoutSeconds", "HeartbeatSeconds") if key in node]
        return own + [t for part in node.values() for t in timeouts(part)]

    scaled = synth(tmp_path, cluster=DEMO, time_scale="0.1")
    for machine, properties in _machines(scaled).items():
        before = timeouts(json.loads(asl.path(app.ROOT, machine).read_text()))
        after = timeouts(json.loads(_definition(properties)))
        assert after == [max(3, -(-t // 10)) for t in before]


MACHINE = {
    "TimeoutSeconds": 100,
    "StartAt": "A",
    "States": {
        "A": {
            "Type": "Task",
            "TimeoutSeconds": 31,
            "HeartbeatSeconds": 12,
            "Arguments": {"TimeoutSeconds": 99},
        },
        "B": {"Type": "Parallel", "Branches": [{"StartAt": "C", "States": {"C": {"TimeoutSeconds": 5}}}]},
        "D": {"Type": "Map", "ItemProcessor": {"StartAt": "E", "States": {"E": {"TimeoutSeconds": 1000}}}},
    },
}


def test_scaling_reaches_nested_states_and_leaves_arguments_alone() -> None:
    scaled = json.loads(asl.scaled(json.dumps(MACHINE), 0.1))
    assert scaled["TimeoutSeconds"] == 10
    assert scaled["States"]["A"]["TimeoutSeconds"] == 4
    assert scaled["States"]["A"]["HeartbeatSeconds"] == 3
    assert scaled["States"]["A"]["Arguments"]["TimeoutSeconds"] == 99
    assert scaled["States"]["B"]["Branches"][0]["States"]["C"]["TimeoutSeconds"] == 3
    assert scaled["States"]["D"]["ItemProcessor"]["States"]["E"]["TimeoutSeconds"] == 100


def test_scale_one_changes_nothing() -> None:
    assert json.loads(asl.scaled(json.dumps(MACHINE), 1)) == MACHINE


def test_a_time_out_must_be_literal() -> None:
    with pytest.raises(ValueError, match="TimeoutSeconds must be a literal whole number"):
        asl.scaled('{"States": {"A": {"TimeoutSeconds": "{% $t %}"}}}', 0.5)


def test_placeholders() -> None:
    assert asl.placeholders("${a} {% $states.input.${x} %} ${b_c} ${a} $b {$c}") == ("a", "b_c", "x")
