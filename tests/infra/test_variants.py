"""The sandbox is the same app: only what is listed here may differ, and only the context decides."""

from collections.abc import Iterator
from typing import Any

import aws_cdk as cdk
import pytest

import app
from planaria.core.errors import InvalidInput
from tests.infra.conftest import DEMO, SANDBOX, Variant, context

KEPT = {"DeletionPolicy", "UpdateReplacePolicy"}
TLS_STATEMENTS = {"Properties.PolicyDocument.Statement"}

# CloudFormation type -> paths at which the sandbox may differ from AWS.
ALLOWED: dict[str, set[str]] = {
    # The sandbox is thrown away as a whole.
    "AWS::DynamoDB::Table": KEPT | {"Properties.DeletionProtectionEnabled"},
    "AWS::S3::Bucket": KEPT,
    # Its emulator speaks plain HTTP on the loopback address.
    "AWS::S3::BucketPolicy": {"", *TLS_STATEMENTS},
    "AWS::SQS::QueuePolicy": {"", *TLS_STATEMENTS},
    "AWS::SNS::TopicPolicy": TLS_STATEMENTS,
    # One machine: few Lambda processes at once, and the address of the local scheduler.
    "AWS::Lambda::Function": {
        "Properties.ReservedConcurrentExecutions",
        "Properties.Environment.Variables.PLANARIA_SANDBOX_URL",
        "Properties.Environment.Variables.PLANARIA_SANDBOX_TOKEN",
    },
    "AWS::Lambda::EventSourceMapping": {"Properties.ScalingConfig.MaximumConcurrency"},
    # Its IAM knows fewer condition keys and resources: see infra/grants.py.
    "AWS::IAM::Role": {"Properties.Policies"},
}


def _differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            if key not in one or key not in other:
                yield f"{path}.{key}".lstrip(".")
            else:
                yield from _differences(one[key], other[key], f"{path}.{key}")
    elif one != other:
        yield path.lstrip(".")


def test_sandbox_differs_only_where_it_must(aws: Variant, sandbox: Variant) -> None:
    for stack in ("state", "control"):
        here = getattr(aws, stack)["Resources"]
        there = getattr(sandbox, stack)["Resources"]
        assert not set(there) - set(here), "the sandbox adds nothing"
        for name, resource in here.items():
            allowed = ALLOWED.get(resource["Type"], set())
            if name not in there:
                assert "" in allowed, f"{name} is missing in the sandbox"
                continue
            found = set(_differences(resource, there[name])) - {"Metadata"}
            assert found <= allowed, f"{name}: {found - allowed}"


def test_sandbox_grants_are_the_same_actions(aws: Variant, sandbox: Variant) -> None:
    def actions(variant: Variant) -> dict[str, list[tuple[str, Any]]]:
        return {
            name: [
                (s["Sid"], s["Action"])
                for p in role["Properties"].get("Policies", [])
                for s in p["PolicyDocument"]["Statement"]
            ]
            for name, role in variant.of("AWS::IAM::Role").items()
        }

    assert actions(aws) == actions(sandbox)


def test_sandbox_opens_exactly_two_resources(aws: Variant, sandbox: Variant) -> None:
    opened = set()
    for name, role in sandbox.of("AWS::IAM::Role").items():
        before = aws.of("AWS::IAM::Role")[name]["Properties"].get("Policies", [])
        for policy, here in zip(role["Properties"].get("Policies", []), before, strict=True):
            both = zip(
                policy["PolicyDocument"]["Statement"], here["PolicyDocument"]["Statement"], strict=True
            )
            opened |= {s["Sid"] for s, h in both if s["Resource"] != h["Resource"]}
    assert opened == {"Answer", "Launch"}


def _settings(**changes: str) -> Any:
    return app.settings_of(cdk.App(context=context(**changes)))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gameday": "maybe"}, "The context gameday must be true or false, not maybe."),
        ({"time_scale": "0"}, "The context time_scale must be a number above 0 and at most 1, not 0."),
        ({"time_scale": "fast"}, "The context time_scale must be a number above 0 and at most 1, not fast."),
        ({"time_scale": "nan"}, "The context time_scale must be a number above 0 and at most 1, not nan."),
        ({"sandbox": "true"}, "The context sandbox_url is missing; give it with -c sandbox_url=..."),
        ({"cluster": "none.yaml"}, "cannot be read"),
    ],
)
def test_bad_context_is_one_sentence(changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        _settings(**changes)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("scheduler", ["slurm", "eks"])
def test_a_scheduler_that_is_not_described_is_refused(scheduler: str, tmp_path: Any) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text((app.ROOT / DEMO).read_text().replace("scheduler: process", f"scheduler: {scheduler}"))
    with pytest.raises(InvalidInput, match=f"scheduler {scheduler} needs the section {scheduler}"):
        _settings(cluster=str(file))


def test_settings_of_the_sandbox() -> None:
    settings = _settings(cluster=DEMO, time_scale="0.05", gameday="true", **SANDBOX)
    assert settings.sandbox is not None
    assert settings.sandbox.url == "http://127.0.0.1:1"
    assert settings.document["policy"]["boot_timeout_seconds"] == 15.0
    assert settings.gameday
