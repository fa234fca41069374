"""The Lambda functions and their two assets."""

import json
import os
import subprocess
import sys
from pathlib import Path

import boto3
import pytest

import app
from infra import asl, assets, functions
from planaria.recipes import ClusterFile
from tests.infra.conftest import DEMO, Variant

CONTRACT = {
    "PLANARIA_CLUSTER",
    "PLANARIA_TABLE",
    "PLANARIA_BUS",
    "PLANARIA_BUCKET",
    "PLANARIA_TOPIC",
    "PLANARIA_MACHINES",
    "POWERTOOLS_SERVICE_NAME",
    "POWERTOOLS_LOG_LEVEL",
}


@pytest.fixture(scope="session")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    cluster = ClusterFile.load(app.ROOT / DEMO)
    assets.stage_code(app.ROOT, folder, functions.NAMES, cluster.document(0.5))
    return folder


@pytest.fixture(scope="session")
def layer() -> Path:
    return assets.layer(app.ROOT)


def test_functions_and_their_environment(aws: Variant, sandbox: Variant) -> None:
    for variant, more in ((aws, set()), (sandbox, {"PLANARIA_SANDBOX_URL", "PLANARIA_SANDBOX_TOKEN"})):
        found = variant.properties("AWS::Lambda::Function", "FunctionName")
        assert set(found) == {f"planaria-demo-{name}" for name in functions.NAMES}
        for physical, properties in found.items():
            name = physical.removeprefix("planaria-demo-")
            environment = properties["Environment"]["Variables"]
            assert set(environment) == CONTRACT | more
            assert environment["POWERTOOLS_SERVICE_NAME"] == name
            assert properties["Handler"] == f"lambdas.{name}.handler"
            assert properties["LoggingConfig"]["LogFormat"] == "JSON"
            assert properties["MemorySize"] == 1024
            assert properties["Architectures"] == ["arm64"]
            assert ("ReservedConcurrentExecutions" in properties) == (variant is sandbox)


def test_machines_are_named_by_arn(sandbox: Variant) -> None:
    (triage,) = (
        f["Properties"]
        for f in sandbox.of("AWS::Lambda::Function").values()
        if f["Properties"]["FunctionName"] == "planaria-demo-triage"
    )
    joined = triage["Environment"]["Variables"]["PLANARIA_MACHINES"]["Fn::Join"][1]
    machines = json.loads("".join(part if isinstance(part, str) else "0" for part in joined))
    assert machines == {
        machine: f"arn:aws:states:us-east-1:0:stateMachine:planaria-demo-{machine}"
        for machine in asl.MACHINES
    }
    assert len(machines) == 7


def test_every_log_group_expires(aws: Variant) -> None:
    groups = aws.properties("AWS::Logs::LogGroup", "LogGroupName")
    assert len(groups) == len(functions.NAMES) + len(asl.MACHINES)
    assert {group["RetentionInDays"] for group in groups.values()} == {30}


def test_all_functions_share_one_asset_and_one_layer(aws: Variant) -> None:
    found = aws.of("AWS::Lambda::Function").values()
    assert len({json.dumps(f["Properties"]["Code"]) for f in found}) == 1
    assert len({json.dumps(f["Properties"]["Layers"]) for f in found}) == 1


def test_asset_holds_only_what_lambdas_import(code: Path) -> None:
    inside = {str(file.relative_to(code)) for file in code.rglob("*") if file.is_file()}
    allowed = ("lambdas/", "planaria/core/", "planaria/aws/", "planaria/schedulers/")
    single = {"cluster.json", "planaria/__init__.py", "planaria/wiring.py"}
    assert {file for file in inside if not file.startswith(allowed)} == single
    assert not [file for file in inside if "__pycache__" in file or file.endswith((".pyc", ".so"))]
    assert json.loads((code / "cluster.json").read_text())["policy"]["boot_timeout_seconds"] == 150.0


def test_code_and_layer_stay_under_five_megabytes(code: Path, layer: Path) -> None:
    assert assets.size(code) + assets.size(layer) < assets.LIMIT_BYTES


def test_layer_is_pure_python_and_independent_of_its_builder(layer: Path) -> None:
    files = {file.name for file in layer.rglob("*") if file.is_file()}
    assert not [name for name in files if name.endswith((".so", ".pyc", ".dylib"))]
    assert not {"RECORD", "INSTALLER", "direct_url.json"} & files
    assert not (layer / "python" / "bin").exists()


def test_staging_twice_gives_the_same_bytes(code: Path, tmp_path: Path) -> None:
    cluster = ClusterFile.load(app.ROOT / DEMO)
    assets.stage_code(app.ROOT, tmp_path, functions.NAMES, cluster.document(0.5))
    for file in code.rglob("*"):
        if file.is_file():
            assert file.read_bytes() == (tmp_path / file.relative_to(code)).read_bytes()


def test_layer_is_built_without_pip_the_second_time(layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    assert assets.layer(app.ROOT) == layer


def test_missing_function_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(assets.AssetError, match=r"lambdas/nothing\.py is missing"):
        assets.stage_code(app.ROOT, tmp_path, ("nothing",), {})


def test_unknown_pin_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "lambdas").mkdir()
    (tmp_path / assets.PINS).write_text("--no-index\nplanaria-no-such-package==0\n")
    with pytest.raises(assets.AssetError, match="cannot be built") as failed:
        assets.layer(tmp_path)
    assert "\n" not in str(failed.value)
    assert not list((tmp_path / "build" / "layer").iterdir())


def test_every_lambda_imports_with_boto3_layer_and_asset_alone(
    code: Path, layer: Path, tmp_path: Path
) -> None:
    site = Path(boto3.__file__).parent.parent
    for package in ("boto3", "botocore", "s3transfer", "dateutil", "urllib3", "jmespath", "six.py"):
        (tmp_path / package).symlink_to(site / package)
    script = """
import importlib, sys
for name in sys.argv[1:]:
    assert callable(importlib.import_module(f"lambdas.{name}").handler), name
"""
    path = os.pathsep.join(str(folder) for folder in (code, layer / "python", tmp_path))
    done = subprocess.run(
        [sys.executable, "-S", "-B", "-c", script, *functions.NAMES],
        env={"PYTHONPATH": path, "PATH": os.environ["PATH"]},
        cwd=code,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
