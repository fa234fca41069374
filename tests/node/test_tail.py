"""Reading what others append."""

from pathlib import Path

import pytest

from planaria.node import tail
from planaria.node.tail import Tail


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "kernel.log"


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_lines_come_once_and_whole(log: Path) -> None:
    reader = Tail(log)
    assert reader.lines() == []
    append(log, b"one\ntw")
    assert reader.lines() == ["one"]
    assert reader.lines() == []
    append(log, b"o\nthree\n")
    assert reader.lines() == ["two", "three"]


def test_an_offset_skips_the_earlier_boot(log: Path) -> None:
    append(log, b"old\n")
    reader = Tail(log, log.stat().st_size)
    append(log, b"new\n")
    assert reader.lines() == ["new"]


def test_a_replaced_or_shortened_file_is_read_from_its_beginning(log: Path) -> None:
    append(log, b"one\ntwo\nhalf a li")
    reader = Tail(log)
    reader.lines()
    log.rename(log.with_suffix(".1"))
    assert reader.lines() == []
    append(log, b"a much longer first line after the rotation\n")
    assert reader.lines() == ["a much longer first line after the rotation"]
    log.write_bytes(b"short\n")
    assert reader.lines() == ["short"]


def test_bytes_that_are_no_text_and_a_line_without_an_end(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "LONGEST_LINE", 8)
    append(log, b"\xff\xfe\n123456789")
    assert Tail(log).lines() == ["��", "123456789"]


def test_a_flood_is_read_in_portions(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "CHUNK_BYTES", 10)
    append(log, b"12345\n" * 4)
    reader = Tail(log)
    read = [reader.lines() for _ in range(4)]
    assert [line for lines in read for line in lines] == ["12345"] * 4
    assert len(read[0]) == 1
