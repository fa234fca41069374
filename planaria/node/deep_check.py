"""The deep check of an isolated node: does everything work under load? Takes about half an hour.

Disk, memory and processors are tried by this module itself; the GPUs, their links and the network by the
tools that are there: DCGM, nccl-tests, libfabric, stress-ng. A tool that is missing, or does not run, leaves
its part unknown, with the reason: a check that could not look is no finding about the node. Durations are
those that AWS's health check suite tells of (awsome-distributed-training, 2.gpu-cluster-healthcheck).
"""

import functools
import hashlib
import json
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planaria.node.figures import Figures
from planaria.node.parts import Finding, Part, State, find, run, start, timed, wait

GPU_LEVEL = 3
"""Of DCGM's diagnosis: memory, power, load, links; about a quarter of an hour. Level 4, as HyperPod runs it
on new nodes, takes up to 2 1/4 hours, for which no job should wait."""

GPU_SECONDS = 3600.0
NVLINK_SECONDS = 1200.0  # all-reduce over all GPUs: 10 to 20 minutes on several nodes, less on one
EFA_SECONDS = 120.0
STRESS_SECONDS = 60.0
OWN_SECONDS = 600.0  # disk, memory and processors: seconds; a disk that takes so long is dead

NCCL_FOLDERS = ("/opt/nccl-tests/build", "/usr/local/cuda*/efa/test-cuda*", "/usr/local/bin")
EFA_FOLDERS = ("/opt/amazon/efa/bin",)
INFINIBAND = Path("/sys/class/infiniband")

BLOCK = 2**20
_FAIL, _SKIPPED = "fail", ("skip", "not run")
_BUS_BANDWIDTH = re.compile(r"Avg bus bandwidth\s*:\s*([0-9.]+)")
_WRONG = re.compile(r"Out of bounds values\s*:\s*(\d+)")


@dataclass(frozen=True, slots=True)
class Load:
    """How much is tried. disk, memory: bytes; rounds: of each processor's own sum."""

    disk: int = 2**30
    memory: int = 2**30
    rounds: int = 4_000_000
    stress_seconds: float = STRESS_SECONDS


BRIEF = Load(disk=8 * BLOCK, memory=16 * BLOCK, rounds=100_000, stress_seconds=1.0)
"""For a machine that plays several nodes."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and how: a folder on the disk to try, and what the instance type should have (None: unknown)."""

    folder: Path
    figures: Figures | None = None
    load: Load = Load()


def deep(bench: Bench) -> list[Part]:
    """Every part, the short ones first."""
    return [timed(name, functools.partial(look, bench)) for name, look in PARTS.items()]


# --- by this module, each in a child process of its own ----------------------------------------------


def own(bench: Bench, name: str, size: int) -> Finding:
    """A child process that can hang without this one: a dead disk holds whoever touches it for ever."""
    command = [sys.executable, "-m", "planaria.node.deep_check", name, str(size), str(bench.folder)]
    ended = run(command, OWN_SECONDS)
    if ended.code is None:
        return State.FAILED, f"it did not end within {OWN_SECONDS:.0f} s"
    if ended.code < 0:
        return State.UNKNOWN, f"it was killed by signal {-ended.code}"
    try:
        said = json.loads(ended.tail)
        return State(said["state"]), str(said["reason"])
    except (ValueError, KeyError, TypeError):
        return State.UNKNOWN, ended.tail


def disk(bench: Bench) -> Finding:
    return own(bench, "disk", bench.load.disk)


def memory(bench: Bench) -> Finding:
    return own(bench, "memory", bench.load.memory)


def processors(bench: Bench) -> Finding:
    return own(bench, "processors", bench.load.rounds)


def try_disk(size: int, folder: Path) -> Finding:
    """Write, forget, read, compare."""
    stat = os.statvfs(folder)
    blocks = min(size, stat.f_bavail * stat.f_frsize // 4) // BLOCK
    if not blocks:
        return State.UNKNOWN, "the disk has no room for the test"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            written = hashlib.sha256()
            for block in _blocks(blocks):
                written.update(block)
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            read = hashlib.sha256()
            while block := file.read(BLOCK):
                read.update(block)
    except OSError as error:
        return State.FAILED, f"the disk cannot be used: {error.strerror}"
    if read.digest() != written.digest():
        return State.FAILED, f"of {blocks} MB written not all came back the same"
    return State.PASSED, ""


def try_memory(size: int, _: Path) -> Finding:
    """Patterns whose neighbouring bits differ, and noise, written to all of it and compared."""
    for pattern in (b"\x55", b"\xaa", next(_blocks(1))):
        block = (pattern * (BLOCK // len(pattern)))[:BLOCK]
        held = bytearray(size)
        for offset in range(0, size, BLOCK):
            held[offset : offset + BLOCK] = block
        wrong = next((at for at in range(0, size, BLOCK) if held[at : at + BLOCK] != block), None)
        if wrong is not None:
            return State.FAILED, f"memory did not keep what was written, at MB {wrong // BLOCK} of the test"
    return State.PASSED, ""


def try_processors(rounds: int, _: Path) -> Finding:
    """The same sum on all processors at once; whichever comes to another end is broken."""

    def add(_: int) -> str:
        return hashlib.pbkdf2_hmac("sha256", b"planaria", b"deep check", rounds).hex()

    count = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(count) as pool:  # hashlib lets go of the interpreter meanwhile
        sums = list(pool.map(add, range(count)))
    odd = len(sums) - max(sums.count(one) for one in set(sums))
    return (State.FAILED, f"{odd} of {count} processors came to another sum") if odd else (State.PASSED, "")


def _blocks(number: int) -> Iterator[bytes]:
    """Blocks of noise that are the same each time and nowhere repeat."""
    for index in range(number):
        seed = hashlib.sha256(index.to_bytes(8, "big")).digest()
        yield hashlib.shake_128(seed).digest(BLOCK)


# --- by the tools that are there ---------------------------------------------------------------------


def stress(bench: Bench) -> Finding:
    """As HyperPod's deep check loads the machine."""
    tool = find("stress-ng")
    if not tool:
        return State.UNKNOWN, "stress-ng is not installed"
    seconds = bench.load.stress_seconds
    load = ["--cpu", "32", "--vm", "2", "--hdd", "1", "--fork", "8", "--switch", "4", "--verify"]
    limits = ["--timeout", f"{seconds:.0f}s", "--temp-path", str(bench.folder)]
    ended = run([tool, *load, *limits], seconds + 120)
    if ended.code == 2:  # a stressor failed; other statuses tell of the tool itself
        return State.FAILED, ended.tail
    if ended.code is None:
        return State.FAILED, f"it did not end {120 + seconds:.0f} s after its beginning"
    return (State.PASSED, "") if ended.code == 0 else (State.UNKNOWN, ended.tail)


def nvlink(bench: Bench) -> Finding:
    """An all-reduce over all GPUs: right sums, and as fast as the links should be."""
    tool = find("all_reduce_perf", NCCL_FOLDERS)
    if not tool:
        return State.UNKNOWN, "nccl-tests are not installed"
    gpus = bench.figures.gpus if bench.figures else 1
    ended = run([tool, "-b", "2G", "-e", "2G", "-g", str(gpus)], NVLINK_SECONDS)
    if ended.code is None:
        return State.FAILED, f"the all-reduce did not end within {NVLINK_SECONDS:.0f} s"
    wrong = _WRONG.search(ended.output)
    if wrong and int(wrong[1]):
        return State.FAILED, f"the all-reduce came to {wrong[1]} wrong values"
    bandwidth = _BUS_BANDWIDTH.search(ended.output)
    if bandwidth is None:
        return State.UNKNOWN, ended.tail
    if bench.figures is None:
        return (
            State.UNKNOWN,
            f"{bandwidth[1]} GB/s, and nothing is known of what this instance type should do",
        )
    if float(bandwidth[1]) < bench.figures.nvlink_gbs:
        return (
            State.FAILED,
            f"{bandwidth[1]} GB/s over NVLink, at least {bench.figures.nvlink_gbs:g} expected",
        )
    return State.PASSED, ""


def efa(bench: Bench) -> Finding:
    """Every device's port is up, and one carries data from this node to itself."""
    try:
        ports = sorted(INFINIBAND.glob("*/ports/*/state"))
        down = [path.parts[-4] for path in ports if "ACTIVE" not in path.read_text(encoding="utf-8")]
    except OSError as error:
        return State.UNKNOWN, f"the devices cannot be listed: {error.strerror}"
    if down:
        return State.FAILED, f"{len(down)} of {len(ports)} devices are down: {', '.join(down[:4])}"
    if not ports:
        most = f" of at most {bench.figures.efa}" if bench.figures else ""
        return State.UNKNOWN, f"no EFA device{most} is there"
    tool = find("fi_pingpong", EFA_FOLDERS)
    if not tool:
        return State.UNKNOWN, "fi_pingpong is not installed"
    # What it says of a failure does not tell the device's fault from the security group's or the tool's.
    ended = _ping(tool)
    return (State.PASSED, "") if ended is None else (State.UNKNOWN, ended)


def _ping(tool: str) -> str | None:
    """Why no data came through, None when it did."""
    command = [tool, "-p", "efa", "-e", "rdm", "-c"]
    with tempfile.TemporaryFile() as output:
        server = start(command, output)
        try:
            time.sleep(1.0)
            ended = run([*command, _own_address()], EFA_SECONDS)
        finally:
            if server.poll() is None:
                server.terminate()
            wait(server, 5.0)
    if ended.code is None:
        return f"no answer within {EFA_SECONDS:.0f} s"
    return None if ended.code == 0 else ended.tail


def _own_address() -> str:
    """This machine's address on its first network; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("169.254.169.254", 80))
        return str(probe.getsockname()[0])


def gpus(_: Bench) -> Finding:
    """DCGM's diagnosis, memory included. Its JSON has no published form: any test that says Fail counts,
    wherever it stands."""
    tool = find("dcgmi")
    if not tool:
        return State.UNKNOWN, "dcgmi is not installed"
    ended = run([tool, "diag", "-r", str(GPU_LEVEL), "-j"], GPU_SECONDS)
    if ended.code is None:
        return State.FAILED, f"the diagnosis did not end within {GPU_SECONDS:.0f} s"
    try:
        document = json.loads(ended.output[ended.output.index("{") :])
    except ValueError:
        return State.UNKNOWN, ended.tail
    return diagnosis(document)


def diagnosis(document: Mapping[str, Any]) -> Finding:
    """What DCGM's answer says of the GPUs."""
    tests = list(_tests(document, ""))
    failed = [f"{where}: {said}" if said else where for where, status, said in tests if status == _FAIL]
    if failed:
        return State.FAILED, "; ".join(failed)
    if any(status not in _SKIPPED for _, status, _ in tests):
        return State.PASSED, ""
    return State.UNKNOWN, "the diagnosis tried nothing" if tests else "the diagnosis gave no result"


def _tests(value: Any, where: str) -> Iterator[tuple[str, str, str]]:
    """(test and GPU, status, warning) of every result in the document."""
    if isinstance(value, list):
        for entry in value:
            yield from _tests(entry, where)
    if not isinstance(value, dict):
        return
    where = str(value.get("name") or where)
    status = value.get("status")
    if isinstance(status, str):
        gpu = value.get("gpu_ids", value.get("entity_id", value.get("gpu_id")))
        yield f"{where} on GPU {gpu}" if gpu is not None else where, status.lower(), _warning(value)
    for entry in value.values():
        yield from _tests(entry, where)


def _warning(result: Mapping[str, Any]) -> str:
    found = result.get("warnings") or result.get("warning") or ""
    first = found[0] if isinstance(found, list) and found else found
    return str(first.get("warning", "") if isinstance(first, dict) else first)


PARTS: dict[str, Callable[[Bench], Finding]] = {
    "disk": disk,
    "memory": memory,
    "processors": processors,
    "stress": stress,
    "efa": efa,
    "nvlink": nvlink,
    "gpus": gpus,
}
OWN: dict[str, Callable[[int, Path], Finding]] = {
    "disk": try_disk, "memory": try_memory, "processors": try_processors,
}  # fmt: skip


def main(arguments: list[str]) -> int:
    """One own part in this process: NAME SIZE FOLDER."""
    name, size, folder = arguments
    state, reason = OWN[name](int(size), Path(folder))
    sys.stdout.write(json.dumps({"state": state.value, "reason": reason}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
