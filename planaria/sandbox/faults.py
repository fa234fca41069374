"""Faults, shown the way hardware and AWS show them. Each function does one and says in a sentence what."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from planaria.core.errors import InvalidInput
from planaria.memory.cluster_state import ClusterState
from planaria.sandbox.jobs import Jobs
from planaria.sandbox.node_process import GPUS, NodeProcess
from planaria.sandbox.player import Player
from planaria.sandbox.slurm_side import SlurmSide

RANK_DIES_SECONDS = 0.2
_XID = "NVRM: Xid (PCI:0000:b3:00.0): "
XID_79 = f"{_XID}79, pid=12345, GPU has fallen off the bus."
XID_48 = f"{_XID}48, pid=12345, An uncorrectable double bit error (DBE) has been detected on GPU."
XID_119 = f"{_XID}119, pid=12345, Timeout after 6s of waiting for RPC response from GPU3 GSP!"


@dataclass(frozen=True, slots=True)
class Bench:
    """What faults are made with. client: a boto3 client of the emulator by service name. slurm: where it is
    the sandbox's scheduler."""

    player: Player
    jobs: Jobs
    state: ClusterState
    lock: threading.RLock
    client: Callable[[str], Any]
    slurm: SlurmSide | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One fault on one node; wish: the rest of what was asked for."""

    bench: Bench
    node: NodeProcess
    wish: Mapping[str, Any]

    @property
    def called(self) -> str:
        with self.bench.lock:
            name = self.bench.state.name_of(self.node.instance_id) or self.node.name or "a spare"
        return f"{name} ({self.node.instance_id})"


def inject(bench: Bench, wish: Mapping[str, Any]) -> str:
    """wish: {"fault": name, "node": name or instance id, ...}. Raises InvalidInput with one sentence."""
    name, target = wish.get("fault"), str(wish.get("node") or "")
    fault = FAULTS.get(name) if isinstance(name, str) else None
    if fault is None:
        raise InvalidInput(f"unknown fault {name!r}; known are {', '.join(sorted(FAULTS))}")
    if not target and fault is kill_rank and wish.get("job_id"):
        target = _node_of_rank(bench, wish)
    return fault(Case(bench, _node(bench, target), wish))


def xid79(case: Case) -> str:
    """The driver loses a GPU: the kernel says so, and what ran on it dies a moment later."""
    case.node.place.set_gpus(GPUS - 1)
    return _say_and_die(case, 79, XID_79)


def broken_gpu(case: Case) -> str:
    """As xid79, and no reboot brings the GPU back."""
    case.node.place.set_gpus(GPUS - 1, broken=True)
    return xid79(case)


def bad_gpu(case: Case) -> str:
    """Xid 48, and memory that fails under load alone: neither a reset nor a reboot cures it, the light check
    passes, the deep one does not."""
    case.node.place.set_gpus(GPUS, bad=True)
    return _say_and_die(case, 48, XID_48)


def stuck_gpu(case: Case) -> str:
    """Xid 119, and a driver that answers no reset; a reboot cures it."""
    case.node.place.set_gpus(GPUS, stuck=True)
    return _say_and_die(case, 119, XID_119)


def kernel_line(case: Case) -> str:
    """Any line in the kernel's log, and nothing else."""
    line = case.wish.get("line")
    if not isinstance(line, str) or not line.strip():
        raise InvalidInput("kernel-line needs the text of the line as `line`")
    case.node.say(line.replace("\n", " "))
    return f"{case.called}: the kernel says {line.strip()!r}."


def spot(case: Case) -> str:
    """EC2 takes the instance back after a notice."""
    seconds = case.bench.player.spot(case.node.instance_id) - time.time()
    return f"{case.called}: EC2 gave a spot notice and terminates it in {seconds:.0f} s."


def terminate(case: Case) -> str:
    """The instance is gone without a warning."""
    case.bench.client("ec2").terminate_instances(InstanceIds=[case.node.instance_id])
    return f"{case.called}: terminated without a warning."


def reboot(case: Case) -> str:
    """Somebody reboots the instance through EC2."""
    case.bench.client("ec2").reboot_instances(InstanceIds=[case.node.instance_id])
    return f"{case.called}: EC2 was asked to reboot it."


def kill_node(case: Case) -> str:
    """Everything on the node dies, the instance stays `running`: a kernel panic, seen from outside."""
    case.bench.player.kill(case.node.instance_id)
    return f"{case.called}: all its processes were killed, its instance still runs."


def kill_rank(case: Case) -> str:
    """One training process dies, the node is well."""
    wanted_job, wanted_rank = case.wish.get("job_id"), case.wish.get("rank")
    with case.bench.lock:
        found = [
            (job.job_id, rank)
            for job in case.bench.state.jobs.values()
            for rank in job.live_ranks
            if job.placement[rank] == case.node.instance_id
            and wanted_job in (None, job.job_id)
            and wanted_rank in (None, rank)
        ]
    for job_id, rank in found:
        if case.bench.jobs.kill_rank(job_id, rank):
            return f"{case.called}: rank {rank} of {job_id} was killed."
    raise InvalidInput(f"no such rank runs on {case.node.name}")


def foreign_drain(case: Case) -> str:
    """A person takes the node out of the scheduler."""
    reason = str(case.wish.get("reason") or "maintenance by an operator")
    with case.bench.lock:
        name = case.bench.state.name_of(case.node.instance_id)
        if name is None:
            raise InvalidInput(f"{case.called} is not in the scheduler")
        case.bench.state.foreign_isolate(name, reason, by="operator")
    if case.bench.slurm is not None:
        case.bench.slurm.drain(name, reason)
    case.bench.jobs.work()
    return f"{case.called}: isolated by an operator ({reason})."


def _say_and_die(case: Case, xid: int, line: str) -> str:
    """The kernel's line, and the ranks on the node a moment later."""
    case.node.say(line)
    timer = threading.Timer(RANK_DIES_SECONDS, case.bench.jobs.kill_ranks_on, [case.node.instance_id])
    timer.daemon = True
    timer.start()
    return f"{case.called}: the kernel says Xid {xid}, its ranks die {RANK_DIES_SECONDS} s later."


FAULTS: dict[str, Callable[[Case], str]] = {
    "xid79": xid79,
    "broken-gpu": broken_gpu,
    "bad-gpu": bad_gpu,
    "stuck-gpu": stuck_gpu,
    "kernel-line": kernel_line,
    "spot": spot,
    "terminate": terminate,
    "reboot": reboot,
    "kill-node": kill_node,
    "kill-rank": kill_rank,
    "foreign-drain": foreign_drain,
}


def _node(bench: Bench, target: str) -> NodeProcess:
    """The node of a scheduler name or an instance id."""
    nodes = bench.player.nodes()
    with bench.lock:
        known = bench.state.nodes.get(target)
    node = nodes.get(known.node_id if known else target)
    if node is None:
        names = ", ".join(sorted(n.name or n.instance_id for n in nodes.values())) or "none"
        raise InvalidInput(f"no node {target!r} runs; running are {names}")
    return node


def _node_of_rank(bench: Bench, wish: Mapping[str, Any]) -> str:
    with bench.lock:
        job = bench.state.jobs.get(str(wish["job_id"]))
        live = job.live_ranks if job else []
        rank = wish.get("rank", live[0] if live else -1)
        if job is None or rank not in live:
            raise InvalidInput(f"no such rank of job {wish['job_id']!r} runs")
        return str(job.placement[rank])
