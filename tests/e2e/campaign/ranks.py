"""A rank server whose ranks load nothing and train nothing, but behave as a training job does.

Rank 0 writes a step to train.jsonl every now and then, saves a checkpoint with its first step of an attempt,
and another one whenever somebody asks. Ranks end with SIGTERM, as the real ones do.
"""

import json
import sys
import time
from pathlib import Path

from planaria.core.manifest import Lineage
from planaria.sandbox.job_folder import JobFolder, read_json, write_json
from planaria.sandbox.job_recipe import RankRequest
from planaria.sandbox.rank_server import main
from planaria.sandbox.saved_steps import commit, prune

STEP_SECONDS = 0.5
LOOK_SECONDS = 0.1
KEEP = 2


def rank(request: RankRequest, forked_at: float) -> int:
    if request.rank:
        while True:
            time.sleep(60)
    folder = JobFolder(Path(request.dir))
    step = request.resume_step
    while True:
        step += 1
        line = {"attempt": request.attempt, "step": step, "loss": 1.0, "at": time.time()}
        with folder.train_log.open("a") as log:
            log.write(json.dumps(line) + "\n")
        if step == request.resume_step + 1:
            save(folder, request, step)
        for _ in range(int(STEP_SECONDS / LOOK_SECONDS)):
            asked = (read_json(folder.request) or {}).get("id")
            if asked and asked != (read_json(folder.served) or {}).get("id"):
                save(folder, request, step)
                write_json(folder.served, {"id": asked, "step": step, "at": time.time()})
            time.sleep(LOOK_SECONDS)


def save(folder: JobFolder, request: RankRequest, step: int) -> None:
    if folder.step(step).exists():
        return
    scratch = folder.step_in_progress(step)
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "weights").write_text(f"{request.job_id} {step}")
    lineage = Lineage(request.job_id, request.attempt, request.resume_step)
    commit(folder, step, request.world_size, lineage)
    prune(folder, request.job_id, KEEP, request.resume_step)


if __name__ == "__main__":
    sys.exit(main(load_rank_main=lambda: rank))
