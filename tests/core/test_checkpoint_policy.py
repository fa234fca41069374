"""Where a directory lies: its file system, its association, its place in S3."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planaria.core.checkpoint_policy import (
    Association,
    Checkpoints,
    FileSystem,
    Retention,
    overlapping,
)
from planaria.core.errors import InvalidInput
from planaria.core.saved_step import Tier

OWN = Association("/checkpoints/", "s3://bucket/checkpoints/")
DATA = Association("/data/sets/", "s3://data/", ("NEW",))
FSX = FileSystem("scratch", "fs-1", "/fsx", "us-east-1a", (OWN, DATA))
INNER = FileSystem("inner", "fs-2", "/fsx/inner", "us-east-1a", (Association("/", "s3://inner/"),))
BOTH = Checkpoints((FSX, INNER))


@pytest.mark.parametrize(
    ("directory", "name", "path", "url"),
    [
        ("/fsx/checkpoints/gpt", "scratch", "checkpoints/gpt", "s3://bucket/checkpoints/gpt"),
        ("/fsx/checkpoints/gpt/", "scratch", "checkpoints/gpt", "s3://bucket/checkpoints/gpt"),
        ("/fsx/checkpoints", "scratch", "checkpoints", "s3://bucket/checkpoints"),
        ("/fsx/checkpoints-old/gpt", "scratch", "checkpoints-old/gpt", ""),
        ("/fsx/data/sets/a b", "scratch", "data/sets/a b", "s3://data/a b"),
        ("/fsx/data", "scratch", "data", ""),
        ("/fsx", "scratch", "", ""),
        ("/fsx/inner/run", "inner", "run", "s3://inner/run"),
        ("/fsx/inner", "inner", "", "s3://inner"),
    ],
)
def test_a_directory_lies_on_the_innermost_file_system(
    directory: str, name: str, path: str, url: str
) -> None:
    place = BOTH.place(directory)
    assert place is not None
    assert (place.file_system.name, place.path, place.url) == (name, path, url)
    assert (place.association is not None) == bool(url)


@pytest.mark.parametrize("directory", ["/fsx2/run", "/home/user", "fsx/run", "/fsx/../etc", "", "/"])
def test_what_lies_elsewhere_has_no_place(directory: str) -> None:
    assert BOTH.place(directory) is None


NAMES = st.lists(st.text("ab .ü-", min_size=1).filter(lambda t: t.strip(".") != ""), min_size=1, max_size=4)


@given(NAMES)
def test_there_and_back_is_the_same_path(parts: list[str]) -> None:
    path = "checkpoints/" + "/".join(parts)
    url = OWN.url(path)
    assert OWN.holds(path) and OWN.holds_url(url) and OWN.path(url) == path
    assert FSX.of_url(url) is OWN
    assert FSX.path(FSX.directory(path)) == path


def test_reports_lie_in_the_repository() -> None:
    assert OWN.reports == "s3://bucket/checkpoints/.planaria-reports"
    assert OWN.holds_url(OWN.reports)


def test_what_only_a_deployment_knows_is_filled_in() -> None:
    made = replace(FSX, id="", associations=(replace(OWN, data_repository_path="checkpoints/a/"), DATA))
    known = Checkpoints((made, INNER)).resolved("own-bucket", {"scratch": "fs-9", "inner": "fs-8"})
    assert [each.id for each in known.file_systems] == ["fs-9", "fs-2"]
    assert [a.data_repository_path for a in known.file_systems[0].associations] == [
        "s3://own-bucket/checkpoints/a/",
        "s3://data/",
    ]
    assert known.file_system("fs-9").name == "scratch"
    with pytest.raises(InvalidInput, match=r"'fs-7' is not in the cluster file \(it has: fs-9, fs-2\)"):
        known.file_system("fs-7")


def test_paths_of_which_one_holds_the_other() -> None:
    assert overlapping(["/a/", "/b/", "/ab/"]) is None
    assert overlapping(["/b/", "/a/", "/a/c/d/"]) == ("/a/", "/a/c/d/")
    assert overlapping(["/a/", "/a/"]) == ("/a/", "/a/")
    assert overlapping(["/z/", "/"]) == ("/", "/z/")


@given(st.lists(st.sampled_from(["/", "/a/", "/a/b/", "/ab/", "/b/", "/a/bc/"]), max_size=5))
def test_overlaps_are_found_whatever_the_order(paths: list[str]) -> None:
    pairs = [(x, y) for i, x in enumerate(paths) for j, y in enumerate(paths) if i != j and y.startswith(x)]
    found = overlapping(paths)
    assert (found is not None) == bool(pairs) and (found is None or found in pairs)


def test_the_document_is_read() -> None:
    document: dict[str, Any] = {
        "file_systems": [
            {
                "name": "scratch", "id": "fs-1", "mount": "/fsx", "zone": "us-east-1a",
                "associations": [
                    {"file_system_path": "/checkpoints/", "data_repository_path": "s3://bucket/checkpoints/"},
                    {"file_system_path": "/data/sets/", "data_repository_path": "s3://data/",
                     "auto_export": ["NEW"]},
                ],
            }
        ],
        "retention": {"s3": {"keep": 3, "keep_seconds": 60, "keep_every": 10, "keep_tags": ["a"]}},
        "sync_seconds": 1, "bandwidth_share": 0.25, "sweep_seconds": 2, "rpo_seconds": 3, "of_tomorrow": {},
    }  # fmt: skip
    read = Checkpoints.from_document(document)
    assert read == Checkpoints((FSX,), {Tier.S3: Retention(3, 60.0, 10, ("a",))}, 1.0, 0.25, 2.0, 3.0)
    assert Checkpoints.from_document({}) == Checkpoints()


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"bandwidth_share": 0}, "bandwidth_share must be above 0"),
        ({"bandwidth_share": 1.5}, "bandwidth_share must be above 0 and at most 1"),
        ({"sync_seconds": "soon"}, "sync_seconds must be a number"),
        ({"rpo_seconds": float("nan")}, "rpo_seconds must be a number"),
        ({"retention": {"tape": {"keep": 1}}}, "retention has 'tape', it may have: memory, peer, fsx, s3"),
        ({"retention": {"s3": {"keep": 0}}}, "keep must be a whole number of at least 1, not 0"),
        ({"retention": {"s3": {}}}, "keep must be a whole number of at least 1, not None"),
    ],
)
def test_a_document_that_is_wrong_is_named(document: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        Checkpoints.from_document(document)
