"""The section `checkpoints` of a cluster file: what is refused, in which words, and what the Lambdas read."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planaria.core.checkpoint_policy import Checkpoints, Retention
from planaria.core.errors import InvalidInput
from planaria.core.saved_step import Tier
from planaria.recipes import ClusterFile

FILE = """
name: demo
region: us-east-1
scheduler: process
checkpoints:
  file_systems:
    - name: scratch
      mount: /fsx
      zone: us-east-1a
      create:
        vpc: vpc-00000000000000001
        subnet: subnet-00000000000000001
        storage_gib: 4800
      associations:
        - {file_system_path: /checkpoints, data_repository_path: checkpoints}
        - {file_system_path: /data, data_repository_path: s3://data/v1, auto_export: [NEW]}
    - {name: old, id: fs-0123456789abcdef0, mount: /old, zone: us-east-1b}
  retention:
    s3: {keep: 10, keep_hours: 2}
node_groups:
  - name: workers
    size: 4
    launch:
      image: ami-00000000000000001
      subnets: [subnet-00000000000000001, subnet-00000000000000002]
      zones: {subnet-00000000000000001: us-east-1a, subnet-00000000000000002: us-east-1c}
      security_groups: [sg-00000000000000001]
    offerings:
      - {instance_type: p5.48xlarge}
"""
CREATE = "storage_gib: 4800"
LINK = "{file_system_path: /data, data_repository_path: s3://data/v1, auto_export: [NEW]}"


def load(tmp_path: Path, *changes: tuple[str, str]) -> ClusterFile:
    content = FILE
    for old, new in changes:
        assert old in content
        content = content.replace(old, new, 1)
    (tmp_path / "cluster.yaml").write_text(content)
    return ClusterFile.load(tmp_path / "cluster.yaml")


def test_the_lambdas_read_what_the_file_says(tmp_path: Path) -> None:
    document = load(tmp_path).document(0.5)
    read = Checkpoints.from_document(document["checkpoints"])
    scratch, old = read.file_systems
    assert (scratch.name, scratch.id, scratch.mount, scratch.zone) == ("scratch", "", "/fsx", "us-east-1a")
    assert [(a.file_system_path, a.data_repository_path, a.auto_export) for a in scratch.associations] == [
        ("/checkpoints/", "checkpoints/", ()),
        ("/data/", "s3://data/v1/", ("NEW",)),
    ]
    assert (old.id, old.associations) == ("fs-0123456789abcdef0", ())
    assert read.retention == {Tier.S3: Retention(10, 3600.0)}, "what is not named keeps everything"
    assert (read.sync_seconds, read.sweep_seconds, read.rpo_seconds) == (300.0, 43_200.0, 1800.0)
    place = read.resolved("bucket", {"scratch": "fs-1"}).place("/fsx/checkpoints/gpt")
    assert place is not None and (place.file_system.id, place.url) == ("fs-1", "s3://bucket/checkpoints/gpt")


def test_without_the_section_there_is_none(tmp_path: Path) -> None:
    start, end = FILE.index("checkpoints:"), FILE.index("node_groups:")
    (tmp_path / "cluster.yaml").write_text(FILE[:start] + FILE[end:])
    document = ClusterFile.load(tmp_path / "cluster.yaml").document()
    assert document["checkpoints"] is None and document["file_system_zone"] == ""


def test_one_zone_of_file_systems_is_where_replacements_should_be(tmp_path: Path) -> None:
    assert load(tmp_path).document()["file_system_zone"] == "", "two zones"
    assert load(tmp_path, ("us-east-1b", "us-east-1a")).document()["file_system_zone"] == "us-east-1a"


def test_other_zones_are_warned_of(tmp_path: Path) -> None:
    other = ("- {instance_type: p5.48xlarge}", """- {instance_type: p5.48xlarge}
      - {instance_type: p5.48xlarge, subnet: subnet-00000000000000002}""")  # fmt: skip
    (warning,) = load(tmp_path, other).warnings()
    assert (
        "offering 2 launches in us-east-1c, but the file system scratch or old lies in us-east-1a" in warning
    )
    assert load(tmp_path).warnings() == []
    (warning,) = load(tmp_path, (CREATE, f"{CREATE}\n        efa: true\n        throughput: 1000")).warnings()
    assert "scratch: it has EFA, but no node group has (launch.efa)" in warning


EIGHT = "\n".join(
    f"        - {{file_system_path: /d{i}, data_repository_path: checkpoints/d{i}}}" for i in range(9)
)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        # zones
        ("zone: us-east-1a", "zone: us-east-1d", "its subnet subnet-00000000000000001 lies in us-east-1a"),
        ("zone: us-east-1a", "zone: us-west-2a", "zone us-west-2a is not in region us-east-1"),
        (
            "- {instance_type: p5.48xlarge}",
            "- {instance_type: p5.48xlarge, subnet: subnet-00000000000000002}",
            "node_groups workers launches only in us-east-1c: put both into one Availability Zone",
        ),
        (
            "{subnet-00000000000000001: us-east-1a, ",
            "{",
            "launch.zones of node_groups workers must name the zone of each subnet",
        ),
        (
            "zone: us-east-1a",
            "zone: here",
            "zone: must be an Availability Zone such as us-east-1a, not 'here'",
        ),
        # associations
        (f"        - {LINK}", EIGHT, "associations: must list at most 8 entries, not 10"),
        ("/data,", "/checkpoints/x,", "overlap in the file system: /checkpoints/ and /checkpoints/x/"),
        ("/data,", "/,", "overlap in the file system: / and /checkpoints/"),
        ("s3://data/v1", "checkpoints/x", "overlap in S3: checkpoints/ and checkpoints/x/"),
        ("s3://data/v1", "other", "must be checkpoints or below it"),
        ("s3://data/v1", "s3://data/../v1", "must be a plain path without .. and //"),
        ("/data,", "/da//ta,", "must be a plain path without .. and //"),
        (
            "/data,",
            "data,",
            "file_system_path: must be a path from the root, such as /checkpoints, not 'data'",
        ),
        ("[NEW]", "[NEW, DELETED]", "auto_export: takes NEW and CHANGED, not DELETED"),
        ("[NEW]", "[new]", "must be 'NEW' or 'CHANGED', not 'new'"),
        (
            CREATE,
            "storage_gib: 3600\n        deployment: SCRATCH_1",
            "associations need deployment PERSISTENT_2, PERSISTENT_1 or SCRATCH_2, not SCRATCH_1",
        ),
        # file systems
        (CREATE, "storage_gib: 1000", "storage_gib: must be greater than or equal to 1200"),
        (CREATE, "storage_gib: 3000", "storage_gib must be 1200, 2400 or a multiple of 2400, not 3000"),
        (CREATE, f"{CREATE}\n        throughput: 200", "must be one of 125, 250, 500, 1000, not 200"),
        (
            CREATE,
            f"{CREATE}\n        deployment: SCRATCH_2\n        throughput: 200",
            "throughput of SCRATCH_2 is fixed, not 200",
        ),
        (CREATE, f"{CREATE}\n        metadata_iops: 2000", "must be 1500, 3000, 6000 or a multiple of 12000"),
        (
            CREATE,
            f"{CREATE}\n        deployment: PERSISTENT_1\n        metadata_iops: 3000",
            "efa and metadata_iops need deployment PERSISTENT_2, not PERSISTENT_1",
        ),
        (
            CREATE,
            f"{CREATE}\n        efa: true",
            "EFA and throughput 250 must be a multiple of 19200, not 4800",
        ),
        ("id: fs-0123456789abcdef0, ", "", "must have id (of one that is there) or create"),
        ("name: old", "name: scratch", "two file systems have the name scratch"),
        ("mount: /old", "mount: /fsx", "two file systems have the mount /fsx"),
        ("mount: /old", "mount: /", "mount must be a directory such as /fsx, not '/'"),
        ("fs-0123456789abcdef0", "fsx-1", "must be a file system id such as fs-0123456789abcdef0"),
        ("vpc-00000000000000001", "vpc-x", "must be a VPC id such as vpc-0123456789abcdef0, not 'vpc-x'"),
        (CREATE, f"{CREATE}\n        maintenance: sunday", "must be a weekday (1 is Monday) and a time"),
        (CREATE, f"{CREATE}\n        make_associations: true", "create.make_associations: is no known key"),
        # the rest
        ("keep: 10, ", "", "retention.s3.keep: is missing"),
        ("keep: 10", "keep: 0", "retention.s3.keep: must be greater than or equal to 1, not 0"),
        ("keep_hours: 2", "keep_hour: 2", "keep_hour: is no known key (is keep_hours meant?)"),
        ("keep_hours: 2", "keep_tags: [a b]", "must be a tag of 1 to 63 characters"),
        (
            "  retention:",
            "  rpo_minutes: 5\n  retention:",
            "rpo_minutes (5) must be at least sync_minutes (10)",
        ),
        ("  retention:", "  bandwidth_share: 0\n  retention:", "bandwidth_share: must be greater than 0"),
        (
            "  retention:",
            "  replication: {bucket: Mine, region: eu-west-1}\n  retention:",
            "replication.bucket: must be the name of a bucket, not 'Mine'",
        ),
        (
            "  retention:",
            "  replication: {bucket: mine, region: us-east-1}\n  retention:",
            "replication: the bucket mine must be in another region than the cluster's, not in us-east-1",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence_with_key_value_and_rule(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        load(tmp_path, (old, new))
    message = str(refused.value)
    assert says in message, message
    assert "Traceback" not in message and message.endswith(".")


def test_a_repository_has_one_file_system(tmp_path: Path) -> None:
    """Two would write over each other's objects."""
    old = "{name: old, id: fs-0123456789abcdef0, mount: /old, zone: us-east-1b}"
    both = old[:-1] + ", associations: [{data_repository_path: s3://data}]}"
    with pytest.raises(
        InvalidInput, match="the associations of two file systems overlap in S3: s3://data/ and"
    ):
        load(tmp_path, (old, both))


EXAMPLE = Path(__file__).resolve().parents[1] / "recipes/clusters/example.yaml"


def test_the_examples_own_section_is_right(tmp_path: Path) -> None:
    """It stands there as comments, and with it the zones of the subnets."""
    lines = EXAMPLE.read_text().splitlines()
    start = lines.index("# checkpoints:")
    end = next(i for i in range(start, len(lines)) if not lines[i].startswith("#"))
    used = [line.removeprefix("# ") for line in lines[start:end]]
    zones = "zones: {subnet-0123456789abcdef0: us-east-1a, subnet-0fedcba9876543210: us-east-1b}"
    rest = [line.replace("# zones:", f"{zones}  #") for line in lines[:start] + lines[end:]]
    (tmp_path / "cluster.yaml").write_text("\n".join([*used, *rest]))
    section = ClusterFile.load(tmp_path / "cluster.yaml").checkpoints
    assert section is not None
    (scratch,) = section.file_systems
    assert scratch.create is not None and scratch.create.efa and len(scratch.associations) == 1


CONTENT: dict[str, Any] = yaml.safe_load(FILE)
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 10**20)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["/", "//", "/fsx/../x", "s3://", "s3://b", "checkpoints/", "..", "NEW", "us-east-1a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of the section, its inner mappings and lists included."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


PLACES = list(places(CONTENT["checkpoints"]))


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.sampled_from(PLACES), JUNK)
def test_whatever_stands_anywhere_is_taken_or_refused_in_words(
    tmp_path: Path, place: tuple[Any, ...], junk: Any
) -> None:
    content = copy.deepcopy(CONTENT)
    at, *rest = "checkpoints", *place
    holder: Any = content
    for key in rest:
        holder, at = holder[at], key
    holder[at] = junk
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(content, allow_unicode=True))
    try:
        document = ClusterFile.load(tmp_path / "cluster.yaml").document()
    except InvalidInput as refused:
        assert str(refused).startswith(str(tmp_path))
    else:
        if document["checkpoints"] is not None:
            Checkpoints.from_document(document["checkpoints"])
