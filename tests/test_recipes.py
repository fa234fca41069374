"""Cluster files: right ones become the document, wrong ones one sentence per problem."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from planaria.core import catalog
from planaria.core.cluster import Cluster, Eks, Slurm
from planaria.core.errors import InvalidInput
from planaria.core.overrides import _NO_FAULTS
from planaria.recipes import ClusterFile, Policy

CLUSTERS = sorted((Path(__file__).parent.parent / "recipes" / "clusters").glob("*.yaml"))

GOOD: dict[str, Any] = {
    "name": "c",
    "region": "eu-west-1",
    "scheduler": "slurm",
    "slurm": {"head_node": "i-0123456789abcdef0"},
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
    assert document["slurm"] == {"head_node": "i-0123456789abcdef0", "topology": "none"}
    assert document["eks"] is None
    assert document["time_scale"] == 0.5
    assert document["policy"] == {
        "mode": "act",
        "breaker": {
            "max_removals": 4,
            "max_share": 0.25,
            "window_seconds": 1800.0,
            "max_per_detector": None,
        },
        "boot_timeout_seconds": 900.0,
        "drain_deadline_seconds": 300.0,
        "job_settle_seconds": 5.0,
        "max_attempts": 5,
        "max_resumes": 10,
        "resume_window_seconds": 1800.0,
        "rebalance": "checkpoint",
        "gpu_reset": False,
        "approval_timeout_seconds": 1800.0,
        "boot_grace_seconds": 150.0,
        "confirmation_seconds": 450.0,
        "ladder_seconds": 43200.0,
        "offender_incidents": 3,
        "offender_seconds": 302400.0,
        "max_replacements": 3,
        "replacements_seconds": 43200.0,
        "escalate_to": "REPLACE",
        "reset_timeout_seconds": 150.0,
        "deep_check": "auto",
        "deep_check_timeout_seconds": 4500.0,
        "drain": "checkpoint",
        "unused_replacement": "terminate",
        "gang": "keep",
        "capacity_timeout_seconds": 302400.0,
        "cooldown_seconds": 300.0,
        "hold_seconds": 1800.0,
        "rebalance_rounds": 2,
        "rebalance_grace_seconds": 1800.0,
        "lead_seconds": 43200.0,
        "spare_check_seconds": 1800.0,
        "maintenance": [],
        "catalog": [],
    }
    assert document["node_groups"] == [
        {
            "name": "gpu",
            "size": 2,
            "spares": 0,
            "auto_scaling_group": "",
            "placement_group": False,
            "launch_template": "planaria-c-gpu",
            "offerings": [
                {
                    "instance_type": "p5.48xlarge",
                    "capacity": "on-demand",
                    "subnet": "subnet-0123456789abcdef0",
                    "zone": "",
                    "reservation": "",
                    "placement_group": False,
                    "launch_template": "",
                },
                {
                    "instance_type": "p5.48xlarge",
                    "capacity": "spot",
                    "subnet": "subnet-0123456789abcdef1",
                    "zone": "",
                    "reservation": "",
                    "placement_group": False,
                    "launch_template": "",
                },
            ],
        }
    ]


def test_schedulers_are_understood_by_the_lambdas(tmp_path: Path) -> None:
    slurm = Cluster.from_document(_load(tmp_path, GOOD).document())
    assert (slurm.slurm, slurm.eks) == (Slurm("i-0123456789abcdef0", "none"), None)
    document = _changed("slurm", None) | {"scheduler": "eks", "eks": {"cluster": "c"}}
    eks = Cluster.from_document(_load(tmp_path, document).document())
    assert (eks.slurm, eks.eks) == (None, Eks("c", ("default",)))


def test_an_auto_scaling_group_has_its_own_placement_group(tmp_path: Path) -> None:
    content = _changed("node_groups.0.placement_group", True)
    assert _load(tmp_path, content).document()["node_groups"][0]["placement_group"] is True
    content["node_groups"][0]["auto_scaling_group"] = "asg"
    with pytest.raises(InvalidInput, match="is set in an Auto Scaling group's own launch template"):
        _load(tmp_path, content)


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
        (
            "slurm",
            None,
            "scheduler slurm needs the section slurm, such as slurm: {head_node: i-0123456789abcdef0}.",
        ),
        (
            "scheduler",
            "eks",
            "scheduler eks needs the section eks, such as eks: {cluster: my-cluster, namespaces: [default]}.",
        ),
        ("scheduler", "process", "the section slurm is only for scheduler slurm."),
        ("eks", {"cluster": "c"}, "the section eks is only for scheduler eks."),
        ("slurm", {}, "slurm.head_node: is missing."),
        (
            "slurm.head_node",
            "head",
            "slurm.head_node: must be an instance id such as i-0123456789abcdef0, not 'head'.",
        ),
        ("slurm.topology", "block", "slurm.topology: must be 'none' or 'tree', not 'block'."),
        ("slurm.headnode", "i-1", "slurm.headnode: is no known key (is head_node meant?)."),
        ("eks", {"cluster": "-c"}, "eks.cluster: must be the name of an EKS cluster, not '-c'."),
        (
            "eks",
            {"cluster": "c", "namespaces": ["Team"]},
            "eks.namespaces[0]: must be a namespace such as team-a, not 'Team'.",
        ),
        ("eks", {"cluster": "c", "namespaces": []}, "eks.namespaces: must list at least one entry."),
        ("extra", 1, "extra: is no known key."),
        ("policy.max_atempts", 3, "policy.max_atempts: is no known key (is max_attempts meant?)."),
        ("policy.mode", True, "policy.mode: must be 'act', 'approve' or 'observe', not True."),
        ("policy.gpu_reset", "no", "policy.gpu_reset: must be true or false, not 'no'."),
        (
            "policy.approval_timeout_minutes",
            721,
            "policy.approval_timeout_minutes: must be less than or equal to 720, not 721.",
        ),
        ("policy.ladder_hours", 0, "policy.ladder_hours: must be greater than 0, not 0."),
        ("policy.offender_incidents", 1.5, "policy.offender_incidents: must be a whole number, not 1.5."),
        (
            "policy.max_replacments",
            2,
            "policy.max_replacments: is no known key (is max_replacements meant?).",
        ),
        ("policy.maintenance", {}, "policy.maintenance: must be a list."),
        ("policy.maintenance", ["sun"], "policy.maintenance[0]: must be a mapping of keys."),
        (
            "policy.maintenance",
            [{"weekly": "sun 02:00"}],
            "policy.maintenance[0]: must have start and end, or weekly and hours.",
        ),
        (
            "policy.maintenance",
            [{"weekly": "sunday", "hours": 4}],
            (
                "policy.maintenance[0]: weekly must be a day and a time in UTC such as 'sun 02:00', "
                "not 'sunday'."
            ),
        ),
        (
            "policy.maintenance",
            [{"start": "2026-12-24T18:00:00Z", "end": "2026-12-24T17:00:00Z"}],
            "policy.maintenance[0]: end must be later than its start.",
        ),
        (
            "policy.maintenance",
            [{"start": 20261224, "end": "2026-12-24T17:00:00Z"}],
            "policy.maintenance[0].start: must be a time such as 2026-12-24T18:00:00Z, not 20261224.",
        ),
        (
            "policy.maintenance",
            [{"weekly": "sun 02:00", "hours": 169}],
            "policy.maintenance[0].hours: must be less than or equal to 168, not 169.",
        ),
        (
            "policy.maintenance",
            [{"weekly": "sun 02:00", "hours": 4, "node_group": ["gpu"]}],
            "policy.maintenance[0].node_group: is no known key (is node_groups meant?).",
        ),
        (
            "policy.catalog",
            [{"kind": "xid", "code": "63", "action": "reboot", "reason": "r"}],
            (
                "policy.catalog[0].action: must be 'MONITOR', 'RESET', 'REBOOT', 'DRAIN' or 'REPLACE', "
                "not 'reboot'."
            ),
        ),
        (
            "policy.catalog",
            [{"kind": "xdi", "code": "63", "action": "REBOOT", "reason": "r"}],
            "policy.catalog[0]: kind 'xdi' is not in the catalogue (is xid meant?).",
        ),
        (
            "policy.catalog",
            [{"kind": "gpu_ecc", "code": "volatile_uncorectable", "action": "REPLACE", "reason": "r"}],
            (
                "policy.catalog[0]: code 'volatile_uncorectable' is no gpu_ecc of the catalogue "
                "(is volatile_uncorrectable meant?)."
            ),
        ),
        (
            "policy.catalog",
            [{"kind": "spot_interruption", "code": "stop", "action": "MONITOR", "reason": "r"}],
            (
                "policy.catalog[0]: action must be DRAIN or REPLACE for spot_interruption stop, not MONITOR: "
                "AWS takes the instance anyway, and its job would be left without a node."
            ),
        ),
        (
            "policy.catalog",
            [{"kind": "xid", "code": "63", "action": "REBOOT"}],
            "policy.catalog[0].reason: is missing.",
        ),
        (
            "policy.catalog",
            [{"kind": "xid", "code": True, "action": "REBOOT", "reason": "r"}],
            "policy.catalog[0].code: must be text, not True (put it in quotes).",
        ),
        (
            "policy.catalog",
            [{"kind": "xid", "code": "63", "action": "REBOOT", "reason": "r", "families": ["P5"]}],
            "policy.catalog[0].families[0]: must be an instance family such as p5, not 'P5'.",
        ),
        (
            "policy.catalog",
            [{"kind": "xid", "code": "63", "action": "REBOOT", "reason": ""}],
            "policy.catalog[0].reason: must not be empty.",
        ),
        (
            "policy.catalog",
            [{"kind": "xid", "code": "63", "action": "REBOOT", "reason": "r" * 301}],
            "policy.catalog[0].reason: must have at most 300 characters, not 301.",
        ),
        ("node_groups.0.launch.key", "", "node_groups[0].launch.key: must not be empty."),
        ("policy.bogus", 1, "policy.bogus: is no known key."),
        (
            "policy.catalog",
            [{"kind": "bogus", "code": "63", "action": "REBOOT", "reason": "r"}],
            (
                "policy.catalog[0]: kind 'bogus' is not in the catalogue (it has: "
                + ", ".join(sorted(catalog.kinds() - _NO_FAULTS))
                + ")."
            ),
        ),
        (
            "policy.catalog",
            [{"kind": "state_change", "code": "*", "action": "REPLACE", "reason": "r"}],
            (
                "policy.catalog[0]: code must name what it answers to, not '*': AWS ends these nodes anyway; "
                "write stopping, stopped, shutting-down or terminated, one entry for each."
            ),
        ),
        ("policy.max_attempts", 0, "policy.max_attempts: must be greater than or equal to 1, not 0."),
        ("policy.max_attempts", True, "policy.max_attempts: must be a whole number, not True."),
        ("policy.max_attempts", 2.5, "policy.max_attempts: must be a whole number, not 2.5."),
        ("policy.boot_timeout_minutes", "5", "policy.boot_timeout_minutes: must be a number, not '5'."),
        (
            "policy.breaker.max_share",
            1.5,
            "policy.breaker.max_share: must be less than or equal to 1, not 1.5.",
        ),
        (
            "policy.breaker",
            {"max_removals": 2, "max_per_detector": 3},
            "policy.breaker: max_per_detector must be at most max_removals (2), not 3.",
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
            (
                "node_groups[0].offerings[0].capacity: must be 'spare', 'reservation', 'capacity-block', "
                "'on-demand' or 'spot', not 'cheap'."
            ),
        ),
        (
            "node_groups.0.offerings.0.subnet",
            "subnet-0123456789abcdef9",
            "node_groups[0]: offerings name subnet-0123456789abcdef9, which launch.subnets does not list.",
        ),
        (
            "node_groups.0.offerings.0.placement_group",
            True,
            "node_groups[0].offerings[0]: placement_group is for capacity reservation, not on-demand.",
        ),
        (
            "node_groups.0.offerings.0",
            {
                "instance_type": "p5.48xlarge",
                "capacity": "reservation",
                "reservation": "cr-0123456789abcdef0",
                "placement_group": True,
            },
            (
                "node_groups[0]: the offering of cr-0123456789abcdef0 lies in a placement group, but the "
                "node group has none (placement_group: true)."
            ),
        ),
    ],
)
def test_one_problem_is_one_sentence(tmp_path: Path, path: str, value: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        _load(tmp_path, _changed(path, value))
    assert str(refused.value) == f"{tmp_path / 'cluster.yaml'}: {sentence}"


def test_maintenance_and_catalog_are_understood_by_the_lambdas(tmp_path: Path) -> None:
    content = _changed(
        "policy",
        {
            "mode": "approve",
            "maintenance": [
                {"weekly": "sun 02:00", "hours": 4, "reason": "patches", "node_groups": ["gpu"]},
                {"start": "2026-12-24T19:00:00+01:00", "end": "2026-12-27T06:00:00Z"},
            ],
            "catalog": [
                {"kind": "xid", "code": 94, "action": "RESET", "reason": "recurs", "families": ["p5", "p4d"]},
                {"kind": "xid", "code": "9999", "action": "REBOOT", "reason": "a new driver's"},
            ],
        },
    )
    policy = Cluster.from_document(_load(tmp_path, content).document(0.1)).policy
    weekly, once = policy.maintenance
    assert (weekly.weekly, weekly.end - weekly.start, weekly.groups) == (True, 4 * 3600.0, ("gpu",))
    assert once.end - once.start == 60 * 3600.0
    assert [(one.kind, one.code, one.action.value, one.families) for one in policy.catalog] == [
        ("xid", "94", "RESET", ("p5", "p4d")),
        ("xid", "9999", "REBOOT", ()),
    ]


def test_times_of_yaml_are_times(tmp_path: Path) -> None:
    text = yaml.safe_dump(GOOD) + (
        "policy:\n  maintenance:\n    - {start: 2026-12-24T18:00:00Z, end: 2026-12-25}\n"
    )
    (window,) = Cluster.from_document(_load(tmp_path, text).document()).policy.maintenance
    assert (window.start, window.end - window.start) == (1_798_135_200.0, 6 * 3600.0)


def test_what_the_example_shows_in_comments_is_right(tmp_path: Path) -> None:
    lines = (CLUSTERS[0].parent / "example.yaml").read_text().splitlines()
    shown = [line.replace("#  -", "   -") for line in lines]
    text = "\n".join(shown).replace("maintenance: []", "maintenance:").replace("catalog: []", "catalog:")
    policy = _load(tmp_path, text).policy
    assert (len(policy.maintenance), len(policy.catalog)) == (2, 2)


def test_the_example_shows_every_key_of_a_policy_with_its_default() -> None:
    written = yaml.safe_load((CLUSTERS[0].parent / "example.yaml").read_text())["policy"]
    defaults = yaml.safe_load(Policy().model_dump_json())
    assert set(written) == set(defaults)
    assert {**written, "mode": "act"} == defaults


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (
            {"maintenance": [{"weekly": "sun 02:00", "hours": 4, "node_groups": ["cpu"]}]},
            "policy.maintenance names the node group cpu, but it has: gpu.",
        ),
        (
            {"catalog": [{"kind": "xid", "code": 94, "action": "RESET", "reason": "r", "families": ["p55"]}]},
            "policy.catalog has an answer to xid 94 for p55, but the offerings are of: p5.",
        ),
        (
            {"catalog": [{"kind": "xid", "code": 94, "action": "RESET", "reason": "r"}] * 2},
            "policy.catalog has an answer to xid 94 twice.",
        ),
        (
            {
                "catalog": [
                    {"kind": "xid", "code": "*", "action": "MONITOR", "reason": "r"},
                    {"kind": "xid", "code": 79, "action": "REPLACE", "reason": "r"},
                ]
            },
            (
                "policy.catalog[1]: xid 79 is never reached, for policy.catalog[0], xid *, answers all of it "
                "before; put the narrower one first, or leave one out."
            ),
        ),
    ],
)
def test_what_can_never_be_meant_is_refused(tmp_path: Path, policy: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        _load(tmp_path, _changed("policy", policy))
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
