"""Cluster files: right ones become the document, wrong ones one sentence per problem."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from planaria.core.cluster import Cluster
from planaria.core.errors import InvalidInput
from planaria.recipes import ClusterFile

CLUSTERS = sorted((Path(__file__).parent.parent / "recipes" / "clusters").glob("*.yaml"))

GOOD: dict[str, Any] = {
    "name": "c",
    "region": "eu-west-1",
    "scheduler": "slurm",
    "node_groups": [
        {
            "name": "gpu",
            "size": 2,
            "launch": {
                "image": "ami-0123456789abcdef0",
                "subnets": ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"],
                "security_groups": ["sg-0123456789abcdef0"],
            },
            "offerings": [
                {"instance_type": "p5.48xlarge"},
                {"instance_type": "p5.48xlarge", "capacity": "spot", "subnet": "subnet-0123456789abcdef1"},
            ],
        }
    ],
}


def _changed(path: str, value: Any) -> dict[str, Any]:
    """GOOD with the value at a dotted path replaced; None removes it."""
    document: dict[str, Any] = yaml.safe_load(yaml.safe_dump(GOOD))
    target: Any = document
    *parents, last = path.split(".")
    for part in parents:
        target = target[int(part)] if part.isdigit() else target.setdefault(part, {})
    if value is None:
        del target[last]
    else:
        target[int(last) if last.isdigit() else last] = value
    return document


def _load(tmp_path: Path, content: Any) -> ClusterFile:
    file = tmp_path / "cluster.yaml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return ClusterFile.load(file)


@pytest.mark.parametrize("file", CLUSTERS, ids=lambda file: file.name)
def test_files_that_we_ship_load_and_are_understood_by_the_lambdas(file: Path) -> None:
    document = ClusterFile.load(file).document()
    cluster = Cluster.from_document(document)
    assert cluster.size == 4
    assert cluster.policy.mode.value == document["policy"]["mode"]
    (group,) = cluster.node_groups.values()
    assert group.launch_template == f"planaria-{document['name']}-workers"


def test_document(tmp_path: Path) -> None:
    document = _load(tmp_path, GOOD).document(0.5)
    assert document["version"] == 1
    assert document["scheduler"] == "slurm"
    assert document["time_scale"] == 0.5
    assert document["policy"] == {
        "mode": "act",
        "breaker": {"max_removals": 4, "max_share": 0.25, "window_seconds": 1800.0},
        "boot_timeout_seconds": 900.0,
        "drain_deadline_seconds": 300.0,
        "job_settle_seconds": 5.0,
        "max_attempts": 5,
        "max_resumes": 10,
        "resume_window_seconds": 1800.0,
        "rebalance": "checkpoint",
        "gpu_reset": False,
    }
    assert document["node_groups"] == [
        {
            "name": "gpu",
            "size": 2,
            "launch_template": "planaria-c-gpu",
            "offerings": [
                {
                    "instance_type": "p5.48xlarge",
                    "capacity": "on-demand",
                    "subnet": "subnet-0123456789abcdef0",
                },
                {"instance_type": "p5.48xlarge", "capacity": "spot", "subnet": "subnet-0123456789abcdef1"},
            ],
        }
    ]


def test_defaults_are_the_lambdas_defaults(tmp_path: Path) -> None:
    from planaria.core.policy import Policy

    assert Cluster.from_document(_load(tmp_path, GOOD).document()).policy == Policy.default()


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("name", None, "name: is missing."),
        (
            "name",
            "Demo",
            "name: must be 1 to 31 characters of a-z, 0-9 and -, with a letter first, not 'Demo'.",
        ),
        ("name", 7, "name: must be text, not 7 (put it in quotes)."),
        ("region", "us", "region: must be an AWS region such as us-east-1, not 'us'."),
        ("scheduler", "lsf", "scheduler: must be 'process', 'slurm' or 'eks', not 'lsf'."),
        ("extra", 1, "extra: is no known key."),
        ("policy.max_atempts", 3, "policy.max_atempts: is no known key (is max_attempts meant?)."),
        ("policy.mode", True, "policy.mode: must be 'act' or 'observe', not True."),
        ("policy.gpu_reset", "no", "policy.gpu_reset: must be true or false, not 'no'."),
        ("policy.max_attempts", 0, "policy.max_attempts: must be greater than or equal to 1, not 0."),
        ("policy.max_attempts", True, "policy.max_attempts: must be a whole number, not True."),
        ("policy.max_attempts", 2.5, "policy.max_attempts: must be a whole number, not 2.5."),
        ("policy.boot_timeout_minutes", "5", "policy.boot_timeout_minutes: must be a number, not '5'."),
        (
            "policy.breaker.max_share",
            1.5,
            "policy.breaker.max_share: must be less than or equal to 1, not 1.5.",
        ),
        ("policy", [], "policy: must be a mapping of keys."),
        ("node_groups", [], "node_groups: must list at least one entry."),
        ("node_groups", "gpu", "node_groups: must be a list."),
        ("node_groups.0.size", 0, "node_groups[0].size: must be greater than or equal to 1, not 0."),
        (
            "node_groups.0.launch.image",
            "ubuntu",
            "node_groups[0].launch.image: must be an image id such as ami-0123456789abcdef0, not 'ubuntu'.",
        ),
        (
            "node_groups.0.offerings.0.capacity",
            "cheap",
            "node_groups[0].offerings[0].capacity: must be 'on-demand' or 'spot', not 'cheap'.",
        ),
        (
            "node_groups.0.offerings.0.subnet",
            "subnet-0123456789abcdef9",
            "node_groups[0]: offerings name subnet-0123456789abcdef9, which launch.subnets does not list.",
        ),
    ],
)
def test_one_problem_is_one_sentence(tmp_path: Path, path: str, value: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        _load(tmp_path, _changed(path, value))
    assert str(refused.value) == f"{tmp_path / 'cluster.yaml'}: {sentence}"


def test_group_names_are_unique(tmp_path: Path) -> None:
    twice = {**GOOD, "node_groups": GOOD["node_groups"] * 2}
    with pytest.raises(InvalidInput, match="node_groups has two groups named gpu"):
        _load(tmp_path, twice)


def test_every_problem_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as refused:
        _load(tmp_path, {**_changed("name", "X"), "region": "x", "more": 1})
    assert len(str(refused.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "must be a mapping with the keys"),
        ("- 1\n", "must be a mapping with the keys"),
        ("a: [\n", "line 2:"),
        ("a: 1\nb: 2\na: 3\n", "line 3: the key a stands there twice."),
        ("? [a]\n: b\n", "line 1:"),
        ("a: !!python/object/apply:os.system [ls]\n", "line 1: could not determine a constructor"),
    ],
)
def test_no_yaml_or_no_mapping(tmp_path: Path, content: str, sentence: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        _load(tmp_path, content)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"none\.yaml: cannot be read \(No such file or directory\)\."):
        ClusterFile.load(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match=r"is not text in UTF-8\."):
        ClusterFile.load(tmp_path / "bytes.yaml")
