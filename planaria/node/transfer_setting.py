"""Where a node finds its cluster's bucket, table and region: the environment, else /etc/planaria/node.json.

    {"bucket": str, "table": str, "region": str, "mounts": [path], "network_gbps": number}

Environment: PLANARIA_BUCKET, PLANARIA_TABLE, AWS_REGION, PLANARIA_MOUNTS (paths with `:` between them),
PLANARIA_NETWORK_GBPS; AWS_ENDPOINT_URL and its like as everywhere.
"""

import json
import os
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planaria.aws.crt import Connect
from planaria.aws.transfer import Engine
from planaria.core.errors import InvalidInput
from planaria.core.transfer_ledger import TransferLedger

FILE = Path("/etc/planaria/node.json")
USUAL_GBPS = 10.0
"""Where nobody tells how fast the network is: too little rather than too much of it is then taken."""


@dataclass(slots=True)
class Setting:
    """stop: ends all that is under way. network_gbps: of this node, 0.0 where nobody tells."""

    bucket: str
    table: str
    region: str
    mounts: tuple[Path, ...] = ()
    network_gbps: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)
    _ending: threading.Event = field(default_factory=threading.Event)

    def end(self) -> None:
        """Somebody wants this process to end."""
        self._ending.set()
        self.stop.set()

    def go_on(self) -> bool:
        """After `stop` was set for what was under way alone; False where the whole process is to end."""
        if not self._ending.is_set():
            self.stop.clear()
        if self._ending.is_set():
            self.stop.set()
        return not self.stop.is_set()

    @staticmethod
    def read(environment: Mapping[str, str] = os.environ, path: Path = FILE) -> "Setting":
        """Raises InvalidInput where the bucket or the region is not told."""
        told: dict[str, Any] = {}
        try:
            told = dict(json.loads(path.read_bytes()))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError) as error:
            raise InvalidInput(f"{path} cannot be read: {error}") from None
        bucket = environment.get("PLANARIA_BUCKET") or told.get("bucket", "")
        region = (
            environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or told.get("region", "")
        )
        if not bucket or not region:
            lacking = "PLANARIA_BUCKET" if not bucket else "AWS_REGION"
            raise InvalidInput(f"{lacking} is not set, and {path} does not tell it")
        mounts = environment.get("PLANARIA_MOUNTS")
        paths = mounts.split(":") if mounts else told.get("mounts", [])
        return Setting(
            str(bucket),
            str(environment.get("PLANARIA_TABLE") or told.get("table", "")),
            str(region),
            tuple(Path(each) for each in paths if each),
            float(environment.get("PLANARIA_NETWORK_GBPS") or told.get("network_gbps") or 0.0),
        )

    def engine(self, bucket: str = "", share: float = 1.0) -> Engine:
        """share: of the node's network bandwidth."""
        limit = None if share >= 1 else max(1e6, share * self.gbps * 1e9 / 8)
        return Engine(bucket or self.bucket, Connect(self.region, bytes_per_second=limit), self.stop)

    @property
    def gbps(self) -> float:
        return self.network_gbps or _told_by_kernel() or USUAL_GBPS

    def ledger(self) -> TransferLedger:
        """Raises InvalidInput where the table is not told."""
        import boto3
        from botocore.config import Config

        from planaria.aws.dynamodb import DynamoTable

        if not self.table:
            raise InvalidInput(f"PLANARIA_TABLE is not set, and {FILE} does not tell it")
        config = Config(connect_timeout=3, read_timeout=10, retries={"mode": "standard", "max_attempts": 5})
        client = boto3.client("dynamodb", region_name=self.region, config=config)
        return TransferLedger(DynamoTable(client, self.table))

    def wrong_place(self, directory: Path) -> str:
        """One sentence where a directory is not on one of the cluster's file systems: without the mount, its
        path leads to the node's own disk. "" where it is right, or the cluster names none."""
        for mount in self.mounts:
            if directory == mount or mount in directory.parents:
                if os.path.ismount(mount):
                    return ""
                return (
                    f"{mount} is not mounted on this node, so {directory} would be on its own disk; mount it"
                )
        if not self.mounts:
            return ""
        named = ", ".join(map(str, self.mounts))
        return f"{directory} is on none of the cluster's file systems ({named}); put the job's folder there"


def owner() -> str:
    """Of claims: this process on this machine, told from one before it with the same number."""
    return f"{socket.gethostname()}:{os.getpid()}:{_started()}"


def _started() -> str:
    try:
        return Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"


def _told_by_kernel() -> float:
    """Gbit/s of the fastest network interface, 0.0 where the driver does not tell."""
    fastest = 0.0
    for path in Path("/sys/class/net").glob("*/speed"):
        try:
            fastest = max(fastest, int(path.read_text(encoding="ascii")) / 1000)
        except (OSError, ValueError):
            continue
    return fastest


def bucket_of(place: str) -> tuple[str, str]:
    """(bucket, prefix) of `s3://bucket/prefix`. Raises InvalidInput."""
    scheme, _, rest = place.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme != "s3" or not bucket or not prefix.strip("/"):
        raise InvalidInput(f"{place!r:.200} is no place in a bucket; it is written s3://bucket/prefix")
    return bucket, prefix.strip("/")
