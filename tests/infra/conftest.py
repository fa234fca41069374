"""Synthesises the app once per variant. Slow part of this folder: about three seconds each."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest

import app as planaria_app

DEMO = "recipes/clusters/demo.yaml"
SANDBOX = {"sandbox": "true", "sandbox_url": "http://127.0.0.1:1", "sandbox_token": "token"}

Resource = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Variant:
    """One synth. state and control: the templates; folder: the cloud assembly."""

    state: dict[str, Any]
    control: dict[str, Any]
    folder: Path

    def of(self, kind: str) -> dict[str, Resource]:
        """logical id -> resource of this CloudFormation type, over both stacks."""
        both = {**self.state["Resources"], **self.control["Resources"]}
        return {name: resource for name, resource in both.items() if resource["Type"] == kind}

    def properties(self, kind: str, key: str) -> dict[str, dict[str, Any]]:
        """The property `key` (a physical name) -> all properties."""
        return {str(r["Properties"][key]): r["Properties"] for r in self.of(kind).values()}


def context(**changes: str) -> dict[str, Any]:
    """cdk.json's context with changes, as `cdk -c` makes them."""
    settings = json.loads((planaria_app.ROOT / "cdk.json").read_text())
    return {**settings["context"], **changes}


def synth(folder: Path, **changes: str) -> Variant:
    app = cdk.App(outdir=str(folder), context=context(**changes))
    state, control = planaria_app.build(app)
    app.synth()

    def template(stack: cdk.Stack) -> dict[str, Any]:
        return dict(json.loads((folder / f"{stack.stack_name}.template.json").read_text()))

    return Variant(template(state), template(control), folder)


def annotations(folder: Path) -> list[str]:
    """The texts of all warnings and errors that constructs have put on themselves."""
    files = list(folder.glob("*.metadata.json"))
    assert len(files) == 2, "one for each stack"
    entries = [entry for file in files for found in json.loads(file.read_text()).values() for entry in found]
    return [str(e["data"]) for e in entries if e["type"] in ("aws:cdk:warning", "aws:cdk:error")]


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Variant:
    """The demo's cluster as it would stand on AWS, checked by cdk-nag."""
    return synth(tmp_path_factory.mktemp("aws"), cluster=DEMO, nag="true")


@pytest.fixture(scope="session")
def gameday(tmp_path_factory: pytest.TempPathFactory) -> Variant:
    return synth(tmp_path_factory.mktemp("gameday"), cluster=DEMO, gameday="true")


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Variant:
    """As `aws`, with the sandbox's context and nothing else."""
    return synth(tmp_path_factory.mktemp("sandbox"), cluster=DEMO, nag="true", **SANDBOX)


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Variant:
    """What `cdk synth` gives without any -c but nag."""
    return synth(tmp_path_factory.mktemp("example"), nag="true")


def statements(resource: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every statement of a role's or policy's documents, with lists where IAM allows a single value."""
    properties = resource["Properties"]
    documents = [policy["PolicyDocument"] for policy in properties.get("Policies", [])]
    if "PolicyDocument" in properties:
        documents.append(properties["PolicyDocument"])
    for document in documents:
        for statement in document["Statement"]:
            many = {key: _listed(statement[key]) for key in ("Action", "Resource") if key in statement}
            yield {**statement, **many}


def text(value: Any) -> str:
    """A value with intrinsics as one readable text: `arn:aws:ec2:us-east-1:<AWS::AccountId>:instance/*`."""
    match value:
        case str():
            return value
        case {"Fn::Join": [between, parts]}:
            return str(between).join(text(part) for part in parts)
        case {"Ref": name}:
            return f"<{name}>"
        case {"Fn::GetAtt": [name, attribute]}:
            return f"<{name}.{attribute}>"
        case {"Fn::ImportValue": name}:
            return f"<{name}>"
    return json.dumps(value)


def user_data(data: Mapping[str, Any]) -> str:
    """What a launch template's instances run, with the bucket's name as `<its export>`."""
    return text(data["UserData"]["Fn::Base64"])


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
