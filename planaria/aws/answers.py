"""What S3's answers say: listings, uploads and parts, read from their XML by the few elements that we need.

Every text comes with `encoding-type=url` where S3 has it, so a key may hold any character.
"""

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote_plus
from xml.sax.saxutils import escape, unescape

from planaria.core.errors import TransientError

_ENTITIES = {"&quot;": '"', "&apos;": "'", "&#34;": '"', "&#39;": "'"}


class Answered(Protocol):
    @property
    def headers(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True)
class Listed:
    """One object of a listing. etag: as S3 writes it, with its quotes."""

    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class Page:
    """more: the token of the next page, "" after the last one."""

    objects: dict[str, Listed]
    more: str


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as HeadObject tells of it. crc64nvme: of the whole object (base64), "" where S3 has none."""

    size: int
    crc64nvme: str
    etag: str


@dataclass(frozen=True, slots=True)
class Upload:
    """An unfinished multipart upload. initiated: ISO 8601; algorithm: its checksum's, "" where not told."""

    key: str
    upload: str
    initiated: str
    algorithm: str


@dataclass(frozen=True, slots=True)
class ListedPart:
    size: int
    etag: str
    crc64nvme: str


@dataclass(frozen=True, slots=True)
class PartsPage:
    """more: the marker of the next page, 0 after the last one."""

    parts: dict[int, ListedPart]
    more: int


def listing(body: bytes) -> Page:
    """A page of ListObjectsV2."""
    objects = {}
    for entry in _elements(body, "Contents"):
        objects[unquote_plus(_text(entry, "Key"))] = Listed(
            int(_text(entry, "Size") or 0), _text(entry, "ETag")
        )
    head = re.sub(rb"<Contents>.*</Contents>", b"", body, flags=re.DOTALL)
    more = _text(head, "NextContinuationToken") if _text(head, "IsTruncated") == "true" else ""
    return Page(objects, more)


def stored(reply: Answered) -> Stored:
    """A composite checksum, of parts and not of the object, proves nothing and is left out."""
    headers = reply.headers
    whole = headers.get("x-amz-checksum-type", "FULL_OBJECT") == "FULL_OBJECT"
    crc = headers.get("x-amz-checksum-crc64nvme", "") if whole else ""
    return Stored(int(headers.get("content-length", 0)), crc, headers.get("etag", ""))


def uploads(body: bytes) -> list[Upload]:
    """ListMultipartUploads."""
    return [
        Upload(
            unquote_plus(_text(each, "Key")),
            _text(each, "UploadId"),
            _text(each, "Initiated"),
            _text(each, "ChecksumAlgorithm"),
        )
        for each in _elements(body, "Upload")
    ]


def parts(body: bytes) -> PartsPage:
    """A page of ListParts."""
    found = {
        int(_text(each, "PartNumber")): ListedPart(
            int(_text(each, "Size") or 0), _text(each, "ETag"), _text(each, "ChecksumCRC64NVME")
        )
        for each in _elements(body, "Part")
    }
    more = int(_text(body, "NextPartNumberMarker") or 0) if _text(body, "IsTruncated") == "true" else 0
    return PartsPage(found, more)


def created(body: bytes) -> str:
    """The id of a new multipart upload."""
    upload = _text(body, "UploadId")
    if not upload:
        raise TransientError("S3 began no multipart upload, and did not say why")
    return upload


def completion(parts_there: Iterable[tuple[int, str, str]]) -> bytes:
    """The body of CompleteMultipartUpload from (number, ETag, CRC64NVME) of each part in order."""
    entries = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(etag)}</ETag>"
        f"<ChecksumCRC64NVME>{crc}</ChecksumCRC64NVME></Part>"
        for number, etag, crc in parts_there
    )
    space = "http://s3.amazonaws.com/doc/2006-03-01/"
    return f'<CompleteMultipartUpload xmlns="{space}">{entries}</CompleteMultipartUpload>'.encode()


def etag_of(body: bytes) -> str:
    return _text(body, "ETag")


def number(crc64nvme: str) -> int:
    """A CRC64NVME from S3's text."""
    return int.from_bytes(base64.b64decode(crc64nvme), "big")


def _elements(body: bytes, tag: str) -> list[bytes]:
    return re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), body, flags=re.DOTALL)


def _text(body: bytes, tag: str) -> str:
    found = re.search(rf"<{tag}>([^<]*)</{tag}>".encode(), body)
    return unescape(found[1].decode("utf-8", errors="replace"), _ENTITIES) if found else ""
