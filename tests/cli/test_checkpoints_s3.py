"""`planaria checkpoints` on a real S3 endpoint, and between it and directories."""

import signal
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from planaria.cli import checkpoint_copying, checkpoint_places
from planaria.core.errors import TransientError
from planaria.core.transfers import Cause, Failure
from planaria.node.carry import Carried, upload_step
from tests.cli.checkpoint_bed import FILES, flip, put, save, size
from tests.cli.conftest import Answer, Bench
from tests.object_store import ObjectStore

pytestmark = pytest.mark.needs("seaweedfs")
PREFIX = "läufe mit blank/gpt"
SHARD = "__0_0.distcp"


@dataclass
class Bed:
    """A directory and a bucket, and the command line between them."""

    bench: Bench
    store: ObjectStore
    bucket: str
    root: Path
    client: Any

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{PREFIX}"

    def run(self, *words: object) -> Answer:
        return self.bench.run("checkpoints", *(str(word) for word in words))

    def put(self, directory: Path, commit: bool = True) -> None:
        put(self.client, self.bucket, PREFIX, directory, commit)

    def keys(self) -> set[str]:
        listed = self.client.list_objects_v2(Bucket=self.bucket)
        return {each["Key"].removeprefix(f"{PREFIX}/") for each in listed.get("Contents", ())}

    def overwrite(self, name: str, body: bytes) -> None:
        """By another program than ours, which leaves S3 its own checksum."""
        key = f"{PREFIX}/{name}"
        self.client.put_object(Bucket=self.bucket, Key=key, Body=body, ChecksumAlgorithm="CRC64NVME")

    def listed(self, place: object) -> dict[int, dict[str, Any]]:
        return {one["step"]: one for one in self.run("list", place, "--json").json}


@pytest.fixture
def bed(
    bench: Bench, object_store: ObjectStore, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bed]:
    for name, value in object_store.environment().items():
        monkeypatch.setenv(name, value)
    root = tmp_path / "source" / "gpt"
    root.mkdir(parents=True)
    client = object_store.client()
    checkpoint_places.s3_client.cache_clear()
    yield Bed(bench, object_store, bucket, root, client)
    client.close()
    if checkpoint_places.s3_client.cache_info().currsize:
        checkpoint_places.s3_client().close()
        checkpoint_places.s3_client.cache_clear()


# --- look and prove ----------------------------------------------------------------------------------


def test_what_is_proven_in_s3_is_durable(bed: Bed) -> None:
    bed.put(save(bed.root, 100))
    bed.put(save(bed.root, 200, parent=100), commit=False)
    listed = bed.listed(bed.url)
    assert (listed[100]["state"], listed[100]["tiers"], listed[100]["chosen"]) == ("durable", ["s3"], True)
    assert listed[100]["bytes"] == size()
    assert listed[200]["state"] == "partial" and not listed[200]["chosen"] and listed[200]["reason"]
    assert "durable" in bed.run("list", bed.url).out
    answer = bed.run("verify", bed.url)
    assert answer.status == 1 and "✓ step 100 durable" in answer.out and "✗ step 200 partial" in answer.out
    assert bed.run("verify", f"{bed.url}/step-100", "--json").json[0]["state"] == "durable"


def test_what_is_not_what_the_manifest_says_is_corrupt(bed: Bed) -> None:
    bed.put(save(bed.root, 100))
    bed.put(save(bed.root, 200, parent=100))
    bed.overwrite(f"step-200/{SHARD}", b"W" + FILES[SHARD][1:])
    listed = bed.listed(bed.url)
    assert listed[200]["state"] == "corrupt" and SHARD in listed[200]["reason"]
    assert listed[100]["chosen"]
    assert bed.run("verify", bed.url, "--step", 200).status == 1
    bed.client.delete_object(Bucket=bed.bucket, Key=f"{PREFIX}/step-100/leer")
    assert bed.run("verify", bed.url, "--step", 100).status == 1


def test_an_object_without_a_checksum_of_all_of_it_is_never_durable(bed: Bed) -> None:
    bed.put(save(bed.root, 100))
    key = f"{PREFIX}/step-100/{SHARD}"
    bed.client.put_object(Bucket=bed.bucket, Key=key, Body=FILES[SHARD], ChecksumAlgorithm="SHA256")
    listed = bed.listed(bed.url)[100]
    assert listed["state"] == "complete" and SHARD in listed["reason"]
    answer = bed.run("verify", bed.url)
    assert answer.status == 1 and SHARD in answer.out


def test_prune_in_s3_and_pins(bed: Bed) -> None:
    for step in (100, 200, 300):
        bed.put(save(bed.root, step, parent=step - 100))
    assert bed.run("pin", bed.url, 100, "--reason", "größte").status == 0
    assert bed.listed(bed.url)[100]["pinned"] == "größte"
    shown = bed.run("prune", bed.url, "--keep", 1)
    assert "1 step of 3 would go" in shown.out and "pinned (größte)" in shown.out
    assert len(bed.listed(bed.url)) == 3
    document = bed.run("prune", bed.url, "--keep", 1, "--yes", "--json").json
    assert [one["step"] for one in document["steps"] if one["removed"]] == [200]
    assert set(bed.listed(bed.url)) == {100, 300}
    bed.run("unpin", bed.url, 100)
    bed.run("prune", bed.url, "--keep", 1, "--yes")
    assert set(bed.listed(bed.url)) == {300}


def test_a_directory_counts_what_is_durable_in_s3_alone(bed: Bed) -> None:
    for step in (100, 200, 300, 400):
        directory = save(bed.root, step, parent=step - 100)
        if step <= 300:
            bed.put(directory)
    bed.overwrite(f"step-300/{SHARD}", b"X" + FILES[SHARD][1:])
    words = ("prune", bed.root, "--keep", 1, "--durable-in", bed.url)
    document = bed.run(*words, "--json").json
    fates = {one["step"]: (one["goes"], one["why"]) for one in document["steps"]}
    assert {step for step, (goes, _) in fates.items() if goes} == {100}
    assert fates[400][1] == fates[300][1] == "it is not durable yet"
    assert bed.run(*words, "--yes").status == 0
    assert {path.name for path in bed.root.iterdir()} == {"step-200", "step-300", "step-400"}


def test_uploads_that_nobody_goes_on_with(bed: Bed) -> None:
    bed.put(save(bed.root, 100))
    key = f"{PREFIX}/step-200/{SHARD}"
    bed.client.create_multipart_upload(Bucket=bed.bucket, Key=key)
    words = ("prune", bed.url, "--keep", 1, "--unfinished-hours", 1, "--json")
    assert bed.run(*words).json["unfinished"] == []
    assert bed.run(*words, "--yes").json["unfinished"] == []


@pytest.mark.parametrize(
    ("variables", "status", "part"),
    [
        (
            {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"},
            1,
            "check the network, the region and AWS_ENDPOINT_URL",
        ),
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, 1, "log in again"),
    ],
)
def test_s3_cannot_be_reached(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], status: int, part: str
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    answer = bed.run("list", bed.url, "--json")
    assert (answer.status, answer.out) == (status, "")
    assert part in answer.err and answer.err.count("\n") == 1


def test_there_is_no_such_bucket(bed: Bed) -> None:
    answer = bed.run("list", "s3://no-such-bucket-there/gpt")
    assert answer.status == 1 and "no-such-bucket-there" in answer.err and answer.err.count("\n") == 1
    empty = bed.run("list", bed.url)
    assert (empty.status, empty.out) == (0, f"There is no checkpoint in {bed.url}.\n")


# --- sync --------------------------------------------------------------------------------------------


def outcomes(answer: Answer) -> dict[int, str]:
    return {one["step"]: one["outcome"] for one in answer.json}


def test_sync_makes_durable_and_sends_nothing_twice(bed: Bed) -> None:
    for step in (100, 200):
        save(bed.root, step, parent=step - 100)
    answer = bed.run("sync", bed.root, bed.url, "--json")
    assert (answer.status, outcomes(answer), answer.err) == (0, {100: "done", 200: "done"}, "")
    first = answer.json[0]
    assert first["step"] == 100, "the oldest goes first"
    assert (first["bytes"], first["moved"]) == (size(), size())
    assert (first["from"], first["place"]) == (str(bed.root / "step-100"), f"{bed.url}/step-100")
    for step in (100, 200):
        assert bed.listed(bed.url)[step]["state"] == "durable"
        there = bed.client.get_object(Bucket=bed.bucket, Key=f"{PREFIX}/step-{step}/planaria-manifest.json")
        assert there["Body"].read() == (bed.root / f"step-{step}" / "planaria-manifest.json").read_bytes()
    again = bed.run("sync", bed.root, bed.url, "--json")
    assert (again.status, outcomes(again)) == (0, {100: "unchanged", 200: "unchanged"})
    assert {one["moved"] for one in again.json} == {0}
    assert "✓ step 200 is durable in S3 already" in bed.run("sync", bed.root, bed.url).out


def test_sync_goes_on_where_it_was_broken_off(bed: Bed) -> None:
    bed.put(save(bed.root, 100), commit=False)
    bed.client.delete_object(Bucket=bed.bucket, Key=f"{PREFIX}/step-100/{SHARD}")
    answer = bed.run("sync", bed.root, bed.url, "--json")
    assert outcomes(answer) == {100: "done"}
    assert answer.json[0]["moved"] == len(FILES[SHARD])


def test_another_sync_of_the_same_step_came_between(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    save(bed.root, 100)
    tries = []

    def upload(*words: Any, **more: Any) -> Carried:
        tries.append(1)
        carried = upload_step(*words, **more)
        lost = (Failure(SHARD, "404 NoSuchUpload", Cause.OTHER),)
        return replace(carried, failed=lost) if len(tries) == 1 else carried

    monkeypatch.setattr(checkpoint_copying, "upload_step", upload)
    assert outcomes(bed.run("sync", bed.root, bed.url, "--json")) == {100: "done"}
    assert len(tries) == 2


def test_ctrl_c_while_it_copies(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    save(bed.root, 100)

    def upload(*words: Any, stop: threading.Event, **more: Any) -> Carried:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        raise TransientError("stopped")

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(checkpoint_copying, "upload_step", upload)
    answer = bed.run("sync", bed.root, bed.url, "--json")
    assert (answer.status, answer.out, answer.err) == (130, "", "Stopped.\n")
    assert signal.getsignal(signal.SIGINT) is before
    assert bed.listed(bed.url) == {}


def test_sync_takes_what_is_whole_and_says_why_not_the_rest(bed: Bed) -> None:
    save(bed.root, 100)
    flip(save(bed.root, 200, parent=100) / SHARD)
    (save(bed.root, 300, parent=200) / "leer").unlink()
    save(bed.root, 400, job="llama")
    (bed.root / "step-500.tmp").mkdir()
    answer = bed.run("sync", bed.root, bed.url, "--job", "gpt", "--json")
    assert answer.status == 1
    assert outcomes(answer) == {
        100: "done",
        200: "failed",
        300: "passed over",
        400: "passed over",
        500: "passed over",
    }
    told = {one["step"]: one["reason"] for one in answer.json}
    assert SHARD in told[200] and "corrupt" in told[200]
    assert "leer" in told[300] and "llama" in told[400] and told[500]
    assert {step for step, one in bed.listed(bed.url).items() if one["state"] == "durable"} == {100}
    nothing = bed.run("sync", bed.root / "step-300", bed.url, "--job", "gpt")
    assert nothing.status == 1 and "so nothing was copied" in nothing.err


def test_sync_does_not_take_what_an_attempt_has_left_behind(bed: Bed) -> None:
    save(bed.root, 500, attempt=1)
    save(bed.root, 900, attempt=1, parent=500)
    save(bed.root, 600, attempt=2, parent=500)
    answer = bed.run("sync", bed.root, bed.url, "--json")
    assert (answer.status, outcomes(answer)) == (0, {500: "done", 600: "done", 900: "passed over"})
    assert outcomes(bed.run("sync", bed.root, bed.url, "--step", 900, "--json")) == {900: "done"}


def test_sync_meets_another_step_of_that_number(bed: Bed) -> None:
    bed.put(save(bed.root, 100, files={SHARD: b"another"}))
    save(bed.root, 200, parent=100)
    (bed.root / "step-100" / "planaria-manifest.json").unlink()
    save(bed.root, 100)
    answer = bed.run("sync", bed.root, bed.url, "--json")
    assert (answer.status, outcomes(answer)) == (1, {100: "failed", 200: "done"})
    assert "another step 100 is at s3://" in answer.json[0]["reason"]


def test_a_damaged_object_in_s3_is_sent_again(bed: Bed) -> None:
    save(bed.root, 100)
    bed.run("sync", bed.root, bed.url)
    bed.overwrite(f"step-100/{SHARD}", b"W" + FILES[SHARD][1:])
    assert bed.run("verify", bed.url).status == 1
    answer = bed.run("sync", bed.root, bed.url, "--json")
    assert (outcomes(answer), answer.json[0]["moved"]) == ({100: "done"}, len(FILES[SHARD]))
    assert bed.run("verify", bed.url).status == 0


@pytest.mark.needs("torch")
def test_what_was_written_without_planaria_gets_its_manifest(bed: Bed) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    for step in (100, 200):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save({"w": torch.full((64,), float(step))}, checkpoint_id=str(bed.root / f"step-{step}"))
    assert {one["state"] for one in bed.listed(bed.root).values()} == {"foreign"}
    assert "`planaria checkpoints sync` gives" in bed.run("list", bed.root).out
    answer = bed.run("sync", bed.root, bed.url)
    assert answer.status == 0 and "they become job 'gpt'" in answer.err
    for place in (bed.root, bed.url):
        listed = bed.listed(place)
        assert listed[200]["lineage"] == {"job": "gpt", "attempt": 0, "parent_step": -1}
        assert listed[200]["chosen"]
    back = bed.root.parent / "back"
    assert bed.run("restore", bed.url, back).status == 0
    state = {"w": torch.zeros(64)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, checkpoint_id=str(back / "step-200"))
    assert state["w"].eq(200.0).all()


# --- restore -----------------------------------------------------------------------------------------


def trees(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_restore_brings_the_newest_back(bed: Bed) -> None:
    for step in (100, 200):
        bed.put(save(bed.root, step, parent=step - 100))
    back = bed.root.parent / "ein anderes, neues" / "gpt"
    answer = bed.run("restore", bed.url, back, "--json")
    assert (answer.status, outcomes(answer)) == (0, {200: "done"})
    assert answer.json[0]["place"] == str(back / "step-200")
    assert {path.name for path in back.iterdir()} == {"step-200"}
    assert trees(back / "step-200") == trees(bed.root / "step-200")
    assert bed.run("verify", back).status == 0
    again = bed.run("restore", bed.url, back, "--json")
    assert (outcomes(again), again.json[0]["moved"]) == ({200: "unchanged"}, 0)
    assert outcomes(bed.run("restore", bed.url, back, "--step", 100, "--json")) == {100: "done"}
    assert outcomes(bed.run("restore", f"{bed.url}/step-100", back, "--json")) == {100: "unchanged"}


def test_restore_falls_back_past_bad_copies_and_says_so(bed: Bed) -> None:
    for step in (100, 200, 300):
        bed.put(save(bed.root, step, parent=step - 100))
    bed.overwrite(f"step-300/{SHARD}", b"W" + FILES[SHARD][1:])
    bed.client.delete_object(Bucket=bed.bucket, Key=f"{PREFIX}/step-200/leer")
    back = bed.root.parent / "back"
    answer = bed.run("restore", bed.url, back, "--json")
    assert answer.status == 0
    assert outcomes(answer)[300] == "failed" and outcomes(answer)[100] == "done"
    assert SHARD in answer.json[0]["reason"]
    assert bed.listed(back)[100]["chosen"]
    shown = bed.run("restore", bed.url, bed.root.parent / "again")
    assert "✗ step 300" in shown.out and "✓ step 100 is in" in shown.out
    one = bed.run("restore", bed.url, bed.root.parent / "one", "--step", 300, "--json")
    assert (one.status, outcomes(one)) == (1, {300: "failed"})


def test_nothing_is_good_enough_to_be_restored(bed: Bed) -> None:
    bed.put(save(bed.root, 100))
    bed.overwrite(f"step-100/{SHARD}", b"W" + FILES[SHARD][1:])
    back = bed.root.parent / "back"
    answer = bed.run("restore", bed.url, back)
    assert answer.status == 1 and "Nothing was restored" in answer.err
    assert not any(one["chosen"] for one in bed.listed(back).values())
    empty = bed.run("restore", f"s3://{bed.bucket}/nothing", back)
    assert empty.status == 1 and "no checkpoint of job 'nothing'" in empty.err


def test_restore_heals_a_copy_that_looks_whole(bed: Bed) -> None:
    bed.put(save(bed.root, 100))
    flip(bed.root / "step-100" / SHARD)
    answer = bed.run("restore", bed.url, bed.root, "--json")
    assert outcomes(answer) == {100: "done"}
    assert bed.run("verify", bed.root, "--step", 100).status == 1, "what was damaged is kept aside"
    assert bed.run("verify", bed.root / "step-100").status == 0
    assert any(path.name.endswith(".damaged.tmp") for path in bed.root.iterdir())


def test_restore_leaves_another_good_step_alone(bed: Bed) -> None:
    bed.put(save(bed.root, 100, files={SHARD: b"another"}))
    (bed.root / "step-100" / "planaria-manifest.json").unlink()
    directory = save(bed.root, 100)
    before = trees(directory)
    answer = bed.run("restore", bed.url, bed.root, "--json")
    assert (answer.status, outcomes(answer)) == (1, {100: "failed"})
    assert "another step 100 is in" in answer.json[0]["reason"]
    assert trees(directory) == before


def test_what_a_broken_off_restore_has_brought_is_no_step_and_stays(bed: Bed) -> None:
    bed.put(save(bed.root, 100))
    back = bed.root.parent / "back"
    scratch = back / "step-100.restore.tmp"
    scratch.mkdir(parents=True)
    (scratch / SHARD).write_bytes(FILES[SHARD])
    assert bed.listed(back)[100]["state"] == "partial"
    answer = bed.run("restore", bed.url, back, "--json")
    assert (outcomes(answer), answer.json[0]["moved"]) == ({100: "done"}, size() - len(FILES[SHARD]))
    assert {path.name for path in back.iterdir()} == {"step-100"}
