"""Start and stop MiniStack, the AWS emulator of the sandbox, as one process group in one folder."""

import collections
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

from planaria.sandbox import ports, processes
from planaria.sandbox.errors import SandboxError

ACCOUNT = "000000000000"
REGION = "us-east-1"
KEY = "test"
"""MiniStack's root credentials, both halves; root is above IAM enforcement."""

NEEDED_BYTES = 300 * 2**20
READY_SECONDS = 60.0
_RECORD = "emulator.json"
_LOG = "emulator.log"


class Emulator:
    """One running MiniStack. As a context manager it is stopped at the end of the block."""

    def __init__(
        self, folder: Path, port: int, pid: int, process: subprocess.Popen[bytes] | None, lifeline: int | None
    ) -> None:
        self.folder = folder
        self.port = port
        self.pid = pid
        self._process = process
        self._lifeline = lifeline
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """The endpoint of every service, http://127.0.0.1:<port>."""
        return f"http://{ports.LOOPBACK}:{self.port}"

    @property
    def log(self) -> Path:
        """MiniStack's own log."""
        return self.folder / _LOG

    def environment(self) -> dict[str, str]:
        """The variables that turn the AWS SDK, CLI and CDK to this emulator and to nothing else."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            # A profile or a proxy of the person at the keyboard must not carry calls to a real account.
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }

    def client(self, service: str, **settings: Any) -> Any:
        """A boto3 client of this emulator, whatever the environment says. Thread-safe."""
        from botocore.config import Config

        direct = Config(proxies={}, retries={"mode": "standard", "max_attempts": 2})
        config = direct.merge(settings.pop("config", None) or Config())
        with self._lock:
            return self._session.client(service, endpoint_url=self.url, config=config, **settings)

    @functools.cached_property
    def _session(self) -> Any:
        import boto3
        import botocore.session

        # As (config key, environment variable, default, conversion): neither a profile nor a file is asked.
        nothing = {"profile": (None, None, None, None), "config_file": (None, None, os.devnull, None)}
        core = botocore.session.Session(session_vars=nothing)
        return boto3.Session(KEY, KEY, region_name=REGION, botocore_session=core)

    def alive(self) -> bool:
        """MiniStack's process exists."""
        if self._process is not None:
            return self._process.poll() is None
        return processes.started_at(self.pid) is not None

    def tail(self, lines: int = 5) -> str:
        """The last lines of the log that say something, for an error message."""
        try:
            with self.log.open(encoding="utf-8", errors="replace") as text:
                return "\n".join(collections.deque((line.rstrip() for line in text if line.strip()), lines))
        except OSError:
            return ""

    def stop(self, grace: float = 1.0) -> None:
        """End MiniStack and its Lambda workers: SIGTERM, SIGKILL after `grace` seconds. Twice is harmless.

        Its temporary files go, its log stays.
        """
        processes.end_group(self.pid, grace)
        if self._process is not None:
            self._process.wait()
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        (self.folder / _RECORD).unlink(missing_ok=True)
        shutil.rmtree(self.folder / "tmp", ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start(
    folder: Path,
    port: int | None = None,
    *,
    auth: bool = False,
    time_scale: float = 1.0,
    outlive: bool = False,
    ready_seconds: float = READY_SECONDS,
) -> Emulator:
    """Start MiniStack in `folder` and return once it answers.

    port: None or 0 takes a free one. auth: enforce IAM on Lambda roles. time_scale: seconds of the
    emulator per second of a Wait state; above 0. outlive: keep it running when this process ends;
    `attach` finds it again. Without it the emulator dies with this process, however that ends.
    Raises SandboxError.
    """
    if importlib.util.find_spec("ministack") is None:
        raise SandboxError(
            "MiniStack is not installed: `make demo` installs it, or pip install -r requirements.txt."
        )
    if not time_scale > 0:
        raise SandboxError(
            f"time_scale must be above 0, not {time_scale}: at 0 every wait becomes a hot loop."
        )
    if running := attach(folder):
        raise SandboxError(
            f"An emulator runs from {folder} already (pid {running.pid}, port {running.port}); "
            "`planaria sandbox down` ends it."
        )
    wanted = port
    for _ in range(3):
        emulator = _spawn(folder, ports.choose(wanted), auth, time_scale, outlive)
        try:
            _wait(emulator, ready_seconds)
        except _PortTaken:
            emulator.stop(grace=0)
            if wanted:
                break
        except BaseException:
            emulator.stop(grace=0)
            raise
        else:
            return emulator
    raise SandboxError(f"Port {emulator.port} was taken by another program meanwhile; try again.")


def attach(folder: Path) -> Emulator | None:
    """The emulator that runs from this folder, whoever started it; None when there is none."""
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        pid, port, ticks = int(record["pid"]), int(record["port"]), int(record["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if processes.started_at(pid) != ticks:
        return None
    return Emulator(folder, port, pid, None, None)


class _PortTaken(Exception):
    """MiniStack found its port in use."""


def _spawn(folder: Path, port: int, auth: bool, time_scale: float, outlive: bool) -> Emulator:
    temporary = folder / "tmp"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        free = shutil.disk_usage(folder).free
        if free < NEEDED_BYTES:
            raise SandboxError(
                f"The disk of {folder} has {free // 2**20} MB free and the sandbox needs "
                f"{NEEDED_BYTES // 2**20} MB; free some, or choose another folder with --dir."
            )
        log = (folder / _LOG).open("wb")
    except OSError as error:
        raise SandboxError(
            f"Cannot write to {folder} ({error.strerror}); choose another folder with --dir."
        ) from None
    reading, writing = (None, None) if outlive else os.pipe()
    script = Path(__file__).with_name("emulator_process.py")
    command = [sys.executable, "-I", str(script)] + ([] if reading is None else [str(reading)])
    with log:
        process = subprocess.Popen(
            command,
            cwd=temporary,
            env=_variables(temporary, port, auth, time_scale),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=() if reading is None else (reading,),
            start_new_session=True,
        )
    if reading is not None:
        os.close(reading)
    emulator = Emulator(folder, port, process.pid, process, writing)
    record = {"pid": process.pid, "port": port, "started": processes.started_at(process.pid) or 0}
    (folder / _RECORD).write_text(json.dumps(record), encoding="utf-8")
    return emulator


def _variables(temporary: Path, port: int, auth: bool, time_scale: float) -> dict[str, str]:
    """MiniStack's whole environment. Lambda workers inherit it, so nothing of the caller's AWS settings,
    PYTHONPATH or proxies may be in it."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LC_ALL", "TZ") if name in os.environ}
    return kept | {
        "GATEWAY_PORT": str(port),
        "BIND_HOST": ports.LOOPBACK,
        "TMPDIR": str(temporary),
        "S3_DATA_DIR": str(temporary / "s3"),
        "STATE_DIR": str(temporary / "state"),
        "IOT_MTLS_ENABLED": "0",
        "SFTP_ENABLED": "0",
        "AUTH": "true" if auth else "false",
        "SFN_WAIT_SCALE": str(time_scale),
        # A storm may use a process of 51 MB for each of these at most.
        "LAMBDA_ACCOUNT_CONCURRENCY": "64",
        "LAMBDA_WARM_TTL_SECONDS": "86400",
        # Reboots leave no trace in EC2's records here, only in this trail.
        "CLOUDTRAIL_RECORDING": "1",
        # It looks for containers of its own and removes them; the user's Docker is none of its business.
        "DOCKER_HOST": f"unix://{temporary / 'no-docker.sock'}",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _wait(emulator: Emulator, seconds: float) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not emulator.alive():
            said = emulator.tail()
            if "already in use" in said or "address already in use" in said.lower():
                raise _PortTaken
            if "No space left on device" in said:
                raise SandboxError(f"The disk of {emulator.folder} is full; free some space and try again.")
            raise SandboxError(
                f"The emulator ended while it started; its last lines ({emulator.log}):\n{said}"
            )
        try:
            with opener.open(emulator.url + "/_ministack/ready", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.05)
    said = emulator.tail()
    raise SandboxError(
        f"The emulator did not answer within {seconds:.0f} s; its last lines ({emulator.log}):\n{said}"
    )
