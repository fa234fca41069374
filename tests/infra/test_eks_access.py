"""What a cluster file for EKS adds to the roles and to the EKS cluster, and nothing without one."""

import ast
from pathlib import Path

import pytest
import yaml

from infra.eks_access import CALLERS, GROUP
from infra.functions import NAMES
from tests.infra.conftest import DEMO, SANDBOX, Variant, statements, synth, text

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = "training"


def cluster_file(folder: Path) -> str:
    content = yaml.safe_load((ROOT / DEMO).read_text())
    content["scheduler"] = "eks"
    content["eks"] = {"cluster": CLUSTER, "namespaces": ["team-a"]}
    path = folder / "eks.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


@pytest.fixture(scope="module")
def on_eks(tmp_path_factory: pytest.TempPathFactory) -> Variant:
    folder = tmp_path_factory.mktemp("eks")
    return synth(folder / "out", cluster=cluster_file(folder), nag="true")


def roles_of(variant: Variant) -> dict[str, str]:
    """function -> logical id of its role."""
    found = variant.properties("AWS::Lambda::Function", "FunctionName")
    return {
        name.removeprefix("planaria-demo-"): properties["Role"]["Fn::GetAtt"][0]
        for name, properties in found.items()
    }


def test_exactly_the_callers_roles_have_an_access_entry(on_eks: Variant) -> None:
    roles = roles_of(on_eks)
    entries = [entry["Properties"] for entry in on_eks.of("AWS::EKS::AccessEntry").values()]
    assert sorted(entry["PrincipalArn"]["Fn::GetAtt"][0] for entry in entries) == sorted(
        roles[name] for name in CALLERS
    )
    for entry in entries:
        assert entry["ClusterName"] == CLUSTER
        assert entry["KubernetesGroups"] == [GROUP]
        assert entry["Type"] == "STANDARD"
        assert "AccessPolicies" not in entry, "what the group may do stands in recipes/eks/rbac.yaml alone"


def test_they_may_look_up_this_cluster_and_no_other(on_eks: Variant) -> None:
    arn = f"arn:aws:eks:us-east-1:<AWS::AccountId>:cluster/{CLUSTER}"
    roles = roles_of(on_eks)
    for name, role in roles.items():
        found = [
            s
            for s in statements(on_eks.control["Resources"][role])
            if any(action.startswith("eks:") for action in s["Action"])
        ]
        if name not in CALLERS:
            assert found == [], name
            continue
        assert [(s["Action"], [text(r) for r in s["Resource"]]) for s in found] == [
            (["eks:DescribeCluster"], [arn])
        ]


def test_they_may_read_which_instance_has_a_name(on_eks: Variant) -> None:
    roles = roles_of(on_eks)
    for name in CALLERS:
        resources = {
            text(resource)
            for statement in statements(on_eks.control["Resources"][roles[name]])
            if "dynamodb:Query" in statement["Action"]
            for resource in statement["Resource"]
        }
        assert any(resource.endswith("/index/listing") for resource in resources), name


def test_without_eks_there_is_none_of_it(aws: Variant, tmp_path: Path) -> None:
    assert not aws.of("AWS::EKS::AccessEntry")
    assert "eks:" not in str(aws.control)
    in_sandbox = synth(tmp_path / "out", cluster=cluster_file(tmp_path), **SANDBOX)
    assert not in_sandbox.of("AWS::EKS::AccessEntry"), "the sandbox has no EKS"


# --- who speaks to the scheduler, by the code ------------------------------------------------------


def _functions(module: str) -> dict[str, ast.AST]:
    tree = ast.parse((ROOT / "lambdas" / f"{module}.py").read_text())
    kinds = (ast.FunctionDef, ast.ClassDef)
    found: dict[str, ast.AST] = {node.name: node for node in tree.body if isinstance(node, kinds)}
    rest = ast.Module([node for node in tree.body if not isinstance(node, kinds)], [])
    found["<module>"] = rest
    return found


def _imports(module: str) -> dict[str, tuple[str, str]]:
    """local name -> (module of lambdas, name there; "" for the module itself)"""
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(ast.parse((ROOT / "lambdas" / f"{module}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "lambdas":
            found |= {alias.asname or alias.name: (alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lambdas."):
            source = str(node.module).removeprefix("lambdas.")
            found |= {alias.asname or alias.name: (source, alias.name) for alias in node.names}
    return found


def _speaks(function: str) -> bool:
    """Whether code that this Lambda's handler can reach uses the Scheduler port."""
    waiting, seen = [(function, "handler")], set()
    while waiting:
        module, name = here = waiting.pop()
        if here in seen or not (ROOT / "lambdas" / f"{module}.py").exists():
            continue
        seen.add(here)
        code, imported = _functions(module), _imports(module)
        if name not in code:
            continue
        for node in ast.walk(code[name]):
            if isinstance(node, ast.Attribute) and node.attr == "scheduler":
                owner = node.value
                # gw.cluster.scheduler is a word of the cluster file
                if not (isinstance(owner, ast.Attribute) and owner.attr == "cluster"):
                    return True
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                source = imported.get(node.value.id)
                if source is not None and not source[1]:
                    waiting.append((source[0], node.attr))
            if isinstance(node, ast.Name):
                waiting.append(imported.get(node.id) or (module, node.id))
    return False


def test_the_callers_are_those_whose_code_speaks_to_the_scheduler() -> None:
    assert {name for name in NAMES if _speaks(name)} == set(CALLERS)
