"""S3Checkpoints on a real S3 endpoint: what only a bucket has. The rules that all stores share are in
test_checkpoint_store.py."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from awscrt.checksums import crc64nvme
from botocore.exceptions import ClientError

from planaria.aws.checkpoint_bucket import S3Checkpoints
from planaria.aws.step_judging import TOMBSTONE, jobs_in
from planaria.core.errors import InvalidInput, PermanentError, TransientError
from planaria.core.manifest import FILE_NAME, PIN_NAME, Format, Lineage, Manifest, Shard, encoded
from planaria.core.pins import Pin
from planaria.core.saved_step import StepCopy, StepState, Tier

pytestmark = pytest.mark.needs("seaweedfs")
LATER = 60.0
NAMES = ("__0_0.distcp", "mit leer zeichen", "ünï/cödé+%20&<z>'\"", "deep/er/one")


class Client:
    """The client of the test's bucket, with calls that fail as S3's do, or wait. calls: the names of all."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.calls: list[str] = []
        self.refuse: dict[tuple[str, str], str] = {}
        self.before: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)

        def call(**options: Any) -> Any:
            self.calls.append(name)
            if name in self.before:
                self.before.pop(name)()
            for (of, part), code in self.refuse.items():
                if of == name and part in str(options.get("Key", "")):
                    status = int(code) if code.isdigit() else 500
                    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
                    raise ClientError(answer, name)
            return method(**options)

        return call


class Bucket:
    """A job's place in a bucket."""

    def __init__(self, client: Client, name: str, job: str = "job-1") -> None:
        self.client, self.name, self.job = client, name, job
        self.store = S3Checkpoints(client, name, f"checkpoints/{job}", job, threads=4)

    def key(self, step: int, name: str) -> str:
        return f"checkpoints/{self.job}/step-{step}/{name}"

    def put(self, key: str, body: bytes, checked: bool = True) -> None:
        options = {"ChecksumAlgorithm": "CRC64NVME"} if checked else {}
        self.client.client.put_object(Bucket=self.name, Key=key, Body=body, **options)

    def held(self) -> set[str]:
        listed = self.client.client.list_objects_v2(Bucket=self.name).get("Contents", ())
        return {each["Key"] for each in listed}

    def upload(self, step: int, attempt: int = 1, parent: int = -1, checked: bool = True) -> Manifest:
        """The shards of a step, without its manifest."""
        shards = []
        for name in NAMES:
            body = f"{step} {attempt} {name}".encode()
            self.put(self.key(step, name), body, checked)
            shards.append(Shard(name, len(body), encoded(crc64nvme(body))))
        lineage = Lineage(self.job, attempt, parent)
        return Manifest(step, lineage, 2, Format.DCP, tuple(shards), 1000.0 + step)

    def save(self, step: int, attempt: int = 1, parent: int = -1) -> StepCopy:
        assert self.store.commit(self.upload(step, attempt, parent))
        return self.copy(step)

    def copy(self, step: int) -> StepCopy:
        return next(copy for copy in self.store.steps() if copy.step == step)


@pytest.fixture
def place(object_store: Any, bucket: str) -> Bucket:
    return Bucket(Client(object_store.client()), bucket)


def test_a_step_is_durable_by_its_manifest_and_one_head_each(place: Bucket) -> None:
    copy = place.save(500)
    assert (copy.state, copy.reason, copy.lineage) == (StepState.COMPLETE, "", Lineage("job-1", 1, -1))
    place.client.calls.clear()
    proven = place.store.verify(copy)
    assert (proven.state, proven.reason, proven.digest) == (StepState.DURABLE, "", copy.digest)
    assert place.client.calls.count("head_object") == len(NAMES)
    assert place.store.manifest(copy).shards[0].name in NAMES


def test_a_multipart_object_is_proven_by_its_whole_checksum(place: Bucket) -> None:
    body, parts = b"p" * (5 << 20) + b"tail", []
    client, key = place.client.client, place.key(7, "large.bin")
    begun = client.create_multipart_upload(
        Bucket=place.name, Key=key, ChecksumAlgorithm="CRC64NVME", ChecksumType="FULL_OBJECT"
    )["UploadId"]
    for number, part in enumerate((body[: 5 << 20], body[5 << 20 :]), 1):
        told = client.upload_part(
            Bucket=place.name, Key=key, UploadId=begun, PartNumber=number, Body=part,
            ChecksumAlgorithm="CRC64NVME",
        )  # fmt: skip
        parts.append({"PartNumber": number, **{n: told[n] for n in ("ETag", "ChecksumCRC64NVME")}})
    client.complete_multipart_upload(
        Bucket=place.name, Key=key, UploadId=begun, MultipartUpload={"Parts": parts},
        ChecksumType="FULL_OBJECT",
    )  # fmt: skip
    shard = Shard("large.bin", len(body), encoded(crc64nvme(body)))
    assert place.store.commit(Manifest(7, Lineage("job-1"), 1, Format.DCP, (shard,), 1.0))
    assert place.store.verify(place.copy(7)).state is StepState.DURABLE


@pytest.mark.parametrize(
    ("spoil", "state", "said"),
    [
        ("flip", StepState.CORRUPT, "its checksum is not the manifest's"),
        ("cut", StepState.CORRUPT, "bytes, the manifest says"),
        ("delete", StepState.CORRUPT, "is missing"),
        ("deny", StepState.FOREIGN, "S3 refuses access to it"),
        ("unchecked", StepState.COMPLETE, "so it is not proven"),
    ],
)
def test_what_is_wrong_with_one_object_is_said(
    place: Bucket, spoil: str, state: StepState, said: str
) -> None:
    copy = place.save(500)
    key = place.key(500, NAMES[1])
    body = place.client.client.get_object(Bucket=place.name, Key=key)["Body"].read()
    match spoil:
        case "flip":
            place.put(key, bytes([body[0] ^ 1]) + body[1:])
        case "cut":
            place.put(key, body[:-1])
        case "delete":
            place.client.client.delete_object(Bucket=place.name, Key=key)
        case "deny":
            place.client.refuse["head_object", NAMES[1]] = "403"
        case "unchecked":
            place.put(key, body, checked=False)
    found = place.store.verify(copy)
    assert found.state is state
    assert NAMES[1] in found.reason
    assert said in found.reason


def test_throttling_is_no_verdict(place: Bucket) -> None:
    copy = place.save(500)
    place.client.refuse["head_object", NAMES[2]] = "SlowDown"
    with pytest.raises(TransientError, match="SlowDown"):
        place.store.verify(copy)


def test_a_bucket_that_is_not_there_is_no_empty_list(place: Bucket) -> None:
    store = S3Checkpoints(place.client, "no-such-bucket-here", "checkpoints/job-1", "job-1")
    with pytest.raises(PermanentError, match="NoSuchBucket"):
        store.steps()


# --- commit ----------------------------------------------------------------------------------------


def test_of_many_committers_at_once_one_writes(place: Bucket) -> None:
    manifest = place.upload(500)
    gate = threading.Barrier(8)

    def commit(_: int) -> bool:
        gate.wait()
        return place.store.commit(manifest)

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(commit, range(8))) == [False] * 7 + [True]


def test_two_committers_of_different_manifests(place: Bucket) -> None:
    second = place.upload(500, attempt=2)
    first = Manifest(500, Lineage("job-1", 1), 2, Format.DCP, second.shards, 1.0)
    assert place.store.commit(first)
    with pytest.raises(PermanentError, match="another manifest"):
        place.store.commit(second)
    assert place.store.manifest(place.copy(500)).lineage.attempt == 1


def test_a_conflict_is_asked_about_again(place: Bucket) -> None:
    """409: S3 could not tell which of two writers at once was the first."""
    manifest = place.upload(500)
    place.client.refuse["put_object", FILE_NAME] = "ConditionalRequestConflict"
    with pytest.raises(TransientError):
        place.store.commit(manifest)
    place.put(place.key(500, FILE_NAME), manifest.to_json())
    assert place.store.commit(manifest) is False


def test_no_commit_without_every_object(place: Bucket) -> None:
    manifest = place.upload(500)
    place.client.client.delete_object(Bucket=place.name, Key=place.key(500, NAMES[0]))
    with pytest.raises(PermanentError, match="1 of its objects are not there"):
        place.store.commit(manifest)
    assert place.copy(500).state is StepState.PARTIAL


def test_only_a_manifest_of_that_step_and_job_is_committed(place: Bucket) -> None:
    manifest = place.upload(500)
    with pytest.raises(InvalidInput, match="no name for the directory of step 500"):
        place.store.commit(manifest, "step-501")
    with pytest.raises(InvalidInput, match="no name"):
        place.store.commit(manifest, "../step-500")
    other = S3Checkpoints(place.client, place.name, "checkpoints/job-1", "job-2")
    with pytest.raises(InvalidInput, match="of the job 'job-1'"):
        other.commit(manifest)


# --- remove ----------------------------------------------------------------------------------------


def test_remove_takes_the_manifest_first_and_all_of_that_step_alone(place: Bucket) -> None:
    place.save(5)
    doomed = place.save(500)
    place.put(place.key(500, "left/over"), b"x")
    kept = {key for key in place.held() if "/step-500/" not in key}
    seen: list[StepState] = []
    place.client.before["delete_objects"] = lambda: seen.append(place.copy(500).state)
    place.store.remove(doomed)
    assert seen == [StepState.PARTIAL]
    assert place.held() == kept
    place.store.remove(doomed)
    assert place.held() == kept


def test_a_removal_that_breaks_off_goes_on(place: Bucket) -> None:
    doomed = place.save(500)
    place.client.refuse["delete_objects", ""] = "InternalError"
    with pytest.raises(TransientError, match="InternalError"):
        place.store.remove(doomed)
    broken = place.copy(500)
    assert (broken.state, broken.reason) == (StepState.PARTIAL, "it is being removed")
    with pytest.raises(TransientError, match="is being removed"):
        place.store.commit(place.upload(500))
    place.client.refuse.clear()
    place.store.remove(doomed)
    assert place.held() == set()
    assert place.store.commit(place.upload(500))


def test_every_object_that_is_not_deleted_is_told(place: Bucket) -> None:
    doomed = place.save(500)

    class Refusing(Client):
        def delete_objects(self, **options: Any) -> Any:
            listed = options["Delete"]["Objects"]
            denied = [each for each in listed if each["Key"].endswith((NAMES[0], NAMES[1]))]
            others = [each for each in listed if each not in denied]
            self.client.delete_objects(Bucket=options["Bucket"], Delete={"Objects": others})
            return {"Errors": [{"Key": each["Key"], "Code": "AccessDenied"} for each in denied]}

    store = S3Checkpoints(Refusing(place.client.client), place.name, "checkpoints/job-1", "job-1")
    with pytest.raises(
        PermanentError, match=r"2 objects of s3://.* were not deleted: .*AccessDenied"
    ) as told:
        store.remove(doomed)
    assert NAMES[0] in str(told.value)
    assert NAMES[1] in str(told.value)
    assert place.copy(500).state is StepState.PARTIAL


def test_another_copy_than_the_one_that_was_meant_stays(place: Bucket) -> None:
    old = place.save(500)
    place.store.remove(old)
    new = place.save(500, attempt=2)
    with pytest.raises(PermanentError, match="another copy of step 500"):
        place.store.remove(old)
    assert place.store.verify(new).state is StepState.DURABLE


def test_a_committer_and_a_remover_exclude_each_other(place: Bucket) -> None:
    """The manifest goes between the look and the write; the remover does nothing then."""
    copy = place.save(500)

    def change() -> None:
        place.put(place.key(500, FILE_NAME), place.upload(500, attempt=3).to_json())

    place.client.before["put_object"] = change
    with pytest.raises(PermanentError, match="has changed while"):
        place.store.remove(copy)
    assert place.copy(500).lineage == Lineage("job-1", 3, -1)


def test_a_pin_that_came_since_holds(place: Bucket) -> None:
    copy = place.save(500)
    place.store.pin(copy, Pin("paper", "ann", 1.0))
    assert place.copy(500).pinned == "paper"
    with pytest.raises(PermanentError, match="has been pinned"):
        place.store.remove(copy)
    place.store.unpin(copy)
    assert place.copy(500).pinned == ""
    place.store.remove(copy)
    assert place.held() == set()


@pytest.mark.parametrize(
    "below", ["", "s3://{}", "s3://{}/checkpoints/job-1", "s3://other/checkpoints/job-1/x"]
)
def test_nothing_outside_of_the_job_is_touched(place: Bucket, below: str) -> None:
    with pytest.raises(InvalidInput, match="is no step below"):
        place.store.remove(StepCopy(5, Tier.S3, StepState.COMPLETE, below.format(place.name)))


# --- steps -----------------------------------------------------------------------------------------


def test_each_step_is_listed_with_its_reason(place: Bucket) -> None:
    place.save(10)
    place.upload(20)
    place.put(place.key(30, FILE_NAME), place.upload(31).to_json())
    place.put(place.key(40, FILE_NAME), b"{}")
    place.put("checkpoints/job-1/step-50.tmp/x", b"x")
    place.put("checkpoints/job-1/checkpoint-x/x", b"x")
    other = Manifest(60, Lineage("job-2"), 1, Format.DCP, place.upload(60).shards, 1.0)
    place.put(place.key(60, FILE_NAME), other.to_json())
    place.put(place.key(70, FILE_NAME), TOMBSTONE)
    place.put(place.key(80, ".metadata"), b"dcp")
    place.put("checkpoints/job-1/notes.txt", b"x")
    place.put("checkpoints/job-1/logs/x", b"x")
    place.put("checkpoints/job-10/step-90/x", b"x")
    listed = {copy.name: (copy.state, copy.reason) for copy in place.store.steps()}
    assert listed.keys() == {
        "step-10", "step-20", "step-30", "step-31", "step-40", "step-50.tmp", "checkpoint-x", "step-60",
        "step-70", "step-80",
    }  # fmt: skip
    assert listed["step-10"] == (StepState.COMPLETE, "")
    partial = {name for name, (state, _) in listed.items() if state is StepState.PARTIAL}
    assert partial == {"step-20", "step-31", "step-50.tmp", "checkpoint-x", "step-70"}
    assert listed["step-30"] == (StepState.CORRUPT, "its manifest is of step 31")
    assert listed["step-40"][0] is StepState.CORRUPT
    assert listed["step-60"] == (StepState.FOREIGN, "it belongs to the job 'job-2'")
    assert listed["step-80"][0] is StepState.FOREIGN
    assert all(reason for name, (_, reason) in listed.items() if name != "step-10")


def test_a_step_of_many_shards_costs_few_calls(place: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pages of two keys, four shards and a manifest are three calls, and two are allowed."""
    monkeypatch.setattr("planaria.aws.bucket_objects.PAGE", 2)
    copy = place.save(500)
    monkeypatch.setattr("planaria.aws.checkpoint_bucket.LOOK_PAGES", 2)
    place.store.pin(copy, Pin("paper", "ann", 1.0))
    place.client.calls.clear()
    copy = place.copy(500)
    assert place.client.calls.count("list_objects_v2") == 3, "one of the job, two of the step"
    assert (copy.state, copy.pinned) == (StepState.COMPLETE, "paper")
    place.store.remove(copy)
    assert place.held() == set()


def test_which_jobs_have_steps_at_a_place(place: Bucket) -> None:
    place.save(10)
    place.save(20)
    place.put(place.key(30, FILE_NAME), b"no manifest")
    assert jobs_in(place.client, place.name, "checkpoints/job-1") == {"job-1": 2}
    assert jobs_in(place.client, place.name, "checkpoints") == {}


# --- sweep -----------------------------------------------------------------------------------------


def _begin_upload(place: Bucket, key: str) -> str:
    client = place.client.client
    begun = client.create_multipart_upload(Bucket=place.name, Key=key)["UploadId"]
    client.upload_part(Bucket=place.name, Key=key, UploadId=begun, PartNumber=1, Body=b"x" * (5 << 20))
    return str(begun)


def _uploads(place: Bucket) -> set[str]:
    listed = place.client.client.list_multipart_uploads(Bucket=place.name).get("Uploads") or ()
    return {each["Key"] for each in listed}


def test_sweep_takes_what_is_abandoned_and_nothing_else(place: Bucket) -> None:
    place.save(10)
    place.upload(20)
    place.put(place.key(30, FILE_NAME), TOMBSTONE)
    place.put(place.key(30, "x"), b"x")
    place.put(place.key(40, ".metadata"), b"somebody's own checkpoint")
    _begin_upload(place, place.key(50, NAMES[2]))
    _begin_upload(place, "elsewhere/x")
    assert place.store.sweep(time.time() - LATER) == [], "all of it is young"
    assert _uploads(place) == {place.key(50, NAMES[2]), "elsewhere/x"}
    removed = place.store.sweep(time.time() + LATER)
    assert {text.rpartition("/job-1/")[2] for text in removed} == {
        "step-20",
        "step-30",
        f"step-50/{NAMES[2]}",
    }
    left = {key.split("/")[2] for key in place.held()}
    assert left == {"step-10", "step-40"}
    assert _uploads(place) == {"elsewhere/x"}
    assert place.store.verify(place.copy(10)).state is StepState.DURABLE


def test_sweep_leaves_the_active_alone(place: Bucket) -> None:
    place.upload(20)
    _begin_upload(place, place.key(20, "large"))
    assert place.store.sweep(time.time() + LATER, {"step-20"}) == []
    assert _uploads(place) == {place.key(20, "large")}
    assert place.copy(20).state is StepState.PARTIAL


def test_a_step_with_a_young_upload_is_active(place: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its small shards are old; the large one is still on its way."""
    place.upload(20)
    upload = _begin_upload(place, place.key(20, "large"))
    monkeypatch.setattr(
        "planaria.aws.bucket_objects.BucketObjects._touched", lambda self, key, uid, begun: time.time() + 9999
    )
    assert upload
    assert place.store.sweep(time.time() + LATER) == []
    assert place.copy(20).state is StepState.PARTIAL


def test_a_sweep_that_meets_a_commit_removes_nothing(place: Bucket) -> None:
    """The committer comes between the sweep's look and its write."""
    manifest = place.upload(20)
    place.client.before["put_object"] = lambda: place.put(place.key(20, FILE_NAME), manifest.to_json())
    with pytest.raises(PermanentError, match="has changed while"):
        place.store.sweep(time.time() + LATER)
    assert place.store.verify(place.copy(20)).state is StepState.DURABLE


def test_one_that_cannot_be_swept_does_not_keep_the_others(place: Bucket) -> None:
    place.upload(20)
    place.upload(30)
    place.client.refuse["put_object", "step-20"] = "AccessDenied"
    with pytest.raises(PermanentError, match=r"not all .* AccessDenied.*removed: s3://.*step-30"):
        place.store.sweep(time.time() + LATER)
    assert {key.split("/")[2] for key in place.held()} == {"step-20"}


def test_pinned_and_half_written_stays(place: Bucket) -> None:
    place.upload(20)
    place.put(place.key(20, PIN_NAME), Pin("look at it", "ann", 1.0).to_json())
    assert place.store.sweep(time.time() + LATER) == []
