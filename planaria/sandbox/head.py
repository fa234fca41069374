"""The head of the sandbox: its scheduler, its EC2 instances and the local HTTP API to both.

    python -m planaria.sandbox.head --config FILE

FILE is the JSON of a HeadConfig. A line {"ready": true, "url": ...} appears on stdout once the API answers.
SIGTERM, SIGINT and, when stdin is a pipe, its end end everything that the head has started; when the head is
killed its children end by themselves.
"""

import argparse
import fcntl
import functools
import json
import logging
import logging.handlers
import os
import secrets
import signal
import stat
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any, Self

from planaria.core.errors import InvalidInput, PlanariaError
from planaria.core.scheduling import SchedulerRequest, Stop
from planaria.memory.cluster_state import ClusterState
from planaria.sandbox import faults, slurm_side
from planaria.sandbox.documents import Documents
from planaria.sandbox.emulator import KEY, REGION
from planaria.sandbox.errors import SandboxError
from planaria.sandbox.jobs import Jobs, signal_number
from planaria.sandbox.local_api import LocalApi
from planaria.sandbox.node_process import NodeProcess
from planaria.sandbox.player import Player, PlayerConfig
from planaria.sandbox.rank_server_process import RankServerProcess
from planaria.sandbox.slurm_jobs import SlurmJobs
from planaria.sandbox.slurm_side import SlurmSide
from planaria.schedulers.wire import decode

LONGEST_SOCKET_PATH = 107  # bytes, unix(7)
_MOST_TICKETS = 10_000
_MOST_LOG_BYTES = 10 * 2**20
logger = logging.getLogger("planaria.sandbox")


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """folder: the sandbox's. endpoint: the emulator's URL. port: 0 takes a free one. token: empty makes one.
    boot_seconds, notice_seconds: as in PlayerConfig, each multiplied by time_scale for notice_seconds alone.
    node_role: ARN of the agents' role or empty. bus: empty is planaria-<cluster>. rank_command: the rank
    server's program, empty for the real one. poll_seconds: how often EC2's records are read. slurm_head: the
    instance id that stands for Slurm's head node; empty: the head schedules by itself. slurm_names: the names
    that Slurm knows."""

    folder: str
    cluster: str
    endpoint: str
    port: int = 0
    token: str = ""
    bus: str = ""
    region: str = REGION
    access_key: str = KEY
    secret_key: str = KEY
    node_role: str = ""
    boot_seconds: float = 3.0
    notice_seconds: float = 120.0
    time_scale: float = 1.0
    poll_seconds: float = 0.1
    rank_command: tuple[str, ...] = ()
    slurm_head: str = ""
    slurm_names: tuple[str, ...] = ()

    @staticmethod
    def read(path: Path) -> "HeadConfig":
        """Raises InvalidInput with one sentence."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            for name in ("rank_command", "slurm_names"):
                document[name] = tuple(document.get(name, ()))
            return HeadConfig(**document)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            known = ", ".join(each.name for each in fields(HeadConfig))
            raise InvalidInput(
                f"the head's configuration {path} cannot be used ({error}); known are {known}"
            ) from None

    @property
    def environment(self) -> dict[str, str]:
        """What turns the AWS SDK of a child to the emulator and to nothing else."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "NO_PROXY": "127.0.0.1,localhost",
        }


class Head:
    """Start it, use `url` and `token`, stop it; or use it as a context manager."""

    def __init__(self, config: HeadConfig) -> None:
        """Raises SandboxError when the port cannot be had, InvalidInput for files of another version."""
        self.config = config
        self.folder = Path(config.folder).resolve()
        ranks = RankServerProcess(self.folder, config.rank_command)
        if len(os.fsencode(ranks.socket)) > LONGEST_SOCKET_PATH:
            raise SandboxError(f"The name of {self.folder} is too long; choose a shorter one with --dir.")
        self.token = config.token or secrets.token_urlsafe(32)
        self.state = ClusterState()
        self.lock = threading.RLock()
        for name in ("nodes", "jobs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._folder_lock: IO[str] | None = None
        self._tickets: dict[str, tuple[SchedulerRequest, dict[str, Any]]] = {}
        settings = PlayerConfig(
            cluster=config.cluster,
            bus=config.bus or f"planaria-{config.cluster}",
            folder=self.folder,
            boot_seconds=config.boot_seconds,
            notice_seconds=config.notice_seconds * config.time_scale,
            poll_seconds=config.poll_seconds,
            node_role=config.node_role,
            environment=config.environment,
        )
        self.player = Player(settings, self.client, self)
        self.slurm: SlurmSide | None = None
        if config.slurm_head:
            side = self.slurm = SlurmSide(self.folder, config.slurm_names, self.state, self.lock)
            self.jobs: Jobs = SlurmJobs(self.folder, self.state, self.lock, ranks, side.slurm, side.holder_of)
        else:
            self.jobs = Jobs(self.folder, self.state, self.lock, self._leader_of, ranks)
        self.documents = Documents(self.player.nodes, self.jobs, self._job_lives, self.folder)
        self.bench = faults.Bench(self.player, self.jobs, self.state, self.lock, self.client, self.slurm)
        self._api = LocalApi(
            config.port,
            self.token,
            {
                ("POST", "/scheduler/submit"): self._scheduler_submit,
                ("POST", "/scheduler/poll"): self._scheduler_poll,
                ("POST", "/commands/submit"): self._commands_submit,
                ("POST", "/commands/poll"): self._commands_poll,
                ("POST", "/inject"): lambda body: {"injected": faults.inject(self.bench, body)},
                ("POST", "/jobs/submit"): self._jobs_submit,
                ("GET", "/status"): lambda _: self.status(),
            },
        )

    @property
    def url(self) -> str:
        return self._api.url

    def start(self) -> None:
        """Returns once the API answers; nodes boot and PyTorch is loaded in the background.

        Raises SandboxError when a head runs from this folder already.
        """
        self._claim_folder()
        if self.slurm is not None:
            self.slurm.start()
        self.jobs.start()
        self.player.start()
        self._api.start()
        path = self.folder / "head.json"
        document = {"pid": os.getpid(), "url": self.url, "token": self.token, "at": time.time()}
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(document, file)

    def stop(self) -> None:
        """End every node, every rank and the API. Files stay, but for those that only a live head needs."""
        self._api.stop()
        if self._folder_lock is None:
            return
        self.player.stop()
        self.jobs.stop()
        if self.slurm is not None:
            self.slurm.stop()
        (self.folder / "head.json").unlink(missing_ok=True)
        self._folder_lock.close()
        self._folder_lock = None

    def _claim_folder(self) -> None:
        """Held until this process ends, however it ends."""
        lock = (self.folder / "head.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise SandboxError(f"A sandbox runs from {self.folder} already.") from None
        self._folder_lock = lock

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def client(self, service: str) -> Any:
        """A boto3 client of the emulator, whatever the environment says. Times out in seconds."""
        from botocore.config import Config

        config = Config(connect_timeout=2, read_timeout=10, proxies={}, retries={"total_max_attempts": 1})
        return _session(self.config).client(service, endpoint_url=self.config.endpoint, config=config)

    def status(self) -> dict[str, Any]:
        """Everything for `sandbox status`."""
        self.player.refresh()
        with self.lock:
            jobs = {
                job_id: {**self.state.job_document(job_id), "live_ranks": job.live_ranks}
                for job_id, job in self.state.jobs.items()
            }
            scheduler = {
                name: {
                    **asdict(node),
                    "state": str(self.state.state_of(name)),
                    "jobs": self.state.jobs_on(name),
                }
                for name, node in self.state.nodes.items()
            }
        if self.slurm is not None:
            # The mirror knows who has a name; whether it may work is Slurm's to say.
            states = self.slurm.states()
            for name, node in scheduler.items():
                node["state"] = states.get(name, "UNKNOWN")
        return {
            "cluster": self.config.cluster,
            "pid": os.getpid(),
            "rank_server": {"pid": self.jobs.ranks.pid, "ready": self.jobs.ranks.ready()},
            "scheduler": scheduler,
            "jobs": jobs,
            **self.player.document(),
        }

    # --- what the player says (planaria.sandbox.player.World) ------------------------------------

    def node_up(self, node: NodeProcess, waits: bool) -> None:
        """A replacement or spare enters the scheduler by Join alone; a first node of its name by booting."""
        with self.lock:
            if not waits:
                self.state.register(node.name, node.instance_id, node.address)
            self.state.node_up(node.instance_id)
        if self.slurm is not None:
            self.slurm.came_up(node.name, node.instance_id)
        self.jobs.work()

    def node_down(self, node: NodeProcess) -> None:
        with self.lock:
            self.state.node_down(node.instance_id)
        if self.slurm is not None:
            self.slurm.went_down(node.instance_id)
        # A rank may have joined the group while the group was killed.
        self.jobs.kill_ranks_on(node.instance_id)
        self.jobs.work()

    # --- routes ----------------------------------------------------------------------------------

    def _scheduler_submit(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.slurm is not None:
            raise InvalidInput("the scheduler of this sandbox is Slurm; ask its head node's documents")
        request = decode(body)
        if isinstance(request, Stop):
            signal_number(request.signal)
        self.player.refresh()
        with self.lock:
            value = self.state.answer(request, time.time())
            ticket = f"scheduler-{secrets.token_hex(12)}"
            self._tickets[ticket] = (request, value)
            if len(self._tickets) > _MOST_TICKETS:
                del self._tickets[next(iter(self._tickets))]
        self.jobs.work()
        return {"ticket": ticket}

    def _scheduler_poll(self, body: dict[str, Any]) -> dict[str, Any]:
        ticket = _text(body, "ticket")
        with self.lock:
            if ticket not in self._tickets:
                return {"state": "UNKNOWN", "value": {}, "reason": f"no ticket {ticket}: ask again"}
            request, value = self._tickets[ticket]
            return {"state": "DONE", "value": self.state.review(request, value, time.time()), "reason": ""}

    def _commands_submit(self, body: dict[str, Any]) -> dict[str, Any]:
        node_ids, parameters = body.get("node_ids"), body.get("parameters", {})
        if not isinstance(node_ids, list) or not all(isinstance(n, str) for n in node_ids):
            raise InvalidInput("node_ids must be a list of instance ids")
        if not isinstance(parameters, dict):
            raise InvalidInput("parameters must be an object")
        self.player.refresh()
        texts = {str(key): str(value) for key, value in parameters.items()}
        document = _text(body, "document")
        if self.slurm is not None and document.startswith(slurm_side.PREFIX):
            if document in slurm_side.ENDING and isinstance(self.jobs, SlurmJobs):
                self.jobs.stopping(texts.get("Jobs") or texts.get("Job", ""))
            return {"ticket": self.slurm.submit(document, node_ids, texts)}
        return {"ticket": self.documents.submit(document, node_ids, texts)}

    def _commands_poll(self, body: dict[str, Any]) -> dict[str, Any]:
        ticket = _text(body, "ticket")
        if self.slurm is not None and self.slurm.owns(ticket):
            return self.slurm.poll(ticket)
        return self.documents.poll(ticket)

    def _jobs_submit(self, body: dict[str, Any]) -> dict[str, Any]:
        recipe = body.get("recipe")
        if not isinstance(recipe, Mapping):
            raise InvalidInput("recipe must be an object")
        job = self.jobs.submit(_text(body, "job_id"), dict(recipe))
        with self.lock:
            document = self.state.job_document(job.job_id)
        return {**document, "checkpoints": str(self.jobs.folder(job.job_id).checkpoints)}

    def _leader_of(self, node_id: str) -> int | None:
        node = self.player.nodes().get(node_id)
        return node.leader if node else None

    def _job_lives(self, job_id: str) -> bool:
        with self.lock:
            job = self.state.jobs.get(job_id)
            return job is not None and bool(job.live_ranks)


@functools.cache
def _session(config: HeadConfig) -> Any:
    import boto3

    return boto3.Session(
        aws_access_key_id=config.access_key,
        aws_secret_access_key=config.secret_key,
        region_name=config.region,
    )


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{name} must be a text")
    return value


def _end_with_stdin(ending: threading.Event) -> None:
    while os.read(0, 4096):
        pass
    ending.set()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="planaria.sandbox.head", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file with the fields of HeadConfig")
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: ending.set())
    try:
        config = HeadConfig.read(parser.parse_args(arguments).config)
        Path(config.folder).mkdir(parents=True, exist_ok=True)
        log = logging.handlers.RotatingFileHandler(
            Path(config.folder) / "head.log", maxBytes=_MOST_LOG_BYTES, backupCount=1
        )
        form = "%(asctime)s %(levelname)s %(message)s"
        logging.basicConfig(level=logging.INFO, handlers=[log], format=form)
        head = Head(config)
    except (PlanariaError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    try:
        head.start()
        sys.stdout.write(json.dumps({"ready": True, "url": head.url, "pid": os.getpid()}) + "\n")
        sys.stdout.flush()
        if stat.S_ISFIFO(os.fstat(0).st_mode):
            threading.Thread(target=_end_with_stdin, args=(ending,), daemon=True).start()
        ending.wait()
    except (SandboxError, InvalidInput) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    finally:
        head.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
