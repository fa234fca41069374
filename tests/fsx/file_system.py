"""A file system of the FSx double: a directory, linked to prefixes of buckets, that exports and imports files
as FSx for Lustre does.

https://docs.aws.amazon.com/fsx/latest/LustreGuide/export-changed-data-meta-dra.html
https://docs.aws.amazon.com/fsx/latest/LustreGuide/task-completion-report.html
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from botocore.exceptions import ClientError

LONGEST_KEY = 1024


class Bucket(Protocol):
    """The object store that the double writes to and reads from."""

    def put(self, bucket: str, key: str, body: bytes | Path) -> None: ...
    def keys(self, bucket: str, prefix: str) -> list[str]: ...
    def get(self, bucket: str, key: str) -> bytes: ...


class MemoryBucket:
    """objects: (bucket, key) -> body. denied: keys that nobody may write."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], bytes] = {}
        self.denied: set[str] = set()

    def put(self, bucket: str, key: str, body: bytes | Path) -> None:
        if key in self.denied:
            raise PermissionError(key)
        self.objects[bucket, key] = body if isinstance(body, bytes) else body.read_bytes()

    def keys(self, bucket: str, prefix: str) -> list[str]:
        return sorted(key for where, key in self.objects if where == bucket and key.startswith(prefix))

    def get(self, bucket: str, key: str) -> bytes:
        return self.objects[bucket, key]


class S3Bucket:
    """client: a boto3 s3 client. Objects get S3's full-object CRC64NVME, as those of FSx have."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def put(self, bucket: str, key: str, body: bytes | Path) -> None:
        content = body if isinstance(body, bytes) else body.read_bytes()
        try:
            self._client.put_object(Bucket=bucket, Key=key, Body=content, ChecksumAlgorithm="CRC64NVME")
        except ClientError as error:
            if error.response["Error"]["Code"] == "AccessDenied":
                raise PermissionError(key) from error
            raise

    def keys(self, bucket: str, prefix: str) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [found["Key"] for page in pages for found in page.get("Contents", [])]

    def get(self, bucket: str, key: str) -> bytes:
        return bytes(self._client.get_object(Bucket=bucket, Key=key)["Body"].read())


@dataclass(slots=True)
class FileSystem:
    """root: its directory. links: file system path (`/checkpoints/`) -> `s3://bucket/prefix/`. busy: paths
    that somebody is writing."""

    id: str
    root: Path
    links: dict[str, str]
    busy: set[str] = field(default_factory=set)

    def link(self, path: str) -> tuple[str, str] | None:
        """(file system path, repository path) of the association that holds a path."""
        return next((pair for pair in self.links.items() if f"/{path.strip('/')}/".startswith(pair[0])), None)

    def owns(self, url: str) -> bool:
        """Whether an `s3://` place lies in one of its repositories."""
        return any(f"{url.rstrip('/')}/".startswith(place) for place in self.links.values())

    def below(self, path: str) -> Iterator[str]:
        """Directories (with `/` at their end) and files at and below a path, parents first.

        Raises FileNotFoundError."""
        start = self.root / path
        if start.is_file():
            yield path
            return
        if not start.is_dir():
            raise FileNotFoundError(path)
        for folder, folders, files in os.walk(start):
            folders.sort()
            inside = Path(folder).relative_to(self.root).as_posix()
            yield f"{inside}/"
            yield from (f"{inside}/{name}" for name in sorted(files))

    def export(self, path: str, bucket: Bucket) -> str:
        """One directory or file -> FSx's error code, "" when it is in S3. A directory is an empty object with
        `/` at the end of its key, for its owner and mode."""
        found = self.link(path)
        if found is None:
            return "S3Error"
        where, place = found
        name, _, prefix = place.removeprefix("s3://").partition("/")
        key = prefix + f"/{path}"[len(where) :]
        if len(key.encode()) > LONGEST_KEY:
            return "PathSizeTooLong"
        if path in self.busy:
            return "ResourceBusy"
        try:
            if key:
                bucket.put(name, key, b"" if path.endswith("/") else self.root / path)
        except PermissionError:
            return "S3AccessDenied"
        return ""

    def listed(self, url: str, bucket: Bucket) -> list[tuple[str, str, str]]:
        """(bucket, key, path) of each object below an `s3://` place of a repository."""
        found = []
        for where, place in self.links.items():
            if not f"{url.rstrip('/')}/".startswith(place):
                continue
            name, _, prefix = place.removeprefix("s3://").partition("/")
            wanted = url.removeprefix("s3://").partition("/")[2]
            keys = bucket.keys(name, wanted)
            found += [(name, key, (where + key[len(prefix) :]).lstrip("/")) for key in keys]
        return found

    def take(self, found: tuple[str, str, str], bucket: Bucket) -> None:
        """The file appears in the file system. FSx brings its content when it is first read; here at once."""
        name, key, path = found
        target = self.root / path
        if path.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(bucket.get(name, key))
