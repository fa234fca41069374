"""CRC64NVME of files, in ranges and at once."""

from pathlib import Path

import pytest
from awscrt.checksums import crc64nvme

from planaria.checkpoint import checksums
from planaria.core.manifest import encoded
from tests.checkpoint.steps import write


@pytest.fixture(autouse=True)
def _small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A range of a few bytes, so that small files have many."""
    monkeypatch.setattr(checksums, "RANGE", 1000)


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 2000, 123_457])
def test_ranges_make_the_sum_of_the_whole(tmp_path: Path, size: int) -> None:
    body = bytes(each * 7 % 251 for each in range(size))
    path = tmp_path / "a ü"
    path.write_bytes(body)
    assert checksums.of_file(path) == checksums.Sum(size, encoded(crc64nvme(body)))


def test_many_files_and_every_byte_is_told(tmp_path: Path) -> None:
    files = {f"f {number}": bytes([number % 256]) * (number % 3000) for number in range(1500)}
    write(tmp_path, files)
    told: list[int] = []
    sums = checksums.of_files(tmp_path, {name: len(body) for name, body in files.items()}, told.append)
    assert sums == {name: checksums.Sum(len(b), encoded(crc64nvme(b))) for name, b in files.items()}
    assert sum(told) == sum(map(len, files.values()))


def test_a_file_that_is_shorter_now_says_so(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1500)
    assert checksums.of_files(tmp_path, {"a": 5000})["a"].size == 1500


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"1", "b": b"2"})
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for name in ("gone", "link"):
        with pytest.raises(OSError, match=name):
            checksums.of_files(tmp_path, {"a": 1, name: 1, "b": 1})
