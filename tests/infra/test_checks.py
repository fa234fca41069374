"""cfn-lint and cdk-nag are clean, and nothing was suppressed without a reason."""

import json
import subprocess
import sys
from pathlib import Path

import aws_cdk as cdk
import pytest

import app
from tests.infra.conftest import DEMO, Variant, annotations, context


@pytest.mark.parametrize("variant", ["aws", "sandbox", "example"])
def test_cdk_nag(variant: str, request: pytest.FixtureRequest) -> None:
    """A finding ends the synth itself; see the next test."""
    folder: Path = request.getfixturevalue(variant).folder
    report = json.loads((folder / "validation-report.json").read_text())
    assert report["pluginReports"] == []


def test_cdk_nag_would_find_something(tmp_path: Path) -> None:
    bare = cdk.App(outdir=str(tmp_path), context=context(cluster=DEMO, nag="true"))
    state, _ = app.build(bare)
    cdk.aws_s3.Bucket(state, "Careless")
    with pytest.raises(RuntimeError, match="ValidationFailed"):
        bare.synth()
    report = json.loads((tmp_path / "validation-report.json").read_text())
    assert "AwsSolutions-S1" in {v["ruleName"] for r in report["pluginReports"] for v in r["violations"]}


@pytest.mark.parametrize("variant", ["aws", "gameday", "sandbox", "example"])
def test_no_warnings(variant: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(variant).folder
    assert not annotations(folder)


def test_cfn_lint(example: Variant, gameday: Variant, sandbox: Variant) -> None:
    templates = [str(file) for v in (example, gameday, sandbox) for file in v.folder.glob("*.template.json")]
    linter = Path(sys.executable).with_name("cfn-lint")
    done = subprocess.run(
        [str(linter), "--template", *templates], cwd=app.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_templates_fit(gameday: Variant) -> None:
    for file in gameday.folder.glob("*.template.json"):
        assert file.stat().st_size < 1_000_000, "CloudFormation's limit"
    assert len(gameday.control["Resources"]) < 500
