"""One rank of a test's job, on a real Slurm. Standard library only; `python rank.py FOLDER`.

It says where it runs in FOLDER/ranks/<start>-<rank>.json, ends with the code that it finds in
FOLDER/do/<rank>, and ignores SIGTERM when there is FOLDER/do/stubborn. With FOLDER/do/steps it also makes
steps: rank 0 writes one line for each to FOLDER/steps.jsonl and, every tenth, its number to FOLDER/saved.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> int:
    folder = Path(sys.argv[1])
    start, rank = int(os.environ.get("SLURM_RESTART_COUNT", "0")), int(os.environ.get("SLURM_PROCID", "0"))
    if (folder / "do/stubborn").exists():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    here = {
        "pid": os.getpid(),
        "started": int(started),
        "rank": rank,
        "node": os.environ.get("SLURMD_NODENAME", ""),
        "gpus": os.environ.get("SLURM_JOB_GPUS", ""),
        "attempt": os.environ.get("PLANARIA_ATTEMPT", ""),
        "at": time.time(),
    }
    place = folder / "ranks" / f"{start}-{rank}.json"
    scratch = place.with_suffix(".tmp")
    scratch.write_text(json.dumps(here))
    scratch.rename(place)
    saved, step = folder / "saved", 0
    if saved.exists():
        step = int(saved.read_text())
    while True:
        wish = folder / "do" / str(rank)
        if wish.exists():
            code = int(wish.read_text())
            wish.unlink()
            return code
        if rank == 0 and (folder / "do/steps").exists():
            step += 1
            with (folder / "steps.jsonl").open("a") as log:
                log.write(json.dumps({"start": start, "step": step, "at": time.time()}) + "\n")
            if step % 10 == 0:
                (folder / "saved.tmp").write_text(str(step))
                (folder / "saved.tmp").rename(saved)
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
