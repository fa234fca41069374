"""The rank server with ranks that load nothing: they do what files in their job's folder say.

do/<rank>     exit code with which this rank of any attempt ends now; the file is removed
do/stubborn   ranks that start now ignore SIGTERM

Rank 0 writes one line per step to train.jsonl.
"""

import json
import signal
import sys
import time
from pathlib import Path

from planaria.sandbox.job_recipe import RankRequest
from planaria.sandbox.rank_server import main


def rank(request: RankRequest, forked_at: float) -> int:
    folder = Path(request.dir)
    if (folder / "do" / "stubborn").exists():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wish = folder / "do" / str(request.rank)
    for step in range(1, 6000):
        if wish.exists():
            code = int(wish.read_text())
            wish.unlink()
            return code
        if request.rank == 0:
            line = {"attempt": request.attempt, "step": step, "loss": 1 / step, "at": time.time()}
            with (folder / "train.jsonl").open("a") as log:
                log.write(json.dumps(line) + "\n")
        time.sleep(0.02)
    return 0


if __name__ == "__main__":
    sys.exit(main(load_rank_main=lambda: rank))
