"""The shape of the source: who may import whom, how long files may be, what the Lambdas' asset holds."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

AWS_SDK = frozenset({"boto3", "botocore"})
LAMBDA = AWS_SDK | {"aws_lambda_powertools"}
CDK = frozenset({"aws_cdk", "constructs", "cdk_nag", "jsii"})
ANY = frozenset({"*"})


@dataclass(frozen=True, slots=True)
class Rule:
    """ours: prefixes of our own modules it may import; others: third-party packages it may import."""

    ours: frozenset[str]
    others: frozenset[str] = frozenset()


CORE = frozenset({"planaria.core"})
RECIPES = frozenset(
    f"planaria.recipe_{part}"
    for part in ("checkpoints", "errors", "file_systems", "nodes", "policy", "warnings")
)
SCHEMA = frozenset({"pydantic", "pydantic_core", "yaml"})
RULES: dict[str, Rule] = {
    "app.py": Rule(frozenset({"infra", "planaria.recipes", "planaria.core.errors"}), CDK),
    "infra": Rule(frozenset({"infra"}), CDK),
    "lambdas": Rule(CORE | {"planaria.wiring", "lambdas"}, LAMBDA),
    "planaria/__init__.py": Rule(frozenset()),
    "planaria/core": Rule(CORE),
    "planaria/aws/crt.py": Rule(CORE | {"planaria.aws"}, frozenset({"awscrt"})),
    "planaria/aws/transfer.py": Rule(CORE | {"planaria.aws"}, frozenset({"awscrt"})),
    "planaria/aws": Rule(CORE | {"planaria.aws"}, LAMBDA),
    "planaria/schedulers": Rule(CORE | {"planaria.schedulers"}, LAMBDA),
    "planaria/memory": Rule(CORE | {"planaria.memory"}),
    "planaria/wiring.py": Rule(CORE | {"planaria.schedulers", "planaria.aws"}, LAMBDA),
    "planaria/recipes.py": Rule(CORE | RECIPES, SCHEMA),
    "planaria/recipe_checkpoints.py": Rule(CORE | RECIPES, SCHEMA),
    "planaria/recipe_file_systems.py": Rule(CORE | RECIPES, SCHEMA),
    "planaria/recipe_warnings.py": Rule(CORE | RECIPES),
    "planaria/recipe_errors.py": Rule(CORE, SCHEMA),
    "planaria/recipe_nodes.py": Rule(CORE | RECIPES, SCHEMA),
    "planaria/recipe_policy.py": Rule(CORE, SCHEMA),
    "planaria/offline_ledger.py": Rule(CORE | {"planaria.memory"}),
    "planaria/recording.py": Rule(CORE),
    "planaria/replay.py": Rule(CORE | {"planaria.offline_ledger", "planaria.recording"}),
    "planaria/triage_offline.py": Rule(CORE | {"planaria.offline_ledger", "planaria.recipes"}),
    "planaria/slurm": Rule(CORE | {"planaria.slurm"}),
    "planaria/node": Rule(
        CORE | {"planaria.aws", "planaria.checkpoint", "planaria.node"}, AWS_SDK | {"awscrt"}
    ),
    "planaria/checkpoint": Rule(CORE | {"planaria.checkpoint"}, AWS_SDK | {"awscrt", "torch"}),
    "planaria/elastic": Rule(CORE | {"planaria.elastic"}, frozenset({"torch"})),
    "planaria/sandbox": Rule(ANY, ANY),
    "planaria/cli": Rule(ANY, ANY),
}
OURS = ("app", "infra", "lambdas", "planaria", "benchmarks", "tests")

CAPPED = ("planaria/core", "lambdas", "infra")
CAP = 250
GENERATED = {"node_modules", "cdk.out", "build", "dist", "__pycache__"}
TEXT = {".py", ".md", ".toml", ".txt", ".json", ".yaml", ".yml", ".sh", ".cfg", ""}


def _sources() -> Iterator[Path]:
    for path in sorted(ROOT.rglob("*")):
        folders = path.relative_to(ROOT).parts[:-1]
        made = any(
            f in GENERATED or (f.startswith(".") and f != ".ci") or f.endswith(".egg-info") for f in folders
        )
        if path.is_file() and not made:
            yield path


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _rule(name: str) -> Rule | None:
    """The rule of a file: its own, else that of the package (or module) with its path's beginning."""
    for place, rule in RULES.items():
        if name == place or name == f"{place}.py" or name.startswith(f"{place}/"):
            return rule
    return None


def _imports(source: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything a module imports, also inside functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _refused(imported: str, rule: Rule) -> bool:
    top = imported.partition(".")[0]
    if top in OURS:
        allowed = rule.ours
        return not any(p == "*" or imported == p or imported.startswith(f"{p}.") for p in allowed)
    return top not in sys.stdlib_module_names and not rule.others & {"*", top}


GOVERNED = [
    _name(p) for p in _sources() if _name(p).startswith(("planaria/", "lambdas/", "infra/", "app.py"))
]
MODULES = [name for name in GOVERNED if name.endswith(".py")]


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_one_way(name: str) -> None:
    rule = _rule(name)
    assert rule is not None, f"{name} has no import rule: add it to RULES here and to docs/decisions/001"
    source = (ROOT / name).read_text(encoding="utf-8")
    wrong = [f"line {line}: {what}" for line, what in _imports(source) if _refused(what, rule)]
    assert not wrong, f"{name} may not import {wrong}"


@pytest.mark.parametrize("name", [m for m in MODULES if m.startswith(tuple(f"{c}/" for c in CAPPED))])
def test_files_stay_short(name: str) -> None:
    lines = len((ROOT / name).read_text(encoding="utf-8").splitlines())
    assert lines <= CAP, f"{name} has {lines} lines; split it, the cap is {CAP}"


def test_modules_say_what_they_hold() -> None:
    vague = re.compile(r"(^|_)(utils?|helpers?|managers?|misc|common)$")
    assert [m for m in MODULES if vague.search(Path(m).stem)] == []


def test_nothing_names_places_outside_the_repository() -> None:
    """Tests may read sample files that lie beside the repository, if they skip where there are none."""
    outside = re.compile(r"\.\./" + r"shared|(?<![\w./-])/" + r"work(?=[/\s\"'`]|$)", re.MULTILINE)
    found = []
    for path in _sources():
        if path.suffix not in TEXT or path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if outside.search(text) and not (_name(path).startswith("tests/") and "skip" in text):
            found.append(_name(path))
    assert found == []


def test_every_lambda_imports_with_boto3_layer_and_asset_alone(tmp_path: Path) -> None:
    from infra import assets

    files = sorted(p.stem for p in (ROOT / "lambdas").glob("*.py"))
    asset = tmp_path / "asset"
    assets.stage_code(ROOT, asset, tuple(files), {"name": "demo"})
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    provided = ("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "six", "urllib3")
    for package in (*provided, "aws_lambda_powertools", "typing_extensions"):
        found = importlib.util.find_spec(package)
        assert found is not None
        assert found.origin is not None
        origin = Path(found.origin)
        link = origin.parent if origin.name == "__init__.py" else origin
        (runtime / link.name).symlink_to(link)
    # Each import in a fork of its own: an import that works only after another one is a defect too.
    script = """
        import importlib, json, os, sys, traceback
        paths, names = json.loads(sys.argv[1])
        sys.path[:0] = paths
        import aws_lambda_powertools, boto3
        failed = {}
        for name in names:
            reading, writing = os.pipe()
            if os.fork() == 0:
                try:
                    importlib.import_module(name)
                except BaseException:
                    os.write(writing, traceback.format_exc()[-2000:].encode())
                os._exit(0)
            os.close(writing)
            os.wait()
            with os.fdopen(reading) as said:
                if error := said.read():
                    failed[name] = error
        print(json.dumps(failed))
    """
    names = ["lambdas" if name == "__init__" else f"lambdas.{name}" for name in files]
    arguments = json.dumps([[str(asset), str(runtime)], names])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", textwrap.dedent(script), arguments],
        env={},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}
