"""The CDK app reaches the emulator, by the CDK CLI and by the short way, and failures say what failed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from planaria.sandbox import deploy, processes
from planaria.sandbox import emulator as emulators
from planaria.sandbox.emulator import Emulator
from planaria.sandbox.errors import SandboxError

pytestmark = pytest.mark.needs("emulator", "node")

CONTEXT = deploy.sandbox_context("http://127.0.0.1:1", "token", time_scale=0.1)
STACKS = ["Planaria-demo-State", "Planaria-demo-Control"]


@pytest.fixture(scope="module")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deploy.synthesize(tmp_path_factory.mktemp("synth") / "cdk.out", CONTEXT)


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    with emulators.start(tmp_path / "emulator", auth=True) as running:
        yield running


def _answers(emulator: Emulator) -> None:
    """The deployed triage runs under its own role."""
    answer = emulator.client("lambda").invoke(
        FunctionName="planaria-demo-triage", Payload=json.dumps({"Records": []})
    )
    assert json.loads(answer["Payload"].read()) == {"batchItemFailures": []}
    assert "FunctionError" not in answer


@pytest.mark.needs("cdk")
def test_cdk_deploys_to_an_emulator_that_enforces_iam(emulator: Emulator) -> None:
    news: list[str] = []
    outputs = deploy.deploy(emulator, CONTEXT, progress=news.append)
    assert list(outputs) == STACKS
    assert outputs["Planaria-demo-Control"]["NoticesTopic"].endswith(":planaria-demo-notices")
    assert news[0] == "synthesising the CDK app"
    assert any("Planaria-demo-Control: " in line and "resources" in line for line in news)
    _answers(emulator)
    left = {path.name for path in emulator.folder.iterdir()}
    assert left == {"cdk.out", "emulator.json", "emulator.log", "outputs.json", "tmp"}


def test_the_short_way_gives_the_same_stacks(emulator: Emulator, assembly: Path) -> None:
    outputs = deploy.deploy_direct(emulator, assembly)
    assert list(outputs) == STACKS
    _answers(emulator)


NO_SUCH_TYPE = {"Type": "AWS::Planaria::Unknown"}
NO_SUCH_EXPORT = {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": {"Fn::ImportValue": "none"}}}


@pytest.mark.parametrize(
    ("resource", "said"), [(NO_SUCH_TYPE, "AWS::Planaria::Unknown"), (NO_SUCH_EXPORT, "Odd: ")]
)
def test_what_a_stack_failed_of_is_said(
    emulator: Emulator, tmp_path: Path, resource: dict[str, object], said: str
) -> None:
    template = {"Resources": {"Odd": resource}}
    files = {
        "manifest.json": {
            "artifacts": {
                "Broken": {
                    "type": "aws:cloudformation:stack",
                    "dependencies": ["Broken.assets"],
                    "properties": {"stackTemplateAssetObjectUrl": "s3://a-${AWS::Region}/t.json"},
                },
                "Broken.assets": {
                    "type": "cdk:asset-manifest",
                    "properties": {"file": "Broken.assets.json"},
                },
            }
        },
        "Broken.assets.json": {
            "files": {
                "t": {
                    "source": {"path": "t.json", "packaging": "file"},
                    "destinations": {"here": {"bucketName": "a-${AWS::Region}", "objectKey": "t.json"}},
                }
            }
        },
        "t.json": template,
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(SandboxError, match=f"Broken could not be created: .*{said}"):
        deploy.deploy_direct(emulator, tmp_path)


def test_a_broken_cluster_file_is_one_sentence(tmp_path: Path) -> None:
    context = CONTEXT | {"cluster": "recipes/clusters/missing.yaml"}
    with pytest.raises(SandboxError) as caught:
        deploy.synthesize(tmp_path / "cdk.out", context)
    assert "missing.yaml" in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_outside_a_clone_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=r"a clone of the repository; .* has no app\.py"):
        deploy.synthesize(tmp_path / "cdk.out", CONTEXT, root=tmp_path)


@pytest.mark.needs("emulator")
def test_a_missing_cdk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    here = Emulator(tmp_path, 1, 1, None, None)
    with pytest.raises(SandboxError, match="CDK CLI is missing; `make setup`"):
        deploy.deploy(here, CONTEXT, root=tmp_path)


def test_a_stopped_synth_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    (tmp_path / "cdk.json").write_text('{"context": {}}')
    groups: list[int] = []

    def interrupted(group: int, grace: float = 1.0) -> None:
        groups.append(group)
        end_group(group, grace)

    end_group = processes.end_group
    monkeypatch.setattr(processes, "end_group", interrupted)
    monkeypatch.setattr(deploy, "_EVENT", _Interrupting())
    with pytest.raises(KeyboardInterrupt):
        deploy.synthesize(tmp_path / "cdk.out", {}, root=tmp_path)
    assert groups
    assert processes.members(groups[0]) == []


class _Interrupting:
    """Stands for the first line of output, at which Ctrl-C is pressed."""

    def match(self, _: str) -> None:
        raise KeyboardInterrupt
