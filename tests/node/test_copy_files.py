"""Single files: names, links, files that change, full disks, objects that are denied, many small ones."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from planaria.aws import transfer as engines
from planaria.aws.crt import Connect, Stopped
from planaria.core.errors import PermanentError, TransientError
from planaria.core.manifest import Shard
from planaria.core.transfers import MIB, Cause
from planaria.node import alone, carry
from planaria.node.tree import Tree
from tests.node.refusing_proxy import proxy
from tests.node.transfer_world import crc_of

pytestmark = pytest.mark.needs("seaweedfs")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def environment(object_store: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in object_store.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    made = tmp_path / "step-1"
    made.mkdir()
    return made


def _shards(files: dict[str, bytes]) -> list[Shard]:
    return [Shard(name, len(body), crc_of(body)) for name, body in sorted(files.items())]


def _write(root: Path, files: dict[str, bytes]) -> None:
    for name, body in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(body)


def test_every_name_that_a_file_may_have(source: Path, bucket: str, tmp_path: Path) -> None:
    odd = [
        "a b",
        " x ",
        "ü/ß/日本",
        "a+b&c=d?e#f%20",
        "'\"<>",
        "tab\there",
        "a\nb",
        ".hidden",
        "~",
        "-rf",
        "x" * 200,
    ]
    files = {name: name.encode() * 3 for name in odd}
    _write(source, files)
    sent = carry.upload_step(source, bucket, "p/q")
    assert sent.failed == () and list(sent.shards) == _shards(files)
    again = carry.upload_step(source, bucket, "p/q")
    assert (again.skipped, again.bytes) == (len(odd), 0)
    down = carry.download_step(sent.shards, bucket, "p/q", tmp_path / "back.tmp")
    assert down.failed == ()
    for name, body in files.items():
        assert (tmp_path / "back.tmp" / name).read_bytes() == body


def test_what_is_no_plain_file_is_refused_by_name(source: Path, bucket: str) -> None:
    _write(source, {"good": b"1", "sub/good": b"2"})
    (source / "link").symlink_to("good")
    (source / "away").symlink_to("/etc")
    os.mkfifo(source / "fifo")
    os.close(os.open(os.fsencode(source) + b"/bad-\xff", os.O_CREAT | os.O_WRONLY))
    sent = carry.upload_step(source, bucket, "p")
    assert [shard.name for shard in sent.shards] == ["good", "sub/good"]
    assert [(f.name, f.cause) for f in sent.failed] == [
        ("away", Cause.BAD),
        ("bad-\\xff", Cause.BAD),
        ("fifo", Cause.BAD),
        ("link", Cause.BAD),
    ]


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "a/../../out", "a//b", ".", "a/.", ""])
def test_no_name_leads_out_of_the_directory(tmp_path: Path, bucket: str, name: str) -> None:
    target = tmp_path / "t.tmp"
    told = carry.download_step([Shard(name, 1, crc_of(b"x"))], bucket, "p", target)
    assert [(f.name, f.cause) for f in told.failed] == [(name, Cause.BAD)]
    assert not (tmp_path / "out").exists() and not list(target.iterdir())


def test_no_link_leads_out_of_the_directory(tmp_path: Path, bucket: str, object_store: Any) -> None:
    target, outside = tmp_path / "t.tmp", tmp_path / "outside"
    outside.mkdir()
    target.mkdir()
    (target / "sub").symlink_to(outside)
    (target / "file").symlink_to(outside / "file")
    for key in ("sub/x", "file"):
        object_store.client().put_object(Bucket=bucket, Key=f"p/{key}", Body=b"x")
    shards = [Shard(name, 1, crc_of(b"x")) for name in ("sub/x", "file")]
    told = carry.download_step(shards, bucket, "p", target)
    assert [f.name for f in told.failed] == ["file", "sub/x"]
    assert not list(outside.iterdir())


# --- files that change ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1000, 3 * MIB, 20 * MIB])
def test_a_file_that_changes_while_it_is_read_is_read_anew(
    source: Path, bucket: str, object_store: Any, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    old, new = os.urandom(size), os.urandom(size)
    _write(source, {"f": old, "other": b"1"})
    real = engines.Engine._send_once
    turns: list[int] = []

    def changed(self: Any, descriptor: int, was: Any, file: Any, *more: Any) -> Any:
        sent = real(self, descriptor, was, file, *more)
        if file.name == "f":
            turns.append(1)
            if len(turns) == 1:
                (source / "f").write_bytes(new)
        return sent

    monkeypatch.setattr(engines.Engine, "_send_once", changed)
    sent = carry.upload_step(source, bucket, "p")
    assert sent.failed == () and len(turns) == 2
    assert object_store.client().get_object(Bucket=bucket, Key="p/f")["Body"].read() == new
    assert next(shard for shard in sent.shards if shard.name == "f").crc64nvme == crc_of(new)


@pytest.mark.parametrize("how", ["written", "replaced", "shorter"])
@pytest.mark.parametrize("size", [1000, 20 * MIB])
def test_a_file_that_never_rests_is_told_by_name(
    source: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, how: str, size: int
) -> None:
    _write(source, {"f": os.urandom(size), "other": b"1"})
    real = engines.Engine._send_once

    def changed(self: Any, descriptor: int, was: Any, file: Any, *more: Any) -> Any:
        if file.name != "f":
            return real(self, descriptor, was, file, *more)
        match how:
            case "written":
                (source / "f").write_bytes(os.urandom(size))
            case "replaced":
                (source / "new").write_bytes(os.urandom(size))
                os.replace(source / "new", source / "f")
            case _:
                os.truncate(source / "f", (source / "f").stat().st_size - 1)
        return real(self, descriptor, was, file, *more)

    monkeypatch.setattr(engines.Engine, "_send_once", changed)
    sent = carry.upload_step(source, bucket, "p", names=["f", "other"])
    assert [shard.name for shard in sent.shards] == ["other"]
    assert [(f.name, f.cause) for f in sent.failed] == [("f", Cause.CHANGED)]
    assert "still being written" in sent.failed[0].reason


# --- what is there already --------------------------------------------------------------------------------


def test_an_object_with_other_bytes_of_the_same_size_is_sent_again(
    source: Path, bucket: str, object_store: Any
) -> None:
    _write(source, {"a": b"right", "b": b"right"})
    object_store.client().put_object(Bucket=bucket, Key="p/a", Body=b"wrong")
    object_store.client().put_object(Bucket=bucket, Key="p/b", Body=b"right", ChecksumAlgorithm="CRC64NVME")
    sent = carry.upload_step(source, bucket, "p")
    assert (sent.skipped, sent.bytes) == (1, 5)
    assert object_store.client().get_object(Bucket=bucket, Key="p/a")["Body"].read() == b"right"


def test_the_cursor_trusts_the_listing_alone(
    source: Path, bucket: str, object_store: Any, tmp_path: Path
) -> None:
    client = object_store.client()
    _write(source, {"a": b"1", "b": b"2", "c": b"3", "d": b"4"})
    place = f"s3://{bucket}/p"

    def up() -> tuple[int, int]:
        told = alone.up(source, place, None, lambda _: None)
        assert told["failures"] == 0
        return told["skipped"], told["bytes"]

    assert up() == (0, 4)
    assert up() == (4, 0)
    client.delete_object(Bucket=bucket, Key="p/a")
    client.put_object(Bucket=bucket, Key="p/b", Body=b"x")
    (source / "c").write_bytes(b"9")
    assert up() == (1, 3)
    for path in (tmp_path / "cache").rglob("*.json"):
        path.write_text('{"version": 1, "pl')
    assert up() == (4, 0)
    assert client.get_object(Bucket=bucket, Key="p/c")["Body"].read() == b"9"


def test_a_directory_comes_down_whole_or_not_at_all(bucket: str, object_store: Any, tmp_path: Path) -> None:
    client = object_store.client()
    for name in ("a", "b/c"):
        client.put_object(Bucket=bucket, Key=f"p/{name}", Body=b"x")
    told = alone.down(f"s3://{bucket}/p", tmp_path / "d", lambda _: None)
    assert (told["files"], told["failures"]) == (2, 0)
    assert (tmp_path / "d/b/c").read_bytes() == b"x"
    with pytest.raises(PermanentError, match="is there already"):
        alone.down(f"s3://{bucket}/p", tmp_path / "d", lambda _: None)


# --- a store that refuses ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, 3 * MIB, 20 * MIB])
def test_one_object_denied_does_not_stop_the_others(
    source: Path, bucket: str, object_store: Any, tmp_path: Path, size: int
) -> None:
    files = {"secret": os.urandom(size), **{f"f{n}": os.urandom(50) for n in range(20)}}
    _write(source, files)

    def judge(method: str, path: str) -> int | None:
        return 403 if path.split("?")[0].endswith("/secret") else None

    with proxy(object_store.url, judge) as url:
        sent = carry.upload_step(source, bucket, "p", connect=Connect(endpoint=url))
        assert len(sent.shards) == 20
        assert [(f.name, f.cause) for f in sent.failed] == [("secret", Cause.DENIED)]
        assert "AccessDenied" in sent.failed[0].reason
        whole = carry.upload_step(source, bucket, "p")
        assert whole.failed == ()
        down = carry.download_step(
            whole.shards, bucket, "p", tmp_path / "t.tmp", connect=Connect(endpoint=url)
        )
        assert [(f.name, f.cause) for f in down.failed] == [("secret", Cause.DENIED)]
        assert not (tmp_path / "t.tmp/secret").exists() and (tmp_path / "t.tmp/f7").exists()


def test_a_store_that_hangs_up_now_and_then_is_asked_again(
    source: Path, bucket: str, object_store: Any, tmp_path: Path
) -> None:
    files = {**{f"f{n}": os.urandom(500) for n in range(40)}, "large": os.urandom(20 * MIB)}
    _write(source, files)
    asked = [0]
    lock = threading.Lock()

    def judge(method: str, path: str) -> int | None:
        with lock:
            asked[0] += 1
            return {0: 0, 3: 503}.get(asked[0] % 7)

    with proxy(object_store.url, judge) as url:
        sent = carry.upload_step(source, bucket, "p", connect=Connect(endpoint=url))
        assert sent.failed == () and list(sent.shards) == _shards(files)
        down = carry.download_step(
            sent.shards, bucket, "p", tmp_path / "t.tmp", connect=Connect(endpoint=url)
        )
        assert down.failed == () and list(down.shards) == _shards(files)


def test_a_store_that_is_not_there_is_one_error(source: Path, bucket: str) -> None:
    _write(source, {f"f{n}": b"1" for n in range(100)})
    with pytest.raises(TransientError, match="could not be reached"):
        carry.upload_step(source, bucket, "p", connect=Connect(endpoint="http://127.0.0.1:9"))


def test_a_bucket_that_is_not_there_is_one_error(source: Path) -> None:
    _write(source, {"f": b"1"})
    with pytest.raises(PermanentError, match="there is no bucket"):
        carry.upload_step(source, "no-such-bucket-at-all", "p", connect=Connect())


# --- stops and limits -------------------------------------------------------------------------------------


def test_stop_ends_it_and_the_next_goes_on(source: Path, bucket: str) -> None:
    _write(source, {f"f{n}": os.urandom(100) for n in range(2000)})
    stop = threading.Event()
    moved = [0]

    def progress(size: int) -> None:
        moved[0] += size
        if moved[0] > 30_000:
            stop.set()

    with pytest.raises(Stopped):
        carry.upload_step(source, bucket, "p", progress=progress, stop=stop)
    rest = carry.upload_step(source, bucket, "p")
    assert rest.failed == () and len(rest.shards) == 2000
    assert 300 <= rest.skipped < 2000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_program_with_a_sentence(
    source: Path, bucket: str, object_store: Any, number: signal.Signals
) -> None:
    _write(source, {"large": os.urandom(80 * MIB)})
    arrived = threading.Event()
    go_on = threading.Event()

    def judge(method: str, path: str) -> int | None:
        if "partNumber" in path:
            arrived.set()
            go_on.wait(30)
        return None

    with proxy(object_store.url, judge) as url:
        child = subprocess.Popen(
            [sys.executable, "-m", "planaria.node.copy", "up", str(source), f"s3://{bucket}/p"],
            cwd=ROOT,
            env={**os.environ, "AWS_ENDPOINT_URL_S3": url},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert arrived.wait(30)
        began = time.monotonic()
        child.send_signal(number)
        said, _ = child.communicate(timeout=30)
        assert time.monotonic() - began < 10
        go_on.set()
    assert child.returncode == 1
    assert said.startswith('{"reason": "stopped before it was done')


def test_no_more_bytes_a_second_than_allowed(source: Path, bucket: str, tmp_path: Path) -> None:
    _write(source, {"f": os.urandom(24 * MIB)})
    began = time.monotonic()
    sent = carry.upload_step(source, bucket, "p", connect=Connect(bytes_per_second=16 * MIB))
    assert time.monotonic() - began > 0.8  # the first part goes at once, the second when its time has come
    carry.download_step(
        sent.shards, bucket, "p", tmp_path / "t.tmp", connect=Connect(bytes_per_second=16 * MIB)
    )
    assert time.monotonic() - began > 1.6


# --- a full disk ------------------------------------------------------------------------------------------


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("told_before", [True, False])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, source: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, told_before: bool
) -> None:
    files = {f"f{n}": os.urandom(MIB) for n in range(8)}
    _write(source, files)
    carry.upload_step(source, bucket, "p")
    if not told_before:  # another one fills the disk meanwhile
        monkeypatch.setattr(carry, "room_lacking", lambda *_: "")
    with _small_disk(tmp_path / "disk") as disk:
        told = carry.download_step(_shards(files), bucket, "p", disk / "step-1.tmp")
        assert [f.cause for f in told.failed] == [Cause.FULL]
        assert "make room" in told.failed[0].reason
        assert told.shards == () and list(disk.iterdir()) == []


# --- many -------------------------------------------------------------------------------------------------


def _many(source: Path, bucket: str, tmp_path: Path, number: int) -> None:
    body = os.urandom(200)
    with Tree(source) as tree:
        for n in range(number):
            descriptor = tree.create(f"{n % 100:02d}/shard-{n:06d}", 0)
            os.write(descriptor, n.to_bytes(4, "big") + body)
            os.close(descriptor)
    sent = carry.upload_step(source, bucket, "p")
    assert sent.failed == () and len(sent.shards) == number
    again = carry.upload_step(source, bucket, "p", known=sent.known)
    assert (again.skipped, again.bytes) == (number, 0)
    down = carry.download_step(sent.shards, bucket, "p", tmp_path / "t.tmp")
    assert down.failed == () and down.shards == sent.shards


def test_many_small_shards(source: Path, bucket: str, tmp_path: Path) -> None:
    _many(source, bucket, tmp_path, 2500)


@pytest.mark.campaign
def test_a_hundred_thousand_small_shards(source: Path, bucket: str, tmp_path: Path) -> None:
    _many(source, bucket, tmp_path, 100_000)


def test_two_copiers_of_one_file_both_come_to_the_end(
    source: Path, bucket: str, object_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find the same upload; the slower one's is ended under its hands."""
    body = os.urandom(40 * MIB)
    _write(source, {"f": body})
    real = engines.Engine.finish_upload

    def overtaken(self: Any, key: str, *more: Any) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(engines.Engine, "finish_upload", real)
            other = carry.upload_step(source, bucket, "p")
            assert other.failed == ()
        return real(self, key, *more)

    monkeypatch.setattr(engines.Engine, "finish_upload", overtaken)
    sent = carry.upload_step(source, bucket, "p")
    assert sent.failed == () and list(sent.shards) == _shards({"f": body})
    assert object_store.client().list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []
