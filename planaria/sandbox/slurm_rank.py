"""One rank of the sandbox's training job as a task of Slurm.

    srun python -m planaria.sandbox.slurm_rank FOLDER

FOLDER/recipe.json: {"training": {...}}, as planaria.sandbox.job_recipe has it. What the rank server does for
the sandbox's own processes happens here: the rank is a child, its start and its end are written down where
the head and the node's agent look for them. Rank, size and node are Slurm's; attempt and resume step are what
`planaria-run` handed on.
"""

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from planaria.core.errors import InvalidInput
from planaria.sandbox import processes
from planaria.sandbox.job_folder import JobFolder, read_json, write_json
from planaria.sandbox.job_recipe import RankRequest, parse_rank_request

FIRST_MASTER_PORT, MASTER_PORTS = 11_000, 8_000
"""Ports at which the ranks of an attempt meet: outside of the ephemeral range and of Slurm's own."""

_PR_SET_PDEATHSIG = 1


def start_file(folder: JobFolder, attempt: int, rank: int) -> Path:
    """{"pid", "started" (clock ticks since boot), "node": name, "ranks", "resume_step", "at"}."""
    return folder.attempts / str(attempt) / f"rank-{rank}.start"


def request_of(root: Path, environment: Mapping[str, str]) -> RankRequest:
    """What this task is. Raises InvalidInput with one sentence outside of a job of the sandbox."""
    try:
        job, rank = environment["SLURM_JOB_ID"], int(environment["SLURM_PROCID"])
        restarts = int(environment.get("SLURM_RESTART_COUNT") or 0)
        attempt = int(environment.get("PLANARIA_ATTEMPT") or restarts + 1)
        document = {
            "job_id": job,
            "attempt": attempt,
            "rank": rank,
            "world_size": int(environment["SLURM_NTASKS"]),
            "node_id": environment["SLURMD_NODENAME"],
            "pgid_of": os.getppid(),
            "master_port": FIRST_MASTER_PORT + (int(job) * 131 + restarts) % MASTER_PORTS,
            "dir": str(root.resolve()),
            "resume_step": int(environment.get("PLANARIA_RESUME_STEP") or -1),
            "config": (read_json(root / "recipe.json") or {}).get("training", {}),
        }
    except (KeyError, ValueError) as error:
        raise InvalidInput(f"this is no task of a job of the sandbox: {error}") from None
    return parse_rank_request(document, f"job {root}")


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1:
        sys.stderr.write("usage: python -m planaria.sandbox.slurm_rank FOLDER\n")
        return 2
    began = time.time()
    try:
        request = request_of(Path(given[0]), os.environ)
    except InvalidInput as error:
        sys.stderr.write(f"{error}\n")
        return 2
    folder = JobFolder(Path(request.dir))
    log_path = folder.rank_log(request.attempt, request.rank)
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    waiter = os.getpid()
    child = os.fork()
    if child == 0:
        _be_the_rank(request, began, log, waiter)
    document = {
        "pid": child,
        "started": processes.started_at(child),
        "node": request.node_id,
        "ranks": request.world_size,
        "resume_step": request.resume_step,
        "at": began,
    }
    write_json(start_file(folder, request.attempt, request.rank), document)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ended = {"exit_code": code, "at": time.time()}
    write_json(folder.rank_exit(request.attempt, request.rank), ended)
    return code if code >= 0 else 128 - code


def _be_the_rank(request: RankRequest, began: float, log: int, waiter: int) -> None:
    code = 1
    try:
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        if os.getppid() != waiter:
            os._exit(1)  # it died before the line above
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.nice(request.config.nice)
        # What PyTorch keeps beside itself goes with the job's folder.
        os.environ["TMPDIR"] = request.dir
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ[name] = "1"
        from planaria.sandbox import training

        code = int(training.main(request, began))
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:  # noqa: BLE001  the log is the place for it
        sys.stderr.write(f"{json.dumps(str(error))}\n")
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
