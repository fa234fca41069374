"""What checkpoints need of S3: listings with a bound, conditional writes, deletes that tell every error.

Conditional requests: https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-requests.html
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

from planaria.aws.errors import code_of, of_object, translated
from planaria.core.errors import InvalidInput, PermanentError, TransientError
from planaria.core.manifest import LARGEST

PAGE = 1000
"""Keys of one ListObjectsV2, and of one DeleteObjects."""
MOST_PAGES = 1000
ABSENT = frozenset({"404", "NoSuchKey", "NotFound"})
DENIED = frozenset({"403", "AccessDenied", "Forbidden"})
_MOST_TOLD = 3


@dataclass(frozen=True, slots=True)
class Stored:
    """size: bytes; modified: epoch seconds."""

    size: int
    modified: float


@dataclass(frozen=True, slots=True)
class Listing:
    """objects: name below the prefix -> what is there. whole: False where the bound was met first."""

    objects: Mapping[str, Stored] = field(default_factory=dict)
    whole: bool = True

    @property
    def touched(self) -> float | None:
        return max((each.modified for each in self.objects.values()), default=None)


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload that is neither complete nor aborted. touched: its start or its newest part."""

    key: str
    upload_id: str
    touched: float


class BucketObjects:
    """client: a boto3 s3 client, used by several threads at once. All raise as errors.of_object sorts it."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._client = client
        self.bucket = bucket

    def folders(self, prefix: str) -> list[str]:
        """The names directly below `prefix` (which ends with `/`) that have something below them."""
        names: list[str] = []
        for page in self._pages(prefix, MOST_PAGES, Delimiter="/"):
            names += [each["Prefix"][len(prefix) : -1] for each in page.get("CommonPrefixes", ())]
        return names

    def listing(self, prefix: str, pages: int = MOST_PAGES) -> Listing:
        """Everything below `prefix`, in at most `pages` calls."""
        objects: dict[str, Stored] = {}
        page: Mapping[str, Any] = {}
        for page in self._pages(prefix, pages):
            for each in page.get("Contents", ()):
                objects[each["Key"][len(prefix) :]] = Stored(
                    int(each["Size"]), each["LastModified"].timestamp()
                )
        return Listing(objects, not page.get("IsTruncated"))

    def head(self, key: str) -> Mapping[str, Any]:
        """With the checksum, where S3 has one."""
        with translated(of_object):
            found: Mapping[str, Any] = self._client.head_object(
                Bucket=self.bucket, Key=key, ChecksumMode="ENABLED"
            )
        return found

    def get(self, key: str) -> tuple[bytes, str] | None:
        """The object and its ETag; None where there is none. Raises InvalidInput for one above LARGEST."""
        try:
            with translated(of_object):
                answer = self._client.get_object(Bucket=self.bucket, Key=key)
                if int(answer["ContentLength"]) > LARGEST:
                    answer["Body"].close()
                    raise InvalidInput(
                        f"s3://{self.bucket}/{key} has {answer['ContentLength']} bytes, "
                        f"and at most {LARGEST} are read"
                    )
                return bytes(answer["Body"].read()), str(answer["ETag"])
        except PermanentError as error:
            if _code(error) in ABSENT:
                return None
            raise

    def put(self, key: str, body: bytes, **condition: str) -> str | None:
        """condition: IfNoneMatch or IfMatch. -> the ETag; None where the condition does not hold.

        Of two writers at once S3 may tell one that it does not know yet (409): that one asks again by itself.
        """
        try:
            with translated(of_object):
                answer = self._client.put_object(Bucket=self.bucket, Key=key, Body=body, **condition)
        except (PermanentError, TransientError) as error:
            if _code(error) == "PreconditionFailed" or ("IfMatch" in condition and _code(error) in ABSENT):
                return None
            raise
        return str(answer["ETag"])

    def delete(self, keys: Iterable[str]) -> None:
        """In batches. Raises once all were tried, naming what is still there: PermanentError when any of it
        will not go by asking again."""
        failed: list[Mapping[str, Any]] = []
        batch: list[str] = []
        for key in keys:
            batch.append(key)
            if len(batch) == PAGE:
                failed += self._delete(batch)
                batch = []
        if batch:
            failed += self._delete(batch)
        if failed:
            told = "; ".join(f"{each.get('Key')}: {each.get('Code')}" for each in failed[:_MOST_TOLD])
            more = f" and {len(failed) - _MOST_TOLD} more" if len(failed) > _MOST_TOLD else ""
            kinds = {type(of_object(str(each.get("Code")), "")) for each in failed}
            kind = PermanentError if PermanentError in kinds else TransientError
            raise kind(f"{len(failed)} objects of s3://{self.bucket} were not deleted: {told}{more}")

    def delete_if(self, key: str, etag: str) -> None:
        """Unless it is another object by now."""
        try:
            with translated(of_object):
                self._client.delete_object(Bucket=self.bucket, Key=key, IfMatch=etag)
        except (PermanentError, TransientError) as error:
            if _code(error) != "PreconditionFailed" and _code(error) not in ABSENT:
                raise

    def uploads(self, prefix: str) -> list[Upload]:
        """Those below `prefix`. One whose parts are told no more is over, and not among them."""
        found: list[Upload] = []
        marks: dict[str, str] = {}
        for _ in range(MOST_PAGES):
            with translated(of_object):
                page = self._client.list_multipart_uploads(Bucket=self.bucket, Prefix=prefix, **marks)
            for each in page.get("Uploads", ()):
                touched = self._touched(each["Key"], each["UploadId"], each["Initiated"].timestamp())
                if touched is not None:
                    found.append(Upload(each["Key"], each["UploadId"], touched))
            if not page.get("IsTruncated"):
                break
            marks = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
        return found

    def abort(self, upload: Upload) -> None:
        """Quiet when it is over already."""
        try:
            with translated(of_object):
                self._client.abort_multipart_upload(
                    Bucket=self.bucket, Key=upload.key, UploadId=upload.upload_id
                )
        except PermanentError as error:
            if _code(error) not in ABSENT | {"NoSuchUpload"}:
                raise

    def _touched(self, key: str, upload_id: str, begun: float) -> float | None:
        """None where the upload is over."""
        newest, marker = begun, 0
        try:
            for _ in range(MOST_PAGES):
                with translated(of_object):
                    page = self._client.list_parts(
                        Bucket=self.bucket, Key=key, UploadId=upload_id, PartNumberMarker=marker
                    )
                parts = page.get("Parts", ())
                newest = max([newest, *(each["LastModified"].timestamp() for each in parts)])
                if not page.get("IsTruncated"):
                    break
                marker = page["NextPartNumberMarker"]
        except PermanentError as error:
            if _code(error) in ABSENT | {"NoSuchUpload"}:
                return None
            raise
        return newest

    def _pages(self, prefix: str, most: int, **options: str) -> Iterator[Mapping[str, Any]]:
        token: dict[str, str] = {}
        for _ in range(most):
            with translated(of_object):
                page = self._client.list_objects_v2(
                    Bucket=self.bucket, Prefix=prefix, MaxKeys=PAGE, **options, **token
                )
            yield page
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def _delete(self, keys: Sequence[str]) -> list[Mapping[str, Any]]:
        listed = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        with translated(of_object):
            answer = self._client.delete_objects(Bucket=self.bucket, Delete=listed)
        return [each for each in answer.get("Errors", ()) if each.get("Code") not in ABSENT]


def denied(error: Exception) -> bool:
    return _code(error) in DENIED


def absent(error: Exception) -> bool:
    return _code(error) in ABSENT


def _code(error: Exception) -> str:
    return code_of(error.__cause__) if isinstance(error.__cause__, ClientError) else ""
