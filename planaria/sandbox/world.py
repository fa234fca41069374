"""A whole sandbox: the emulator, this CDK app deployed to it, and a small cluster of processes.

<folder>/  sandbox.json (what runs), emulator/, head.json, nodes/, jobs/
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from planaria.core import tags
from planaria.core.cluster import Capacity
from planaria.core.errors import InvalidInput
from planaria.core.ports import LaunchRequest
from planaria.recipes import ClusterFile
from planaria.sandbox import deploy, emulator, ports, processes, slurm_cluster, slurm_side
from planaria.sandbox.errors import SandboxError
from planaria.sandbox.head import HeadConfig
from planaria.sandbox.job_folder import write_json
from planaria.sandbox.node_programs import NODE_FILE
from planaria.schedulers.process import HeadClient
from planaria.wiring import Gateways

ROOT = Path(__file__).resolve().parents[2]
DEMO_CLUSTER = ROOT / "recipes/clusters/demo.yaml"
NODE_ROLE = "node"  # the part of the node role's name after planaria-<cluster>-
READY_SECONDS = 90.0

Progress = Callable[[str], None]


def default_folder(cluster: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "planaria" / "sandbox" / cluster


@dataclass(frozen=True, slots=True)
class WorldConfig:
    """time_scale: sandbox seconds per second of a wait or a time-out. boot_seconds: how long an instance
    boots, not scaled. auth: the emulator enforces IAM. direct: create the stacks through CloudFormation
    from an in-process synth instead of the CDK CLI (tests). outlive: keep running when this process ends.
    rank_command, poll_seconds: as in HeadConfig."""

    folder: Path
    cluster_file: Path = DEMO_CLUSTER
    time_scale: float = 0.1
    boot_seconds: float = 3.0
    port: int = 0
    auth: bool = False
    direct: bool = False
    outlive: bool = False
    rank_command: tuple[str, ...] = ()
    poll_seconds: float = 0.1


class World:
    """Everything of one running sandbox. As a context manager it leaves no process and no file behind."""

    def __init__(self, config: WorldConfig, progress: Progress = deploy.quiet) -> None:
        self.config = config
        self.folder = config.folder.resolve()
        self.file = ClusterFile.load(config.cluster_file)
        self.progress = progress
        self.emulator: emulator.Emulator | None = None
        self.outputs: dict[str, str] = {}
        self._head: subprocess.Popen[str] | None = None
        self._head_url = ""
        self._own = False  # the folder is this sandbox's, and goes with it
        self._token = secrets.token_urlsafe(24)

    # --- up and down -------------------------------------------------------------------------------

    def up(self) -> Self:
        """Start everything; returns when all nodes are ready. Raises SandboxError with one sentence."""
        if (self.folder / "sandbox.json").exists():
            raise SandboxError(f"A sandbox is in {self.folder} already; `planaria sandbox down` ends it.")
        if self.folder.exists() and any(self.folder.iterdir()):
            raise SandboxError(f"{self.folder} is not empty; choose a folder of the sandbox's own.")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._own = True
        try:
            self._start_emulator()
            self._start_head()
            self._deploy()
            self._launch_nodes()
            self._save()
        except BaseException:
            self.down()
            raise
        return self

    def down(self) -> None:
        """End every process and remove the folder. Twice is harmless."""
        if self._head is not None:
            if self._head.stdin is not None:
                self._head.stdin.close()
            end_head(self._head.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._head.wait(5)
            self._head = None
        if self.emulator is not None:
            self.emulator.stop()
            self.emulator = None
        slurm_cluster.stop(slurm_side.folder_of(self.folder))
        if self._own:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.up()

    def __exit__(self, *_: object) -> None:
        self.down()

    def _start_emulator(self) -> None:
        self.progress("starting the AWS emulator")
        self.emulator = emulator.start(
            self.folder / "emulator",
            self.config.port or None,
            auth=self.config.auth,
            time_scale=self.config.time_scale,
            outlive=self.config.outlive,
        )

    def _start_head(self) -> None:
        """Before the deploy: PyTorch loads meanwhile, and the stacks need the head's address."""
        assert self.emulator is not None
        port = ports.free_port()
        name = self.file.name
        config = HeadConfig(
            folder=str(self.folder),
            cluster=name,
            endpoint=self.emulator.url,
            port=port,
            token=self._token,
            node_role=f"arn:aws:iam::{emulator.ACCOUNT}:role/planaria-{name}-{NODE_ROLE}",
            boot_seconds=self.config.boot_seconds,
            time_scale=self.config.time_scale,
            rank_command=self.config.rank_command,
            poll_seconds=self.config.poll_seconds,
            slurm_head=self.file.slurm.head_node if self.file.slurm else "",
            slurm_names=tuple(f"{name}-{n}" for n in range(1, 1 + self._first_nodes())),
        )
        path = self.folder / "head.config.json"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(asdict(config), file)
        command = [sys.executable, "-m", "planaria.sandbox.head", "--config", str(path)]
        complaints = self.folder / "head.err"
        with complaints.open("w") as errors:
            self._head = subprocess.Popen(
                command,
                # The head ends when this pipe closes, so when this process ends, however it ends.
                stdin=subprocess.DEVNULL if self.config.outlive else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                start_new_session=True,
            )
        assert self._head.stdout is not None
        with self._head.stdout as output:
            line = output.readline()
        if not line:
            raise SandboxError(f"The sandbox's head did not start: {complaints.read_text().strip()[-500:]}")
        self._head_url = json.loads(line)["url"]

    def _deploy(self) -> None:
        assert self.emulator is not None
        context = deploy.sandbox_context(
            self._head_url,
            self._token,
            cluster=os.path.relpath(self.config.cluster_file.resolve(), ROOT),
            time_scale=self.config.time_scale,
        )
        if self.config.direct:
            out = self.folder / "emulator" / "cdk.out"
            assembly = deploy.synthesize(out, context, progress=self.progress)
            self.synthesized(assembly)
            outputs = deploy.deploy_direct(self.emulator, assembly, progress=self.progress)
        else:
            outputs = deploy.deploy(self.emulator, context, progress=self.progress)
        self.outputs = {key: value for stack in outputs.values() for key, value in stack.items()}
        self.outputs["Bucket"] = self._bucket()
        told = {"bucket": self.outputs["Bucket"], "table": f"planaria-{self.file.name}"}
        write_json(self.folder / NODE_FILE, {**told, "region": emulator.REGION})

    def _bucket(self) -> str:
        """Its name is made by the deploy; every function is told of it."""
        assert self.emulator is not None
        client = self.emulator.client("lambda")
        triage = client.get_function_configuration(FunctionName=f"planaria-{self.file.name}-triage")
        return str(triage["Environment"]["Variables"]["PLANARIA_BUCKET"])

    def _first_nodes(self) -> int:
        return sum(group.size for group in self.file.node_groups)

    def synthesized(self, assembly: Path) -> None:
        """With `direct`: the cloud assembly before it is deployed, for a test that changes it."""

    def _launch_nodes(self) -> None:
        """The user's own part on AWS: the nodes of each group, from its launch template."""
        self.progress("launching the nodes")
        gateways = self.gateways()
        number = 0
        for group in gateways.cluster.node_groups.values():
            offering = next(o for o in group.offerings if o.capacity is not Capacity.SPARE)
            for _ in range(group.size):
                number += 1
                name = f"{self.file.name}-{number}"
                marks = {tags.GROUP: group.name, tags.NAME: name}
                request = LaunchRequest(
                    f"first-{name}",
                    group.launch_template,
                    offering.instance_type,
                    offering.subnet,
                    offering.capacity,
                    marks,
                )
                gateways.fleet.launch(request)
        self._wait_for_nodes(number)
        for group in gateways.cluster.node_groups.values():
            for spare in range(1, group.spares + 1):
                wish = {"node_group": group.name, "reason": "the pool's first spares"}
                gateways.workflows.start("refill_spares", f"first-{group.name}-{spare}", wish)

    def _wait_for_nodes(self, number: int) -> None:
        deadline = time.monotonic() + READY_SECONDS
        gateways = self.gateways()
        while time.monotonic() < deadline:
            ready = [r for r in gateways.ledger.nodes() if "ready_at" in r and "spare" not in r]
            self.progress(f"nodes ready: {len(ready)} of {number}")
            if len(ready) >= number:
                return
            time.sleep(0.25)
        raise SandboxError(
            f"The nodes were not ready within {READY_SECONDS:.0f} s; "
            f"see {self.folder}/head.log and {self._log()}"
        )

    def _log(self) -> Path:
        assert self.emulator is not None
        return self.emulator.log

    def _save(self) -> None:
        assert self.emulator is not None
        document = {
            "cluster": self.file.name,
            "cluster_file": str(self.config.cluster_file.resolve()),
            "time_scale": self.config.time_scale,
            "emulator": {"port": self.emulator.port, "pid": self.emulator.pid},
            "head": {
                "url": self._head_url,
                "pid": self._head.pid if self._head else None,
                "token": self._token,
            },
            "outputs": self.outputs,
        }
        path = self.folder / "sandbox.json"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(document, file, indent=2)

    # --- what tests, demo and CLI use ----------------------------------------------------------------

    def head(self) -> HeadClient:
        return HeadClient(self._head_url, self._token, timeout=10.0)

    def gateways(self) -> Gateways:
        """The ports of this sandbox, as a person with all rights has them."""
        assert self.emulator is not None
        return sandbox_gateways(self.emulator, self.file, self.config.time_scale, self.outputs)

    def submit(self, job_id: str, recipe: dict[str, Any]) -> str:
        """Start a training job and register it in the ledger. -> its id: Slurm gives it one of its own."""
        return submit_job(self.head(), self.gateways(), job_id, recipe)

    def job_folder(self, job_id: str) -> Path:
        return self.folder / "jobs" / job_id


def sandbox_gateways(
    running: emulator.Emulator, file: ClusterFile, time_scale: float, outputs: dict[str, str]
) -> Gateways:
    from planaria.core.cluster import Cluster

    name = file.name
    arn = f"arn:aws:states:{emulator.REGION}:{emulator.ACCOUNT}:stateMachine:planaria-{name}-"
    machines = (
        "heal_node",
        "resume_job",
        "isolate_node",
        "launch_replacement",
        "refill_spares",
        "sync_checkpoints",
        "restore_checkpoint",
    )
    environment = {
        "PLANARIA_CLUSTER": name,
        "PLANARIA_TABLE": f"planaria-{name}",
        "PLANARIA_BUS": f"planaria-{name}",
        "PLANARIA_BUCKET": outputs.get("Bucket", ""),
        "PLANARIA_TOPIC": f"arn:aws:sns:{emulator.REGION}:{emulator.ACCOUNT}:planaria-{name}-notices",
        "PLANARIA_MACHINES": json.dumps({machine: arn + machine for machine in machines}),
    }
    return Gateways(environment, Cluster.from_document(file.document(time_scale)), running.client)


def submit_job(head: HeadClient, gateways: Gateways, job_id: str, recipe: dict[str, Any]) -> str:
    """-> the id under which the ledger has it."""
    job = head.post("/jobs/submit", {"job_id": job_id, "recipe": recipe})
    job_id, lineage = str(job["job_id"]), {"folder": job["checkpoints"]}
    deadline = time.monotonic() + READY_SECONDS
    while not job.get("placement"):
        if time.monotonic() > deadline:
            raise SandboxError(f"job {job_id} did not start within {READY_SECONDS:.0f} s")
        time.sleep(0.1)
        job = head.get("/status")["jobs"][job_id]
    nodes = list(dict.fromkeys(job["placement"]))
    facts = {"attempt": job["attempt"], "recipe": recipe["name"], "lineage": lineage}
    gateways.jobs.register(job_id, job["nodes"], nodes, facts)
    for node in nodes:
        gateways.ledger.note_node(node, {"job_id": job_id})
    return job_id


def end_head(pid: int) -> None:
    """SIGTERM lets the head end what it started; what is left after a while is killed."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 10
    while processes.started_at(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    processes.end_group(pid, 0.5)


@contextlib.contextmanager
def attached(folder: Path) -> Iterator[tuple[emulator.Emulator, HeadClient, dict[str, Any]]]:
    """A sandbox that another process started. Raises InvalidInput when none runs there."""
    try:
        document = json.loads((folder / "sandbox.json").read_text())
    except (OSError, ValueError):
        raise InvalidInput(f"no sandbox runs in {folder}; `planaria sandbox up` starts one") from None
    running = emulator.attach(folder / "emulator")
    if running is None:
        raise InvalidInput(f"the sandbox in {folder} is dead; `planaria sandbox down` clears it away")
    head = document["head"]
    yield running, HeadClient(head["url"], head["token"], timeout=10.0), document
