"""The manifest's file: the same bytes for the same step, and one sentence for whatever else is in it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planaria.core.errors import InvalidInput
from planaria.core.manifest import Format, Lineage, Manifest, Shard, digest, encoded, is_plain

CRC = encoded(0xAE8B14860A799888)
"""Of "123456789": the check value of CRC-64/NVME."""
STEP = Manifest(
    500,
    Lineage("train", 2, 400),
    8,
    Format.DCP,
    (Shard("b ü", 3, CRC), Shard("a/b", 0, CRC)),
    1.5,
    {"torch": "2"},
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def changed(**facts: Any) -> bytes:
    return json.dumps(json.loads(STEP.to_json()) | facts).encode()


def test_it_comes_back_with_its_shards_in_order() -> None:
    there = Manifest.from_json(STEP.to_json())
    assert there.shards == (Shard("a/b", 0, CRC), Shard("b ü", 3, CRC))
    assert (there.lineage, there.size, there.framework) == (Lineage("train", 2, 400), 3, {"torch": "2"})
    assert there.to_json() == STEP.to_json()
    assert digest(there.to_json()) == digest(STEP.to_json())


def test_a_checksum_is_written_as_s3_writes_it() -> None:
    assert CRC == "rosUhgp5mIg="


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "it is no JSON"),
        (b"[]", "it is no JSON object"),
        (b"{}", "it has no 'version'"),
        (changed(version=2), "it has version 2, this release reads 1"),
        (changed(step=-1), "step is -1"),
        (changed(step=True), "step is True"),
        (changed(step=1.0), "step is 1.0"),
        (changed(world_size=None), "world_size is None"),
        (changed(format="zip"), "'zip'"),
        (changed(saved_at=float("nan")), "saved_at is nan"),
        (changed(saved_at="now"), "saved_at is 'now'"),
        (changed(shards=[]), "it names no shards"),
        (changed(shards=[{"name": "a", "size": 1, "crc64nvme": CRC}] * 2), "it names a shard twice"),
        (changed(shards=[{"name": "../a", "size": 1, "crc64nvme": CRC}]), "no path below"),
        (changed(shards=[{"name": "a", "size": -1, "crc64nvme": CRC}]), "size is -1"),
        (changed(shards=[{"name": "a", "size": 1, "crc64nvme": "AAAA"}]), "no CRC64NVME"),
        (changed(shards=[{"name": "a", "size": 1, "crc64nvme": "ü"}]), "manifest cannot be read"),
        (changed(shards={"a": 1}), "manifest cannot be read"),
        (changed(lineage={"job": "", "attempt": 1, "parent_step": -1}), "job is ''"),
        (changed(lineage={"job": "j", "attempt": 1, "parent_step": -2}), "parent_step is -2"),
        (changed(framework={"torch": 2}), "framework is 2"),
        (b"[" * 200_000, "manifest cannot be read"),
        (b'{"version": ' + b"9" * 5000 + b"}", "manifest cannot be read"),
    ],
)
def test_what_is_wrong_is_said(body: bytes, words: str) -> None:
    with pytest.raises(InvalidInput, match="the manifest cannot be read: ") as raised:
        Manifest.from_json(body)
    assert words in str(raised.value)
    assert len(str(raised.value)) < 400


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_nothing_else_is_ever_raised(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        Manifest.from_json(body)


@given(st.sampled_from(sorted(json.loads(STEP.to_json()))), JSON)
def test_one_wrong_value_is_an_error_of_ours_or_none(key: str, value: Any) -> None:
    try:
        assert Manifest.from_json(changed(**{key: value})).shards
    except InvalidInput:
        pass


@pytest.mark.parametrize("name", ["a", "a/b", " a b ", "ü", "..a", "a..b", "-x", "a\nb", "x" * 800])
def test_a_plain_name(name: str) -> None:
    assert is_plain(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/a",
        "a/",
        "a//b",
        ".",
        "./a",
        "..",
        "a/../b",
        "a\0b",
        "\udcff",
        "ü" * 401,
        "planaria-manifest.json",
        "planaria-pin.json",
    ],
)
def test_no_plain_name(name: str) -> None:
    assert not is_plain(name)
