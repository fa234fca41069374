"""SSM documents: what they let through and run, and who may send which."""

import ast
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra import permissions, ssm_documents
from infra.functions import NAMES
from planaria.core import documents
from planaria.core.documents import Document, Parameter
from tests.infra.conftest import Variant, statements, synth, text

ROOT = Path(__file__).resolve().parents[2]
HEAD = "i-0123456789abcdef0"
SLURM = "recipes/clusters/slurm.yaml"
EC2 = "arn:aws:ec2:us-east-1:<AWS::AccountId>"
DOCUMENT = "arn:aws:ssm:us-east-1:<AWS::AccountId>:document/planaria-slurm-"
TABLE = ssm_documents.read(ROOT)
ALL = list(documents.documents().values())


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Variant:
    """A cluster with Slurm on AWS, checked by cdk-nag."""
    return synth(tmp_path_factory.mktemp("slurm"), cluster=SLURM, nag="true")


@pytest.fixture(scope="module")
def eks(tmp_path_factory: pytest.TempPathFactory) -> Variant:
    folder = tmp_path_factory.mktemp("eks")
    words = (
        (ROOT / SLURM)
        .read_text()
        .replace("scheduler: slurm", "scheduler: eks")
        .replace("name: slurm", "name: k")
    )
    file = folder / "cluster.yaml"
    file.write_text(re.sub(r"\nslurm:\n(  .*\n)+", "\neks: {cluster: training}\n", words))
    return synth(folder / "out", cluster=str(file))


def _commands(variant: Variant, cluster: str) -> dict[str, dict[str, Any]]:
    """name -> content of the documents that this synth deploys."""
    template = json.loads((variant.folder / f"Planaria-{cluster}-Commands.template.json").read_text())
    kinds = {resource["Type"] for resource in template["Resources"].values()} - {"AWS::CDK::Metadata"}
    assert kinds == {"AWS::SSM::Document"}
    found = [r["Properties"] for r in template["Resources"].values() if r["Type"] == "AWS::SSM::Document"]
    for each in found:
        assert (each["DocumentType"], each["DocumentFormat"]) == ("Command", "JSON")
        assert (each["TargetType"], each["UpdateMethod"]) == ("/AWS::EC2::Instance", "NewVersion")
    return {each["Name"]: each["Content"] for each in found}


def _granted(variant: Variant, cluster: str, name: str) -> list[dict[str, Any]]:
    functions = variant.properties("AWS::Lambda::Function", "FunctionName")
    role = functions[f"planaria-{cluster}-{name}"]["Role"]["Fn::GetAtt"][0]
    return list(statements(variant.control["Resources"][role]))


def _sent(variant: Variant, cluster: str, name: str) -> set[str]:
    """The ARNs on which a function may use SendCommand, as text."""
    found = [s for s in _granted(variant, cluster, name) if "ssm:SendCommand" in s["Action"]]
    return {text(resource) for statement in found for resource in statement["Resource"]}


# --- which documents there are -----------------------------------------------------------------------


def test_a_cluster_with_slurm_has_every_document(slurm: Variant) -> None:
    found = _commands(slurm, "slurm")
    assert set(found) == {documents.aws_name("slurm", each.name) for each in ALL}
    for each in ALL:
        content = found[documents.aws_name("slurm", each.name)]
        assert content == ssm_documents.content(TABLE, each.name)


def test_documents_are_there_before_the_functions_that_send_them(slurm: Variant) -> None:
    artifacts = json.loads((slurm.folder / "manifest.json").read_text())["artifacts"]
    assert "Planaria-slurm-Commands" in artifacts["Planaria-slurm-Control"]["dependencies"]


def test_a_cluster_on_eks_has_those_of_nodes_alone(eks: Variant) -> None:
    of_nodes = {documents.aws_name("k", each.name) for each in ALL if each.runs_on == "node"}
    assert set(_commands(eks, "k")) == of_nodes >= {"planaria-k-check", "planaria-k-run-transfer"}


def test_the_sandbox_and_its_scheduler_have_none(aws: Variant, sandbox: Variant) -> None:
    for variant in (aws, sandbox):
        assert not list(variant.folder.glob("*-Commands.template.json"))
        assert "ssm:" not in json.dumps(variant.control)


def test_cdk_nag_and_cfn_lint_find_nothing(slurm: Variant) -> None:
    report = json.loads((slurm.folder / "validation-report.json").read_text())
    assert report["pluginReports"] == []
    templates = sorted(str(file) for file in slurm.folder.glob("*.template.json"))
    assert len(templates) == 3
    done = subprocess.run(
        ["cfn-lint", "--template", *templates], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- what a document is ------------------------------------------------------------------------------


@pytest.mark.parametrize("document", ALL, ids=lambda each: each.name)
def test_content_is_of_schema_2_2(document: Document) -> None:
    content = ssm_documents.content(TABLE, document.name)
    assert content["schemaVersion"] == "2.2"
    assert set(content["parameters"]) == set(document.parameters)
    for name, parameter in content["parameters"].items():
        assert re.fullmatch(r"[A-Za-z0-9]{1,30}", name)
        assert parameter["type"] == "String"
        pattern = parameter["allowedPattern"]
        assert pattern.startswith("^") and pattern.endswith("$")
        if "default" in parameter:
            assert re.fullmatch(pattern, parameter["default"])
    (step,) = content["mainSteps"]
    assert step["action"] == "aws:runShellScript"
    assert 5 <= int(step["inputs"]["timeoutSeconds"]) <= 172_800
    assert len(json.dumps(content)) < 64_000
    assert len(documents.aws_name("c" * 31, document.name)) <= 128


GOOD = (
    "a", "a-1", "a-1=planaria:s-1", "12", "i-0123456789abcdef0", "TERM", "-1", "light", "/a/b", "0000:17:00",
    "1:12", "COPY", "s3://bucket/checkpoints/gpt",
)  # fmt: skip
"""At least one of these fits each pattern."""

SPECIAL = "\"$`\\\n\r\0!;|&<>(){}*?~'# \t"
"""Everything that could mean something to a shell between double quotes, and more."""


@pytest.mark.parametrize("name", TABLE["patterns"])
def test_no_pattern_lets_a_special_character_through(name: str) -> None:
    """Wherever in the value it stands: at the ends and between characters that fit."""
    pattern = TABLE["patterns"][name]
    for value in [each for each in ("", *GOOD) if documents.matches(pattern, each)]:
        for special in SPECIAL:
            for place in range(len(value) + 1):
                assert not documents.matches(pattern, value[:place] + special + value[place:])
                assert not documents.matches(pattern, special)


@pytest.mark.parametrize("name", TABLE["patterns"])
def test_patterns_are_of_the_kind_that_every_engine_knows(name: str) -> None:
    """SSM's agent is written in Go: no look-around, no back reference, at most 1,000 repetitions."""
    pattern = TABLE["patterns"][name]
    assert not re.search(r"\(\?|\\[0-9dswbDSWBZA]", pattern)
    assert all(int(most) <= 1000 for most in re.findall(r"\{\d+,(\d+)\}", pattern))


def test_a_value_has_an_end() -> None:
    nodes = documents.documents()["planaria-slurm-node"].parameters["Nodes"]
    assert nodes.fits("a" * documents.LONGEST)
    assert not nodes.fits("a" * (documents.LONGEST + 1))


@pytest.mark.parametrize("name", TABLE["patterns"])
def test_every_pattern_fits_something(name: str) -> None:
    pattern = TABLE["patterns"][name]
    assert any(documents.matches(pattern, each) for each in GOOD)
    assert any(
        given["pattern"] == name
        for row in TABLE["documents"].values()
        for given in row["parameters"].values()
    )


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stands for the machine's Python: prints its arguments, each with a NUL after it."""
    path = tmp_path_factory.mktemp("bin") / "python"
    path.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    path.chmod(0o755)
    return path


def _filled(document: Document) -> st.SearchStrategy[dict[str, str]]:
    """Values that the patterns let through. Short ones: the length is another matter."""
    return st.fixed_dictionaries({name: _fitting(each) for name, each in document.parameters.items()})


def _fitting(parameter: Parameter) -> st.SearchStrategy[str]:
    short = re.sub(r"\{(\d),\d{3,}\}|(?<=\])\*", lambda found: f"{{{found[1] or 0},9}}", parameter.pattern)
    return st.from_regex(short, fullmatch=True).filter(parameter.fits)


@pytest.mark.parametrize("document", ALL, ids=lambda each: each.name)
def test_the_shell_hands_each_value_on_as_it_is(document: Document, echo: Path) -> None:
    """The agent puts the values into the line and gives it to a shell; a real one here."""
    content = ssm_documents.content({**TABLE, "python": str(echo)}, document.name)
    (line,) = content["mainSteps"][0]["inputs"]["runCommand"]

    @settings(deadline=None, max_examples=20)
    @given(_filled(document))
    def check(values: dict[str, str]) -> None:
        script = line
        for name, value in values.items():
            script = script.replace(f"{{{{ {name} }}}}", value)
        done = subprocess.run(["sh", "-c", script], cwd="/", capture_output=True, check=True)
        assert done.stdout.decode().split("\0")[:-1] == document.arguments(values)
        assert done.stderr == b""

    check()


@pytest.mark.parametrize("document", ALL, ids=lambda each: each.name)
def test_the_program_of_a_document_is_in_this_release(document: Document) -> None:
    path = ROOT / document.module.replace(".", "/")
    assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


# --- who may send what -------------------------------------------------------------------------------

REQUESTS = {
    "NodeQuery": "node", "Isolate": "isolate", "Lost": "lost", "Readmit": "readmit", "Join": "join",
    "JobsOn": "jobs-on", "JobQuery": "jobs", "Stop": "stop", "Hold": "hold", "Requeue": "requeue",
    "Place": "place",
}  # fmt: skip

NOT_REACHED: Mapping[str, tuple[str, ...]] = {
    # (function, document): modules are shared, and these functions use another part of them.
    "triage": ("slurm-readmit",),
    "choose_checkpoint": ("slurm-hold",),
    "requeue_job": ("slurm-hold", "slurm-jobs-on"),
}

OTHERWISE: Mapping[str, tuple[str, ...]] = {
    # Documents that are named in another way than by a request.
    "sweep": ("check", "settle-step"),
    "verify_node": ("check",),
    "reset_gpu": ("reset-gpu",),
    "choose_checkpoint": ("list-checkpoints",),
    "await_restore": ("settle-step",),
    "choose_restore": ("list-checkpoints",),
    "bring_checkpoint": ("plan-transfer", "run-transfer"),
    "settle_restore": ("settle-step", "prune-checkpoints"),
    "close_restore": ("settle-step",),
    "plan_sync": ("list-checkpoints",),
    "start_sync": ("plan-transfer", "run-transfer"),
    "follow_sync": ("run-transfer", "settle-step"),
    "retain_sync": ("list-checkpoints", "prune-checkpoints", "sweep-checkpoints"),
}


def _asked(function: str) -> set[str]:
    """The documents for whose requests the function's modules have the words."""
    seen: set[str] = set()
    found: set[str] = set()

    def visit(module: str) -> None:
        path = ROOT / "lambdas" / f"{module}.py"
        if module in seen or not path.is_file():
            return
        seen.add(module)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "planaria.core.scheduling":
                found.update(f"slurm-{REQUESTS[a.name]}" for a in node.names if a.name in REQUESTS)
            elif isinstance(node, ast.Attribute) and node.attr in REQUESTS:
                found.add(f"slurm-{REQUESTS[node.attr]}")
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lambdas"):
                inner = (node.module or "").partition(".")[2]
                for each in [inner] if inner else [alias.name for alias in node.names]:
                    visit(each)

    visit(function)
    return found - set(NOT_REACHED.get(function, ())) | set(OTHERWISE.get(function, ()))


@pytest.mark.parametrize("function", NAMES)
def test_a_function_may_send_exactly_what_it_asks_for(slurm: Variant, function: str) -> None:
    found = {r.removeprefix(DOCUMENT) for r in _sent(slurm, "slurm", function) if r.startswith(DOCUMENT)}
    assert found - {"slurm-topology"} == _asked(function)


def test_slurm_is_asked_on_the_head_node_alone(slurm: Variant) -> None:
    for function in NAMES:
        for statement in _granted(slurm, "slurm", function):
            if statement["Sid"] != "AskSlurm":
                continue
            others = {text(r) for r in statement["Resource"] if not text(r).startswith(DOCUMENT)}
            (bucket,) = others - {f"{EC2}:instance/{HEAD}"}
            assert "BucketArn" in bucket or "Checkpoints" in bucket
            assert "Condition" not in statement


def test_nodes_are_known_by_the_clusters_tag(slurm: Variant, eks: Variant) -> None:
    for variant, cluster in ((slurm, "slurm"), (eks, "k")):
        for function in ("sweep", "verify_node", "reset_gpu"):
            (on,) = [s for s in _granted(variant, cluster, function) if s["Sid"] == "OnNodes"]
            assert [text(resource) for resource in on["Resource"]] == [f"{EC2}:instance/*"]
            assert on["Condition"] == {"StringEquals": {"ssm:resourceTag/planaria:cluster": cluster}}


def _wildcards(variant: Variant, cluster: str) -> Iterator[tuple[str, str]]:
    for function in NAMES:
        for statement in _granted(variant, cluster, function):
            for resource in statement["Resource"]:
                if "*" in text(resource):
                    yield from ((action, text(resource)) for action in statement["Action"])


def test_wildcards_of_commands_are_these(slurm: Variant) -> None:
    found = {
        (action, resource.partition(">/")[2] or resource)
        for action, resource in _wildcards(slurm, "slurm")
        if action.startswith("ssm:") or "commands/" in resource
    }
    assert found == {
        ("ssm:SendCommand", f"{EC2}:instance/*"),
        ("ssm:GetCommandInvocation", "*"),
        ("ssm:ListCommandInvocations", "*"),
        ("s3:GetObject", "commands/*"),
    }


def test_who_sends_also_hears_and_nobody_else(slurm: Variant, eks: Variant) -> None:
    for variant, cluster in ((slurm, "slurm"), (eks, "k")):
        for function in NAMES:
            found = _granted(variant, cluster, function)
            hears = any("ssm:GetCommandInvocation" in s["Action"] for s in found)
            assert hears == bool(_sent(variant, cluster, function))
    # On EKS nothing is asked of Slurm: those that ask nodes are left.
    assert [name for name in NAMES if _sent(eks, "k", name)] == [name for name in NAMES if name in OTHERWISE]


def test_nodes_put_whole_answers_into_the_bucket_and_read_none(slurm: Variant) -> None:
    (role,) = (r for r in slurm.of("AWS::IAM::Role").values() if r["Properties"].get("RoleName"))
    found = [s for s in statements(role) if any("commands/*" in text(r) for r in s["Resource"])]
    assert [(s["Sid"], s["Action"]) for s in found] == [("CommandAnswers", ["s3:PutObject"])]


def test_whole_answers_are_kept_for_a_week(slurm: Variant) -> None:
    rules = [
        rule
        for bucket in slurm.of("AWS::S3::Bucket").values()
        for rule in bucket["Properties"]["LifecycleConfiguration"]["Rules"]
        if rule.get("Prefix") == "commands/"
    ]
    assert [rule["ExpirationInDays"] for rule in rules] == [7]


def test_who_finds_jobs_may_list_nodes_and_tell_their_users(
    slurm: Variant, eks: Variant, sandbox: Variant
) -> None:
    """lambdas/registering.py: isolate_node finds jobs, requeue_job looks where one is."""

    def able(variant: Variant, cluster: str, function: str) -> tuple[bool, bool]:
        found = _granted(variant, cluster, function)
        lists = any("/index/listing" in text(r) for s in found for r in s["Resource"])
        return lists, any("sns:Publish" in s["Action"] for s in found)

    for variant, cluster in ((slurm, "slurm"), (eks, "k")):
        assert able(variant, cluster, "isolate_node") == (True, True)
        assert able(variant, cluster, "requeue_job") == (True, False)
    assert able(sandbox, "demo", "isolate_node") == able(sandbox, "demo", "requeue_job") == (False, False)


def test_every_granted_document_is_in_the_table() -> None:
    """A misspelt one would silently be no grant at all."""
    source = ast.parse((ROOT / "infra" / "permissions.py").read_text())
    named = set()
    for node in ast.walk(source):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "commands":
            for keyword in node.keywords:
                prefix = "planaria-slurm-" if keyword.arg == "slurm" else "planaria-"
                named |= {prefix + name for name in ast.literal_eval(keyword.value)}
    assert named and named <= {each.name for each in ALL}
    assert set(permissions.BY_FUNCTION) == set(NAMES)
